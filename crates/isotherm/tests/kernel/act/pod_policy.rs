//! Pods that permit actions on their memory: by annotations, which an API server returns.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::{
    MIB, PATIENCE, Running, acting_on_all, daemon_status, free_address, http_get, isotherm, pause,
    proc_bytes, python, run, scratch, skip, until, until_so,
};
use crate::swap::Swap;
use crate::watch::groups::{Group, hierarchies};

/// A scheme like prcl, but with a shorter age.
const SCHEME: &str = "4K max 0 0 2s max pageout";

/// Holds 96 MiB that it touches only when a signal arrives.
const IDLE: &str = "import os, signal, time\n\
    for path in os.environ['PROCS'].split(':'): open(path, 'w').write(str(os.getpid()))\n\
    memory = bytearray(os.urandom(1 << 20)) * 96\n\
    def touch(*_): print('touched', sum(memory[::4096]), flush=True)\n\
    signal.signal(signal.SIGUSR1, touch)\n\
    print('ready', flush=True)\n\
    while True: time.sleep(60)";

/// A pod as a kubelet makes it: control groups with its uid, and a process in them.
struct Pod {
    uid: String,
    process: Running,
    _groups: Vec<Group>,
}

impl Pod {
    fn start(nr: u32) -> Option<Self> {
        let uid = format!("{:08x}-1111-2222-3333-44445555666{nr}", std::process::id());
        let name = format!("isotherm-test-pod{}.slice", uid.replace('-', "_"));
        let hierarchies = hierarchies();
        let groups: Vec<Group> = { hierarchies.iter() }
            .map(|hierarchy| hierarchy.join(&name).join("cri-containerd-0123.scope"))
            .filter(|directory| fs::create_dir_all(directory).is_ok())
            // The inner one is removed first.
            .flat_map(|inner| [inner.clone(), inner.parent().expect("a pod").to_owned()])
            .map(|directory| Group { directory })
            .collect();
        let inner: Vec<String> = { groups.iter().step_by(2) }
            .map(|group| group.procs().display().to_string())
            .collect();
        if inner.is_empty() {
            return None;
        }
        let process = Running::ready(python(IDLE).env("PROCS", inner.join(":")));
        Some(Self {
            uid,
            process,
            _groups: groups,
        })
    }

    fn swapped(&self) -> u64 {
        proc_bytes(self.process.pid(), "status", "VmSwap:")
    }

    fn reported(&self, name: &str, annotations: &Value) -> Value {
        json!({"metadata": {"uid": self.uid, "namespace": "shop", "name": name, "annotations": annotations}})
    }
}

/// An API server, or the part of it that a proxy permits.
struct ApiServer {
    address: SocketAddr,
    /// Status and body of its answers.
    answer: Arc<Mutex<(u16, String)>>,
}

impl ApiServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let answer = Arc::new(Mutex::new((503, String::new())));
        let answers = Arc::clone(&answer);
        // It serves until this process ends.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                Self::serve(stream, &answers);
            }
        });
        Self { address, answer }
    }

    fn serve(mut stream: TcpStream, answer: &Mutex<(u16, String)>) {
        let timeout = Some(Duration::from_secs(2));
        stream.set_read_timeout(timeout).expect("possible");
        let mut asked = [0; 4096];
        let n = stream.read(&mut asked).unwrap_or(0);
        let asked = String::from_utf8_lossy(&asked[..n]);
        let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, body) = if asked.contains("fieldSelector=spec.nodeName%3Dnode-1&") {
            answer.clone()
        } else {
            (400, asked.into_owned())
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).ok();
    }

    fn say(&self, status: u16, pods: &[Value]) {
        let list = json!({"kind": "PartialObjectMetadataList", "items": pods}).to_string();
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = (status, list);
    }
}

/// A daemon on this machine that acts by pods' permissions.
struct Daemon {
    process: Running,
    directory: tempfile::TempDir,
    metrics: String,
}

impl Daemon {
    fn start(server: &ApiServer) -> Self {
        let directory = scratch();
        let metrics = free_address();
        let url = format!("http://{}", server.address);
        let mut command = isotherm(["start", "--all", "--cpu-budget", "5%", "--scheme", SCHEME]);
        command.args(["--pod-policy", &url, "--node-name", "node-1"]);
        command.args(["--pod-policy-every", "1s", "--metrics", &metrics]);
        command.arg("--socket").arg(directory.path().join("socket"));
        Self {
            process: Running::start(&mut command),
            directory,
            metrics,
        }
    }

    fn status(&mut self) -> Option<Value> {
        assert!(self.process.is_running(), "{}", self.process.stderr());
        daemon_status(&self.directory.path().join("socket"))
    }

    /// Returns the bytes that it reports as paged out.
    fn applied(&mut self) -> u64 {
        let status = self.status().expect("an answer");
        let applied = &status["contexts"][0]["schemes"][0]["stats"]["sz_applied"];
        applied.as_u64().expect("a number")
    }

    /// Returns whether another Isotherm claimed the pod's process first.
    fn leaves_to_another(&self, pod: &Pod) -> bool {
        let of = format!("not acted on: process {} ", pod.process.pid());
        self.process.stderr().contains(&of)
    }

    /// Returns its status and log, for messages of failures.
    fn account(&mut self) -> String {
        let status = self.status().unwrap_or_default();
        let of = &status["contexts"][0]["schemes"][0]["stats"];
        format!("{of}; {}; {}", status["pod_policy"], self.process.stderr())
    }

    /// Waits until `is_so` of its status of pods.
    fn until_it_knows(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let status = self.status()?;
            is_so(&status["pod_policy"]).then_some(status)
        })
    }

    fn metrics(&self) -> String {
        http_get(&self.metrics, "/metrics").expect("an answer")
    }
}

/// One of three pods with idle memory permits paging out, one has a misspelt annotation, and one is unknown.
#[test]
fn only_a_pod_that_permits_it_is_paged_out() {
    let Some(_turn) = acting_on_all() else { return };
    let Some(_swap) = Swap::set_up() else { return };
    let (Some(willing), Some(misspelt), Some(unknown)) =
        (Pod::start(1), Pod::start(2), Pod::start(3))
    else {
        return skip("no control group can be made here");
    };
    let server = ApiServer::start();
    let mut daemon = Daemon::start(&server);
    let none = |of: &Value| of["error"].is_string() && of["answered_at"].is_null();
    daemon.until_it_knows("that nobody answers", none);
    // The pause makes memory idle for 2 s.
    pause(5.0);
    if daemon.leaves_to_another(&willing) {
        return skip("another isotherm acts on all of this machine");
    }
    // The daemon's own count is checked first: other actors on this machine would page these out as well.
    assert_eq!(daemon.applied(), 0, "nothing was known");
    assert_eq!(willing.swapped(), 0, "{}", daemon.account());
    let reclaim = json!({"isotherm.io/policy": "reclaim", "isotherm.io/min-age": "4s"});
    let wrong = json!({"isotherm.io/policy": "Reclaim"});
    let misspelt_told = misspelt.reported("search", &wrong);
    let permits = willing.reported("cart", &reclaim);
    server.say(200, &[permits, misspelt_told.clone()]);
    let begun = Instant::now();
    while willing.swapped() <= 64 * MIB {
        assert!(begun.elapsed() < PATIENCE, "{}", daemon.account());
        pause(0.1);
    }
    let status = daemon.until_it_knows("an answer", |of| of["error"].is_null());
    let others = (misspelt.swapped(), unknown.swapped());
    assert_eq!(others, (0, 0), "{}", daemon.account());
    let nr_pods = &status["pod_policy"]["nr_pods"];
    assert_eq!(*nr_pods, json!({"reclaim": 1, "invalid": 1}));
    let metrics = daemon.metrics();
    assert!(metrics.contains("isotherm_pod_policy_up 1\n"), "{metrics}");
    let pods = [&willing, &misspelt, &unknown];
    for (pod, says) in pods.into_iter().zip(["reclaim", "invalid", "unknown"]) {
        let label = format!("uid=\"{}\",policy=\"{says}\"}} 1", pod.uid);
        assert!(metrics.contains(&label), "{label} is not in {metrics}");
    }
    // The pod withdraws its permission, and uses its memory: from then on that stays.
    server.say(200, &[willing.reported("cart", &json!({})), misspelt_told]);
    daemon.until_it_knows("nobody", |of| of["nr_pods"]["reclaim"].is_null());
    willing.process.signal(Signal::SIGUSR1);
    until_so("its memory to be back", || {
        willing.process.stdout().contains("touched")
    });
    assert!(willing.swapped() < 8 * MIB, "{}", willing.swapped());
    let applied = daemon.applied();
    assert!(applied > 64 * MIB, "{}", daemon.account());
    // Its memory would be idle for 4 s again.
    pause(8.0);
    assert_eq!(daemon.applied(), applied, "{}", daemon.account());
    for pod in pods {
        assert!(pod.swapped() < 8 * MIB, "{}", daemon.account());
    }
    // A server that stops answering is reported once, and so is the fault of a pod.
    server.say(403, &[]);
    daemon.until_it_knows("an error", |of| of["error"].is_string());
    assert!(daemon.metrics().contains("isotherm_pod_policy_up 0\n"));
    let said = daemon.process.stderr();
    // A port may hold the digits of a status.
    for once in ["pod shop/search is left alone", " says 403: "] {
        assert_eq!(said.matches(once).count(), 1, "{said}");
    }
}

#[test]
fn what_does_not_go_with_pods_is_refused() {
    let url = "http://127.0.0.1:1";
    let check = |flags: &[&str], wanted: &str| {
        run(isotherm(["start", "--socket", "/nowhere/s"]).args(flags)).refused(wanted);
    };
    let of = ["--pod-policy", url, "--node-name", "n"];
    let with = |more: &[&'static str]| [&of[..], more].concat();
    check(&with(&["--pid", "1", "--preset", "prcl"]), "--all");
    check(&with(&["--all", "--preset", "ethp"]), "idle memory");
    let all = "4K max min max min max pageout";
    check(&with(&["--all", "--scheme", all]), "idle memory");
    let unnamed = ["--pod-policy", url, "--all", "--preset", "prcl"];
    check(&unnamed, "--node-name");
    let away = ["--all", "--pod-policy", "http://10.1.1.1:1"];
    check(&[&away[..], &["--node-name", "n"]].concat(), "loopback");
}
