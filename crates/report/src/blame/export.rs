//! Stacks as other tools read them.

use std::fmt::Write as _;

use super::BlameReport;

/// Folded stacks: a line for each, its functions from the outermost on with `;` between them, and the bytes. What
/// Brendan Gregg's `flamegraph.pl`, inferno and speedscope read.
pub fn folded(report: &BlameReport) -> String {
    let mut text = String::new();
    for stack in &report.stacks {
        // A name may hold what separates names.
        let names: Vec<String> = stack
            .stack
            .iter()
            .map(|name| name.replace(';', ":"))
            .collect();
        let _ = writeln!(text, "{} {}", names.join(";"), stack.bytes);
    }
    text
}
