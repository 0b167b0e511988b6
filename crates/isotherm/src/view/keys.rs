//! Keys from the terminal, and the state of the terminal.
//!
//! Problem: crossterm never returns once its terminal is closed: it repeats a read that gives no bytes.
//!
//! Approach: a thread of its own waits in crossterm for keys. The view asks that thread, and asks the kernel whether
//! the terminal is closed. The thread ends with the process.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Keys, in the order in which they were pressed.
pub(super) struct Keys(Receiver<io::Result<Event>>);

impl Keys {
    pub(super) fn read() -> anyhow::Result<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name("keys".to_owned())
            .spawn(move || {
                loop {
                    let event = event::read();
                    let is_last = event.is_err();
                    if sender.send(event).is_err() || is_last {
                        return;
                    }
                }
            })
            .context("cannot start a thread for the keyboard")?;
        Ok(Self(receiver))
    }

    /// Returns the next key that was pressed; `None` if there is none within `wait`.
    pub(super) fn next(&self, wait: Duration) -> anyhow::Result<Option<KeyEvent>> {
        loop {
            match self.0.recv_timeout(wait) {
                Ok(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => return Ok(Some(key)),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error).context("cannot read the keyboard"),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

/// Returns whether standard input's terminal has been closed.
pub(super) fn terminal_is_gone() -> bool {
    let stdin = io::stdin();
    let mut of_stdin = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    // Hang-ups are reported without being asked for.
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    poll(&mut of_stdin, PollTimeout::ZERO).is_ok()
        && of_stdin[0]
            .revents()
            .is_some_and(|events| events.intersects(gone))
}
