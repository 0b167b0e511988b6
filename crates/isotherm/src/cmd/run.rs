//! `isotherm run`: watches targets and acts on their memory by schemes.

use std::path::PathBuf;
use std::process::ExitCode;

use isotherm_engine::Nanos;

use super::record::{EndArgs, Watch};
use crate::flags::{ActArgs, contexts_of, lower};
use isotherm_engine::units::parse_time_span;

/// Act on memory by its access pattern: reclaim what is cold, back what is hot with huge pages, ...
///
/// A guard stops the schemes when they cost the targets more than you allow. Needs root (see
/// `isotherm doctor`). Ctrl-C ends it; a command's exit code is passed on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm run --preset prcl --pid 1234                       # page out what idled for 5 s
  isotherm run --idle 2min --pid 1234                         # page out what idled for 2 minutes
  isotherm run --dry-run --preset prcl --duration 1m --pid 1234
  isotherm run --preset pprcl --save 4G                       # all processes, until 4 GiB are out
  isotherm run --preset prcl --keep-free 15% --cgroup system.slice/redis.service
  isotherm run --scheme '4K max 0 0 30s max pageout' --max-slowdown 0.5% -- ./service
  isotherm run -c kdamonds.json --max-refaults 100/s --cgroup system.slice/redis.service
  isotherm run --preset prcl -o run.isotherm --pid 1234       # and record what was done and why
  isotherm run -c hmsdk.yaml                                  # all its kdamonds, one for each node
Then: isotherm report footprint run.isotherm")]
pub(crate) struct Args {
    /// Write a record of what is seen and done to this file [default: none]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Run for this long [default: until the targets end, or Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time_span)]
    duration: Option<Nanos>,

    #[command(flatten)]
    end: EndArgs,

    #[command(flatten)]
    act: ActArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let contexts = contexts_of(args.act.schemes.config.as_deref())?;
    let watch = Watch {
        spec: lower(&args.act.request(), &contexts)?,
        duration: args.duration,
        end: args.end,
    };
    watch.run(args.output.as_deref())
}
