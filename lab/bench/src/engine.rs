//! The engine's own criterion benches: runs them and reads their results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::child::Guarded;
use super::table::Table;
use super::{BenchContext, BenchOutcome};

const BENCHES: [&str; 2] = ["aggregate", "schemes"];
const LIMIT: Duration = Duration::from_mins(30);

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    // File times may be rounded down to a tick.
    let started = SystemTime::now() - Duration::from_millis(20);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["bench", "-p", "isotherm-bench"])
        .current_dir(&context.root);
    // Benches are named: `--benches` would also run the library's unit tests, which have no `--quick`.
    for bench in BENCHES {
        cargo.args(["--bench", bench]);
    }
    if context.quick {
        cargo.args(["--", "--quick"]);
    }
    Guarded::spawn(context, &mut cargo)?.finish(context, LIMIT)?;
    let criterion = super::target(&context.root).join("criterion");
    let mut found = Vec::new();
    collect(&criterion, started, &mut found)?;
    found.sort();
    let mut table = Table::new("criterion", "bench | median ms | 95 % interval ms");
    let mut data = serde_json::Map::new();
    for path in found {
        let estimates: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let median = &estimates["median"];
        let ms = |value: &Value| value.as_f64().map(|nanos| nanos / 1e6);
        let interval = &median["confidence_interval"];
        let (Some(middle), Some(low), Some(high)) = (
            ms(&median["point_estimate"]),
            ms(&interval["lower_bound"]),
            ms(&interval["upper_bound"]),
        ) else {
            continue;
        };
        let name = name(&criterion, &path);
        table.row(vec![
            name.clone(),
            format!("{middle:.3}"),
            format!("{low:.3}..{high:.3}"),
        ]);
        data.insert(
            name,
            json!({ "median_ms": middle, "low_ms": low, "high_ms": high }),
        );
    }
    Ok(BenchOutcome::Done(vec![table], data.into()))
}

/// Returns the name of a result: criterion writes `GROUP/NAME/new/estimates.json`.
fn name(root: &Path, path: &Path) -> String {
    let folder = path.parent().and_then(Path::parent).unwrap_or(path);
    folder
        .strip_prefix(root)
        .unwrap_or(folder)
        .display()
        .to_string()
}

/// Collects the estimates that were written by this run, not by an earlier one.
fn collect(folder: &Path, since: SystemTime, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("criterion left nothing in {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, since, found)?;
        } else if path.ends_with("new/estimates.json") && entry.metadata()?.modified()? >= since {
            found.push(path);
        }
    }
    Ok(())
}
