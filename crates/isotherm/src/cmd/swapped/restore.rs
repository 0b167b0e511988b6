//! `isotherm restore`: reads swapped-out memory back.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use isotherm_engine::units::{format_bytes, parse_bytes};
use isotherm_session::restore::{RestoreEnd, RestoreReport, RestoreSpec, restore};
use tracing::{info, warn};

use crate::flags::{ProcessList, processes};
use crate::progress::{Progress, Unit};

/// Read back into memory what processes have in swap.
///
/// Undoes paging out without `swap off`. Ends when less than 5 % of the machine's memory is available. Running schemes
/// page the memory out again: end them first (`isotherm stop`). Needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm restore --pid redis-server
  isotherm restore --cgroup system.slice/redis.service --rate 100M
Exit status: 0 all is back that can be, 1 it ended before.")]
pub(crate) struct Args {
    /// Read back the memory of these processes, by id or name. Separate several by commas, or repeat the option; write
    /// a comma in a name as `\,`
    #[arg(
        short,
        long,
        value_name = "PID|NAME",
        required_unless_present = "cgroup"
    )]
    pid: Vec<ProcessList>,

    /// Read back the memory of every process of this control group (v1 or v2)
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,

    /// Read at most this much in a second
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    rate: u64,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let spec = RestoreSpec {
        processes: processes(&args.pid),
        cgroup: args.cgroup.clone(),
        bytes_per_s_max: Some(args.rate),
    };
    let stop = crate::stop::by_signals()?;
    let progress = Progress::new(Some(0), Unit::Bytes);
    let report = restore(&spec, |done, total| {
        progress.set_length(total);
        progress.set_position(done);
        !stop.load(Ordering::Relaxed)
    })?;
    drop(progress);
    for note in &report.notes {
        info!("{}", isotherm_record::printable(note));
    }
    args.result.print(&report, text)?;
    if report.end == RestoreEnd::MemoryShort {
        warn!(
            "less than 5 % of the machine's memory is available, so it ended; free some, and run it again"
        );
    }
    Ok(ExitCode::from(u8::from(report.end != RestoreEnd::Complete)))
}

fn text(report: &RestoreReport) -> String {
    let nr = report.processes.len();
    let of = match &report.processes[..] {
        [one] => format!(
            "{} (pid {})",
            isotherm_record::printable(&one.name),
            one.pid
        ),
        _ => format!("{nr} processes"),
    };
    let read = format_bytes(report.restored_bytes());
    let left = format_bytes(report.left_bytes());
    format!(
        "read back {read} of {of} in {:.1} s; {left} are in swap now\n",
        report.seconds
    )
}
