//! Reports as CSV: every run, and a summary of every metric.

use isotherm_engine::statistics::ValueSummary;
use isotherm_report::render::csv_text;

use crate::metric::METRICS;
use crate::suite::{Score, Suite};
use crate::workload_metric::WorkloadMetric;

/// Returns a row for each run that counts. Empty fields are not known.
pub fn runs(suite: &Suite) -> String {
    let mut head: Vec<String> = ["workload", "configuration", "repeat", "time_s"]
        .map(String::from)
        .into();
    // The runtime here is the measured one, even for workloads that report their throughput.
    head.extend(METRICS.iter().map(column));
    let rows = suite.runs().map(|(run, measured)| {
        let mut row = vec![
            run.workload.clone(),
            run.configuration.clone(),
            run.repeat.to_string(),
            run.time_s.to_string(),
        ];
        row.extend(METRICS.iter().map(|metric| number((metric.of)(measured))));
        row
    });
    csv_text(std::iter::once(head).chain(rows))
}

/// Returns a row for each workload, configuration and metric that has values.
pub fn summary(suite: &Suite) -> String {
    let head = [
        "workload",
        "configuration",
        "metric",
        "unit",
        "n",
        "median",
        "mean",
        "min",
        "max",
        "spread_percent",
        "overhead_percent",
        "paired_overhead_percent_median",
        "paired_overhead_percent_min",
        "paired_overhead_percent_max",
        "paired_overhead_percent_mean",
        "paired_overhead_percent_low95",
        "paired_overhead_percent_high95",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (workload, workload_name) in suite.workloads.iter().enumerate() {
        for (configuration, configuration_name) in suite.configurations.iter().enumerate() {
            let mut row = |name: &str, unit: &str, fields: Vec<String>| {
                let mut row: Vec<String> = [workload_name, configuration_name, name, unit]
                    .map(Into::into)
                    .into();
                row.extend(fields);
                rows.push(row);
            };
            for (index, metric) in METRICS.iter().enumerate() {
                let Some(short) = suite.cell(workload, configuration, index).summary() else {
                    continue;
                };
                let paired = suite.paired_overheads(workload, configuration, index);
                let pair = |of: fn(ValueSummary) -> f64| number(paired.map(of));
                let mut fields = vec![short.n.to_string()];
                fields.extend(
                    [short.median, short.mean, short.min, short.max].map(|v| number(Some(v))),
                );
                fields.push(number(short.spread_percent()));
                fields.push(number(suite.overhead(workload, configuration, index)));
                fields.extend([pair(|p| p.median), pair(|p| p.min), pair(|p| p.max)]);
                let interval = suite.interval(workload, configuration, index);
                let bounds = interval.and_then(|interval| interval.bounds());
                fields.push(number(interval.map(|interval| interval.mean)));
                fields.extend([bounds.map(|b| b.0), bounds.map(|b| b.1)].map(number));
                row(metric.name, metric.unit, fields);
            }
            for measure in &suite.measures[workload] {
                let fields = measure_fields(suite, workload, configuration, measure);
                if let Some(fields) = fields {
                    row(&measure.name, &measure.unit, fields);
                }
            }
            if let Some(Score::Points(score)) = suite.score(workload, configuration) {
                let mut fields = vec![String::new(); 13];
                fields[1] = number(Some(score));
                row("damoos_score", "points", fields);
            }
        }
    }
    csv_text(rows)
}

/// Returns the fields of a row of [`summary`] for a measure that the workload reported.
fn measure_fields(
    suite: &Suite,
    workload: usize,
    configuration: usize,
    metric: &WorkloadMetric,
) -> Option<Vec<String>> {
    let short = suite
        .measure_cell(workload, configuration, metric)
        .summary()?;
    let interval = suite.measure_interval(workload, configuration, metric);
    let bounds = interval.and_then(|interval| interval.bounds());
    let mut fields = vec![String::new(); 13];
    fields[0] = short.n.to_string();
    let values = [short.median, short.mean, short.min, short.max];
    for (field, value) in fields[1..].iter_mut().zip(values) {
        *field = number(Some(value));
    }
    fields[10] = number(interval.map(|interval| interval.mean));
    fields[11] = number(bounds.map(|b| b.0));
    fields[12] = number(bounds.map(|b| b.1));
    Some(fields)
}

/// Returns `memused.avg (KiB)` as a column's name.
fn column(metric: &crate::metric::RunMetric) -> String {
    let unit = metric.unit.replace(' ', "_");
    format!("{}.{unit}", metric.name).to_lowercase()
}

/// Formats a number with at most six decimals.
pub(super) fn number(value: Option<f64>) -> String {
    let Some(value) = value else {
        return String::new();
    };
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
