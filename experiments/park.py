#!/usr/bin/env python3
"""The memory that `isotherm park` leaves, and the first request after `isotherm wake`, for services that idle.

    python3 experiments/park.py [--isotherm PATH] [--repeats 5] [--out FILE] [SERVICE ...]

Each service runs in a control group of its own, and answers requests over one connection. Times of requests: warm; the
first one after `park`, without `wake`; the first one after `park` and `wake`, which has learned what requests need. A
wake ends once it has read all of that. Needs root, swap (`isotherm swap zram --size 8G`), redis-server, node, javac and
java. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import size

WARM = 1000
LEARNED_FOR_S = 3

NODE = """
const items = [];
for (let i = 0; i < 300000; i++) items.push({ name: 'item ' + i, text: 'x'.repeat(200) + i });
let at = 0;
require('http').createServer((request, answer) => {
  const found = [];
  for (let i = 0; i < 200; i++) { at = (at + 7919) % 20000; found.push(items[at]); }
  answer.end(JSON.stringify(found));
}).listen(Number(process.env.PORT), '127.0.0.1');
"""

JAVA = """
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.*;

public class Shop {
    static int at;

    public static void main(String[] args) throws Exception {
        List<String> items = new ArrayList<>();
        for (int i = 0; i < 1_500_000; i++) items.add("item " + i + " " + "x".repeat(100));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 0);
        server.createContext("/", exchange -> {
            StringBuilder found = new StringBuilder();
            for (int i = 0; i < 200; i++) { at = (at + 7919) % 50_000; found.append(items.get(at)); }
            byte[] body = found.toString().getBytes();
            exchange.sendResponseHeaders(200, body.length);
            try (var out = exchange.getResponseBody()) { out.write(body); }
        });
        server.start();
    }
}
"""

# A layer of a model for each request class: a quarter of the weights is used.
MODEL = """
import array, http.server, os, random
layers = [array.array('d', (random.random() for _ in range(1 << 20))) for _ in range(32)]

class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        body = str(sum(sum(layer[::64]) for layer in layers[:8])).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Server).serve_forever()
"""

SERVICES = {
    "redis": {"serve": 'exec redis-server --bind 127.0.0.1 --port "$PORT" --save "" --appendonly no'},
    "node, web": {"serve": 'exec node -e "$NODE"'},
    "JVM, web": {
        "setup": 'printf %s "$JAVA" > "$DIR/Shop.java"; javac -d "$DIR" "$DIR/Shop.java"',
        "serve": 'exec java -Xmx1g -XX:+UseSerialGC -cp "$DIR" Shop "$PORT"',
    },
    "python, model": {"serve": 'exec python3 -c "$MODEL"'},
}


class Web:
    """Requests over one HTTP connection."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.request()

    def request(self):
        self.connection.request("GET", "/")
        self.connection.getresponse().read()


class Redis:
    """Reads of 20 keys of 300,000, most of them of the first tenth, over one connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.at = 0
        for first in range(0, 300_000, 1000):
            keys = range(first, first + 1000)
            self.pipeline([("SET", f"key:{key}", f"{key}:" + "x" * 1000) for key in keys], b"+OK\r\n")

    def pipeline(self, commands, ending):
        text = b""
        for words in commands:
            text += b"*%d\r\n" % len(words)
            text += b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        self.socket.sendall(text)
        left, tail = len(commands), b""
        while left > 0:
            part = self.socket.recv(1 << 20)
            left -= (tail[-(len(ending) - 1):] + part).count(ending)
            tail = part

    def request(self):
        keys = []
        for _ in range(20):
            self.at = (self.at + 7919) % 30_000
            keys.append(("GET", f"key:{self.at}"))
        self.pipeline(keys, b"x\r\n")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def timed(client):
    before = time.perf_counter()
    client.request()
    return time.perf_counter() - before


def resident(group):
    return sum(size.kib_of(pid, "status", "VmRSS:") for pid in size.processes(group))


def measure(name, service, options):
    directory = Path(tempfile.mkdtemp(prefix="isotherm-park-"))
    group = size.group_root() / f"isotherm-park-{os.getpid()}"
    group.mkdir()
    port = free_port()
    environment = {**os.environ, "DIR": str(directory), "PORT": str(port), "NODE": NODE, "JAVA": JAVA, "MODEL": MODEL}
    started = []

    def run(*words):
        command = [options.isotherm, "--quiet", *words, "--cgroup", group.name, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    def wake(watch):
        return run("wake", "--watch", watch)

    try:
        if "setup" in service:
            subprocess.run(["bash", "-c", service["setup"]], env=environment, check=True)
        serve = f'echo $BASHPID > "{group}/cgroup.procs"; ' + service["serve"]
        started.append(subprocess.Popen(
            ["bash", "-c", serve], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        ))
        client, end = None, time.monotonic() + 60
        while client is None:
            try:
                client = (Redis if name == "redis" else Web)(port)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        warm = sorted(timed(client) for _ in range(WARM))
        before = resident(group)
        left, cold, woken, wakes = [], [], [], []
        for _ in range(options.repeats):
            run("park")
            left.append(resident(group) / before)
            cold.append(timed(client))
        run("park")
        learning = threading.Thread(target=wake, args=(f"{LEARNED_FOR_S}s",))
        learning.start()
        while learning.is_alive():
            client.request()
        for _ in range(options.repeats):
            run("park")
            wakes.append(wake("1ms"))
            woken.append(timed(client))
        return {
            "service": name, "resident": before, "left": left, "warm_p50": warm[len(warm) // 2],
            "warm_p99": warm[len(warm) * 99 // 100], "cold": cold, "woken": woken,
            "wake": [of["prefetch_seconds"] for of in wakes], "read": [of["prefetched_bytes"] for of in wakes],
        }
    finally:
        size.end(started, group)
        shutil.rmtree(directory, ignore_errors=True)


def row(result):
    def times(name):
        all = [1e3 * seconds for seconds in result[name]]
        return f"{statistics.median(all):,.1f} ({min(all):,.1f} to {max(all):,.1f})"

    ratio = statistics.median(result["woken"]) / result["warm_p99"]
    fields = [
        result["service"], size.mib(result["resident"]), f"{100 * statistics.median(result['left']):.1f} %",
        f"{1e3 * result['warm_p50']:.2f}", f"{1e3 * result['warm_p99']:.2f}", times("cold"), times("woken"),
        f"{ratio:.2f}", times("wake"), size.mib(statistics.median(result["read"])),
    ]
    return "| " + " | ".join(fields) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isotherm", default="isotherm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="park.jsonl")
    parser.add_argument("services", nargs="*", metavar="SERVICE", help="of " + ", ".join(SERVICES))
    options = parser.parse_args()
    unknown = set(options.services) - set(SERVICES)
    if unknown:
        parser.error(f"no such service: {', '.join(sorted(unknown))}")
    heads = [
        "service", "resident, MiB", "left", "warm p50, ms", "warm p99, ms", "first, no wake, ms", "first, woken, ms",
        "woken / p99", "wake, ms", "read ahead, MiB",
    ]
    print("| " + " | ".join(heads) + " |\n|---" + "|---:" * (len(heads) - 1) + "|", flush=True)
    with open(options.out, "a") as out:
        for name in options.services or SERVICES:
            try:
                result = measure(name, SERVICES[name], options)
            except (RuntimeError, OSError, ValueError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(json.dumps(result), file=out, flush=True)
            print(row(result), flush=True)


if __name__ == "__main__":
    main()
