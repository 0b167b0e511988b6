//! Runs on the simulated machine beside the measured ones: as much memory, equally fragmented, with the same demand.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};
use isotherm_engine::PAGE_SIZE;
use isotherm_sim::cost::THIS_MACHINE;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::BenchContext;
use super::super::machine::meminfo;
use super::super::table::Table;
use super::driver::HUGE;
use super::{Arm, Run, pace_name, rest};

/// Measured and predicted results.
#[derive(Serialize)]
pub(super) struct Beside {
    arm: &'static str,
    pace_mib_per_s: u64,
    measured: Values,
    simulated: Values,
}

#[derive(Serialize)]
struct Values {
    p50_us: f64,
    mean_us: f64,
    stalled_percent: f64,
    /// CPU time of the kernel's threads and of Isotherm.
    cpu_seconds: f64,
}

/// Simulates a run of an arm.
pub(super) fn simulate(context: &BenchContext, arm: Arm, run: &Run) -> anyhow::Result<Beside> {
    let path = context.scratch("fragmented.json");
    let scenario = serde_json::to_vec_pretty(&scenario(context, arm, run)?)?;
    fs::write(&path, scenario).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(&context.isotherm);
    let output = command.args(["simulate", "--json"]).arg(&path).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "isotherm simulate failed: {errors}"
    );
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let huge = &report["huge_pages"];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let percentiles = huge["latency_us"]["percentiles"].as_array();
    let median = percentiles.into_iter().flatten().find(|pair| pair[0] == 50);
    let share = |part: f64, whole: f64| 100.0 * part / whole.max(1.0);
    let latency = &run.latency;
    let measured = latency
        .percentiles_us
        .iter()
        .find(|(percent, _)| *percent == 50);
    let kcompactd = run.during_rest.kcompactd_seconds + run.during_drive.kcompactd_seconds;
    Ok(Beside {
        arm: run.arm,
        pace_mib_per_s: run.pace_mib_per_s,
        measured: Values {
            p50_us: measured.map_or(f64::NAN, |(_, us)| *us),
            mean_us: latency.mean_guest_us,
            stalled_percent: share(latency.stalled as f64, latency.huge as f64),
            cpu_seconds: kcompactd + run.ours.map_or(0.0, |ours| ours.cpu_seconds),
        },
        simulated: Values {
            p50_us: median.map_or(f64::NAN, |pair| number(&pair[1])),
            mean_us: number(&huge["latency_us"]["mean"]),
            stalled_percent: share(number(&huge["compacted_for"]), number(&huge["faults"])),
            cpu_seconds: number(&huge["kcompactd_cpu_seconds"]),
        },
    })
}

fn scenario(context: &BenchContext, arm: Arm, run: &Run) -> anyhow::Result<Value> {
    let total = meminfo("MemTotal:").context("/proc/meminfo has no MemTotal")?;
    let ready = &run.fragmented_by;
    // Filling at full speed consists of faults there, and freeing takes no time.
    let faults = (ready.bytes / PAGE_SIZE) as f64;
    let filled = faults * THIS_MACHINE.minor_fault.as_secs_f64();
    let start = filled + rest(context).as_secs_f64();
    let taken = run.latency.faults as u64 * HUGE;
    let fill = match run.pace_mib_per_s {
        0 => 0.0,
        pace => (taken >> 20) as f64 / pace as f64,
    };
    let seconds = |seconds: f64| format!("{seconds:.3}s");
    let bytes = |bytes: u64| format!("{bytes}");
    let process = |name: &str, start: f64, mapping: Value| json!({"name": name, "start": seconds(start), "mappings": [mapping]});
    Ok(json!({
        "machine": {
            "cpus": 2,
            "nodes": [{"size": bytes(total)}],
            "compaction_proactiveness": arm.ours.unwrap_or(arm.kernel),
        },
        "duration": seconds(start + run.driver_seconds.max(fill) + 1.0),
        "processes": [
            process("others", 0.0, json!({
                "name": "memory",
                "size": bytes(total.saturating_sub(run.before.bytes)),
                "huge": false,
                "fill": "0s",
            })),
            process("frag", 0.0, json!({
                "name": "memory",
                "size": bytes(ready.bytes),
                "huge": false,
                "fill": "0s",
                "released": format!("{:.4}%", 100.0 * ready.freed as f64 / ready.bytes as f64),
                "released_at": seconds(0.001),
            })),
            process("driver", start, json!({
                "name": "memory",
                "size": bytes(taken.max(HUGE)),
                "huge": true,
                "fill": seconds(fill),
            })),
        ],
    }))
}

/// Returns a table with a row for each run.
pub(super) fn table(all: &[Beside]) -> Table {
    let title = "measured (without the host's doing) and simulated";
    let mut table = Table::new(
        title,
        &[
            "arm",
            "pace",
            "p50 us",
            "simulated",
            "mean us",
            "simulated",
            "stalled %",
            "simulated",
            "compacting CPU s",
            "simulated",
        ],
    );
    for beside in all {
        let (measured, simulated) = (&beside.measured, &beside.simulated);
        table.row(vec![
            beside.arm.to_owned(),
            pace_name(beside.pace_mib_per_s),
            format!("{:.0}", measured.p50_us),
            format!("{:.0}", simulated.p50_us),
            format!("{:.0}", measured.mean_us),
            format!("{:.0}", simulated.mean_us),
            format!("{:.1}", measured.stalled_percent),
            format!("{:.1}", simulated.stalled_percent),
            format!("{:.2}", measured.cpu_seconds),
            format!("{:.2}", simulated.cpu_seconds),
        ]);
    }
    table
}
