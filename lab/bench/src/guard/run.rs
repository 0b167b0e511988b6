//! One run of a program, alone or with schemes beside it.

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::super::BenchContext;
use super::super::child::{Guarded, children};
use super::super::machine::number;
use super::programs::Case;

const END_LIMIT: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Run {
    pub(super) progress: f64,
    /// CPU seconds of acting, and stops by the guard, for runs with schemes.
    pub(super) acting_cpu_s: f64,
    pub(super) stops: u64,
    /// Bytes of it in swap at the end, less the memory that zram uses for them.
    pub(super) saved: i64,
}

/// Runs `case` after `delay`, with `isotherm run` by `flags` beside it if there are any.
pub(super) fn once(
    context: &BenchContext,
    case: &Case,
    flags: Option<&[&str]>,
    delay: Duration,
) -> Result<Run> {
    let seconds = case.seconds(context.duration);
    context.sleep(delay)?;
    let mut command = case.command(seconds, context.scratch.path())?;
    let mut target = Guarded::spawn(context, &mut command)?;
    let mut output = target.ready()?;
    let isotherm = match flags {
        None => None,
        Some(flags) => {
            let mut command = Command::new(&context.isotherm);
            command
                .args(["run", "--json", "--preset", "prcl", "--children"])
                .args(flags)
                .args(["--duration", &format!("{}s", seconds - 1)])
                .args(["--pid", &target.id().to_string()]);
            Some(Guarded::spawn_json(context, &mut command)?)
        }
    };
    context.sleep(Duration::from_millis(1000 * seconds - 500))?;
    let saved = saved(swapped(target.id()));
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    target.finish(context, END_LIMIT)?;
    let progress = rest.trim().strip_prefix("progress ");
    let progress = progress.and_then(|number| number.parse().ok());
    let mut run = Run {
        progress: progress.with_context(|| format!("the program said `{}`", rest.trim()))?,
        acting_cpu_s: 0.0,
        stops: 0,
        saved,
    };
    if let Some(mut isotherm) = isotherm {
        let summary = isotherm.finish_json(context, END_LIMIT)?;
        run.acting_cpu_s = summary["acting_cpu_seconds"].as_f64().unwrap_or(0.0);
        run.stops = summary["guard_stops"].as_u64().unwrap_or(0);
    }
    Ok(run)
}

/// Returns the memory saved by `swapped` bytes in swap: less their share of the memory of zram devices.
fn saved(swapped: u64) -> i64 {
    let (mut data, mut taken) = (0, 0);
    for (held, takes) in zram_devices() {
        data += held;
        taken += takes;
    }
    let rate = taken as f64 / data.max(1) as f64;
    (swapped as f64 * (1.0 - rate)) as i64
}

/// Returns the bytes that each zram device holds and the memory that it uses for them.
fn zram_devices() -> Vec<(u64, u64)> {
    let devices = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    devices
        .filter(|device| device.file_name().to_string_lossy().starts_with("zram"))
        .filter_map(|device| {
            let stat = std::fs::read_to_string(device.path().join("mm_stat")).ok()?;
            let mut fields = stat.split_whitespace().map(str::parse::<u64>);
            let held = fields.next()?.ok()?;
            Some((held, fields.nth(1)?.ok()?))
        })
        .collect()
}

fn swapped(pid: u32) -> u64 {
    let pids = children(pid).into_iter().chain([pid]);
    let kib = pids.filter_map(|pid| number(&format!("/proc/{pid}/status"), "VmSwap:"));
    kib.sum::<u64>() << 10
}
