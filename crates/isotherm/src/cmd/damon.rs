//! `isotherm damon`: shows and records the kernel's DAMON, whatever process uses it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use isotherm_config::{Request, TargetSpec, World, to_json, to_yaml};
use isotherm_engine::Nanos;
use isotherm_engine::units::parse_time_span;
use isotherm_session::{KernelDamonReport, kernel_plan};

use super::record::{EndArgs, Watch, default_name};
use crate::flags::load;
use crate::out::ResultArgs;

/// Show or record the kernel's DAMON: every kdamond, on or off, and the kernel's own modules that use it.
///
/// Reads only. What is set up can be written as damo's configuration, which `isotherm run -c`, `isotherm simulate` and
/// damo read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm damon
  isotherm damon --json
  isotherm damon record --duration 1min       # what the kdamonds see that run, of whomever
  isotherm damon --export kdamonds.json       # what is set up, as damo's JSON (.yaml: as its YAML)
  isotherm damon --plan kdamonds.json         # what this configuration comes to in DAMON's tree")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<DamonCommand>,

    #[command(flatten)]
    result: ResultArgs,

    /// Write what is set up to this file, as damo's JSON, or as YAML where its name ends in .yaml or .yml
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,

    /// Show what a configuration (damo's JSON or YAML, HMSDK's YAML) would set in the tree of a kernel that has
    /// everything, and end: a file and its text in each line
    #[arg(long, value_name = "FILE", conflicts_with = "export")]
    plan: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum DamonCommand {
    Record(DamonRecordArgs),
}

/// Record what all kdamonds see that run, whoever has set them up: damo, HMSDK, or a module of the kernel.
///
/// Only listens to DAMON's tracepoints: nothing is set. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm damon record --duration 1min -o theirs.isotherm")]
struct DamonRecordArgs {
    /// Write the record to this file [default: isotherm-DATE-TIME.isotherm here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Record for this long [default: until the last kdamond ends, or Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time_span)]
    duration: Option<Nanos>,

    #[command(flatten)]
    result: ResultArgs,
}

/// The writes of a configuration.
#[derive(serde::Serialize)]
struct Plan {
    /// Files below /sys/kernel/mm/damon/admin and their texts, in order.
    writes: Vec<(String, String)>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(DamonCommand::Record(args)) = &args.command {
        return record(args);
    }
    if let Some(path) = &args.plan {
        return plan(path, args.result);
    }
    let report = KernelDamonReport::read()?;
    if let Some(path) = &args.export {
        let configuration = report.configuration();
        ensure!(
            !configuration.contexts.is_empty(),
            "no kdamond is set up: there is nothing to write"
        );
        let is_yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        let text = if is_yaml {
            to_yaml(&configuration)
        } else {
            to_json(&configuration)
        };
        crate::whole_file::write(path, text.as_bytes())?;
    }
    args.result.print(&report, KernelDamonReport::text)?;
    Ok(ExitCode::SUCCESS)
}

fn record(args: &DamonRecordArgs) -> anyhow::Result<ExitCode> {
    let request = Request {
        targets: Some(TargetSpec::all_physical()),
        world: World::Attached,
        ..Request::default()
    };
    let watch = Watch {
        spec: request.watch()?,
        duration: args.duration,
        end: EndArgs {
            result: args.result,
            ..EndArgs::default()
        },
    };
    let path = args.output.clone().map_or_else(default_name, Ok)?;
    watch.run(Some(&path))
}

fn plan(path: &Path, result: ResultArgs) -> anyhow::Result<ExitCode> {
    let configuration = load(path)?;
    let request = Request {
        world: World::Kernel,
        ..Request::default()
    };
    // The targets may be named elsewhere.
    let anybody = TargetSpec::named(Vec::new());
    let spec = request.act_or_watch(&configuration.contexts, Some(anybody))?;
    let plan = Plan {
        writes: kernel_plan(&spec)?,
    };
    let line = |(path, text): &(String, String)| format!("{path} {text}\n");
    result.print(&plan, |plan| plan.writes.iter().map(line).collect())?;
    Ok(ExitCode::SUCCESS)
}
