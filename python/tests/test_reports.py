"""Reports: the command's numbers, as mappings, tables and pages."""

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import isotherm
from conftest import command

MiB = 1 << 20


@pytest.mark.parametrize(
    ("words", "make"),
    [
        (["report", "wss"], isotherm.Record.wss),
        (["report", "idle"], isotherm.Record.idle),
        (["report", "access"], isotherm.Record.access),
        (["report", "summary"], isotherm.Record.summary),
        (["report", "footprint"], isotherm.Record.footprint),
        (["report", "heatmap", "--columns", "320", "--rows", "160"], isotherm.Record.heatmap),
    ],
)
def test_reports_are_the_commands(
    record: isotherm.Record, path: Path, words: list[str], make: Callable[[isotherm.Record], isotherm.Report[Any]]
) -> None:
    printed = command(*words, path, "--json")
    assert printed.returncode == 0, printed.stderr
    assert make(record).to_dict() == json.loads(printed.stdout)


def test_a_reclaim_curve_is_the_commands(trace: isotherm.Record, trace_path: Path) -> None:
    curve = trace.reclaim_curve(max_slowdown="1%", refault_cost="100us")
    printed = command("reclaim-curve", trace_path, "--max-slowdown", "1%", "--refault-cost", "100us", "--json")
    assert curve.to_dict() == json.loads(printed.stdout)
    assert isotherm.reclaim_curve(trace_path, max_slowdown=0.01, refault_cost="100us").to_dict() == curve.to_dict()
    points = pl.DataFrame(curve)
    assert max(points["saved_share"].to_list()) > 0.5
    assert curve["unknown_mean_bytes"] == 2 * 4096


def test_a_size_is_the_commands(trace: isotherm.Record, trace_path: Path) -> None:
    size = trace.size(max_slowdown="2%", refault_cost="20us", dram_price=3.5)
    options = ("--max-slowdown", "2%", "--refault-cost", "20us", "--price", "dram=3.5", "--json")
    printed = command("size", trace_path, *options)
    assert size.to_dict() == json.loads(printed.stdout)
    request = size["with_swap"]["request"]
    assert 0 < request["low_bytes"] <= request["bytes"] <= request["high_bytes"]
    needed = trace.summary()["needed"]
    assert needed["low_bytes"] <= needed["high_bytes"] <= needed["peak_bytes"]


@pytest.mark.parametrize("kind", ["size", "wss", "idle", "access", "heatmap", "reclaim_curve", "summary", "footprint"])
def test_a_table_has_what_its_csv_has(record: isotherm.Record, trace: isotherm.Record, kind: str) -> None:
    report: isotherm.Report[Any] = getattr(trace if kind in {"reclaim_curve", "size"} else record, kind)()
    table = pa.table(report)
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert table.num_rows > 0
    assert table.num_rows == len(rows)
    assert table.column_names == list(rows[0])
    for name in set(rows[0]) - {"target", "mapping"}:
        for text, value in zip((row[name] for row in rows), table[name].to_pylist(), strict=True):
            if text == "":
                assert value is None, name
            elif isinstance(value, str):
                assert value == text, name
            else:
                number = int(text, 16) if text.startswith("0x") else float(text)
                assert value == pytest.approx(number, rel=1e-6), name


def test_a_report_is_a_mapping(record: isotherm.Record) -> None:
    report = record.wss(percentiles=[0, 99.9])
    assert report["report"] == "wss"
    assert set(report) == set(report.keys()) == set(report.to_dict())
    assert len(report) == len(report.to_dict())
    assert "nothing" not in report
    assert report.get("nothing", 7) == 7
    with pytest.raises(KeyError):
        report["nothing"]
    assert [p["percent"] for p in report["targets"][0]["percentiles"]] == [0, 99.9]
    report.to_dict()["targets"].clear()
    assert report["targets"], "a dict that is given away is a copy"


def test_reports_can_be_read_and_looked_at(record: isotherm.Record) -> None:
    reports: list[isotherm.Report[Any]] = [record.wss(), record.idle(), record.access(), record.heatmap()]
    for report in [*reports, record.summary()]:
        assert str(report) == report.text()
        assert report.to_svg().endswith("</svg>\n")
        page = report._repr_html_()
        assert page.startswith("<iframe sandbox=")
        assert "<script" not in page, "it is escaped"
        assert report.kind in repr(report)
    check = isotherm.check("")
    assert check._repr_html_().startswith("<pre>")
    with pytest.raises(TypeError, match="no SVG form"):
        check.to_svg()
    with pytest.raises(TypeError, match="is no table"):
        pa.table(check)


def test_what_is_not_known_is_none(record: isotherm.Record) -> None:
    idle = record.idle(at_least=[timedelta(seconds=1), "1h"])["targets"][0]["idle"]
    assert idle[0]["bytes"] is not None
    assert idle[1]["bytes"] is None
    table = pl.DataFrame(record.idle(at_least=["1h"])).filter(pl.col("kind") == "idle_at_least")
    assert table["bytes"].null_count() == table.height


def test_a_report_about_nothing_says_what_there_is(record: isotherm.Record) -> None:
    with pytest.raises(isotherm.RecordError, match=r"no snapshot of target 9: the record has 0"):
        record.wss(target=9)
    with pytest.raises(isotherm.RecordError, match="which lasts"):
        record.heatmap(start="1h")
    with pytest.raises(isotherm.RecordError, match="the record ends at"):
        record.idle(at="1h")
    with pytest.raises(isotherm.RecordError, match="no such snapshot"):
        record.access(snapshot=10**9)
    with pytest.raises(isotherm.RecordError, match="no page scans"):
        record.reclaim_curve()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"start": 5}, TypeError),
        ({"start": "5"}, ValueError),
        ({"start": timedelta(seconds=-5)}, ValueError),
        ({"min_rate": "120%"}, ValueError),
        ({"min_rate": 1.2}, ValueError),
        ({"min_rate": float("nan")}, ValueError),
        ({"min_rate": True}, TypeError),
        ({"percentiles": [101.0]}, ValueError),
        ({"target": -1}, OverflowError),
        ({"colour": 1}, TypeError),
    ],
)
def test_wrong_quantities_are_refused(record: isotherm.Record, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        record.wss(**wrong)


def test_access_is_filtered_and_sorted(record: isotherm.Record) -> None:
    regions = pl.DataFrame(record.access(sort="size", min_size="1 MiB", limit=3))
    assert 0 < regions.height <= 3
    assert regions["size_bytes"].is_sorted(descending=True)
    assert min(regions["size_bytes"].to_list()) >= MiB
    assert pl.DataFrame(record.access(snapshot="all")).height > pl.DataFrame(record.access()).height
    with pytest.raises(ValueError, match="to sort by"):
        record.access(sort="colour")  # type: ignore[arg-type]


def test_reports_have_the_keys_of_their_types(record: isotherm.Record, trace: isotherm.Record) -> None:
    reports: dict[type, isotherm.Report[Any]] = {
        isotherm.results.Wss: record.wss(),
        isotherm.results.Idle: record.idle(),
        isotherm.results.Access: record.access(),
        isotherm.results.Heatmap: record.heatmap(),
        isotherm.results.Summary: record.summary(),
        isotherm.results.Footprint: record.footprint(),
        isotherm.results.ReclaimCurve: trace.reclaim_curve(),
        isotherm.results.Size: trace.size(),
        isotherm.results.Check: isotherm.check("[{action: stat}]"),
    }
    for kind, report in reports.items():
        assert set(kind.__required_keys__) <= set(report) <= set(kind.__annotations__), kind  # type: ignore[attr-defined]
