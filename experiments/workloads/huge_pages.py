#!/usr/bin/env python3
"""Takes huge pages one after the other and times each, as the driver of Nitin Gupta's "Proactive Compaction
for the Linux kernel" does; prints percentiles of the times.

Maps memory, advises MADV_HUGEPAGE and writes one byte to each 2 MiB: a huge page that is not ready must be
made by compacting memory within that fault. His driver is a kernel module that zeroes nothing; a fault
here zeroes 2 MiB, about 90 us, and Python adds about 1 us.

Some hypervisors take back free memory and give it again at the first touch, in milliseconds. Faults of more
than 1 ms for which nothing was compacted (compact_stall) are counted, and left out of `mean_guest`. That
counter is read between faults.

It stops as soon as the machine has less than --floor available, and is the first that the kernel would kill.

    python3 experiments/workloads/huge_pages.py --share 0.8 --most 1GiB
"""

import argparse
import glob
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
SLOW_NS = 1_000_000
PERCENTILES = (5, 10, 25, 30, 40, 50, 60, 75, 80, 90, 95, 99)


def counters():
    wanted = ("compact_stall", "thp_fault_alloc", "thp_fault_fallback")
    with open("/proc/vmstat", encoding="ascii") as file:
        pairs = (line.split() for line in file)
        return {name: int(value) for name, value in pairs if name in wanted}


def stalls(vmstat):
    text, part = b"", True
    while part:  # The kernel hands out a page at a time.
        part = os.pread(vmstat, 1 << 16, len(text))
        text += part
    return int(text.partition(b"\ncompact_stall ")[2].partition(b"\n")[0] or 0)


def kcompactd_seconds():
    nanoseconds = 0
    for comm in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(comm, encoding="utf-8", errors="replace") as name:
                if not name.read().startswith("kcompactd"):
                    continue
            with open(os.path.dirname(comm) + "/schedstat", encoding="ascii") as schedstat:
                nanoseconds += int(schedstat.read().split()[0])
        except OSError:
            # A process that has just ended.
            pass
    return nanoseconds / 1e9


def take(memory, base, blocks, floor, seconds_between):
    """Writes to each block. Nanoseconds of each fault, and whether something was compacted meanwhile."""
    vmstat = os.open("/proc/vmstat", os.O_RDONLY)
    times = []
    last = stalls(vmstat)
    started = time.monotonic()
    for number in range(blocks):
        if number % LOOK_EVERY == 0 and meminfo("MemAvailable") < floor:
            break
        time.sleep(max(0, started + number * seconds_between - time.monotonic()))
        begun = time.perf_counter_ns()
        memory[base + number * BLOCK] = 1
        taken = time.perf_counter_ns() - begun
        now = stalls(vmstat)
        times.append((taken, now > last))
        last = now
    os.close(vmstat)
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
    us = sorted(ns / 1e3 for ns, _ in times)
    slow = [ns / 1e3 for ns, is_stalled in times if ns > SLOW_NS and not is_stalled]
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
    print(f"mean_guest {(sum(us) - sum(slow)) / max(1, len(us) - len(slow)):.2f}")
    print(f"slow_percent {100 * len(slow) / len(us):.2f}")
    print(f"stalled_percent {100 * sum(is_stalled for _, is_stalled in times) / len(us):.2f}")
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
    parser.add_argument("--rest", type=float, default=0, metavar="SECONDS", help="before it begins")
    parser.add_argument("--pace", type=float, default=0, metavar="MIB_PER_S",
                        help="0, the default, is as fast as it can")
    args = parser.parse_args()
    compacting = kcompactd_seconds()
    time.sleep(args.rest)
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
    times = take(memory, base, blocks, args.floor, (BLOCK >> 20) / args.pace if args.pace else 0)
    after = counters()
    if not times:
        sys.exit("huge_pages: too little memory is available to begin")
    report(times, nr_huge(address + base, len(times)), before, after)
    print(f"kcompactd_s {kcompactd_seconds() - compacting:.2f}")


if __name__ == "__main__":
    main()
