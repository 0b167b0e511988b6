//! One run of `isotherm record`, and the content of its record.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isotherm_engine::{Snapshot, TargetId};
use isotherm_record::{CostSample, Item, Reader};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::child::{Guarded, children_cpu};
use super::{BenchContext, Mode};

const SLACK: Duration = Duration::from_secs(30);

pub(super) struct Recording {
    child: Guarded,
    path: PathBuf,
    started: Instant,
    duration: Duration,
    cpu_before: Duration,
}

pub(super) struct Recorded {
    pub(super) snapshots: Vec<Snapshot>,
    /// The recorder's CPU time by its own count, as a share of one CPU.
    pub(super) cpu_claimed: Option<f64>,
    /// `cpu_claimed` with the recorder's estimate of the time taken from the target.
    pub(super) cpu_claimed_induced: Option<f64>,
    /// The recorder's CPU time by the kernel's count, start and end included, as a share of one CPU.
    pub(super) cpu_measured: f64,
    /// The recorder's peak memory by its own count.
    pub(super) rss_max: u64,
}

impl Recording {
    /// Starts to record process `pid`, or the whole machine.
    pub(super) fn start(
        context: &BenchContext,
        mode: &Mode,
        pid: u32,
        duration: Duration,
    ) -> Result<Self> {
        let path = context.scratch("record.isotherm");
        let _ = std::fs::remove_file(&path);
        let cpu_before = children_cpu()?;
        let mut command = Command::new(&context.isotherm);
        command.arg("record");
        if !mode.is_of_the_machine() {
            command.args(["--pid", &pid.to_string()]);
        }
        command
            .args(["--duration", &format!("{}s", duration.as_secs()), "-o"])
            .arg(&path)
            .args(&mode.flags)
            .stdout(Stdio::null());
        Ok(Self {
            child: Guarded::spawn(context, &mut command)?,
            path,
            started: Instant::now(),
            duration,
            cpu_before,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops or continues the recorder, which still runs.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.child.check_running()?;
        Ok(kill(Pid::from_raw(self.id() as i32), signal)?)
    }

    /// Waits for the recorder's end. Returns its record and its CPU time as a share of one CPU.
    pub(super) fn end(mut self, context: &BenchContext) -> Result<(PathBuf, f64)> {
        self.child.finish(context, self.duration + SLACK)?;
        let elapsed = self.started.elapsed();
        let cpu = children_cpu()?.saturating_sub(self.cpu_before);
        Ok((self.path, cpu.as_secs_f64() / elapsed.as_secs_f64()))
    }

    pub(super) fn finish(self, context: &BenchContext) -> Result<Recorded> {
        let (path, cpu_measured) = self.end(context)?;
        Ok(Recorded {
            cpu_measured,
            ..read(&path)?
        })
    }
}

/// Records all accesses of process `pid` to its pages, as the trace that simulations replay. Returns its path.
pub(super) fn trace(context: &BenchContext, pid: u32, duration: Duration) -> Result<PathBuf> {
    let mode = Mode::parse("trace=--pages -q --max-stall 1s")?;
    let recording = Recording::start(context, &mode, pid, duration)?;
    Ok(recording.end(context)?.0)
}

/// Reads a record of one target.
pub(super) fn read(path: &Path) -> Result<Recorded> {
    let mut snapshots: BTreeMap<TargetId, Vec<Snapshot>> = BTreeMap::new();
    let mut costs: Vec<CostSample> = Vec::new();
    each_item(path, |item| match item {
        Item::Snapshot(snapshot) => snapshots.entry(snapshot.target).or_default().push(snapshot),
        Item::Cost(cost) => costs.push(cost),
        _ => {}
    })?;
    let mut targets = snapshots.into_values();
    let (Some(snapshots), None) = (targets.next(), targets.next()) else {
        bail!("the record holds snapshots of none, or of more than one target");
    };
    let per_second = |count: fn(&CostSample) -> f64| {
        let (first, last) = (costs.first()?, costs.last()?);
        let seconds = last.time.since(first.time).as_secs_f64();
        (seconds > 0.0).then(|| (count(last) - count(first)) / seconds)
    };
    Ok(Recorded {
        snapshots,
        cpu_claimed: per_second(|c| c.cost.monitor_cpu.as_secs_f64()),
        cpu_claimed_induced: per_second(|c| {
            (c.cost.monitor_cpu + c.cost.induced_cpu).as_secs_f64()
        }),
        cpu_measured: 0.0,
        rss_max: costs.iter().map(|cost| cost.monitor_rss).max().unwrap_or(0),
    })
}

/// Reads the cost samples of a record, in order of time.
pub(super) fn costs(path: &Path) -> Result<Vec<CostSample>> {
    let mut costs = Vec::new();
    each_item(path, |item| {
        if let Item::Cost(cost) = item {
            costs.push(cost);
        }
    })?;
    Ok(costs)
}

fn each_item(path: &Path, mut take: impl FnMut(Item)) -> Result<()> {
    let file = File::open(path).context("the recorder left no record")?;
    let reader = Reader::open(file).context("the recorder left no usable record")?;
    for item in reader.replay_pages() {
        take(item.context("the record is damaged")?);
    }
    Ok(())
}
