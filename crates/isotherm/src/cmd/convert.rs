//! `isotherm convert`: Convert records from and to other formats.

use std::process::ExitCode;

/// Convert records from and to other formats.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
