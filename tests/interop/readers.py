"""Opens a record with pyarrow, pandas, polars and duckdb and compares rows and sums between them."""
import sys

import duckdb
import pyarrow as pa
import polars as pl

path = sys.argv[1]
with pa.OSFile(path) as file:
    stream = pa.ipc.open_stream(file).read_all()
frame = stream.to_pandas()
read = pl.read_ipc_stream(path)
rows = duckdb.sql("select count(*), sum(\"end\" - start), sum(age) from stream").fetchall()[0]
seen = {
    "pandas": (len(frame), int((frame["end"] - frame["start"]).sum()), int(frame["age"].sum())),
    "polars": (read.height, int((read["end"] - read["start"]).sum()), int(read["age"].cast(pl.UInt64).sum())),
    "duckdb": tuple(int(x) for x in rows),
}
expected_rows = int(sys.argv[2])  # as `isotherm report` counts them
failed = len(set(seen.values())) != 1 or not len(frame) or len(frame) != expected_rows
for name, sums in seen.items():
    print(name, sums)
print("unknown rows:", frame["nr_accesses"].isna().sum(), "header:", stream.schema.metadata[b"writer"].decode())
sys.exit(failed)
