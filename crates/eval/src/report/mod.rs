//! An evaluation's results, written down: CSV for other programs, the text tables of DAMON's
//! evaluation, Markdown for documents, an HTML page with pictures.

mod csv;
mod html;
mod markdown;
mod text;

use crate::metric::{CPUTIME, MEMUSED, METRICS, RSS, RUNTIME};
use crate::published::PUBLISHED;
use crate::suite::Suite;
use crate::table::Table;

pub use csv::{runs as runs_csv, summary as summary_csv};
pub use html::page as html;
pub use markdown::document as markdown;
pub use text::{comparison, tables as text};

/// The metrics that are shown in full; what the others say stands in the CSV files.
const MAIN: [usize; 5] = [RUNTIME, CPUTIME, MEMUSED, RSS, 3];

/// An overhead of ours beside a published one.
struct Beside {
    workload: String,
    metric: &'static str,
    configuration: String,
    ours: f64,
    theirs: f64,
    source: &'static str,
}

/// Where workload and configuration have a published name.
fn beside(suite: &Suite) -> Vec<Beside> {
    let mut rows = Vec::new();
    for published in &PUBLISHED {
        let Some(metric) = METRICS.iter().position(|m| m.name == published.metric) else {
            continue;
        };
        for (workload, name) in suite.workloads.iter().enumerate() {
            for (column, configuration) in suite.configurations.iter().enumerate().skip(1) {
                let ours = suite.overhead(workload, column, metric);
                let theirs = published.overhead(name, configuration);
                rows.extend(ours.zip(theirs).map(|(ours, theirs)| Beside {
                    workload: name.clone(),
                    metric: published.metric,
                    configuration: configuration.clone(),
                    ours,
                    theirs,
                    source: published.source,
                }));
            }
        }
    }
    rows
}

/// Everything that a reader must know before the numbers.
fn remarks(suite: &Suite) -> Vec<String> {
    let mut remarks = Vec::new();
    for machine in &suite.machines {
        remarks.push(format!(
            "Measured on {}: Linux {}, {} CPUs ({}), {:.1} GiB of RAM, Isotherm {}.",
            machine.host,
            machine.kernel,
            machine.nr_cpus,
            machine.cpu,
            machine.memory_kib as f64 / f64::from(1 << 20),
            machine.isotherm
        ));
    }
    if suite.machines.len() > 1 {
        remarks.push("These are several machines or versions: compare with care.".into());
    }
    remarks.push(
        "Values are medians over the repeats; overheads compare medians with the first configuration's."
            .into(),
    );
    if !suite.by_throughput.is_empty() {
        remarks.push(format!(
            "{}: runs for a fixed time and tells its throughput; its runtime is the time that it would \
             have needed, at that throughput, for the work of the first configuration's median run.",
            suite.by_throughput.join(", ")
        ));
    }
    for (what, why) in &suite.skipped {
        remarks.push(format!("SKIP {what}: {why}"));
    }
    for run in &suite.failed {
        if let crate::journal::Outcome::Failed(why) = &run.outcome {
            remarks.push(format!(
                "FAILED {} {} {}: {why}",
                run.workload, run.configuration, run.repeat
            ));
        }
    }
    if suite.nr_missing > 0 {
        remarks.push(format!(
            "{} of the planned runs have not been measured; the same command goes on with them.",
            suite.nr_missing
        ));
    }
    remarks
}

/// What all configurations came to over the suite, the first one aside: a line for each.
fn conclusions(suite: &Suite) -> Vec<Vec<String>> {
    let percent = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:+.2} %"));
    let main = [RUNTIME, CPUTIME, MEMUSED, RSS].map(|metric| suite.table(metric));
    let (totals, averages) = (
        main.each_ref().map(Table::total),
        main.each_ref().map(Table::average),
    );
    let columns = suite.configurations.iter().enumerate().skip(1);
    columns
        .map(|(column, name)| {
            let mut fields = vec![name.clone()];
            for (total, average) in totals.iter().zip(&averages) {
                for row in [total, average] {
                    fields.push(percent(row.as_ref().and_then(|row| row.cells[column].1)));
                }
            }
            let best = (0..suite.workloads.len()).filter_map(|w| suite.overhead(w, column, RSS));
            fields.push(percent(best.min_by(f64::total_cmp)));
            let scores: Option<Vec<f64>> = (0..suite.workloads.len())
                .map(|workload| suite.score(workload, column))
                .collect();
            let mean = scores.map(|s| s.iter().sum::<f64>() / s.len().max(1) as f64);
            fields.push(mean.map_or_else(|| "-".into(), |mean| format!("{mean:.2}")));
            let cpu = METRICS.iter().position(|m| m.name == "monitor_cpu");
            let cpus = (0..suite.workloads.len())
                .filter_map(|w| Some(suite.cell(w, column, cpu?).summary()?.median));
            let cpus: Vec<f64> = cpus.collect();
            fields.push(if cpus.is_empty() {
                "-".into()
            } else {
                format!("{:.2} %", cpus.iter().sum::<f64>() / cpus.len() as f64)
            });
            fields
        })
        .collect()
}

/// The columns of [`conclusions`].
const CONCLUSION_HEAD: [&str; 12] = [
    "configuration",
    "runtime, total",
    "average",
    "cputime, total",
    "average",
    "memused, total",
    "average",
    "rss, total",
    "average",
    "rss, best",
    "DAMOOS score",
    "monitor CPU",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::tests::suite;

    /// `UPDATE_GOLDEN=1 cargo test -p isotherm-eval` writes the files anew.
    fn check_golden(name: &str, text: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, text).expect("a folder of ours");
        }
        let golden = std::fs::read_to_string(&path).expect("a golden file");
        assert_eq!(text, golden, "{name}");
    }

    #[test]
    fn every_format_is_as_it_was() {
        let suite = suite();
        check_golden("tables.txt", &text(&suite));
        check_golden("report.md", &markdown(&suite));
        check_golden("summary.csv", &summary_csv(&suite));
        check_golden("runs.csv", &runs_csv(&suite));
        check_golden("report.html", &html(&suite));
    }

    #[test]
    fn an_evaluation_without_results_has_a_report() {
        let experiment = crate::Experiment::parse(crate::suite::tests::TEXT).expect("it is right");
        let suite = Suite::gather(&experiment, &[], Vec::new());
        assert!(text(&suite).contains("12 of the planned runs have not been measured"));
        assert!(html(&suite).ends_with("</html>\n"));
        assert!(markdown(&suite).starts_with("# small"));
        assert_eq!(runs_csv(&suite).lines().count(), 1);
    }
}
