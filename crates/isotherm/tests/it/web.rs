//! `isotherm web` from the view of a browser and of an attacker.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::common::{Ended, Killed, isotherm, run, until};

/// A server of a simulated record.
struct Served {
    _child: Killed,
    address: String,
    token: String,
    _folder: TempDir,
}

const SCENARIO: &str = r#"{"machine": {"cpus": 1, "nodes": [{"size": "256 MiB"}]}, "duration": "5s", "processes": [
    {"name": "server", "mappings": [{"name": "heap", "size": "16 MiB"}]}]}"#;

fn record() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("s.json"), SCENARIO).expect("written");
    run(folder.path(), &["simulate", "s.json", "-o", "r.isotherm"]).success();
    folder
}

fn served() -> Served {
    let folder = record();
    let mut command = isotherm();
    command.args(["web", "r.isotherm", "--no-browser"]);
    serve(command, folder)
}

fn serve(mut command: Command, folder: TempDir) -> Served {
    command.current_dir(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Killed(command.spawn().expect("it runs"));
    let mut line = String::new();
    let mut printed = BufReader::new(child.0.stdout.take().expect("piped"));
    printed.read_line(&mut line).expect("a line");
    let rest = line.trim().strip_prefix("http://").expect("an address");
    let (address, token) = rest.split_once('/').expect("a path");
    Served {
        address: address.to_owned(),
        token: token.trim_end_matches('/').to_owned(),
        _child: child,
        _folder: folder,
    }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("possible");
        stream
    }

    /// Sends a request as it is; returns the response.
    fn send(&self, request: &str) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let host = &self.address;
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    fn status(&self, request: &str) -> String {
        let answer = self.send(request);
        let line = answer.split(|byte| *byte == b'\r').next();
        String::from_utf8_lossy(line.unwrap_or_default()).into_owned()
    }
}

#[test]
fn the_page_and_its_data_are_there_for_who_knows_the_token() {
    let served = served();
    let token = &served.token;
    assert_eq!(token.len(), 32, "{token}");
    let page = String::from_utf8(served.get(&format!("/{token}/"))).expect("text");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(page.contains("Referrer-Policy: no-referrer\r\n"));
    assert!(page.contains("connect-src 'self'"));
    assert!(!page.contains("Access-Control-Allow-Origin"));
    let data = served.get(&format!("/{token}/data"));
    let text = String::from_utf8_lossy(&data);
    assert!(text.contains("Content-Encoding: gzip\r\n"), "{text}");
    assert!(data.len() > 500);
    for path in [
        "/",
        "/data",
        "/0123/",
        &format!("/{token}"),
        &format!("/{token}x/"),
        &format!("/{token}/../../etc/passwd"),
        &format!("/{token}/%2e%2e/etc/passwd"),
        &format!("/{token}/events"),
        "//",
        "/?x",
    ] {
        let answer = String::from_utf8_lossy(&served.get(path)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
}

#[test]
fn who_calls_it_by_another_name_is_refused() {
    let served = served();
    let (line, address) = (format!("/{}/ HTTP/1.1", served.token), &served.address);
    let (_, port) = address.rsplit_once(':').expect("a port");
    for (request, wanted) in [
        (format!("GET {line}\r\nHost: {address}"), "200"),
        (format!("GET {line}\r\nHost: localhost:{port}"), "200"),
        (format!("GET {line}\r\nHost: evil.example:{port}"), "421"),
        (format!("GET {line}\r\nHost: 127.0.0.1"), "421"),
        (format!("GET {line}\r\nHost: "), "421"),
        (format!("GET {line}"), "421"),
        (format!("POST {line}\r\nHost: {address}"), "405"),
        ("nonsense".to_owned(), "400"),
    ] {
        let status = served.status(&(request.clone() + "\r\n\r\n"));
        assert!(status.contains(wanted), "{request}: {status}");
    }
}

/// Raises this process' limit of open files: the tests that run beside a thousand connections need some, too.
fn raise_limit_of_files() {
    const NEEDED: u64 = 4096;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let raised = soft.max(NEEDED.min(hard));
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).expect("it is within the hard limit");
}

#[test]
fn a_thousand_that_say_nothing_keep_nobody_out() {
    // The server starts first, so that it keeps the usual limit.
    let served = served();
    raise_limit_of_files();
    let silent: Vec<TcpStream> = (0..1000)
        .filter_map(|_| TcpStream::connect(&served.address).ok())
        .collect();
    let mut half = served.connect();
    half.write_all(b"GET /").expect("sent");
    let page = served.get(&format!("/{}/", served.token));
    assert!(page.starts_with(b"HTTP/1.1 200 OK\r\n"));
    drop(silent);
    drop(half);
}

#[test]
fn what_others_could_reach_is_only_served_by_an_explicit_flag() {
    let folder = record();
    let line = ["web", "r.isotherm", "--listen", "0.0.0.0:0", "--no-browser"];
    let done = run(folder.path(), &line);
    done.refused("ssh -L");
    done.refused("--allow-remote");
}

#[test]
fn what_cannot_be_shown_is_said_before_anything_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("bad.isotherm"), "nonsense").expect("written");
    for (file, words) in [
        ("bad.isotherm", "not an isotherm record"),
        ("none.isotherm", "none.isotherm"),
    ] {
        run(folder.path(), &["web", file, "--no-browser"]).refused(words);
    }
}

#[test]
fn a_daemon_is_followed_and_what_it_saw_stays_when_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("d.sock");
    let mut daemon = isotherm();
    daemon.args(["start", "--simulated", "--preset", "prcl", "--dry-run"]);
    daemon.arg("--socket").arg(&socket).stderr(Stdio::null());
    let daemon = Killed(daemon.spawn().expect("it runs"));
    until("socket", || UnixStream::connect(&socket).is_ok());
    let mut command = isotherm();
    command.args(["web", "--no-browser", "--daemon"]);
    command.arg(&socket);
    let served = serve(command, folder);
    // The data of the session arrives, though the session began long before.
    let shows_it = || unpacked(&served).contains("[simulated]");
    until("data", shows_it);
    let before = unpacked(&served);
    until("further data", || unpacked(&served) != before);
    // Other requests are answered with any number of followers.
    let follow = || {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        stream.write_all(b"{\"do\":\"follow\"}\n").expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        let is_good = answer.starts_with(b"{\"ok\":true");
        (stream, is_good)
    };
    let followers: Vec<(UnixStream, bool)> = (0..10).map(|_| follow()).collect();
    let nr_good = followers.iter().filter(|(_, is_good)| *is_good).count();
    assert_eq!(nr_good, 7, "and the page is the eighth");
    let mut status = isotherm();
    let status = status.args(["status", "--socket"]).arg(&socket).output();
    status.expect("it runs").success();
    drop(followers);
    drop(daemon);
    until("data", shows_it);
}

/// Returns the beginning of the data of its page.
fn unpacked(served: &Served) -> String {
    let answer = served.get(&format!("/{}/data", served.token));
    let at = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let body = &answer[at.expect("a head") + 4..];
    let mut data = Vec::new();
    flate2::read::GzDecoder::new(body)
        .read_to_end(&mut data)
        .expect("gzip");
    String::from_utf8_lossy(&data).into_owned()
}
