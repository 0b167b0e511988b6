//! One client of a server: the input that it has sent and the output that it has yet to read.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;

use isotherm_engine::Nanos;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::{Answer, Limits, Then};

/// Reads and writes of one client in one turn.
const TRIES_PER_TURN: usize = 64;
const READ_BYTES: usize = 16 << 10;

pub(super) struct Client<S> {
    pub(super) stream: S,
    input: Vec<u8>,
    /// No message ends before this index of `input`.
    looked: usize,
    pub(super) output: Answer,
    written: usize,
    /// Time of the connection, of the first serving after an answer, or of the last moment without output for a
    /// subscriber.
    pub(super) since: Option<Nanos>,
    waits_to_write: bool,
}

pub(super) fn interest(waits_to_write: bool) -> EpollEvent {
    let flags = if waits_to_write {
        EpollFlags::EPOLLOUT
    } else {
        EpollFlags::EPOLLIN
    };
    EpollEvent::new(flags, 0)
}

enum Tried {
    Some,
    NotNow,
    Gone,
}

impl<S: Read + Write + AsFd> Client<S> {
    /// Returns a client that connected at `now`, with `first` as its output.
    pub(super) fn new(stream: S, first: Answer, now: Nanos) -> Self {
        Self {
            stream,
            input: Vec::new(),
            looked: 0,
            output: first,
            written: 0,
            since: Some(now),
            waits_to_write: false,
        }
    }

    /// Returns whether the client receives what [`super::Server::publish`] sends.
    pub(super) fn subscribes(&self) -> bool {
        self.output.then == Then::Subscribe
    }

    /// Replaces the output of a subscriber that has read all of its output.
    pub(super) fn tell(&mut self, now: Nanos, words: &[u8]) {
        self.say(Answer::new(words.to_vec(), Then::Subscribe));
        self.since = Some(now);
    }

    /// Reads, answers and writes until the client has nothing ready; returns whether the client stays.
    pub(super) fn serve(
        &mut self,
        now: Nanos,
        limits: &Limits,
        answer: &mut dyn FnMut(&[u8]) -> Answer,
    ) -> bool {
        let since = *self.since.get_or_insert(now);
        for _ in 0..TRIES_PER_TURN {
            let tried = if self.has_output() {
                self.write()
            } else if self.output.then == Then::Close {
                Tried::Gone
            } else if self.output.then == Then::Subscribe {
                self.since = Some(now);
                self.is_still_there()
            } else if let Some(message) = self.take_message(limits) {
                self.say(answer(&message));
                self.since = None;
                Tried::Some
            } else if self.input.len() >= limits.message_max {
                self.say(Answer::new(limits.too_long.clone(), Then::Close));
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

    /// Waits in `poll` for what the client needs next: to write while output is pending, else to read.
    pub(super) fn listen(&mut self, poll: &Epoll) -> bool {
        let waits_to_write = self.has_output();
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

    fn say(&mut self, answer: Answer) {
        (self.output, self.written) = (answer, 0);
    }

    /// Appends to a subscriber's output; returns false if the subscriber would be behind by more than `behind_max`
    /// bytes.
    pub(super) fn say_more(&mut self, now: Nanos, words: &[u8], behind_max: usize) -> bool {
        if !self.has_output() {
            self.tell(now, words);
            return true;
        }
        let behind = self.output.bytes.len() + self.output.rest.len() - self.written;
        if behind + words.len() > behind_max || !self.output.rest.is_empty() {
            return false;
        }
        self.output.bytes.drain(..self.written);
        self.written = 0;
        self.output.bytes.extend_from_slice(words);
        true
    }

    /// Returns whether this is a subscriber that has read all of its output.
    pub(super) fn only_waits(&self) -> bool {
        self.output.then == Then::Subscribe && !self.has_output()
    }

    fn has_output(&self) -> bool {
        self.written < self.output.bytes.len() + self.output.rest.len()
    }

    /// Reads and discards a subscriber's input; only a closed connection matters.
    fn is_still_there(&mut self) -> Tried {
        match self.stream.read(&mut [0; 512]) {
            Ok(0) => Tried::Gone,
            Ok(_) => Tried::Some,
            Err(error) => after(&error),
        }
    }

    fn write(&mut self) -> Tried {
        let first = self.output.bytes.len();
        let left = if self.written < first {
            &self.output.bytes[self.written..]
        } else {
            &self.output.rest[self.written - first..]
        };
        match self.stream.write(left) {
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
