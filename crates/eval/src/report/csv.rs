//! Reports as CSV: every run, and a summary of every metric.

use isotherm_engine::statistics::{Interval, ValueSummary};
use isotherm_render::csv_text;

use crate::metric::METRICS;
use crate::suite::{Score, Suite};
use crate::text_table::words;

/// Returns a row for each run that counts. Empty fields are not known.
pub fn runs(suite: &Suite) -> String {
    let mut head = words("workload|configuration|repeat|time_s");
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
    let head = words(
        "workload|configuration|metric|unit|n|median|mean|min|max|spread_percent|overhead_percent|\
         paired_overhead_percent_median|paired_overhead_percent_min|paired_overhead_percent_max|\
         paired_overhead_percent_mean|paired_overhead_percent_low95|paired_overhead_percent_high95",
    );
    let mut rows = vec![head];
    for (workload, workload_name) in suite.workloads.iter().enumerate() {
        for (configuration, configuration_name) in suite.configurations.iter().enumerate() {
            let mut row = |name: &str, unit: &str, fields: Vec<String>| {
                let names: [&str; 4] = [workload_name, configuration_name, name, unit];
                rows.push(names.map(str::to_owned).into_iter().chain(fields).collect());
            };
            for (index, metric) in METRICS.iter().enumerate() {
                let Some(short) = suite.cell(workload, configuration, index).summary() else {
                    continue;
                };
                let paired = suite.paired_overheads(workload, configuration, index);
                let between = [
                    short.spread_percent(),
                    suite.overhead(workload, configuration, index),
                    paired.map(|paired| paired.median),
                    paired.map(|paired| paired.min),
                    paired.map(|paired| paired.max),
                ];
                let interval = suite.interval(workload, configuration, index);
                row(metric.name, metric.unit, fields(short, between, interval));
            }
            for measure in &suite.measures[workload] {
                let cell = suite.measure_cell(workload, configuration, measure);
                if let Some(short) = cell.summary() {
                    let interval = suite.measure_interval(workload, configuration, measure);
                    let fields = fields(short, [None; 5], interval);
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

/// Returns the fields of a row of [`summary`] after its unit; `between` are those from the spread to the paired
/// overheads.
fn fields(
    short: ValueSummary,
    between: [Option<f64>; 5],
    interval: Option<Interval>,
) -> Vec<String> {
    let values = [short.median, short.mean, short.min, short.max].map(Some);
    let numbers = values.into_iter().chain(between);
    let mut fields = vec![short.n.to_string()];
    fields.extend(numbers.chain(mean_and_bounds(interval)).map(number));
    fields
}

pub(super) fn mean_and_bounds(interval: Option<Interval>) -> [Option<f64>; 3] {
    let bounds = interval.and_then(|interval| interval.bounds());
    [
        interval.map(|interval| interval.mean),
        bounds.map(|bounds| bounds.0),
        bounds.map(|bounds| bounds.1),
    ]
}

/// Returns `memused.avg (KiB)` as a column's name.
fn column(metric: &crate::metric::RunMetric) -> String {
    let unit = metric.unit.replace(' ', "_");
    format!("{}.{unit}", metric.name).to_lowercase()
}

pub(super) fn number(value: Option<f64>) -> String {
    let Some(value) = value else {
        return String::new();
    };
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
