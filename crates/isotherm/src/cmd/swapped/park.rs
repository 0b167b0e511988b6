//! `isotherm park` and `isotherm wake`: idle programs go to swap as a whole, and come back in the order of need.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, parse_share, parse_time};
use isotherm_linux::cgroup;
use isotherm_park::{IdleParker, IdleRule, ParkDone, ParkEvent, ParkReport, WakeReport, WakeSpec};

use crate::progress::{Progress, Unit};

/// Page out all memory of a control group that is idle for long: a sandbox, a development container, a function.
///
/// Its processes run on, and read back what they touch; with --freeze they stop. `isotherm wake` reads their memory
/// back in the order in which they needed it at the last wake. Needs root and swap.
///
/// With --idle it stays: it parks each group with processes in the control group and below it that was idle for this
/// long, and wakes it when it runs again. Ctrl-C ends that; parked groups stay parked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm park --cgroup sandbox.slice/dev-7.scope
  isotherm park --cgroup sandbox.slice/dev-7.scope --freeze
  isotherm park --cgroup sandbox.slice --idle 10min           # all sandboxes, whenever they idle
Then: isotherm wake --cgroup sandbox.slice/dev-7.scope
Exit status: 0 parked, 1 ended by Ctrl-C before all was tried, 2 failed.")]
pub(crate) struct ParkArgs {
    /// Park every process of this control group (v1 or v2) and of those below it
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,

    /// Stop the processes until `isotherm wake`, also if this command is killed (v2)
    #[arg(long)]
    freeze: bool,

    /// Park groups whenever they were idle for this long, and wake them when they run, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "freeze")]
    idle: Option<Nanos>,

    /// Use of one CPU up to which a group is idle, with --idle
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "1%", requires = "idle")]
    idle_cpu: f64,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

/// Read the memory of a parked control group back, before its processes ask for it.
///
/// The first wake only lets it run, and notes which pages return in which order. Later wakes read these first, and add
/// what else returns. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm wake --cgroup sandbox.slice/dev-7.scope
  isotherm wake --cgroup sandbox.slice/dev-7.scope --watch 30s --learn
Exit status: 0 awake, 2 failed.")]
pub(crate) struct WakeArgs {
    /// Wake this control group
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,

    /// Note for this long which pages return; Ctrl-C ends that
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5s")]
    watch: Nanos,

    /// Forget the order of earlier wakes, read nothing ahead, and note it anew
    #[arg(long)]
    learn: bool,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

/// Time for which returning pages are noted after a group ran again by itself.
const LEARNED_FOR: Duration = Duration::from_secs(5);

impl ParkArgs {
    /// Prints what was done to a group: a line of text or of JSON.
    fn print(&self, event: &ParkEvent) -> anyhow::Result<()> {
        if self.result.is_json() {
            println!("{}", crate::out::json_line(event)?);
            return Ok(());
        }
        let group = event.group.display();
        match &event.done {
            ParkDone::Parked(report) => print!("{group}: {}", parked(report)),
            ParkDone::Woken(report) => print!("{group}: {}", woken(report)),
            ParkDone::Failed(why) => println!("{group}: left alone: {why}"),
        }
        Ok(())
    }
}

pub(crate) fn park(args: &ParkArgs) -> anyhow::Result<ExitCode> {
    let group = cgroup::find(&args.cgroup)?;
    let stop = crate::stop::by_signals()?;
    if let Some(idle) = args.idle {
        let cpu_share = args.idle_cpu;
        let rule = IdleRule { idle, cpu_share };
        let mut parker = IdleParker::new(group, rule, LEARNED_FOR, Arc::clone(&stop));
        while !stop.load(Ordering::Relaxed) {
            let (events, rest) = parker.look();
            events.iter().try_for_each(|event| args.print(event))?;
            crate::stop::sleep_until(Instant::now() + rest, &stop);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new(Some(0), Unit::Bytes);
    let report = isotherm_park::park(&group, args.freeze, |done, total| {
        progress.set_length(total);
        progress.set_position(done);
        !stop.load(Ordering::Relaxed)
    })?;
    drop(progress);
    args.result.print(&report, parked)?;
    Ok(ExitCode::from(u8::from(report.was_stopped)))
}

pub(crate) fn wake(args: &WakeArgs) -> anyhow::Result<ExitCode> {
    let group = cgroup::find(&args.cgroup)?;
    let stop = crate::stop::by_signals()?;
    let spec = WakeSpec {
        learns_anew: args.learn,
        watch: Duration::from_nanos(args.watch.0),
    };
    let report = isotherm_park::wake(&group, spec, || !stop.load(Ordering::Relaxed))?;
    args.result.print(&report, woken)?;
    Ok(ExitCode::SUCCESS)
}

fn parked(report: &ParkReport) -> String {
    let (before, after) = report.resident_bytes();
    let frozen = if report.is_frozen {
        "; it is frozen"
    } else {
        ""
    };
    format!(
        "parked {} processes in {:.1} s: {} of {} are still in memory{frozen}\n",
        report.processes.len(),
        report.seconds,
        format_bytes(after),
        format_bytes(before)
    )
}

fn woken(report: &WakeReport) -> String {
    format!(
        "woke {} processes: read {} of {} ahead in {:.0} ms; they read {} back themselves\n",
        report.nr_processes,
        format_bytes(report.prefetched_bytes),
        format_bytes(report.parked_bytes),
        1000.0 * report.prefetch_seconds,
        format_bytes(report.returned_bytes)
    )
}
