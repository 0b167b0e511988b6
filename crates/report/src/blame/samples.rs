//! Reports for tests.

use isotherm_engine::{Nanos, TargetId};
use isotherm_record::item::Header;

use super::by::sum_up;
use super::{BlameReport, By, NotBlamed, StackBytes};
use crate::context::{RecordContext, Scope};

/// Builds a stack of functions in one library, innermost last.
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

/// Builds a report with two stacks and unknown bytes.
pub(crate) fn report() -> BlameReport {
    let mut load = stack(&["main", "load", "malloc"], 6 << 20, 1 << 20);
    load.libraries[2] = Some("libc.so.6".to_owned());
    "load".clone_into(&mut load.function);
    load.line = Some("malloc.c:7".to_owned());
    let stacks = vec![load, stack(&["main", "serve"], 2 << 20, 0)];
    let context = RecordContext::new(&Header::default(), Scope::default());
    BlameReport {
        report: "blame",
        at_least_ns: Nanos::from_millis(60_000),
        time_ns: Nanos::from_millis(90_000),
        watched_ns: Nanos::from_millis(90_000),
        nr_samples: 12,
        total_bytes: (9 << 20) + (1 << 19),
        blamed_bytes: 8 << 20,
        likely_bytes: 1 << 20,
        unknown: NotBlamed {
            before_sampling: 1 << 20,
            not_sampled: 1 << 19,
        },
        blamed: sum_up(By::Function, &stacks, &context),
        stacks,
        ..BlameReport::default()
    }
}

/// Builds a report of one stack with names that hold separators, line breaks and markup, or are empty.
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
