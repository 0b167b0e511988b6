//! Stacks as other tools read them.

use std::fmt::Write as _;

use super::BlameReport;

/// Folded stacks: a line for each, its functions from the outermost on with `;` between them, and the bytes. What
/// Brendan Gregg's `flamegraph.pl`, inferno and speedscope read.
pub fn folded(report: &BlameReport) -> String {
    let mut text = String::new();
    for stack in &report.stacks {
        let _ = writeln!(text, "{} {}", folded_names(&stack.stack), stack.bytes);
    }
    text
}

/// A stack on a line. A name may hold what separates names.
pub(super) fn folded_names(stack: &[String]) -> String {
    let names: Vec<String> = stack.iter().map(|name| name.replace(';', ":")).collect();
    names.join(";")
}
