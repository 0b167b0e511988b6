//! `isotherm tier`: memory of fast and slow nodes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use isotherm_config::{
    ConfigFormat, Extent, HMSDK_MEMCG, Move, TierPlan, Topology, load, node_extent, text_of,
    to_json, to_yaml,
};
use isotherm_linux::{cgroup, node};
use isotherm_policy::scheme::Tuner;

use isotherm_engine::units::parse_bytes;

use crate::flags::one_of;

/// Keep hot memory on fast nodes and cold memory on slow ones.
#[derive(clap::Args)]
#[command(after_help = "Example:
  isotherm tier plan -m 0 1 -g -o tier.yaml && isotherm run -c tier.yaml")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Plan(PlanArgs),
}

/// Write a configuration that moves memory between nodes, as HMSDK's generator does.
///
/// For each node that memory leaves it has a kdamond (or more, with -s) of one scheme: cold memory is
/// demoted (migrate_cold), hot memory is promoted (migrate_hot). The options are those of HMSDK's
/// gen_migpol.py and mean the same.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm tier plan -m 0 1 -g -o tier.yaml     # node 0 is fast, node 1 is slow, all processes
  isotherm check tier.yaml && isotherm run -c tier.yaml --dry-run
  isotherm run -c tier.yaml
  isotherm tier plan -d 0 1                     # only demote, only processes in cgroup /hmsdk
  isotherm tier plan -m 0 2 -m 1 3 -g -s 64G    # two pairs, a kdamond for each 64 GiB
  isotherm tier plan -m 0 1 -g --goals          # as damo's mem_tier.sh: keeps node 0 at 99.5 %
  isotherm tier plan -m 0 2 -g --node 0=512GiB --node 2=96GiB      # a machine that is not this one
  isotherm tier plan -m 0 2 -g --topology machine.yaml

A topology's file (frames of 4 KiB; regions instead of a size, where they are known):
  nodes: [{id: 0, size: 512 GiB}, {id: 2, regions: [{start: 549755813888, end: 652835028992}]}]

Exit status: 0 written, 2 not.")]
pub(crate) struct PlanArgs {
    /// Demote cold memory of node FAST to SLOW, promote hot memory of SLOW to FAST; repeat for more
    #[arg(short, long, num_args = 2, value_names = ["FAST", "SLOW"])]
    migrate: Vec<u32>,

    /// Demote cold memory of node SRC to node DEST
    #[arg(short, long, num_args = 2, value_names = ["SRC", "DEST"])]
    demote: Vec<u32>,

    /// Promote hot memory of node SRC to node DEST
    #[arg(short, long, num_args = 2, value_names = ["SRC", "DEST"])]
    promote: Vec<u32>,

    /// Move memory of all processes [default: of those in the control group /hmsdk]
    #[arg(short, long)]
    global: bool,

    /// Cut ranges longer than this (1G, 512M...) into pieces with a kdamond each [default: none]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = parse_bytes)]
    region_max_size: Option<u64>,

    /// Let quotas follow how full the fast node is (0.5 % free, 99.7 % used; 200 MiB/s at most),
    /// instead of HMSDK's fixed ones; consist changes them in proportion, temporal stops at the goal
    #[arg(long, value_parser = one_of(TUNERS), value_name = "TUNER", num_args = 0..=1, default_missing_value = "consist")]
    goals: Option<Tuner>,

    /// Plan for the machine that is described in FILE (YAML or JSON), not for this one
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    topology: Option<PathBuf>,

    /// Plan for a machine with this node, by size or addresses, not for this one; repeat for each node
    #[arg(long, value_name = "ID=SIZE|START-END", value_parser = node_extent)]
    node: Vec<(u32, Extent)>,

    /// Write this format [default: JSON for a name that ends in .json, else YAML]
    #[arg(long, value_enum)]
    format: Option<FormatName>,

    /// Write JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write to this file, replaced if it is there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    Json,
    Yaml,
}

const TUNERS: &[(&str, &str, Tuner)] = &[
    ("consist", "", Tuner::Consist),
    ("temporal", "", Tuner::Temporal),
];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Plan(args) => plan(args),
    }
}

fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let configuration = wanted(args).configuration(&topology(args)?)?;
    let text = match format(args) {
        FormatName::Json => to_json(&configuration),
        FormatName::Yaml => to_yaml(&configuration),
    };
    // A configuration that Isotherm cannot read is not worth writing: very small pieces make very long files.
    text_of(text.as_bytes())
        .map_err(anyhow::Error::from)
        .and_then(|text| Ok(load(text, ConfigFormat::Detect)?))
        .context("the plan is too much for one file; give a larger --region-max-size")?;
    match &args.output {
        Some(path) => crate::whole_file::write(path, text)?,
        None => std::io::stdout()
            .write_all(text.as_bytes())
            .context("cannot write to standard output")?,
    }
    let is_here = args.topology.is_none() && args.node.is_empty();
    if is_here && !args.global && cgroup::find(Path::new(HMSDK_MEMCG)).is_err() {
        tracing::warn!(
            "only processes in the control group {HMSDK_MEMCG} are moved, and there \
             is none; make it (mkdir /sys/fs/cgroup{HMSDK_MEMCG}), or plan for all by --global"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the plan in HMSDK's order: the steps of `--migrate` come last.
fn wanted(args: &PlanArgs) -> TierPlan {
    let steps = |pairs: &[u32]| {
        let pairs = pairs.as_chunks().0.iter();
        pairs
            .map(|[from, to]| Move {
                from: *from,
                to: *to,
            })
            .collect()
    };
    let mut plan = TierPlan {
        demotions: steps(&args.demote),
        promotions: steps(&args.promote),
        memcg: (!args.global).then(|| HMSDK_MEMCG.to_owned()),
        region_max: args.region_max_size,
        goals: args.goals,
    };
    for [fast, slow] in args.migrate.as_chunks().0 {
        plan.migrate(*fast, *slow);
    }
    plan
}

fn topology(args: &PlanArgs) -> anyhow::Result<Topology> {
    if let Some(path) = &args.topology {
        let name = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let text = text_of(&bytes).with_context(|| format!("cannot read {name}"))?;
        return Topology::read(text).with_context(|| format!("{name} describes no machine"));
    }
    if !args.node.is_empty() {
        return Ok(Topology::new(args.node.iter().copied())?);
    }
    let ranges = node::all().context(
        "cannot tell which addresses this machine's nodes have (another one can be described by \
         --topology or --node)",
    )?;
    if ranges.is_empty() {
        bail!("/proc/zoneinfo shows no memory on any node; describe the machine by --topology");
    }
    let extents = ranges
        .into_iter()
        .map(|(node, range)| (node, Extent::Range(range)));
    Ok(Topology::new(extents)?)
}

fn format(args: &PlanArgs) -> FormatName {
    let name = args.output.as_deref().and_then(Path::extension);
    let json = args.json.then_some(FormatName::Json);
    args.format.or(json).unwrap_or(match name {
        Some(name) if name.eq_ignore_ascii_case("json") => FormatName::Json,
        _ => FormatName::Yaml,
    })
}
