//! `isotherm top`: Watch memory accesses live.

use std::process::ExitCode;

/// Watch memory accesses live.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
