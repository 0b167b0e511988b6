//! `isotherm compact`: compacts memory ahead of demand, so that huge pages are available when they are requested.
//!
//! [`isotherm_session::CompactionSession`] does the work; this file prints it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_time, parse_time};
use isotherm_linux::compaction::kernel_proactiveness;
use isotherm_policy::compaction::CompactionAttributes;
use isotherm_record::{Item, Writer};
use isotherm_session::{
    CompactionEvent, CompactionOutput, CompactionReport, CompactionSession, CompactionSpec,
};

/// A check costs about a fifth of a millisecond.
const CHECK_INTERVAL_MIN: Nanos = Nanos::from_millis(10);

/// Compact memory before huge pages are asked for.
///
/// A node is compacted if too much of its free memory is in small blocks: if its score, 0 to 100, exceeds 110 -
/// proactiveness. The compaction ends when the score is better by 10 points. kswapd goes first; a round without effect
/// delays the next by half a minute. From Linux 5.9 on, the kernel does the same for huge pages only, if
/// vm.compaction_proactiveness is not 0; that setting stays unchanged.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm compact --dry-run                # how fragmented memory is, and what would be done
  isotherm compact --proactiveness 60       # one round, if a node's score exceeds 50
  isotherm compact --daemon --order 4       # keep blocks of 64 KiB available
  isotherm compact --daemon --duration 5min -o c.isotherm
  isotherm report fragmentation c.isotherm")]
pub(crate) struct Args {
    /// Compact only this NUMA node [default: all]
    #[arg(long, value_name = "N")]
    node: Option<u32>,

    /// Make blocks of 2^ORDER pages available; 9 is a huge page of 2 MiB
    #[arg(long, value_name = "ORDER", default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=10))]
    order: u8,

    /// Compact this eagerly, 0 (not at all) to 100; more takes more CPU time
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100))]
    proactiveness: u32,

    /// Look once, and compact if it is time to (the default)
    #[arg(long, conflicts_with = "daemon")]
    once: bool,

    /// Keep looking, until stopped by SIGINT or SIGTERM
    #[arg(long)]
    daemon: bool,

    /// Look at the nodes this often
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_time, requires = "daemon")]
    check_interval: Nanos,

    /// Stop after this time [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "daemon")]
    duration: Option<Nanos>,

    /// Print what would be done, and do nothing; needs no privilege
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    result: crate::out::ResultArgs,

    /// Write scores and free blocks over time to this record, for `isotherm report fragmentation`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.check_interval >= CHECK_INTERVAL_MIN,
        "a check interval of {} is too short; at least {} is possible",
        format_time(args.check_interval),
        format_time(CHECK_INTERVAL_MIN)
    );
    let spec = CompactionSpec {
        node: args.node,
        attributes: CompactionAttributes {
            order: args.order,
            proactiveness: args.proactiveness,
            check_interval: args.check_interval,
        },
        is_dry_run: args.dry_run,
    };
    let mut session = CompactionSession::start(spec)?;
    // The record comes last: an earlier failure must not empty an old record.
    let begin = |path| {
        let header = session.header(crate::out::command_line());
        Ok::<_, anyhow::Error>((crate::out::record(path, &header)?, path))
    };
    let mut output = Output {
        record: args.output.as_deref().map(begin).transpose()?,
        is_json: args.result.is_json(),
    };
    let outcome = if args.daemon {
        session.keep_looking(args.duration, &mut output)
    } else {
        look_once(&mut session, spec, &mut output)
    };
    let finished = output.record.map_or(Ok(()), |(writer, path)| {
        let finished = writer.finish().map(drop);
        finished.with_context(|| format!("cannot write {}", path.display()))
    });
    outcome.and(finished).map(|()| ExitCode::SUCCESS)
}

fn look_once(
    session: &mut CompactionSession,
    spec: CompactionSpec,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let nodes = session.look_once(output)?;
    let report = CompactionReport {
        attributes: spec.attributes,
        kernel_proactiveness: kernel_proactiveness(),
        dry_run: spec.is_dry_run,
        nodes,
    };
    print(&if output.is_json {
        format!("{}\n", crate::out::json(&report.json())?)
    } else {
        report.text()
    })
}

/// The output for the user, and the record.
struct Output<'a> {
    record: Option<(Writer<File>, &'a Path)>,
    is_json: bool,
}

impl CompactionOutput for Output<'_> {
    fn event(&mut self, event: &CompactionEvent<'_>) -> anyhow::Result<()> {
        let text = if self.is_json {
            crate::out::json_line(event)?
        } else {
            event.text()
        };
        print(&format!("{text}\n"))
    }

    fn item(&mut self, item: Item) -> anyhow::Result<()> {
        let Some((writer, path)) = &mut self.record else {
            return Ok(());
        };
        let written = writer.write(&item);
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // A daemon's line must appear when it happens, also through a pipe.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has read enough (`| head`) is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}
