//! The daemon: its permitted users, its answers and actions, and its remains after a kill.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{
    Finished, Running, Workload, free_address, http_get, isotherm, paced_workload, run, scratch,
    shared, skip, until_so,
};

/// A daemon, its target, and its files.
struct Daemon {
    process: Running,
    workload: Workload,
    directory: TempDir,
}

/// Returns a directory that every user may enter: only the socket refuses them.
fn open_scratch() -> TempDir {
    let directory = scratch();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    directory
}

impl Daemon {
    /// Starts a daemon with the schemes of a line, and returns when it answers.
    fn start(line: &str, flags: &[&str]) -> Self {
        let (directory, workload) = (open_scratch(), Workload::start(&paced_workload(64, 4), &[]));
        fs::write(directory.path().join("schemes.damos"), line).expect("a file");
        let mut daemon = Self {
            process: Self::spawn(&directory, workload.pid(), flags),
            workload,
            directory,
        };
        daemon.until_it_answers();
        daemon
    }

    fn spawn(directory: &TempDir, pid: u32, flags: &[&str]) -> Running {
        let mut command = isotherm(["start", "--pid", &pid.to_string(), "--socket"]);
        command.arg(directory.path().join("socket")).arg("-c");
        command.arg(directory.path().join("schemes.damos"));
        Running::start(command.args(flags))
    }

    fn until_it_answers(&mut self) {
        until_so("the daemon's answer", || {
            assert!(self.process.is_running(), "it ended");
            self.say("status", &[]).status.success()
        });
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn say(&self, what: &str, flags: &[&str]) -> Finished {
        let mut command = isotherm([what, "--socket"]);
        run(command.arg(self.socket()).args(flags))
    }

    fn status(&self) -> Value {
        self.say("status", &["--json"]).success().json()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    fn scheme(&self) -> Value {
        self.status()["contexts"][0]["schemes"][0].clone()
    }

    fn until_action(&self, action: &str) {
        until_so(action, || self.scheme()["action"] == action);
    }
}

const IDLE: &str = "4K max 0 0 1s max pageout";

#[test]
fn it_says_what_is_so_and_is_tuned_paused_reloaded_and_stopped() {
    let Some(_turn) = shared() else { return };
    let mut daemon = Daemon::start(IDLE, &["--dry-run", "--no-guard"]);
    until_so("something that could be paged out", || {
        daemon.scheme()["stats"]["sz_applied"].as_u64() > Some(32 << 20)
    });
    let status = daemon.status();
    assert_eq!(status["pid"], daemon.process.pid());
    assert_eq!(status["dry_run"], true);
    let target = &status["targets"][0];
    assert_eq!(target["pid"], daemon.workload.pid());
    let bytes = |name: &str| target[name].as_u64().expect("a number") >> 20;
    for (name, least) in [("watched", 64), ("rss", 64), ("idle", 40), ("hot", 7)] {
        assert!(bytes(&format!("{name}_bytes")) >= least, "{target}");
    }
    assert!(bytes("hot_bytes") < 24, "{target}");
    // A faulty file changes nothing, and is reported.
    let bad = daemon.write("bad.damos", "4K max 0 0 1s max pagout");
    daemon.say("tune", &["-c", &bad]).refused("pagout");
    assert_eq!(daemon.scheme()["action"], "pageout");
    let other = daemon.write("other.damos", "4K max 0 0 1s max cold");
    daemon.say("tune", &["-c", &other]).success();
    assert_eq!(daemon.scheme()["action"], "cold");
    daemon.say("tune", &["--preset", "ethp"]).success();
    assert_eq!(daemon.scheme()["action"], "hugepage");
    assert_eq!(daemon.status()["tuned"]["by"], "--preset ethp");
    daemon.process.signal(Signal::SIGHUP);
    daemon.until_action("pageout");
    daemon.write("schemes.damos", "4K max 0 0 1s max stat");
    daemon.process.signal(Signal::SIGHUP);
    daemon.until_action("stat");
    daemon.say("pause", &[]).success();
    let snapshots = || daemon.scheme()["stats"]["nr_snapshots"].clone();
    let (before, seen) = (snapshots(), daemon.status()["snapshots"].as_u64());
    until_so("another snapshot", || {
        daemon.status()["snapshots"].as_u64() > seen
    });
    assert_eq!(snapshots(), before);
    assert_eq!(daemon.status()["paused"], true);
    daemon.say("resume", &[]).success();
    until_so("the schemes to go on", || snapshots() != before);
    daemon.say("stop", &[]).success();
    until_so("its end", || !daemon.process.is_running());
    assert!(!daemon.socket().exists());
    daemon.say("status", &[]).refused("isotherm start");
    daemon.process.succeed();
}

#[test]
fn others_are_refused_and_the_hostile_do_not_hold_it_up() {
    let Some(_turn) = shared() else { return };
    let daemon = Daemon::start(IDLE, &["--dry-run"]);
    let mode = |path: PathBuf| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(daemon.socket()), 0o600);
    let connect = || UnixStream::connect(daemon.socket()).expect("a connection");
    let silent: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    let mut talkative = connect();
    let timeout = Some(Duration::from_secs(2));
    talkative.set_write_timeout(timeout).expect("possible");
    let _ = talkative.write_all(&vec![b'['; 3 << 20]);
    let mut odd = connect();
    let odd_words = b"\xff\x00{}\n{\"do\":\"dance\"}\n";
    odd.write_all(odd_words).expect("sent");
    let replies: Vec<String> = BufReader::new(&odd).lines().take(2).flatten().collect();
    let are_refused = replies.iter().all(|reply| reply.contains("no request"));
    assert!(are_refused, "{replies:?}");
    assert_eq!(daemon.status()["ok"], true);
    drop(silent);
    // The mode is changed, and the kernel still gives the peer's user.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666)).expect("ours");
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    let copy = daemon.directory.path().join("isotherm");
    fs::copy(env!("CARGO_BIN_EXE_isotherm"), &copy).expect("a copy that others can run");
    other.arg(&copy).args(["stop", "--socket"]);
    let done = run(other.arg(daemon.socket()));
    if done.stderr.contains("setpriv: ") {
        return skip(&done.stderr);
    }
    done.refused("65534");
    assert_eq!(daemon.status()["ok"], true);
}

#[test]
fn there_is_one_for_each_socket_and_each_process() {
    let Some(_turn) = shared() else { return };
    // The action `cold` loses nothing, and needs no swap.
    let mut daemon = Daemon::start("4K max 0 0 1s max cold", &[]);
    let pid = daemon.workload.pid().to_string();
    let us = format!("pid {}", daemon.process.pid());
    let second = Daemon::spawn(&daemon.directory, daemon.workload.pid(), &[]);
    second.finish().refused(&us);
    let scheme = "4K max 0 0 1s max cold";
    let beside = ["run", "--scheme", scheme, "--duration", "1s", "--pid", &pid];
    run(&mut isotherm(beside)).refused(&us);
    // A run that does nothing blocks no other.
    run(isotherm(beside).arg("--dry-run")).success();
    // A daemon that is killed harms no target, and the next one takes its place.
    daemon.process.signal(Signal::SIGKILL);
    until_so("its end", || !daemon.process.is_running());
    assert!(daemon.socket().exists());
    assert!(daemon.workload.process.is_running());
    daemon.process = Daemon::spawn(&daemon.directory, daemon.workload.pid(), &[]);
    daemon.until_it_answers();
    daemon.process.signal(Signal::SIGTERM);
    until_so("its end", || !daemon.process.is_running());
    assert!(!daemon.socket().exists());
    assert!(daemon.workload.process.is_running());
    daemon.process.succeed();
    run(&mut isotherm(beside)).success();
}

#[test]
fn metrics_are_served_on_loopback_alone() {
    let Some(_turn) = shared() else { return };
    let address = free_address();
    let daemon = Daemon::start(IDLE, &["--dry-run", "--metrics", &address]);
    let get = |path: &str| http_get(&address, path).expect("an answer");
    let text = get("/metrics");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.contains(&length), "{head}");
    check_exposition(body);
    for said in ["isotherm_dry_run 1\n", "isotherm_build_info{version=\""] {
        assert!(body.contains(said), "{said:?} is not in {body}");
    }
    let pid = format!("pid=\"{}\"", daemon.workload.pid());
    assert!(body.contains(&pid), "{body}");
    assert!(get("/").starts_with("HTTP/1.1 404"));
    let anybody = ["--dry-run", "--metrics", "0.0.0.0:0"];
    let elsewhere = open_scratch();
    fs::write(elsewhere.path().join("schemes.damos"), IDLE).expect("a file");
    let open = Daemon::spawn(&elsewhere, daemon.workload.pid(), &anybody);
    open.finish().refused("loopback");
}

/// Checks that every sample is a number and belongs to a family with a type and help before it.
fn check_exposition(body: &str) {
    let (mut family, mut suffix) = (String::new(), "");
    let mut nr_samples = 0;
    let body = body.strip_suffix("# EOF\n").expect("OpenMetrics ends so");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').take(1).collect();
            assert!(rest.len() > family.len() + 3, "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.strip_prefix(&family).expect("the same family").trim();
            suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                "gauge" => "",
                _ => panic!("{line}"),
            };
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            value.parse::<f64>().expect("a number");
            let name = series.split('{').next().unwrap_or_default();
            assert_eq!(name, format!("{family}{suffix}"));
            assert!(family.starts_with("isotherm_"), "{line}");
            nr_samples += 1;
        }
    }
    assert!(nr_samples > 15, "{body}");
}

/// In the background it outlives its starter, and notifies a service manager that it is ready.
#[test]
fn it_goes_to_the_background_and_tells_systemd() {
    let Some(_turn) = shared() else { return };
    let (directory, workload) = (open_scratch(), Workload::start(&paced_workload(64, 4), &[]));
    let manager = directory.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(manager).expect("a socket");
    let timeout = Some(Duration::from_secs(20));
    manager.set_read_timeout(timeout).expect("possible");
    let (pid, socket) = (workload.pid().to_string(), directory.path().join("socket"));
    let mut command = isotherm(["start", "--detach", "--dry-run", "--scheme", IDLE]);
    command.args(["--pid", &pid, "--socket"]).arg(&socket);
    command.env("NOTIFY_SOCKET", directory.path().join("notify"));
    run(command.env("WATCHDOG_USEC", "200000")).success();
    let mut heard = String::new();
    let words = ["READY=1", "STATUS=", "WATCHDOG=1"];
    while !words.iter().all(|word| heard.contains(*word)) {
        let mut buffer = [0; 512];
        let n = manager.recv(&mut buffer).expect("word within 20 s");
        heard += &String::from_utf8_lossy(&buffer[..n]);
    }
    let mut stream = UnixStream::connect(&socket).expect("it is there");
    writeln!(stream, "{}", json!({ "do": "stop" })).expect("sent");
    until_so("its end", || !socket.exists());
}
