"""Asks a Prometheus that scrapes a daemon everything that the dashboard and the rules ask, and whether it has an answer."""

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "contrib"
# Metrics that a dry run of half a minute need not have: refusals, swapped memory, the guard.
MAY_BE_EMPTY = re.compile(
    "refused|limit_ratio|backoff|target_swap|page_cache|guard|induced|scheme_applied|== 0|isotherm_target|cpu_budget|1h-"
)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def asked(prometheus: str, query: str) -> list[Any]:
    answer = json.loads(get(f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}"))
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


def wait(what: str, holds: Any) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if holds():
                return
        except OSError:
            pass
        assert time.monotonic() < end, f"not within a minute: {what}"
        time.sleep(1)


def expressions(dashboard: Any) -> list[tuple[str, str]]:
    """Titles and queries of all panels, with the variables filled in as Grafana does for `All`."""
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$instance", ".*").replace("$cgroup", ".*")
            assert "$" not in query, query
            found.append((panel["title"], query))
    return found


def structure(dashboard: Any) -> None:
    """What Grafana wants of it: numbers that are panels' own, and no panel over another."""
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]


def main() -> None:
    prometheus, metrics = sys.argv[1:]
    dashboard = json.loads((ROOT / "grafana/isotherm.json").read_text())
    structure(dashboard)
    queries = expressions(dashboard)
    rules = (ROOT / "prometheus/isotherm.rules.yaml").read_text()
    wait("the daemon's metrics", lambda: "isotherm_machine_mapped_bytes{" in get(metrics))
    told = set(re.findall(r"^# TYPE (\S+) ", get(metrics), re.MULTILINE))
    sources = ["metrics.rs", "metrics/pods.rs"]
    code = "".join((ROOT.parent / "crates/session/src/protocol" / name).read_text() for name in sources)
    for name in set(re.findall(r"\bisotherm_[a-z_]+", rules + str(queries))):
        family = re.sub("_(total|info)$", "", name)
        assert family in told or f'"{family}"' in code, f"nobody tells {name}"
    wait("two scrapes", lambda: asked(prometheus, "count_over_time(isotherm_build_info[1m]) >= 6"))
    empty = []
    for title, query in queries:
        if not asked(prometheus, query) and not MAY_BE_EMPTY.search(query):
            empty.append((title, query))
    assert not empty, empty
    by_pod = (
        "sum by (namespace, pod) (isotherm_machine_mapped_bytes"
        " * on (instance, cgroup) group_left (namespace, pod) isotherm_pod_info)"
    )
    wait("the pod's memory", lambda: any(float(of["value"][1]) > 48 << 20 for of in asked(prometheus, by_pod)))
    pods = [(of["metric"]["namespace"], of["metric"]["pod"]) for of in asked(prometheus, by_pod)]
    assert pods == [("shop", "cart-7d9f")], pods
    for name in ["isotherm:cold_share:by_cgroup", "isotherm:monitor_cpu:share", "isotherm:request_bytes:by_container"]:
        assert asked(prometheus, name), name
    # Where there is no swap, it needs nearly all of it.
    need = (
        'isotherm_needed_bytes{bound="estimate"} <= on (instance, cgroup) isotherm_charged_bytes'
        ' and on (instance, cgroup) isotherm_pod_info{container="web"}'
    )
    wait("the need of the pod's container", lambda: asked(prometheus, need))
    state = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    for rule in state[0]["rules"]:
        assert rule["health"] == "ok", rule
    print(f"{len(queries)} queries of the dashboard, {len(state[0]['rules'])} rules")


if __name__ == "__main__":
    main()
