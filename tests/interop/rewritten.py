"""rewritten.py IN.parquet FOLDER: lets each program read a Parquet file of ours and write it again.

What each keeps of the file (of the versions in requirements.txt): all keep columns, their order, values
and names; none keeps our key-value metadata. pandas makes floats of whole numbers with nulls.
"""
import sys

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq

path, folder = sys.argv[1:]
pq.write_table(pq.read_table(path), f"{folder}/pyarrow.parquet")
pd.read_parquet(path).to_parquet(f"{folder}/pandas.parquet")
pl.read_parquet(path).write_parquet(f"{folder}/polars.parquet")
duckdb.sql(f"copy (from '{path}') to '{folder}/duckdb.parquet' (format parquet)")
for name in "pyarrow", "pandas", "polars", "duckdb":
    kept = pq.read_metadata(f"{folder}/{name}.parquet").metadata or {}
    print(f"{name} keeps of the metadata:", [key.decode() for key in kept if b"isotherm" in key])
