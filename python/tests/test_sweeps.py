"""Sweeps: on threads, resumed, with bad traces among good ones; and what is read out of them."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotherm
from conftest import contents

SPACE = isotherm.Space(presets=["prcl"], params=["age=1s..20s:6", "size=4K,2M"], max_slowdown="5%")


@pytest.fixture(scope="session")
def swept(traces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep by one thread."""
    folder = tmp_path_factory.mktemp("sweeps") / "alone"
    isotherm.sweep(traces, SPACE, output=folder, chunk=5, jobs=1)
    return folder


def test_every_point_of_every_trace_is_predicted(traces: list[str], trace_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = isotherm.sweep(traces, SPACE, chunk=5, progress=lambda *nr: seen.append(nr))
    table = result.to_arrow()
    assert seen[0] == (0, len(traces) * 12)
    assert seen[-1] == (len(traces) * 12, len(traces) * 12)
    assert table["trace"].to_pylist() == [trace for trace in traces for _ in range(12)]
    assert table["point"].to_pylist() == [*range(12)] * len(traces)
    replays = isotherm.Replays(trace_path, SPACE)
    for row in table.to_pylist()[:12]:
        wanted: Any = replays.predict(row["point"])
        assert row["error"] is None
        assert row["digest"] == replays.digest
        assert row["settings"] == SPACE.label(row["point"])
        assert row["saved_share"] == wanted["saved_share"]["value"]
        assert row["base_resident_mean_bytes"] == replays.base["resident_mean_bytes"]
        assert row["slowdown_high"] is None
    assert pa.table(result).equals(table)
    assert len(result) == len(traces) * 12


def test_bad_traces_are_rows_and_no_end(traces: list[str]) -> None:
    result = isotherm.sweep(traces, SPACE, chunk=12)
    errors = result.errors()
    assert set(errors) == set(traces[2:])
    assert "not an isotherm record" in errors[traces[2]]
    assert "No such file" in errors[traces[3]] or "cannot" in errors[traces[3]]
    answer = result.best_for(max_slowdown=0.05)
    assert (answer.nr_traces, answer.nr_failed) == (2, 2)


def test_neither_threads_nor_an_interruption_change_a_byte(traces: list[str], swept: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    isotherm.sweep(traces, SPACE, output=several, chunk=5, jobs=3)
    assert contents(several) == contents(swept)

    class Enough(Exception):
        pass

    def enough(done: int, _: int) -> None:
        if done >= 12:
            raise Enough

    broken = tmp_path / "broken"
    with pytest.raises(Enough):
        isotherm.sweep(traces, SPACE, output=broken, chunk=5, progress=enough)
    before = {path: path.stat().st_mtime_ns for path in broken.glob("*.parquet")}
    assert 0 < len(before) < len(contents(swept)) - 1
    seen: list[int] = []
    isotherm.sweep(traces, SPACE, output=broken, chunk=5, progress=lambda done, _: seen.append(done))
    assert seen[0] > 0
    assert contents(broken) == contents(swept)
    good = [path for path in before if pq.read_schema(path).metadata[b"isotherm.errors"] == b"0"]
    assert good
    assert all(path.stat().st_mtime_ns == before[path] for path in good)


def test_a_sweep_that_was_killed_goes_on(traces: list[str], swept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    code = "import isotherm, sys\nspace = isotherm.Space.from_json(sys.argv[1])\n"
    code += "isotherm.sweep(sys.argv[3:], space, output=sys.argv[2], chunk=5)"
    words = [sys.executable, "-W", "ignore", "-c", code, SPACE.to_json(), str(folder), *traces]
    with subprocess.Popen(words) as process:
        began = time.monotonic()
        while not list(folder.glob("*.parquet")):
            assert process.poll() is None
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        process.kill()
    for half in ["a", "b"]:
        (folder / f".{half}.parquet.7").write_bytes(b"half a file")
    isotherm.sweep(traces, SPACE, output=folder, chunk=5)
    left = {name: content for name, content in contents(folder).items() if name[0] != "."}
    assert left == contents(swept)
    assert isotherm.SweepResult.open(folder).best_for(max_slowdown=0.05).nr_traces == 2


def test_what_has_failed_is_tried_again(trace_path: Path, tmp_path: Path) -> None:
    trace, folder = tmp_path / "trace.parquet", tmp_path / "out"
    trace.write_bytes(b"not yet")
    assert isotherm.sweep([trace], SPACE, output=folder).errors()
    shutil.copy(trace_path, trace)
    assert not isotherm.sweep([trace], SPACE, output=folder).errors()


def test_a_folder_of_something_else_is_refused(trace_path: Path, swept: Path, tmp_path: Path) -> None:
    before = contents(swept)
    other = isotherm.Space(presets=["prcl"], params=["age=1s,2s"])
    with pytest.raises(isotherm.SpecError, match="holds another sweep"):
        isotherm.sweep([trace_path], other, output=swept, chunk=5)
    with pytest.raises(isotherm.SpecError, match="chunk differ"):
        isotherm.sweep([trace_path], SPACE, output=swept, chunk=6)
    assert contents(swept) == before
    with pytest.raises(isotherm.SpecError, match="holds no sweep"):
        isotherm.SweepResult.open(tmp_path)
    with pytest.raises(ValueError, match="named twice"):
        isotherm.sweep([trace_path, str(trace_path)], SPACE)


def test_traces_and_results_may_be_elsewhere(trace_path: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://traces/a.parquet", "wb") as file:
        file.write(trace_path.read_bytes())
    url, here = "memory://traces/a.parquet", trace_path.as_uri()
    result = isotherm.sweep([url, here], SPACE, output="memory://results")
    assert not result.errors()
    rows = result.to_arrow(["saved_share"])["saved_share"].to_pylist()
    assert rows[:12] == rows[12:]
    again = isotherm.SweepResult.open("memory://results")
    assert len(again) == 24
    seen: list[int] = []
    isotherm.sweep([url, here], SPACE, output="memory://results", progress=lambda done, _: seen.append(done))
    assert seen == [24]
    missing = isotherm.sweep(["memory://traces/none.parquet"], SPACE).errors()
    assert "none.parquet" in missing["memory://traces/none.parquet"]


def test_ctrl_c_ends_a_sweep(traces: list[str]) -> None:
    many = isotherm.Space(presets=["prcl"], params=["age=1s..30s", "size=4K..16M", "rate"])
    assert len(many) > 1000
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        isotherm.sweep(traces, many)
    assert time.monotonic() - began < 5


def fleet(rows: list[tuple[str, float, list[tuple[float, float]]]]) -> Any:
    """A result of made-up numbers: each trace with its memory, and what each point saves and loses."""
    from isotherm import _fleet  # noqa: PLC0415

    table = pa.Table.from_pylist(
        [
            {
                "trace": trace,
                "point": point,
                "base_resident_mean_bytes": memory,
                "saved_mean_bytes": saved,
                "saved_share": saved / memory,
                "slowdown": slowdown,
                "slowdown_high": None,
                "was_killed": False,
                "error": None,
            }
            for trace, memory, points in rows
            for point, (saved, slowdown) in enumerate(points)
        ],
        schema=pa.schema(
            [
                ("trace", pa.string()),
                ("point", pa.int32()),
                ("base_resident_mean_bytes", pa.float64()),
                ("saved_mean_bytes", pa.float64()),
                ("saved_share", pa.float64()),
                ("slowdown", pa.float64()),
                ("slowdown_high", pa.float64()),
                ("was_killed", pa.bool_()),
                ("error", pa.string()),
            ]
        ),
    )
    return lambda **asked: _fleet.answer(table, SPACE, asked.get("max_slowdown", 0.01), asked.get("share", 0.95))


def test_the_one_for_a_fleet_is_within_the_limit_for_so_many() -> None:
    # The first point is too much for one of four, the second for none; the third saves nothing anywhere.
    ask = fleet(
        [
            ("a", 1000.0, [(500, 0.005), (300, 0.001), (0, 0.0)]),
            ("b", 1000.0, [(500, 0.01), (300, 0.001), (0, 0.0)]),
            ("c", 1000.0, [(400, 0.002), (100, 0.0), (0, 0.0)]),
            ("d", 1000.0, [(900, 0.2), (200, 0.01), (0, 0.0)]),
        ]
    )
    strict = ask(share=1.0)
    assert strict.best is not None
    assert (strict.best.point, strict.best.saved_bytes, strict.best.within_share) == (1, 900.0, 1.0)
    assert strict.tuned_saved_bytes == 500 + 500 + 400 + 200
    assert strict.gain_bytes == 700
    loose = ask(share=0.75)
    assert (loose.best.point, loose.best.saved_bytes, loose.best.slowdown_max) == (0, 1400.0, 0.2)
    assert loose.per_trace["point"].to_pylist() == [0, 0, 0, 1]
    assert loose.per_trace["one_is_within"].to_pylist() == [True, True, True, False]
    assert loose.best.saved_share == 0.35
    assert "one for all: age 1 s, size 4 KiB" in str(loose)
    nothing = fleet([("a", 10.0, [(5, 0.5)]), ("b", 10.0, [(5, 0.001)])])(share=0.95)
    assert nothing.best is None
    assert nothing.gain_bytes is None
    assert nothing.nearest.within_share == 0.5
    assert nothing.per_trace["point"].to_pylist() == [None, 0]
    with pytest.raises(ValueError, match="share"):
        ask(share=0.0)


def test_a_sweep_of_failures_alone_has_an_answer(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("nonsense")
    answer = isotherm.sweep(bad, SPACE).best_for()
    assert (answer.nr_traces, answer.nr_failed, answer.best, answer.nearest) == (0, 1, None, None)
    assert answer.tuned_saved_bytes == 0
    assert str(answer)
