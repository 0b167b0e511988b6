//! `isotherm thp`: should this process have huge pages?

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::bail;
use isotherm_engine::units::format_bytes;
use isotherm_session::thp::{NotTried, ThpPageSize, ThpReport, ThpVerdict, judge};

use crate::flags::{ProcessList, processes};
use crate::progress::{Progress, Unit};

/// Judge whether a process should have huge pages: gain, waste, what prevents them, and what to set.
///
/// Estimates page walks (TLB misses) without hardware counters, and from them the greatest gain. With --try, up to half
/// of the small memory, at most 1 GiB, becomes huge for a second, 5 to 15 times, and the speed is measured. It is split
/// again each time, also on Ctrl-C. Before Linux 6.12, pages that a trial adds stay. Of memory that is huge already, up to
/// 1.1 GiB is split and made huge again in the same way, and 64 MiB for 5 s, to see which of its pages are used. What the
/// kernel cannot make huge again stays small. Needs root.
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

    /// Measure the gain: make huge pages and split them again, in turns (15 to 50 s)
    #[arg(long = "try")]
    is_tried: bool,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pids =
        isotherm_session::pids(&processes(std::slice::from_ref(&args.pid)), &mut Vec::new())?;
    let [pid] = pids[..] else {
        let nr = pids.len();
        bail!("--pid must match one process, and {nr} match: give an id");
    };
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
    let percent = |gain: [f64; 3]| {
        let [low, mean, high] = gain.map(|gain| 100.0 * gain);
        format!("{mean:+.1} % ({low:+.1} to {high:+.1})")
    };
    let (small, huge) = (bytes(report.small_bytes), bytes(report.huge_bytes));
    let _ = writeln!(
        text,
        "{name} (pid {}): {small} in small pages that could be huge, {huge} in huge pages",
        report.pid
    );
    let mut row = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<16} {value}");
    };
    if let Some(unused) = report.never_written_bytes {
        row(
            "never written",
            format!("{} of the huge pages", bytes(unused)),
        );
    }
    let mut label = "memory growth";
    let sizes = report.page_sizes.iter();
    for size in sizes.filter(|size| size.added_bytes > 0) {
        row(std::mem::take(&mut label), growth(size));
    }
    if let Some(split) = &report.split {
        let of = format!("of {} of split huge pages", bytes(split.bytes));
        row(
            &format!("used in {:.0} s", split.watched_s),
            format!("{}, {of}", used(report)),
        );
        if !split.is_undone {
            row("", "some of these could not become huge again".to_owned());
        }
    }
    if report.page_walks_per_s.is_some() || report.small_bytes > report.huge_bytes {
        row("page walks", walks(report));
    }
    if let Some(trial) = &report.trial {
        let (one, all) = (percent(trial.gain), percent(trial.gain_of_all));
        let huge = bytes(trial.huge_bytes);
        row(
            "tried",
            format!("speed {one} by {huge} of huge pages; predicted for all {all}; 95 %"),
        );
        if !trial.is_undone {
            row(
                "",
                "some of these pages did not become what they were".to_owned(),
            );
        }
    } else if let Some(why) = report.not_tried {
        row("tried", format!("no: {}", why.reason()));
    }
    for cause in &report.causes {
        row("cause", cause.fact.clone());
        cause
            .setting
            .iter()
            .for_each(|setting| row("", setting.clone()));
    }
    row("verdict", advice(report));
    text
}

fn growth(size: &ThpPageSize) -> String {
    let (added, pages) = (
        format_bytes(size.added_bytes),
        format_bytes(size.page_bytes),
    );
    let policy = size.policy.as_deref().unwrap_or("no policy");
    format!("{added} if all is in pages of {pages} (enabled: {policy})")
}

/// Returns the part of the split huge pages that was used, by every second page size: 4 KiB, 16 KiB, 64 KiB and so on.
fn used(report: &ThpReport) -> String {
    let sizes = report.page_sizes.iter();
    let every_second = sizes.filter(|size| size.page_bytes.trailing_zeros() % 2 == 0);
    let shares = every_second.filter_map(|size| {
        let share = 100.0 * size.used_share?;
        Some(format!(
            "{share:.0} % in pages of {}",
            format_bytes(size.page_bytes)
        ))
    });
    shares.collect::<Vec<_>>().join(", ")
}

fn walks(report: &ThpReport) -> String {
    let Some(walks) = report.page_walks_per_s.map(|walks| walks / 1e6) else {
        return "unknown: too few blocks could be measured".to_owned();
    };
    let timed = report.walk_ns_max.zip(report.saved_share_max);
    let timed = timed.map(|(ns, saved)| {
        format!(
            ", {ns:.0} ns each as timed here: about {:.1} % of one CPU or less",
            100.0 * saved
        )
    });
    let timed = timed.unwrap_or_else(|| "; not timed: less than 1 GiB is available".to_owned());
    format!("{walks:.3} million a second{timed}")
}

/// Returns the setting of a smaller size that adds little; empty if the kernel offers none.
fn smaller(report: &ThpReport) -> String {
    let Some(size) = report.smaller_size() else {
        return String::new();
    };
    let kib = size.page_bytes >> 10;
    format!(
        "; or, in all processes' new memory, with a gain that is not measured here: \
         echo always > /sys/kernel/mm/transparent_hugepage/hugepages-{kib}kB/enabled"
    )
}

/// Returns the verdict, with the next command.
fn advice(report: &ThpReport) -> String {
    let pid = report.pid;
    match report.verdict {
        ThpVerdict::NoMemory => {
            "no private anonymous memory in blocks of 2 MiB to judge".to_owned()
        }
        ThpVerdict::HasThem if report.trial.is_some() => {
            "unclear: its memory is huge already, and the interval of the gain includes 1 %"
                .to_owned()
        }
        ThpVerdict::HasThem => {
            format!(
                "its memory is huge already: isotherm thp --try --pid {pid} measures what that gains"
            )
        }
        ThpVerdict::Keep => "no change: its memory is huge already, and that gains".to_owned(),
        ThpVerdict::Fewer => "its huge pages gain less than 1 %: small pages suffice".to_owned(),
        ThpVerdict::Set => {
            format!(
                "make all of it huge: a setting for more above, or isotherm run --preset ethp --pid {pid}"
            )
        }
        ThpVerdict::SetSome => format!(
            "huge pages gain, and its memory grows much if all are huge: isotherm run --preset ethp --pid {pid}{}",
            smaller(report)
        ),
        ThpVerdict::Leave => "no change: huge pages gain less than 1 %".to_owned(),
        ThpVerdict::Unclear if report.trial.is_some() => {
            "unclear: the interval of the gain includes 1 %; repeat under a steadier load"
                .to_owned()
        }
        ThpVerdict::Unclear if report.not_tried == Some(NotTried::NotAsked) => {
            format!("unclear: isotherm thp --try --pid {pid} measures the gain")
        }
        ThpVerdict::Unclear => "unclear".to_owned(),
    }
}
