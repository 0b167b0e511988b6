#!/usr/bin/env python3
"""zram and zswap on the data of four programs, as `isotherm swap advise` measures them.

    python3 experiments/swap.py [--isotherm PATH] [--repeats 3] [--out FILE] [PROGRAM ...]

Each program fills its memory once and then idles, in a control group of its own. `swap advise --no-watch` copies a sample
of 64 MiB, and pages it out and back, five rounds of each kind in turn. Medians of the repeats' medians; in parentheses
the least and the greatest of all rounds. Needs root, a disk that can hold swap, redis-server and node. Writes a table in
Markdown to standard output, and all numbers to FILE.
"""
import statistics

from programs import asked, main, running

# Words by Zipf's law, as in text.
WORDS = """
import random
rng = random.Random(1)
words = [''.join(rng.choice('etaoinshrdlu') for _ in range(rng.randint(2, 9))) for _ in range(5000)]
weights = [1 / (rank + 1) for rank in range(len(words))]
def text(nr): return ' '.join(rng.choices(words, weights, k=nr))
"""

FILL_REDIS = WORDS + """
import sys
for i in range(200_000):
    parts = ['SET', f'article:{i}', text(140)]
    sys.stdout.write(f'*{len(parts)}\\r\\n' + ''.join(f'${len(part)}\\r\\n{part}\\r\\n' for part in parts))
"""

FLOATS = """
import array, random, time
rng = random.Random(1)
floats = array.array('d', (rng.gauss(20, 5) for _ in range(12 << 20)))
noise = rng.randbytes(96 << 20)
print('ready', flush=True)
time.sleep(1e6)
"""

SQLITE = WORDS + """
import sqlite3, time
table = sqlite3.connect(':memory:')
table.execute('create table orders (id integer primary key, customer integer, price real, at text, note text)')
rows = ((i, rng.randrange(50_000), round(rng.uniform(1, 500), 2), f'2026-11-{i % 30 + 1:02} 12:{i % 60:02}', text(20))
        for i in range(900_000))
table.executemany('insert into orders values (?, ?, ?, ?, ?)', rows)
table.execute('create index by_customer on orders (customer)')
print('ready', flush=True)
time.sleep(1e6)
"""

NODE = """
const items = [];
for (let i = 0; i < 400000; i++) items.push({ name: 'item ' + i, price: i * 1.1, tags: ['t' + i % 97, 't' + i % 89], next: i + 1 });
setInterval(() => items.length, 1e6);
"""

PROGRAMS = {
    "redis, text": {
        "serve": 'exec redis-server --port 0 --unixsocket "$DIR/socket" --save "" --appendonly no',
        "load": 'python3 -c "$FILL_REDIS" | redis-cli -s "$DIR/socket" --pipe',
    },
    "Node.js heap": {"serve": 'exec node -e "$NODE_HEAP"', "settle": 15},
    "Python, floats and random bytes": {"serve": 'exec python3 -c "$FLOATS"', "settle": 45},
    "SQLite in memory": {"serve": 'exec python3 -c "$SQLITE_ROWS"', "settle": 75},
}


def measure(_, program, options):
    scripts = {"FILL_REDIS": FILL_REDIS, "NODE_HEAP": NODE, "FLOATS": FLOATS, "SQLITE_ROWS": SQLITE}
    with running(program, **scripts) as group:
        words = ["swap", "advise", "--no-watch", "--cgroup", group.name]
        return {"advice": [asked(options, *words) for _ in range(options.repeats)]}


def cell(advice, kind, name, unit):
    found = [one["measured"][kind][name] for one in advice]
    if None in found:
        return "?"
    median = statistics.median(of["median"] for of in found) / unit
    low, high = min(of["min"] for of in found) / unit, max(of["max"] for of in found) / unit
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def row(result):
    advice = result["advice"]
    pages = sum(one["sample"]["pages"] for one in advice)
    same = sum(one["sample"]["same_filled_pages"] for one in advice)
    columns = [("ratio", 1), ("page_out_ns", 1e3), ("fault_in_ns", 1e3)]
    cells = [cell(advice, kind, name, unit) for name, unit in columns for kind in (0, 1)]
    choices = "/".join(sorted({one["choice"] or "?" for one in advice}))
    return [f"{100 * same / max(pages, 1):.1f} %", *cells, choices]


HEADS = [
    "program", "pages of one value", "zram: 1 part in", "zswap: 1 part in", "zram: out, us", "zswap: out, us",
    "zram: back, us", "zswap: back, us", "choice",
]

if __name__ == "__main__":
    main(__doc__, PROGRAMS, HEADS, measure, row, repeats=3)
