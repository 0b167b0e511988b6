//! `isotherm record`: watches targets and writes what it sees to a file.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use isotherm_engine::{Cost, Nanos, Snapshot};
use isotherm_record::{Item, Writer, printable};

use crate::acting::{Acting, ActingSummary, Setup};
use crate::recorder::{Context, MonitorArgs, Session, Step, TargetArgs};
use crate::units::{format_bytes, parse_duration};

/// Record which memory of running programs, or of the machine, is accessed, and how often.
///
/// Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_NICE and, to tell shared
/// pages, CAP_DAC_READ_SEARCH); `isotherm doctor` says what
/// works here. Ctrl-C ends the recording. A command's exit code is passed on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm record --duration 30s --pid 1234     a running process, at most 1 % of a CPU
  isotherm record -- redis-server --port 7000   a command, until it ends
  isotherm record --cgroup system.slice/redis.service --cpu-budget 0.5%
  isotherm record --pages --pid 1234            every page's idleness, exactly
  isotherm record --physical --node 1           the memory of NUMA node 1
Then: isotherm report heatmap")]
pub(crate) struct Args {
    /// File to write [default: isotherm-DATE-TIME.isotherm here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// How long to record [default: until the targets end, or Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Nanos>,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,

    /// Print the summary at the end as JSON on standard output
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    how: MonitorArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_name()?,
    };
    let watch = Watch {
        contexts: vec![Context::only(&args.targets, &args.how)],
        duration: args.duration,
        quiet: args.quiet,
        json: args.json,
    };
    watch.run(Some(&path), &[])
}

/// What to watch, how and for how long; with schemes to act by, `isotherm run`.
pub(super) struct Watch {
    pub(super) contexts: Vec<Context>,
    pub(super) duration: Option<Nanos>,
    pub(super) quiet: bool,
    pub(super) json: bool,
}

impl Watch {
    /// Watches until the end, and writes a record to `path`, if there is one. Acts by `setups`: none,
    /// or one for each context.
    pub(super) fn run(&self, path: Option<&Path>, setups: &[Setup]) -> anyhow::Result<ExitCode> {
        let Some(path) = path else {
            return self.run_with(None, setups);
        };
        let is_new = !path.exists();
        // The file first: a command must not run for nothing. What it holds goes later, when there is
        // something to record.
        let file = crate::output::open(path)?;
        let outcome = self.run_with(Some((file, path)), setups);
        let is_empty = || std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0);
        if outcome.is_err() && is_new && is_empty() {
            // Nothing was recorded: leave nothing behind.
            std::fs::remove_file(path).ok();
        }
        outcome
    }

    fn run_with(
        &self,
        output: Option<(File, &Path)>,
        setups: &[Setup],
    ) -> anyhow::Result<ExitCode> {
        let mut session = Session::start(&self.contexts)?;
        let started = session.now();
        let path = output.as_ref().map(|(_, path)| *path);
        let began = begin(&mut session, output, setups);
        let (mut recording, mut acting) = match began {
            Ok(began) => began,
            Err(error) => {
                wait_unrecorded(&mut session, &error);
                return Err(error);
            }
        };
        let ends_at = self
            .duration
            .map_or(Nanos(u64::MAX), |duration| started + duration);
        let bar = self.progress_bar();
        recording.is_quiet = self.quiet || self.json;
        let result = recording.run(&mut session, acting.as_mut(), ends_at, &bar);
        let elapsed = session.now().since(started);
        bar.finish_and_clear();
        let written = recording.end(&mut session, &result);
        if let Err(error) = result.and(written) {
            wait_unrecorded(&mut session, &error);
            return Err(error);
        }
        let code = wait_for(session.take_child(), session.is_stopped());
        let acted = acting.as_ref().map(Acting::summary);
        let summary = recording.summary(&session, elapsed, path, acted);
        if self.json {
            println!("{}", serde_json::to_string_pretty(&summary)?);
        } else if !self.quiet {
            eprintln!("{}", summary.text());
        }
        Ok(code)
    }

    fn progress_bar(&self) -> ProgressBar {
        if self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let (bar, template) = match self.duration {
            Some(duration) => (
                ProgressBar::new(duration.0 / 1_000_000),
                "[{elapsed_precise}] {bar:24.cyan/blue} {msg}",
            ),
            None => (
                ProgressBar::new_spinner(),
                "[{elapsed_precise}] {spinner} {msg}",
            ),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("a template of ours"));
        bar
    }
}

/// Takes the first look, which fails if a target can't be watched, and only then starts the file anew.
fn begin(
    session: &mut Session,
    output: Option<(File, &Path)>,
    setups: &[Setup],
) -> anyhow::Result<(Recording, Option<Acting>)> {
    let mut items = Vec::new();
    session.step(Nanos(u64::MAX), &mut items)?;
    let mut acting = match setups {
        [] => None,
        setups => Some(Acting::new(setups, session)?),
    };
    if let Some(acting) = &mut acting {
        acting.step(session, &mut items)?;
    }
    let Some((file, path)) = output else {
        let recording = Recording {
            items,
            ..Recording::default()
        };
        return Ok((recording, acting));
    };
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        file.set_len(0)
            .with_context(|| format!("cannot empty {}", path.display()))?;
    }
    let recording = Recording {
        items,
        ..Recording::new(session, file, path)?
    };
    Ok((recording, acting))
}

/// Waits for the command, which is not to suffer from the end of its recording.
fn wait_unrecorded(session: &mut Session, error: &anyhow::Error) {
    let Some(mut child) = session.take_child() else {
        return;
    };
    if matches!(child.try_wait(), Ok(None)) {
        // It may take long until the error itself is printed.
        eprintln!("isotherm: recording has ended, the command goes on: {error:#}");
    }
    wait_for(Some(child), session.is_stopped());
}

/// What is seen on the way to the file.
#[derive(Default)]
struct Recording {
    is_quiet: bool,
    writer: Option<Writer<BufWriter<File>>>,
    path: PathBuf,
    items: Vec<Item>,
    nr_snapshots: u64,
    last: std::collections::BTreeMap<u32, View>,
}

/// A target's last snapshot, in bytes.
#[derive(Clone, Copy, Default)]
struct View {
    nr_regions: usize,
    bytes: u64,
    hot: u64,
    unknown: u64,
}

impl Recording {
    fn new(session: &Session, file: File, path: &Path) -> anyhow::Result<Self> {
        let writer = Writer::create(BufWriter::new(file), session.header())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            is_quiet: false,
            writer: Some(writer),
            path: path.to_owned(),
            items: Vec::new(),
            nr_snapshots: 0,
            last: std::collections::BTreeMap::new(),
        })
    }

    fn run(
        &mut self,
        session: &mut Session,
        mut acting: Option<&mut Acting>,
        ends_at: Nanos,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let started = session.now();
        let mut next_look = started;
        // What the first look found has been acted on.
        self.say_notes(bar);
        self.write_items()?;
        loop {
            let step = session.step(ends_at, &mut self.items)?;
            if let Some(acting) = &mut acting {
                acting.step(session, &mut self.items)?;
            }
            self.say_notes(bar);
            self.write_items()?;
            let now = session.now();
            if now >= next_look {
                next_look = now + Nanos::from_millis(250);
                self.show(session, started, bar);
            }
            if step != Step::Going || now >= ends_at {
                return Ok(());
            }
        }
    }

    /// What the user should know at once: who is not watched, what cannot be seen.
    fn say_notes(&self, bar: &ProgressBar) {
        for item in &self.items {
            if let Item::Note { text, .. } = item
                && !self.is_quiet
            {
                bar.suspend(|| eprintln!("isotherm: {}", printable(text)));
            }
        }
    }

    fn write_items(&mut self) -> anyhow::Result<()> {
        for item in self.items.drain(..) {
            match &item {
                Item::Snapshot(snapshot) => {
                    self.nr_snapshots += 1;
                    self.last.insert(snapshot.target.0, View::of(snapshot));
                }
                Item::Pages(pages) => {
                    self.nr_snapshots += 1;
                    let view = View::of_pages(pages);
                    self.last.insert(pages.target.0, view);
                }
                Item::TargetExit(exit) => drop(self.last.remove(&exit.target.0)),
                _ => {}
            }
            if let Some(writer) = &mut self.writer {
                writer.write(&item).with_context(|| {
                    format!(
                        "cannot write {}; what was written until now is readable",
                        self.path.display()
                    )
                })?;
            }
        }
        Ok(())
    }

    fn show(&self, session: &Session, started: Nanos, bar: &ProgressBar) {
        if bar.is_hidden() {
            return;
        }
        let total = self.total();
        let share = cpu_share(session.cost().0, session.now().since(started));
        bar.set_message(format!(
            "{} regions, {} watched, {:.1} % hot, monitor {share:.2} % of a CPU",
            total.nr_regions,
            format_bytes(total.bytes),
            100.0 * total.hot as f64 / total.bytes.max(1) as f64,
        ));
        bar.set_position(session.now().since(started).0 / 1_000_000);
    }

    fn total(&self) -> View {
        self.last.values().fold(View::default(), |sum, view| View {
            nr_regions: sum.nr_regions + view.nr_regions,
            bytes: sum.bytes + view.bytes,
            hot: sum.hot + view.hot,
            unknown: sum.unknown + view.unknown,
        })
    }

    /// Writes the last words, and whatever is still in memory.
    fn end(&mut self, session: &mut Session, result: &anyhow::Result<()>) -> anyhow::Result<()> {
        session.finish(&mut self.items);
        if let Err(error) = result {
            self.items.push(Item::Note {
                time: session.now(),
                text: format!("recording failed: {error:#}"),
            });
        }
        let written = self.write_items();
        let Some(writer) = self.writer.take() else {
            return written;
        };
        let finished = writer
            .finish()
            .map_err(anyhow::Error::from)
            .and_then(|mut file| Ok(file.flush()?));
        written.and(finished.with_context(|| {
            format!(
                "cannot finish {}; what was written until now is readable",
                self.path.display()
            )
        }))
    }

    fn summary(
        &self,
        session: &Session,
        elapsed: Nanos,
        path: Option<&Path>,
        acted: Option<ActingSummary>,
    ) -> Summary {
        let (cost, peak_rss) = session.cost();
        let total = self.total();
        Summary {
            file: path.map(|path| path.display().to_string()),
            seconds: elapsed.as_secs_f64(),
            snapshots: self.nr_snapshots,
            regions: total.nr_regions,
            monitored_bytes: total.bytes,
            hot_bytes: total.hot,
            unknown_bytes: total.unknown,
            monitor_cpu_percent: cpu_share(
                Cost {
                    induced_cpu: Nanos(0),
                    ..cost
                },
                elapsed,
            ),
            induced_cpu_percent_estimated: cpu_share(
                Cost {
                    monitor_cpu: Nanos(0),
                    ..cost
                },
                elapsed,
            ),
            clears: cost.clears,
            checks: cost.checks,
            refused: cost.refused,
            monitor_peak_rss_bytes: peak_rss,
            method: session.summary(),
            acted,
        }
    }
}

impl View {
    fn of(snapshot: &Snapshot) -> Self {
        let mut view = Self {
            nr_regions: snapshot.regions.len(),
            ..Self::default()
        };
        for region in &snapshot.regions {
            view.bytes += region.range.len();
            match region.nr_accesses {
                None => view.unknown += region.range.len(),
                Some(n) if n > 0.0 => view.hot += region.range.len(),
                Some(_) => {}
            }
        }
        view
    }

    fn of_pages(pages: &isotherm_record::PageSnapshot) -> Self {
        let count =
            |bits: &[u64; 8]| bits.iter().map(|w| u64::from(w.count_ones())).sum::<u64>() * 4096;
        pages
            .blocks
            .iter()
            .fold(Self::default(), |sum, block| Self {
                nr_regions: sum.nr_regions + 1,
                bytes: sum.bytes + count(&block.present),
                hot: sum.hot + count(&block.accessed),
                unknown: sum.unknown + count(&block.unknown),
            })
    }
}

/// What a recording came to. Percentages are of one CPU.
#[derive(serde::Serialize)]
struct Summary {
    file: Option<String>,
    seconds: f64,
    snapshots: u64,
    regions: usize,
    monitored_bytes: u64,
    hot_bytes: u64,
    unknown_bytes: u64,
    monitor_cpu_percent: f64,
    induced_cpu_percent_estimated: f64,
    clears: u64,
    checks: u64,
    refused: u64,
    monitor_peak_rss_bytes: u64,
    method: Option<String>,
    #[serde(flatten)]
    acted: Option<ActingSummary>,
}

impl Summary {
    fn text(&self) -> String {
        let unknown = if self.unknown_bytes > 0 {
            format!(", {} unknown", format_bytes(self.unknown_bytes))
        } else {
            String::new()
        };
        let method = self
            .method
            .as_ref()
            .map_or_else(String::new, |text| format!("\n{text}"));
        let acted = self
            .acted
            .as_ref()
            .map_or_else(String::new, |acted| format!("\n{}", acted.text()));
        let wrote = self
            .file
            .as_ref()
            .map_or_else(String::new, |file| format!("\nwrote {file}"));
        format!(
            "recorded {:.1} s in {} snapshots: {} watched, {} accessed in the last{unknown}\n\
             watching cost {:.2} % of a CPU, and an estimated {:.2} % taken from the targets; {} clears, {} refused; {} of memory{method}{acted}{wrote}",
            self.seconds,
            self.snapshots,
            format_bytes(self.monitored_bytes),
            format_bytes(self.hot_bytes),
            self.monitor_cpu_percent,
            self.induced_cpu_percent_estimated,
            self.clears,
            self.refused,
            format_bytes(self.monitor_peak_rss_bytes),
        )
    }
}

fn cpu_share(cost: Cost, elapsed: Nanos) -> f64 {
    100.0 * (cost.monitor_cpu + cost.induced_cpu).as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
}

/// Waits for the command, passing a request to stop on, and turns how it ended into our exit code.
fn wait_for(child: Option<Child>, stopped: bool) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let Some(mut child) = child else {
        return ExitCode::SUCCESS;
    };
    if stopped {
        // From a terminal the command got the signal itself; from elsewhere only we did.
        std::thread::sleep(Duration::from_millis(50));
        isotherm_linux::process::terminate(&mut child);
    }
    match child.wait() {
        Ok(status) => {
            let code = status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal));
            ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// A name in the working directory that is not taken.
fn default_name() -> anyhow::Result<PathBuf> {
    let stamp = isotherm_linux::clock::local_stamp();
    let names = std::iter::once(format!("isotherm-{stamp}.isotherm"))
        .chain((2..1000).map(|n| format!("isotherm-{stamp}-{n}.isotherm")));
    names
        .map(PathBuf::from)
        .find(|path| !path.exists())
        .context("a thousand records of this second are here already; name a file with -o")
}
