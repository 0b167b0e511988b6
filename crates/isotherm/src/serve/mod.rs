//! A server at which clients are served: one listening socket and those who came in by it.
//!
//! Problem: a client may send nothing, half a message, endless bytes, or never read its answer, and
//! the daemon's loop must go on all the same.
//!
//! Approach: nothing blocks; each turn of the loop does at most a fixed amount for each client. A
//! client has one message or one answer in memory at a time, of bounded size, and must finish it in
//! bounded time; there are few clients at a time and few new ones a second, and more wait outside.
//! Clients are in an epoll set (as readable, or as writable while an answer is pending), which only
//! ends the loop's sleep: who is ready is found by trying, as there are so few.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;

use isotherm_engine::Nanos;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// Reads and writes for a client in one turn.
const TRIES_PER_TURN: usize = 64;
const READ_BYTES: usize = 16 << 10;
const SECOND: Nanos = Nanos(1_000_000_000);

/// Where clients connect.
pub(super) trait Listener: AsFd {
    /// What talks to a client, set to not block.
    type Stream: Read + Write + AsFd;

    /// The next client, and if it is to be turned away, with which words.
    fn accept(&self) -> std::io::Result<(Self::Stream, Option<Vec<u8>>)>;
}

/// What clients are held to.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// At a time.
    pub(super) clients_max: usize,
    /// New ones in a second.
    pub(super) arrivals_max: u32,
    /// What a message ends with.
    pub(super) message_end: &'static [u8],
    /// Bytes of a message.
    pub(super) message_max: usize,
    /// What is said to a longer one.
    pub(super) too_long: Vec<u8>,
    /// Time for a message to come, and for its answer to be taken.
    pub(super) timeout: Nanos,
    /// When all places are taken, the slowest client that has had this long gives way to a new one.
    pub(super) gives_way: Nanos,
}

/// What is answered to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// Nothing more is heard from this client.
    pub(super) is_last: bool,
}

impl Answer {
    /// JSON and a newline.
    pub(super) fn line(value: &impl serde::Serialize, is_last: bool) -> Self {
        // Maps have text as keys, and nothing else fails.
        let mut bytes = serde_json::to_vec(value).unwrap_or_default();
        bytes.push(b'\n');
        Self { bytes, is_last }
    }
}

/// The server.
pub(super) struct Server<D: Listener> {
    listener: D,
    poll: Rc<Epoll>,
    limits: Limits,
    clients: Vec<Client<D::Stream>>,
    is_open: bool,
    second: Nanos,
    arrivals: u32,
}

struct Client<S> {
    stream: S,
    input: Vec<u8>,
    /// No message ends before this place in `input`.
    looked: usize,
    output: Vec<u8>,
    written: usize,
    is_last: bool,
    /// When it came, or its last answer was taken.
    since: Option<Nanos>,
    waits_to_write: bool,
}

impl<D: Listener> Server<D> {
    pub(super) fn open(listener: D, poll: &Rc<Epoll>, limits: Limits) -> std::io::Result<Self> {
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

    /// Does what can be done at once for everybody.
    pub(super) fn serve(&mut self, now: Nanos, answer: &mut dyn FnMut(&[u8]) -> Answer) {
        self.accept(now);
        let limits = &self.limits;
        let poll = &self.poll;
        self.clients.retain_mut(|client| {
            let stays = client.serve(now, limits, answer) && client.listen(poll);
            if !stays {
                // Closing it would do, unless something holds it a while longer.
                poll.delete(&client.stream).ok();
            }
            stays
        });
        self.open_or_shut(now);
    }

    fn accept(&mut self, now: Nanos) {
        if now.since(self.second) >= SECOND {
            (self.second, self.arrivals) = (now, 0);
        }
        while self.has_room(now) {
            // An error is that there is nobody, or that he has gone, or no more files: later, then.
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
                self.clients.push(Client {
                    stream,
                    input: Vec::new(),
                    looked: 0,
                    is_last: refusal.is_some(),
                    output: refusal.unwrap_or_default(),
                    written: 0,
                    since: Some(now),
                    waits_to_write: false,
                });
            }
        }
    }

    fn has_room(&self, now: Nanos) -> bool {
        self.arrivals < self.limits.arrivals_max
            && (self.clients.len() < self.limits.clients_max || self.slowest(now).is_some())
    }

    /// Who has been at it for longest, if that is long enough to give way.
    fn slowest(&self, now: Nanos) -> Option<usize> {
        let since = self.clients.iter().enumerate();
        let since = since.filter_map(|(at, client)| Some((client.since?, at)));
        let (since, at) = since.min()?;
        (now.since(since) >= self.limits.gives_way).then_some(at)
    }

    /// Who cannot be let in must not wake the loop.
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

fn interest(waits_to_write: bool) -> EpollEvent {
    let flags = if waits_to_write {
        EpollFlags::EPOLLOUT
    } else {
        EpollFlags::EPOLLIN
    };
    EpollEvent::new(flags, 0)
}

/// What came of trying.
enum Tried {
    Some,
    NotNow,
    Gone,
}

impl<S: Read + Write + AsFd> Client<S> {
    /// Says whether the client stays.
    fn serve(
        &mut self,
        now: Nanos,
        limits: &Limits,
        answer: &mut dyn FnMut(&[u8]) -> Answer,
    ) -> bool {
        let since = *self.since.get_or_insert(now);
        for _ in 0..TRIES_PER_TURN {
            let tried = if self.written < self.output.len() {
                self.write()
            } else if self.is_last {
                Tried::Gone
            } else if let Some(message) = self.take_message(limits) {
                let Answer { bytes, is_last } = answer(&message);
                (self.output, self.written, self.is_last) = (bytes, 0, is_last);
                self.since = None;
                Tried::Some
            } else if self.input.len() >= limits.message_max {
                (self.output, self.written, self.is_last) = (limits.too_long.clone(), 0, true);
                Tried::Some
            } else {
                self.read(limits)
            };
            match tried {
                Tried::Some => {}
                Tried::NotNow => break,
                Tried::Gone => return false,
            }
        }
        now.since(since) < limits.timeout
    }

    /// Waits for what it needs next.
    fn listen(&mut self, poll: &Epoll) -> bool {
        let waits_to_write = self.written < self.output.len();
        if waits_to_write == self.waits_to_write {
            return true;
        }
        self.waits_to_write = waits_to_write;
        poll.modify(&self.stream, &mut interest(waits_to_write))
            .is_ok()
    }

    fn take_message(&mut self, limits: &Limits) -> Option<Vec<u8>> {
        let end = limits.message_end;
        let at = self.input[self.looked..]
            .windows(end.len())
            .position(|window| window == end);
        let Some(at) = at else {
            self.looked = (self.input.len() + 1).saturating_sub(end.len());
            return None;
        };
        let rest = self.input.split_off(self.looked + at + end.len());
        let mut message = std::mem::replace(&mut self.input, rest);
        message.truncate(self.looked + at);
        self.looked = 0;
        Some(message)
    }

    fn read(&mut self, limits: &Limits) -> Tried {
        let room = limits.message_max - self.input.len();
        let mut buffer = [0; READ_BYTES];
        match self.stream.read(&mut buffer[..room.min(READ_BYTES)]) {
            Ok(0) => Tried::Gone,
            Ok(n) => {
                self.input.extend_from_slice(&buffer[..n]);
                Tried::Some
            }
            Err(error) => after(&error),
        }
    }

    fn write(&mut self) -> Tried {
        match self.stream.write(&self.output[self.written..]) {
            Ok(0) => Tried::Gone,
            Ok(n) => {
                self.written += n;
                Tried::Some
            }
            Err(error) => after(&error),
        }
    }
}

fn after(error: &std::io::Error) -> Tried {
    match error.kind() {
        ErrorKind::WouldBlock => Tried::NotNow,
        ErrorKind::Interrupted => Tried::Some,
        _ => Tried::Gone,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};

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

    fn client(directory: &Path) -> UnixStream {
        let client = UnixStream::connect(directory.join("s")).expect("a connection");
        client.set_nonblocking(true).expect("possible");
        client
    }

    fn said(mut client: &UnixStream) -> String {
        let mut buffer = [0; 1024];
        let n = client.read(&mut buffer).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    }

    impl Place {
        fn serve(&mut self, second: u64) {
            let mut echo = |message: &[u8]| Answer {
                bytes: [message, b"!\n"].concat(),
                is_last: message == b"bye",
            };
            self.server.serve(Nanos(second * SECOND.0), &mut echo);
        }

        fn wakes(&self) -> bool {
            let mut events = [EpollEvent::empty(); 8];
            self.poll
                .wait(&mut events, EpollTimeout::ZERO)
                .expect("polled")
                > 0
        }
    }

    #[test]
    fn messages_in_pieces_and_in_heaps_are_answered() {
        let mut place = place();
        let mut client = client(place.directory.path());
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
        let mut talkative = client(place.directory.path());
        talkative.write_all(&[b'x'; 5000]).expect("sent");
        let silent = client(place.directory.path());
        place.serve(1);
        assert_eq!(said(&talkative), "too long\n");
        assert_eq!(place.server.clients.len(), 1);
        place.serve(12);
        assert!(place.server.clients.is_empty());
        let many: Vec<UnixStream> = (0..9).map(|_| client(place.directory.path())).collect();
        place.serve(13);
        assert_eq!(place.server.clients.len(), 3);
        // Those outside do not wake the loop.
        assert!(!place.wakes());
        drop(many);
        // These have left, three are let in, and have left; and one more is all for this second.
        (0..4).for_each(|_| place.serve(14));
        assert_eq!(place.server.arrivals, 4);
        assert!(!place.wakes());
        drop(silent);
    }

    #[test]
    fn who_does_not_read_waits_without_waking_anybody() {
        let mut place = place();
        let mut deaf = client(place.directory.path());
        let mut sent = 0;
        while deaf
            .write(b"0123456789012345678901234567890123456789\n")
            .is_ok()
            && sent < 100_000
        {
            sent += 1;
            place.serve(1);
        }
        place.serve(1);
        assert_eq!(place.server.clients.len(), 1);
        assert!(place.server.clients[0].output.len() < 200);
        assert!(!place.wakes());
        place.serve(12);
        assert!(place.server.clients.is_empty());
    }

    #[test]
    fn slow_clients_give_way_when_all_places_are_taken() {
        let mut place = place();
        let slow: Vec<UnixStream> = (0..3).map(|_| client(place.directory.path())).collect();
        place.serve(1);
        assert_eq!(place.server.clients.len(), 3);
        let mut quick = client(place.directory.path());
        quick.write_all(b"hi\n").expect("sent");
        place.serve(2);
        assert_eq!(said(&quick), "", "they have had a second only");
        place.serve(4);
        assert_eq!(said(&quick), "hi!\n");
        assert_eq!(place.server.clients.len(), 3);
        drop(slow);
    }
}
