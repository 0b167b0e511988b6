"""What sweeps take: seconds by threads, by Ray and by CPUs, and what a fleet's would take by that.

    python bench/fleet.py [--traces 4] [--points 8] [--seconds 120] [--mib 256] [--jobs 1 2] [--repeats 3] [--ray]

Makes traces of made-up services, each from a seed: every block of 2 MiB has a share of hot pages, and the others are
touched once in a while. Prints what each way takes, whether all came to the same bytes, the answer for the fleet, and
an estimate for 10,000 traces at 1,000 points on 1,000 CPUs. Of several turns the least counts. Needs pyarrow, for --ray
Ray.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import isotherm

SECOND = 1_000_000_000
START = 0x7F00_0000_0000
BLOCK = 2 << 20


def made_up(path: Path, seed: int, blocks: int, scans: int) -> None:
    """A trace of page scans a second apart, as Parquet."""
    draws = random.Random(seed)
    header = {
        "version": 3,
        "writer": "bench/fleet.py",
        "host": "made up",
        "kernel": "6.1",
        "command": [f"service-{seed}"],
        "started": SECOND,
        "operations": "vaddr",
        "sample_interval": SECOND,
        "aggregation_interval": SECOND,
        "update_interval": SECOND,
        "settings": {"granularity": "page"},
    }
    end = START + blocks * BLOCK
    mapping = {"range": {"start": START, "end": end}, "permissions": "rw-p", "name": "[heap]"}
    before = [
        {"target_start": {"time": SECOND, "target": 0, "pid": 7, "name": f"service-{seed}"}},
        {"mappings": {"time": SECOND, "target": 0, "removed": [], "added": [mapping]}},
    ]
    of_service = draws.uniform(0.05, 0.6)
    hot = [draws.random() < of_service for _ in range(blocks)]
    # Each other page is touched once in a number of scans; the number differs between services.
    often = draws.choice([3, 5, 10, 20, 40])
    periods = [draws.choice([often, 2 * often, 4 * often, 10 * scans]) for _ in range(blocks)]
    none, full = b"\x00" * 64, b"\xff" * 64
    accessed = [
        full if hot[block] or (scan + block) % periods[block] == 0 else none
        for scan in range(scans)
        for block in range(blocks)
    ]
    count = len(accessed)
    times = [SECOND * (scan + 1) for scan in range(scans) for _ in range(blocks)]
    time_type, bits = pa.timestamp("ns", tz="UTC"), pa.binary(64)
    table = pa.table(
        {
            "snapshot": pa.array([scan for scan in range(scans) for _ in range(blocks)], pa.uint32()),
            "start_time": pa.array(times, time_type),
            "end_time": pa.array([at + SECOND for at in times], time_type),
            "target": pa.array([0] * count, pa.uint32()),
            "block": pa.array([START + block * BLOCK for _ in range(scans) for block in range(blocks)], pa.uint64()),
            "huge": pa.array([False] * count),
            "present": pa.array([full] * count, bits),
            "accessed": pa.array(accessed, bits),
            "unknown": pa.array([none] * count, bits),
            "isotherm_header": pa.array([json.dumps(header)] * count).dictionary_encode(),
            "isotherm_items": pa.array([json.dumps({"before": before})] + [None] * (count - 1), pa.string()),
        }
    )
    pq.write_table(table, path)


def digest(folder: Path) -> str:
    """Of all files of a folder."""
    of_all = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        of_all.update(path.name.encode() + path.read_bytes())
    return of_all.hexdigest()[:16]


def measured(traces: list[Path], space: isotherm.Space, folder: Path, **how: Any) -> tuple[float, float]:
    """Seconds of a sweep, and of CPU time in this process."""
    began, cpu = time.monotonic(), time.process_time()
    isotherm.sweep(traces, space, output=folder, **how)
    return time.monotonic() - began, time.process_time() - cpu


def on_ray(traces: list[Path], space: isotherm.Space, folder: Path, cpus: int, chunk: int) -> tuple[float, float]:
    """Seconds of a sweep on as many nodes of a CPU each, whose workers have begun."""
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    options: Any = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(cpus - 1):
        cluster.add_node(**options)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        warm = isotherm.Space(presets=["prcl"], params=["age=5s"])
        isotherm.sweep([f"{folder}.{n}.none" for n in range(4 * cpus)], warm, address=cluster.address)
        return measured(traces, space, folder, address=cluster.address, chunk=chunk)
    finally:
        ray.shutdown()
        cluster.shutdown()


def cost(trace: Path, space: isotherm.Space, points: int) -> tuple[float, float, float]:
    """Seconds of CPU time: to read a trace and replay it without schemes, of a replay; and of all that."""

    def cpu() -> float:
        return time.process_time()

    began = cpu()
    replays = isotherm.Replays(trace, space)
    opened = cpu()
    for point in range(points):
        replays.predict(point)
    return opened - began, (cpu() - opened) / points, cpu() - began


def main() -> None:
    """Measures, and prints."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--traces", type=int, default=4)
    options.add_argument("--points", type=int, default=8)
    options.add_argument("--seconds", type=int, default=120)
    options.add_argument("--mib", type=int, default=256)
    options.add_argument("--chunk", type=int, default=8)
    options.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--ray", action="store_true")
    options.add_argument("--keep")
    asked = options.parse_args()
    warnings.simplefilter("ignore", isotherm.IsothermWarning)
    space = isotherm.Space(presets=["prcl"], params=[f"age=2s..60s:{asked.points}", "size=4K"], max_slowdown="1%")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.keep or temporary)
        folder.mkdir(exist_ok=True)
        traces = [folder / f"service-{seed}.parquet" for seed in range(asked.traces)]
        for seed, trace in enumerate(traces):
            if not trace.exists():
                made_up(trace, seed, asked.mib * (1 << 20) // BLOCK, asked.seconds)
        size = sum(trace.stat().st_size for trace in traces) / len(traces)
        print(f"{len(traces)} traces of {asked.mib} MiB and {asked.seconds} s, {size / 1024:.0f} KiB each; {space!r}")
        costs = [cost(trace, space, 4) for trace in traces[:3]]
        opening, replay = (sum(column) / len(costs) for column in list(zip(*costs, strict=True))[:2])
        print(f"CPU time: {opening:.2f} s to read a trace and replay it alone, {replay:.3f} s for each point")
        taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
        digests = set()
        ways = [(way, jobs) for way in (["threads", "ray"] if asked.ray else ["threads"]) for jobs in asked.jobs]
        # In turns: others come and go on this machine.
        for turn in range(asked.repeats):
            for way, jobs in ways:
                out = Path(temporary) / f"{way}-{jobs}-{turn}"
                if way == "ray":
                    took = on_ray(traces, space, out, jobs, asked.chunk)
                else:
                    took = measured(traces, space, out, jobs=jobs, chunk=asked.chunk)
                taken.setdefault((way, jobs), []).append(took)
                digests.add(digest(out))
        for (way, jobs), all_taken in taken.items():
            wall, cpu = (min(column) for column in zip(*all_taken, strict=True))
            worst = max(wall for wall, _ in all_taken)
            alone = min(wall for wall, _ in taken.get((way, 1), all_taken))
            of_cpu = f", {cpu:.1f} s of CPU time" if way == "threads" else ""
            print(f"{way}, {jobs}: {wall:.1f} to {worst:.1f} s{of_cpu}; {alone / wall:.2f} times as fast as one")
        print(f"all the same bytes: {len(digests) == 1}; CPUs here: {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
        print(isotherm.SweepResult.open(out).best_for(max_slowdown=0.0005, share=0.95))
    per_task = opening + 64 * replay
    total = 10_000 * (1000 / 64) * per_task
    print(
        f"10,000 traces at 1,000 points: {total / 3600:.0f} CPU hours; on 1,000 CPUs {total / 1000 / 60:.0f} min, as "
        f"156,250 tasks of {per_task:.1f} s"
    )
    print(f"peak memory here: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
