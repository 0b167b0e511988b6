//! Benchmarks of correctness, cost and speed.
//!
//! Each bench is a file here. It compares A with B in one run, interleaved (this machine's speed changes from minute to
//! minute), and gives medians with their spread. A bench that lacks something reports SKIP with the reason. Whatever a
//! bench starts ends with it, also on failure and on Ctrl-C.

mod cached_files;
mod ceiling;
mod child;
mod guard;
mod machine;
mod meter;
mod prediction;
mod recording;
mod subject;
mod table;
mod truth;
mod tune;
mod watching;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde_json::{Value, json};

use table::Table;

struct Bench {
    name: &'static str,
    about: &'static str,
    /// The reason why it runs only when it is named.
    only_named: Option<&'static str>,
    run: fn(&BenchContext) -> Result<BenchOutcome>,
}

const BENCHES: [Bench; 6] = [
    Bench {
        name: "watching",
        about: "speed and CPU time that a recorder takes from programs, turn by turn in the same run; with --only:\n\
                cached-files (--all, and whether what is reported of the files is true) and\n\
                map, heap, cc, python (--stacks)",
        only_named: None,
        run: watching::run,
    },
    Bench {
        name: "prediction",
        about: "what the simulated machine predicts of a scheme, and the result, on the programs of truth\n\
                (--programs, --seed, --cases, --case as there)",
        only_named: Some("it takes long; name it to run it"),
        run: prediction::run,
    },
    Bench {
        name: "guard",
        about: "slowdown and memory saved under prcl, with and without the guard: bursts, shifts, locks; on the\n\
                swap that there is (zram or a disk)",
        only_named: None,
        run: guard::run,
    },
    Bench {
        name: "truth",
        about: "every snapshot against what really happened in its own interval, on programs drawn from a seed",
        only_named: Some("it takes long; name it to run it"),
        run: truth::run,
    },
    Bench {
        name: "tune",
        about: "what `tune` finds on traces of programs drawn from a seed, and by how many replays, beside the\n\
                published methods",
        only_named: Some("it takes long; name it to run it"),
        run: tune::run,
    },
    Bench {
        name: "ceiling",
        about: "CPU time, memory and interval where many blocks, mappings or processes are watched",
        only_named: Some("it takes minutes, and was not named"),
        run: ceiling::run,
    },
];

const EXAMPLES: &str = "\
Examples:
  cargo run --release -p isotherm-bench -- --quick
  cargo run --release -p isotherm-bench -- watching --only static_1g --mode '5ms=--sample-interval 5ms'
  cargo run --release -p isotherm-bench -- truth --seed 7 --cases 20 --budgets 1%,10%";

/// Returns a line for each bench, or several.
fn list() -> String {
    let entries = BENCHES.into_iter().map(|bench| {
        let about = bench.about.replace('\n', &format!("\n{:19}", ""));
        let when = bench.only_named.is_some();
        let when = if when { "; runs only when named" } else { "" };
        format!("  {:<15}  {about}{when}\n", bench.name)
    });
    entries.collect()
}

/// Measure accuracy, overhead and speed.
#[derive(Parser)]
#[command(name = "isotherm-bench", after_help = format!("Benches:\n{}\n{EXAMPLES}", list()))]
struct Args {
    /// Benches to run; all if none is named
    names: Vec<String>,
    /// Print the benches and run none
    #[arg(long)]
    list: bool,
    /// Repeat everything this number of times (default 3; 1 with --quick)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Write all numbers to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Small workloads and short windows: does it work, not how well
    #[arg(long)]
    quick: bool,
    /// watching, guard, ceiling: only these programs
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// watching, truth: these modes of `isotherm record` instead of the usual ones
    #[arg(long, value_name = "NAME=FLAGS")]
    mode: Vec<String>,
    /// Seconds that each recording takes
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// prediction: keep traces and records of live runs in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Use this binary instead of building one
    #[arg(long, value_name = "PATH")]
    isotherm: Option<PathBuf>,
    #[command(flatten)]
    truth: truth::Options,
}

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
    keep: Option<PathBuf>,
    truth: truth::Options,
    stop: Arc<AtomicBool>,
    /// Records, truths and sockets.
    scratch: tempfile::TempDir,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mode {
    name: String,
    flags: Vec<String>,
}

impl Mode {
    fn parse(text: &str) -> Result<Self> {
        let (name, flags) = text.split_once('=').with_context(|| {
            format!("--mode takes NAME=FLAGS, such as '5ms=--sample-interval 5ms', not `{text}`")
        })?;
        Ok(Self {
            name: name.to_owned(),
            flags: flags.split_whitespace().map(str::to_owned).collect(),
        })
    }

    fn is_of_the_machine(&self) -> bool {
        let mut flags = self.flags.iter();
        flags.any(|flag| matches!(flag.as_str(), "--all" | "--physical"))
    }
}

enum BenchOutcome {
    /// Tables for people, numbers for programs.
    Done(Vec<Table>, Value),
    Skip(String),
}

impl BenchContext {
    /// Sleeps, or fails as soon as a signal asks for the end.
    fn sleep(&self, time: Duration) -> Result<()> {
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

    /// Returns whether `--only` selects `name`, or nothing.
    fn is_selected(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn modes_or(&self, usual: &[&str]) -> Result<Vec<Mode>> {
        if !self.modes.is_empty() {
            return Ok(self.modes.clone());
        }
        usual.iter().map(|mode| Mode::parse(mode)).collect()
    }
}

fn main() -> ExitCode {
    // These are parts of benches that are processes of their own: each runs this program with its name.
    let mut args = std::env::args().skip(1).peekable();
    let result = match args.peek().map(String::as_str) {
        Some("truth-case") => truth::program::main(args),
        _ => run(Args::parse()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("isotherm-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(args: Args) -> Result<ExitCode> {
    if args.list {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    for name in &args.names {
        if !BENCHES.iter().any(|bench| bench.name == name) {
            let known = BENCHES.map(|bench| bench.name).join(", ");
            bail!("there is no bench `{name}`; there are {known}");
        }
    }
    let json_path = args.json.clone();
    let names = args.names.clone();
    let context = context(args)?;
    let machine = machine::describe(&context);
    println!("{}", machine::line(&machine));
    let (mut results, mut failed, mut skipped) = (serde_json::Map::new(), 0, 0);
    for bench in BENCHES {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == bench.name) {
            continue;
        }
        println!("\n== {} ==", bench.name);
        let outcome = match bench.only_named {
            Some(reason) if names.is_empty() => Ok(BenchOutcome::Skip(reason.into())),
            _ => (bench.run)(&context),
        };
        let result = match outcome {
            Ok(BenchOutcome::Done(tables, data)) => {
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
        results.insert(bench.name.to_owned(), result);
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

fn context(args: Args) -> Result<BenchContext> {
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
        keep: args.keep,
        truth: args.truth,
        stop,
        scratch: tempfile::tempdir().context("cannot create a temporary folder")?,
    })
}

fn build(root: &Path) -> Result<PathBuf> {
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
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/isotherm"))
}
