#!/usr/bin/env python3
"""Fragments free memory, as `frag` of Nitin Gupta's "Proactive Compaction for the Linux kernel" does.

Maps memory, fills it with pages of 4 KiB, and gives back three quarters of the pages in every 2 MiB,
chosen at random: what is free then lies in small blocks, and a huge page is to be had only by compaction.
Prints `filled` in between and `ready {...}` after that, and holds what is left until its parent ends, or SIGTERM or SIGINT comes.

It gives everything back and fails as soon as the machine has less than --floor available, and is the
first that the kernel would kill (oom_score_adj 1000). Virtual alignment is not physical alignment, but
as pages are chosen at random, no physical 2 MiB are left whole either.

    python3 experiments/workloads/frag.py --size 1GiB
    python3 experiments/workloads/frag.py --leave 2.5GiB     # all that is free but 2.5 GiB
"""

import argparse
import json
import mmap
import os
import random
import re
import signal
import sys
import time

PAGE = 4096
BLOCK = 2 << 20
PAGES_IN_BLOCK = BLOCK // PAGE
PAGES_KEPT = PAGES_IN_BLOCK // 4
# Not in the module before Python 3.14; Linux 5.14.
MADV_POPULATE_WRITE = 23
# The memory that is filled between two looks at what is available.
STEP = 64 << 20
UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def size(text):
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]iB)?", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"`{text}` is no size such as 1GiB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def meminfo(name):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    sys.exit(f"frag: /proc/meminfo has no {name}")


def check_available(floor):
    available = meminfo("MemAvailable")
    if available < floor:
        sys.exit(f"frag: only {available >> 20} MiB of memory are available; gave all back")


def fill(memory, length, floor):
    for start in range(0, length, STEP):
        check_available(floor)
        memory.madvise(MADV_POPULATE_WRITE, start, min(STEP, length - start))


def give_back(memory, length, seed):
    lot = random.Random(seed)
    for block in range(0, length, BLOCK):
        # Runs of pages that are not kept, each given back in one call.
        kept = sorted(lot.sample(range(PAGES_IN_BLOCK), PAGES_KEPT))
        start = 0
        for page in kept + [PAGES_IN_BLOCK]:
            if page > start:
                length_of_run = (page - start) * PAGE
                memory.madvise(mmap.MADV_DONTNEED, block + start * PAGE, length_of_run)
            start = page + 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    much = parser.add_mutually_exclusive_group(required=True)
    much.add_argument("--size", type=size, help="how much to fragment")
    much.add_argument("--leave", type=size, help="fragment all that is free but this")
    parser.add_argument("--floor", type=size, default=size("512MiB"),
                        help="what must stay available (default 512MiB)")
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS",
                        help="between filling and giving back, for a look at memory then")
    parser.add_argument("--seed", type=int, default=1, help="of the lot (default 1)")
    return parser.parse_args()


def main():
    parent = os.getppid()
    # Like any other end, so that it needs no message.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    args = arguments()
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    free = min(meminfo("MemFree"), meminfo("MemAvailable"))
    length = (args.size if args.size is not None else free - args.leave) // BLOCK * BLOCK
    if length <= 0:
        sys.exit(f"frag: nothing to fragment: {free >> 20} MiB are free")
    if free - length < args.floor:
        sys.exit(f"frag: {length >> 20} MiB are too much: {free >> 20} MiB are free")
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    started = time.monotonic()
    try:
        fill(memory, length, args.floor)
    except OSError as error:
        sys.exit(f"frag: cannot fill memory: {error}; MADV_POPULATE_WRITE needs Linux 5.14")
    filled = time.monotonic()
    print("filled", flush=True)
    time.sleep(args.pause)
    freeing = time.monotonic()
    give_back(memory, length, args.seed)
    ready = {
        "bytes": length,
        "freed": length // PAGES_IN_BLOCK * (PAGES_IN_BLOCK - PAGES_KEPT),
        "fill_seconds": filled - started,
        "free_seconds": time.monotonic() - freeing,
        "seed": args.seed,
    }
    print("ready", json.dumps(ready), flush=True)
    # The parent may be killed before it can report the end.
    while os.getppid() == parent:
        check_available(args.floor)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
