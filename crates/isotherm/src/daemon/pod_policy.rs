//! Asks the API server what this node's pods permit to be done to their memory.
//!
//! Problem: only the API server knows the annotations, and its clients need a token. A privileged process that watches
//! the whole machine should hold none.
//!
//! Approach: a proxy in the same pod has the token, may list pods and nothing else, and answers plain HTTP on loopback
//! (`contrib/kubernetes`). A thread without capabilities asks it periodically for the metadata of this node's pods. The
//! loop takes the newest answer between two steps. Neither an answer nor its absence makes the loop wait.
//!
//! Limits: a change is known at the next request. Redirects and proxies of the environment are not followed, as the
//! server is on loopback. An answer has at most [`ANSWER_MAX`] bytes and takes at most [`TIMEOUT`].

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use isotherm_config::{AnnotatedPod, read_pods};
use isotherm_linux::privileges;
use tracing::debug;

/// Time for a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the longest answer: a node has some hundred pods, with some KiB of metadata each.
const ANSWER_MAX: u64 = 64 << 20;
/// Pause after the first failure; it doubles with each further failure, up to the period of requests.
const AGAIN: Duration = Duration::from_secs(2);
/// Asks for metadata only, if the API server supports that: the environment of pods is not needed.
const ACCEPT: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";

/// The proxy, and the period of requests to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodPolicySource {
    address: SocketAddr,
    /// Name of this node in the cluster.
    pub(super) node: String,
    every: Duration,
}

impl PodPolicySource {
    /// Returns the source for `node` at the proxy at `url`.
    pub(crate) fn new(url: &str, node: &str, every: Duration) -> anyhow::Result<Self> {
        let address = url
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'));
        let address = address.and_then(|address| address.parse::<SocketAddr>().ok());
        let address = address.with_context(|| {
            format!("--pod-policy {url} is no http://ADDRESS:PORT, such as http://127.0.0.1:8001")
        })?;
        ensure!(
            address.ip().is_loopback(),
            "--pod-policy {url} is not on loopback; what answers there decides whose memory is acted on, so let it run \
             beside isotherm (docs/how-to/daemonset.md)"
        );
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        ensure!(
            (1..=253).contains(&node.len()) && node.chars().all(is_plain),
            "--node-name {node:?} is no name of a node; `kubectl get nodes` lists them"
        );
        ensure!(
            every >= Duration::from_secs(1),
            "--pod-policy-every may be 1s at least"
        );
        Ok(Self {
            address,
            node: node.to_owned(),
            every,
        })
    }

    /// Returns the URL of the request, which the API server may answer from its cache (`resourceVersion=0`).
    fn url(&self) -> String {
        format!(
            "http://{}/api/v1/pods?fieldSelector=spec.nodeName%3D{}&resourceVersion=0",
            self.address, self.node
        )
    }

    fn ask(&self, timeout: Duration) -> Result<Vec<AnnotatedPod>, String> {
        let agent = super::agent(timeout);
        let request = agent.get(self.url()).header("Accept", ACCEPT);
        let of_proxy = |error: &dyn std::fmt::Display| format!("{}: {error}", self.address);
        let mut response = request.call().map_err(|error| match error {
            ureq::Error::StatusCode(403) => {
                format!("{} says 403: it may not list pods", self.address)
            }
            error => of_proxy(&error),
        })?;
        if response.status() != 200 {
            return Err(format!("{} says {}", self.address, response.status()));
        }
        let reader = response.body_mut().with_config().limit(ANSWER_MAX).reader();
        read_pods(reader).map_err(|error| of_proxy(&error))
    }
}

pub(super) type Answer = Result<Vec<AnnotatedPod>, String>;

/// A thread that asks the proxy periodically.
pub(super) struct PodPolicyWatch {
    answers: Receiver<Answer>,
    /// Dropping it ends the thread.
    _ends: Sender<()>,
}

impl PodPolicyWatch {
    pub(super) fn start(source: PodPolicySource) -> anyhow::Result<Self> {
        let (send, answers) = sync_channel(1);
        let (ends, ended) = channel();
        std::thread::Builder::new()
            .name("pod-policy".to_owned())
            .spawn(move || keep_asking(&source, &send, &ended))
            .context("cannot start a thread")?;
        Ok(Self {
            answers,
            _ends: ends,
        })
    }

    /// Returns the newest answer since the last call.
    pub(super) fn take(&self) -> Option<Answer> {
        self.answers.try_iter().last()
    }
}

fn keep_asking(source: &PodPolicySource, answers: &SyncSender<Answer>, ended: &Receiver<()>) {
    if let Err(error) = privileges::keep_none() {
        answers.send(Err(error.to_string())).ok();
        return;
    }
    let mut again = AGAIN;
    loop {
        let answer = source.ask(TIMEOUT);
        debug!("pods: {:?}", answer.as_ref().map(Vec::len));
        let pause = if answer.is_ok() {
            again = AGAIN;
            source.every
        } else {
            let pause = again.min(source.every);
            again = (again * 2).min(source.every);
            pause
        };
        if answers.send(answer).is_err() {
            return;
        }
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    /// Asks a server that answers one request with `respond`; returns also that request.
    fn ask(respond: impl FnOnce(TcpStream) + Send + 'static) -> (Answer, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a question");
            let mut asked = [0; 4096];
            let n = stream.read(&mut asked).expect("a request");
            respond(stream);
            String::from_utf8_lossy(&asked[..n]).into_owned()
        });
        let source = PodPolicySource::new(&url, "node-1.example", TIMEOUT).expect("a source");
        let answer = source.ask(Duration::from_millis(700));
        (answer, server.join().expect("no panic"))
    }

    fn ask_that_says(text: String) -> (Answer, String) {
        ask(move |mut stream| {
            stream.write_all(text.as_bytes()).ok();
        })
    }

    fn http(status: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}")
    }

    const LIST: &str =
        r#"{"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"b","uid":"c"}}]}"#;

    #[test]
    fn this_nodes_pods_are_asked_for() {
        let (answer, asked) = ask_that_says(http("200 OK", LIST));
        assert_eq!(answer.expect("a list").len(), 1);
        let line = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1.example&resourceVersion=0 HTTP/1.1\r\n";
        assert!(asked.starts_with(line), "{asked}");
        assert!(asked.contains("PartialObjectMetadataList"), "{asked}");
    }

    #[test]
    fn whoever_answers_badly_is_an_error() {
        let check = |text: String, wanted: &str| {
            let (answer, _) = ask_that_says(text);
            let error = answer.expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        };
        check(http("403 Forbidden", "{}"), "may not list pods");
        check(http("500 Internal Server Error", LIST), "500");
        check(http("200 OK", "<html>"), "no list of pods");
        check(http("200 OK", r#"{"kind":"Status","items":[]}"#), "Status");
        check("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), "127.0.0.1");
        let away = "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n";
        check(away.to_owned(), "says 302");
        // The answer is cut in the middle.
        let cut = http("200 OK", LIST);
        check(cut[..cut.len() - 20].to_owned(), "no list of pods");
        check(String::new(), "127.0.0.1");
    }

    #[test]
    fn whoever_is_silent_or_slow_is_not_waited_for() {
        let begun = Instant::now();
        let (answer, _) = ask(|stream| {
            std::thread::sleep(Duration::from_millis(1_500));
            drop(stream);
        });
        answer.expect_err("silence");
        // A slow trickle of bytes is no answer either.
        let (answer, _) = ask(|mut stream| {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
            stream.write_all(head).ok();
            for _ in 0..15 {
                stream.write_all(b" ").ok();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        answer.expect_err("slowness");
        assert!(begun.elapsed() < Duration::from_secs(8));
        let gone = PodPolicySource::new("http://127.0.0.1:1", "n", TIMEOUT).expect("a source");
        gone.ask(TIMEOUT).expect_err("nobody");
    }

    #[test]
    fn an_answer_has_an_end() {
        let (answer, _) = ask(|mut stream| {
            let begin = b"HTTP/1.1 200 OK\r\n\r\n{\"kind\":\"PodList\",\"x\":\"";
            stream.write_all(begin).ok();
            let many = vec![b'x'; 1 << 20];
            while stream.write_all(&many).is_ok() {}
        });
        answer.expect_err("too much, or too long");
    }

    #[test]
    fn only_loopback_is_asked() {
        let of = |url: &str, node: &str| PodPolicySource::new(url, node, TIMEOUT);
        of("http://127.0.0.1:8001", "a").expect("v4");
        of("http://[::1]:8001/", "a-b.c").expect("v6");
        for (url, node, wanted) in [
            ("http://10.0.0.1:8001", "a", "not on loopback"),
            ("http://0.0.0.0:8001", "a", "not on loopback"),
            ("https://127.0.0.1:8001", "a", "no http"),
            ("http://localhost:8001", "a", "no http"),
            ("http://127.0.0.1:8001/api", "a", "no http"),
            ("http://127.0.0.1:8001", "", "no name"),
            ("http://127.0.0.1:8001", "a&b=c", "no name"),
            ("http://127.0.0.1:8001", "a\r\nX: y", "no name"),
        ] {
            let error = of(url, node).expect_err(url).to_string();
            assert!(error.contains(wanted), "{error}");
        }
        PodPolicySource::new("http://127.0.0.1:1", "a", Duration::ZERO).expect_err("too often");
    }

    #[test]
    fn the_loop_does_not_wait() {
        let source = PodPolicySource::new("http://127.0.0.1:1", "a", TIMEOUT).expect("a source");
        let watch = PodPolicyWatch::start(source).expect("a thread");
        let begun = Instant::now();
        let answer = loop {
            if let Some(answer) = watch.take() {
                break answer;
            }
            assert!(begun.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(10));
        };
        answer.expect_err("nobody is there");
        assert!(watch.take().is_none());
    }
}
