//! Time and largest resident memory of a command.
//!
//! The kernel keeps the largest memory over *all* children of a process. So a separate process runs each command:
//! `isotherm-bench measure -- COMMAND ARGS...`, which prints the numbers as JSON.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use super::BenchContext;
use super::child::{Guarded, children_cpu};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) max_rss_bytes: u64,
}

/// Runs `isotherm-bench measure`: executes a command and discards its output.
pub(crate) fn main(args: impl Iterator<Item = String>) -> anyhow::Result<ExitCode> {
    let args: Vec<String> = args.skip_while(|arg| arg == "--").collect();
    let [program, rest @ ..] = args.as_slice() else {
        bail!("usage: isotherm-bench measure -- COMMAND ARGS...");
    };
    let start = Instant::now();
    let status = Command::new(program)
        .args(rest)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{program} failed, with {status}");
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let measured = Measured {
        seconds,
        cpu_seconds: children_cpu()?.as_secs_f64(),
        max_rss_bytes: (usage.max_rss() as u64) << 10,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(ExitCode::SUCCESS)
}

/// Runs `command` (program and arguments) in a measuring process.
pub(super) fn measure(
    context: &BenchContext,
    command: &[String],
    limit: Duration,
) -> anyhow::Result<Measured> {
    let mut measuring = Command::new(std::env::current_exe()?);
    measuring.args(["measure", "--"]).args(command);
    let measured = Guarded::json(context, &mut measuring, limit)?;
    Ok(serde_json::from_value(measured)?)
}
