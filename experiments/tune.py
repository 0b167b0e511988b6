#!/usr/bin/env python3
"""Whether `isotherm tune`, which takes about a minute of CPU time, chooses what `tune --thorough` chooses.

    python3 experiments/tune.py [--isotherm PATH] [--seconds 90] [--out FILE] [PROGRAM ...]

Each program is recorded for --seconds; prcl is tuned on that record both ways. Needs root, and what
`scripts/install-deps eval` installs. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
import resource
import tempfile
from pathlib import Path

from programs import PROGRAMS, asked, main, running


def choice(options, record, *flags):
    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu()
    report = asked(options, "tune", str(record), "--preset", "prcl", *flags, accepts=(0, 1))
    best = report["recommended"] or report["nearest"]
    return {
        "cpu_s": cpu() - before, "replays": report["nr_tried"], "limit_is_kept": report["recommended"] is not None,
        "settings": best["settings"], "saved": best["prediction"]["saved_share"]["value"],
        "slowdown": best["prediction"]["slowdown"]["value"],
    }


def measure(_, program, options):
    with tempfile.TemporaryDirectory(prefix="isotherm-tune-") as directory:
        record = Path(directory) / "record.isotherm"
        with running(program) as group:
            recorded = ["record", "--pages", "--duration", f"{options.seconds}s", "-o", str(record)]
            asked(options, *recorded, "--cgroup", group.name)
        return {"default": choice(options, record), "thorough": choice(options, record, "--thorough")}


def row(result):
    default, thorough = result["default"], result["thorough"]

    def cells(of):
        settings = ", ".join(f"{one['parameter']} {one['text']}" for one in of["settings"])
        outcome = f"-{100 * of['saved']:.1f} %, {100 * of['slowdown']:.2f} %"
        return [settings, outcome, str(of["replays"]), f"{of['cpu_s']:.0f} s"]

    same = "yes" if default["settings"] == thorough["settings"] else f"{100 * (default['saved'] - thorough['saved']):+.1f}"
    return [*cells(default), *cells(thorough), same]


ONE = ["saved, slowdown", "replays", "CPU"]
HEADS = ["program", "by default", *ONE, "thorough", *ONE, "same, or memory saved more, points"]

if __name__ == "__main__":
    main(__doc__, PROGRAMS, HEADS, measure, row, seconds=90)
