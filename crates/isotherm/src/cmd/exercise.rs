//! `isotherm exercise`: Make memory accesses of known truth.

use std::process::ExitCode;

/// Make memory accesses of known truth.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
