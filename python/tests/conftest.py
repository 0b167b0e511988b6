"""Records that tests read: made by a simulation, and one of page scans that is written as Parquet."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotherm

SECOND = 1_000_000_000
BLOCK = 0x7F00_0000_0000

SCENARIO: dict[str, Any] = {
    "machine": {"cpus": 2, "nodes": [{"size": "1 GiB"}], "swap": {"zram": "512 MiB"}},
    "duration": "40s",
    "processes": [
        {
            "name": "server",
            "mappings": [
                {"name": "heap", "size": "64 MiB", "access": [{"pattern": "uniform", "hot": "10%", "rate": "100000"}]},
                {"name": "cold", "size": "64 MiB"},
            ],
        }
    ],
}


@pytest.fixture(scope="session")
def scenario() -> dict[str, Any]:
    return SCENARIO


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of regions, in which prcl has paged out."""
    path = tmp_path_factory.mktemp("records") / "sim.isotherm"
    isotherm.simulate(SCENARIO, isotherm.SessionSpec(presets=["prcl"]), output=path)
    return path


@pytest.fixture(scope="session")
def record(path: Path) -> isotherm.Record:
    return isotherm.Record.open(path)


@pytest.fixture(scope="session")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty scans, a second each, of 4 MiB: one page in eight is accessed in each, the others in every 20th, and of one
    page nothing is known."""
    header = {
        "version": 3,
        "writer": "a test",
        "host": "here",
        "kernel": "6.1",
        "command": ["program"],
        "started": SECOND,
        "operations": "vaddr",
        "sample_interval": SECOND,
        "aggregation_interval": SECOND,
        "update_interval": SECOND,
        "settings": {"granularity": "page"},
    }
    mapping = {"range": {"start": BLOCK, "end": BLOCK + (4 << 20)}, "permissions": "rw-p", "name": "[heap]"}
    before = [
        {"target_start": {"time": SECOND, "target": 0, "pid": 7, "name": "program"}},
        {"mappings": {"time": SECOND, "target": 0, "removed": [], "added": [mapping]}},
    ]
    rows: dict[str, list[Any]] = {name: [] for name in ["snapshot", "start_time", "end_time", "block", "accessed"]}
    some, unknown = bytes([1] * 64), bytes([2] + [0] * 63)
    for scan in range(60):
        for block in range(2):
            rows["snapshot"].append(scan)
            rows["start_time"].append(SECOND * (scan + 1))
            rows["end_time"].append(SECOND * (scan + 2))
            rows["block"].append(BLOCK + block * (2 << 20))
            rows["accessed"].append(bytes([0xFD] + [0xFF] * 63) if scan % 20 == 19 else some)
    count = len(rows["snapshot"])
    time = pa.timestamp("ns", tz="UTC")
    bits = pa.binary(64)
    table = pa.table(
        {
            "snapshot": pa.array(rows["snapshot"], pa.uint32()),
            "start_time": pa.array(rows["start_time"], time),
            "end_time": pa.array(rows["end_time"], time),
            "target": pa.array([0] * count, pa.uint32()),
            "block": pa.array(rows["block"], pa.uint64()),
            "huge": pa.array([False] * count),
            "present": pa.array([b"\xff" * 64] * count, bits),
            "accessed": pa.array(rows["accessed"], bits),
            "unknown": pa.array([unknown] * count, bits),
            "isotherm_header": pa.array([json.dumps(header)] * count).dictionary_encode(),
            "isotherm_items": pa.array([json.dumps({"before": before})] + [None] * (count - 1), pa.string()),
        }
    )
    path = tmp_path_factory.mktemp("traces") / "trace.parquet"
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="session")
def trace(trace_path: Path) -> isotherm.Record:
    return isotherm.Record.open(trace_path)


@pytest.fixture(scope="session")
def traces(trace_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two good ones, one that is no record, and one that is not there."""
    folder = tmp_path_factory.mktemp("fleet")
    second, bad = folder / "second.parquet", folder / "bad.isotherm"
    shutil.copy(trace_path, second)
    bad.write_text("nonsense")
    return [str(trace_path), str(second), str(bad), str(folder / "missing.isotherm")]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command `isotherm`."""
    program = os.environ.get("ISOTHERM")
    if program is None:
        pytest.skip("ISOTHERM does not name the command")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)
