"""What Isotherm does in a real Kubernetes of one node: the DaemonSet, whose memory is cold, policies, sizes, failures.

Arguments: the folder of Kubernetes' programs, and the command `isotherm`.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

from cluster import API, HERE, NODE, NOTE, PROMETHEUS, Cluster, get, hinders, is_unified, undo, wait

METRICS = "http://127.0.0.1:9464/metrics"
MIB = 1 << 20
RECOMMENDER, STRANGER = 16001, 16002
# Control groups of version 1 do not say how long programs waited for memory. They count charges beyond the limit.
FAILED_CHARGES = 'max by (namespace, pod, container) (rate(container_memory_failcnt{container!=""}[1m]))'
tally = {"passed": 0, "failed": 0, "skipped": 0}


def skip(why: str) -> None:
    print(f"SKIP cluster: {why}", flush=True)
    tally["skipped"] += 1


def check(name: str, test: Callable[[], None]) -> bool:
    began = time.monotonic()
    try:
        test()
    except Exception as error:
        print(f"FAILED {name}\n{type(error).__name__}: {error}", flush=True)
        tally["failed"] += 1
        return False
    tally["passed"] += 1
    print(f"TOOK cluster::{name.replace(' ', '_')}: {time.monotonic() - began:.1f} s", flush=True)
    return True


def finish() -> int:
    print(f"{tally['passed']} passed, {tally['failed']} failed, {tally['skipped']} skipped", flush=True)
    return 1 if tally["failed"] else 0


def metrics(name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of a metric of the daemon: labels and value."""
    found = []
    for line in get(METRICS).splitlines():
        if matched := re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line):
            found.append((dict(re.findall(r'(\w+)="([^"]*)"', matched[1] or "")), float(matched[2])))
    return found


def containers() -> dict[str, tuple[str, str]]:
    """Namespace and workload's name of each control group of a container."""
    infos = [labels for labels, _ in metrics("isotherm_pod_info") if labels.get("container")]
    return {of["cgroup"]: (of["namespace"], of["pod"].rsplit("-", 2)[0]) for of in infos}


def by_workload(name: str, wanted: Callable[[dict[str, str]], bool]) -> dict[str, float]:
    """Sums of a metric by workload of the namespace shop."""
    sums: dict[str, float] = {}
    known = containers()
    for labels, value in metrics(name):
        namespace, workload = known.get(labels["cgroup"], ("", ""))
        if namespace == "shop" and wanted(labels):
            sums[workload] = sums.get(workload, 0) + value
    return sums


def mapped() -> dict[str, float]:
    return by_workload("isotherm_machine_mapped_bytes", lambda of: True)


def customers(end: Event) -> None:
    """Asks the workload that serves, until the end."""
    while not end.wait(0.2):
        try:
            get("http://127.0.0.1:18080/")
        except OSError:
            end.wait(1)


class Checks:
    """The checks, in their order. Each finds what the ones before it left."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = self.told = self.second = ""

    def all(self) -> None:
        """Runs all; if the workloads do not run, nothing else can."""
        end = Event()
        try:
            if not check("the DaemonSet and the workloads become ready", self.become_ready):
                return
            Thread(target=customers, args=[end], daemon=True).start()
            check("the overlay that acts is built by kustomize", self.overlay)
            check("the accounts may do what their proxies ask for, and no more", self.rights)
            check("the metrics name containers of real pods", self.names)
            check("the workload that keeps idle memory is the coldest", self.coldest)
            check("needs are told, of pods without swap", self.needed)
            check("an annotation sets a policy, and a later one another", self.policies)
            check("a pod that permits resizes keeps its policy", self.resizable_policy)
            check("without rights the API server's reason is shown", self.denied)
            check("workloads are listed with what they need", self.listed)
            check("the recommender in the cluster writes a VerticalPodAutoscaler's status", self.vpa)
            if check("one pod is resized in place, and the next after it", self.resized):
                check("a killed container leads to a roll-back", self.rolled_back)
            check("a drained node keeps the daemon, which forgets the pods", self.drained)
            # The last, as clients of the API server may take a minute until they watch it again.
            if check("the API server is away for a minute", self.away):
                check("the proxy's reason is shown", self.reason)
        finally:
            end.set()

    def become_ready(self) -> None:
        cluster, manifests = self.cluster, HERE / "manifests"
        cluster.kubectl("apply", "-k", manifests / "daemonset")
        cluster.kubectl("apply", "-f", manifests / "workloads.yaml")
        cluster.kubectl("apply", "-f", manifests / "vpa-kind.yaml")
        cluster.kubectl("apply", "-f", manifests / "denied.yaml")
        cluster.kubectl("apply", "-k", manifests / "recommend")
        self.are_running()
        cluster.kubectl("apply", "-f", manifests / "vpa.yaml")
        wait("the metrics", lambda: metrics("isotherm_build_info"))

    def are_running(self) -> None:
        ours = ["isotherm daemonset/isotherm", "isotherm deployment/isotherm-recommend"]
        for workload in ["shop deployment/archive", "shop deployment/engine", "shop deployment/site", *ours]:
            namespace, name = workload.split()
            words = ["rollout", "status", name, f"--namespace={namespace}", "--timeout=90s"]
            self.cluster.kubectl(*words, seconds=100)

    def overlay(self) -> None:
        built = self.cluster.kubectl("kustomize", HERE.parents[1] / "contrib/kubernetes/acting")
        plain = self.cluster.kubectl("kustomize", HERE.parents[1] / "contrib/kubernetes")
        assert [line for line in plain.splitlines() if line.strip() != "- --dry-run"] == built.splitlines()

    def rights(self) -> None:
        daemon = {
            "list pods": True,
            "create tokenreviews.authentication.k8s.io": True,
            "create subjectaccessreviews.authorization.k8s.io": True,
        }
        recommender = {
            "list pods": True,
            "patch pods --subresource=resize": True,
            "list verticalpodautoscalers.autoscaling.k8s.io": True,
            "patch verticalpodautoscalers.autoscaling.k8s.io --subresource=status": True,
        }
        neither = [
            "get secrets",
            "create pods",
            "delete pods",
            "update pods",
            "create pods --subresource=exec",
            "get nodes",
        ]
        for account, may in {"isotherm": daemon, "isotherm-recommend": recommender}.items():
            for asked, wanted in {**may, **dict.fromkeys(neither, False)}.items():
                flags = [f"--as=system:serviceaccount:isotherm:{account}", "--all-namespaces"]
                done = self.cluster.run(
                    self.cluster.programs / "kubectl", "auth", "can-i", *asked.split(), *flags, checks=False
                )
                assert done.stdout.strip() == ("yes" if wanted else "no"), (account, asked, done.stdout, done.stderr)

    def names(self) -> None:
        def all_are_named() -> bool:
            pods = {pod["metadata"]["name"] for pod in self.cluster.pods("shop")}
            infos = [labels for labels, _ in metrics("isotherm_pod_info")]
            named = {of["pod"] for of in infos if of["namespace"] == "shop" and of["container"] == "main"}
            assert len(pods) == 4 and named == pods, (pods, named)
            return True

        # On a busy machine the daemon looks less often: it has 1 % of a CPU.
        wait("all pods of shop", all_are_named, 180)

    def coldest(self) -> None:
        def is_cold() -> bool:
            cold = by_workload(
                "isotherm_machine_mapped_bytes", lambda of: of["age"] in ("30s-2m", "2m-10m", "10m-1h", "1h-")
            )
            assert cold.get("archive", 0) >= 240 * MIB and max(cold, key=lambda of: cold[of]) == "archive", cold
            assert cold.get("engine", 0) < 20 * MIB, cold
            return True

        wait("256 MiB of cold memory", is_cold, 240)

    def needed(self) -> None:
        """The kubelet gives pods no swap, even if the machine has some. So idle memory is needed as well."""

        def are_right() -> bool:
            needed = by_workload("isotherm_needed_bytes", lambda of: of["bound"] == "estimate")
            assert 250 * MIB <= needed["archive"] < 300 * MIB, needed
            assert needed["engine"] >= 2 * 60 * MIB, needed
            return True

        wait("the needs", are_right, 180)

    def policy(self, app: str) -> set[str]:
        pods = {pod["metadata"]["name"] for pod in self.cluster.pods("shop", app)}
        return {of["policy"] for of, _ in metrics("isotherm_pod_policy") if of["pod"] in pods}

    def has_policy(self, app: str, policy: str) -> None:
        wait(f"the policy {policy} of {app}", lambda: self.policy(app) == {policy}, 30)

    def policies(self) -> None:
        self.has_policy("archive", "reclaim")
        self.has_policy("site", "report")
        (archive,) = self.cluster.pods("shop", "archive")
        for annotation, policy in [("report", "report"), ("perhaps", "invalid"), ("reclaim", "reclaim")]:
            words = ["annotate", "--overwrite", "--namespace=shop", "pod", archive["metadata"]["name"]]
            self.cluster.kubectl(*words, f"isotherm.io/policy={annotation}")
            self.has_policy("archive", policy)

    def resizable_policy(self) -> None:
        self.has_policy("engine", "reclaim")

    def recommend(self, *flags: str, api: str = "", fails: bool = False) -> Any:
        """A pass: its result, or what it says as it fails."""
        # The time that a container was watched is known to a hundredth of the time that counts.
        words = [f"--prometheus=http://127.0.0.1:{PROMETHEUS}", f"--api={api or self.api}", "--over=10min"]
        words = ["recommend", *words, "--min-watched=1s", "--json", *flags]
        done = self.cluster.run(self.cluster.isotherm, *words, checks=not fails)
        if fails:
            assert done.returncode == 2, (done.returncode, done.stdout)
            return done.stderr
        return json.loads(done.stdout)

    def denied(self) -> None:
        api = self.cluster.proxy("stranger", "shop", STRANGER)
        told = self.recommend(api=api, fails=True)
        reason = 'pods is forbidden: User "system:serviceaccount:shop:stranger" cannot list resource "pods"'
        assert "403 Forbidden" in told and reason in told, told
        print(told.strip())

    def listed(self) -> None:
        """By the account, the rights and the proxy's allowed paths of contrib."""
        deployment = self.cluster.objects("deployment", "isotherm-recommend", "--namespace=isotherm")
        (proxy,) = [of for of in deployment["spec"]["template"]["spec"]["containers"] if of["name"] == "api"]
        flags = [flag for flag in proxy["args"] if flag.startswith(("--accept-paths", "--reject-methods"))]
        assert len(flags) == 2, proxy
        self.api = self.cluster.proxy("isotherm-recommend", "isotherm", RECOMMENDER, *flags)

        def has_all() -> bool:
            found = {of["workload"]: of for of in self.recommend()["containers"] if of["namespace"] == "shop"}
            assert set(found) == {f"Deployment/{name}" for name in ["archive", "engine", "site"]}, found
            assert found["Deployment/engine"]["nr_pods"] == 2, found
            assert found["Deployment/archive"]["request_bytes"] == 512 * MIB, found
            return True

        wait("all workloads", has_all, 120)
        words = [f"--prometheus=http://127.0.0.1:{PROMETHEUS}", f"--api={self.api}"]
        print(self.cluster.run(self.cluster.isotherm, "recommend", *words).stdout.strip())

    def vpa(self) -> None:
        """By the recommender in the cluster."""

        def status() -> Any:
            return self.cluster.objects("verticalpodautoscaler", "archive", "--namespace=shop")["status"]

        found = wait("a recommendation", status, 120)
        (container,) = found["recommendation"]["containerRecommendations"]
        assert container["containerName"] == "main", container
        assert all(
            re.fullmatch("[0-9]+(Mi)?", container[of]["memory"]) for of in ["lowerBound", "target", "upperBound"]
        )
        assert found["conditions"][0]["type"] == "RecommendationProvided", found
        (update,) = self.recommend()["vpas"]
        assert update["outcome"] in ("unchanged", "planned"), update

    def away(self) -> None:
        def one(name: str) -> float:
            ((_, value),) = metrics(name)
            return value

        wait("the archive", lambda: mapped().get("archive", 0) >= 240 * MIB, 120)
        self.has_policy("archive", "reclaim")
        before = {pod["metadata"]["name"]: pod["status"]["containerStatuses"] for pod in self.cluster.pods("isotherm")}
        self.cluster.stop("kube-apiserver", signal.SIGKILL)
        end = time.monotonic() + 60
        try:
            wait("the daemon to notice", lambda: one("isotherm_pod_policy_up") == 0, 40)
            self.told = self.recommend(fails=True)
            print(self.told.strip())
            while time.monotonic() < end:
                assert mapped().get("archive", 0) >= 240 * MIB
                time.sleep(2)
            assert one("isotherm_pod_policy_age_seconds") >= 40
            # What was known still holds.
            labels = [of for of, _ in metrics("isotherm_pod_policy") if of["pod"].startswith("archive-")]
            assert [of["policy"] for of in labels] == ["reclaim"], labels
        finally:
            self.cluster.start_again("kube-apiserver")
        wait("the API server", lambda: self.cluster.kubectl("get", "--raw=/readyz") == "ok", 90)
        wait("the daemon to reach it", lambda: one("isotherm_pod_policy_up") == 1, 60)
        # The kubelet waits longer before each next try.
        wait("the node", self.cluster.is_ready, 180)
        after = {pod["metadata"]["name"]: pod["status"]["containerStatuses"] for pod in self.cluster.pods("isotherm")}
        restarts = [[of["restartCount"] for of in all_of.values() for of in of] for all_of in (before, after)]
        assert before.keys() == after.keys() and restarts[0] == restarts[1], (restarts, list(before), list(after))

    def reason(self) -> None:
        """The proxy says in plain text what it could not reach."""
        assert f"127.0.0.1:{API}" in self.told, self.told

    def groups(self, app: str) -> dict[str, Path]:
        """The control groups of the containers of an app, by pod."""
        found = {}
        root = Path("/sys/fs/cgroup") if is_unified() else Path("/sys/fs/cgroup/memory")
        for pod in self.cluster.pods("shop", app):
            (status,) = pod["status"]["containerStatuses"]
            uid, container = pod["metadata"]["uid"], status["containerID"].removeprefix("containerd://")
            (group,) = root.glob(f"kubepods/*/pod{uid}/{container}")
            found[pod["metadata"]["name"]] = group
        return found

    def limits(self, app: str) -> dict[str, int]:
        """The limits that the kernel has of an app's containers, in bytes."""
        file = "memory.max" if is_unified() else "memory.limit_in_bytes"
        return {pod: int((group / file).read_text()) for pod, group in self.groups(app).items()}

    def resize(self) -> Any:
        loss = [] if is_unified() else [f"--loss={FAILED_CHARGES}"]
        flags = ["--write=resize", "--settle=60s", *loss]
        report = self.recommend(*flags)
        for of in report["resizes"]:
            assert of["outcome"] == "done", of
        return report

    def resized(self) -> None:
        assert set(self.limits("engine").values()) == {512 * MIB}

        def resizes(kind: str) -> str:
            report = self.resize()
            kinds = [(of["kind"], of["workload"]) for of in report["resizes"]]
            assert kinds == [(kind, "Deployment/engine")], (kinds, report["held"])
            return str(report["resizes"][0]["pod"])

        first = wait("a first pod", lambda: resizes("canary"), 120)
        wait("its limit", lambda: self.limits("engine")[first] < 128 * MIB, 60)
        limits = self.limits("engine")
        assert sorted(limits.values())[1] == 512 * MIB, limits
        print(f"the limit of {first} is {limits[first] // MIB} MiB, the other's {max(limits.values()) // MIB} MiB")
        wait("a hold", lambda: "are watched for" in str(self.resize()["held"]), 30)
        self.second = wait("the next pod", lambda: resizes("next"), 120)
        assert first != self.second
        wait("its limit", lambda: max(self.limits("engine").values()) < 128 * MIB, 30)
        # The node did it without a restart.
        counts = [
            of["restartCount"]
            for pod in self.cluster.pods("shop", "engine")
            for of in pod["status"]["containerStatuses"]
        ]
        assert counts == [0, 0], counts

    def rolled_back(self) -> None:
        """A restart is put down to the resize as long as the pod is watched for that."""
        killed = self.second
        for pid in (self.groups("engine")[killed] / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)

        def has_restarted() -> bool:
            (pod,) = [pod for pod in self.cluster.pods("shop", "engine") if pod["metadata"]["name"] == killed]
            (status,) = pod["status"]["containerStatuses"]
            return bool(status["restartCount"] == 1 and status["ready"])

        wait("the restart", has_restarted, 60)
        report = self.resize()
        kinds = [of["kind"] for of in report["resizes"]]
        assert kinds == ["roll_back", "roll_back"], report
        wait("the limits from before", lambda: set(self.limits("engine").values()) == {512 * MIB}, 60)
        annotations = [pod["metadata"]["annotations"] for pod in self.cluster.pods("shop", "engine")]
        assert all("isotherm.io/resized" not in of and "isotherm.io/resize-failed" in of for of in annotations), (
            annotations
        )
        held = self.resize()["held"]
        assert "was resized back" in str(held), held

    def daemon_pods(self) -> list[Any]:
        pods = self.cluster.pods("isotherm")
        return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"]

    def drained(self) -> None:
        (daemon,) = self.daemon_pods()
        words = ["drain", NODE, "--delete-emptydir-data", "--timeout=90s"]
        refused = self.cluster.run(self.cluster.programs / "kubectl", *words, checks=False)
        assert refused.returncode != 0 and "DaemonSet-managed" in refused.stderr, refused.stderr
        self.cluster.kubectl(*words, "--ignore-daemonsets", seconds=100)
        phases = {pod["status"]["phase"] for pod in self.cluster.pods("shop")}
        assert phases == {"Pending"}, f"phases: {phases}"
        (still,) = self.daemon_pods()
        assert still["metadata"]["uid"] == daemon["metadata"]["uid"]
        assert all(of["ready"] for of in still["status"]["containerStatuses"])
        wait("the daemon to forget them", lambda: not mapped(), 60)
        self.cluster.kubectl("uncordon", NODE)
        self.are_running()
        self.names()


def main() -> int:
    programs, isotherm = (Path(word) for word in sys.argv[1:])
    if why := hinders():
        skip(why)
        return finish()
    for sent in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sent, lambda *_: sys.exit(1))
    cluster = Cluster(programs, isotherm)
    try:
        print(f"logs: {cluster.logs}", flush=True)
        if check("the cluster starts", cluster.up):
            skip("kube-rbac-proxy, the sidecar that checks who may read metrics: its image cannot be fetched here")
            skip("swap of pods, and so paging out: LimitedSwap wants control groups of version 2, and swap")
            if not is_unified():
                skip("the default query of the loss: version 1 has no pressure metrics; failed charges stand in for it")
            Checks(cluster).all()
        if tally["failed"]:
            for log in sorted(cluster.logs.iterdir()):
                print(f"--- {log.name}\n{cluster.log_of(log.name)}")
            if kept := os.environ.get("ISOTHERM_CLUSTER_LOGS"):
                cluster.run("cp", "-r", cluster.logs, kept)
    except KeyboardInterrupt:
        print("interrupted")
        tally["failed"] += 1
    finally:
        # A second Ctrl-C must not leave half of it.
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sent, signal.SIG_IGN)
        left = undo()
    check("nothing is left on the machine", lambda: nothing(left))
    return finish()


def nothing(left: list[str]) -> None:
    assert not left and not NOTE.exists(), left


if __name__ == "__main__":
    sys.exit(main())
