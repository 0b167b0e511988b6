//! Prometheus's scrapes: `GET /metrics` by HTTP/1.1 on a loopback address, one for each connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use anyhow::{Context, ensure};
use isotherm_engine::Nanos;
use nix::sys::epoll::Epoll;

use super::server::{Answer, Limits, Listener, Server};

/// What the metrics are written in.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Of a request.
const HEADERS_MAX: usize = 64;

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
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    // The server has taken the empty line that a head ends with.
    let head = [head, b"\r\n\r\n"].concat();
    let parsed = request
        .parse(&head)
        .is_ok_and(|parsed| parsed.is_complete());
    let bytes = match (request.method, request.path) {
        (Some(method @ ("GET" | "HEAD")), Some(target)) if parsed => {
            let with_body = method == "GET";
            if target.split('?').next() == Some("/metrics") {
                response("200 OK", OPEN_METRICS, &metrics(), with_body)
            } else {
                let hint = "metrics are at /metrics\n";
                response("404 Not Found", "text/plain", hint, with_body)
            }
        }
        (Some(_), Some(_)) if parsed => response("405 Method Not Allowed", "text/plain", "", true),
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
