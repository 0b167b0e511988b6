#!/usr/bin/env python3
"""Checks the programs of known truth, without Isotherm, as root: verify.py DIR [LANGUAGE...] [--runs N].

Of each language, as it is and with --recycle: the resident memory is near the sum of the pools; what is referenced
within two seconds (clear_refs, smaps) is near the sum of the hot ones; threads are called what they should; SIGTERM
ends it at once; runs are alike. And the functions are there as symbols of their own, or in the map.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from check import names  # noqa: E402 (no bytecode beside it)

MIB = 1 << 20
# Memory of the runtime beside the pools, in MiB: resident, and referenced while it serves.
OVERHEAD = {"c": (4, 2), "cpp": (6, 3), "rust": (4, 2), "go": (16, 6), "java": (128, 24), "python": (24, 12)}


def smaps_sum(pid, field):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(rf"^{field}: +(\d+) kB", text, re.M)[1]) << 10


def run(directory, language, flags):
    started = time.monotonic()
    command = [f"{directory}/{language}", "--seconds", "30", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    truth = json.loads(process.stdout.readline())
    pid = process.pid
    facts = {"truth": truth, "built_s": time.monotonic() - started, "anonymous": smaps_sum(pid, "Anonymous")}
    tasks = Path(f"/proc/{pid}/task").iterdir()
    facts["threads"] = {(task / "comm").read_text().strip() for task in tasks}
    Path(f"/proc/{pid}/clear_refs").write_text("1")
    time.sleep(2)
    facts["referenced"] = smaps_sum(pid, "Referenced")
    if language in ("c", "cpp", "rust", "go"):
        nm = ["go", "tool", "nm"] if language == "go" else ["nm", "-C"]
        output = subprocess.run([*nm, f"/proc/{pid}/exe"], stdout=subprocess.PIPE, check=True, text=True).stdout
        facts["symbols"] = [line for line in output.splitlines() if re.search(r" [tTwW] ", line)]
    else:
        path = Path(f"/tmp/perf-{pid}.map")
        facts["symbols"] = [line.split(" ", 2)[2] for line in path.read_text().splitlines()]
        path.unlink()
    assert process.poll() is None, "it has ended by itself"
    asked = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    process.wait()
    facts["end_s"] = time.monotonic() - asked
    assert process.stdout.read() == "", "more than one line"
    return facts


def faults(language, flags, facts):
    pools = facts["truth"]["pools"]
    total = sum(pool["bytes"] for pool in pools)
    hot = sum(pool["bytes"] for pool in pools if not pool["idle"])
    resident, referenced = (mib * MIB for mib in OVERHEAD[language])
    # Recycled: what was churned and not built in stays as well.
    most = total + resident + (total if flags else 0)
    if not total * 0.98 < facts["anonymous"] < most:
        yield f"{facts['anonymous']} bytes resident of {total}"
    if not hot * 0.98 < facts["referenced"] < hot + referenced + (8 * MIB if flags else 0):
        yield f"{facts['referenced']} bytes referenced, {hot} are hot"
    for pool in pools:
        if pool["thread"] not in facts["threads"] | {"main", "any"}:
            yield f"no thread {pool['thread']}"
        if not any(names(symbol, pool["function"]) for symbol in facts["symbols"]):
            yield f"no symbol of {pool['function']}"
    if facts["end_s"] > 1:
        yield f"it ended {facts['end_s']:.1f} s after SIGTERM"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("languages", nargs="*")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    print("                     pools MiB    resident  hot MiB  referenced  built s  end s")
    for language in options.languages or [each for each in OVERHEAD if Path(options.directory, each).exists()]:
        for flags in ([], ["--recycle"]):
            sizes = []
            for _ in range(options.runs):
                facts = run(options.directory, language, flags)
                pools = facts["truth"]["pools"]
                sizes.append([pool["bytes"] for pool in pools])
                total, hot = sum(sizes[-1]), sum(pool["bytes"] for pool in pools if not pool["idle"])
                print(
                    f"{language:6} {flags[0] if flags else '':10} {total / MIB:11.1f} {facts['anonymous'] / MIB:11.1f}"
                    f" {hot / MIB:8.1f} {facts['referenced'] / MIB:11.1f} {facts['built_s']:8.2f} {facts['end_s']:6.2f}"
                )
                for fault in faults(language, flags, facts):
                    failed += 1
                    print(f"FAILED {language} {' '.join(flags)}: {fault}")
            for at, pool in enumerate(pools):
                of_runs = [run[at] for run in sizes]
                if max(of_runs) > min(of_runs) * 1.03:
                    failed += 1
                    print(f"FAILED {language}: {pool['function']} differs between runs: {of_runs}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
