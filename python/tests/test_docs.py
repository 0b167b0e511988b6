"""Every example of docs/how-to/python.md and docs/how-to/fleet.md, in its order, and the tour."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isotherm

ROOT = Path(__file__).parents[2]


def test_every_example_runs(
    path: Path, trace_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.isotherm").symlink_to(path)
    (tmp_path / "trace.isotherm").symlink_to(trace_path)
    (tmp_path / "kdamonds.yaml").write_text("[{action: stat}]\n")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/python.md").read_text(), re.DOTALL)
    assert len(examples) > 4
    names: dict[str, Any] = {"pid": os.getpid()}
    for example in examples:
        if "isotherm.Session(" in example:
            # Watching a real process needs privileges; what the example does with it is the same.
            simulated = "isotherm.SessionSpec(simulated=True, faithful=True)"
            code = re.sub(r"isotherm\.SessionSpec\([^()]*\)", simulated, example).replace('"30s"', '"300ms"')
            assert simulated in code
            exec(code, names)
        else:
            exec(example, names)
    assert "Idle memory" in capsys.readouterr().out
    assert names["idle"].height > 0


def test_the_examples_of_the_fleet_run(
    trace_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ["frontend", "cache"]:
        (tmp_path / f"{name}.isotherm").symlink_to(trace_path)
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/fleet.md").read_text(), re.DOTALL):
        exec(example, {})
    assert "one for each" in capsys.readouterr().out


def test_the_tour_runs(tmp_path: Path) -> None:
    """In an interpreter of its own, cell by cell as Jupyter does, without Jupyter."""
    cells = json.loads((ROOT / "python/tour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert not any(cell.get("outputs") for cell in cells), "outputs are not committed"
    script = tmp_path / "tour.py"
    script.write_text("\n\n".join(code))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_everything_public_is_documented() -> None:
    missing = []
    for name in isotherm.__all__:
        item = getattr(isotherm, name)
        if not getattr(item, "__doc__", None) and name != "__version__":
            missing.append(name)
        if isinstance(item, type) and not issubclass(item, Exception):
            members = [member for member in vars(item) if not member.startswith("_")]
            missing += [f"{name}.{member}" for member in members if not getattr(item, member).__doc__]
    assert not missing


def test_the_types_of_reports_are_those_of_the_schemas() -> None:
    done = subprocess.run([sys.executable, ROOT / "python/results.py", "--check"], check=False, timeout=60)
    assert done.returncode == 0
