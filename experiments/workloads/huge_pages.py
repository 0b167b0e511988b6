#!/usr/bin/env python3
"""Takes huge pages one after the other and times each, as the driver of Nitin Gupta's "Proactive Compaction
for the Linux kernel" does; prints percentiles of the times.

Maps memory, advises MADV_HUGEPAGE and writes one byte to each 2 MiB: a huge page that is not ready must be
made by compacting memory within that fault. His driver is a kernel module that zeroes nothing; a fault
here zeroes 2 MiB, about 90 us, and Python adds about 1 us.

It stops as soon as the machine has less than --floor available, and is the first that the kernel would kill.

    python3 experiments/workloads/huge_pages.py --share 0.8 --most 1GiB
"""

import argparse
import math
import mmap
import os
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from frag import BLOCK, PAGE, meminfo, size

# Faults between two looks at what is available: 128 MiB.
LOOK_EVERY = 64
PERCENTILES = (5, 10, 25, 30, 40, 50, 60, 75, 80, 90, 95, 99)


def counters():
    wanted = ("compact_stall", "thp_fault_alloc", "thp_fault_fallback")
    with open("/proc/vmstat", encoding="ascii") as file:
        pairs = (line.split() for line in file)
        return {name: int(value) for name, value in pairs if name in wanted}


def take(memory, base, blocks, floor):
    """Writes to each block. Nanoseconds of each fault."""
    times = []
    for number in range(blocks):
        if number % LOOK_EVERY == 0 and meminfo("MemAvailable") < floor:
            break
        begun = time.perf_counter_ns()
        memory[base + number * BLOCK] = 1
        times.append(time.perf_counter_ns() - begun)
    return times


def nr_huge(address, blocks):
    """Of how many blocks the last page is there, too: only a huge page brings it."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        def is_present(block):
            last = (address + block * BLOCK + BLOCK - PAGE) // PAGE
            (entry,) = struct.unpack("<Q", os.pread(pagemap.fileno(), 8, last * 8))
            return entry >> 63
        return sum(is_present(block) for block in range(blocks))


def address_of(memory):
    import ctypes
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def report(times, huge, before, after):
    us = sorted(ns / 1e3 for ns in times)
    mean = sum(us) / len(us)
    variance = sum((one - mean) ** 2 for one in us) / len(us)
    print(f"count {len(us)}")
    print(f"huge {huge}")
    print(f"huge_percent {100 * huge / len(us):.2f}")
    for name in before:
        print(f"{name} {after.get(name, 0) - before[name]}")
    print(f"min {us[0]:.1f}")
    print(f"max {us[-1]:.1f}")
    print(f"mean {mean:.2f}")
    print(f"stddev {math.sqrt(variance):.2f}")
    for percent in PERCENTILES:
        rank = max(1, math.ceil(len(us) * percent / 100))
        print(f"p{percent} {us[rank - 1]:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=0.8,
                        help="of what is available above the floor (default 0.8)")
    parser.add_argument("--most", type=size, help="at most so much")
    parser.add_argument("--floor", type=size, default=size("2GiB"),
                        help="what must stay available (default 2GiB)")
    args = parser.parse_args()
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    room = (meminfo("MemAvailable") - args.floor) * args.share
    blocks = int(min(room, args.most or room)) // BLOCK
    if blocks < 1:
        sys.exit(f"huge_pages: less than {args.floor >> 20} MiB and a huge page are available")
    # One more, so that it can begin at a multiple of 2 MiB.
    memory = mmap.mmap(-1, (blocks + 1) * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    address = address_of(memory)
    base = -address % BLOCK
    before = counters()
    times = take(memory, base, blocks, args.floor)
    after = counters()
    if not times:
        sys.exit("huge_pages: too little memory is available to begin")
    report(times, nr_huge(address + base, len(times)), before, after)


if __name__ == "__main__":
    main()
