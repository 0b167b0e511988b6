//! Requests by the unix socket: a line of JSON each, answered by a line of JSON.
//!
//! `{"do":"status"}`, `{"do":"tune","config":TEXT,"name":FILE}`, `{"do":"reload"}`,
//! `{"do":"pause"}`, `{"do":"resume"}`, `{"do":"stop"}`. An answer has `"ok":true`, or `"ok":false`
//! and an `"error"`.
//!
//! Who may ask: root, and the user whom the daemon runs as, as the kernel tells (SO_PEERCRED). The
//! socket's mode keeps others away already; the check also holds where somebody changes the mode.

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
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::server::{Answer, Door, Rules, Server};
use isotherm_session::{Lock, lock};

/// The longest request, newline included.
pub(super) const REQUEST_MAX: usize = 1 << 20;

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Request {
    /// How it stands.
    Status,
    /// Schemes and limits of this configuration from now on.
    Tune {
        /// Its text.
        config: String,
        /// What to call it, e.g. its file.
        name: String,
    },
    /// Read the files again that were named at the start.
    Reload,
    /// Act no more, for now.
    Pause,
    /// Go on.
    Resume,
    /// End.
    Stop,
}

impl Request {
    /// Reads a request, without its newline.
    pub(super) fn parse(message: &[u8]) -> anyhow::Result<Self> {
        serde_json::from_slice(message).context(
            "this is no request, which is a line of JSON: {\"do\":\"status\"}, tune (with config and \
             name), reload, pause, resume or stop",
        )
    }
}

/// It went well; `notes` are what the user should know.
pub(super) fn success(notes: &[String]) -> Value {
    json!({ "ok": true, "notes": notes })
}

/// It did not, and nothing was changed.
pub(super) fn failure(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

/// The socket, which goes with it.
pub(super) struct Gate {
    listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

/// Opens the socket at `path`, which at most one daemon has.
pub(super) fn open(path: &Path, poll: &Rc<Epoll>) -> anyhow::Result<Server<Gate>> {
    let name = path.display();
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    if let Some(directory) = directory
        && state::path().is_ok_and(|ours| ours == directory)
    {
        state::directory()?;
    } else if let Some(directory) = directory {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
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
        // Its daemon was killed: we have the lock.
        fs::remove_file(path).with_context(|| format!("cannot replace {name}"))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {name}"))?;
    // Whoever connects before this is still asked who he is.
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| listener.set_nonblocking(true))
        .with_context(|| format!("cannot guard {name}"))?;
    let gate = Gate {
        listener,
        path: path.to_owned(),
        _lock: lock,
    };
    let rules = Rules {
        clients_max: 16,
        arrivals_max: 200,
        message_end: b"\n",
        message_max: REQUEST_MAX,
        too_long: Answer::line(
            &failure(&format!("a request has at most {REQUEST_MAX} bytes")),
            true,
        )
        .bytes,
        timeout: Nanos(30_000_000_000),
        gives_way: Nanos(5_000_000_000),
    };
    Server::open(gate, poll, rules).with_context(|| format!("cannot poll {name}"))
}

/// `path.EXTENSION`.
pub(super) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Door for Gate {
    type Stream = UnixStream;

    fn accept(&self) -> std::io::Result<(UnixStream, Option<Vec<u8>>)> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        let uid = getsockopt(&stream, PeerCredentials)?.uid();
        let refusal = (!may_ask(uid)).then(|| {
            let why = format!("user {uid} may not ask; only root and the daemon's own user may");
            Answer::line(&failure(&why), true).bytes
        });
        Ok((stream, refusal))
    }
}

fn may_ask(uid: u32) -> bool {
    uid == 0 || uid == Uid::effective().as_raw()
}

impl Drop for Gate {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
        // While it is locked.
        fs::remove_file(beside(&self.path, "lock")).ok();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_read_and_others_explained() {
        let read = |text: &str| Request::parse(text.as_bytes());
        assert_eq!(read(r#"{"do":"status"}"#).ok(), Some(Request::Status));
        assert_eq!(
            read(r#"{"do":"tune","config":"a\nb","name":"f"}"#).ok(),
            Some(Request::Tune {
                config: "a\nb".into(),
                name: "f".into()
            })
        );
        for bad in [
            "",
            "status",
            r#"{"do":"format"}"#,
            r#"{"do":"tune"}"#,
            "[]",
            "{\"do\":7}",
            "\u{0}",
        ] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains("no request"), "{error}");
        }
        assert!(read(&"[".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::parse(&bytes);
        }

        #[test]
        fn near_misses_are_read_or_refused(
            word in "(status|tune|stop|pause|x)?",
            key in "(do|Do|config|name|\\\\u0000)",
            rest in r#"[\{\}\[\]",:a-z0-9\\ ]{0,40}"#,
        ) {
            let _ = Request::parse(format!(r#"{{"{key}":"{word}"{rest}}}"#).as_bytes());
        }

        #[test]
        fn what_is_written_is_read(config in ".*", name in ".*") {
            let request = Request::Tune { config, name };
            let text = serde_json::to_vec(&request).expect("JSON");
            prop_assert!(!text.contains(&b'\n'));
            prop_assert_eq!(Request::parse(&text).ok(), Some(request));
        }
    }
}
