"""flat.py OUT.parquet: four programs answer "hot bytes a second by mapping" from `convert --flat`, and agree.

Hot bytes of a mapping in a second: each row's bytes, by the share of checks that found them accessed and by the part
of the second that its interval is.
"""
import math
import sys

import duckdb
import pandas as pd
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

path = sys.argv[1]


def by_duckdb():
    return duckdb.sql(f"""
        select epoch(date_trunc('second', time))::bigint as second, mapping,
               sum(size_bytes * accessed_share * interval_ns / 1e9) as hot_bytes
        from '{path}' where accessed_share is not null group by all""").fetchall()


def by_polars():
    hot = pl.col("size_bytes") * pl.col("accessed_share") * pl.col("interval_ns") / 1e9
    rows = pl.scan_parquet(path).drop_nulls("accessed_share")
    second = pl.col("time").dt.epoch("s").alias("second")
    return rows.group_by(second, pl.col("mapping").cast(pl.String)).agg(hot.sum()).collect().rows()


def by_pandas():
    rows = pd.read_parquet(path).dropna(subset="accessed_share")
    hot = rows.size_bytes * rows.accessed_share * rows.interval_ns / 1e9
    second = rows.time.dt.floor("s").astype("datetime64[s, UTC]").astype("int64")
    found = hot.groupby([second, rows.mapping], dropna=False, observed=True).sum()
    return [(second, name if isinstance(name, str) else None, bytes) for (second, name), bytes in found.items()]


def by_pyarrow():
    rows = pq.read_table(path).filter(pc.is_valid(pc.field("accessed_share")))
    hot = pc.multiply(pc.multiply(rows["size_bytes"].cast("double"), rows["accessed_share"]),
                      pc.divide(rows["interval_ns"].cast("double"), 1e9))
    second = pc.floor_temporal(rows["time"], unit="second").cast("int64")
    rows = rows.select(["mapping"]).set_column(0, "mapping", rows["mapping"].cast("string"))
    rows = rows.append_column("second", pc.divide(second, 10**6)).append_column("hot", hot)
    found = rows.group_by(["second", "mapping"]).aggregate([("hot", "sum")]).to_pylist()
    return [(row["second"], row["mapping"], row["hot_sum"]) for row in found]


answers = {}
for ask in by_duckdb, by_polars, by_pandas, by_pyarrow:
    answers[ask.__name__] = {(int(second), mapping): bytes for second, mapping, bytes in ask()}
first = answers["by_duckdb"]
failed = not first or not any(first.values())
for name, answer in answers.items():
    same = answer.keys() == first.keys() and all(
        math.isclose(answer[key], first[key], rel_tol=1e-9) for key in first)
    print(name, len(answer), "seconds and mappings,", round(sum(answer.values())), "byte seconds")
    failed |= not same
# The tables beside it, by their names.
for table, column in ("rss", "rss_bytes"), ("costs", "monitor_cpu_ns"):
    beside = path.removesuffix(".parquet") + f".{table}.parquet"
    rows = [len(pd.read_parquet(beside)), pl.read_parquet(beside).height, pq.read_table(beside).num_rows,
            duckdb.sql(f"select count({column}) from '{beside}'").fetchall()[0][0]]
    print(table, rows[0], "rows")
    failed |= len(set(rows)) != 1 or rows[0] == 0
sys.exit(failed)
