//! Tables of words, and the words of an overhead.

use isotherm_engine::statistics::Interval;

/// A table of words.
pub(super) struct TextTable {
    pub(super) title: &'static str,
    pub(super) note: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Formats `+1.20 ± 3.40 %, within noise`.
pub(super) fn overhead(interval: Option<Interval>) -> String {
    let Some(interval) = interval else {
        return "-".into();
    };
    let mean = interval.mean + 0.0;
    match interval.half_width {
        None => format!("{mean:+.1} %, one repeat"),
        Some(half) if interval.may_be(0.0) => format!("{mean:+.1} ± {half:.1} %, within noise"),
        Some(half) => format!("{mean:+.1} ± {half:.1} %"),
    }
}

pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:+.1} %", value + 0.0))
}

pub(super) fn words(head: &[&str]) -> Vec<String> {
    head.iter().map(|&word| word.to_owned()).collect()
}
