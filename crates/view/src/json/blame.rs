//! Attribution of memory to code. Each measure has a tree of calls, as boxes with their positions, and a list of
//! functions.

use std::collections::HashMap;

use isotherm_report::BlameReport;
use isotherm_report::blame::{Blamed, FlameNode};
use serde_json::{Value, json};

use super::list;
use crate::container::Arrays;

const STACKS: usize = 2000;
const BOXES: usize = 8000;
const FUNCTIONS: usize = 200;

pub(super) fn json(reports: &[BlameReport], arrays: &mut Arrays) -> Option<Value> {
    let first = reports.first()?;
    let mut functions = Functions::default();
    let answers = list(reports, |report| answer(report, &mut functions, arrays));
    Some(json!({
        "time_s": first.time_ns.as_secs_f64(),
        "nr_samples": first.nr_samples,
        "nr_lost": first.nr_lost,
        "names": functions.names,
        // The name and the library of each function; the library is null for code outside any file.
        "functions": functions.all,
        "answers": answers,
    }))
}

/// Builds the result of one measure.
fn answer(report: &BlameReport, functions: &mut Functions, arrays: &mut Arrays) -> Value {
    let (shown, others) = report.stacks.split_at(report.stacks.len().min(STACKS));
    let tree = FlameNode::tree(shown);
    let placed = tree.largest(BOXES, 1);
    let numbers: Vec<u32> = placed.iter().map(|at| functions.number(at.node)).collect();
    let (listed, unlisted) = report.blamed.split_at(report.blamed.len().min(FUNCTIONS));
    let huge = report.huge;
    json!({
        "measure": report.measure,
        "at_least_s": report.at_least_ns.as_secs_f64(),
        "total": report.total_bytes,
        "blamed": report.blamed_bytes,
        "likely": report.likely_bytes,
        "before_sampling": report.unknown.before_sampling,
        "not_sampled": report.unknown.not_sampled,
        // Stacks that are not in the tree.
        "nr_others": others.len(),
        "others": others.iter().map(|stack| stack.bytes).sum::<u64>(),
        // The function of each box, the number of callers above it, the bytes to its left, its own bytes (callees
        // included), and its likely bytes.
        "boxes": arrays.u32(numbers.into_iter()),
        "depths": arrays.u32(placed.iter().map(|at| at.depth as u32)),
        "lefts": arrays.f64(placed.iter().map(|at| at.left as f64)),
        "bytes": arrays.f64(placed.iter().map(|at| at.node.bytes as f64)),
        "likely_bytes": arrays.f64(placed.iter().map(|at| at.node.likely_bytes as f64)),
        "list": list(listed, function),
        "nr_unlisted": unlisted.len(),
        "unlisted": unlisted.iter().map(|of| of.bytes).sum::<u64>(),
        "huge": huge.map(|huge| json!({"bytes": huge.bytes, "read": huge.read_bytes})),
    })
}

fn function(of: &Blamed) -> Value {
    json!({
        "name": of.name,
        "bytes": of.bytes,
        "likely": of.likely_bytes,
        "inclusive": of.inclusive_bytes.unwrap_or(of.bytes),
    })
}

#[derive(Default)]
struct Functions {
    names: Vec<String>,
    name_numbers: HashMap<String, usize>,
    all: Vec<(usize, Option<usize>)>,
    numbers: HashMap<(usize, Option<usize>), u32>,
}

impl Functions {
    fn number(&mut self, node: &FlameNode) -> u32 {
        let library = node.library.as_deref().map(|library| self.name(library));
        let function = (self.name(&node.name), library);
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(function).or_insert(next);
        if number == next {
            self.all.push(function);
        }
        number
    }

    fn name(&mut self, name: &str) -> usize {
        if let Some(number) = self.name_numbers.get(name) {
            return *number;
        }
        self.names.push(name.to_owned());
        self.name_numbers
            .insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_report::blame::StackBytes;

    fn stack(n: usize) -> StackBytes {
        StackBytes {
            target: isotherm_engine::TargetId(0),
            thread: String::new(),
            mapping: "".into(),
            stack: vec!["main".to_owned(), format!("f{n}")],
            libraries: vec![Some("app".to_owned()); 2],
            function: format!("f{n}"),
            line: None,
            bytes: 4096,
            likely_bytes: 0,
        }
    }

    #[test]
    fn what_is_too_much_to_show_is_summed_up() {
        let report = BlameReport {
            stacks: (0..STACKS + 3).map(stack).collect(),
            ..BlameReport::default()
        };
        let all = json(&[report], &mut Arrays::default()).expect("there are stacks");
        let answer = &all["answers"][0];
        assert_eq!(answer["nr_others"], json!(3));
        assert_eq!(answer["others"], json!(3 * 4096));
        let length = |name: &str| all[name].as_array().map(Vec::len);
        assert_eq!(length("functions"), Some(STACKS + 1));
        assert_eq!(length("names"), Some(STACKS + 2));
        assert!(json(&[], &mut Arrays::default()).is_none());
    }
}
