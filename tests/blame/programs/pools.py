"""Pools of memory that known functions touch first, in Python: byte arrays, a mapping, a dict and lists of objects.

When all are built, one line of JSON says them; from then on `serve_requests` touches the hot ones every 50 ms and
nobody the idle ones. Pools are built one after the other. Started with `-X perf` by Python 3.12 or later, so that each
function has code of its own and a name in /tmp/perf-PID.map.

`bytes` is counted, not measured: `sys.getsizeof` of each object, rounded up to what its allocator takes (`taken`). Of a
mapping it is the pages that were stored to. Nothing moves. `touched` is measured: by how much anonymous resident
memory has grown while the pool was built; pages of arenas that are returned meanwhile are missing in it.

When all is built, the cyclic collector is turned off: each full collection would read and write all idle containers.

--recycle: `churn_open` and `churn_close` first allocate and free as many bytes as all pools have: half in blocks of 1
to 2 MiB, which go back to the kernel, half in blocks of 16 B to 64 KiB, of which the allocators keep most, and pools
are built in it. One block of 1024 stays. `churn_steadily` goes on to replace small blocks.
"""

import argparse
import gc
import json
import mmap
import random
import re
import sys
import threading
import time
from pathlib import Path

PAGE = 4096
# Shares of the pools are of this.
WHOLE = 256
# obmalloc's pools, and what is at their beginning.
OBMALLOC_POOL, OBMALLOC_HEADER = 16384, 48


def taken(size):
    """What the allocator takes for an object: obmalloc to 512 bytes, else malloc."""
    if size <= 512:
        return OBMALLOC_POOL / ((OBMALLOC_POOL - OBMALLOC_HEADER) // (-(-size // 16) * 16))
    return -(-(size + 8) // 16) * 16


def taken_by(*objects):
    return sum(taken(sys.getsizeof(each)) for each in objects)


def index_build(size):
    """One bytearray, filled at once."""
    index = bytearray(b"\x5a") * size
    return index, taken_by(index)


class Session:
    __slots__ = ("expires", "token", "user")

    def __init__(self, user):
        self.user = user
        self.token = f"{user:0120d}"
        self.expires = user * 0.5


class SessionCache:
    def __init__(self):
        self.sessions = {}

    def fill(self, size):
        """A dict of small objects; its table doubles as it grows."""
        first = Session(1000)
        each = taken_by(first, first.user, first.token, first.expires)
        count = int(size / (each + 80))
        for user in range(1000, 1000 + count):
            self.sessions[user] = Session(user)
        return count * each + taken_by(self.sessions)


def open_sessions(size):
    cache = SessionCache()
    return cache, cache.fill(size)


def image_decode(size):
    """Rows of their own."""
    image = []
    for at in range(size // 65536):
        row = bytearray(65536)
        row[at] = 1
        image.append(row)
    return image, sum(taken(len(row) + 1) + taken(56) for row in image)


def log_ring_open(size):
    """A mapping, of which three quarters are stored to, a byte on each page."""
    ring = mmap.mmap(-1, size // 3 * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, PAGE):
        ring[at] = 1
    return ring, size


def metrics_table_load(size):
    """A list of tuples."""
    first = (1000, 0.5, 0.25)
    each = taken_by(first, *first) + 9
    table = []
    for at in range(1000, 1000 + int(size / each)):
        table.append((at, at * 0.5, at * 0.25))
    return table, len(table) * (each - 9) + taken_by(table)


def undo_tree_grow(depth):
    """A binary tree, built by recursion."""
    node = [None, None, bytes(960)]
    if depth > 1:
        node[0] = undo_tree_grow(depth - 1)
        node[1] = undo_tree_grow(depth - 1)
    return node


def grow_trees(size):
    each = taken_by([None, None, None], bytes(960)) + taken(24)
    trees = [undo_tree_grow(9) for _ in range(int(size / (511 * each)))]
    return trees, len(trees) * 511 * each


def churn_open(size):
    """Half of the bytes in large blocks; of the rest as many in each power of two."""
    seeded = random.Random(3)
    blocks, opened = [], 0
    while opened < size:
        bits = 20 if opened < size / 2 else 4
        while bits < 15 and seeded.random() < 0.5:
            bits += 1
        block = bytearray((1 << bits) + seeded.randrange(1 << bits))
        blocks.append(block)
        opened += len(block)
    seeded.shuffle(blocks)
    return blocks


def churn_close(blocks):
    """Frees them, but for one of 1024."""
    kept = blocks[1023::1024]
    blocks.clear()
    return kept


def churn_steadily():
    seeded = random.Random(7)
    held = [b""] * 2048
    while True:
        for _ in range(64):
            held[seeded.randrange(2048)] = bytearray(16 + seeded.randrange(1024))
        time.sleep(0.01)


def touch_pages(pages, size):
    for at in range(0, size, PAGE):
        pages[at] = 2


def touch_tree(node):
    if node:
        node[2][0]
        touch_tree(node[0])
        touch_tree(node[1])


def serve_requests(built, seconds):
    until = time.monotonic() + seconds
    image, ring, trees = (built[name] for name in ("image_decode", "log_ring_open", "undo_tree_grow"))
    while time.monotonic() < until:
        for row in image:
            touch_pages(row, len(row))
        touch_pages(ring, len(ring) // 4 * 3)
        for tree in trees:
            touch_tree(tree)
        time.sleep(0.05)


# Function, how it is called, its share, whether it is idle, thread.
POOLS = [
    ("index_build", index_build, 96, True, "main"),
    ("SessionCache.fill", open_sessions, 40, True, "session-filler"),
    ("image_decode", image_decode, 24, False, "decoder"),
    ("log_ring_open", log_ring_open, 56, False, "log-writer"),
    ("metrics_table_load", metrics_table_load, 32, True, "main"),
    ("undo_tree_grow", grow_trees, 8, False, "main"),
]


def name_thread(name):
    """As the kernel shows it. threading does so itself from 3.14."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def start(name, run):
    def named():
        name_thread(name)
        run()

    threading.Thread(target=named, name=name, daemon=True).start()


def resident():
    """Anonymous resident memory."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous: +(\d+) kB", text, re.M)[1]) << 10


def build_on_thread(name, build, size):
    if name == "main":
        return build(size)
    results, is_built = [], threading.Event()

    def build_and_stay():
        results.append(build(size))
        is_built.set()
        threading.Event().wait()

    start(name, build_and_stay)
    is_built.wait()
    return results[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--recycle", action="store_true")
    options = parser.parse_args()
    kept = churn_close(churn_open(options.mib << 20)) if options.recycle else []
    pools, built = [], {}
    for function, build, share, is_idle, thread in POOLS:
        before = resident()
        built[function], size = build_on_thread(thread, build, (share * options.mib << 20) // WHOLE)
        touched = max(0, resident() - before)
        truth = {"function": function, "bytes": int(size), "touched": touched, "idle": is_idle, "thread": thread}
        pools.append(truth)
    gc.disable()
    if options.recycle:
        start("churn", churn_steadily)
    print(json.dumps({"language": "python", "pools": pools}, separators=(",", ":")), flush=True)
    serve_requests(built, options.seconds)
    kept.clear()


if __name__ == "__main__":
    main()
