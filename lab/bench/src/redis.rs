//! A redis-server of the bench, and a client that reads a hot tenth of its keys.
//!
//! The client speaks RESP over a Unix socket and keeps a batch of requests under way. All values have the same size, so
//! a batch's answer has a known length, and the client checks only that. An error or a missing key has another length
//! or another first byte.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::BenchContext;
use super::child::{Guarded, thread_cpu};

const VALUE_BYTES: usize = 1000;
const BATCH: usize = 16;
const START_LIMIT: Duration = Duration::from_secs(20);

/// A redis server that is filled.
pub(super) struct Server {
    server: Guarded,
}

/// A client of it.
pub(super) struct Client {
    stream: UnixStream,
    keys: u64,
    /// State of the choice of keys (an additive sequence; nothing here needs good randomness).
    next: u64,
}

/// Results of the client and the server in a window.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Window {
    pub(super) requests_per_second: f64,
    /// CPU time of the server's main thread for each request.
    pub(super) server_microseconds_per_request: f64,
}

/// Returns whether redis is installed.
pub(super) fn installed() -> bool {
    let mut version = Command::new("redis-server");
    version.arg("--version").stdout(Stdio::null());
    version.status().is_ok()
}

/// Starts a server and fills it with `keys` values.
pub(super) fn start(context: &BenchContext, keys: u64) -> anyhow::Result<(Server, Client)> {
    let socket = context.scratch("redis.sock");
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new("redis-server");
    // The server has no port, no snapshot and no log: it uses only memory, and serves only the bench.
    command
        .args(["--port", "0", "--save", "", "--appendonly", "no"])
        .arg("--unixsocket")
        .arg(&socket)
        .arg("--dir")
        .arg(context.scratch.path())
        .stdout(Stdio::null());
    let mut server = Guarded::spawn(context, &mut command)?;
    let end = Instant::now() + START_LIMIT;
    let stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > end => {
                return Err(error).context("redis-server does not answer");
            }
            Err(_) => {
                server.check_running()?;
                context.sleep(Duration::from_millis(50))?;
            }
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut client = Client {
        stream,
        keys,
        next: 0,
    };
    client.fill(context)?;
    Ok((Server { server }, client))
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.server.id()
    }

    pub(super) fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()
    }

    /// Lets `client` read for `time`, and measures both.
    pub(super) fn window(
        &self,
        context: &BenchContext,
        client: &mut Client,
        time: Duration,
    ) -> anyhow::Result<Window> {
        let cpu = thread_cpu(self.pid())?;
        let start = Instant::now();
        let requests = AtomicU64::new(0);
        client.read(&requests, || {
            context.sleep(Duration::ZERO)?;
            Ok(start.elapsed() < time)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = thread_cpu(self.pid())?.saturating_sub(cpu);
        let requests = requests.into_inner() as f64;
        Ok(Window {
            requests_per_second: requests / seconds,
            server_microseconds_per_request: cpu.as_secs_f64() * 1e6 / requests.max(1.0),
        })
    }
}

impl Client {
    fn fill(&mut self, context: &BenchContext) -> anyhow::Result<()> {
        let mut request = Vec::new();
        let keys: Vec<u64> = (0..self.keys).collect();
        for batch in keys.chunks(1000) {
            request.clear();
            for key in batch {
                write!(
                    request,
                    "*3\r\n$3\r\nSET\r\n$14\r\nk{key:013}\r\n${VALUE_BYTES}\r\n"
                )?;
                // Values differ, as real ones do.
                request.extend(
                    (0..VALUE_BYTES).map(|i| b'a' + ((key * 7 + i as u64 * 31) % 26) as u8),
                );
                request.extend(b"\r\n");
            }
            self.stream.write_all(&request)?;
            let mut answer = vec![0; batch.len() * b"+OK\r\n".len()];
            self.stream.read_exact(&mut answer)?;
            ensure!(
                answer.chunks(5).all(|one| one == b"+OK\r\n"),
                "redis does not take the keys: {}",
                String::from_utf8_lossy(&answer[..answer.len().min(80)])
            );
            context.sleep(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Reads keys of the hot tenth while `go_on` returns true, and counts answers.
    pub(super) fn read(
        &mut self,
        requests: &AtomicU64,
        mut go_on: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let head = format!("${VALUE_BYTES}\r\n");
        let one = head.len() + VALUE_BYTES + 2;
        let mut answer = vec![0; one * BATCH];
        let mut request = Vec::new();
        let hot = (self.keys / 10).max(1);
        while go_on()? {
            request.clear();
            for _ in 0..BATCH {
                self.next = self.next.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let key = (u128::from(self.next) * u128::from(hot)) >> 64;
                write!(request, "*2\r\n$3\r\nGET\r\n$14\r\nk{key:013}\r\n")?;
            }
            self.stream.write_all(&request)?;
            self.stream.read_exact(&mut answer)?;
            if !answer
                .chunks(one)
                .all(|one| one.starts_with(head.as_bytes()))
            {
                bail!("redis lost keys; did it run out of memory?");
            }
            requests.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
