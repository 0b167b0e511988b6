//! Requests and responses of HTTP/1.1 on a loopback address, one for each connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use anyhow::Context as _;
use isotherm_engine::Nanos;
use nix::sys::epoll::Epoll;

use super::{Answer, Limits, Listener, Server, Then};

const HEADERS_MAX: usize = 64;

/// A GET or HEAD request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The path and the query after `?`.
    pub(crate) target: &'a str,
    /// The `Host` header: the name by which the client calls this server.
    pub(crate) host: Option<&'a str>,
}

/// Starts to serve `address`, which the caller has checked.
pub(crate) fn open(
    address: SocketAddr,
    poll: &Rc<Epoll>,
    (clients_max, timeout): (usize, Nanos),
) -> anyhow::Result<Server<TcpListener>> {
    let cannot = || format!("cannot listen on {address}");
    let listener = TcpListener::bind(address).with_context(cannot)?;
    listener.set_nonblocking(true).with_context(cannot)?;
    let limits = Limits {
        clients_max,
        arrivals_max: 200,
        message_end: b"\r\n\r\n",
        message_max: 8 << 10,
        too_long: head("431 Request Header Fields Too Large", "text/plain", 0, &[]),
        timeout,
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

/// Answers a request's head: GET and HEAD by `answer`, any other request by a refusal.
pub(crate) fn answer(bytes: &[u8], answer: impl FnOnce(Request<'_>) -> Answer) -> Answer {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    // The server has removed the empty line that ends a head.
    let whole = [bytes, b"\r\n\r\n"].concat();
    let parsed = request
        .parse(&whole)
        .is_ok_and(|parsed| parsed.is_complete());
    match (request.method, request.path) {
        (Some(method @ ("GET" | "HEAD")), Some(target)) if parsed => {
            let mut hosts = request.headers.iter();
            let host = hosts.find(|header| header.name.eq_ignore_ascii_case("host"));
            let host = host.and_then(|header| std::str::from_utf8(header.value).ok());
            let answered = answer(Request { target, host });
            if method == "GET" {
                answered
            } else {
                without_body(answered)
            }
        }
        (Some(_), Some(_)) if parsed => refusal("405 Method Not Allowed", ""),
        _ => refusal("400 Bad Request", ""),
    }
}

/// Removes the body, all that follows the empty line.
fn without_body(mut answer: Answer) -> Answer {
    let end = answer.bytes.windows(4).position(|four| four == b"\r\n\r\n");
    answer.bytes.truncate(end.map_or(0, |end| end + 4));
    Answer::new(answer.bytes, Then::Close)
}

/// Returns a complete response with status 200.
pub(crate) fn response(kind: &str, body: Rc<Vec<u8>>, more: &[&str]) -> Answer {
    Answer {
        bytes: head("200 OK", kind, body.len(), more),
        rest: body,
        then: Then::Close,
    }
}

/// Returns a response of a status and a hint.
pub(crate) fn refusal(status: &str, hint: &str) -> Answer {
    let bytes = [
        &head(status, "text/plain", hint.len(), &[])[..],
        hint.as_bytes(),
    ]
    .concat();
    Answer::new(bytes, Then::Close)
}

/// Starts a stream of events (Server-Sent Events of the HTML standard).
pub(crate) fn events() -> Answer {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
                X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n";
    Answer::new(head.as_bytes().to_vec(), Then::Subscribe)
}

fn head(status: &str, kind: &str, length: usize, more: &[&str]) -> Vec<u8> {
    let mut head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET, HEAD\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    );
    for line in more {
        head += line;
        head += "\r\n";
    }
    (head + "\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(head: &str) -> String {
        let answered = answer(head.as_bytes(), |request| {
            let text = format!("{} {}", request.target, request.host.unwrap_or("nobody"));
            response("text/plain", Rc::new(text.into_bytes()), &["X-More: yes"])
        });
        assert_eq!(answered.then, Then::Close);
        String::from_utf8([&answered.bytes[..], &answered.rest].concat()).expect("text")
    }

    #[test]
    fn what_is_asked_is_answered_and_what_is_no_request_refused() {
        let good = ask("GET /a?x=1 HTTP/1.1\r\nhost: b:1");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.contains("Content-Length: 10\r\n"), "{good}");
        assert!(good.ends_with("X-More: yes\r\n\r\n/a?x=1 b:1"), "{good}");
        assert!(ask("HEAD /a HTTP/1.0").ends_with("\r\n\r\n"));
        assert!(ask("GET / HTTP/1.1").ends_with("/ nobody"));
        assert!(ask("POST /a HTTP/1.1").starts_with("HTTP/1.1 405"));
        for bad in ["", "GET", "GET /a", "\u{1}\u{2}", "GET  /a HTTP/1.1"] {
            assert!(ask(bad).starts_with("HTTP/1.1 400"), "{bad:?}");
        }
    }
}
