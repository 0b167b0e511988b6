//! `isotherm report summary`, `diff`, `actions` and `machine`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use isotherm_report::{
    Accumulate, Actions, DiffReport, Machine, Overview, Overviews, Scope, SummaryReport,
};

use super::CommonArgs;
use super::output::OutputArgs;
use super::source::{Source, exit_code, worse_of};

/// Summarize a record on one screen: memory by process, cold memory, savings by paging out, and the next steps.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm report summary redis.isotherm")]
pub(super) struct SummaryArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// Compare two records: how resident memory, working set and idle memory changed, by name.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm report diff before.isotherm after.isotherm")]
pub(super) struct DiffArgs {
    /// Compare from this record.
    a: PathBuf,
    /// Compare to this record.
    b: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// Show what schemes tried and did, what was refused and why, and how the guard stood, over time.
#[derive(clap::Args)]
#[command(after_help = "Example:
  isotherm run --preset prcl -o run.isotherm --duration 5min --pid 1234
  isotherm report actions run.isotherm -o actions.html")]
pub(super) struct ActionsArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// Show what the machine's memory is used for: by class, process, control group and node, and how much is idle.
#[derive(clap::Args)]
#[command(after_help = "Example:
  isotherm record --all --duration 1min -o machine.isotherm
  isotherm report machine machine.isotherm -o machine.html")]
pub(super) struct MachineArgs {
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) fn machine(args: &MachineArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let missing = "this part of the record has no sample of the machine's memory; `isotherm record --all` makes one that \
         does";
    let make = |header: &_| Machine::new(header, common.scope());
    common.write_if_there(common.open()?, make, missing)
}

pub(super) fn summary(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let (overview, code) = overview(common.open()?, common.scope())?;
    let report = SummaryReport::new(overview);
    common.output.write(&report, &common.output.style(false))?;
    Ok(code)
}

pub(super) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    args.output.format()?;
    let of = |path: &Path| {
        let found = Source::open(Some(path)).and_then(|source| overview(source, Scope::default()));
        found.with_context(|| format!("cannot compare {}", path.display()))
    };
    let ((a, code_a), (b, code_b)) = (of(&args.a)?, of(&args.b)?);
    let report = DiffReport::new(a, b);
    args.output.write(&report, &args.output.style(false))?;
    Ok(worse_of(code_a, code_b))
}

pub(super) fn actions(args: &ActionsArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let missing =
        "this part of the record has no schemes; `isotherm run -o FILE` makes one that does";
    let make = |header: &_| Actions::new(header, common.scope());
    common.write_if_there(common.open()?, make, missing)
}

fn overview(source: Source, scope: Scope) -> anyhow::Result<(Overview, ExitCode)> {
    let (overviews, extent) = source.accumulate(scope, |header| Overviews::new(header, scope))?;
    extent.require(&scope, None)?;
    Ok((overviews.finish(), exit_code(&extent)))
}
