//! `isotherm size`: the memory that a program needs, of a record or of what runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use isotherm_config::{Method, Monitoring, Request, TargetSpec};
use isotherm_engine::units::{parse_share, parse_time, parse_time_span};
use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::cgroup::{self, GroupMemory};
use isotherm_record::{Header, Item};
use isotherm_report::{Accumulate, Scope};
use isotherm_size::group::{TriedGroup, limits_of, recover, require_swap};
use isotherm_size::programs::setting_of;
use isotherm_size::report::{SizeAdvice, TrialsEnd};
use isotherm_size::{ProgramSetting, Size, SizeOptions, SizeReport, SizeToday, Verified, verify};
use isotherm_tune::Prices;
use tracing::info;

use super::super::record::{EndArgs, Sink, Watch};
use super::CommonArgs;
use crate::flags::{TargetArgs, processes};

/// Time to watch what runs, by default.
const WATCHED: Nanos = Nanos(60_000_000_000);
/// Scans of a watch, at most: for longer watches, the time between them grows.
const SCANS: u64 = 600;
/// Shortest and longest time between two scans.
const SCAN_EVERY: [Nanos; 2] = [Nanos(1_000_000_000), Nanos(30_000_000_000)];

/// Most looks of a trial: a day's seconds.
const TRIAL_LOOKS: f64 = 86_400.0;
/// Programs of a group whose own settings are shown.
const PROGRAMS: usize = 10;

/// Say how much memory a program needs: request, limit and memory.high of a container, and swap.
///
/// Watches a process, a command or a control group, or reads a record of page scans (`isotherm record --pages`). From
/// the times at which pages are used again follow the refaults at every limit, and from these the least limit at which
/// the program loses no more than --max-slowdown. Nothing is limited meanwhile. Needs root, but for a record.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm size --cgroup system.slice/redis.service --duration 10min
  isotherm size --pid 1234 --max-slowdown 0.5% --price dram=3.5
  isotherm size -- ./batch-job
  isotherm record --pages --duration 10min -o redis.isotherm --pid 1234
  isotherm size redis.isotherm --json")]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    targets: TargetArgs,
    /// Watch for this long, then end the command [default: 1min; a command: until it ends]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time_span, conflicts_with = "file")]
    duration: Option<Nanos>,
    /// Write what is watched to this record, too
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    record: Option<PathBuf>,
    /// Allow the program to lose this share of its time
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "1%")]
    max_slowdown: f64,
    /// Charge the program this time for each page that is read back from swap, page-out of another page included
    /// [default: what was measured, else 11us, as from zram]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    refault_cost: Option<Nanos>,
    /// Charge the program this time for each page of a file that is read back [default: 100us, as from an SSD]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    file_refault_cost: Option<Nanos>,
    /// Then try limits on the control group, for some 20 s each (--trial): memory.high, or version 1's limit. What was
    /// set before is set again, also on Ctrl-C; after SIGKILL, by the next `isotherm size` of something that runs
    #[arg(long, requires = "cgroup")]
    verify: bool,
    /// Try each limit for this long, once it has settled: what happens less often is not seen
    #[arg(long, value_name = "TIME", requires = "cgroup", value_parser = parse_time, default_value = "15s")]
    trial: Nanos,
    /// Leave the least limit that fits in place, as --verify finds it; in version 1, memory.max
    #[arg(long, requires = "cgroup")]
    apply: bool,
    /// Compute the savings by this price for a month, in any currency: dram= for a GiB
    #[arg(long, value_name = "NAME=PRICE,...", value_parser = Prices::parse)]
    price: Option<Prices>,
}

pub(crate) fn run(args: &SizeArgs) -> anyhow::Result<ExitCode> {
    let options = SizeOptions {
        max_slowdown: args.max_slowdown,
        swap_cost: args.refault_cost,
        file_cost: args.file_refault_cost,
        dram_price: args.price.map(|prices| prices.dram),
    };
    let Some(targets) = args.targets.spec() else {
        let common = &args.common;
        return common.write_curve(|header| Size::new(header, common.scope(), options));
    };
    ensure!(
        args.common.file.is_none(),
        "a record and targets exclude each other: name a record, or what to watch"
    );
    let group = match &targets {
        TargetSpec::Cgroup(path) => Some(cgroup::find(path)?),
        _ => None,
    };
    args.common.output.format()?;
    if let Some(group) = group.as_deref().filter(|_| args.verify || args.apply) {
        limits_of(group)?;
    }
    let mut watched = Watched {
        options,
        size: None,
        targets: BTreeMap::new(),
    };
    for path in recover() {
        info!(
            "set again what a trial that was killed had changed: {}",
            path.display()
        );
    }
    let watch = args.watch(targets)?;
    let stop = crate::stop::by_signals()?;
    let code = watch.watch(args.record.as_deref(), &mut watched)?;
    let report = watched.size.and_then(Accumulate::finish);
    let mut report: SizeReport = report.context(
        "no page scan has ended: the targets ended first, or the duration is shorter than two scans",
    )?;
    report.today = group.as_deref().map(today);
    let (advice, has_swap) = report.advice();
    if !has_swap && (args.verify || args.apply) {
        info!("there is no swap for it: what is tried is the size without swap");
    }
    report.programs = settings(&watched.targets, advice.limit.bytes);
    // Whoever ends the watch by Ctrl-C wants no trials.
    let tries = (args.verify || args.apply) && !stop.load(Ordering::Relaxed);
    let tried = group.filter(|_| tries).map(|group| {
        let verified = args.verified(&report, advice, &group, stop)?;
        report.verified = Some(verified);
        anyhow::Ok(())
    });
    let output = &args.common.output;
    output.write(&report, &output.style(false))?;
    // A trial that failed takes nothing from what was seen.
    tried.transpose()?;
    Ok(code)
}

/// Returns the own settings of these processes, each once for each program and value.
fn settings(targets: &BTreeMap<TargetId, u32>, limit: u64) -> Vec<ProgramSetting> {
    let all = targets.values().filter_map(|pid| setting_of(*pid, limit));
    let mut known = BTreeSet::new();
    let new = all.filter(|of| known.insert((of.program, of.now.clone())));
    new.take(PROGRAMS).collect()
}

impl SizeArgs {
    fn verified(
        &self,
        report: &SizeReport,
        advice: SizeAdvice,
        directory: &Path,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Verified> {
        if advice.swap.high_bytes > 0 {
            require_swap(report.memory.swap_backed_peak_bytes)?;
        }
        let nr_looks = self.trial.as_secs_f64().round().clamp(1.0, TRIAL_LOOKS) as u32;
        let mut group = TriedGroup::new(directory, report, stop)?;
        let mut verified = verify(report, advice.request, nr_looks, &mut group)?;
        let is_whole = matches!(verified.end, TrialsEnd::Found | TrialsEnd::Enough);
        if let Some(least) = verified.least_bytes.filter(|_| self.apply && is_whole) {
            verified.applied_bytes = Some(group.keep(least, advice.limit.bytes)?);
        }
        Ok(verified)
    }

    fn watch(&self, targets: TargetSpec) -> anyhow::Result<Watch> {
        let is_command = matches!(targets, TargetSpec::Command { .. });
        let duration = self.duration.or((!is_command).then_some(WATCHED));
        let [shortest, longest] = SCAN_EVERY;
        let every = Nanos(duration.map_or(0, |duration| duration.0 / SCANS));
        let request = Request {
            targets: Some(targets),
            exclude: processes(&self.targets.exclude),
            ranges: self.targets.range.clone(),
            children: self.targets.children,
            world: self.targets.world,
            monitoring: Monitoring {
                method: Some(Method::Pages),
                aggregation_interval: Some(every.clamp(shortest, longest)),
                counts_once: true,
                ..Monitoring::default()
            },
            ..Request::default()
        };
        Ok(Watch {
            spec: request.watch()?,
            duration,
            end: EndArgs {
                stop_command: is_command && self.duration.is_some(),
                ..EndArgs::default()
            },
        })
    }
}

/// Sums up what is watched.
struct Watched {
    options: SizeOptions,
    size: Option<Size>,
    /// Process ids of the targets that have not ended.
    targets: BTreeMap<TargetId, u32>,
}

impl Sink for Watched {
    fn begin(&mut self, header: &Header) {
        self.size = Some(Size::new(header, Scope::default(), self.options));
    }

    fn take(&mut self, item: &Item) {
        match item {
            Item::TargetStart(start) => drop(self.targets.insert(start.target, start.pid)),
            Item::TargetExit(exit) => drop(self.targets.remove(&exit.target)),
            _ => {}
        }
        if let Some(size) = &mut self.size {
            size.push(item);
        }
    }
}

/// Returns what is set for a group now.
fn today(group: &Path) -> SizeToday {
    let memory = GroupMemory::of(group);
    SizeToday {
        high_bytes: memory.high,
        limit_bytes: memory.limit,
        swap_bytes: memory.swap_limit,
    }
}
