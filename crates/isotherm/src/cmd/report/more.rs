//! `isotherm report summary`, `diff`, `actions` and `machine`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use isotherm_report::{Actions, DiffReport, Machine, Overview, Overviews, Scope};
use isotherm_size::SizedSummary;

use super::CommonArgs;
use super::output::OutputArgs;
use super::source::{Source, exit_code, worse_of};

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

pub(super) fn machine(common: &CommonArgs) -> anyhow::Result<ExitCode> {
    let missing = "this part of the record has no sample of the machine's memory; `isotherm record --all` makes one that \
         does";
    let make = |header: &_| Machine::new(header, common.scope());
    common.write_if_there(common.open()?, false, make, missing)
}

pub(super) fn summary(common: &CommonArgs) -> anyhow::Result<ExitCode> {
    let scope = common.scope();
    let make = |header: &_| SizedSummary::new(header, scope);
    let (report, extent) = common.open_pages()?.accumulate(scope, make)?;
    extent.require(&scope, None)?;
    common.output.write(&report, &common.output.style(false))?;
    let is_damaged = report.overview.record.end.damaged.is_some();
    Ok(worse_of(
        exit_code(&extent),
        ExitCode::from(u8::from(is_damaged)),
    ))
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

pub(super) fn actions(common: &CommonArgs) -> anyhow::Result<ExitCode> {
    let missing =
        "this part of the record has no schemes; `isotherm run -o FILE` makes one that does";
    let make = |header: &_| Actions::new(header, common.scope());
    common.write_if_there(common.open()?, false, make, missing)
}

fn overview(source: Source, scope: Scope) -> anyhow::Result<(Overview, ExitCode)> {
    let (overview, extent) = source.accumulate(scope, |header| Overviews::new(header, scope))?;
    extent.require(&scope, None)?;
    Ok((overview, exit_code(&extent)))
}
