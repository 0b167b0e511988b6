//! The other end of the socket: what `isotherm status` and the like say to the daemon.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use isotherm_session::protocol::{ProtocolError, REQUEST_BYTES_MAX};
use serde_json::Value;

pub(crate) use isotherm_session::protocol::Request;

use super::socket::beside;

/// A daemon at work answers within a step, which may be a large one.
const TIMEOUT: Duration = Duration::from_secs(30);
const REPLY_MAX: u64 = 64 << 20;

/// Asks the daemon at `socket`. Fails where it does, or nobody answers.
pub(crate) fn ask(socket: &Path, request: &Request) -> anyhow::Result<Value> {
    let name = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow::anyhow!(
            "no isotherm answers at {name}; `isotherm start` starts one (--socket, if it is elsewhere)"
        ),
        ErrorKind::PermissionDenied => anyhow::anyhow!(
            "cannot reach {name}: {error}; only root and the daemon's own user may"
        ),
        _ => anyhow::anyhow!("cannot reach {name}: {error}"),
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let line = request.to_line()?;
    ensure!(
        line.len() < REQUEST_BYTES_MAX,
        "this request has {} bytes, and {REQUEST_BYTES_MAX} is the most",
        line.len()
    );
    // One who is refused is told so, even if he cannot send any more.
    let sent = stream.write_all(&line);
    let mut reply = String::new();
    let read = BufReader::new(stream.take(REPLY_MAX)).read_line(&mut reply);
    if reply.is_empty() {
        read.and(sent.map(|()| 0))
            .with_context(|| format!("the isotherm at {name} does not answer"))?;
        bail!("the isotherm at {name} ended without an answer");
    }
    request.parse_reply(&reply).map_err(|error| match error {
        ProtocolError::NoReply(_) => {
            anyhow::Error::new(error).context(format!("what answers at {name} is no isotherm"))
        }
        error => error.into(),
    })
}

/// A status for people.
pub(crate) fn text(status: &Value) -> String {
    isotherm_record::printable_lines(&isotherm_session::protocol::status_text(status))
}

/// Where a daemon in the background writes what it has to say.
pub(crate) fn log_of(socket: &Path) -> std::path::PathBuf {
    beside(socket, "log")
}
