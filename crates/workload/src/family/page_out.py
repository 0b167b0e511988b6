"""Pages memory of a process out: PID as argument, `START BYTES` lines on standard input.

By process_madvise(MADV_PAGEOUT), which takes unsafe code in Rust, and xtask has none.
"""

import ctypes
import os
import sys

PROCESS_MADVISE, MADV_PAGEOUT, RANGES_MAX = 440, 21, 512


class Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


libc = ctypes.CDLL(None, use_errno=True)
process = os.pidfd_open(int(sys.argv[1]))
ranges = [Range(*map(int, line.split())) for line in sys.stdin]
for first in range(0, len(ranges), RANGES_MAX):
    part = ranges[first : first + RANGES_MAX]
    array = (Range * len(part))(*part)
    done = libc.syscall(PROCESS_MADVISE, process, array, ctypes.c_size_t(len(part)), MADV_PAGEOUT, 0)
    if done < 0:
        sys.exit("process_madvise: " + os.strerror(ctypes.get_errno()))
