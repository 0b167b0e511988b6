"""A Kubernetes of one node: etcd, containerd, the API server and its controllers, a scheduler, a kubelet, a Prometheus.

All listen on loopback. Pods have the machine's network. What is set on the machine is noted in a file before it is set,
and undone by that note: at the end, and at the next start after a run that was killed. Only processes that were started
here, those below our containerd's shims, and those in the kubelet's control groups are ended.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from image import libraries, write_image

HERE = Path(__file__).parent
NODE = "isotherm-test"
NOTE = Path("/run/isotherm-test-cluster.json")
API, ETCD, PEERS, KUBELET, READ_ONLY, PROMETHEUS = 16443, 16379, 16380, 16250, 16255, 16090
# Ports of the manifests: the daemon's metrics, the proxies, the workload that serves.
OTHERS = [9464, 8001, 8002, 18080]
# The kubelet, the runtime and the API server's clients make these, and nothing else has them here.
FOLDERS = [
    "/var/lib/kubelet",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/opt/containerd",
    "/run/kubernetes",
]
# The kubelet sets these.
SETTINGS = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
]
POD_GROUP = "kubepods"
T = TypeVar("T")


def wait(what: str, holds: Callable[[], T], seconds: float = 60) -> T:
    """The first true answer of `holds`, which may fail until then."""
    end = time.monotonic() + seconds
    last = ""
    while True:
        try:
            if answer := holds():
                return answer
            last = repr(answer)
        except (OSError, AssertionError, KeyError, IndexError, ValueError, subprocess.SubprocessError) as error:
            last = f"{type(error).__name__}: {error}"
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}: {last[:600]}"
        time.sleep(0.5)


def flags(**values: object) -> list[str]:
    """Options of a program: `_` stands for a dash in a name, and two of them for a dot."""
    return [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in values.items()]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def address_of_machine() -> str:
    """The address from which this machine would send: a kubelet accepts none of loopback. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("198.51.100.1", 9))
        except OSError:
            return ""
        return str(unsent.getsockname()[0])


def hierarchies() -> list[Path]:
    """Where control groups are mounted, of both versions."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(of[1]) for of in mounts if of[2] in ("cgroup", "cgroup2")]


def is_unified() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def started_at(pid: int) -> str:
    """The start of a process, which tells it from a later one of the same number; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def hinders() -> str:
    """Why no cluster can be started here; empty if one can."""
    if NOTE.exists():
        owner = json.loads(NOTE.read_text())["owner"]
        if started_at(owner[0]) == owner[1]:
            return "another run of this test is under way"
        undo()
    if there := [folder for folder in FOLDERS if Path(folder).exists()]:
        return f"there is {there[0]}: is there a kubelet or a containerd already?"
    if there := [str(of) for of in hierarchies() if (of / POD_GROUP).exists()]:
        return f"there are pods' control groups in {there[0]}"
    ports = [API, ETCD, PEERS, KUBELET, READ_ONLY, PROMETHEUS, *OTHERS]
    if taken := [port for port in ports if listens(port)]:
        return f"port {taken[0]} is taken"
    if not address_of_machine():
        return "the machine has no address but those of loopback, which a kubelet does not accept"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlay file system"
    return ""


def processes_below(group: Path) -> set[int]:
    found: set[int] = set()
    for file in group.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in file.read_text().split()}
    return found


def shims(folder: str) -> set[int]:
    """The parents of containers, which containerd starts and does not end: they name its socket."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and f"{folder}/containerd.sock" in words:
                found.add(int(file.parent.name))
    return found


def end(pids: set[int], seconds: float, how: int) -> set[int]:
    """Ends processes and waits for them. Returns those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
    until = time.monotonic() + seconds
    while left := {pid for pid in pids if started_at(pid)}:
        for pid in left:
            # Those of this run are its children.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() >= until:
            break
        time.sleep(0.1)
    return left


def mounts_below(folders: Sequence[str]) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [of for of in mounts if any(of == folder or of.startswith(f"{folder}/") for folder in folders)]


def undo() -> list[str]:
    """Undoes what the note says. Returns what is left."""
    note = json.loads(NOTE.read_text())
    folder = note["folder"]
    # The kubelet, which would start containers again, is the last that was started.
    for pid, start in reversed(note["processes"]):
        if started_at(pid) == start and end({pid}, 5, signal.SIGTERM):
            end({pid}, 5, signal.SIGKILL)
    groups = [of / POD_GROUP for of in hierarchies()]
    for _ in range(50):
        pids = set().union(*[processes_below(group) for group in groups])
        end(pids, 2, signal.SIGKILL)
        end(shims(folder), 2, signal.SIGKILL)
        if not pids:
            break
    ours = [*FOLDERS, folder]
    for mount in reversed(mounts_below(ours)):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    # A process that was ended leaves its group a little later.
    for _ in range(50):
        for group in groups:
            for below in sorted(group.rglob("cgroup.procs"), key=lambda file: -len(file.parts)):
                with contextlib.suppress(OSError):
                    below.parent.rmdir()
        if not any(group.exists() for group in groups):
            break
        time.sleep(0.1)
    for name, value in note["settings"].items():
        Path("/proc/sys", name).write_text(value)
    if not mounts_below(ours):
        for made in ours:
            shutil.rmtree(made, ignore_errors=True)
    left = [f"mount {of}" for of in mounts_below(ours)]
    left += [f"control group {of}" for of in groups if of.exists()]
    left += [f"folder {of}" for of in ours if Path(of).exists()]
    left += [f"process {pid}" for pid, start in note["processes"] if started_at(pid) == start]
    left += [f"process {pid}" for pid in shims(folder)]
    left += [f"setting {of}" for of, value in note["settings"].items() if Path("/proc/sys", of).read_text() != value]
    NOTE.unlink()
    return left


class Cluster:
    """A cluster that was started; `kubectl` has all rights in it."""

    def __init__(self, programs: Path, isotherm: Path) -> None:
        self.programs, self.isotherm = programs, isotherm
        self.folder = Path(tempfile.mkdtemp(prefix="isotherm-cluster-"))
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "admin.json"),
        }
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        settings = {name: Path("/proc/sys", name).read_text() for name in SETTINGS}
        owner = [os.getpid(), started_at(os.getpid())]
        self.note: dict[str, Any] = {"owner": owner, "folder": str(self.folder), "settings": settings, "processes": []}
        self.write_note()

    def write_note(self) -> None:
        written = NOTE.with_suffix(".new")
        written.write_text(json.dumps(self.note))
        written.replace(NOTE)

    def start(self, name: str, *command: str | Path) -> None:
        """Starts a program, whose output goes to logs/NAME. It has a session of its own: Ctrl-C is not for it."""
        words = [str(word) for word in command]
        with (self.logs / name).open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.started[name], self.commands[name] = process, words
        self.note["processes"].append([process.pid, started_at(process.pid)])
        self.write_note()

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Ends a program, and waits for it."""
        process = self.started.pop(name)
        process.send_signal(how)
        process.wait(30)

    def start_again(self, name: str) -> None:
        self.start(name, *self.commands[name])

    def log_of(self, name: str, lines: int = 8) -> str:
        text = (self.logs / name).read_text(errors="replace").splitlines()
        return "\n".join(line[:400] for line in text[-lines:])

    def run(self, *command: str | Path, seconds: float = 60, checks: bool = True) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert not checks or done.returncode == 0, f"{' '.join(words[:6])} fails: {done.stderr.strip()[-600:]}"
        return done

    def kubectl(self, *words: str | Path, seconds: float = 60) -> str:
        return self.run(self.programs / "kubectl", *words, seconds=seconds).stdout

    def objects(self, *words: str) -> Any:
        """What `kubectl get` has to say."""
        return json.loads(self.kubectl("get", "-o", "json", *words))

    def pods(self, namespace: str, app: str = "") -> list[Any]:
        """The pods that are not about to end."""
        selector = [f"--selector=app={app}"] if app else []
        items = self.objects("pods", "--namespace", namespace, *selector)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(0o600)
        return path

    def access(self, name: str, token: str) -> Path:
        """Writes a file by which a program of Kubernetes asks the API server with this token."""
        cluster = {"server": f"https://127.0.0.1:{API}", "certificate-authority": str(self.folder / "ca.crt")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        return self.write(f"{name}.json", content)

    def up(self) -> None:
        """Starts all, until the node is ready."""
        self.certificates()
        self.control_plane()
        self.runtime()
        self.node()
        self.prometheus()

    def certificates(self) -> None:
        folder = self.folder
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        by_authority = ["-addext", names, "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key"]
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        for name, flags in {"ca": ["-subj", "/CN=test"], "api": ["-subj", "/CN=api", *by_authority]}.items():
            self.run(*made, "-days", "2", *flags, "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")
        self.run("openssl", "genrsa", "-out", folder / "accounts.key", "2048")

    def control_plane(self) -> None:
        folder, etcd, peers = self.folder, f"http://127.0.0.1:{ETCD}", f"http://127.0.0.1:{PEERS}"
        options = flags(
            name="test",
            data_dir=folder / "etcd",
            initial_cluster=f"test={peers}",
            listen_client_urls=etcd,
            advertise_client_urls=etcd,
            listen_peer_urls=peers,
            initial_advertise_peer_urls=peers,
        )
        self.start("etcd", "etcd", *options)
        users = {
            "admin": ("admin", "system:masters"),
            "controllers": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            "node": (f"system:node:{NODE}", "system:nodes"),
        }
        tokens = {name: os.urandom(16).hex() for name in users}
        lines = [f"{tokens[name]},{user},{name}{group and f',{group}'}" for name, (user, group) in users.items()]
        self.write("tokens.csv", "\n".join(lines) + "\n")
        for name, token in tokens.items():
            self.access(name, token)
        options = flags(
            etcd_servers=etcd,
            secure_port=API,
            bind_address="127.0.0.1",
            # No node forwards the service's address, and an endpoint on loopback would be refused.
            advertise_address="127.0.0.1",
            endpoint_reconciler_type="none",
            service_cluster_ip_range="10.0.0.0/24",
            allow_privileged="true",
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            anonymous_auth="false",
            token_auth_file=folder / "tokens.csv",
            tls_cert_file=folder / "api.crt",
            tls_private_key_file=folder / "api.key",
            cert_dir=folder / "certs",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=folder / "accounts.key",
            service_account_signing_key_file=folder / "accounts.key",
        )
        self.start("kube-apiserver", self.programs / "kube-apiserver", *options)
        wait("the API server", lambda: self.kubectl("get", "--raw=/readyz") == "ok", 120)
        options = flags(
            kubeconfig=folder / "controllers.json",
            leader_elect="false",
            secure_port=0,
            use_service_account_credentials="true",
            service_account_private_key_file=folder / "accounts.key",
            root_ca_file=folder / "ca.crt",
            cert_dir=folder / "certs",
            flex_volume_plugin_dir=folder / "plugins",
        )
        self.start("kube-controller-manager", self.programs / "kube-controller-manager", *options)
        options = flags(kubeconfig=folder / "scheduler.json", leader_elect="false", secure_port=0)
        self.start("kube-scheduler", self.programs / "kube-scheduler", *options)

    def runtime(self) -> None:
        folder = self.folder
        (folder / "cni").mkdir()
        # The kubelet waits for a network. No pod uses this one: all have the machine's.
        self.write("cni/10-none.conf", {"cniVersion": "0.3.1", "name": "none", "type": "loopback"})
        (folder / "cni/10-none.conf").chmod(0o644)
        config = f"""
            version = 2
            root = "{folder}/images"
            state = "{folder}/state"
            disabled_plugins = [
                "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
                "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
            ]
            [grpc]
            address = "{folder}/containerd.sock"
            [plugins."io.containerd.internal.v1.opt"]
            path = "{folder}/opt"
            [plugins."io.containerd.grpc.v1.cri"]
            sandbox_image = "localhost/isotherm-test/workload:1"
            # Without CAP_SYS_RESOURCE no score may be lower than our own.
            restrict_oom_score_adj = true
            [plugins."io.containerd.grpc.v1.cri".cni]
            bin_dir = "{folder}/cni"
            conf_dir = "{folder}/cni"
        """
        self.start("containerd", "containerd", "--config", self.write("containerd.toml", config))
        ctr = ["ctr", f"--address={folder}/containerd.sock", "--namespace=k8s.io"]
        wait("containerd", lambda: self.run(*ctr, "version"))
        workload = folder / "workload"
        self.run("gcc", "-static", "-O1", "-Wall", "-Wextra", "-o", workload, HERE / "workload.c")
        isotherm = folder / "isotherm"
        self.run("strip", "-o", isotherm, self.isotherm)
        images: dict[str, dict[str, Path]] = {
            "docker.io/library/isotherm:0.1.0": {"/isotherm": isotherm, **libraries(isotherm)},
            "localhost/isotherm-test/kubectl:1": {"/kubectl": self.programs / "kubectl"},
            "localhost/isotherm-test/workload:1": {"/workload": workload},
        }
        for name, files in images.items():
            archive = folder / "image.tar"
            write_image(archive, name, files, next(iter(files)))
            self.run(*ctr, "images", "import", archive, seconds=120)
            archive.unlink()
            assert name in self.run(*ctr, "images", "list", "--quiet").stdout.split(), name

    def node(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": KUBELET,
            "readOnlyPort": READ_ONLY,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            # Swap of others may be on; pods have none (docs/development/cluster.md).
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi"},
            # Images cannot be fetched again.
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "volumePluginDir": str(self.folder / "plugins"),
        }
        options = flags(
            config=self.write("kubelet-config.json", config),
            kubeconfig=self.folder / "node.json",
            hostname_override=NODE,
            node_ip=address_of_machine(),
            # By this it knows which container a control group is of.
            containerd=self.folder / "containerd.sock",
        )
        self.start("kubelet", self.programs / "kubelet", *options)
        wait("the node", self.is_ready, 120)

    def is_ready(self) -> bool:
        assert self.started["kubelet"].poll() is None, self.log_of("kubelet")
        conditions = self.objects("node", NODE)["status"]["conditions"]
        (ready,) = [of for of in conditions if of["type"] == "Ready"]
        assert ready["status"] == "True", ready["message"]
        return True

    def prometheus(self) -> None:
        kubelet = {
            "job_name": "kubelet",
            "metrics_path": "/metrics/cadvisor",
            # Its values are some seconds old; their own times would leave gaps.
            "honor_timestamps": False,
            "static_configs": [{"targets": [f"127.0.0.1:{READ_ONLY}"]}],
        }
        daemon = {
            "job_name": "isotherm",
            "honor_labels": True,
            "static_configs": [{"targets": ["127.0.0.1:9464"]}],
        }
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [daemon, kubelet]}
        options = flags(
            config__file=self.write("prometheus.json", config),
            storage__tsdb__path=self.folder / "tsdb",
            web__listen_address=f"127.0.0.1:{PROMETHEUS}",
        )
        self.start("prometheus", "prometheus", *options)

    def proxy(self, account: str, namespace: str, port: int, *flags: str) -> str:
        """Starts a `kubectl proxy` with an account's token. Returns its URL."""
        token = self.kubectl("create", "token", account, "--namespace", namespace, "--duration=1h").strip()
        access = self.access(f"of-{account}", token)
        asked = [f"--kubeconfig={access}", "proxy", "--address=127.0.0.1", f"--port={port}", *flags]
        self.start(f"proxy-{account}", self.programs / "kubectl", *asked)
        wait("the proxy", lambda: listens(port))
        return f"http://127.0.0.1:{port}"
