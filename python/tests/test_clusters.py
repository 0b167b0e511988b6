"""Sweeps and searches on a Ray cluster of several nodes on this machine."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import isotherm
from conftest import contents

ray = pytest.importorskip("ray", reason="ray has no wheel for this Python, or is not installed")
SPACE = isotherm.Space(presets=["prcl"], params=["age=1s..20s:6", "size=4K,2M"], max_slowdown="5%")
MEMORY = 100 << 20

# Ray's own: sockets and processes that it leaves to the end of the interpreter.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of a CPU each."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    options: Any = {"num_cpus": 1, "object_store_memory": MEMORY}
    made: Any = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(2):
        made.add_node(**options)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def swept(traces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    isotherm.sweep(traces, SPACE, output=folder, chunk=3, bounds=True)
    return folder


def workers(nodes: list[Any]) -> list[int]:
    """Processes of these nodes that carry out tasks of a sweep."""
    raylets = {info.process.pid for node in nodes for info in node.all_processes.get("raylet", [])}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent in raylets and words.startswith(b"ray::_work"):
            found.append(int(entry.name))
    return found


def test_a_cluster_gives_the_bytes_that_threads_give(
    cluster: Any, traces: list[str], swept: Path, tmp_path: Path
) -> None:
    isotherm.sweep(traces, SPACE, output=tmp_path, chunk=3, bounds=True, address=cluster.address)
    assert contents(tmp_path) == contents(swept)
    assert not ray.is_initialized()
    table = isotherm.SweepResult.open(tmp_path).to_arrow()
    assert any(row["slowdown_high"] is not None for row in table.to_pylist())


def test_killed_workers_lose_nothing_and_change_no_byte(
    cluster: Any, traces: list[str], swept: Path, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(done: int, _: int) -> None:
        if len(killed) < 3 and done > 0:
            for pid in workers([cluster.head_node, *cluster.worker_nodes])[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    isotherm.sweep(traces, SPACE, output=tmp_path, chunk=3, bounds=True, address=cluster.address, progress=kill)
    assert killed
    assert contents(tmp_path) == contents(swept)


def test_a_node_that_goes_loses_nothing(cluster: Any, traces: list[str], swept: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    gone: list[bool] = []

    def go(done: int, _: int) -> None:
        if done > 0 and not gone and workers([node]):
            cluster.remove_node(node, allow_graceful=False)
            gone.append(True)

    isotherm.sweep(traces, SPACE, output=tmp_path, chunk=3, bounds=True, address=cluster.address, progress=go)
    assert gone
    assert contents(tmp_path) == contents(swept)


def test_ray_tune_searches_through_its_own_interface(cluster: Any, trace_path: Path, tmp_path: Path) -> None:
    tune = pytest.importorskip("ray.tune", reason="ray[tune] is not installed")
    from isotherm import ray as searches  # noqa: PLC0415

    # Ray Tune leaves a handler of its own behind, which would take the next ctrl-C.
    of_before = signal.getsignal(signal.SIGINT)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        tuner = tune.Tuner(
            searches.trainable(trace_path, SPACE),
            param_space=searches.param_space(SPACE),
            tune_config=tune.TuneConfig(num_samples=3, metric="saved_share", mode="max", max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        )
        results = tuner.fit()
    finally:
        signal.signal(signal.SIGINT, of_before)
        ray.shutdown()
    assert not results.errors
    replays = isotherm.Replays(trace_path, SPACE)
    for result in results:
        wanted = replays.predict(result.metrics["point"])
        assert result.metrics["saved_share"] == wanted["saved_share"]["value"]
