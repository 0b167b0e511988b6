//! Prometheus's scrapes: `GET /metrics` in HTTP/1.1 on a loopback address.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;

use anyhow::ensure;
use isotherm_engine::Nanos;
use nix::sys::epoll::Epoll;

use crate::serve::{Answer, Server, http};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Clients at a time, and the time for one of them.
const LIMITS: (usize, Nanos) = (32, Nanos(5_000_000_000));

/// Opens the port. It accepts only loopback addresses, as every client is answered.
pub(super) fn open(address: SocketAddr, poll: &Rc<Epoll>) -> anyhow::Result<Server<TcpListener>> {
    ensure!(
        address.ip().is_loopback(),
        "--metrics {address}: anybody who reaches this address would be answered, so only loopback \
         ones are served, e.g. 127.0.0.1:9464; put a proxy before it that knows its users"
    );
    http::open(address, poll, LIMITS)
}

pub(super) fn answer(head: &[u8], metrics: impl FnOnce() -> Vec<u8>) -> Answer {
    http::answer(head, |request| {
        if request.target.split('?').next() == Some("/metrics") {
            http::response(OPEN_METRICS, Rc::new(metrics()), &[])
        } else {
            http::refusal("404 Not Found", "metrics are at /metrics\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        let ask = |head: &str| {
            let answer = answer(head.as_bytes(), || "isotherm_up 1\n".into());
            String::from_utf8([&answer.bytes[..], &answer.rest].concat()).expect("text")
        };
        let good = ask("GET /metrics?x=1 HTTP/1.1\r\nHost: a");
        assert!(good.contains("Content-Length: 14\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\nisotherm_up 1\n"), "{good}");
        assert!(ask("GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
    }
}
