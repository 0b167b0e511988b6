"""Simulations: the command's numbers, interrupted by ctrl-C, beside other threads."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import isotherm
from conftest import command


def test_a_simulation_is_the_commands(scenario: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario))
    printed = command("simulate", file, "--preset", "prcl", "--json")
    assert printed.returncode == 0, printed.stderr
    spec = isotherm.SessionSpec(presets=["prcl"])
    report = isotherm.simulate(scenario, spec)
    assert report.to_dict() == json.loads(printed.stdout)
    assert isotherm.simulate(file, spec).to_dict() == report.to_dict()
    assert report["processes"][0]["name"] == "server"
    assert report["schemes"][0]["applied_bytes"] > 64 << 20
    assert "server" in str(report)


def test_the_same_seed_gives_the_same_bytes(scenario: dict[str, Any], tmp_path: Path) -> None:
    spec = isotherm.SessionSpec(presets=["prcl"], faithful=True, seed=5)
    files = [tmp_path / "a.isotherm", tmp_path / "b.isotherm"]
    reports = [isotherm.simulate(scenario, spec, output=file).to_json() for file in files]
    assert reports[0] == reports[1]
    assert files[0].read_bytes() == files[1].read_bytes()
    other = isotherm.SessionSpec(presets=["prcl"], faithful=True, seed=6)
    isotherm.simulate(scenario, other, output=files[1])
    assert files[0].read_bytes() != files[1].read_bytes()


def test_a_trace_is_replayed(trace: isotherm.Record, trace_path: Path, record: isotherm.Record) -> None:
    spec = isotherm.SessionSpec(schemes=["4K max 0 0 5s max pageout"], guard=False)
    report = isotherm.simulate(trace, spec)
    assert report.to_dict() == isotherm.simulate(trace_path, spec).to_dict()
    assert report["processes"][0]["name"] == "program"
    assert report["schemes"][0]["applied_bytes"] > 0
    against = isotherm.simulate(trace, spec, against=record)
    assert "error_points" in against["against"]
    only_watched = isotherm.simulate(trace, duration="10s")
    assert only_watched["schemes"] == []


def test_what_cannot_be_simulated_is_refused(record: isotherm.Record, path: Path, tmp_path: Path) -> None:
    with pytest.raises(isotherm.SimulationError, match="regions cannot be replayed"):
        isotherm.simulate(record)
    with pytest.raises(isotherm.SimulationError, match="regions cannot be replayed"):
        isotherm.simulate(path)
    with pytest.raises(isotherm.SimulationError, match="never ends"):
        isotherm.simulate({"processes": [{"mappings": [{"name": "a", "size": "4 MiB"}]}]})
    with pytest.raises(isotherm.SimulationError, match="colour"):
        isotherm.simulate({"processes": [], "colour": 1})
    with pytest.raises(isotherm.SimulationError) as missing:
        isotherm.simulate(tmp_path / "nothing.yaml")
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    with pytest.raises(TypeError):
        isotherm.simulate(7)  # type: ignore[arg-type]
    garbage = tmp_path / "garbage"
    for content in [b"", b"\xff\xfe\0\0", b"processes: [", os.urandom(1000)]:
        garbage.write_bytes(content)
        with pytest.raises(isotherm.IsothermError):
            isotherm.simulate(garbage)


def test_ctrl_c_ends_a_simulation(scenario: dict[str, Any]) -> None:
    long = {**scenario, "duration": "100h"}
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        isotherm.simulate(long, isotherm.SessionSpec(presets=["prcl"]))
    assert time.monotonic() - began < 5


def test_other_threads_go_on_meanwhile(scenario: dict[str, Any]) -> None:
    results: list[str] = []

    def simulate() -> None:
        results.append(isotherm.simulate(scenario, isotherm.SessionSpec(presets=["prcl"])).to_json())

    threads = [threading.Thread(target=simulate) for _ in range(3)]
    for thread in threads:
        thread.start()
    longest, last = 0.0, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert len(set(results)) == 1
    assert len(results) == 3
    # Simulations release the interpreter lock; the machine may be busy.
    assert longest < 1.0
