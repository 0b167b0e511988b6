//! The compaction experiments at their published size, as JSON.

use isotherm_sim::experiment::compaction::{Setting, driver, java, unmovable};

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let proactiveness = args.next().and_then(|p| p.parse().ok()).unwrap_or(20);
    let setting = Setting::published(proactiveness);
    let mut outcome = match what.as_str() {
        "java" => java(&setting, 700),
        "unmovable" => unmovable(&setting, isotherm_engine::Nanos::from_millis(600_000)),
        _ => driver(&setting),
    };
    outcome.latencies.clear();
    outcome.scores.truncate(40);
    println!("{outcome:#?}");
}
