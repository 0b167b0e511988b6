//! One run of `isotherm record`, and the content of its record.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use isotherm_engine::{Snapshot, TargetId};
use isotherm_record::{CostSample, Item, Reader};

use super::child::{Guarded, children_cpu};
use super::{BenchContext, Mode};

/// Time that a recorder may take beyond its duration.
const SLACK: Duration = Duration::from_secs(30);

/// A running recorder.
pub(super) struct Recording {
    child: Guarded,
    path: PathBuf,
    started: Instant,
    duration: Duration,
    cpu_before: Duration,
}

/// The results of a recording.
pub(super) struct Recorded {
    /// Snapshots in order.
    pub(super) snapshots: Vec<Snapshot>,
    /// The recorder's CPU time by its own count, as a share of one CPU.
    pub(super) cpu_claimed: Option<f64>,
    /// `cpu_claimed` with the recorder's estimate of the time taken from the target.
    pub(super) cpu_claimed_induced: Option<f64>,
    /// The recorder's CPU time by the kernel's count, start and end included, as a share of one CPU.
    pub(super) cpu_measured: f64,
    /// The recorder's peak memory by its own count.
    pub(super) rss_max: u64,
    /// Ranges of pages cleared, per second.
    pub(super) clears_per_second: Option<f64>,
    /// Cost samples, in order of time.
    pub(super) costs: Vec<CostSample>,
}

impl Recording {
    /// Starts to record process `pid`, or the whole machine.
    pub(super) fn start(
        context: &BenchContext,
        mode: &Mode,
        pid: u32,
        duration: Duration,
    ) -> anyhow::Result<Self> {
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

    pub(super) fn check_running(&mut self) -> anyhow::Result<()> {
        self.child.check_running()
    }

    /// Waits for the recorder's end and reads its record.
    pub(super) fn finish(mut self, context: &BenchContext) -> anyhow::Result<Recorded> {
        self.child.finish(context, self.duration + SLACK)?;
        let elapsed = self.started.elapsed();
        let cpu = children_cpu()?.saturating_sub(self.cpu_before);
        let recorded = read(&self.path)?;
        Ok(Recorded {
            cpu_measured: cpu.as_secs_f64() / elapsed.as_secs_f64(),
            ..recorded
        })
    }
}

/// Reads a record of one target.
pub(super) fn read(path: &Path) -> anyhow::Result<Recorded> {
    let file = File::open(path).context("the recorder left no record")?;
    let reader = Reader::open(file).context("the recorder left no usable record")?;
    let mut snapshots: BTreeMap<TargetId, Vec<Snapshot>> = BTreeMap::new();
    let mut costs: Vec<CostSample> = Vec::new();
    for item in reader.replay_pages() {
        match item.context("the record is damaged")? {
            Item::Snapshot(snapshot) => {
                snapshots.entry(snapshot.target).or_default().push(snapshot);
            }
            Item::Cost(cost) => costs.push(cost),
            _ => {}
        }
    }
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
        clears_per_second: per_second(|c| c.cost.clears as f64),
        costs,
    })
}
