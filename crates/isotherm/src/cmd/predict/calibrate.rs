//! `isotherm calibrate`: measures the cost of acting on this machine.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use isotherm_config::ProcessSpec;
use isotherm_engine::PAGE_SIZE;
use isotherm_engine::calibration::{Calibration, NodeMeasured};
use isotherm_linux::calibrate::subject::command;
use isotherm_linux::calibrate::{PAGES, calibrate, content_of, made_up_content, measure_nodes};
use isotherm_record::printable;
use isotherm_render::table::Table;
use serde::Serialize;
use tracing::{info, warn};

use crate::flags::{ProcessList, processes};
use crate::out::spread;
use crate::progress::{Progress, Unit};
use crate::whole_file;

/// Measure the cost of acting on this machine: paging out and back, faults, huge pages, clears. Or its memory nodes.
///
/// Takes some seconds, on memory of a process of its own. Costs depend on the content of memory: name a process to
/// measure with its content. Records made by `record --pages` already contain costs, measured with the target's pages.
/// `simulate --costs` replays a trace with the costs of another machine. Needs the privileges of `record`, and swap for
/// paging out (`isotherm swap zram`).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  isotherm calibrate
  isotherm calibrate --pid 1234 --json -o costs.json
  isotherm calibrate --nodes
  isotherm simulate --trace app.isotherm --costs costs.json --preset prcl")]
pub(crate) struct Args {
    /// Measure with copies of pages of these processes, by id or name. Separate several by commas, or repeat the
    /// option; write a comma in a name as `\,` [default: made-up pages, half random]
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Vec<ProcessList>,

    /// Measure the latency and the bandwidth of each memory node instead, from each node with processors. Needs no
    /// privilege, and a quarter of each node's free memory
    #[arg(long, conflicts_with_all = ["pid", "content"])]
    nodes: bool,

    /// Measure with the pages on standard input
    #[arg(long, hide = true, conflicts_with = "pid")]
    content: bool,

    /// Write the result to this file, too, as JSON [default: none]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

/// JSON of `calibrate --nodes`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MeasuredNodes {
    /// Each node's memory, from each node with processors.
    nodes: Vec<NodeMeasured>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.nodes {
        let progress = Progress::new(Some(100), Unit::Percent);
        let nodes = measure_nodes(|share| progress.set_position((share * 100.0) as u64));
        drop(progress);
        ensure!(
            !nodes.is_empty(),
            "/sys/devices/system/node is not there: this kernel knows no memory nodes"
        );
        return args.finish(&MeasuredNodes { nodes }, MeasuredNodes::text);
    }
    let mut content = content_of_all(&processes(&args.pid))?;
    if args.content {
        let input = std::io::stdin().lock();
        let most = (PAGES as u64) * PAGE_SIZE;
        input.take(most).read_to_end(&mut content)?;
        ensure!(!content.is_empty(), "no page of the target could be copied");
    }
    let is_made_up = content.is_empty();
    if is_made_up {
        content = made_up_content(PAGES);
    }
    let progress = if args.content {
        Progress::hidden()
    } else {
        Progress::new(Some(100), Unit::Percent)
    };
    let tell = |share: f64| progress.set_position((share * 100.0) as u64);
    let measured = calibrate(&content, is_made_up, command(), tell)
        .context("cannot measure; `isotherm doctor` says what works here")?;
    drop(progress);
    if measured.swap.is_none() && !args.content {
        warn!(
            "there is no swap, so what paging out costs was not measured; `isotherm swap zram --size 1G` \
             sets some up, `isotherm swap off` takes it away"
        );
    }
    args.finish(&measured, text)
}

impl Args {
    fn finish<T: Serialize>(
        &self,
        measured: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.output {
            let text = crate::out::json(measured)? + "\n";
            whole_file::write(path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.result.print(measured, text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl MeasuredNodes {
    fn text(&self) -> String {
        let rows = self.nodes.iter().map(|of| {
            [
                of.cpu_node.to_string(),
                of.node.to_string(),
                spread(of.latency_ns, 1.0, 1, ""),
                spread(of.read_bytes_per_s, 1e9, 1, ""),
                printable(of.unknown.as_deref().unwrap_or_default()).into_owned(),
            ]
        });
        let heads = "CPUS OF NODE>|MEMORY OF NODE>|NS A LOAD>|GB/S READ BY ONE THREAD>|";
        Table::of(heads, rows).text()
    }
}

/// Copies pages of these processes, at most [`PAGES`].
fn content_of_all(processes: &[ProcessSpec]) -> anyhow::Result<Vec<u8>> {
    let mut notes = Vec::new();
    let pids = isotherm_session::pids(processes, &mut notes)?;
    for note in notes {
        info!("{}", printable(&note));
    }
    let mut content = Vec::new();
    for pid in &pids {
        content.extend(content_of(*pid, (PAGES / pids.len()).max(1), None)?);
    }
    content.truncate(PAGES * PAGE_SIZE as usize);
    Ok(content)
}

/// Name of a part of the time in the line above it.
const LOST: &str = "  of which a working thread loses";

fn text(measured: &Calibration) -> String {
    let mut text = String::new();
    let of = measured;
    for (name, value) in [
        ("a page's first fault", of.minor_fault_ns),
        ("a huge page's first fault", of.huge_fault_ns),
        ("2 MiB made a huge page", of.collapse_ns),
        ("a range's accessed bits cleared", of.clear_range_ns),
        ("and each of its pages", of.clear_page_ns),
        ("and each page's next access", of.set_again_ns),
        ("a page paged out in a whole block", of.page_out_whole_ns),
        (LOST, of.page_out_whole_lost),
        (
            "a page paged out alone, program asleep",
            of.page_out_alone_ns,
        ),
        ("  program at work", of.page_out_running_ns),
        (LOST, of.page_out_running_lost),
        ("a refault", of.refault_ns),
    ] {
        let (unit, word) = if name == LOST {
            (0.01, " %")
        } else {
            (1e3, " us")
        };
        let value = spread(value, unit, 2, word);
        let _ = writeln!(text, "{name:<44}{value}");
    }
    let ratio = measured.compression_ratio;
    let ratio = ratio.map_or("?".to_owned(), |ratio| format!("{ratio:.2}"));
    let swap = measured.swap.as_deref().unwrap_or("there is no swap");
    let content = match measured.content_pages {
        0 => "made-up pages, half random".to_owned(),
        pages => format!("{pages} pages of the process"),
    };
    let _ = writeln!(
        text,
        "{:<44}{ratio} ({swap}; {content})",
        "compressed to one part in"
    );
    text
}
