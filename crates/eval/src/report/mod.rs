//! Reports of an evaluation: CSV for other programs, the text tables of DAMON's evaluation, Markdown for documents, and
//! an HTML page with pictures.

mod csv;
mod html;
mod measures;
mod summary_rows;
mod tuned;

use std::fmt::Write;

use crate::metric::{CPUTIME, MAJFLT, MEMUSED, METRICS, RSS, RSS_AND_POOL, RSS_END, RUNTIME};
use crate::suite::Suite;
use crate::text_table::TextTable;
use isotherm_render::table::escape_markdown;

pub use csv::{runs as runs_csv, summary as summary_csv};
pub use html::page as html;
pub use tuned::csv as tuned_csv;

/// Metrics that are shown in full; the others are in the CSV files.
const MAIN: [usize; 7] = [
    RUNTIME,
    CPUTIME,
    RSS,
    RSS_AND_POOL,
    RSS_END,
    MEMUSED,
    MAJFLT,
];

/// Returns the whole report as text, for a terminal or a log.
pub fn text(suite: &Suite) -> String {
    let mut text = format!("{}\n\n", suite.name);
    for remark in remarks(suite) {
        text += &remark;
        text.push('\n');
    }
    for table in summary_rows::summary(suite) {
        let _ = write!(text, "\n\n{}", table.text());
    }
    for (metric, about) in METRICS.iter().enumerate() {
        let table = suite.table(metric);
        if table.has_values() {
            let (name, unit) = (about.name, &table.unit);
            let _ = write!(text, "\n\n{name} in {unit}\n\n{}", table.text());
        }
    }
    text
}

/// Returns the whole report as Markdown, for documents and issues.
pub fn markdown(suite: &Suite) -> String {
    let mut text = format!("# {}\n\n", suite.name);
    for remark in remarks(suite) {
        let _ = writeln!(text, "- {}", escape_markdown(&remark));
    }
    text += &markdown_summary(suite);
    text.extend(MAIN.map(|metric| summary_rows::detail(suite, metric).markdown()));
    text
}

/// Returns the tables to paste into a document: the worst cases, then the rest.
pub fn markdown_summary(suite: &Suite) -> String {
    let tables = summary_rows::summary(suite);
    tables.iter().map(TextTable::markdown).collect()
}

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
    let foreign = suite.machines.iter().filter_map(|m| m.foreign_swap_kib);
    if let Some(kib) = foreign.max() {
        remarks.push(format!(
            "{} MiB of swap were there already and were used as they are, without being emptied \
             between runs.",
            kib >> 10
        ));
    }
    remarks.push(format!(
        "Values are medians over the repeats. Overheads are means over the repeats of the difference \
         to the same repeat's {}, ± Student's 95 % interval; only in the tables of DAMON's form \
         they compare medians. \"Within noise\": the interval contains zero.",
        suite.configurations[0]
    ));
    if !suite.by_throughput.is_empty() {
        remarks.push(format!(
            "{}: runs for a fixed time and prints its throughput; its runtime is the time that it would \
             have needed, at that throughput, for the work of the first configuration's median run.",
            suite.by_throughput.join(", ")
        ));
    }
    for (what, why) in &suite.skipped {
        remarks.push(format!("SKIP {what}: {why}"));
    }
    for run in &suite.failed {
        if let crate::journal::RunResult::Failed(why) = &run.outcome {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::tests::suite;

    /// Compares with a golden file. `UPDATE_GOLDEN=1 cargo test -p isotherm-eval` writes the files anew.
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
