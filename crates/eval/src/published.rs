//! Published numbers, for comparison with workloads of the same name.
//!
//! The data and its sources are in `experiments/published/README.md`.

use crate::table::{EvaluationTable, WorkloadRow};

/// A published table.
#[derive(Clone, Copy, Debug)]
pub struct PublishedTable {
    /// Short description of the document.
    pub source: &'static str,
    /// Metric, by its name here.
    pub metric: &'static str,
    unit: &'static str,
    csv: &'static str,
}

const DAMON_V24: &str = "DAMON v24 evaluation (Linux 5.10)";
const PPRCL: &str = "DAMON physical RFC v10, answer of 2021-05-05";

macro_rules! published {
    ($($source:ident, $metric:literal in $unit:literal: $file:literal;)*) => {
        /// All published tables.
        pub const PUBLISHED: &[PublishedTable] = &[$(PublishedTable {
            source: $source,
            metric: $metric,
            unit: $unit,
            csv: include_str!(concat!("../../../experiments/published/", $file)),
        }),*];
    };
}

published! {
    DAMON_V24, "runtime" in "seconds": "damon_v24_runtime_seconds.csv";
    DAMON_V24, "memused.avg" in "KiB": "damon_v24_memused_kib.csv";
    DAMON_V24, "rss.avg" in "KiB": "damon_v24_rss_kib.csv";
    PPRCL, "runtime" in "seconds": "pprcl_runtime_seconds.csv";
    PPRCL, "memused.avg" in "KiB": "pprcl_memused_kib.csv";
    PPRCL, "rss.avg" in "KiB": "pprcl_rss_kib.csv";
}

impl PublishedTable {
    /// Returns its workloads, with overheads computed anew; without its own total and average.
    pub fn table(&self) -> EvaluationTable {
        let mut table = self.parse();
        table.rows.retain(|row| !is_summary(&row.name));
        table
    }

    /// Returns its own total and average, if it has them.
    pub fn summary_rows(&self) -> Vec<WorkloadRow> {
        let mut rows = self.parse().rows;
        rows.retain(|row| is_summary(&row.name));
        rows
    }

    /// Returns its overhead of `configuration` on `workload`, in percent.
    pub fn overhead(&self, workload: &str, configuration: &str) -> Option<f64> {
        let table = self.parse();
        let mut columns = table.configurations.iter();
        let column = columns.position(|c| c == configuration)?;
        let row = table.rows.iter().find(|row| row.name == workload)?;
        row.cells[column].1
    }

    /// Parses the data. It is part of this crate, so a fault in it is a bug here: the tests read all of it.
    fn parse(&self) -> EvaluationTable {
        let mut lines = self.csv.lines();
        let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
        let is_value = |name: &&str| !name.ends_with("_overhead_percent");
        let columns: Vec<usize> = (1..head.len()).filter(|&i| is_value(&head[i])).collect();
        let rows = lines.map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |index: usize| fields.get(index)?.parse::<f64>().ok();
            let cells = columns.iter().map(|&column| {
                let has_overhead = head.get(column + 1).is_some_and(|name| !is_value(name));
                (
                    number(column),
                    has_overhead.then(|| number(column + 1)).flatten(),
                )
            });
            WorkloadRow {
                name: fields[0].to_owned(),
                cells: cells.collect(),
            }
        });
        EvaluationTable {
            name: self.metric.to_owned(),
            unit: self.unit.to_owned(),
            configurations: columns.iter().map(|&i| head[i].to_owned()).collect(),
            sums: true,
            rows: rows.collect(),
        }
    }
}

fn is_summary(name: &str) -> bool {
    name == "total" || name == "average"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that `a` and `b` agree to the six digits that awk prints.
    fn assert_close(a: f64, b: f64, what: &str) {
        let is_close = (a - b).abs() <= 1e-5 * b.abs().max(1e-9);
        assert!(is_close, "{what}: {a} and {b}");
    }

    #[test]
    fn published_totals_and_averages_come_out_of_published_rows() {
        for published in PUBLISHED {
            let table = published.table();
            assert_eq!(table.rows.len(), 24, "{}", published.source);
            let ours = [table.total(), table.average()].into_iter().flatten();
            let ours: Vec<WorkloadRow> = ours.collect();
            let theirs = published.summary_rows();
            assert!(!theirs.is_empty());
            for row in theirs {
                let same = ours.iter().find(|our| our.name == row.name);
                let cells = &same.expect("total and average").cells;
                for (our, their) in cells.iter().zip(&row.cells) {
                    let what = format!("{} {} {}", published.source, published.metric, row.name);
                    assert_close(our.0.expect("a sum"), their.0.expect("a sum"), &what);
                    if let Some(percent) = their.1 {
                        // The percentage is rounded to two digits, from values rounded to three or six.
                        let difference = (our.1.expect("an overhead") - percent).abs();
                        assert!(difference < 0.011, "{what}: {:?} and {percent}", our.1);
                    }
                }
            }
        }
    }

    #[test]
    fn our_text_of_a_published_table_is_the_published_text() {
        let text = PUBLISHED[0].table().text();
        // Three lines of the document itself.
        for line in [
            "runtime                 orig     rec      (overhead) prec     (overhead) thp      (overhead) ethp     (overhead) prcl     (overhead)",
            "parsec3/canneal         207.491  210.318  (1.36)     217.927  (5.03)     174.287  (-16.00)   202.609  (-2.35)    225.483  (8.67)",
            "splash2x/water_nsquared 370.771  375.236  (1.20)     376.829  (1.63)     355.592  (-4.09)    354.087  (-4.50)    419.606  (13.17)",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn overheads_are_found_by_name() {
        let rss = &PUBLISHED[2];
        assert_eq!(rss.overhead("parsec3/freqmine", "prcl"), Some(-93.38));
        assert_eq!(rss.overhead("parsec3/freqmine", "ours"), None);
        assert_eq!(rss.overhead("redis", "prcl"), None);
    }
}
