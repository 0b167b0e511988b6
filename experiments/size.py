#!/usr/bin/env python3
"""The memory that `isotherm size` says programs need, and the least limit at which they lose no more than 1 %.

    python3 experiments/size.py [--isotherm PATH] [--seconds 120] [--out FILE] [PROGRAM ...]

Each program runs in a control group of its own, unlimited, for --seconds. Then `size --verify` lowers and raises the
limit, until two are found that differ by a twentieth: one that is enough, and one that is not.
Beside that: usage, the working set that the kubelet counts, peak RSS, PSS, the Vertical Pod Autoscaler's rule, and the
size at a loss of 0.1 %, which is senpai's target pressure. Needs root, swap (`isotherm swap zram --size 8G`), and what
`scripts/install-deps eval` installs. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
import argparse
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
    "node": {"serve": 'exec node -e "$NODE"', "settle": 15},
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


def end(started, group):
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    for _ in range(200):
        for pid in processes(group):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)
    print(f"cannot remove {group}", file=sys.stderr)


def measure(name, program, options):
    directory = Path(tempfile.mkdtemp(prefix="isotherm-size-"))
    group = group_root() / f"isotherm-size-{os.getpid()}"
    group.mkdir()
    environment = {**os.environ, "DIR": str(directory), "EXPERIMENT": str(HERE), "NODE": NODE, "GO": GO}
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
        start(f'echo $BASHPID > "{group}/cgroup.procs"; ' + program["serve"])
        time.sleep(2)
        finish(program.get("load"))
        if "drive" in program:
            start(program["drive"])
        time.sleep(program.get("settle", 5))
        seen = others(group)
        command = [
            options.isotherm, "--quiet", "size", "--cgroup", group.name, "--duration", f"{options.seconds}s",
            "--verify", "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr or f"size ended with {done.returncode}")
        report = json.loads(done.stdout)
        report.pop("record")
        return {"program": name, "others": seen, "size": report}
    finally:
        end(started, group)
        shutil.rmtree(directory, ignore_errors=True)


def at_loss(report, slowdown):
    """The least limit of the curve with at most this loss, with what is not mapped."""
    fits = [point["limit_bytes"] for point in report["points"] if point["slowdown"] <= slowdown]
    rest = report["with_swap"]["request"]["bytes"] - min(
        [p["limit_bytes"] for p in report["points"] if p["slowdown"] <= report["max_slowdown"]] or [0]
    )
    return min(fits) + max(rest, 0) if fits else None


def mib(count):
    return "-" if count is None else f"{count / MIB:,.0f}"


def row(result):
    report, seen = result["size"], result["others"]
    request, verified = report["with_swap"]["request"], report["verified"]
    truth = verified["least_bytes"]
    off = "-" if truth is None else f"{100 * (request['bytes'] / truth - 1):+.0f} %"
    holds = truth is not None and request["low_bytes"] <= truth <= request["high_bytes"] * 1.025
    fields = [
        result["program"], mib(truth), mib(request["bytes"]), off,
        f"{mib(request['low_bytes'])} to {mib(request['high_bytes'])}", "yes" if holds else "no",
        mib(seen["usage"]), mib(seen["kubelet"]), mib(seen["peak_rss"]), mib(seen["pss"]), mib(seen["vpa"]),
        mib(at_loss(report, 0.001)),
    ]
    return "| " + " | ".join(fields) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isotherm", default="isotherm")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--out", default="size.jsonl")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="of " + ", ".join(PROGRAMS))
    options = parser.parse_args()
    unknown = set(options.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    heads = [
        "program", "truth", "size", "off", "bounds", "hold it", "usage", "kubelet", "peak RSS", "PSS", "VPA", "0.1 %",
    ]
    print("| " + " | ".join(heads) + " |\n|---" + "|---:" * (len(heads) - 1) + "|", flush=True)
    with open(options.out, "a") as out:
        for name in options.programs or PROGRAMS:
            try:
                result = measure(name, PROGRAMS[name], options)
            except (RuntimeError, OSError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(json.dumps(result), file=out, flush=True)
            print(row(result), flush=True)


if __name__ == "__main__":
    main()
