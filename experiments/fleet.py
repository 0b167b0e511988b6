#!/usr/bin/env python3
"""A simulated cluster with a real Prometheus before a real `isotherm recommend`: bytes, seconds, writes, passes.

    python3 experiments/fleet.py [--isotherm PATH] [--nodes 1000] [--sizes size.jsonl] [--out FILE]

Each node has 40 pods of workloads of 40, and serves the metrics that `isotherm start --all --pods` has for them. What a
pod needs is what `isotherm size` said of a program (experiments/size.py, its FILE), within a tenth. A server stands for
the API server: it keeps the pods, and patches them. One workload in ten has a wrong need, half of the true one: a pod
with less than it needs waits for memory. Needs prometheus.

    python3 experiments/fleet.py --ray --nodes 10000 --shards 20 [--traces DIR]

splits the nodes into shards. Each is a cluster of its own, in a task on Ray: the server above, which answers
`recommend` for a Prometheus as well, with present values only, and a real `recommend`. Tasks on Ray first compute the
needs of the recorded programs DIR/*.isotherm. Results are sums over the shards, or the greatest of any: of bytes of a
node, of passes, and of what one `recommend` does. Needs Ray (`pip install ray`), and `isotherm` on each machine.
"""
import argparse
import http.server
import itertools
import json
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

PODS = 40
MIB = 1 << 20
SCRAPED_S = 10
WATCHED_S = 3600
BOUNDS = ("low", "estimate", "high")


def sizes(path):
    """Need, bounds and usage of the recorded programs."""
    if path is None:
        # Of docs/results/size.md, in MiB.
        recorded = [(33, 29, 40, 46), (23, 18, 25, 414), (192, 102, 242, 291), (40, 32, 42, 867), (60, 57, 871, 881)]
        return [[MIB * of for of in one] for one in recorded]
    found = []
    for line in Path(path).read_text().splitlines():
        result = json.loads(line)
        found.append(of_report(result["size"], result["others"]["usage"]))
    return found


def of_report(report, usage):
    need = report["with_swap"]["request"]
    return [need["bytes"], need["low_bytes"], need["high_bytes"], usage]


def size(isotherm, trace):
    """Need, bounds and usage of a recorded program."""
    done = subprocess.run([isotherm, "--quiet", "size", "-", "--json"], input=trace, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    report = json.loads(done.stdout)
    return of_report(report, report["memory"]["peak_bytes"])


class Fleet:
    def __init__(self, nodes, recorded, first=0):
        """Workloads are numbered from `first`."""
        random.seed(1 + first)
        self.nodes = nodes
        self.pods = {}
        self.on_node = [[] for _ in range(nodes)]
        self.nr_writes = 0
        self.answer_max = 0
        for number in range(nodes * PODS):
            workload = first + number // PODS
            of = random.Random(workload).choice(recorded)
            need, low, high, usage = (int(each * random.uniform(0.9, 1.1)) for each in of)
            # The pods of a workload run on different nodes.
            node = (number * 7919 + workload) % nodes
            is_wrong = workload % 10 == 3
            scale = 0.5 if is_wrong else 1
            name = f"w{workload}-{number % PODS}"
            self.on_node[node].append(name)
            self.pods[name] = {
                "need": need, "told": [int(scale * each) for each in (min(low, need), need, max(high, need))], "usage": usage,
                "workload": workload, "is_wrong": is_wrong, "request": 2 * max(usage, need), "annotations": {},
            }

    def metrics(self, node):
        lines = []
        for name in self.on_node[node]:
            pod = self.pods[name]
            group = f'cgroup="/kubepods.slice/kubepods-burstable.slice/{name}/main"'
            for bound, value in zip(BOUNDS, pod["told"]):
                lines.append(f'isotherm_needed_bytes{{{group},bound="{bound}"}} {value}')
            lines.append(f'isotherm_needed_age_seconds{{{group}}} 30')
            lines.append(f'isotherm_charged_bytes{{{group}}} {pod["usage"]}')
            whose = f'namespace="default",pod="{name}",container="main"'
            lines.append(f'isotherm_pod_info{{{group},{whose}}} 1')
            lines.append(f'fleet_loss{{{whose}}} {self.loss(pod)}')
        return "\n".join(lines) + "\n"

    def loss(self, pod):
        return 0.05 if pod["request"] < 0.9 * pod["need"] else 0

    def answer(self, query):
        """What a Prometheus answers to a query of `recommend`."""
        # Nothing but the loss changes: the greatest of any time is the present value.
        if query == "fleet_loss":
            values = lambda pod: [self.loss(pod)]
        elif "max_over_time(isotherm_needed_bytes[" in query:
            values = lambda pod: pod["told"]
        elif "min_over_time(timestamp(isotherm_charged_bytes)[" in query:
            values = lambda pod: [WATCHED_S]
        elif "(isotherm_charged_bytes)" in query:
            values = lambda pod: [pod["usage"]]
        else:
            return '{"status":"error","error":"a query of another kind"}'
        bounds = [f'"bound":"{bound}",' for bound in BOUNDS] if "needed" in query else [""]
        whose = '"container":"main","namespace":"default"'
        now = f"{time.time():.3f}"
        series = (
            f'{{"metric":{{{bound}{whose},"pod":"{name}"}},"value":[{now},"{value}"]}}'
            for name, pod in self.pods.items() for bound, value in zip(bounds, values(pod)))
        text = f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(series)}]}}}}'
        self.answer_max = max(self.answer_max, len(text))
        return text

    def object(self, name):
        pod = self.pods[name]
        memory = {"memory": str(pod["request"])}
        return {
            "metadata": {
                "namespace": "default", "name": name, "uid": name,
                "annotations": {"isotherm.io/resize": "requests", **pod["annotations"]},
                "ownerReferences": [{"kind": "StatefulSet", "name": f"w{pod['workload']}", "controller": True}],
            },
            "spec": {"containers": [{"name": "main", "resources": {"requests": memory}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0}]},
        }

    def patch(self, path, body):
        self.nr_writes += 1
        name = path.split("/")[6]
        pod = self.pods[name]
        if path.endswith("/resize"):
            of = body["spec"]["containers"][0]["resources"]["requests"]["memory"]
            number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(of)).groups()
            pod["request"] = int(number) * {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[unit]
            return
        for key, value in body["metadata"]["annotations"].items():
            if value is None:
                pod["annotations"].pop(key, None)
            else:
                pod["annotations"][key] = value


def server(fleet):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self, text, code=200):
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if self.path.startswith("/node/") else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            url = urllib.parse.urlparse(self.path)
            if url.path.startswith("/node/"):
                return self.answer(fleet.metrics(int(url.path.split("/")[2])))
            if url.path == "/api/v1/query":
                return self.answer(fleet.answer(urllib.parse.parse_qs(url.query)["query"][0]))
            if url.path != "/api/v1/pods":
                return self.answer("{}", 404)
            query = urllib.parse.parse_qs(url.query)
            names, first = list(fleet.pods), int(query.get("continue", ["0"])[0])
            last = first + int(query["limit"][0])
            meta = {"continue": str(last)} if last < len(names) else {}
            items = [fleet.object(name) for name in names[first:last]]
            self.answer(json.dumps({"metadata": meta, "items": items}))

        def do_PATCH(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fleet.patch(self.path, json.loads(body))
            self.answer("{}")

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):
            """Prometheus closes connections when it ends."""

    made = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made.server_port


def prometheus(directory, nodes, port):
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/node/{node}", "instance": f"n{node}"}}
               for node in range(nodes)]
    (directory / "targets.json").write_text(json.dumps(targets))
    (directory / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {SCRAPED_S}s}}\n"
        f"scrape_configs: [{{job_name: nodes, file_sd_configs: [{{files: [{directory}/targets.json]}}]}}]\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = probe.getsockname()[1]
    log = open(directory / "log", "w")
    process = subprocess.Popen(
        ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
         f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)
    return process, f"http://127.0.0.1:{own}"


def ask(url, path):
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=60) as answer:
        return json.load(answer)["data"]


def count(url, query):
    try:
        found = ask(url, "query?" + urllib.parse.urlencode({"query": f"count({query})"}))["result"]
    except OSError:
        return 0
    return int(found[0]["value"][1]) if found else 0


def passes(options, fleet, api, url, settle_s):
    """Passes until nothing more is resized, and the pods that wrong sizes reached."""
    command = [
        options.isotherm, "--quiet", "recommend", "--prometheus", url, "--api", f"http://127.0.0.1:{api}", "--json",
        "--over", "1h", "--min-watched", "20s", "--settle", f"{settle_s}s", "--loss", "fleet_loss", "--write", "resize",
        "--per-pass", str(options.per_pass),
    ]
    reached, quiet, all = set(), 0, []
    while quiet < 2:
        before, nr_before = time.monotonic(), fleet.nr_writes
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 2:
            raise RuntimeError(done.stderr)
        report = json.loads(done.stdout)
        for of in report["resizes"]:
            if of["kind"] != "roll_back" and fleet.pods[of["pod"]]["is_wrong"]:
                reached.add(of["pod"])
        all.append({
            "seconds": time.monotonic() - before, "writes": fleet.nr_writes - nr_before, "resizes": len(report["resizes"]),
            "cpu_s": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used,
            "failed": sum(of["outcome"] != "done" for of in report["resizes"]),
            "short": sum(fleet.loss(pod) > 0 for pod in fleet.pods.values()),
        })
        print(all[-1], file=sys.stderr, flush=True)
        quiet = 0 if report["resizes"] else quiet + 1
        # What a resized pod loses is seen.
        time.sleep(max(0, settle_s + 1 - all[-1]["seconds"]))
    return all, reached


def rolled_out(options, fleet, api, url, settle_s):
    """What the passes over a fleet came to."""
    before = sum(pod["request"] for pod in fleet.pods.values())
    all, reached = passes(options, fleet, api, url, settle_s)
    wrong = {pod["workload"] for pod in fleet.pods.values() if pod["is_wrong"]}
    return {
        "nodes": fleet.nodes, "pods": len(fleet.pods), "metrics_bytes_of_a_node": len(fleet.metrics(0)),
        "passes": len(all), "passes_until_resized": len(all) - 2, "writes": fleet.nr_writes,
        "writes_of_passes": [of["writes"] for of in all], "resizes": sum(of["resizes"] for of in all),
        "failed_resizes": sum(of["failed"] for of in all), "longest_pass_s": max(of["seconds"] for of in all),
        "cpu_s_of_a_pass": all[0]["cpu_s"], "writes_a_second": max(of["writes"] / of["seconds"] for of in all),
        "wrong_workloads": len(wrong), "pods_reached_by_wrong_sizes": len(reached),
        "short_pods_of_passes": [of["short"] for of in all],
        "requested_before": before, "requested_after": sum(pod["request"] for pod in fleet.pods.values()),
    }


def scraped(options):
    """A fleet before a real Prometheus."""
    fleet = Fleet(options.nodes, sizes(options.sizes))
    port = server(fleet)
    directory = Path(tempfile.mkdtemp(prefix="isotherm-fleet-"))
    process, url = prometheus(directory, options.nodes, port)
    try:
        end = time.monotonic() + 600
        while count(url, "isotherm_charged_bytes") < options.nodes * PODS:
            if time.monotonic() > end:
                raise SystemExit("prometheus has not all series after 600 s")
            time.sleep(2)
        # The time watched is asked for in steps of 36 s.
        time.sleep(75)
        result = rolled_out(options, fleet, port, url, 2 * SCRAPED_S)
        status = Path(f"/proc/{process.pid}/status").read_text()
        series = ask(url, "status/tsdb")["headStats"]["numSeries"]
        return {**result, "series": series, "prometheus_rss": 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])}
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def shard(options, nodes, first, recorded):
    """A part of the fleet, before a simulated Prometheus."""
    fleet = Fleet(nodes, recorded, first)
    port = server(fleet)
    result = rolled_out(options, fleet, port, f"http://127.0.0.1:{port}", settle_s=2)
    return {**result, "answer_bytes_max": fleet.answer_max}


def on_ray(options):
    """All shards, as tasks."""
    import ray

    ray.init(include_dashboard=False)
    task = lambda function: ray.remote(num_cpus=1, max_retries=0)(function).remote
    recorded = sizes(options.sizes)
    if options.traces:
        traces = sorted(Path(options.traces).glob("*.isotherm"))
        recorded = ray.get([task(size)(options.isotherm, trace.read_bytes()) for trace in traces])
    # A workload for each node.
    edges = [options.nodes * number // options.shards for number in range(options.shards + 1)]
    began = time.monotonic()
    all = ray.get([task(shard)(options, end - first, first, recorded) for first, end in zip(edges, edges[1:])])
    result = {"shards": len(all), "recorded": len(recorded), "seconds": time.monotonic() - began}
    for key, value in all[0].items():
        values = [of[key] for of in all]
        if isinstance(value, list):
            # As if the shards made each pass at the same time.
            result[key] = [sum(of) for of in itertools.zip_longest(*values, fillvalue=0)]
        else:
            is_of_one = key.startswith(("passes", "longest")) or key.endswith(("a_node", "a_pass", "a_second", "_max"))
            result[key] = max(values) if is_of_one else sum(values)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isotherm", default="isotherm")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--per-pass", type=int, default=10_000)
    parser.add_argument("--sizes")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--traces")
    parser.add_argument("--out", default="fleet.jsonl")
    options = parser.parse_args()
    result = on_ray(options) if options.ray else scraped(options)
    with open(options.out, "a") as out:
        print(json.dumps(result), file=out)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
