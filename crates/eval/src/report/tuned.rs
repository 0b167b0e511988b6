//! Predictions of tuning, compared with measurements.

use isotherm_engine::statistics::Interval;
use isotherm_render::csv_text;
use isotherm_tune::Estimate;

use super::csv::{mean_and_bounds, number};
use crate::metric::RUNTIME;
use crate::suite::Suite;
use crate::text_table::{TextTable, overhead, words};
use crate::tuned::{ComparedSetting, Errors, Number, Predicted, errors};

/// Minimum share of a workload's memory in a trace that predicts the workload.
const SHARE_LEAST: f64 = 0.5;

type Part = fn(&ComparedSetting) -> Number;
/// Predicted numbers: name, unit in columns' names, value, and number of decimals.
const PARTS: [(&str, &str, Part, usize); 3] = [
    ("saved", "percent", |of| of.saved, 1),
    ("slowdown", "percent", |of| of.slowdown, 1),
    ("acting_cpu", "seconds", |of| of.acting, 2),
];

pub(super) fn reported(suite: &Suite) -> TextTable {
    let mut rows = Vec::new();
    let of = |configuration: usize| -> Vec<&Predicted> {
        let all = suite.predicted.iter();
        all.filter(|of| of.configuration == configuration).collect()
    };
    for (configuration, name) in suite.configurations.iter().enumerate() {
        let predicted = of(configuration);
        rows.extend(predicted.iter().map(|predicted| row(suite, predicted)));
        let compared = predicted.iter().filter_map(|of| of.compared(suite));
        let compared: Vec<ComparedSetting> = compared.collect();
        let errors = PARTS.map(|(_, _, part, _)| errors(compared.iter().map(part)));
        if errors.iter().any(Option::is_some) {
            rows.extend(summary(name, &errors));
        }
    }
    TextTable {
        title: "Predictions of tuning beside live runs",
        note: format!(
            "Each workload was recorded once by itself and tuned by replays; predicted: with what it may come to in \
             brackets. Measured: mean of the repeats, each against the same repeat's {}, ± 95 % interval; saved of \
             resident memory, longer runtime, and acting's CPU seconds of a run. The error is the mean absolute \
             difference, in points or seconds; within: means that were measured between the bounds; perhaps: those \
             whose interval touches them.",
            suite.configurations[0]
        ),
        head: words(
            "configuration|workload|setting|saved, predicted|saved|slowdown, predicted|runtime|\
             acting CPU s, predicted|acting CPU s",
        ),
        rows,
    }
}

fn row(suite: &Suite, predicted: &Predicted) -> Vec<String> {
    let mut row = vec![
        suite.configurations[predicted.configuration].clone(),
        suite.workloads[predicted.workload].clone(),
        setting(predicted),
    ];
    let Some(compared) = predicted.compared(suite) else {
        let runtime = suite.interval(predicted.workload, predicted.configuration, RUNTIME);
        let none = || "-".to_owned();
        row.extend([none(), overhead(predicted.saved(suite))]);
        row.extend([none(), overhead(runtime), none(), none()]);
        return row;
    };
    row.extend([
        percent(compared.saved.predicted),
        overhead(compared.saved.measured),
        percent(compared.slowdown.predicted),
        overhead(compared.slowdown.measured),
        seconds(compared.acting.predicted),
        mean(compared.acting.measured),
    ]);
    row
}

/// Returns the setting that was found, and the traced program if that is only a part of the workload.
fn setting(predicted: &Predicted) -> String {
    let entry = &predicted.entry;
    let found = entry.setting.as_ref().map_or(
        "none is within the limit; without schemes".to_owned(),
        |setting| setting.text.clone(),
    );
    if entry.program_share >= SHARE_LEAST {
        return found;
    }
    let (share, program) = (100.0 * entry.program_share, &entry.program);
    format!("{found} (by {program}, which has {share:.0} % of the memory)")
}

fn summary(name: &str, errors: &[Option<Errors>; 3]) -> [Vec<String>; 2] {
    let mut mean = vec![name.to_owned(), "mean absolute error".into(), String::new()];
    let mut within = vec![
        name.to_owned(),
        "within the predicted bounds".into(),
        String::new(),
    ];
    for ((_, unit, _, digits), errors) in PARTS.iter().zip(errors) {
        let unit = if *unit == "percent" { " points" } else { " s" };
        let text = errors.map_or("-".into(), |e| format!("{:.digits$}{unit}", e.mean));
        mean.extend([String::new(), text]);
        let bounded = errors.filter(|e| e.nr_bounded > 0);
        let text = bounded.map_or("-".into(), |e| {
            let (within, of, maybe) = (e.nr_within, e.nr_bounded, e.nr_maybe);
            format!("{within} of {of}, perhaps {maybe}")
        });
        within.extend([String::new(), text]);
    }
    [mean, within]
}

/// Formats `+33.8 % [+24.1..+42.9]`.
fn percent(estimate: Estimate) -> String {
    let bounds = estimate.low.zip(estimate.high);
    let bounds = bounds.map(|(low, high)| format!(" [{:+.1}..{:+.1}]", low + 0.0, high + 0.0));
    let bounds = bounds.unwrap_or_default();
    format!("{:+.1} %{bounds}", estimate.value + 0.0)
}

fn seconds(estimate: Estimate) -> String {
    let bounds = estimate.low.zip(estimate.high);
    let bounds = bounds.map(|(low, high)| format!(" [{low:.2}..{high:.2}]"));
    format!("{:.2}{}", estimate.value, bounds.unwrap_or_default())
}

fn mean(interval: Option<Interval>) -> String {
    interval.map_or("-".into(), |interval| match interval.half_width {
        Some(half) => format!("{:.2} ± {half:.2}", interval.mean),
        None => format!("{:.2}, one repeat", interval.mean),
    })
}

/// Returns the table as CSV, a row for each workload. Empty: not known, or no setting was found.
pub fn csv(suite: &Suite) -> String {
    let mut head = words("workload|configuration|setting|program|program_share|nr_tried");
    for (name, unit, _, _) in PARTS {
        for end in ["predicted", "predicted_low", "predicted_high"] {
            head.push(format!("{name}_{unit}_{end}"));
        }
        for end in ["mean", "low95", "high95"] {
            head.push(format!("{name}_{unit}_{end}"));
        }
    }
    let rows = suite.predicted.iter().map(|predicted| {
        let entry = &predicted.entry;
        let setting = entry.setting.as_ref();
        let mut row = vec![
            suite.workloads[predicted.workload].clone(),
            suite.configurations[predicted.configuration].clone(),
            setting.map_or(String::new(), |setting| setting.text.clone()),
            entry.program.clone(),
            number(Some(entry.program_share)),
            entry.nr_tried.to_string(),
        ];
        let compared = predicted.compared(suite);
        for (_, _, part, _) in PARTS {
            let one = compared.as_ref().map(part);
            let reported = one.map(|one| one.predicted);
            let predicted = [
                reported.map(|reported| reported.value),
                reported.and_then(|reported| reported.low),
                reported.and_then(|reported| reported.high),
            ];
            let measured = mean_and_bounds(one.and_then(|one| one.measured));
            row.extend(predicted.into_iter().chain(measured).map(number));
        }
        row
    });
    csv_text(std::iter::once(head).chain(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::suite::tests::{TEXT, entries};
    use crate::tuned::TunedSetting;
    use crate::{Entry, Experiment, TunedEntry};

    /// Returns the suite of the other tests, tuned: nothing is within the limit for redis.
    fn suite() -> Suite {
        let text = TEXT.replace(
            "name = \"prcl\"\nisotherm = \"run {targets}\"\n",
            "name = \"tuned\"\n[configuration.tune]\npreset = \"prcl\"\n",
        );
        let experiment = Experiment::parse(&text).expect("it is right");
        let mut entries = entries(&experiment);
        for run in plan(&experiment) {
            if run.configuration.tune.is_none() || run.repeat > 1 {
                continue;
            }
            let is_redis = run.workload.name == "redis";
            let estimate = |value: f64| Estimate::new(value).within(value - 0.05, value + 0.05);
            let setting = TunedSetting {
                text: "age 2 s, size 4 KiB".into(),
                schemes: "kdamonds: []".into(),
                is_guarded: true,
                saved_share: estimate(0.57),
                slowdown: estimate(0.1),
                acting_cpu_seconds: Estimate::new(0.5),
            };
            entries.push(Entry::Tuned(Box::new(TunedEntry {
                workload: run.workload.name.clone(),
                configuration: run.configuration.name.clone(),
                fingerprint: run.fingerprint,
                time_s: 0,
                trace: String::new(),
                program: "sh".into(),
                program_share: if is_redis { 0.01 } else { 1.0 },
                nr_tried: 9,
                why: String::new(),
                setting: (!is_redis).then_some(setting),
            })));
        }
        Suite::gather(&experiment, &entries, Vec::new())
    }

    #[test]
    fn what_was_predicted_stands_beside_what_was_measured() {
        let suite = suite();
        let table = reported(&suite);
        let rows: Vec<String> = table.rows.iter().map(|row| row.join(" | ")).collect();
        // See `suite::tests`: under `tuned` 400 of 1000 MB are resident.
        let expected = [
            "tuned | parsec3/canneal | age 2 s, size 4 KiB | +57.0 % [+52.0..+62.0] | +60.0 ± 0.0 % | \
             +10.0 % [+5.0..+15.0] | +4.4 ± 2.4 % | 0.50 | 0.25 ± 0.00",
            "tuned | redis | none is within the limit; without schemes (by sh, which has 1 % of the memory) | - | \
             +60.0 ± 0.0 % | - | +5.3 ± 0.0 % | - | -",
            "tuned | mean absolute error |  |  | 3.0 points |  | 5.6 points |  | 0.25 s",
            "tuned | within the predicted bounds |  |  | 1 of 1, perhaps 1 |  | 0 of 1, perhaps 1 |  | -",
        ];
        assert_eq!(rows, expected);
        assert!(crate::report::text(&suite).contains(table.title));
        assert!(crate::report::markdown_summary(&suite).contains(table.title));
        assert!(crate::report::html(&suite).contains(table.title));
    }

    #[test]
    fn the_same_is_told_to_programs() {
        let csv = csv(&suite());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains(",saved_percent_predicted,saved_percent_predicted_low,"));
        let canneal = "parsec3/canneal,tuned,\"age 2 s, size 4 KiB\",sh,1,9,57,52,62,60,";
        assert!(lines[1].starts_with(canneal), "{csv}");
        assert!(lines[2].starts_with("redis,tuned,,sh,0.01,9,,,,"), "{csv}");
    }
}
