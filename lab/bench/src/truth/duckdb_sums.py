"""DuckDB with a table of eight columns in memory, two of which are summed again and again."""

import duckdb

base = duckdb.connect(":memory:", config={"threads": 1})
columns = ", ".join(f"(random() * 1e9)::bigint as c{number}" for number in range(8))
base.execute(f"create table items as select {columns} from range(8000000)")
print("ready", flush=True)
rounds = 0
while True:
    rounds += 1
    print("rounds", rounds, flush=True)
    base.execute("select sum(c0), max(c1) from items where c0 % 7 = 3").fetchall()
