//! `isotherm compare`: the same schemes in several worlds, side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use isotherm_config::{ContextConfig, Method, Monitoring, Request, SessionSpec, TargetSpec, World};
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_time, parse_time, parse_time_span};
use isotherm_render::page;
use isotherm_session::compare::{
    ComparedWorld, Comparison, ComparisonProgress, ComparisonSpec, compare,
};

use crate::flags::{
    GuardArgs, MonitorArgs, ProcessList, SchemeArgs, acting, contexts_of, one_of, processes,
};
use crate::out::ResultArgs;
use crate::progress::{self, Unit};

/// Compare worlds on the same processes: the results of Isotherm's own monitor, the kernel's DAMON and the simulated
/// machine, their accuracy and their cost.
///
/// Worlds take turns, with exact scans of every page before and after each. Each turn is compared with the results on
/// which both scans agree. Nothing is acted on; for schemes, the report shows which memory they match.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm compare --pid 1234                   # Isotherm and the kernel's DAMON, with no scheme
  isotherm compare -c kdamonds.json --worlds linux,kernel,simulated --pid 1234
  isotherm compare --preset prcl --equal-cpu --pid redis-server --page compared.html
  isotherm compare --preset prcl --worlds linux,simulated --pid 1234 --json")]
pub(crate) struct Args {
    /// Compare these worlds: linux (Isotherm's own monitor), faithful (the same by DAMON's rules and the kernel's
    /// intervals), kernel (the kernel's DAMON), simulated (a replay of exact scans)
    #[arg(long, value_parser = one_of(WORLDS), value_name = "WHICH", value_delimiter = ',', default_values = ["linux", "kernel"])]
    worlds: Vec<ComparedWorld>,

    /// Compare on these running processes, by id or name. Separate several by commas, or repeat the option; write a
    /// comma in a name as `\,`
    #[arg(
        short,
        long,
        value_name = "PID|NAME",
        required_unless_present = "cgroup"
    )]
    pid: Vec<ProcessList>,

    /// Compare on every process of this control group
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<PathBuf>,

    /// Make each turn this long: at least twice as long as memory must be idle for the schemes [default: 20s, or 10 s
    /// more than that]
    #[arg(long, value_name = "TIME", value_parser = parse_time_span)]
    window: Option<Nanos>,

    /// Give each world this many turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,

    /// Give `linux` the CPU time that `kernel` took in its turns
    #[arg(long, conflicts_with = "cpu_budget")]
    equal_cpu: bool,

    /// Hold a process up for at most this time at one exact scan, once a second between turns
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "100ms")]
    scan_stall: Nanos,

    /// Write a page (HTML) of the table to this file [default: none]
    #[arg(long, alias = "output", short_alias = 'o', value_name = "FILE")]
    page: Option<PathBuf>,

    #[command(flatten)]
    result: ResultArgs,

    #[command(flatten)]
    schemes: SchemeArgs,

    #[command(flatten)]
    how: MonitorArgs,
}

const WORLDS: &[(&str, &str, ComparedWorld)] = &[
    ("linux", "", ComparedWorld::Linux),
    ("faithful", "", ComparedWorld::Faithful),
    ("kernel", "", ComparedWorld::Kernel),
    ("simulated", "", ComparedWorld::Simulated),
];

/// Length of a turn, unless schemes need older memory.
const WINDOW: Nanos = Nanos::from_millis(20_000);
/// Time for a monitor to settle.
const TO_SETTLE: Nanos = Nanos::from_millis(10_000);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let spec = comparison(args)?;
    // A page that cannot be written must fail before minutes have passed; an existing one stays until then.
    let new_page = args.page.as_ref().filter(|path| !path.exists());
    if let Some(path) = &args.page {
        isotherm_session::record_file::open(path)?;
    }
    let progress = progress::Progress::new(None, Unit::Unknown);
    let all = format_time(spec.duration());
    let comparison = compare(&spec, &mut |at| {
        progress.set_message(format!("{} (about {all} in all)", words(at)));
    });
    drop(progress);
    let comparison = comparison.map_err(|error| {
        if let Some(path) = new_page {
            std::fs::remove_file(path).ok();
        }
        let takes_long = format!("{error:#}").contains("--max-stall");
        error.context(if takes_long {
            "nothing was compared; a longer --scan-stall lets exact scans take so long"
        } else {
            "nothing was compared"
        })
    })?;
    args.result.print(&comparison, Comparison::text)?;
    if let Some(path) = &args.page {
        crate::whole_file::write(path, html(&comparison).as_bytes())?;
    }
    let has_all = comparison.worlds.iter().all(|world| world.error.is_none());
    Ok(ExitCode::from(u8::from(!has_all)))
}

fn comparison(args: &Args) -> anyhow::Result<ComparisonSpec> {
    let mut names: Vec<ComparedWorld> = Vec::new();
    for name in &args.worlds {
        ensure!(!names.contains(name), "--worlds names one of them twice");
        names.push(*name);
    }
    ensure!(
        !args.equal_cpu
            || names.contains(&ComparedWorld::Linux) && names.contains(&ComparedWorld::Kernel),
        "--equal-cpu needs both: --worlds linux,kernel"
    );
    let contexts = contexts_of(args.schemes.config.as_deref())?;
    let worlds = names.iter().map(|name| {
        let spec = session(args, *name, &contexts);
        Ok((*name, spec?))
    });
    let mut spec = ComparisonSpec {
        worlds: worlds.collect::<anyhow::Result<_>>()?,
        window: WINDOW,
        turns: args.turns,
        max_stall: args.scan_stall,
        is_cpu_equal: args.equal_cpu,
    };
    // Ages start with each turn.
    let least = Nanos(spec.idle_for().0.saturating_mul(2));
    spec.window = args.window.unwrap_or((least + TO_SETTLE).max(WINDOW));
    ensure!(
        spec.window >= least,
        "in a turn of {} it is not seen which memory is idle for {}; --window {} at least",
        format_time(spec.window),
        format_time(spec.idle_for()),
        format_time(least)
    );
    Ok(spec)
}

fn session(
    args: &Args,
    name: ComparedWorld,
    contexts: &[ContextConfig],
) -> anyhow::Result<SessionSpec> {
    let given = args.how.monitoring();
    let by_regions = Monitoring {
        cpu_budget: None,
        ..given
    };
    let (world, monitoring) = match name {
        ComparedWorld::Linux | ComparedWorld::Simulated => (World::Linux, given),
        ComparedWorld::Faithful => (
            World::Linux,
            Monitoring {
                method: Some(Method::Faithful),
                ..by_regions
            },
        ),
        ComparedWorld::Kernel => (World::Kernel, by_regions),
    };
    let targets = match &args.cgroup {
        Some(path) => TargetSpec::Cgroup(path.clone()),
        None => TargetSpec::named(processes(&args.pid)),
    };
    let request = Request {
        targets: Some(targets),
        monitoring,
        seed: args.how.seed,
        acting: acting(&args.schemes, &GuardArgs::default()),
        world,
        ..Request::default()
    };
    Ok(request.act_or_watch(contexts, None)?)
}

fn words(progress: ComparisonProgress) -> String {
    match progress {
        ComparisonProgress::Scanning => "exact scans".to_owned(),
        ComparisonProgress::Watching { world, turn, turns } => {
            format!("{}, turn {turn} of {turns}", world.name())
        }
    }
}

fn html(comparison: &Comparison) -> String {
    let named = |(pid, name): (&u32, &String)| format!("{name} ({pid})");
    let processes: Vec<String> = comparison.processes.iter().map(named).collect();
    let subject = format!(
        "{} · turns of {:.0} s",
        isotherm_record::printable(&processes.join(", ")),
        comparison.window_seconds
    );
    let mut html = page::begin("Worlds compared", &subject);
    let names = comparison.worlds.iter().map(|world| world.world.name());
    let head: Vec<&str> = std::iter::once("").chain(names).collect();
    let remarks = comparison.remarks().join(" ");
    html += &page::table("Side by side", &remarks, &head, comparison.rows());
    html + page::END
}
