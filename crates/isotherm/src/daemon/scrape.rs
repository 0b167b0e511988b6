//! Prometheus's scrapes: `GET /metrics` by HTTP/1.1 on a loopback address, one for each connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use anyhow::{Context, ensure};
use isotherm_engine::Nanos;
use nix::sys::epoll::Epoll;

use super::server::{Answer, Limits, Listener, Server};

/// The text format's version, as Prometheus documents it.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Opens the port. Only on loopback: whoever can reach it is answered.
pub(super) fn open(address: SocketAddr, poll: &Rc<Epoll>) -> anyhow::Result<Server<TcpListener>> {
    ensure!(
        address.ip().is_loopback(),
        "--metrics {address}: anybody who reaches this address would be answered, so only loopback \
         ones are served, e.g. 127.0.0.1:9464; put a proxy before it that knows its users"
    );
    let cannot = || format!("cannot serve metrics on {address}");
    let listener = TcpListener::bind(address).with_context(cannot)?;
    listener.set_nonblocking(true).with_context(cannot)?;
    let limits = Limits {
        clients_max: 32,
        arrivals_max: 200,
        message_end: b"\r\n\r\n",
        message_max: 8 << 10,
        too_long: response(
            "431 Request Header Fields Too Large",
            "text/plain",
            "",
            true,
        ),
        timeout: Nanos(5_000_000_000),
        gives_way: Nanos(500_000_000),
    };
    Server::open(listener, poll, limits).with_context(cannot)
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> std::io::Result<(TcpStream, Option<Vec<u8>>)> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, None))
    }
}

/// Answers a request's head.
pub(super) fn answer(head: &[u8], metrics: impl FnOnce() -> String) -> Answer {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split(' ').collect();
    let bytes = match words[..] {
        [method, target, version] if version.starts_with("HTTP/1.") => {
            let path = target.split('?').next().unwrap_or_default();
            match (method, path) {
                ("GET" | "HEAD", "/metrics") => {
                    response("200 OK", TEXT, &metrics(), method == "GET")
                }
                ("GET" | "HEAD", _) => response(
                    "404 Not Found",
                    "text/plain",
                    "metrics are at /metrics\n",
                    method == "GET",
                ),
                _ => response("405 Method Not Allowed", "text/plain", "", true),
            }
        }
        _ => response("400 Bad Request", "text/plain", "", true),
    };
    Answer {
        bytes,
        is_last: true,
    }
}

fn response(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if with_body { body } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        let ask = |head: &str| {
            let answer = answer(head.as_bytes(), || "isotherm_up 1\n".into());
            assert!(answer.is_last);
            String::from_utf8(answer.bytes).expect("text")
        };
        let good = ask("GET /metrics?x=1 HTTP/1.1\r\nHost: a");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.contains("Content-Length: 14\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\nisotherm_up 1\n"), "{good}");
        assert!(ask("HEAD /metrics HTTP/1.0").ends_with("\r\n\r\n"));
        assert!(ask("GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
        for bad in [
            "",
            "GET",
            "GET /metrics",
            "\u{1}\u{2}",
            "GET  /metrics HTTP/1.1",
        ] {
            assert!(ask(bad).starts_with("HTTP/1.1 400"), "{bad:?}");
        }
    }
}
