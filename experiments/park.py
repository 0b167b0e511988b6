#!/usr/bin/env python3
"""The memory that `isotherm park` leaves, and the first request after `isotherm wake`, for services that idle.

    python3 experiments/park.py [--isotherm PATH] [--repeats 5] [--out FILE] [PROGRAM ...]

Each service runs in a control group of its own, and answers requests over one connection. Times of requests: warm; the
first one after `park`, without `wake`; the first one after `park` and `wake`, which has learned what requests need. A
wake ends once it has read all of that. Needs root, swap (`isotherm swap zram --size 8G`), redis-server, node, javac and
java. Writes a table in Markdown to standard output, and all numbers to FILE.
"""
import http.client
import socket
import statistics
import threading
import time

from programs import asked, kib_of, main, mib, processes, running

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
    disable_nagle_algorithm = True

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
        # Without it, headers wait for the acknowledgement of what came before: 40 ms.
        "serve": 'exec java -Dsun.net.httpserver.nodelay=true -Xmx1g -XX:+UseSerialGC -cp "$DIR" Shop "$PORT"',
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
    return sum(kib_of(pid, "status", "VmRSS:") for pid in processes(group))


def connected(name, port):
    end = time.monotonic() + 60
    while True:
        try:
            return (Redis if name == "redis" else Web)(port)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def measure(name, service, options):
    port = free_port()
    with running(service, PORT=str(port), NODE=NODE, JAVA=JAVA, MODEL=MODEL) as group:
        def run(*words):
            return asked(options, *words, "--cgroup", group.name)

        client = connected(name, port)
        warm = sorted(timed(client) for _ in range(WARM))
        before = resident(group)
        left, cold, woken, wakes = [], [], [], []
        for _ in range(options.repeats):
            run("park")
            left.append(resident(group) / before)
            cold.append(timed(client))
        run("park")
        learning = threading.Thread(target=run, args=("wake", "--watch", f"{LEARNED_FOR_S}s"))
        learning.start()
        while learning.is_alive():
            client.request()
        for _ in range(options.repeats):
            run("park")
            wakes.append(run("wake", "--watch", "1ms"))
            woken.append(timed(client))
    return {
        "resident": before, "left": left, "warm_p50": warm[len(warm) // 2], "warm_p99": warm[len(warm) * 99 // 100],
        "cold": cold, "woken": woken, "wake": [of["prefetch_seconds"] for of in wakes],
        "read": [of["prefetched_bytes"] for of in wakes],
    }


def row(result):
    def times(name):
        all = [1e3 * seconds for seconds in result[name]]
        return f"{statistics.median(all):,.1f} ({min(all):,.1f} to {max(all):,.1f})"

    ratio = statistics.median(result["woken"]) / result["warm_p99"]
    return [
        mib(result["resident"]), f"{100 * statistics.median(result['left']):.1f} %",
        f"{1e3 * result['warm_p50']:.2f}", f"{1e3 * result['warm_p99']:.2f}", times("cold"), times("woken"),
        f"{ratio:.2f}", times("wake"), mib(statistics.median(result["read"])),
    ]


HEADS = [
    "program", "resident, MiB", "left", "warm p50, ms", "warm p99, ms", "first, no wake, ms", "first, woken, ms",
    "woken / p99", "wake, ms", "read ahead, MiB",
]

if __name__ == "__main__":
    main(__doc__, SERVICES, HEADS, measure, row, repeats=5)
