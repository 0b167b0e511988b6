"""Records as Arrow tables, and how reading one fails."""

import concurrent.futures
import json
import pickle
import random
import resource
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import isotherm
from conftest import BLOCK, SECOND, command


def raw(path: Path) -> pa.Table:
    """The rows of a record as any Arrow program reads them from the file."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()


def test_regions_are_those_of_the_file(record: isotherm.Record, path: Path) -> None:
    table = pa.table(record.regions())
    wanted = raw(path)
    assert table.column_names == wanted.column_names
    for name in wanted.column_names:
        assert table[name].to_pylist() == wanted[name].to_pylist(), name
    assert table.schema.metadata[b"writer"].startswith(b"isotherm")
    assert json.loads(table.schema.metadata[b"isotherm.header"])["operations"] == "vaddr"


def test_pandas_polars_and_duckdb_take_tables_as_they_are(record: isotherm.Record) -> None:
    rows = pa.table(record.regions()).num_rows
    assert rows > 100
    assert pl.DataFrame(record.regions()).height == rows
    assert len(pd.DataFrame.from_arrow(record.regions())) == rows
    regions = record.regions()
    counted = duckdb.sql('select count(*), sum("end" - start) from regions')
    assert "nr_accesses" in regions.columns
    assert counted is not None
    assert counted.fetchall()[0][0] == rows


def test_a_table_can_be_read_again_and_by_several_at_once(record: isotherm.Record) -> None:
    table = record.regions()
    first, second = pa.table(table), pa.table(table)
    assert first.equals(second)
    readers = [pa.RecordBatchReader.from_stream(table) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = list(pool.map(pa.RecordBatchReader.read_all, readers))
    assert read[0].equals(first)
    assert read[1].equals(first)


def test_snapshots_are_what_their_regions_come_to(record: isotherm.Record) -> None:
    regions = pl.DataFrame(record.regions())
    snapshots = pl.DataFrame(record.snapshots())
    sums = regions.group_by("snapshot").agg(pl.len(), pl.col("resident", "touched", "unknown", "swapped").sum())
    both = snapshots.join(sums, on="snapshot", suffix="_sum").filter("is_exact")
    assert both.height > 10
    for name in ["resident", "touched", "unknown", "swapped"]:
        assert (both[name] == both[f"{name}_sum"]).all(), name
    assert (both["regions"] == both["len"]).all()
    assert (both["resident"] == both["touched"] + both["untouched"] + both["unknown"]).all()


def test_items_have_a_kind_a_time_and_their_content(record: isotherm.Record) -> None:
    items = pa.table(record.items()).to_pylist()
    kinds = {item["kind"] for item in items}
    assert {"target_start", "mappings", "usage", "cost", "action"} <= kinds
    start = next(item for item in items if item["kind"] == "target_start")
    assert json.loads(start["item"])["name"] == "server"
    assert start["target"] == 0
    assert start["snapshots"] == 0
    assert all(item["time"] is not None for item in items)


def test_pages_are_bitmaps_and_replayed_as_regions(trace: isotherm.Record) -> None:
    assert trace.is_by_page
    pages = pa.table(trace.pages())
    assert pages.num_rows == 120
    assert pages["block"][0].as_py() == BLOCK
    assert pages["accessed"][0].as_py() == bytes([1] * 64)
    regions = pl.DataFrame(trace.regions())
    unknown = regions.filter(pl.col("nr_accesses").is_null())
    # Unknown is not cold: one page of each block, in every scan.
    assert unknown.height == 120
    assert (unknown["unknown"] == 4096).all()
    assert regions.filter(pl.col("nr_accesses") > 0).height > 0


def test_damo_and_parquet_are_read_as_they_are(record: isotherm.Record, path: Path, tmp_path: Path) -> None:
    rows = pl.DataFrame(record.regions()).select("snapshot", "start", "end", "nr_accesses")
    parquet = tmp_path / "rec.parquet"
    assert command("convert", path, parquet).returncode == 0
    with_parquet = isotherm.Record.open(parquet)
    assert pa.table(with_parquet.regions()).equals(pa.table(record.regions()))
    assert pa.table(with_parquet.items()).equals(pa.table(record.items()))
    for name in ["rec.json", "rec.damo"]:
        assert command("convert", path, tmp_path / name).returncode == 0
        damo = isotherm.Record.open(tmp_path / name)
        read = pl.DataFrame(damo.regions()).select("snapshot", "start", "end", "nr_accesses")
        known = rows.filter(pl.col("nr_accesses").is_not_null())
        assert read["nr_accesses"].round(0).sum() == pytest.approx(known["nr_accesses"].round(0).sum(), rel=0.01)


def test_what_is_no_record_is_refused(tmp_path: Path, trace_path: Path) -> None:
    with pytest.raises(isotherm.RecordError, match="cannot open the record") as missing:
        isotherm.Record.open(tmp_path / "nothing")
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    with pytest.raises(isotherm.IsothermError):
        isotherm.Record.open(tmp_path)
    draw = random.Random(1)
    heads = [b"", b"\0", b"ARROW1\0\0", b"PAR1", b"PERFILE2", b"{", b"[]", b"\xff\xff\xff\xff", b"x\x9c"]
    for head in heads:
        for length in [0, 7, 5000]:
            garbage = tmp_path / "garbage"
            garbage.write_bytes(head + draw.randbytes(length))
            with pytest.raises(isotherm.RecordError):
                isotherm.Record.open(garbage)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(trace_path.read_bytes()[:-100])
    with pytest.raises(isotherm.RecordError):
        isotherm.Record.open(cut)


def test_a_cut_record_is_read_up_to_the_cut_and_says_so(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    rows = raw(path).num_rows
    cut = tmp_path / "cut.isotherm"
    for length in [len(whole) // 3, len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        record = isotherm.Record.open(cut)
        regions = record.regions()
        assert regions.incomplete is None
        assert 0 < pa.table(regions).num_rows <= rows
        assert regions.incomplete is not None
        assert "not finished" in regions.incomplete
        with pytest.warns(isotherm.IsothermWarning, match="not finished"):
            report = record.wss()
        assert report["record"]["truncated"]["bytes_read"] <= length
    cut.write_bytes(whole[:100])
    with pytest.raises(isotherm.RecordError, match="within its header"):
        isotherm.Record.open(cut)


def test_a_damaged_record_raises_unless_it_is_salvaged(path: Path, tmp_path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 64] = b"\xa5" * 64
    file = tmp_path / "damaged.isotherm"
    file.write_bytes(damaged)
    with pytest.raises(Exception, match="damaged"):
        pa.table(isotherm.Record.open(file).regions())
    salvaged = isotherm.Record.open(file, salvage=True).regions()
    assert pa.table(salvaged).num_rows > 0
    assert salvaged.incomplete is not None
    assert "damaged" in salvaged.incomplete
    with pytest.warns(isotherm.IsothermWarning, match="of what comes before"):
        report = isotherm.Record.open(file).idle()
    assert "damaged" in report["record"]["damaged"]


def test_a_record_without_pages_has_none(record: isotherm.Record) -> None:
    with pytest.raises(isotherm.RecordError, match="holds no page scans"):
        record.pages()


def test_a_record_is_pickled_by_its_path_and_shown(record: isotherm.Record, path: Path) -> None:
    again = pickle.loads(pickle.dumps(record))
    assert again.path == path
    assert again.header == record.header
    html = record._repr_html_()
    assert "simulated" in html
    assert str(path) in repr(record)
    assert "nr_accesses" in repr(record.regions())


def test_an_open_record_outlives_its_name(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.isotherm"
    copy.write_bytes(path.read_bytes())
    record = isotherm.Record.open(copy)
    copy.unlink()
    assert pa.table(record.regions()).num_rows == raw(path).num_rows


def test_a_long_record_is_read_in_little_memory(path: Path, tmp_path: Path) -> None:
    """Three million regions, 280 MB as rows, are read one batch at a time."""
    schema, rows, snapshots = raw(path).schema, 60_000, 50
    values = dict.fromkeys(schema.names, 0) | {"nr_samples": 1, "end_time": SECOND}
    columns = [pa.array([values[field.name]] * rows, field.type) for field in schema]
    starts = pa.array(range(0, rows * 4096, 4096), pa.uint64())
    columns[schema.get_field_index("start")] = starts
    columns[schema.get_field_index("end")] = pa.array(range(4096, rows * 4096 + 1, 4096), pa.uint64())
    file = tmp_path / "long.isotherm"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for number in range(snapshots):
            columns[0] = pa.array([number] * rows, pa.uint32())
            writer.write_batch(pa.record_batch(columns, schema=schema))
    record = isotherm.Record.open(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batches = [batch.num_rows for batch in pa.RecordBatchReader.from_stream(record.regions())]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert batches == [rows] * snapshots
    assert grown < 60_000, f"{grown} kB"
