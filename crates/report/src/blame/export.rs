//! Stacks in the formats of other tools: folded lines and speedscope's JSON. [`super::pprof()`] is beside it.
//!
//! Each format holds all bytes of the report: unknown bytes are a stack of one frame, so that shares refer to the
//! whole. An empty name becomes `[no name]`, and control characters become spaces.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{BlameReport, Measure, StackBytes};

const NO_NAME: &str = "[no name]";
pub(super) const BEFORE: &str = "[before sampling]";
pub(super) const NOT_SAMPLED: &str = "[not sampled]";

/// Formats folded stacks: a line for each, its functions from the outermost on with `;` between them, and the bytes.
/// Brendan Gregg's `flamegraph.pl`, inferno and speedscope read this format.
pub fn folded(report: &BlameReport) -> String {
    let mut text = String::new();
    for stack in &report.stacks {
        let _ = writeln!(text, "{} {}", folded_names(&stack.stack), stack.bytes);
    }
    for (name, bytes) in unknown(report) {
        let _ = writeln!(text, "{name} {bytes}");
    }
    text
}

/// Formats a stack as a line. Separators within names are replaced.
pub(super) fn folded_names(stack: &[String]) -> String {
    let names = stack.iter().map(|name| named(name).replace(';', ":"));
    names.collect::<Vec<_>>().join(";")
}

/// Builds a profile in speedscope's format (<https://www.speedscope.app/file-format-schema.json>): one sampled profile,
/// whose weights are bytes. A frame's file is its library, or its source file where a source line is known.
pub fn speedscope(report: &BlameReport) -> Value {
    let mut frames = Frames::default();
    let (mut samples, mut weights) = (Vec::new(), Vec::new());
    for stack in &report.stacks {
        samples.push(frames.of(stack));
        weights.push(stack.bytes);
    }
    for (name, bytes) in unknown(report) {
        samples.push(vec![frames.number(name, None, None)]);
        weights.push(bytes);
    }
    let whole: u64 = weights.iter().sum();
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "isotherm",
        "name": measure_name(report.measure),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.all},
        "profiles": [{
            "type": "sampled",
            "name": measure_name(report.measure),
            "unit": "bytes",
            "startValue": 0,
            "endValue": whole,
            "samples": samples,
            "weights": weights,
        }],
    })
}

#[derive(Default)]
struct Frames {
    all: Vec<Value>,
    numbers: HashMap<(String, Option<String>, Option<i64>), usize>,
}

impl Frames {
    fn of(&mut self, stack: &StackBytes) -> Vec<usize> {
        let innermost = stack.stack.len().saturating_sub(1);
        let each = stack.stack.iter().enumerate();
        let each = each.map(|(at, name)| {
            let place = (at == innermost).then(|| source_line(stack)).flatten();
            let library = stack.libraries.get(at).and_then(Option::as_deref);
            match place {
                Some((file, line)) => self.number(name, Some(file), Some(line)),
                None => self.number(name, library, None),
            }
        });
        each.collect()
    }

    fn number(&mut self, name: &str, file: Option<&str>, line: Option<i64>) -> usize {
        let name = named(name).into_owned();
        let key = (name.clone(), file.map(str::to_owned), line);
        let Self { all, numbers } = self;
        *numbers.entry(key).or_insert_with(|| {
            let mut frame = json!({"name": name});
            if let Some(file) = file {
                frame["file"] = json!(file);
            }
            if let Some(line) = line {
                frame["line"] = json!(line);
            }
            all.push(frame);
            all.len() - 1
        })
    }
}

pub(super) fn measure_name(measure: Measure) -> &'static str {
    match measure {
        Measure::Idle => "idle_space",
        Measure::Resident => "resident_space",
        Measure::Accessed => "accessed_space",
        Measure::Refaulted => "refaulted_space",
        Measure::Waste => "unwritten_space",
    }
}

/// Returns the name of a function in one line.
pub(crate) fn named(name: &str) -> Cow<'_, str> {
    if name.is_empty() {
        NO_NAME.into()
    } else if name.contains(char::is_control) {
        name.replace(char::is_control, " ").into()
    } else {
        name.into()
    }
}

/// Iterates over the unknown bytes that are not zero.
pub(super) fn unknown(report: &BlameReport) -> impl Iterator<Item = (&'static str, u64)> {
    let all = [
        (BEFORE, report.unknown.before_sampling),
        (NOT_SAMPLED, report.unknown.not_sampled),
    ];
    all.into_iter().filter(|(_, bytes)| *bytes > 0)
}

pub(super) fn source_line(stack: &StackBytes) -> Option<(&str, i64)> {
    let (file, line) = stack.line.as_deref()?.rsplit_once(':')?;
    Some((file, line.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::samples::{hostile_report, report};
    use super::*;

    #[test]
    fn folded_stacks_are_a_line_each_whatever_they_are_called() {
        let text = folded(&report());
        let wanted = "main;load;malloc 6291456\nmain;serve 2097152\n[before sampling] 1048576\n[not sampled] 524288\n";
        assert_eq!(text, wanted);
        let text = folded(&hostile_report());
        assert_eq!(text, "a:b;<b>&\"x\" y;[no name] 4096\n");
        assert_eq!(folded(&BlameReport::default()), "");
    }

    #[test]
    fn speedscope_has_each_frame_once_and_all_bytes() {
        let profile = speedscope(&report());
        let frames = &profile["shared"]["frames"];
        let malloc = json!({"name": "malloc", "file": "malloc.c", "line": 7});
        assert_eq!(frames[2], malloc);
        assert_eq!(frames[0], json!({"name": "main", "file": "app"}));
        assert_eq!(frames.as_array().map(Vec::len), Some(6));
        let sampled = &profile["profiles"][0];
        assert_eq!(sampled["samples"], json!([[0, 1, 2], [0, 3], [4], [5]]));
        let weights = json!([6_291_456, 2_097_152, 1_048_576, 524_288]);
        assert_eq!(sampled["weights"], weights);
        assert_eq!(sampled["endValue"], json!(report().total_bytes));
        assert_eq!(sampled["name"], "idle_space");
        let hostile = speedscope(&hostile_report());
        assert_eq!(hostile["shared"]["frames"][1]["name"], "<b>&\"x\" y");
        let nothing = speedscope(&BlameReport::default());
        assert_eq!(nothing["profiles"][0]["samples"], json!([]));
    }
}
