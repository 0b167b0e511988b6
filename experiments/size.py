#!/usr/bin/env python3
"""The memory that `isotherm size` says programs need, and the least limit at which they lose no more than 1 %.

    python3 experiments/size.py [--isotherm PATH] [--seconds 120] [--out FILE] [PROGRAM ...]

Each program runs in a control group of its own, unlimited, for --seconds. Then `size --verify` lowers and raises the
limit, until two are found that differ by a twentieth: one that is enough, and one that is not. Without swap
(`isotherm swap off`) it does so by the columns without swap.
Beside that: usage, the working set that the kubelet counts, peak RSS, PSS, the Vertical Pod Autoscaler's rule, and the
size at a loss of 0.1 %, which is senpai's target pressure. Needs root, swap (`isotherm swap zram --size 8G`), and what
`scripts/install-deps eval` installs. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
from programs import MIB, PROGRAMS, asked, counters, kib_of, main, mib, processes, running


def others(group):
    """What other rules see: all before any limit."""
    stat = counters(group / "memory.stat")
    current = group / "memory.current"
    usage = int((current if current.exists() else group / "memory.usage_in_bytes").read_text())
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    pids = processes(group)
    return {
        "usage": usage,
        "kubelet": usage - inactive,
        "peak_rss": sum(kib_of(pid, "status", "VmHWM:") for pid in pids),
        "pss": sum(kib_of(pid, "smaps_rollup", "Pss:") for pid in pids),
        "vpa": max(int((usage - inactive) * 1.15), 250 * MIB),
    }


def measure(_, program, options):
    with running(program) as group:
        seen = others(group)
        # What happens once a minute is seen by a watch of two minutes, and then by trials of one.
        trial = program.get("trial", 15)
        words = ["--duration", f"{max(options.seconds, 2 * trial)}s", "--verify", "--trial", f"{trial}s"]
        report = asked(options, "size", "--cgroup", group.name, *words)
    report.pop("record")
    if report["verified"] is None:
        raise RuntimeError("stopped before a limit was tried")
    return {"others": seen, "size": report}


def at_loss(report, slowdown):
    """The least limit of the curve with at most this loss, with what is not mapped."""
    fits = [point["limit_bytes"] for point in report["points"] if point["slowdown"] <= slowdown]
    rest = report["with_swap"]["request"]["bytes"] - min(
        [p["limit_bytes"] for p in report["points"] if p["slowdown"] <= report["max_slowdown"]] or [0]
    )
    return min(fits) + max(rest, 0) if fits else None


def row(result):
    report, seen = result["size"], result["others"]
    verified = report["verified"]
    advice = "with_swap" if report["machine_swap_bytes"] else "without_swap"
    request = report[advice]["request"]
    truth = verified["least_bytes"]
    off = "-" if truth is None else f"{100 * (request['bytes'] / truth - 1):+.0f} %"
    holds = truth is not None and request["low_bytes"] <= truth <= request["high_bytes"] * 1.025
    return [
        mib(truth), mib(request["bytes"]), off,
        f"{mib(request['low_bytes'])} to {mib(request['high_bytes'])}", "yes" if holds else "no",
        mib(seen["usage"]), mib(seen["kubelet"]), mib(seen["peak_rss"]), mib(seen["pss"]), mib(seen["vpa"]),
        mib(at_loss(report, 0.001)),
    ]


HEADS = [
    "program", "truth", "size", "off", "bounds", "hold it", "usage", "kubelet", "peak RSS", "PSS", "VPA", "0.1 %",
]

if __name__ == "__main__":
    main(__doc__, PROGRAMS, HEADS, measure, row, seconds=120)
