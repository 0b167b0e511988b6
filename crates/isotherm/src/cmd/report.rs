//! `isotherm report`: Show what a record holds.

use std::process::ExitCode;

/// Show what a record holds.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
