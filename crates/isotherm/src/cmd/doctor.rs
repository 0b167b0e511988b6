//! `isotherm doctor`: Say what this machine can do, and what would enable the rest.

use std::process::ExitCode;

/// Say what this machine can do, and what would enable the rest.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
