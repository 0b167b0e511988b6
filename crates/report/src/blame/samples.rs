//! Reports for tests.

use isotherm_engine::TargetId;

use super::{BlameReport, NotBlamed, StackBytes};

/// A stack of functions that are of one library, innermost last.
pub(crate) fn stack(functions: &[&str], bytes: u64, likely_bytes: u64) -> StackBytes {
    StackBytes {
        target: TargetId(0),
        thread: "worker".to_owned(),
        mapping: "[heap]".into(),
        stack: functions.iter().map(|&name| name.to_owned()).collect(),
        libraries: vec![Some("app".to_owned()); functions.len()],
        function: functions.last().map_or("", |name| name).to_owned(),
        line: None,
        bytes,
        likely_bytes,
    }
}

/// Two stacks and something unknown.
pub(crate) fn report() -> BlameReport {
    let mut load = stack(&["main", "load", "malloc"], 6 << 20, 1 << 20);
    load.libraries[2] = Some("libc.so.6".to_owned());
    load.line = Some("malloc.c:7".to_owned());
    BlameReport {
        report: "blame",
        total_bytes: (9 << 20) + (1 << 19),
        blamed_bytes: 8 << 20,
        likely_bytes: 1 << 20,
        unknown: NotBlamed {
            before_sampling: 1 << 20,
            not_sampled: 1 << 19,
        },
        stacks: vec![load, stack(&["main", "serve"], 2 << 20, 0)],
        ..BlameReport::default()
    }
}

/// One stack with names that separate, break lines, mark up, and are empty.
pub(crate) fn hostile_report() -> BlameReport {
    let names = ["a;b", "<b>&\"x\"\ny", ""];
    BlameReport {
        report: "blame",
        total_bytes: 4096,
        blamed_bytes: 4096,
        stacks: vec![stack(&names, 4096, 0)],
        ..BlameReport::default()
    }
}
