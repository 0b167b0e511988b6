#!/usr/bin/env python3
"""A public corpus: records of programs of Debian and of small services, page by page, without names.

    python3 experiments/corpus.py [--isotherm PATH] [--seconds 60] [--out FILE] [PROGRAM ...]

Each program runs in a control group of its own, and is recorded by page scans for --seconds. `convert --publish` writes
the record that remains, and `convert --flat` its tables, below the folder corpus. Needs root, and what
`scripts/install-deps eval` installs. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
import json
import subprocess
from pathlib import Path

from programs import PROGRAMS, main, running

FOLDER = Path("corpus")


def measure(name, program, options):
    FOLDER.mkdir(exist_ok=True)
    whole, public = FOLDER / "whole.isotherm", FOLDER / f"{name.replace('/', '-')}.isotherm"

    def isotherm(*words):
        done = subprocess.run([options.isotherm, "--quiet", *words, "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    try:
        with running(program) as group:
            seconds = f"{options.seconds}s"
            isotherm("record", "--pages", "--cgroup", group.name, "--duration", seconds, "-o", str(whole))
        published = isotherm("convert", "--publish", str(whole), str(public))
    finally:
        whole.unlink(missing_ok=True)
    isotherm("convert", "--flat", str(public.with_suffix(".parquet")), str(public))
    return {"file": str(public), "bytes": public.stat().st_size, **published}


def row(result):
    left_out = ", ".join(f"{count} {kind}" for kind, count in result["left_out"]["others"].items())
    return [result["file"], f"{result['bytes'] >> 10:,}", f"{result['snapshots']:,}", f"{result['regions']:,}", left_out or "-"]


if __name__ == "__main__":
    main(__doc__, PROGRAMS, ["program", "file", "KiB", "scans", "blocks", "left out"], measure, row, seconds=60)
