//! A server for sockets: one listening socket and its clients. It serves the daemon's Unix socket, the daemon's metrics
//! and the page of `isotherm web`.
//!
//! Problem: a client may send nothing, half a message or endless bytes, or never read its answer. The loop must still
//! run.
//!
//! Approach: nothing blocks; each turn of the loop does at most a fixed amount of work for each client. A client has
//! one message or one answer in memory at a time. It is of bounded size, and the client must finish it in bounded time.
//! The numbers of clients at a time and of new clients a second are limited; more clients wait in the listening
//! socket's queue. [`Server::publish`] skips a subscriber that has not yet read the previous news. Clients are in an
//! epoll set (as readable, or as writable while an answer is pending), which only ends the loop's sleep. The loop finds
//! the ready clients by trying all of them, as there are few.

mod client;
pub(crate) mod http;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;

use isotherm_engine::Nanos;
use nix::sys::epoll::Epoll;

use client::{Client, interest};

const SECOND: Nanos = Nanos(1_000_000_000);

pub(crate) trait Listener: AsFd {
    /// A connection to a client, in non-blocking mode.
    type Stream: Read + Write + AsFd;

    /// Accepts the next client; returns also the words that refuse it, if it is refused.
    fn accept(&self) -> std::io::Result<(Self::Stream, Option<Vec<u8>>)>;
}

/// Limits of the clients of a server.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Clients at a time.
    pub(crate) clients_max: usize,
    /// New clients in a second.
    pub(crate) arrivals_max: u32,
    /// The bytes that end a message.
    pub(crate) message_end: &'static [u8],
    /// Bytes of a message.
    pub(crate) message_max: usize,
    /// The answer to a longer message.
    pub(crate) too_long: Vec<u8>,
    /// Time for a message to arrive, and for its answer to be read.
    pub(crate) timeout: Nanos,
    /// When all places are taken, a new client replaces the slowest one that has been served for at least this time.
    pub(crate) gives_way: Nanos,
}

/// The answer to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    /// The bytes that follow `bytes`; many answers share them.
    pub(crate) rest: Rc<Vec<u8>>,
    pub(crate) then: Then,
}

/// The state of a client that has read its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The server reads its next message.
    Listen,
    /// The server closes the connection.
    Close,
    /// It receives what [`Server::publish`] sends until it disconnects; its input is discarded.
    Subscribe,
}

impl Answer {
    pub(crate) fn new(bytes: Vec<u8>, then: Then) -> Self {
        Self {
            bytes,
            rest: Rc::default(),
            then,
        }
    }

    pub(crate) fn line(value: &impl serde::Serialize, then: Then) -> Self {
        // Maps have text as keys; nothing else can fail.
        let mut bytes = serde_json::to_vec(value).unwrap_or_default();
        bytes.push(b'\n');
        Self::new(bytes, then)
    }
}

/// A server of one listening socket and its clients.
pub(crate) struct Server<D: Listener> {
    listener: D,
    poll: Rc<Epoll>,
    limits: Limits,
    clients: Vec<Client<D::Stream>>,
    is_open: bool,
    second: Nanos,
    arrivals: u32,
}

impl<D: Listener> Server<D> {
    pub(crate) fn open(listener: D, poll: &Rc<Epoll>, limits: Limits) -> std::io::Result<Self> {
        poll.add(&listener, interest(false))?;
        Ok(Self {
            listener,
            poll: Rc::clone(poll),
            limits,
            clients: Vec::new(),
            is_open: true,
            second: Nanos(0),
            arrivals: 0,
        })
    }

    /// Accepts clients and serves all of them, without blocking.
    pub(crate) fn serve(&mut self, now: Nanos, answer: &mut dyn FnMut(&[u8]) -> Answer) {
        self.accept(now);
        let limits = &self.limits;
        let poll = &self.poll;
        self.clients.retain_mut(|client| {
            let stays = client.serve(now, limits, answer) && client.listen(poll);
            if !stays {
                // Closing the stream removes it from the set too, unless something else still holds the stream.
                poll.delete(&client.stream).ok();
            }
            stays
        });
        self.open_or_shut(now);
    }

    pub(crate) fn listener(&self) -> &D {
        &self.listener
    }

    /// Sends to subscribers, except those that have not yet read the previous message.
    pub(crate) fn publish(&mut self, now: Nanos, words: &[u8]) {
        for client in &mut self.clients {
            if client.only_waits() {
                client.tell(now, words);
            }
        }
    }

    /// Sends every message to all subscribers, in order. A subscriber that is behind by more than `behind_max` bytes is
    /// disconnected, and has to connect again.
    pub(crate) fn publish_all(&mut self, now: Nanos, words: &[u8], behind_max: usize) {
        let poll = &self.poll;
        self.clients.retain_mut(|client| {
            if !client.subscribes() {
                return true;
            }
            let stays = client.say_more(now, words, behind_max);
            if !stays {
                poll.delete(&client.stream).ok();
            }
            stays
        });
    }

    pub(crate) fn nr_subscribers(&self) -> usize {
        let clients = self.clients.iter();
        clients.filter(|client| client.subscribes()).count()
    }

    fn accept(&mut self, now: Nanos) {
        if now.since(self.second) >= SECOND {
            (self.second, self.arrivals) = (now, 0);
        }
        while self.has_room(now) {
            // An error means that no client waits, that it has gone, or that no file is free: the next turn tries
            // again.
            let Ok((stream, refusal)) = self.listener.accept() else {
                return;
            };
            self.arrivals += 1;
            if self.clients.len() >= self.limits.clients_max
                && let Some(slowest) = self.slowest(now)
            {
                let gone = self.clients.swap_remove(slowest);
                self.poll.delete(&gone.stream).ok();
            }
            if self.poll.add(&stream, interest(false)).is_ok() {
                let first = match refusal {
                    Some(words) => Answer::new(words, Then::Close),
                    None => Answer::new(Vec::new(), Then::Listen),
                };
                self.clients.push(Client::new(stream, first, now));
            }
        }
    }

    fn has_room(&self, now: Nanos) -> bool {
        self.arrivals < self.limits.arrivals_max
            && (self.clients.len() < self.limits.clients_max || self.slowest(now).is_some())
    }

    /// Returns the client that has been served for longest, if that is at least [`Limits::gives_way`].
    fn slowest(&self, now: Nanos) -> Option<usize> {
        let since = self.clients.iter().enumerate();
        let since = since.filter(|(_, client)| !client.only_waits());
        let since = since.filter_map(|(at, client)| Some((client.since?, at)));
        let (since, at) = since.min()?;
        (now.since(since) >= self.limits.gives_way).then_some(at)
    }

    /// Listens only while a client can be accepted: a client that cannot must not wake the loop.
    fn open_or_shut(&mut self, now: Nanos) {
        let has_room = self.has_room(now);
        if has_room == self.is_open {
            return;
        }
        let changed = if has_room {
            self.poll.add(&self.listener, interest(false))
        } else {
            self.poll.delete(&self.listener)
        };
        if changed.is_ok() {
            self.is_open = has_room;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollTimeout};

    use super::*;

    impl Listener for UnixListener {
        type Stream = UnixStream;

        fn accept(&self) -> std::io::Result<(UnixStream, Option<Vec<u8>>)> {
            let (stream, _) = self.accept()?;
            stream.set_nonblocking(true)?;
            Ok((stream, None))
        }
    }

    struct Place {
        server: Server<UnixListener>,
        poll: Rc<Epoll>,
        directory: tempfile::TempDir,
    }

    fn place() -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        listener.set_nonblocking(true).expect("possible");
        let poll = Rc::new(Epoll::new(EpollCreateFlags::empty()).expect("a poll"));
        let limits = Limits {
            clients_max: 3,
            arrivals_max: 4,
            message_end: b"\n",
            message_max: 100,
            too_long: b"too long\n".to_vec(),
            timeout: Nanos(10 * SECOND.0),
            gives_way: Nanos(3 * SECOND.0),
        };
        Place {
            server: Server::open(listener, &poll, limits).expect("a server"),
            poll,
            directory,
        }
    }

    fn said(mut client: &UnixStream) -> String {
        let mut buffer = [0; 1024];
        let n = client.read(&mut buffer).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    }

    impl Place {
        fn client(&self) -> UnixStream {
            let path = self.directory.path().join("s");
            let client = UnixStream::connect(path).expect("a connection");
            client.set_nonblocking(true).expect("possible");
            client
        }

        /// Returns two clients that have asked for news.
        fn subscribers(&mut self) -> [UnixStream; 2] {
            let clients = [self.client(), self.client()];
            for mut client in &clients {
                client.write_all(b"news\n").expect("sent");
            }
            self.serve(1);
            clients
        }

        fn serve(&mut self, second: u64) {
            let mut echo = |message: &[u8]| {
                let then = match message {
                    b"bye" => Then::Close,
                    b"news" => Then::Subscribe,
                    _ => Then::Listen,
                };
                Answer::new([message, b"!\n"].concat(), then)
            };
            self.server.serve(Nanos(second * SECOND.0), &mut echo);
        }

        fn wakes(&self) -> bool {
            let mut events = [EpollEvent::empty(); 8];
            let polled = self.poll.wait(&mut events, EpollTimeout::ZERO);
            polled.expect("polled") > 0
        }
    }

    #[test]
    fn messages_in_pieces_and_in_heaps_are_answered() {
        let mut place = place();
        let mut client = place.client();
        client.write_all(b"he").expect("sent");
        place.serve(1);
        assert_eq!(said(&client), "");
        client.write_all(b"llo\nand\nthen").expect("sent");
        place.serve(1);
        assert_eq!(said(&client), "hello!\nand!\n");
        assert!(!place.wakes());
        client.write_all(b"\nbye\nmore\n").expect("sent");
        assert!(place.wakes());
        place.serve(1);
        assert_eq!(said(&client), "then!\nbye!\n");
        assert!(place.server.clients.is_empty());
    }

    #[test]
    fn the_talkative_the_silent_and_the_many_are_held_off() {
        let mut place = place();
        let mut talkative = place.client();
        talkative.write_all(&[b'x'; 5000]).expect("sent");
        let silent = place.client();
        place.serve(1);
        assert_eq!(said(&talkative), "too long\n");
        assert_eq!(place.server.clients.len(), 1);
        place.serve(12);
        assert!(place.server.clients.is_empty());
        let many: Vec<UnixStream> = (0..9).map(|_| place.client()).collect();
        place.serve(13);
        assert_eq!(place.server.clients.len(), 3);
        // Waiting clients do not wake the loop.
        assert!(!place.wakes());
        drop(many);
        // These have disconnected, and three are accepted and have disconnected; one more is the limit of this second.
        (0..4).for_each(|_| place.serve(14));
        assert_eq!(place.server.arrivals, 4);
        assert!(!place.wakes());
        drop(silent);
    }

    #[test]
    fn who_does_not_read_waits_without_waking_anybody() {
        let mut place = place();
        let mut deaf = place.client();
        let mut sent = 0;
        let line = b"0123456789012345678901234567890123456789\n";
        while deaf.write(line).is_ok() && sent < 100_000 {
            sent += 1;
            place.serve(1);
        }
        place.serve(1);
        assert_eq!(place.server.clients.len(), 1);
        assert!(place.server.clients[0].output.bytes.len() < 200);
        assert!(!place.wakes());
        place.serve(12);
        assert!(place.server.clients.is_empty());
    }

    #[test]
    fn slow_clients_give_way_when_all_places_are_taken() {
        let mut place = place();
        let slow: Vec<UnixStream> = (0..3).map(|_| place.client()).collect();
        place.serve(1);
        assert_eq!(place.server.clients.len(), 3);
        let mut quick = place.client();
        quick.write_all(b"hi\n").expect("sent");
        place.serve(2);
        assert_eq!(said(&quick), "", "they have had a second only");
        place.serve(4);
        assert_eq!(said(&quick), "hi!\n");
        assert_eq!(place.server.clients.len(), 3);
        drop(slow);
    }

    #[test]
    fn subscribers_are_told_what_is_new_and_not_all_between() {
        let mut place = place();
        let [keen, deaf] = place.subscribers();
        assert_eq!(place.server.nr_subscribers(), 2);
        assert_eq!(said(&keen), "news!\n");
        // More than a socket holds, for the client that does not read.
        let much = vec![b'x'; 4 << 20];
        for second in 2..40 {
            place.server.publish(Nanos(second * SECOND.0), &much);
            place.serve(second);
            while !said(&keen).is_empty() {
                place.serve(second);
            }
        }
        // A client that does not read is gone.
        assert_eq!(place.server.nr_subscribers(), 1);
        drop(keen);
        place.serve(41);
        assert_eq!(place.server.nr_subscribers(), 0);
        drop(deaf);
    }

    #[test]
    fn subscribers_are_told_all_in_order_until_they_are_far_behind() {
        let mut place = place();
        let [mut keen, deaf] = place.subscribers();
        let mut heard = Vec::new();
        let mut buffer = vec![0; 80_000];
        let mut hear = |keen: &mut UnixStream| {
            let n = keen.read(&mut buffer).unwrap_or(0);
            heard.extend_from_slice(&buffer[..n]);
            n > 0
        };
        for turn in 0..30_u8 {
            let words = vec![turn; 100_000];
            place.server.publish_all(Nanos(SECOND.0), &words, 1 << 20);
            // The client reads a turn's bytes in one and a half turns.
            for _ in 0..2 {
                place.serve(1);
                hear(&mut keen);
            }
        }
        assert_eq!(place.server.nr_subscribers(), 1, "the deaf one is dropped");
        while hear(&mut keen) {
            place.serve(1);
        }
        let wanted: Vec<u8> = (0..30).flat_map(|turn| vec![turn; 100_000]).collect();
        let is_whole = heard == [&b"news!\n"[..], &wanted].concat();
        assert!(is_whole, "{}", heard.len());
        drop(deaf);
    }
}
