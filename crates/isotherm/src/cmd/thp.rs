//! `isotherm thp`: should this process have huge pages?

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, ensure};
use isotherm_engine::units::format_bytes;
use isotherm_session::thp::{ThpReport, ThpVerdict, judge};

use crate::flags::{ProcessList, processes};
use crate::progress::{Progress, Unit};

/// Judge whether a process should have huge pages: gain, waste, what prevents them, and what to set.
///
/// Measures how often the process misses the TLB, without hardware counters, and bounds the gain by that. With --try, a
/// half of its memory becomes huge for a second, five to fifteen times, and its speed is measured each time. This is
/// undone at the end, and on Ctrl-C. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm thp --pid redis-server
  isotherm thp --pid 1234 --try
  isotherm thp --pid 1234 --try --json
Then: isotherm run --preset ethp --pid 1234
Exit status: 0 judged, 2 failed, 130 stopped by Ctrl-C (the trial is undone).")]
pub(crate) struct Args {
    /// Judge this process, by id or name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: ProcessList,

    /// Measure the gain: make huge pages and split them again, in turns (15 to 45 s)
    #[arg(long = "try")]
    is_tried: bool,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pids =
        isotherm_session::pids(&processes(std::slice::from_ref(&args.pid)), &mut Vec::new())?;
    ensure!(pids.len() == 1, "name one process: {} match", pids.len());
    let pid = pids.into_iter().next().context("no process matches")?;
    let stop = crate::stop::by_signals()?;
    let progress = Progress::new(Some(100), Unit::Percent);
    let report = judge(pid, args.is_tried, |done| {
        progress.set_position((100.0 * done) as u64);
        !stop.load(Ordering::Relaxed)
    })?;
    drop(progress);
    args.result.print(&report, text)?;
    let was_stopped = stop.load(Ordering::Relaxed);
    Ok(ExitCode::from(if was_stopped { 130 } else { 0 }))
}

fn text(report: &ThpReport) -> String {
    let mut text = String::new();
    let name = isotherm_record::printable(&report.name);
    let bytes = format_bytes;
    let _ = writeln!(
        text,
        "{name} (pid {}): {} in small pages that could be huge, {} in huge pages",
        report.pid,
        bytes(report.small_bytes),
        bytes(report.huge_bytes)
    );
    if let Some(unused) = report.never_written_bytes {
        let _ = writeln!(text, "never written    {} of the huge pages", bytes(unused));
    }
    let _ = writeln!(
        text,
        "waste            {} more if all were huge",
        bytes(report.waste_bytes)
    );
    match (
        report.page_walks_per_s,
        report.walk_ns_max,
        report.saved_share_max,
    ) {
        (Some(walks), Some(ns), Some(saved)) => {
            let _ = writeln!(
                text,
                "page walks       {:.3} million a second, at most {ns:.0} ns each here: huge pages save at most {:.1} % of a CPU",
                walks / 1e6,
                100.0 * saved
            );
        }
        _ => text.push_str("page walks       unknown: they could not be measured\n"),
    }
    if let Some(trial) = &report.trial {
        let percent = |gain: [f64; 3]| {
            let [low, mean, high] = gain.map(|gain| 100.0 * gain);
            format!("{mean:+.1} % ({low:+.1} to {high:+.1})")
        };
        let _ = writeln!(
            text,
            "tried            {} of huge pages changed the speed by {}; all would by {}{}",
            bytes(trial.huge_bytes),
            percent(trial.gain),
            percent(trial.gain_of_all),
            if trial.is_undone {
                ""
            } else {
                "; some are huge still"
            }
        );
    }
    for cause in &report.causes {
        let _ = writeln!(text, "now              {}", cause.fact);
        if let Some(setting) = &cause.setting {
            let _ = writeln!(text, "                 to change: {setting}");
        }
    }
    let _ = writeln!(text, "verdict          {}", advice(report));
    text
}

/// Returns the verdict, with the next command.
fn advice(report: &ThpReport) -> String {
    let pid = report.pid;
    match report.verdict {
        ThpVerdict::HasThem => "it has huge pages".to_owned(),
        ThpVerdict::Set => format!("set them, as above; or isotherm run --preset ethp --pid {pid}"),
        ThpVerdict::SetSome => format!(
            "huge pages gain, and waste much where all are huge: isotherm run --preset ethp --pid {pid}"
        ),
        ThpVerdict::Leave => "leave it: huge pages gain less than 1 %".to_owned(),
        ThpVerdict::Unclear if report.trial.is_some() => {
            "unclear: the speed changes by itself more than by huge pages; run it again".to_owned()
        }
        ThpVerdict::Unclear => format!("unclear: isotherm thp --try --pid {pid} measures it"),
    }
}
