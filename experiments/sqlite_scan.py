"""An SQLite table in memory, of which one part is searched by key all the time, one is read as a whole every few seconds,
and one never; prints the throughput of searches.

sqlite_scan.py HOT_MIB SCANNED_MIB IDLE_MIB PERIOD_S SECONDS
"""

import random
import sqlite3
import sys
import time

VALUE = 2048


def fill(database, name, mib, draws):
    database.execute(f"CREATE TABLE {name} (key INTEGER PRIMARY KEY, value BLOB)")
    rows = (mib << 20) // VALUE
    # Values compress to about a half: random bytes, twice.
    half = VALUE // 2
    pool = draws.randbytes(1 << 16)
    starts = (draws.randrange(len(pool) - half) for _ in range(rows))
    values = ((key, pool[at : at + half] * 2) for key, at in enumerate(starts))
    database.executemany(f"INSERT INTO {name} VALUES (?, ?)", values)
    return rows


def main():
    hot, scanned, idle = (int(word) for word in sys.argv[1:4])
    period, seconds = (float(word) for word in sys.argv[4:6])
    draws = random.Random(1)
    database = sqlite3.connect(":memory:")
    rows = fill(database, "hot", hot, draws)
    fill(database, "scanned", scanned, draws)
    fill(database, "idle", idle, draws)
    begun = time.monotonic()
    scan_at = begun + period / 2
    done = 0
    while (now := time.monotonic()) - begun < seconds:
        if now >= scan_at:
            database.execute("SELECT sum(substr(value, 1000, 1) = x'00') FROM scanned").fetchone()
            scan_at += period
        for _ in range(100):
            database.execute("SELECT value FROM hot WHERE key = ?", (draws.randrange(rows),)).fetchone()
        done += 100
    print(f"throughput: {done / (now - begun):.1f}")


main()
