"""SQLite with its whole database in its cache, of which a tenth is read: `FILE`."""

import random
import sqlite3
import sys

ROWS, BYTES = 300_000, 1000
base = sqlite3.connect(sys.argv[1])
base.execute("pragma journal_mode = off")
base.execute("pragma cache_size = -1000000")
base.execute("create table items (id integer primary key, value blob)")
choose = random.Random(1)
rows = ((number, choose.randbytes(BYTES)) for number in range(ROWS))
base.executemany("insert into items values (?, ?)", rows)
base.commit()
print("ready", flush=True)
rounds = 0
while True:
    rounds += 1
    print("rounds", rounds, flush=True)
    for _ in range(1000):
        key = choose.randrange(ROWS // 10)
        base.execute("select value from items where id = ?", (key,)).fetchone()
