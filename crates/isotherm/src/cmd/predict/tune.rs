//! `isotherm tune`: finds the scheme that suits a program best, by its record and by live runs; or replaces the schemes
//! of a running daemon.

mod live;

use std::cell::RefCell;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail};
use isotherm_config::{ConfigFormat, to_json, to_yaml};
use isotherm_engine::units::parse_share;
use isotherm_session::simulated::read_trace;
use isotherm_tune::{
    Effort, Fingerprint, Journal, LiveRuns, METHODS, MemoryLimit, OBJECTIVES, Prices,
    PublishedMethod, SETTINGS, Search, SearchEvent, Seeks, Stage, TuneRequest, Tuned, Tuning,
    TuningPlan,
};
use tracing::{info, warn};

use crate::flags::{FarArgs, contexts_of, one_of};
use crate::log::is_quiet;
use crate::out;
use crate::progress::{Progress, Unit, whole_seconds};
use crate::whole_file::{self, beside, is_special};

/// Find the best settings of a scheme for a recorded program; or replace the schemes of a running daemon.
///
/// With RECORD (made by `record --pages`), tune replays the program on a simulated machine under many settings. It
/// prints what each would have saved and cost. -o writes the best setting within the limit as a configuration that
/// `run -c`, damo and HMSDK read. No privilege is needed. docs/how-to/tune.md has more.
///
/// With --live, a few runs of the program itself confirm or correct the replays: runs of a command or of an
/// experiment's workload, or windows of a running service. Without RECORD, tune records the program first. The
/// privileges of `run` are needed.
///
/// Without both, -c replaces the schemes and limits of a running daemon (`isotherm start`); --preset and --scheme
/// replace its schemes alone. A configuration that is refused changes nothing.
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("subject").args(["record", "live"]).multiple(true)),
    override_usage = "isotherm tune [OPTIONS] <RECORD> --preset <NAME> [-o <FILE>]
       isotherm tune [OPTIONS] <RECORD> -c <FILE> [-o <FILE>]
       isotherm tune --live [OPTIONS] [RECORD] --preset <NAME> [-o <FILE>] -- <COMMAND>...
       isotherm tune --live [OPTIONS] [RECORD] --preset <NAME> --eval <EXPERIMENT>
       isotherm tune --live [OPTIONS] [RECORD] --preset <NAME> --pid <PID|NAME> --progress-cmd <COMMAND>
       isotherm tune -c <FILE> [--socket <PATH>]
       isotherm tune --preset <NAME> [--socket <PATH>]",
    after_help = "Examples:
  isotherm record --pages --duration 2m -o app.isotherm --pid 1234
  isotherm tune app.isotherm --preset prcl --max-slowdown 2% -o tuned.yaml
  isotherm tune app.isotherm --preset prcl --param age=1s..2min --param quota=16M,max --json
  isotherm tune app.isotherm --preset prcl --max-memory 60% --page tune.html
  isotherm tune app.isotherm --preset prcl --price dram=3.5,cpu=20
  isotherm tune app.isotherm --scheme '4K max 0 0 5s max migrate_cold 1' --far 9G --memory-bound 9%
  isotherm tune app.isotherm -c kdamonds.yaml --objective damoos --budget 50
  isotherm tune app.isotherm --preset prcl --objective damoos --method damoos-polyfit
Then: isotherm run -c tuned.yaml --pid 1234

Confirmed by live runs:
  isotherm tune --live --preset prcl --max-slowdown 2% -o tuned.yaml -- ./program --its-flags
  isotherm tune --live --preset prcl --eval experiments/shipped.toml --workload x264
  isotherm tune --live --preset prcl --pid 1234 --progress-cmd ./requests-served

A daemon:
  isotherm tune -c gentler.yaml
  isotherm tune --preset damon_reclaim

Exit status: 0 found, 1 no setting is within the limit, 2 failed, 130 stopped by Ctrl-C (what was found is written)."
)]
pub(crate) struct Args {
    /// Record of the program, made by `record --pages`; --live makes it if it does not exist
    #[arg(value_name = "RECORD")]
    record: Option<PathBuf>,

    /// Read the schemes from this file: damo's or HMSDK's kdamonds in JSON or YAML, or one-line schemes. Without
    /// RECORD, they and the file's limits replace the daemon's
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Connect to the daemon at this socket [default: /run/isotherm/isotherm.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "record")]
    socket: Option<PathBuf>,

    #[command(flatten)]
    result: out::ResultArgs,

    #[command(flatten)]
    what: WhatArgs,

    #[command(flatten)]
    sought: SoughtArgs,

    #[command(flatten)]
    how: HowArgs,

    #[command(flatten)]
    far: FarArgs,

    #[command(flatten)]
    live: live::LiveArgs,
}

/// The schemes to tune.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "What to tune")]
struct WhatArgs {
    /// Tune the schemes of this name: ethp, prcl, pprcl; or give them to the daemon, which also takes damon_reclaim and
    /// lru_sort
    #[arg(long, value_name = "NAME")]
    preset: Vec<String>,

    /// Tune this scheme, e.g. '4K max 0 0 5s max pageout'; or give it to the daemon
    #[arg(long, value_name = "LINE")]
    scheme: Vec<String>,

    /// Tune this parameter over these values: NAME, NAME=LOW..HIGH[:STEPS] or NAME=VALUE,VALUE; may be repeated.
    /// Names: age, size, rate and quota (cold memory), density and waste (huge pages), hot-rate (promotion)
    /// [default: all but rate and quota]
    #[arg(long, value_name = "PARAM", requires = "subject")]
    param: Vec<String>,

    /// Watch by DAMON's rules (5 ms / 100 ms / 1 s, 10 to 1000 regions), as the kernel does
    #[arg(long, requires = "subject")]
    faithful: bool,

    /// Replay without a guard, as damo applies schemes
    #[arg(long, requires = "subject")]
    no_guard: bool,
}

/// The objective.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "sought", requires = "subject", multiple = true)]
#[command(next_help_heading = "Objective")]
struct SoughtArgs {
    /// Choose the best setting by this objective [default: memory; slowdown with --max-memory, cost with --price, huge
    /// for schemes that only make huge pages]
    #[arg(long, value_parser = one_of(OBJECTIVES), value_name = "WHAT")]
    objective: Option<Seeks>,

    /// Let the program lose at most this share of its time; also the guard's limit [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_slowdown: Option<f64>,

    /// Let at most this much memory be resident on average: a size, or a share of that without schemes, e.g. 600M or
    /// 60%
    #[arg(long, value_name = "SIZE|SHARE", value_parser = MemoryLimit::parse)]
    max_memory: Option<MemoryLimit>,

    /// Compute costs by these prices for a month, in any currency: dram= and cxl= for a GiB, cpu= for a CPU
    #[arg(long, value_name = "NAME=PRICE,...", value_parser = Prices::parse)]
    price: Option<Prices>,
}

/// Not an `Option` for clap, which would take that for an option without a default.
type Method = Option<PublishedMethod>;

/// The search and its outputs.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "searched", requires = "subject", multiple = true)]
#[command(next_help_heading = "Search")]
struct HowArgs {
    /// Replay at most this number of settings, all on the whole trace [default: as many as take about a minute of CPU
    /// time; of a large trace, first on a sample of its blocks, then the best on the whole]
    #[arg(long, value_name = "N")]
    budget: Option<NonZero<u32>>,

    /// Replay 256 settings, all on the whole trace, however long that takes
    #[arg(long, conflicts_with = "budget")]
    thorough: bool,

    /// Search by this method; published methods use DAMOOS' score and a budget of their own
    #[arg(long, value_parser = one_of(METHODS), value_name = "METHOD", default_value = "search")]
    method: Method,

    /// Replay this number of settings at a time; the result does not depend on it [default: one for each CPU]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZero<u32>>,

    /// Seed every random choice with this number
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write the recommended configuration to this file: as damo's JSON where its name ends in .json, else as YAML
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write the trade-off as a web page to this file
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Write each result to this journal, and resume from the results in it [default: OUTPUT.journal, removed at the
    /// end]
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.live.is_wanted() {
        return live::run(args);
    }
    let WhatArgs { preset, scheme, .. } = &args.what;
    let socket = args.socket.as_deref();
    let socket = socket.unwrap_or(Path::new(crate::daemon::SOCKET));
    match (&args.record, &args.config) {
        (Some(record), _) => {
            check_outputs(args)?;
            let stop = crate::stop::by_signals()?;
            tune(args, record, &stop, None)
        }
        (None, Some(_)) if !preset.is_empty() || !scheme.is_empty() => {
            bail!("a daemon takes -c, or --preset and --scheme; put all schemes into the file")
        }
        (None, Some(config)) => crate::cmd::control::tune(config, socket),
        (None, None) if !preset.is_empty() || !scheme.is_empty() => {
            crate::cmd::control::set_schemes(preset, scheme, socket)
        }
        (None, None) => bail!(
            "nothing to tune: name the record of a program (isotherm tune app.isotherm --preset prcl), a program to \
             run (isotherm tune --live --preset prcl -- ./program), or other schemes for a running daemon (isotherm tune \
             -c FILE, or --preset NAME)"
        ),
    }
}

/// Fails now rather than after minutes if an output cannot be written.
fn check_outputs(args: &Args) -> anyhow::Result<()> {
    for path in [&args.how.output, &args.how.page].into_iter().flatten() {
        whole_file::check(path)?;
    }
    Ok(())
}

/// Tries schemes on a record, then in live runs if `live` makes them.
fn tune(
    args: &Args,
    record: &Path,
    stop: &Arc<AtomicBool>,
    live: Option<&mut dyn LiveRuns>,
) -> anyhow::Result<ExitCode> {
    let mut replay = read_trace(record)?;
    args.far.add_to(&mut replay);
    for note in &replay.notes {
        warn!("{note}");
    }
    let tuning = request(args)?
        .of_trace(replay)?
        .beside(&args.live.subject());
    let mut journal = open_journal(args, tuning.fingerprint())?;
    let Some((tuned, plan)) = search(args, tuning, journal.as_mut(), stop, live)? else {
        info!("stopped before the first result");
        return Ok(ExitCode::from(130));
    };
    let written = write(args, &plan, &tuned);
    if args.result.is_json() {
        println!("{}", out::json(&tuned)?);
    } else if !is_quiet() {
        print!("{}", tuned.text());
    }
    // The result is printed even if it cannot be written; the journal is then kept.
    written?;
    end_journal(args, journal, &tuned);
    Ok(match &tuned.found.recommended {
        _ if tuned.was_stopped => ExitCode::from(130),
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn request(args: &Args) -> anyhow::Result<TuneRequest> {
    let sought = &args.sought;
    Ok(TuneRequest {
        contexts: contexts_of(args.config.as_deref())?,
        presets: args.what.preset.clone(),
        scheme_lines: args.what.scheme.clone(),
        params: args.what.param.clone(),
        is_faithful: args.what.faithful,
        no_guard: args.what.no_guard,
        seeks: sought.objective,
        max_slowdown: sought.max_slowdown,
        max_memory: sought.max_memory,
        prices: sought.price,
        seed: args.how.seed,
    })
}

/// Returns the journal's path: that of --resume, or beside the output.
fn journal_path(args: &Args) -> Option<PathBuf> {
    match (&args.how.resume, &args.how.output) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(output)) if !is_special(output) => Some(beside(output, "journal")),
        _ => None,
    }
}

fn open_journal(args: &Args, of: &Fingerprint) -> anyhow::Result<Option<Journal>> {
    let Some(path) = journal_path(args) else {
        return Ok(None);
    };
    let journal = Journal::open(&path, of)?;
    if journal.nr_known() > 0 {
        let (nr, nr_live) = (journal.nr_known(), journal.live_runs().len());
        let path = path.display();
        info!("{nr} settings were tried before, and {nr_live} live runs made: {path}");
    }
    Ok(Some(journal))
}

/// Removes the journal at the end of a search, unless --resume named it.
fn end_journal(args: &Args, journal: Option<Journal>, tuned: &Tuned) {
    let Some(journal) = journal else {
        return;
    };
    if tuned.was_stopped {
        info!(
            "stopped; the same command goes on ({})",
            journal.path().display()
        );
    } else if args.how.resume.is_none()
        && let Err(error) = fs::remove_file(journal.path())
    {
        warn!("cannot remove {}: {error}", journal.path().display());
    }
}

fn search(
    args: &Args,
    tuning: Tuning,
    journal: Option<&mut Journal>,
    stop: &Arc<AtomicBool>,
    live: Option<&mut dyn LiveRuns>,
) -> anyhow::Result<Option<(Tuned, TuningPlan)>> {
    let effort = Effort {
        budget: { args.how.budget.map(|budget| budget.get() as usize) }
            .or(args.how.thorough.then_some(SETTINGS)),
        jobs: args.how.jobs.map(|jobs| jobs.get() as usize),
        method: args.how.method,
    };
    let progress = RefCell::new(Searching::new());
    let mut on_event = |event: SearchEvent<'_>| progress.borrow_mut().take(event);
    match live {
        Some(makes) => {
            let mut confirm = |search: &mut Search, objective, journal: Option<&mut Journal>| {
                progress.borrow_mut().end();
                live::confirm(args, search, objective, makes, journal)
            };
            tuning.run(&effort, journal, stop, &mut on_event, Some(&mut confirm))
        }
        None => tuning.run(&effort, journal, stop, &mut on_event, None),
    }
}

/// Predicted seconds from which a search announces its time and first answer.
const LONG_S: f64 = 5.0;

struct Searching {
    progress: Progress,
    /// The next result is the first of a long search.
    is_awaited: bool,
    one_in: u32,
}

impl Searching {
    fn new() -> Self {
        let progress = Progress::new(None, Unit::Unknown);
        progress.set_message("replaying the program without schemes");
        Self {
            progress,
            is_awaited: false,
            one_in: 1,
        }
    }

    fn take(&mut self, event: SearchEvent<'_>) {
        match event {
            SearchEvent::Begins(stage) => self.begin(stage),
            SearchEvent::Evaluated(nr) => self.progress.set_position(nr as u64),
            SearchEvent::Leads(lead) => {
                let of = match self.one_in {
                    1 => String::new(),
                    nr => format!(" on one block in {nr}"),
                };
                let lead = format!("best so far{of}: {lead}");
                if std::mem::take(&mut self.is_awaited) {
                    self.progress.suspend(|| info!("{lead}"));
                }
                self.progress.set_message(lead);
            }
            SearchEvent::Settles => self
                .progress
                .set_message("computing the bounds of the best"),
            SearchEvent::JournalFailed(error) => self.progress.suspend(|| {
                warn!(
                    "{error}; the search goes on, and cannot be gone on with after an interruption"
                );
            }),
        }
    }

    fn begin(&mut self, stage: Stage) {
        self.end();
        let is_first = self.one_in == 1;
        let (nr, takes) = (stage.nr_most, whole_seconds(stage.expected_s));
        if stage.expected_s >= LONG_S {
            match stage.one_in {
                1 => info!("trying at most {nr} settings on the whole trace: about {takes}"),
                of => info!(
                    "trying at most {nr} settings on one block in {of}, then the best on the whole trace: about {takes} \
                     in all"
                ),
            }
            self.is_awaited = is_first;
        }
        self.one_in = stage.one_in;
        self.progress = Progress::new(Some(nr as u64), Unit::Count("settings"));
    }

    fn end(&mut self) {
        self.progress = Progress::hidden();
    }
}

/// Writes the outputs that the flags ask for, if the search found their content.
fn write(args: &Args, plan: &TuningPlan, tuned: &Tuned) -> anyhow::Result<()> {
    if let Some(path) = &args.how.page {
        whole_file::write(path, isotherm_tune::page(tuned, plan))?;
    }
    let Some(path) = &args.how.output else {
        return Ok(());
    };
    let Some(best) = &tuned.found.recommended else {
        warn!(
            "{} is not written: no setting is within the limit",
            path.display()
        );
        return Ok(());
    };
    let configuration = plan.configuration(&best.settings);
    let is_json = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("json"));
    let text = if is_json {
        to_json(&configuration)
    } else {
        to_yaml(&configuration)
    };
    // A configuration that Isotherm cannot read is not worth writing.
    isotherm_config::load(&text, ConfigFormat::Detect)
        .context("the configuration cannot be read again")?;
    whole_file::write(path, text)
}
