//! `isotherm workload`: make memory accesses of known truth.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::flags::one_of;
use crate::log::{draws_progress, is_quiet};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isotherm_engine::units::format_bytes;
use isotherm_workload::run::{self, HugePages, Observer, RunOptions, WorkloadEvent};
use isotherm_workload::{Config, truth};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Make memory accesses of known truth
///
/// Reads masim's configuration format: a paragraph of memory regions, then a paragraph for each
/// phase with the patterns of its accesses. Prints each phase's accesses per second when it ends.
#[derive(clap::Args)]
#[command(after_help = "\
CONFIG holds paragraphs separated by empty lines; lines that start with # are comments:
  heap, 4G                                      region, size[, initial data file | none]

  serve                                         phase
  30000                                         its duration in ms
  heap, 1, 64, 100, rw, hot=10% piece=2MiB seed=1
The fields of a pattern: region, random (1) or sequential (0), stride in bytes, relative
probability[, ro | wo | rw | chain (default wo)[, hot=SHARE or SIZE, piece=SIZE (default 2MiB), seed=N
(default 1): touch only that much of the region, in pieces placed by seed]].

Examples:
  isotherm workload experiments/workloads/zigzag.cfg
  isotherm workload --truth truth.jsonl experiments/workloads/zigzag.cfg
  isotherm record -o zigzag.isotherm -- isotherm workload experiments/workloads/zigzag.cfg")]
pub(crate) struct Args {
    /// Run the workload of this configuration
    config: PathBuf,
    /// Go through all phases this many times; 0 is until stopped
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeat: u64,
    #[command(flatten)]
    result: crate::out::ResultArgs,
    /// Write what is accessed, and when, to this file, as JSON lines [default: none]
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Make each phase's accesses in each of this many threads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Seed the order of random accesses with this number; the places of hot pieces are the configuration's
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Back the regions by huge pages in this way
    #[arg(long, value_parser = one_of(HUGE_PAGES), default_value = "default", value_name = "WHEN")]
    hugepages: HugePages,
    /// Let memory become resident as it is touched, rather than before the first phase
    #[arg(long)]
    sparse: bool,
    /// Check the configuration and print what it says, without running it
    #[arg(long)]
    check: bool,
}

const HUGE_PAGES: &[(&str, &str, HugePages)] = &[
    ("always", "Ask for huge pages", HugePages::Always),
    ("never", "Refuse huge pages", HugePages::Never),
    ("default", "As the system does it", HugePages::Default),
];

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = args.config.display();
    let text = std::fs::read_to_string(&args.config)
        .with_context(|| format!("cannot read the workload's configuration {path}"))?;
    let config = Config::parse(&text).map_err(|error| anyhow::anyhow!("{path}, {error}"))?;
    if args.check {
        print_check(&config, args.result.is_json())?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .and_then(|_| signal_hook::flag::register(number, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    let mut teller = Teller::new(args.result.is_json(), args.truth)?;
    let options = RunOptions {
        rounds: args.repeat,
        threads: usize::from(args.threads),
        seed: args.seed,
        huge_pages: args.hugepages,
        populate: !args.sparse,
    };
    let result = run::run(&config, options, &stop, &mut teller);
    teller.bar.finish_and_clear();
    result?;
    Ok(match signal.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        // This is the code that a shell reports, so that a loop around this command ends as well.
        number => ExitCode::from(128 + number as u8),
    })
}

fn print_check(config: &Config, json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        write!(out, "{}", crate::out::json_line(config)?)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(
        out,
        "{} regions, {} in all:",
        config.regions.len(),
        format_bytes(config.total_bytes())
    )?;
    for region in &config.regions {
        writeln!(
            out,
            "  {:<16} {:>10}",
            region.name,
            format_bytes(region.bytes())
        )?;
    }
    let duration: u64 = config.phases.iter().map(|phase| phase.duration_ms).sum();
    writeln!(
        out,
        "{} phases, {:.1} s in all:",
        config.phases.len(),
        duration as f64 / 1e3
    )?;
    for phase in &config.phases {
        let seconds = phase.duration_ms as f64 / 1e3;
        writeln!(out, "  {:<16} {seconds:>8.1} s", phase.name)?;
    }
    Ok(())
}

/// Reports events to the user (text, a progress bar or JSON) and to the truth file.
struct Teller {
    json: bool,
    truth: Option<BufWriter<File>>,
    bar: ProgressBar,
    /// Accesses made in the phases that have ended.
    before: u64,
}

impl Teller {
    fn new(json: bool, truth: Option<PathBuf>) -> anyhow::Result<Self> {
        let truth = truth.map(|path| {
            File::create(&path)
                .map(BufWriter::new)
                .with_context(|| format!("cannot create the truth file {}", path.display()))
        });
        let bar = if json || !draws_progress() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        } else {
            ProgressBar::new(0)
        };
        bar.set_style(ProgressStyle::with_template(
            "{msg:<32} {wide_bar} {percent:>3} %",
        )?);
        Ok(Self {
            json,
            truth: truth.transpose()?,
            bar,
            before: 0,
        })
    }

    fn print(
        &self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> serde_json::Value,
    ) -> io::Result<()> {
        if is_quiet() {
            return Ok(());
        }
        let line = if self.json {
            json().to_string()
        } else {
            text()
        };
        self.bar.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        })
    }

    fn show(&self, message: String, position: u64, length: u64) {
        self.bar.set_length(length);
        self.bar.set_position(position);
        self.bar.set_message(message);
    }

    fn truth(&mut self, line: &truth::Line) -> io::Result<()> {
        if let Some(file) = &mut self.truth {
            truth::write(file, line)?;
        }
        match line {
            truth::Line::Ready {
                time_ns,
                pid,
                regions,
                ..
            } => self.print(
                || format!("process {pid}: {} regions populated", regions.len()),
                || json!({"event": "ready", "time_ns": time_ns, "pid": pid, "regions": regions}),
            ),
            truth::Line::Start {
                time_ns,
                phase,
                round,
                ..
            } if self.json => self.print(
                String::new,
                || json!({"event": "start", "time_ns": time_ns, "phase": phase, "round": round}),
            ),
            _ => Ok(()),
        }
    }
}

impl Observer for Teller {
    fn event(&mut self, event: &WorkloadEvent<'_>) -> io::Result<()> {
        match *event {
            WorkloadEvent::Populating { done, total } => {
                self.show(format!("populating {}", format_bytes(total)), done, total);
                Ok(())
            }
            WorkloadEvent::Truth(line) => self.truth(line),
            WorkloadEvent::Progress {
                phase,
                elapsed,
                duration,
                operations,
            } => {
                let length = duration.as_millis() as u64;
                let rate = millions(operations, elapsed);
                self.show(
                    format!("{phase}: {rate:.1} M/s"),
                    elapsed.as_millis() as u64,
                    length,
                );
                if !self.json {
                    return Ok(());
                }
                self.print(String::new, || {
                    json!({"event": "progress", "time_ns": now_ns(), "operations": self.before + operations})
                })
            }
            WorkloadEvent::Phase {
                phase,
                elapsed,
                operations,
            } => {
                self.before += operations;
                let rate = millions(operations, elapsed);
                self.print(
                    || {
                        format!(
                            "{phase:<16} {:>8.2} s {rate:>10.2} M accesses/s {operations:>16}",
                            elapsed.as_secs_f64()
                        )
                    },
                    || {
                        json!({
                            "event": "phase", "time_ns": now_ns(), "phase": phase,
                            "seconds": elapsed.as_secs_f64(), "operations": operations,
                            "operations_per_second": rate * 1e6, "operations_total": self.before,
                        })
                    },
                )
            }
        }
    }
}

fn millions(operations: u64, elapsed: Duration) -> f64 {
    operations as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos() as u64)
}
