#!/usr/bin/env python3
"""Time and memory of reports on one record, by Isotherm and by damo, in turns.

    python3 -m venv .venv && .venv/bin/pip install damo
    python3 experiments/report_vs_damo.py app.isotherm [REPEATS]

damo takes some 2 kB of memory for each region of a snapshot. The output of both is discarded. Prints medians and
ranges. ISOTHERM and DAMO name other commands than `isotherm` and .venv/bin/damo.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time


def measure(command):
    """Runs a command. Returns elapsed seconds, CPU seconds and the largest resident MiB."""
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)} failed: {child.returncode}")
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    record, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 3
    isotherm = os.environ.get("ISOTHERM", "isotherm")
    damo = os.environ.get("DAMO", ".venv/bin/damo")
    with tempfile.TemporaryDirectory() as folder:
        theirs = os.path.join(folder, "damo.data")
        subprocess.run([isotherm, "convert", record, theirs], check=True, stdout=subprocess.DEVNULL)
        jobs = {
            ("heatmap", "isotherm"): [isotherm, "report", "heatmap", record, "--format", "csv"],
            ("heatmap", "damo"): [damo, "report", "heatmap", "--input", theirs, "--output", "raw"],
            ("wss", "isotherm"): [isotherm, "report", "wss", record, "--format", "json"],
            ("wss", "damo"): [damo, "report", "wss", "--input", theirs],
        }
        runs = {job: [] for job in jobs}
        for _ in range(repeats):
            for job, command in jobs.items():
                runs[job].append(measure(command))
    print(f"{'report':8} {'tool':9} {'s':>22} {'CPU s':>22} {'largest RSS MiB':>26}")
    for (report, tool), measured in runs.items():
        cells = [f"{statistics.median(v):.2f} [{min(v):.2f}..{max(v):.2f}]" for v in zip(*measured)]
        print(f"{report:8} {tool:9} {cells[0]:>22} {cells[1]:>22} {cells[2]:>26}")


main()
