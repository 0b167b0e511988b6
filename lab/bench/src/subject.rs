//! Subjects of the accuracy bench: a workload of known truth, or redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use isotherm_engine::Nanos;
use isotherm_workload::accuracy::observed;
use isotherm_workload::truth::Episode;

use super::child::thread_cpu;
use super::recording::Recording;
use super::redis::{self, Client, Server};
use super::workload::Workload;
use super::{BenchContext, Mode};

/// A running program whose speed can be measured, and whose accesses are known.
pub(super) enum Subject {
    Exercise(Workload),
    Redis(Busy),
}

/// A redis server that a client keeps busy.
pub(super) struct Busy {
    server: Server,
    requests: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    client: Option<JoinHandle<anyhow::Result<()>>>,
    truth: Vec<Episode>,
}

/// A moment of a running subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    time: Nanos,
    cpu: Duration,
    requests: u64,
}

/// Operations per second between two marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Operations by the clock.
    pub(super) wall: f64,
    /// Operations by the subject's own CPU time, which other programs on the machine do not change.
    pub(super) cpu: f64,
}

impl Subject {
    /// Starts redis with `keys` keys. Its truth is observed at once, by exact scans.
    pub(super) fn redis(context: &BenchContext, keys: u64) -> anyhow::Result<Self> {
        let (server, client) = redis::start(context, keys)?;
        let mut busy = Busy::new(server, client);
        let exact = Mode {
            name: "truth".into(),
            flags: ["--pages", "--max-stall", "1s"].map(str::to_owned).to_vec(),
        };
        let scans = Recording::start(context, &exact, busy.server.pid(), context.duration)?
            .finish(context)
            .context("the exact scan, against which all else is scored, failed")?
            .snapshots;
        // The first scan finds pages that were accessed before the load began.
        busy.truth = vec![observed(scans.iter().skip(1))];
        Ok(Self::Redis(busy))
    }

    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Exercise(workload) => workload.pid(),
            Self::Redis(busy) => busy.server.pid(),
        }
    }

    pub(super) fn mark(&mut self) -> anyhow::Result<Mark> {
        let requests = match self {
            Self::Exercise(workload) => {
                workload.check_running()?;
                0
            }
            Self::Redis(busy) => {
                busy.check_running()?;
                busy.requests.load(Ordering::Relaxed)
            }
        };
        Ok(Mark {
            time: SystemTime::now().duration_since(UNIX_EPOCH)?.into(),
            cpu: thread_cpu(self.pid())?,
            requests,
        })
    }

    /// Returns the speed between two marks, the later of which is now.
    pub(super) fn rate(
        &self,
        context: &BenchContext,
        from: Mark,
        to: Mark,
    ) -> anyhow::Result<Rate> {
        let operations = match self {
            Self::Exercise(workload) => workload.operations(context, from.time, to.time)?,
            Self::Redis(_) => (to.requests - from.requests) as f64,
        };
        let cpu = to.cpu.saturating_sub(from.cpu).as_secs_f64();
        Ok(Rate {
            wall: operations / (to.time - from.time).as_secs_f64(),
            cpu: operations / cpu.max(1e-9),
        })
    }

    /// Returns the known accesses so far.
    pub(super) fn episodes(&self) -> anyhow::Result<Vec<Episode>> {
        match self {
            Self::Exercise(workload) => workload.episodes(),
            Self::Redis(busy) => Ok(busy.truth.clone()),
        }
    }
}

impl Busy {
    fn new(server: Server, mut client: Client) -> Self {
        let requests = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (count, end) = (Arc::clone(&requests), Arc::clone(&stop));
        let client =
            std::thread::spawn(move || client.read(&count, || Ok(!end.load(Ordering::Relaxed))));
        Self {
            server,
            requests,
            stop,
            client: Some(client),
            truth: Vec::new(),
        }
    }

    fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()?;
        if !self.client.as_ref().is_some_and(JoinHandle::is_finished) {
            return Ok(());
        }
        match self.client.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error).context("redis' client failed"),
            _ => bail!("redis' client ended early"),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The client ends before the server, which ends with its field: the client must not see it end. A mark has
        // already reported the client's failure, if there was one.
        if let Some(client) = self.client.take() {
            let _ = client.join();
        }
    }
}
