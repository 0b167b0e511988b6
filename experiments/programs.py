"""Programs of Debian, and small services, each run in a control group of its own; and the frame of the scripts that
measure them (size.py, park.py, tune.py)."""
import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1 << 20

NODE = """
const items = [];
for (let i = 0; i < 400000; i++) items.push({ name: 'item ' + i, text: 'x'.repeat(200) + i, tags: [i, i + 1, i + 2] });
console.log('ready');
let at = 0;
setInterval(() => { let sum = 0; for (let i = 0; i < 20000; i++) { at = (at + 7919) % 40000; sum += items[at].tags[1]; } }, 10);
"""

GO = """
package main

import ("fmt"; "time")

type item struct { name string; text []byte; next [4]int }

func main() {
	items := map[int]*item{}
	for i := 0; i < 500000; i++ {
		text := make([]byte, 600)
		for j := range text { text[j] = byte(i * j) }
		items[i] = &item{fmt.Sprint("item ", i), text, [4]int{i, i + 1}}
	}
	fmt.Println("ready")
	at, sum := 0, 0
	for {
		for i := 0; i < 20000; i++ { at = (at + 7919) % 50000; sum += int(items[at].text[at%600]) }
		time.Sleep(10 * time.Millisecond)
	}
}
"""

SQLITE = """
import random, sqlite3
rows = 600_000
rng = random.Random(1)
table = sqlite3.connect(":memory:")
table.execute("create table items (id integer primary key, name text, body blob)")
table.executemany("insert into items values (?, ?, ?)", ((i, f"item {i}", rng.randbytes(700)) for i in range(rows)))
print("ready", flush=True)
while True:
    at = int(rows ** rng.random()) * 7919 % rows
    table.execute("select name, length(body) from items where id = ?", (at,)).fetchone()
"""

TURNS = """
import random, time
rng = random.Random(1)
tables = [{i: rng.randbytes(300) for i in range(150_000)} for _ in range(10)]
print("ready", flush=True)
while True:
    # One of ten tables for ten seconds, as batch jobs that take turns.
    table = tables[int(time.monotonic() / 10) % 10]
    for _ in range(20_000):
        len(table[rng.randrange(150_000)])
"""

# serve: in the group, until it is killed. load: once, outside. drive: outside, during all of the watch and the trials.
YCSB = 'sh "$EXPERIMENT/ycsb/run"'
PROGRAMS = {
    "redis/zipf": {
        "setup": f"{YCSB} build",
        "serve": 'exec redis-server --port 0 --unixsocket "$DIR/socket" --save "" --appendonly no',
        "load": f'{YCSB} load redis "$DIR/socket" 500000',
        "drive": f'{YCSB} read redis "$DIR/socket" 500000 zipf 100000 10000',
    },
    "redis/tenth": {
        "serve": 'exec redis-server --port 0 --unixsocket "$DIR/socket" --save "" --appendonly no',
        "load": "redis-benchmark -s \"$DIR/socket\" -q -c 4 -P 16 -n 3000000 -r 300000 -d 2000 set key:__rand_int__ __data__",
        "drive": "redis-benchmark -s \"$DIR/socket\" -q -c 2 -n 1000000000 -r 30000 get key:__rand_int__",
    },
    "memcached/zipf": {
        "setup": f'chmod 777 "$DIR"; {YCSB} build',
        "serve": 'exec memcached -u nobody -s "$DIR/socket" -a 0777 -m 4000 -t 2',
        "load": f'{YCSB} load memcached "$DIR/socket" 500000',
        "drive": f'{YCSB} read memcached "$DIR/socket" 500000 zipf 100000 10000',
        "trial": 60,
    },
    "jvm/zipf": {
        "setup": f"{YCSB} build",
        "serve": f"exec {YCSB} both heap - 400000 zipf 100000 20000",
        "settle": 30,
    },
    "jvm/idle_heap": {
        "setup": 'javac -d "$DIR" "$EXPERIMENT/IdleHeap.java"',
        "serve": 'exec java -Xms1g -Xmx1g -XX:+UseSerialGC -cp "$DIR" IdleHeap 700 100000',
        "settle": 15,
    },
    "postgresql": {
        "setup": 'chmod 777 "$DIR"; bash "$EXPERIMENT/postgresql" setup',
        "serve": 'exec bash "$EXPERIMENT/postgresql" serve',
        "load": 'bash "$EXPERIMENT/postgresql" fill 30',
        "drive": 'bash "$EXPERIMENT/postgresql" read 100000',
    },
    "povray": {
        "serve": 'exec povray "+I$EXPERIMENT/spheres.pov" "+O$DIR/picture.png" Declare=N=600000 +W20000 +H20000 -D',
        "settle": 40,
    },
    "xz": {
        "serve": "while :; do head -c 400M /dev/urandom | xz -9 -T1 > /dev/null; done",
        "settle": 20,
    },
    "sort": {
        "setup": 'head -c 300M /dev/urandom | base64 > "$DIR/lines"',
        "serve": 'while :; do sort -S 2G --parallel=1 "$DIR/lines" > "$DIR/sorted"; done',
        "settle": 20,
    },
    "gcc": {
        "setup": 'printf "#include <bits/stdc++.h>\\n#include <regex>\\nint main() { return std::regex_match(std::string(), std::regex()); }\\n" > "$DIR/main.cc"',
        "serve": 'while :; do g++ -O2 -c -o "$DIR/main.o" "$DIR/main.cc"; done',
    },
    "sqlite/zipf": {"serve": 'exec python3 -c "$SQLITE"', "settle": 30},
    "python/turns": {"serve": 'exec python3 -c "$TURNS"', "settle": 30, "trial": 110},
    "node": {"serve": 'exec node -e "$NODE"', "settle": 120, "trial": 30},
    "go": {
        "setup": 'printf %s "$GO" > "$DIR/main.go"; cd "$DIR"; GOCACHE="$DIR/cache" go build -o service main.go',
        "serve": 'exec "$DIR/service"',
        "settle": 15,
    },
    "files": {
        "setup": 'python3 "$EXPERIMENT/file_server.py" make "$DIR/files" 600; sync; echo 3 > /proc/sys/vm/drop_caches',
        "serve": 'exec python3 "$EXPERIMENT/file_server.py" serve "$DIR/files" 100000',
        "settle": 20,
    },
}


def group_root():
    root = Path("/sys/fs/cgroup")
    return root if (root / "cgroup.controllers").exists() else root / "memory"


def groups_of(name):
    """The group, and on machines with both versions of control groups that of version 2, which knows pressure."""
    unified = Path("/sys/fs/cgroup/unified")
    return [top / name for top in (group_root(), unified) if (top / "cgroup.procs").exists()]


def counters(path):
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def processes(group):
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def kib_of(pid, file, name):
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def end(started, groups):
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    for _ in range(200):
        for pid in processes(groups[0]):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            for group in groups:
                if group.exists():
                    group.rmdir()
            return
        except OSError:
            time.sleep(0.1)
    print(f"cannot remove {groups}", file=sys.stderr)


@contextlib.contextmanager
def running(program, **environment):
    """Runs a program of PROGRAMS, and what drives it, until the end of the block; yields its control group."""
    directory = Path(tempfile.mkdtemp(prefix="isotherm-programs-"))
    groups = groups_of(f"isotherm-programs-{os.getpid()}")
    for group in groups:
        group.mkdir()
    sources = {"NODE": NODE, "GO": GO, "SQLITE": SQLITE, "TURNS": TURNS}
    environment = {**os.environ, **sources, "DIR": str(directory), "EXPERIMENT": str(HERE), **environment}
    started = []

    def start(command):
        log = open(directory / "log", "a")
        process = subprocess.Popen(
            ["bash", "-c", command], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        return process

    def finish(command):
        if command and start(command).wait() != 0:
            raise RuntimeError(f"{command}: {(directory / 'log').read_text()[-2000:]}")

    try:
        finish(program.get("setup"))
        start("".join(f'echo $BASHPID > "{group}/cgroup.procs"; ' for group in groups) + program["serve"])
        time.sleep(2)
        finish(program.get("load"))
        if "drive" in program:
            start(program["drive"])
        time.sleep(program.get("settle", 5))
        yield groups[0]
    finally:
        end(started, groups)
        shutil.rmtree(directory, ignore_errors=True)


def asked(options, *words, accepts=(0,)):
    """What a command of isotherm says in JSON."""
    done = subprocess.run([options.isotherm, "--quiet", *words, "--json"], capture_output=True, text=True)
    if done.returncode not in accepts:
        raise RuntimeError(done.stderr or f"isotherm {words[0]} ended with {done.returncode}")
    return json.loads(done.stdout)


def mib(count):
    return "-" if count is None else f"{count / MIB:,.0f}"


def main(description, programs, heads, measure, row, **numbers):
    """Measures the named programs, or all: a line of a table for each, and its numbers in a file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isotherm", default="isotherm")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", default=Path(sys.argv[0]).stem + ".jsonl")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="of " + ", ".join(programs))
    options = parser.parse_args()
    unknown = set(options.programs) - set(programs)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    print("| " + " | ".join(heads) + " |\n|---" + "|---:" * (len(heads) - 1) + "|", flush=True)
    with open(options.out, "a") as out:
        for name in options.programs or programs:
            try:
                result = {"program": name, **measure(name, programs[name], options)}
            except (RuntimeError, OSError, ValueError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(json.dumps(result), file=out, flush=True)
            print("| " + " | ".join([name, *row(result)]) + " |", flush=True)
