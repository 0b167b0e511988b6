//! Tables in the form of DAMON's evaluation: a row for each workload, then the total and the average. Each cell is a
//! configuration's value with its overhead over the first configuration in parentheses.
//!
//! The total's overhead is that of the totals, in which long and large workloads weigh more. The average's is the mean
//! of the workloads' overheads, in which all weigh alike. Both are over the workloads that have a value in every
//! column, or the columns would not be comparable.

use std::fmt::Write;

use crate::text_table::aligned;

/// Contents of a table, without its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationTable {
    /// Name of the metric.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// The columns; the first is the base of comparisons.
    pub configurations: Vec<String>,
    /// Whether a sum of its values is meaningful: sums of rates and shares are not.
    pub sums: bool,
    /// A row for each workload.
    pub rows: Vec<WorkloadRow>,
}

/// Values of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRow {
    /// Name of the workload.
    pub name: String,
    /// Values of the configurations, each with its overhead in percent.
    pub cells: Vec<(Option<f64>, Option<f64>)>,
}

impl WorkloadRow {
    /// Creates a row that compares each value with the first.
    pub fn of(name: &str, values: &[Option<f64>]) -> Self {
        let base = values.first().copied().flatten();
        let overhead = |value: Option<f64>| overhead_percent(base?, value?);
        Self {
            name: name.to_owned(),
            cells: values.iter().map(|&v| (v, overhead(v))).collect(),
        }
    }
}

impl EvaluationTable {
    /// Whether any configuration has a value.
    pub fn has_values(&self) -> bool {
        let mut cells = self.rows.iter().flat_map(|row| &row.cells);
        cells.any(|(value, _)| value.is_some())
    }

    /// Returns the workloads that are left out of total and average.
    pub fn incomplete(&self) -> Vec<&str> {
        let rows = self.rows.iter().filter(|row| !self.is_complete(row));
        rows.map(|row| row.name.as_str()).collect()
    }

    /// Returns the sums and their overheads.
    pub fn total(&self) -> Option<WorkloadRow> {
        let rows = self.complete().filter(|_| self.sums)?;
        let sum = |column: usize| rows.iter().map(|row| row.cells[column].0).sum();
        let sums: Vec<Option<f64>> = (0..self.configurations.len()).map(sum).collect();
        Some(WorkloadRow::of("total", &sums))
    }

    /// Returns the means of the values, and the means of the overheads.
    pub fn average(&self) -> Option<WorkloadRow> {
        let rows = self.complete()?;
        let mean = |values: Vec<Option<f64>>| -> Option<f64> {
            let n = values.len() as f64;
            Some(values.into_iter().sum::<Option<f64>>()? / n)
        };
        let cells = (0..self.configurations.len()).map(|column| {
            let value = mean(rows.iter().map(|row| row.cells[column].0).collect());
            let overhead = mean(rows.iter().map(|row| row.cells[column].1).collect());
            (value, overhead)
        });
        Some(WorkloadRow {
            name: "average".into(),
            cells: cells.collect(),
        })
    }

    /// Returns the rows with total and average.
    pub fn all_rows(&self) -> Vec<WorkloadRow> {
        let mut rows = self.rows.clone();
        rows.extend(self.total());
        rows.extend(self.average());
        rows
    }

    fn complete(&self) -> Option<Vec<&WorkloadRow>> {
        let rows = self.rows.iter().filter(|row| self.is_complete(row));
        let rows: Vec<&WorkloadRow> = rows.collect();
        (!rows.is_empty()).then_some(rows)
    }

    /// Whether a row has a value in every column that has any: the monitor's cost, for one, is empty in the first
    /// column.
    fn is_complete(&self, row: &WorkloadRow) -> bool {
        let is_empty = |column: usize| self.rows.iter().all(|row| row.cells[column].0.is_none());
        let mut cells = row.cells.iter().enumerate();
        self.has_values() && cells.all(|(column, (value, _))| value.is_some() || is_empty(column))
    }

    /// Returns the table as text, in exactly the form of DAMON's evaluation.
    pub fn text(&self) -> String {
        let mut lines = vec![self.head()];
        let digits = self.digits();
        lines.extend(self.all_rows().iter().map(|row| text_fields(row, digits)));
        let lines: Vec<&[String]> = lines.iter().map(Vec::as_slice).collect();
        let mut text = aligned(&lines, 1);
        let incomplete = self.incomplete();
        if !incomplete.is_empty() {
            let _ = writeln!(
                text,
                "(total and average leave out what lacks a value: {})",
                incomplete.join(", ")
            );
        }
        text
    }

    /// Returns the number of decimals: three as in DAMON's evaluation, but only significant ones.
    fn digits(&self) -> usize {
        match self.unit.as_str() {
            "seconds" => 3,
            "MiB" | "per second" => 1,
            unit if unit.starts_with("percent") => 2,
            // Counts are whole numbers, except for averages and medians of an even number of repeats.
            _ => 1,
        }
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec![self.name.clone()];
        for (index, configuration) in self.configurations.iter().enumerate() {
            head.push(configuration.clone());
            if index > 0 {
                head.push("(overhead)".into());
            }
        }
        head
    }
}

fn text_fields(row: &WorkloadRow, digits: usize) -> Vec<String> {
    let mut fields = vec![row.name.clone()];
    for (index, (value, overhead)) in row.cells.iter().enumerate() {
        fields.push(value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}")));
        if index > 0 {
            fields.push(overhead.map_or_else(|| "(-)".into(), |percent| format!("({percent:.2})")));
        }
    }
    fields
}

/// Returns the overhead of `value` over `base`, in percent; `None` if `base` is zero.
pub(crate) fn overhead_percent(base: f64, value: f64) -> Option<f64> {
    (base.abs() > 0.0).then(|| 100.0 * (value / base - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &[Option<f64>])]) -> EvaluationTable {
        EvaluationTable {
            name: "runtime".into(),
            unit: "seconds".into(),
            configurations: vec!["orig".into(), "prcl".into()],
            sums: true,
            rows: rows
                .iter()
                .map(|(name, values)| WorkloadRow::of(name, values))
                .collect(),
        }
    }

    #[test]
    fn text_is_as_in_damons_evaluation() {
        let table = table(&[
            ("redis", &[Some(100.0), Some(101.0)]),
            ("sparse/every_2m", &[Some(10.0), Some(13.0)]),
            ("lost", &[Some(10.0), None]),
        ]);
        assert_eq!(table.text(), include_str!("../tests/golden/table.txt"));
    }

    #[test]
    fn an_empty_table_has_no_total() {
        let table = table(&[("lost", &[None, None])]);
        assert_eq!((table.total(), table.average()), (None, None));
        assert!(!table.has_values());
    }

    #[test]
    fn an_overhead_is_relative() {
        assert_eq!(overhead_percent(50.0, 51.0).map(f64::round), Some(2.0));
        assert_eq!(overhead_percent(0.0, 1.0), None);
    }
}
