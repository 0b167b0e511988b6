"""Lets damo's own modules read our exports, and writes a record with them for us to read.

damo_reads.py compare ROWS.json FILE...   what damo finds in FILE is what ROWS.json says
damo_reads.py write FOLDER                damo writes one record in its three formats
"""
import importlib.util
import json
import os
import sys

sys.path.insert(0, os.path.dirname(importlib.util.find_spec("damo").origin))
import _damo_records as records  # noqa: E402
import _damon as damon  # noqa: E402


def totals(path):
    if path.endswith(".json"):
        # damo asks file(1) first and knows one of the two names that it has for JSON; with the other
        # (file 5.44, "JSON text data") it reads no JSON at all, its own neither.
        found, error = records.parse_json_file(path), None
    else:
        found, error = records.parse_records_file(path)
    if error:
        sys.exit(f"damo cannot read {path}: {error}")
    regions = [r for record in found for s in record.snapshots for r in s.regions]
    return {
        "snapshots": sum(len(record.snapshots) for record in found),
        "regions": len(regions),
        "bytes": sum(r.size() for r in regions),
        "accessed_bytes": sum(r.size() for r in regions if r.nr_accesses.samples > 0),
        "age_us": round(sum(r.age.usec for r in regions)),
    }


def compare(expected, paths):
    with open(expected) as file:
        expected = json.load(file)
    failed = False
    for path in paths:
        seen = totals(path)
        print(path, seen)
        # Ages are summed in floating point there, in whole nanoseconds here.
        apart = abs(seen["age_us"] - expected["age_us"])
        failed |= seen | {"age_us": 0} != expected | {"age_us": 0} or apart > 1
    if failed:
        print("isotherm:", expected)
    sys.exit(failed)


def write(folder):
    record = records.DamonRecord(None, None, damon.DamonIntervals(), None, 4711, [])
    for t in range(1, 6):
        regions = []
        for number in range(10):
            samples = (number * t) % 21
            region = damon.DamonRegion(
                (number + 1) << 20, (number + 2) << 20,
                samples, damon.unit_samples, number + t, damon.unit_aggr_intervals)
            region.age.add_unset_unit(record.intervals)
            regions.append(region)
        record.snapshots.append(
            records.DamonSnapshot(t * 100_000_000, (t + 1) * 100_000_000, regions, None))
    for name, kind in ("json", "json"), ("damo", "json_compressed"), ("trace", "perf_script"):
        error = records.write_damon_records([record], f"{folder}/theirs.{name}", kind)
        if error:
            sys.exit(f"damo cannot write {kind}: {error}")


if sys.argv[1] == "compare":
    compare(sys.argv[2], sys.argv[3:])
else:
    write(sys.argv[2])
