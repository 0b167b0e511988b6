"""Receives what a daemon sends by OTLP, and compares it with its scrape. Then takes only a part, and is down for a time."""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from queries import get, wait

received: list[Any] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/metrics", self.path
        assert self.headers["Content-Type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        received.append(ExportMetricsServiceRequest.FromString(body))
        answer = ExportMetricsServiceResponse()
        if len(received) == 3:
            answer.partial_success.rejected_data_points = 5
            answer.partial_success.error_message = "too many series"
        self.send_response(503 if len(received) == 4 else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(answer.SerializeToString())

    def log_message(self, *_: Any) -> None:
        pass


def sent(request: Any) -> set[str]:
    """Series, each as its scrape has it."""
    (of_machine,) = request.resource_metrics
    resource = {of.key: of.value.string_value for of in of_machine.resource.attributes}
    assert resource["service.name"] == "isotherm" and resource["host.name"], resource
    found = set()
    for metric in of_machine.scope_metrics[0].metrics:
        assert metric.description, metric.name
        assert metric.unit == "By" or not metric.name.endswith("_bytes"), metric.name
        is_sum = metric.HasField("sum")
        points = metric.sum.data_points if is_sum else metric.gauge.data_points
        for point in points:
            assert point.time_unix_nano > point.start_time_unix_nano >= is_sum
            labels = ",".join(f"{of.key}={json.dumps(of.value.string_value)}" for of in point.attributes)
            found.add(metric.name + ("_total" if is_sum else "") + (f"{{{labels}}}" if labels else ""))
    return found


def scraped(text: str) -> set[str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {re.sub(r" [^ ]+$", "", line) for line in lines}


def main(port: str, metrics: str, log: str) -> None:
    server = HTTPServer(("127.0.0.1", int(port)), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait("six requests", lambda: len(received) >= 6)
    both = sent(received[-1]), scraped(get(metrics))
    # Groups and processes come and go between the two.
    differ = {name for name in both[0] ^ both[1] if not re.search("cgroup|target|pid=", name)}
    assert not differ and len(both[0] & both[1]) > 100, (differ, len(both[0]))

    def logged(text: str) -> bool:
        with open(log, encoding="utf-8") as file:
            return text in file.read()

    for text in ("5 values were not taken: too many series", "503", "takes metrics again"):
        wait(text, lambda text=text: logged(text))
    server.shutdown()


main(*sys.argv[1:])
