//! The published experiment of two tiers (`experiments/tiering.toml`), at a small size. It must run as it is shipped.
//! The default policy leaves memory of redis on the slow node; tiering must bring that memory back to the fast one.
//!
//! Emulation has no slow memory, so times say nothing here; only the place of memory is checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::Report;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::Vm;

/// Programs that the experiment needs besides busybox.
const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "numactl"];
const FILES: [&str; 3] = ["tiering.toml", "tiers", "redis_ycsb"];
/// The workload. Its cold block takes 480 of 512 parts of the fast node, so that less is left there than redis needs.
const WORKLOAD: &str = "zipfian/cold_480";
/// Least percentage of redis' memory on the slow node by default. Published: 86.7.
const LEAST_BY_DEFAULT: f64 = 25.0;
/// Largest part of that memory that is still there soon after tiering. Published: 1.3 of 86.7 %; seen: 24 of 99.
const MOST_LEFT: f64 = 0.5;

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let mut vm = Vm::new(kernel)
        .memory_mib(2560)
        .far_node()
        .product()?
        .cpu_limit(Duration::from_mins(15));
    for name in PROGRAMS {
        vm = vm.program(installed(name)?, name);
    }
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
    for name in FILES {
        vm = vm.file(experiments.join(name), &format!("/experiments/{name}"));
    }
    let script = format!(
        "isotherm calibrate --nodes > /out/nodes\n\
         isotherm eval /experiments/tiering.toml --workload {WORKLOAD} --repeats 1 --configuration default,tiered \
         --set RECORDS=30000 --set OPERATIONS=10000 --set RUNS=3 --set SETTLE_S=90 --set COLD_AGE_S=8 \
         --set FLOOR_MIB=64 -o /out/eval \
         || {{ grep -h '\"failed\"' /out/eval/results.jsonl; dmesg | grep -i oom | tail -n 3; exit 1; }}\n"
    );
    let output = vm.script(&script).run_ok()?;
    let journal = output.text("eval/results.jsonl")?;
    let slow = |of: &str| slow_percent(&journal, of);
    let (fast_only, slow_only) = (slow("DRAM-only")?, slow("CXL-only").ok());
    let (default, tiered) = (slow("default")?, slow("tiered")?);
    let nodes = output.text("nodes")?;
    ensure!(
        nodes.lines().count() == 3 && !nodes.contains('?'),
        "not each node was measured:\n{nodes}"
    );
    report.say(format!(
        "of redis on the slow node: {fast_only:.1} % bound to the fast one, {default:.1} % by default, {tiered:.1} % tiered"
    ));
    ensure!(
        slow_only.is_none() && fast_only < 1.0,
        "what was not asked for ran, or `numactl --membind` binds nothing\n{journal}"
    );
    ensure!(
        default >= LEAST_BY_DEFAULT && tiered <= MOST_LEFT * default,
        "memory was not on the nodes that it should be on\n{}",
        output.stdout
    );
    Ok(())
}

/// Returns the measured percentage of redis on the slow node, of the first run of one configuration that has it.
fn slow_percent(journal: &str, configuration: &str) -> Result<f64> {
    let runs = journal
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_it = runs.filter(|run| run["configuration"] == configuration);
    let value = of_it.find_map(|run| run["outcome"]["measured"]["measures"]["slow_node"].as_f64());
    value.ok_or_else(|| {
        VmError::Wrong(format!(
            "no run of {configuration} was measured:\n{journal}"
        ))
    })
}

fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(name));
    let mut found = found.filter(|file| file.is_file());
    found.next().ok_or_else(|| VmError::Unavailable {
        what: name.to_owned(),
        why: "it is not on the PATH".to_owned(),
        fix: "scripts/install-deps test".to_owned(),
    })
}
