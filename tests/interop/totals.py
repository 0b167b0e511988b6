"""Totals of a record of ours, as pyarrow sees it: for comparison with damo's view of the same."""
import json
import sys

import pyarrow as pa
import pyarrow.compute as pc

with pa.OSFile(sys.argv[1]) as file:
    table = pa.ipc.open_stream(file).read_all()
snapshots = pc.count_distinct(table["snapshot"]).as_py()
table = table.filter(pc.is_valid(table["nr_accesses"]))
size = pc.subtract(table["end"], table["start"])
print(json.dumps({
    "snapshots": snapshots,
    "regions": table.num_rows,
    "bytes": pc.sum(size).as_py(),
    "accessed_bytes": pc.sum(size.filter(pc.greater(table["nr_accesses"], 0))).as_py(),
    "age_us": round(pc.sum(table["age_ns"]).as_py() / 1000),
}))
