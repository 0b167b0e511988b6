//! Results of the runs, the worst first: rows of words, for every format.
//!
//! An overhead is the mean over the repeats of the difference between a run and the first configuration's run of the
//! same repeat. It has Student's 95 % interval, and is marked if that contains zero. The interval covers the noise of
//! this machine, and says nothing of other programs.

use isotherm_engine::statistics::{Interval, ValueSummary};
use isotherm_tune::SLOWDOWN_MAX_PERCENT;

use super::{measures, tuned};
use crate::metric::{
    ACTING_CPU, CPUTIME, GUARD_STOPS, MAJFLT, MEMUSED, MEMUSED_END, METRICS, MONITOR_CPU, REFAULTS,
    RSS, RSS_AND_POOL, RSS_END, RUNTIME,
};
use crate::published::PUBLISHED;
use crate::suite::{Score, Suite};
use crate::table::EvaluationTable;
use crate::text_table::{TextTable, overhead, percent, words};

pub(super) const CASES_SHOWN: usize = 15;
const SUITE_METRICS: [usize; 7] = [
    RUNTIME,
    CPUTIME,
    RSS,
    RSS_AND_POOL,
    RSS_END,
    MEMUSED,
    MEMUSED_END,
];

pub(super) fn summary(suite: &Suite) -> Vec<TextTable> {
    let tables = [
        cases(suite),
        measures::reported(suite),
        tuned::reported(suite),
        over_suite(suite),
        costs(suite),
        like_for_like(suite),
        by_name(suite),
        scores(suite),
    ];
    let mut tables: Vec<TextTable> = tables.into();
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn cases(suite: &Suite) -> TextTable {
    let mut cases = Vec::new();
    for workload in 0..suite.workloads.len() {
        for column in 1..suite.configurations.len() {
            let runtime = suite.interval(workload, column, RUNTIME);
            cases.extend(runtime.map(|runtime| (runtime, workload, column)));
        }
    }
    cases.sort_by(|a, b| b.0.mean.total_cmp(&a.0.mean));
    let nr = cases.len();
    let row = |&(runtime, workload, column): &(Interval, usize, usize)| {
        let of = |metric| overhead(suite.interval(workload, column, metric));
        let mean = |metric: usize, digits: usize| {
            let short = suite.cell(workload, column, metric).summary();
            short.map_or_else(|| "-".into(), |short| format!("{:.digits$}", short.mean))
        };
        vec![
            suite.configurations[column].clone(),
            suite.workloads[workload].clone(),
            overhead(Some(runtime)),
            of(CPUTIME),
            of(RSS),
            of(RSS_AND_POOL),
            mean(MAJFLT, 0),
            mean(ACTING_CPU, 2),
            mean(GUARD_STOPS, 1),
        ]
    };
    TextTable {
        title: "Worst cases first",
        note: format!(
            "Of {nr} pairs of workload and configuration the {} slowest. Overheads: mean of the \
             repeats, each against the same repeat's {}, ± 95 % interval. Faults, acting's CPU \
             seconds and the guard's stops: mean of a run.",
            nr.min(CASES_SHOWN),
            suite.configurations[0],
        ),
        head: words(
            "configuration|workload|runtime|CPU time|RSS|RSS + pool|major faults|acting CPU s|stops",
        ),
        rows: cases.iter().take(CASES_SHOWN).map(row).collect(),
    }
}

fn over_suite(suite: &Suite) -> TextTable {
    let mut rows = Vec::new();
    for (column, configuration) in suite.configurations.iter().enumerate().skip(1) {
        for metric in SUITE_METRICS {
            let (Some((workload, worst)), Some(over)) = (
                suite.worst(column, metric),
                suite.over_suite(column, metric),
            ) else {
                continue;
            };
            rows.push(vec![
                configuration.clone(),
                METRICS[metric].name.into(),
                format!("{}: {}", suite.workloads[workload], overhead(Some(worst))),
                overhead(Some(over.mean)),
                overhead(Some(over.total)),
                over.nr_workloads.to_string(),
            ]);
        }
    }
    TextTable {
        title: "Over the suite",
        note: "Worst: the workload that it adds most to, or saves least of. In the mean all \
               workloads weigh alike, in the total the large and long ones more. The intervals are \
               over repeats of these programs, not over programs. rss+pool is what is saved: \
               resident memory with what compressed swap takes; the pool is the machine's, so it \
               is too much where a scheme acts on all memory."
            .into(),
        head: words("configuration|metric|worst|mean|total|workloads"),
        rows,
    }
}

fn costs(suite: &Suite) -> TextTable {
    const METRICS_SHOWN: [(usize, usize); 5] = [
        (MONITOR_CPU, 2),
        (ACTING_CPU, 2),
        (GUARD_STOPS, 1),
        (MAJFLT, 0),
        (REFAULTS, 0),
    ];
    let columns = suite.configurations.iter().enumerate();
    let rows = columns.map(|(column, configuration)| {
        let mut row = vec![configuration.clone()];
        row.extend(METRICS_SHOWN.map(|(metric, digits)| {
            let cells = (0..suite.workloads.len())
                .flat_map(|workload| suite.cell(workload, column, metric).values.into_values());
            let short = ValueSummary::of(cells);
            short.map_or_else(
                || "-".into(),
                |short| format!("{:.digits$} ({:.digits$})", short.mean, short.max),
            )
        }));
        row
    });
    TextTable {
        title: "What it took",
        note: "Mean of all runs, and in parentheses the greatest of one run. Major faults are the \
               workload's own; refaults are the machine's anonymous pages that came back after \
               eviction, those from the swap cache (minor faults) included."
            .into(),
        head: words(
            "configuration|monitor, % of a CPU|acting CPU s|guard stops|major faults|refaults",
        ),
        rows: rows.collect(),
    }
}

fn like_for_like(suite: &Suite) -> TextTable {
    let mut rows = Vec::new();
    for published in PUBLISHED {
        let Some(metric) = METRICS.iter().position(|m| m.name == published.metric) else {
            continue;
        };
        let theirs = published.table();
        for (column, configuration) in suite.configurations.iter().enumerate().skip(1) {
            let name = published_configuration(configuration);
            let place = theirs.configurations.iter().position(|c| c == name);
            let over = suite.over_suite(column, metric);
            let worst = suite.worst(column, metric);
            if let (Some(place), Some(over), Some((_, worst))) = (place, over, worst) {
                let of = |row: Option<crate::table::WorkloadRow>| {
                    percent(row.and_then(|r| r.cells[place].1))
                };
                rows.push(vec![
                    published.metric.into(),
                    configuration.clone(),
                    percent(Some(worst.mean)),
                    percent(published_worst(&theirs, place)),
                    overhead(Some(over.mean)),
                    of(theirs.average()),
                    overhead(Some(over.total)),
                    of(theirs.total()),
                    published.source.into(),
                ]);
            }
        }
    }
    TextTable {
        title: "Like for like",
        note: format!(
            "Worst beside worst, mean beside mean, total beside total, of the same metric and \
             configuration. Ours are {} programs and runs of seconds, theirs 24 programs of PARSEC \
             3 and SPLASH-2x and runs of minutes on another machine; theirs have no interval. \
             Their prcl was tuned for each program. `ours` and `tuned` stand beside their prcl.",
            suite.workloads.len()
        ),
        head: words(
            "metric|configuration|worst|published worst|mean|published mean|total|published total|by",
        ),
        rows,
    }
}

/// Returns the published configuration to compare with. The published one is prcl without a guard, tuned for each
/// program. Prcl with a guard (`ours`) and the tuned one are compared with it.
fn published_configuration(configuration: &str) -> &str {
    if ["ours", "tuned"].contains(&configuration) {
        "prcl"
    } else {
        configuration
    }
}

fn published_worst(table: &EvaluationTable, column: usize) -> Option<f64> {
    let overheads = table.rows.iter().filter_map(|row| row.cells[column].1);
    overheads.max_by(f64::total_cmp)
}

fn by_name(suite: &Suite) -> TextTable {
    let mut rows = Vec::new();
    for published in PUBLISHED {
        let Some(metric) = METRICS.iter().position(|m| m.name == published.metric) else {
            continue;
        };
        for (workload, name) in suite.published_names.iter().enumerate() {
            for (column, configuration) in suite.configurations.iter().enumerate().skip(1) {
                let ours = suite.interval(workload, column, metric);
                let theirs = published.overhead(name, published_configuration(configuration));
                if let (Some(ours), Some(theirs)) = (ours, theirs) {
                    rows.push(vec![
                        suite.workloads[workload].clone(),
                        name.clone(),
                        published.metric.into(),
                        configuration.clone(),
                        overhead(Some(ours)),
                        percent(Some(theirs)),
                        published.source.into(),
                    ]);
                }
            }
        }
    }
    TextTable {
        title: "Programs with a published name",
        note: "Where the names differ, it is a program of that name in another version and with \
               another input."
            .into(),
        head: words("workload|published as|metric|configuration|ours|published|by"),
        rows,
    }
}

fn scores(suite: &Suite) -> TextTable {
    let mut head = words("workload");
    head.extend(suite.configurations.iter().skip(1).cloned());
    let row = |(workload, name): (usize, &String)| {
        let mut row = vec![name.clone()];
        row.extend((1..suite.configurations.len()).map(
            |column| match suite.score(workload, column) {
                None => "-".into(),
                Some(Score::Noise) => "n/a".into(),
                Some(Score::Points(points)) => format!("{points:.1}"),
            },
        ));
        row
    };
    TextTable {
        title: "DAMOOS score",
        note: format!(
            "More is better; -1000 where the workload is slower by more than {SLOWDOWN_MAX_PERCENT} \
             %; n/a where whether it is so is within the noise."
        ),
        head,
        rows: suite.workloads.iter().enumerate().map(row).collect(),
    }
}

pub(super) fn detail(suite: &Suite, metric: usize) -> TextTable {
    let (unit, _, _) = METRICS[metric].shown();
    let mut head = vec![format!("in {unit}")];
    head.extend(suite.configurations.iter().cloned());
    let field = |workload: usize, column: usize| {
        let Some(short) = suite.cell(workload, column, metric).summary() else {
            return "-".into();
        };
        let value = METRICS[metric].text(short.median);
        match suite.interval(workload, column, metric) {
            Some(_) if column == 0 => value,
            None => value,
            interval => format!("{value} ({})", overhead(interval)),
        }
    };
    let rows = suite.workloads.iter().enumerate().map(|(workload, name)| {
        let mut row = vec![name.clone()];
        row.extend((0..suite.configurations.len()).map(|column| field(workload, column)));
        row
    });
    let mut rows: Vec<Vec<String>> = rows.collect();
    for (name, is_total) in [("mean overhead", false), ("total overhead", true)] {
        if is_total && !METRICS[metric].sums() {
            continue;
        }
        let mut row = vec![name.to_owned(), String::new()];
        row.extend((1..suite.configurations.len()).map(|column| {
            let over = suite.over_suite(column, metric);
            overhead(over.map(|over| if is_total { over.total } else { over.mean }))
        }));
        rows.push(row);
    }
    TextTable {
        title: METRICS[metric].name,
        note: String::new(),
        head,
        rows,
    }
}
