//! Measures that workloads reported, under each configuration, beside published values.

use isotherm_engine::statistics::ValueSummary;

use crate::suite::Suite;
use crate::text_table::{TextTable, overhead, percent, words};
use crate::workload_metric::{PublishedValues, WorkloadMetric};

pub(super) fn reported(suite: &Suite) -> TextTable {
    let mut rows = Vec::new();
    for (workload, name) in suite.workloads.iter().enumerate() {
        for measure in &suite.measures[workload] {
            for (column, configuration) in suite.configurations.iter().enumerate() {
                let cell = suite.measure_cell(workload, column, measure);
                let Some(short) = cell.summary() else {
                    continue;
                };
                let against = if column == 0 {
                    "-".to_owned()
                } else {
                    overhead(suite.measure_interval(workload, column, measure))
                };
                rows.push(vec![
                    name.clone(),
                    format!("{}, {}", measure.name, measure.unit),
                    configuration.clone(),
                    mean(&short),
                    against,
                    published(measure, |of| {
                        of.values.get(configuration).copied().map(digits)
                    }),
                    published(measure, |of| {
                        let overhead = of.overheads.get(configuration);
                        overhead.map(|value| percent(Some(*value)))
                    }),
                ]);
            }
        }
    }
    TextTable {
        title: "Metrics that workloads print",
        note: format!(
            "Mean of the repeats, and least and greatest in parentheses; then against the same repeat's {}, \
             ± 95 % interval. Published: by others on other machines, as the experiment's file has it.",
            suite.configurations[0]
        ),
        head: words(
            "workload|measure|configuration|ours|against the first|published|published against the first",
        ),
        rows,
    }
}

fn published(
    measure: &WorkloadMetric,
    value: impl Fn(&PublishedValues) -> Option<String>,
) -> String {
    let values = measure.published.iter();
    let values = values.filter_map(|of| Some(format!("{} ({})", value(of)?, of.by)));
    let values: Vec<String> = values.collect();
    if values.is_empty() {
        "-".into()
    } else {
        values.join(", ")
    }
}

fn mean(short: &ValueSummary) -> String {
    if short.n == 1 {
        return digits(short.mean);
    }
    let [mean, min, max] = [short.mean, short.min, short.max].map(digits);
    format!("{mean} ({min} to {max})")
}

fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}
