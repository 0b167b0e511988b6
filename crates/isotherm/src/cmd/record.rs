//! `isotherm record`: Record which memory is accessed, and how often.

use std::process::ExitCode;

/// Record which memory is accessed, and how often.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
