//! `isotherm record`: watches targets and writes what it sees to a file.

mod calibrating;
mod command;
mod saved;
pub(crate) mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use isotherm_config::SessionSpec;
use isotherm_engine::{MemoryTotals, Nanos};
use isotherm_record::{Header, Item, Writer, printable};
use isotherm_report::overview::Overviews;
use isotherm_report::{Accumulate, Scope};
use isotherm_session::{Acting, ActingSummary, Session, Step, warnings};

use calibrating::Calibrating;
use command::{end_in_time, wait_for};
use saved::Saved;
use summary::{Summary, cpu_share};

use crate::flags::WatchArgs;
use crate::log::{draws_progress, is_quiet};
use isotherm_engine::units::{format_bytes, format_time, parse_time_span};
use tracing::{debug, info, warn};

/// Targets whose children are looked up.
const CHILDREN_OF: usize = 64;

/// Record which memory of running programs, or of the machine, is accessed, and how often.
///
/// Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_NICE and, to tell shared
/// pages, CAP_DAC_READ_SEARCH); `isotherm doctor` says what
/// works here. Ctrl-C ends the recording. A command's exit code is passed on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm record --duration 30s --pid 1234     # a running process, at most 1 % of a CPU
  isotherm record -- redis-server --port 7000   # a command, until it ends
  isotherm record --cgroup system.slice/redis.service --cpu-budget 0.5%
  isotherm record --all --duration 1min
  isotherm record --pages --pid 1234            # every page's idleness, exactly
  isotherm record --physical --duration 1min    # all memory, by physical address
  isotherm record --node 1                      # the memory of NUMA node 1
Then: isotherm report heatmap")]
pub(crate) struct Args {
    /// Write the record to this file, `-` for standard output [default: isotherm-DATE-TIME.isotherm here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Record for this long [default: until the targets end, or Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time_span)]
    duration: Option<Nanos>,

    #[command(flatten)]
    end: EndArgs,

    #[command(flatten)]
    watch: WatchArgs,
}

/// Options of the end of a recording.
#[derive(clap::Args, Clone, Copy, Default)]
pub(super) struct EndArgs {
    /// End the command when the time is up: SIGTERM, after 5 s SIGKILL; else it is waited for
    #[arg(long, requires = "duration", requires = "command")]
    pub(super) stop_command: bool,

    #[command(flatten)]
    pub(super) result: crate::out::ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_name()?,
    };
    anyhow::ensure!(
        !(args.end.result.is_json() && path.as_os_str() == "-"),
        "--json and --output - both write to standard output; name a file"
    );
    let watch = Watch {
        spec: args.watch.request().watch()?,
        duration: args.duration,
        end: args.end,
    };
    watch.run(Some(&path))
}

/// Takes what is watched, beside the record.
pub(super) trait Sink {
    /// Takes the header, before any item.
    fn begin(&mut self, header: &Header);
    /// Takes the next item.
    fn take(&mut self, item: &Item);
}

/// The targets, the settings and the duration of a recording; with schemes, of `isotherm run`.
pub(super) struct Watch {
    pub(super) spec: SessionSpec,
    pub(super) duration: Option<Nanos>,
    pub(super) end: EndArgs,
}

impl Watch {
    /// Watches until the end, acts if there are schemes, and writes a record to `path`, if there is one.
    pub(super) fn run(&self, path: Option<&Path>) -> anyhow::Result<ExitCode> {
        let (code, summary) = self.run_to(path, None)?;
        if self.end.result.is_json() {
            println!("{}", crate::out::json(&summary)?);
        } else if !is_quiet() {
            eprintln!("{}", summary.text());
        }
        Ok(code)
    }

    /// Watches as [`Self::run`] does, passes all items to `sink`, and prints no summary.
    pub(super) fn watch(
        &self,
        path: Option<&Path>,
        sink: &mut dyn Sink,
    ) -> anyhow::Result<ExitCode> {
        Ok(self.run_to(path, Some(sink))?.0)
    }

    fn run_to(
        &self,
        path: Option<&Path>,
        sink: Option<&mut dyn Sink>,
    ) -> anyhow::Result<(ExitCode, Summary)> {
        let Some(path) = path else {
            return self.run_with(None, sink);
        };
        if path.as_os_str() == "-" {
            let out = std::io::stdout().as_fd().try_clone_to_owned();
            let out = out.context("cannot write to standard output")?;
            return self.run_with(Some((File::from(out), path)), sink);
        }
        let is_new = !path.exists();
        // The file is opened first, so that a command does not run in vain. Its old content is removed later, when
        // there is something to record.
        let file = isotherm_session::record_file::open(path)?;
        let outcome = self.run_with(Some((file, path)), sink);
        let is_empty = || std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0);
        if outcome.is_err() && is_new && is_empty() {
            // Nothing was recorded: remove the file.
            std::fs::remove_file(path).ok();
        }
        outcome
    }

    fn run_with(
        &self,
        output: Option<(File, &Path)>,
        sink: Option<&mut dyn Sink>,
    ) -> anyhow::Result<(ExitCode, Summary)> {
        for warning in warnings(&self.spec) {
            warn!("{warning}");
        }
        let mut session = Session::start(&self.spec, crate::out::command_line())?;
        for (key, value) in &session.header().settings {
            debug!("{key}: {value}");
        }
        let started = session.now();
        let path = output.as_ref().map(|(_, path)| *path);
        let began = begin(&mut session, output, sink, &self.spec);
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
        let contexts = &self.spec.contexts;
        recording.counts_children = contexts.iter().all(|c| !c.targets.follows_children());
        let result = recording.run(&mut session, acting.as_mut(), ends_at, &bar);
        let elapsed = session.now().since(started);
        bar.finish_and_clear();
        let written = recording.end(&mut session, acting.as_mut(), &result);
        if let Err(error) = result.and(written) {
            wait_unrecorded(&mut session, &error);
            return Err(error);
        }
        let code = self.wait_for_command(&mut session);
        let acted = acting.as_ref().map(|acting| acting.summary());
        let summary = recording.summary(&session, elapsed, path, acted);
        Ok((code, summary))
    }

    /// Waits for the watched command, or ends it; prints a line if that may take time.
    fn wait_for_command(&self, session: &mut Session) -> ExitCode {
        let is_stopped = session.is_stopped();
        let Some(mut child) = session.take_child() else {
            return ExitCode::SUCCESS;
        };
        let goes_on = matches!(child.try_wait(), Ok(None));
        if goes_on && !is_stopped && self.end.stop_command {
            end_in_time(&mut child);
            // Its end was requested: not a failure of the command.
            wait_for(&mut child, false);
            return ExitCode::SUCCESS;
        }
        if goes_on && !is_stopped {
            info!(
                "the recording is complete; waiting for the command (pid {}) to end \
                 (Ctrl-C ends it now, --stop-command ends it by itself)",
                child.id()
            );
        }
        wait_for(&mut child, is_stopped)
    }

    fn progress_bar(&self) -> ProgressBar {
        if !draws_progress() {
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

/// Takes the first sample, which fails if a target cannot be watched, and only then truncates the file.
fn begin<'a>(
    session: &mut Session,
    output: Option<(File, &Path)>,
    mut sink: Option<&'a mut dyn Sink>,
    spec: &SessionSpec,
) -> anyhow::Result<(Recording<'a>, Option<Acting>)> {
    let mut items = Vec::new();
    // The calibration loads a BPF program of its own, while this process still has the privileges.
    let calibrating = Calibrating::start(spec);
    let acting = isotherm_session::begin(session, spec, &mut items)?;
    for warning in acting.iter().flat_map(|acting| acting.warnings()) {
        warn!("{warning}");
    }
    if let Some(sink) = &mut sink {
        sink.begin(session.header());
    }
    let is_kept = output.is_some() || sink.is_some();
    let mut recording = Recording {
        items,
        sink,
        calibrating: calibrating.filter(|_| is_kept),
        overviews: Some(Overviews::new(session.header(), Scope::default())),
        ..Recording::default()
    };
    if let Some((file, path)) = output {
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.set_len(0)
                .with_context(|| format!("cannot empty {}", path.display()))?;
        }
        let writer = Writer::create(file, session.header())
            .with_context(|| format!("cannot write {}", path.display()))?;
        recording = Recording {
            writer: Some(writer),
            path: path.to_owned(),
            ..recording
        };
    }
    Ok((recording, acting))
}

/// Waits for the command, which must not suffer from the end of its recording.
fn wait_unrecorded(session: &mut Session, error: &anyhow::Error) {
    let Some(mut child) = session.take_child() else {
        return;
    };
    if matches!(child.try_wait(), Ok(None)) {
        // The command may run for long before the error is printed.
        let cause = error.root_cause().to_string();
        warn!(
            "recording has ended, the command goes on: {}",
            printable(&cause)
        );
    }
    wait_for(&mut child, session.is_stopped());
}

/// The items on the way to the file.
#[derive(Default)]
struct Recording<'a> {
    writer: Option<Writer<File>>,
    path: PathBuf,
    sink: Option<&'a mut dyn Sink>,
    items: Vec<Item>,
    nr_snapshots: u64,
    nr_targets: usize,
    /// Each target's last snapshot: its regions, and their totals.
    last: BTreeMap<u32, (usize, MemoryTotals)>,
    /// The figures of `isotherm report summary`.
    overviews: Option<Overviews>,
    /// The last snapshot of the target that ended last.
    last_of_ended: Option<(usize, MemoryTotals)>,
    rss: BTreeMap<u32, u64>,
    /// Descendants of targets that are not watched themselves.
    unwatched: BTreeSet<u32>,
    next_look_for_children: Nanos,
    /// Children are counted, as the user did not ask to watch them.
    counts_children: bool,
    saved: Saved,
    /// Measures the cost of acting, if the record can be replayed.
    calibrating: Option<Calibrating>,
}

impl Recording<'_> {
    fn run(
        &mut self,
        session: &mut Session,
        mut acting: Option<&mut Acting>,
        ends_at: Nanos,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let started = session.now();
        let mut next_look = started;
        // The targets of the first sample have been acted on.
        self.say_notes(bar);
        self.write_items()?;
        loop {
            let step =
                isotherm_session::step(session, acting.as_deref_mut(), ends_at, &mut self.items)?;
            self.say_notes(bar);
            if let Some(calibrating) = &mut self.calibrating {
                calibrating.look(session, &self.items);
            }
            self.write_items()?;
            let now = session.now();
            if self.counts_children {
                self.look_for_children(session);
            }
            if now >= next_look {
                next_look = now + Nanos::from_millis(250);
                let acted = acting.as_deref().map(|acting| acting.headline());
                self.show(session, started, ends_at, acted, bar);
            }
            if step != Step::Going || now >= ends_at {
                return Ok(());
            }
        }
    }

    /// Prints the notes that the user should read at once: unwatched processes and memory that cannot be sampled.
    fn say_notes(&self, bar: &ProgressBar) {
        for item in &self.items {
            if let Item::Note { text, .. } = item {
                bar.suspend(|| warn!("{}", printable(text)));
            }
        }
    }

    fn write_items(&mut self) -> anyhow::Result<()> {
        for item in self.items.drain(..) {
            if let Some(overviews) = &mut self.overviews {
                overviews.push(&item);
            }
            match &item {
                Item::TargetStart(_) => self.nr_targets += 1,
                Item::Snapshot(snapshot) => {
                    self.nr_snapshots += 1;
                    let view = (snapshot.regions.len(), snapshot.totals());
                    self.last.insert(snapshot.target.0, view);
                }
                Item::Pages(pages) => {
                    self.nr_snapshots += 1;
                    let view = (pages.blocks.len(), pages.totals());
                    self.last.insert(pages.target.0, view);
                }
                Item::TargetExit(exit) => {
                    let last = self.last.remove(&exit.target.0);
                    self.last_of_ended = last.or(self.last_of_ended);
                    self.rss.remove(&exit.target.0);
                }
                Item::Usage(usage) => {
                    self.rss.extend(&usage.rss);
                    self.saved.look(usage.swap.values().sum());
                }
                _ => {}
            }
            if let Some(sink) = &mut self.sink {
                sink.take(&item);
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

    fn show(
        &self,
        session: &Session,
        started: Nanos,
        ends_at: Nanos,
        acted: Option<String>,
        bar: &ProgressBar,
    ) {
        if bar.is_hidden() {
            return;
        }
        if let Some(acted) = acted {
            bar.set_position(session.now().since(started).0 / 1_000_000);
            bar.set_message(format!("{}; {acted}", self.saved.text()));
            return;
        }
        let (_, totals) = self.total();
        let now = session.now();
        let cost = session.cost().0;
        let share = cpu_share(cost.monitor_cpu + cost.induced_cpu, now.since(started));
        let left = if ends_at == Nanos(u64::MAX) {
            String::new()
        } else {
            let seconds = ends_at.since(now).0.div_ceil(1_000_000_000);
            format!("{} left; ", format_time(Nanos::from_millis(seconds * 1000)))
        };
        let targets = match self.last.len() {
            1 => String::new(),
            nr => format!("{nr} targets, "),
        };
        bar.set_message(format!(
            "{left}{targets}{} of {} in use, monitor {share:.2} % of a CPU",
            format_bytes(totals.touched),
            format_bytes(totals.resident),
        ));
        bar.set_position(now.since(started).0 / 1_000_000);
    }

    /// Notes children of targets that are not watched.
    fn look_for_children(&mut self, session: &Session) {
        let now = session.now();
        if now < self.next_look_for_children {
            return;
        }
        self.next_look_for_children = now + Nanos::from_millis(1000);
        let live = session.live();
        let watched: BTreeSet<u32> = live.iter().map(|(_, process)| process.pid()).collect();
        // A group's processes are looked up again at every update; of many targets, a few are enough.
        for (_, process) in live.iter().take(CHILDREN_OF) {
            let children = process.children().into_iter();
            self.unwatched
                .extend(children.filter(|pid| !watched.contains(pid)));
        }
        self.unwatched.retain(|pid| !watched.contains(pid));
    }

    /// Sums up the last snapshots of the live targets; if all have ended, returns that of the last one.
    fn total(&self) -> (usize, MemoryTotals) {
        let none = (0, MemoryTotals::default());
        let ended = self.last_of_ended.iter().filter(|_| self.last.is_empty());
        let all = self.last.values().chain(ended);
        all.fold(none, |(nr, sum), (regions, totals)| {
            (nr + regions, sum.plus(*totals))
        })
    }

    /// Writes the last items, and all that is still in memory.
    fn end(
        &mut self,
        session: &mut Session,
        acting: Option<&mut Acting>,
        result: &anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        isotherm_session::finish(session, acting, &mut self.items);
        // A failed recording is not replayed.
        if let Some(calibrating) = self.calibrating.take().filter(|_| result.is_ok()) {
            self.items.push(calibrating.finish(session.now()));
        }
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
        written.and(writer.finish().map(drop).with_context(|| {
            format!(
                "cannot finish {}; what was written until now is readable",
                self.path.display()
            )
        }))
    }

    fn summary(
        &mut self,
        session: &Session,
        elapsed: Nanos,
        path: Option<&Path>,
        acted: Option<ActingSummary>,
    ) -> Summary {
        let (cost, peak_rss) = session.cost();
        let (regions, total) = self.total();
        let overview = self.overviews.take().map(Accumulate::finish);
        let reported = overview
            .filter(|of| !of.targets.is_empty())
            .map(|of| of.total);
        let rss = (!self.rss.is_empty()).then(|| self.rss.values().sum());
        let out = acted.as_ref().and_then(|acted| acted.would_be_out_bytes);
        let resident = match &reported {
            Some(of) if of.is_exact => of.resident_bytes,
            _ => total.known_resident(),
        };
        // Schemes have paged out more since the last snapshot.
        let resident = resident.map(|bytes| match rss {
            Some(rss) if acted.is_some() => bytes.min(rss),
            _ => bytes,
        });
        Summary {
            file: path.map(|path| path.display().to_string()),
            seconds: elapsed.as_secs_f64(),
            snapshots: self.nr_snapshots,
            had_targets: self.nr_targets > 0,
            interval_seconds: session.intervals().aggregation.as_secs_f64(),
            regions,
            monitored_bytes: total.addresses,
            resident_bytes: resident,
            swapped_bytes: total.known_swapped(),
            working_set_bytes: { reported.as_ref() }
                .map_or(Some(total.touched), |of| of.working_set_bytes),
            hot_bytes: total.touched,
            unknown_bytes: reported.map_or(total.unknown, |of| of.unknown_bytes),
            rss_bytes: rss,
            rss_bytes_after_dry_run: out
                .zip(rss)
                .map(|(out, rss): (u64, u64)| rss.saturating_sub(out)),
            children_not_watched: self.unwatched.len(),
            monitor_cpu_percent: cpu_share(cost.monitor_cpu, elapsed),
            induced_cpu_percent_estimated: cpu_share(cost.induced_cpu, elapsed),
            cpu_budget_percent: session.cpu_budget().map(|share| 100.0 * share),
            clears: cost.clears,
            checks: cost.checks,
            refused: cost.refused,
            monitor_peak_rss_bytes: peak_rss,
            method: session.summary(),
            acted,
        }
    }
}

/// Returns a name that is free in the working directory.
pub(super) fn default_name() -> anyhow::Result<PathBuf> {
    let stamp = chrono::Local::now().format("%Y%m%d-%H%M%S");
    let names = std::iter::once(format!("isotherm-{stamp}.isotherm"))
        .chain((2..1000).map(|n| format!("isotherm-{stamp}-{n}.isotherm")));
    names
        .map(PathBuf::from)
        .find(|path| !path.exists())
        .context("a thousand records of this second are here already; name a file with -o")
}
