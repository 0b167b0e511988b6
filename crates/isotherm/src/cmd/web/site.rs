//! The server of `isotherm web`: it answers with the page and its data, if the request holds the token.
//!
//! Other programs on this machine can connect, and other sites in the browser can send requests. So every address
//! begins with a token of 128 random bits, which only the user who started the server receives. The `Host` of a request
//! must be a name of this machine. That refuses a site whose own name points to 127.0.0.1 (DNS rebinding). The server
//! allows no other origin, and serves only GET, so no request can change anything.

use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use isotherm_engine::Nanos;
use isotherm_record::Item;
use isotherm_report::Accumulate;
use isotherm_view::page::{self, Compression, Data};
use isotherm_view::{Document, Finished};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};

use crate::blame::FunctionNames;
use crate::cmd::report::source::Parts;
use crate::serve::http::{self, Request};
use crate::serve::{Answer, Server};

/// Clients at a time, and the time for one of them: a large page is slow through a tunnel.
const LIMITS: (usize, Nanos) = (64, Nanos(120_000_000_000));
/// Period of checks for new items.
const TURN_MS: u16 = 200;
/// Making a page of new items takes at most 1 / `MAKING_SHARE` of the time, and happens at most once a second.
const MAKING_SHARE: u32 = 10;
const BINARY: &str = "application/octet-stream";
const NO_STORE: &str = "Cache-Control: no-store";
const GZIP: &str = "Content-Encoding: gzip";
const DATA: &str = "data";
const EVENTS: &str = "events";

pub(super) enum Content {
    Whole {
        /// [`Finished::container`].
        container: Vec<u8>,
        /// Further parts of each record.
        records: Vec<Record>,
    },
    Live {
        document: Box<Document>,
        items: Receiver<Vec<Item>>,
    },
}

/// The parts of a record that the page does not hold.
pub(super) struct Record {
    pub(super) trace: Option<PathBuf>,
    pub(super) parts: Option<Parts>,
}

pub(super) struct Site {
    token: String,
    /// Names of this host that requests may use; all names if remote clients may connect.
    hosts: Vec<String>,
    page: Rc<Vec<u8>>,
    data: Rc<Vec<u8>>,
    records: Vec<Record>,
    live: Option<Live>,
}

/// A site with its server, and its address with the token.
type Begun = (Site, Rc<Epoll>, Server<TcpListener>, String);

/// The growing part of a live page.
struct Live {
    document: Box<Document>,
    names: FunctionNames,
    items: Receiver<Vec<Item>>,
    /// `document` holds more than the page.
    is_new: bool,
    has_ended: bool,
    /// The page is not made again before this time.
    due: Instant,
}

impl Site {
    /// Serves until `stop` is set. Sends the address, with the token, to `ready` as soon as it is known.
    pub(super) fn serve(
        address: SocketAddr,
        content: Content,
        stop: &AtomicBool,
        ready: SyncSender<anyhow::Result<String>>,
    ) -> anyhow::Result<()> {
        let begun = Self::begin(address, content);
        let (mut site, poll, mut server, url) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // The receiver of `ready` reports the error.
                ready.send(Err(error)).ok();
                return Ok(());
            }
        };
        ready.send(Ok(url)).ok();
        drop(ready);
        let started = Instant::now();
        let mut events = [EpollEvent::empty(); 16];
        while !stop.load(Ordering::Relaxed) {
            match poll.wait(&mut events, EpollTimeout::from(TURN_MS)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait for clients"),
            }
            let now = Nanos::from(started.elapsed());
            if let Some(news) = site.renew(server.nr_subscribers() > 0)? {
                server.publish(now, news.as_bytes());
            }
            server.serve(now, &mut |message| site.answer(message));
        }
        Ok(())
    }

    fn begin(address: SocketAddr, content: Content) -> anyhow::Result<Begun> {
        let poll = Rc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot poll")?);
        let server = http::open(address, &poll, LIMITS)?;
        let address = server.listener().local_addr().context("no address")?;
        let token = token()?;
        let (data, records, live) = match content {
            Content::Whole { container, records } => {
                (page::pack(&container, Compression::fast())?, records, None)
            }
            Content::Live { document, items } => {
                let live = Live {
                    document,
                    names: FunctionNames::live(),
                    items,
                    is_new: true,
                    has_ended: false,
                    due: Instant::now(),
                };
                (Vec::new(), Vec::new(), Some(live))
            }
        };
        let mut shown = Vec::new();
        let events = live.is_some().then_some(EVENTS);
        let is_trace = |record: &Record| record.trace.is_some();
        let at = Data::At {
            data: DATA,
            events,
            has_traces: page::what_if().is_some() && records.iter().any(is_trace),
            has_details: records.iter().any(|record| record.parts.is_some()),
        };
        page::write(at, &mut shown)?;
        let url = format!("http://{address}/{token}/");
        let port = address.port();
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}"));
        let site = Self {
            hosts: if address.ip().is_loopback() {
                [&hosts[..], &[address.to_string()]].concat()
            } else {
                Vec::new()
            },
            token,
            page: Rc::new(shown),
            data: Rc::new(data),
            records,
            live,
        };
        Ok((site, poll, server, url))
    }

    fn answer(&mut self, message: &[u8]) -> Answer {
        http::answer(message, |request| self.get(request))
    }

    fn get(&mut self, request: Request<'_>) -> Answer {
        let mut hosts = self.hosts.iter();
        let is_called = |name: &str| hosts.any(|host| host.eq_ignore_ascii_case(name));
        if !self.hosts.is_empty() && !request.host.is_some_and(is_called) {
            let why = "this is not a name of this server\n";
            return http::refusal("421 Misdirected Request", why);
        }
        let path = request.target.split('?').next().unwrap_or_default();
        let Some(rest) = path.strip_prefix('/') else {
            return not_found("");
        };
        match rest.strip_prefix(&*self.token) {
            Some("/") => {
                let more = [
                    NO_STORE,
                    "Referrer-Policy: no-referrer",
                    "X-Frame-Options: DENY",
                ];
                http::response("text/html; charset=utf-8", Rc::clone(&self.page), &more)
            }
            Some("/data") => {
                if (self.data.is_empty() || self.is_stale())
                    && let Err(error) = self.make()
                {
                    return http::refusal("500 Internal Server Error", &format!("{error:#}\n"));
                }
                http::response(BINARY, Rc::clone(&self.data), &[NO_STORE, GZIP])
            }
            Some("/events") if self.live.is_some() => http::events(),
            Some("/what-if.wasm") => match page::what_if() {
                Some(packed) => {
                    http::response("application/wasm", Rc::new(packed.to_vec()), &[GZIP])
                }
                None => not_found("this isotherm was built without\n"),
            },
            Some(path) if path.starts_with("/trace/") => self.trace(&path["/trace/".len()..]),
            Some(path) if path.starts_with("/detail/") => self.detail(&path["/detail/".len()..]),
            _ => not_found("this is not the address that `isotherm web` printed\n"),
        }
    }

    fn trace(&self, number: &str) -> Answer {
        let at = number.parse::<usize>().ok();
        let record = at.and_then(|at| self.records.get(at));
        let Some(file) = record.and_then(|record| record.trace.as_ref()) else {
            return not_found(
                "this record holds no page scans; `isotherm record --pages` makes one that does\n",
            );
        };
        match std::fs::read(file) {
            Ok(bytes) => http::response(BINARY, Rc::new(bytes), &[NO_STORE]),
            Err(error) => not_found(&format!("{}: {error}\n", file.display())),
        }
    }

    /// Returns a part of a heat map: `RECORD/LAYER/FROM/TO`, numbers, and seconds after the beginning.
    fn detail(&self, asked: &str) -> Answer {
        let made = match self.part(asked) {
            Some((parts, layer, part)) => parts.detail(layer, part),
            None => Ok(None),
        };
        let pack = |container: Vec<u8>| page::pack(&container, Compression::fast());
        match made.and_then(|made| Ok(made.map(pack).transpose()?)) {
            Ok(Some(packed)) => http::response(BINARY, Rc::new(packed), &[NO_STORE, GZIP]),
            Ok(None) => not_found("no part of a heat map of this page\n"),
            Err(error) => http::refusal("500 Internal Server Error", &format!("{error:#}\n")),
        }
    }

    fn part(&self, asked: &str) -> Option<(&Parts, usize, (Nanos, Nanos))> {
        let words: Vec<&str> = asked.split('/').collect();
        let [record, layer, from, to] = words[..] else {
            return None;
        };
        let record = self.records.get(record.parse::<usize>().ok()?)?;
        let parts = record.parts.as_ref()?;
        let time = |text: &str| {
            let time = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
            Some(Nanos::from(time))
        };
        let part = (time(from)?, time(to)?);
        (part.0 < part.1).then_some((parts, layer.parse().ok()?, part))
    }

    /// Takes the new items. Makes data of them if a client wants them and it is time, or if the session has just ended.
    /// Returns the event for subscribers.
    fn renew(&mut self, is_wanted: bool) -> anyhow::Result<Option<&'static str>> {
        let Some(live) = &mut self.live else {
            return Ok(None);
        };
        let had_ended = live.has_ended;
        live.take();
        let ends = live.has_ended && !had_ended;
        if !(live.is_new && (ends || is_wanted && Instant::now() >= live.due)) {
            return Ok(None);
        }
        self.make()?;
        let has_ended = self.live.as_ref().is_some_and(|live| live.has_ended);
        Ok(Some(if has_ended {
            "event: end\ndata:\n\n"
        } else {
            "event: new\ndata:\n\n"
        }))
    }

    /// Returns whether the document holds more than the page and it is time to make it again, even without subscribers.
    fn is_stale(&self) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.is_new && Instant::now() >= live.due)
    }

    fn make(&mut self) -> anyhow::Result<()> {
        if let Some(live) = &mut self.live {
            let began = Instant::now();
            if let Some(frames) = live.document.frames() {
                live.names.name(frames);
            }
            let container = Finished::container(&[live.document.as_ref().clone().finish()])?;
            self.data = Rc::new(page::pack(&container, Compression::fast())?);
            live.is_new = false;
            let rest = (began.elapsed() * MAKING_SHARE).max(Duration::from_secs(1));
            live.due = Instant::now() + rest;
        }
        Ok(())
    }
}

impl Live {
    fn take(&mut self) {
        loop {
            match self.items.try_recv() {
                Ok(items) => {
                    self.is_new |= !items.is_empty();
                    for item in &items {
                        self.document.push(item);
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_new |= !self.has_ended;
                    self.has_ended = true;
                    return;
                }
            }
        }
    }
}

fn not_found(why: &str) -> Answer {
    http::refusal("404 Not Found", why)
}

/// Returns 128 random bits as text.
fn token() -> anyhow::Result<String> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bits))
        .context("no random bits for a token")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}
