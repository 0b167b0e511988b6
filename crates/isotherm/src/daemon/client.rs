//! The client's end of the socket: requests of `isotherm status` and the like to the daemon.

use std::io::{BufRead, BufReader, ErrorKind, Read, Take, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use isotherm_session::protocol::{ProtocolError, REQUEST_BYTES_MAX};
use serde_json::Value;

pub(crate) use isotherm_session::protocol::DaemonRequest;

use crate::whole_file::beside;

/// A busy daemon answers within one step, which may be a large one.
const TIMEOUT: Duration = Duration::from_secs(30);
const REPLY_MAX: u64 = 64 << 20;

/// Sends a request to the daemon at `socket` and returns the reply. Fails if the daemon refuses or does not answer.
pub(crate) fn ask(socket: &Path, request: &DaemonRequest) -> anyhow::Result<Value> {
    say(socket, request).map(|(reply, _)| reply)
}

/// Follows the daemon at `socket`: returns a record of what it sees and does from now on, which ends when the daemon
/// does. [`UnixStream::shutdown`] of the returned stream ends it earlier.
pub(crate) fn follow(socket: &Path) -> anyhow::Result<(impl BufRead + use<>, UnixStream)> {
    let (_, rest) = say(socket, &DaemonRequest::Follow)?;
    let stream = rest.get_ref().get_ref().try_clone()?;
    // The daemon may send nothing for a long time.
    stream.set_read_timeout(None)?;
    let mut rest = rest;
    rest.get_mut().set_limit(u64::MAX);
    Ok((rest, stream))
}

/// Sends a request to the daemon at `socket`; returns the reply and the input after it.
fn say(
    socket: &Path,
    request: &DaemonRequest,
) -> anyhow::Result<(Value, BufReader<Take<UnixStream>>)> {
    let name = socket.display();
    let mut stream = connect(socket)?;
    let line = request.to_line()?;
    ensure!(
        line.len() < REQUEST_BYTES_MAX,
        "this request has {} bytes, and {REQUEST_BYTES_MAX} is the most",
        line.len()
    );
    // A refused client still reads the reason, even if it cannot send any more.
    let sent = stream.write_all(&line);
    let mut input = BufReader::new(stream.take(REPLY_MAX));
    let mut reply = String::new();
    let read = input.read_line(&mut reply);
    if reply.is_empty() {
        read.and(sent.map(|()| 0))
            .with_context(|| format!("the isotherm at {name} does not answer"))?;
        bail!("the isotherm at {name} ended without an answer");
    }
    match request.parse_reply(&reply) {
        Ok(value) => Ok((value, input)),
        Err(error @ ProtocolError::NoReply(_)) => {
            Err(anyhow::Error::new(error).context(format!("what answers at {name} is no isotherm")))
        }
        Err(error) => Err(error.into()),
    }
}

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let name = socket.display();
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
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
    Ok(stream)
}

pub(crate) fn text(status: &Value) -> String {
    isotherm_record::printable_lines(&isotherm_session::protocol::status_text(status))
}

/// Returns the path of the log of a daemon in the background.
pub(crate) fn log_of(socket: &Path) -> std::path::PathBuf {
    beside(socket, "log")
}
