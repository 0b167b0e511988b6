//! Benchmarks of correctness, cost and speed.
//!
//! Each bench is a file here. It compares A with B in one run, interleaved (this machine's speed changes from minute to
//! minute), and gives medians with their spread. A bench that lacks something reports SKIP with the reason. Whatever a
//! bench starts ends with it, also on failure and on Ctrl-C.

mod accuracy;
mod ceiling;
mod child;
mod engine;
mod fragmentation;
mod guard;
mod huge;
mod machine;
mod measure;
mod overhead;
mod page;
mod page_cache;
mod prediction;
mod recording;
mod redis;
mod report_vs_damo;
mod stacks;
mod stats;
mod subject;
mod table;
mod toggle;
mod truth;
mod tune;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use serde_json::{Value, json};

use table::Table;

/// Measure accuracy, overhead and speed.
#[derive(Parser)]
#[command(
    name = "isotherm-bench",
    after_help = "\
Benches:
  accuracy         each monitoring mode against workloads of known truth, and redis
  overhead         redis' throughput with and without recording
  toggle           speed lost by recording, second by second in the same run
  page-cache       reading of cached files with and without recording, and whether what is reported of the files is
                   true; runs only when named, as it watches all of the machine
  prediction       what the simulated machine predicts of a scheme, and what came of it, on the programs of
                   truth (--programs, --seed, --cases, --case as there); runs only when named
  guard            slowdown and memory saved under prcl, with and without the guard: bursts, shifts,
                   locks; on the swap that there is (zram or a disk)
  report_vs_damo   time and memory of reports, ours and damo's, on the same record
  page             how long a large record takes to open in a browser, and how smoothly it moves; runs
                   only when named
  engine           the engine's own criterion benches
  fragmentation    huge page faults in fragmented memory, with the kernel's compaction ahead of demand
                   and with ours; runs only when named, as it takes most of the machine's memory
  huge             waste and speed-up of huge pages on a grid solver, with and without ethp; runs only when
                   named
  truth            every snapshot against what really happened in its own interval, on programs drawn
                   from a seed; runs only when named
  tune             what `tune` finds on traces of programs drawn from a seed, and by how many replays, beside the
                   published methods; runs only when named
  stacks           what taking stacks of page faults costs programs; runs only when named
  ceiling          CPU time, memory and interval where many blocks, mappings or processes are watched;
                   runs only when named

Examples:
  cargo run --release -p isotherm-bench -- --quick
  cargo run --release -p isotherm-bench -- accuracy --only static_1g --mode '5ms=--sample-interval 5ms'
  cargo run --release -p isotherm-bench -- fragmentation --repeats 2
  cargo run --release -p isotherm-bench -- truth --seed 7 --cases 20 --budgets 1%,10%"
)]
struct Args {
    /// Benches to run; all if none is named
    names: Vec<String>,
    /// Repeat everything this number of times (default 3; 1 with --quick)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Write all numbers to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Small workloads and short windows: does it work, not how well
    #[arg(long)]
    quick: bool,
    /// accuracy, toggle, guard, stacks: only these workloads; fragmentation: only these arms
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// accuracy, overhead, truth: these modes of `isotherm record` instead of the usual ones
    #[arg(long, value_name = "NAME=FLAGS")]
    mode: Vec<String>,
    /// Seconds that each recording takes
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// report_vs_damo, page: rows of the record
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// prediction: keep traces and records of live runs in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Use this binary instead of building one
    #[arg(long, value_name = "PATH")]
    isotherm: Option<PathBuf>,
    #[command(flatten)]
    fragmentation: fragmentation::Options,
    #[command(flatten)]
    huge: huge::Options,
    #[command(flatten)]
    truth: truth::Options,
}

/// The inputs of every bench.
struct BenchContext {
    root: PathBuf,
    isotherm: PathBuf,
    repeats: u32,
    quick: bool,
    only: Vec<String>,
    modes: Vec<Mode>,
    duration: Duration,
    /// The duration of the command line, for benches that have a usual duration of their own.
    asked_duration: Option<Duration>,
    rows: u64,
    /// Directory in which records are kept.
    keep: Option<PathBuf>,
    /// Benches were named on the command line.
    named: bool,
    fragmentation: fragmentation::Options,
    huge: huge::Options,
    truth: truth::Options,
    stop: Arc<AtomicBool>,
    /// Records, truths and sockets.
    scratch: tempfile::TempDir,
}

/// A mode of recording.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mode {
    name: String,
    flags: Vec<String>,
}

impl Mode {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, flags) = text.split_once('=').with_context(|| {
            format!("--mode takes NAME=FLAGS, such as '5ms=--sample-interval 5ms', not `{text}`")
        })?;
        Ok(Self {
            name: name.to_owned(),
            flags: flags.split_whitespace().map(str::to_owned).collect(),
        })
    }

    /// Returns whether the mode records the machine rather than one process.
    fn is_of_the_machine(&self) -> bool {
        let flags = self.flags.iter();
        flags
            .map(String::as_str)
            .any(|flag| matches!(flag, "--all" | "--physical"))
    }
}

/// The result of a bench.
enum BenchOutcome {
    /// Tables for people, numbers for programs.
    Done { tables: Vec<Table>, data: Value },
    /// The bench cannot run here, for this reason.
    Skip(String),
}

impl BenchContext {
    /// Sleeps, or fails as soon as a signal asks for the end.
    fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                bail!("stopped by a signal");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

type Bench = fn(&BenchContext) -> anyhow::Result<BenchOutcome>;
const BENCHES: [(&str, Bench); 15] = [
    ("accuracy", accuracy::run),
    ("overhead", overhead::run),
    ("toggle", toggle::run),
    ("prediction", prediction::run),
    ("guard", guard::run),
    ("report_vs_damo", report_vs_damo::run),
    ("page", page::run),
    ("engine", engine::run),
    ("fragmentation", fragmentation::run),
    ("truth", truth::run),
    ("tune", tune::run),
    ("ceiling", ceiling::run),
    ("huge", huge::run),
    ("page-cache", page_cache::run),
    ("stacks", stacks::run),
];

fn main() -> ExitCode {
    // These are parts of benches that are processes of their own: each runs this program with its name.
    let mut args = std::env::args().skip(1).peekable();
    let result = match args.peek().map(String::as_str) {
        Some("measure") => measure::main(args.skip(1)),
        Some("drive") => fragmentation::driver::main(args),
        Some("truth-case") => truth::program::main(args),
        _ => run(Args::parse()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("isotherm-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    for name in &args.names {
        if !BENCHES.iter().any(|bench| bench.0 == name) {
            let known: Vec<&str> = BENCHES.iter().map(|bench| bench.0).collect();
            bail!("there is no bench `{name}`; there are {}", known.join(", "));
        }
    }
    let json_path = args.json.clone();
    let names = args.names.clone();
    let context = context(args)?;
    let machine = machine::describe(&context);
    println!("{}", machine::line(&machine));
    let (mut results, mut failed, mut skipped) = (serde_json::Map::new(), 0, 0);
    for (name, bench) in BENCHES {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        println!("\n== {name} ==");
        let result = match bench(&context) {
            Ok(BenchOutcome::Done { tables, data }) => {
                for table in tables {
                    println!("{table}");
                }
                data
            }
            Ok(BenchOutcome::Skip(reason)) => {
                skipped += 1;
                println!("SKIP: {reason}");
                json!({ "skipped": reason })
            }
            Err(error) => {
                failed += 1;
                println!("FAILED: {error:#}");
                json!({ "failed": format!("{error:#}") })
            }
        };
        results.insert(name.to_owned(), result);
        if context.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if let Some(path) = json_path {
        let all = json!({ "machine": machine, "quick": context.quick, "repeats": context.repeats, "benches": results });
        std::fs::write(&path, serde_json::to_string_pretty(&all)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nnumbers: {}", path.display());
    }
    if skipped > 0 {
        println!("\n{skipped} skipped");
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn context(args: Args) -> anyhow::Result<BenchContext> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the benches lie in lab/bench")?
        .to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let isotherm = match args.isotherm {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("there is no {}", path.display()))?,
        None => build(&root)?,
    };
    Ok(BenchContext {
        root,
        isotherm,
        repeats: args.repeats.unwrap_or(if args.quick { 1 } else { 3 }),
        quick: args.quick,
        only: args.only,
        modes: args
            .mode
            .iter()
            .map(|mode| Mode::parse(mode))
            .collect::<Result<_, _>>()?,
        asked_duration: args.duration.map(Duration::from_secs),
        duration: Duration::from_secs(args.duration.unwrap_or(if args.quick { 5 } else { 30 })),
        rows: args
            .rows
            .unwrap_or(if args.quick { 100_000 } else { 3_000_000 }),
        keep: args.keep,
        named: !args.names.is_empty(),
        fragmentation: args.fragmentation,
        huge: args.huge,
        truth: args.truth,
        stop,
        scratch: tempfile::tempdir().context("cannot create a temporary folder")?,
    })
}

/// Builds the release binary if necessary.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let status = std::process::Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "isotherm"])
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!(
            "cargo could not build isotherm; `--isotherm PATH` takes a binary that is there already"
        );
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/isotherm"))
}
