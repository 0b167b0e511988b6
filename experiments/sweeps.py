#!/usr/bin/env python3
"""How many pages a sweep of memory reads back from swap, if a limit lacks a share of it.

    sudo python3 experiments/sweeps.py

A program (sweep.c) reads 300 MiB every 6 s, in the same order each time, in a random order that stays, or in a new one.
In between it reads other 20 MiB. Needs root, a compiler, and 1 GiB of swap (`isotherm swap zram --size 1G`). Writes a
table in Markdown: the share of the pages that three sweeps read back each.
"""
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

from programs import MIB, end, groups_of

HERE = Path(__file__).resolve().parent
SWEPT = 300 * MIB


def swept(program, order, lacks):
    """Shares of the pages that sweeps read back."""
    groups = groups_of(f"isotherm-sweeps-{os.getpid()}")
    for group in groups:
        group.mkdir()
    limit, usage = ((groups[0] / name) for name in ("memory.high", "memory.current"))
    if not limit.exists():
        limit, usage = ((groups[0] / name) for name in ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    started = subprocess.Popen(
        ["sh", "-c", f'echo $$ > "{groups[0]}/cgroup.procs"; exec {program} {order} 3'],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )
    try:
        started.stdout.readline()
        now = int(usage.read_text())
        goal = now - int(lacks * SWEPT)
        while now > goal:
            now = max(goal, int(now * 0.9))
            limit.write_text(str(now))
            time.sleep(0.1)
        return [int(line) / (SWEPT / 4096) for line in started.stdout]
    finally:
        end([started], groups)


if __name__ == "__main__":
    print("| lacks | new order each time | random, the same | the same, by address | K (1 + ln(N / K)) |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["cc", "-O2", "-o", f"{directory}/sweep", HERE / "sweep.c"], check=True)
        for lacks in (0.03, 0.1, 0.25, 0.5):
            cells = [swept(f"{directory}/sweep", order, lacks) for order in ("random", "once", "same")]
            cells = [", ".join(f"{share:.2f}" for share in cell) for cell in cells]
            print(f"| {lacks:.0%} | {' | '.join(cells)} | {lacks * (1 - math.log(lacks)):.2f} |", flush=True)
