//! *Proactive Compaction for the Linux kernel* (Nitin Gupta, 2020): all its runs.

use isotherm_engine::Nanos;

use super::{PublishedComparison, Role, published};
use crate::experiment::compaction::{
    CompactionOutcome, CompactionSetting, driver, java, unmovable,
};
use isotherm_sim::cost::PUBLISHED_MACHINE;

const LATENCIES: &str =
    include_str!("../../../../experiments/published/proactive_compaction_hugepage_latency_us.csv");
const JAVA: &str =
    include_str!("../../../../experiments/published/proactive_compaction_java_heap_seconds.csv");

const HEAP_GIB: u64 = 700;
/// Duration of the run in which nothing can be compacted.
const UNMOVABLE_TIME: Nanos = Nanos::from_millis(600_000);

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompactionRun {
    /// A kernel driver takes huge pages until there is none.
    Driver(u32),
    /// A Java process touches a heap of 700 GiB.
    Java(u32),
    /// The memory that fragments the machine cannot be moved, for ten minutes.
    Unmovable(u32),
}

/// All runs, the longest first.
pub const RUNS: [CompactionRun; 11] = [
    CompactionRun::Driver(0),
    CompactionRun::Java(0),
    CompactionRun::Java(20),
    CompactionRun::Driver(20),
    CompactionRun::Driver(30),
    CompactionRun::Driver(50),
    CompactionRun::Driver(60),
    CompactionRun::Driver(80),
    CompactionRun::Driver(90),
    CompactionRun::Driver(100),
    CompactionRun::Unmovable(40),
];

impl CompactionRun {
    /// A short title of the run.
    pub fn title(self) -> String {
        match self {
            Self::Driver(p) => format!("huge pages for a kernel driver, proactiveness {p}"),
            Self::Java(p) => format!("Java heap of {HEAP_GIB} GiB, proactiveness {p}"),
            Self::Unmovable(p) => format!("unmovable memory, proactiveness {p}"),
        }
    }

    /// Runs it, which takes some seconds and up to 3 GiB of memory.
    pub fn make(self) -> CompactionOutcome {
        match self {
            Self::Driver(p) => driver(&CompactionSetting::published(p)),
            Self::Java(p) => java(&CompactionSetting::published(p), HEAP_GIB),
            Self::Unmovable(p) => unmovable(&CompactionSetting::published(p), UNMOVABLE_TIME),
        }
    }
}

/// Returns the notes that a reader must know before the numbers.
pub fn notes() -> Vec<String> {
    let setting = CompactionSetting::published(0);
    vec![
        format!(
            "Inputs, not results: {:.1} us for a huge page that is there (the published median is 4 us, so \
             all low percentiles with proactive compaction are that constant), and the count of huge \
             pages, which the free memory at the start decides (2 % more than published).",
            PUBLISHED_MACHINE.take.0 as f64 / 1e3
        ),
        format!(
            "An assumption, which the publication does not tell: {:.0} s for the compaction threads between \
             fragmenting memory and taking huge pages.",
            setting.idle_time.as_secs_f64()
        ),
    ]
}

/// Compares the outcomes of runs with the published ones.
pub fn comparisons(runs: &[(CompactionRun, CompactionOutcome)]) -> Vec<PublishedComparison> {
    runs.iter()
        .flat_map(|(run, outcome)| match run {
            CompactionRun::Driver(p) => of_driver(*p, outcome),
            CompactionRun::Java(p) => of_java(*p, outcome),
            CompactionRun::Unmovable(p) => of_unmovable(*p, outcome),
        })
        .collect()
}

/// Returns the name of a proactiveness in the published tables that have it.
fn name(proactiveness: u32) -> Option<&'static str> {
    match proactiveness {
        0 => Some("vanilla_5.6"),
        20 => Some("proactiveness_20"),
        _ => None,
    }
}

fn of_driver(proactiveness: u32, outcome: &CompactionOutcome) -> Vec<PublishedComparison> {
    let column = name(proactiveness);
    let latency = &outcome.latency_us;
    // Two of the costs were calibrated on these two numbers.
    let is_calibrated = |name: &str| proactiveness == 0 && (name == "p5" || name == "p95");
    let mut rows = vec![
        ("count".to_owned(), latency.count as f64),
        ("mean".to_owned(), latency.mean),
        ("stddev".to_owned(), latency.stddev),
        ("max".to_owned(), latency.max),
    ];
    let percentiles = latency.percentiles.iter();
    rows.extend(percentiles.map(|(percent, value)| (format!("p{percent}"), *value)));
    // The free memory at the start decides the count. A wait for an available huge page takes the constant that was put
    // in for it.
    let take_us = PUBLISHED_MACHINE.take.0 as f64 / 1e3;
    let is_input = |name: &str, value: f64| {
        name == "count" || (name != "max" && (value - take_us).abs() < 0.05)
    };
    let comparison = |(name, simulated): (String, f64)| PublishedComparison {
        experiment: "driver",
        configuration: "proactive compaction",
        case: format!("proactiveness {proactiveness}"),
        unit: if name == "count" { "huge pages" } else { "us" },
        published: column.and_then(|column| published(LATENCIES, &[name.as_str()], column)),
        role: if is_calibrated(&name) {
            Role::Calibrated
        } else if is_input(&name, simulated) {
            Role::Input
        } else {
            Role::Predicted
        },
        metric: name,
        simulated: Some(simulated),
    };
    rows.into_iter().map(comparison).collect()
}

fn of_java(proactiveness: u32, outcome: &CompactionOutcome) -> Vec<PublishedComparison> {
    vec![PublishedComparison {
        experiment: "java",
        configuration: "proactive compaction",
        case: format!("proactiveness {proactiveness}"),
        metric: "elapsed".into(),
        unit: "s",
        simulated: Some(outcome.elapsed.as_secs_f64()),
        published: name(proactiveness).and_then(|row| published(JAVA, &[row], "elapsed")),
        // The cost of a fault's passes was calibrated on the first. The second is little but the faults themselves,
        // whose cost was calibrated on the times at higher proactiveness.
        role: Role::Calibrated,
    }]
}

fn of_unmovable(proactiveness: u32, outcome: &CompactionOutcome) -> Vec<PublishedComparison> {
    let row = |metric: &str, unit, simulated| PublishedComparison {
        experiment: "unmovable",
        configuration: "proactive compaction",
        case: format!("proactiveness {proactiveness}"),
        metric: metric.into(),
        unit,
        simulated: Some(simulated),
        published: None,
        role: Role::Predicted,
    };
    let busy: f64 = outcome.threads.iter().map(|t| t.busy.as_secs_f64()).sum();
    let deferrals: u64 = outcome.threads.iter().map(|t| t.status.nr_deferrals).sum();
    let rounds: u64 = outcome.threads.iter().map(|t| t.status.nr_rounds).sum();
    let percent = 100.0 * busy / UNMOVABLE_TIME.as_secs_f64();
    vec![
        row("rounds", "rounds", rounds as f64),
        row("of which deferred the next", "rounds", deferrals as f64),
        row("CPU of both threads", "percent", percent),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_numbers_are_found() {
        for (table, row, column, value) in [
            (LATENCIES, "mean", "vanilla_5.6", Some(21_746.41)),
            (LATENCIES, "p95", "proactiveness_20", Some(429.0)),
            (JAVA, "vanilla_5.6", "elapsed", Some(1657.89)),
            (JAVA, "proactiveness_20", "elapsed", Some(199.62)),
            (LATENCIES, "mean", "nothing", None),
        ] {
            assert_eq!(published(table, &[row], column), value, "{row}, {column}");
        }
    }
}
