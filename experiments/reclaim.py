#!/usr/bin/env python3
"""The time that a program loses while the kernel reclaims page cache under a limit, for each page.

    sudo python3 experiments/reclaim.py

`dd` writes 1 GiB and reads it under a limit of 200 MiB, three times. So does a program that writes 400 MiB in pieces of
20 MiB, 0.3 s apart. The loss is the pressure (PSI) of the group. Needs root, and version 2 of control groups, alone or
beside version 1. Writes a table in Markdown: ns for each page of 4 KiB.
"""
import os
import subprocess
import tempfile

from programs import MIB, end, groups_of

WAYS = {
    "written at once": ("dd if=/dev/zero of=$DIR/file bs=1M count=1024", 1024),
    "read": ("dd if=$DIR/file of=/dev/null bs=1M", 1024),
    "written slowly": ("for i in $(seq 20); do dd if=/dev/zero of=$DIR/$i bs=1M count=20; sleep 0.3; done", 400),
}


def lost_ns(command, directory):
    """Time by pressure that `command` loses under the limit."""
    groups = groups_of(f"isotherm-reclaim-{os.getpid()}")
    for group in groups:
        group.mkdir()
    high = groups[0] / "memory.high"
    (high if high.exists() else groups[0] / "memory.limit_in_bytes").write_text(str(200 * MIB))
    enter = "".join(f'echo $$ > "{group}/cgroup.procs"; ' for group in groups)
    started = subprocess.Popen(
        ["sh", "-c", enter + command], env={**os.environ, "DIR": directory}, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        started.wait()
        return int((groups[-1] / "memory.pressure").read_text().split("total=")[1].split()[0]) * 1000
    finally:
        end([started], groups)


if __name__ == "__main__":
    print("| page cache | ns a page, three times |\n|---|---:|")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for way, (command, mib) in WAYS.items():
            times = []
            for _ in range(3):
                times.append(lost_ns(command, directory) / (mib * MIB / 4096))
                os.sync()
            print(f"| {way} | {', '.join(f'{time:,.0f}' for time in times)} |", flush=True)
