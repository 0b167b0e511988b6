//! The page in a browser: the time to read and to open a large record, and the smoothness of its heat map.
//!
//! The record is that of `report_vs_damo`. The browser is Debian's Chromium without a screen and without a graphics
//! processor. `tests/page/bench.mjs` runs it; its packages are those that the tests of the page have fetched
//! (`tests/page/run.sh`).

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::child::Guarded;
use super::report_vs_damo::{REGIONS, synthesize};
use super::table::{Table, cell};
use super::{BenchContext, BenchOutcome};

const LIMIT: Duration = Duration::from_mins(30);
/// The path of a figure in a run's JSON, its name, and its digits.
const FIGURES: [(&str, &str, usize); 9] = [
    ("/read_s", "served after, s", 2),
    ("/open_s", "opens in, s", 2),
    ("/pieces", "pieces", 0),
    ("/pan/frames_per_s", "panning, frames/s", 1),
    ("/pan/p95_ms", "95 % of frames, ms", 1),
    ("/zoom/frames_per_s", "zooming, frames/s", 1),
    ("/zoom/p95_ms", "95 % of frames, ms", 1),
    ("/detail_s", "a hundredth in detail after, s", 2),
    ("/heap_mib", "JavaScript's heap, MiB", 0),
];

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let folder = context.root.join("tests/page");
    if !folder.join("node_modules").exists() {
        return Ok(BenchOutcome::Skip(
            "there are no npm packages; tests/page/run.sh fetches them".to_owned(),
        ));
    }
    let record = context.scratch("synthetic.isotherm");
    synthesize(&record, context.rows.div_ceil(REGIONS))?;
    let mut node = Command::new("node");
    node.arg("bench.mjs")
        .arg(&record)
        .arg(context.repeats.to_string())
        .current_dir(folder)
        .env("ISOTHERM", &context.isotherm);
    let numbers = Guarded::json(context, &mut node, LIMIT)?;
    let runs: Vec<Value> = serde_json::from_value(numbers)?;
    let mut table = Table::new(
        format!("{} rows, {REGIONS} regions a snapshot", context.rows),
        "figure | median [range]",
    );
    for (place, name, digits) in FIGURES {
        let values: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.pointer(place)?.as_f64())
            .collect();
        table.row(vec![name.to_owned(), cell(&values, digits)]);
    }
    Ok(BenchOutcome::Done(
        vec![table],
        json!({ "rows": context.rows, "runs": runs }),
    ))
}
