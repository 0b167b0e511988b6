//! The Unix socket for requests (the messages: [`isotherm_session::protocol`]).
//!
//! Root and the daemon's own user may ask, by the kernel's credentials of the peer (SO_PEERCRED). The socket's mode
//! already refuses others; the check also holds if the mode is changed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use isotherm_engine::Nanos;
use isotherm_linux::state;
use nix::sys::epoll::Epoll;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;

use crate::serve::{Answer, Limits, Listener, Server, Then};
use crate::whole_file::beside;
use isotherm_session::protocol::{REQUEST_BYTES_MAX, Reply};
use isotherm_session::{Lock, lock};

/// The socket; its file is removed when it is dropped.
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

/// Opens the socket at `path`, which at most one daemon can hold.
pub(super) fn open(path: &Path, poll: &Rc<Epoll>) -> anyhow::Result<Server<Socket>> {
    let name = path.display();
    make_folder_of(path)?;
    let locked = lock(&beside(path, "lock"), Lock::Alone)
        .with_context(|| format!("cannot lock {name}; run as root, or name another --socket"))?;
    let lock = match locked {
        Ok(lock) => lock,
        Err(Some(pid)) => bail!(
            "an isotherm (pid {pid}) listens on {name} already; `isotherm stop` ends it, and another \
             --socket lets both run"
        ),
        Err(None) => bail!("an isotherm listens on {name} already; name another --socket"),
    };
    if let Ok(metadata) = fs::symlink_metadata(path) {
        ensure!(
            metadata.file_type().is_socket(),
            "{name} is there and no socket; name another --socket"
        );
        // The lock is held, so the daemon of this socket was killed.
        fs::remove_file(path).with_context(|| format!("cannot replace {name}"))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {name}"))?;
    // A client that connects before this is still checked by its credentials.
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| listener.set_nonblocking(true))
        .with_context(|| format!("cannot guard {name}"))?;
    let socket = Socket {
        listener,
        path: path.to_owned(),
        _lock: lock,
    };
    let limits = Limits {
        clients_max: 16,
        arrivals_max: 200,
        message_end: b"\n",
        message_max: REQUEST_BYTES_MAX,
        too_long: Answer::line(
            &Reply::failed(format!("a request has at most {REQUEST_BYTES_MAX} bytes")),
            Then::Close,
        )
        .bytes,
        timeout: Nanos(30_000_000_000),
        gives_way: Nanos(5_000_000_000),
    };
    Server::open(socket, poll, limits).with_context(|| format!("cannot poll {name}"))
}

/// Creates the directory of a socket or of its log.
pub(crate) fn make_folder_of(path: &Path) -> anyhow::Result<()> {
    let Some(directory) = path.parent().filter(|parent| *parent != Path::new("")) else {
        return Ok(());
    };
    if state::path().is_ok_and(|ours| ours == directory) {
        state::directory()?;
        return Ok(());
    }
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory);
    made.with_context(|| format!("cannot create {}", directory.display()))
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Listener for Socket {
    type Stream = UnixStream;

    fn accept(&self) -> std::io::Result<(UnixStream, Option<Vec<u8>>)> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        let uid = getsockopt(&stream, PeerCredentials)?.uid();
        let refusal = (!may_ask(uid)).then(|| {
            let why = format!("user {uid} may not ask; only root and the daemon's own user may");
            Answer::line(&Reply::failed(why), Then::Close).bytes
        });
        Ok((stream, refusal))
    }
}

fn may_ask(uid: u32) -> bool {
    uid == 0 || uid == Uid::effective().as_raw()
}

impl Drop for Socket {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
        // The lock is still held here.
        fs::remove_file(beside(&self.path, "lock")).ok();
    }
}
