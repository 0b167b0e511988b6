//! Parts of pages that are about a record.

use isotherm_engine::units;
pub(crate) use isotherm_render::page::figure;
pub(super) use isotherm_render::page::{END, begin, escape, table};

use crate::context::RecordInfo;

/// Describes the recorded command and its machine in one line.
pub fn subject(record: &RecordInfo) -> String {
    let mut parts = Vec::new();
    if !record.command.is_empty() {
        parts.push(isotherm_record::printable(&record.command.join(" ")).into_owned());
    }
    if !record.host.is_empty() {
        parts.push(format!("on {}", record.host));
    }
    if !record.kernel.is_empty() {
        parts.push(format!("Linux {}", record.kernel));
    }
    if record.end.damaged.is_some() {
        parts.push("the record is damaged: this is what comes before".to_owned());
    } else if record.end.truncated.is_some() {
        parts.push("the record was not finished".to_owned());
    }
    parts.join(" · ")
}

pub(crate) fn start(title: &str, record: &RecordInfo) -> String {
    begin(title, &subject(record))
}

pub(super) fn gap_label(bytes: u64) -> String {
    format!("{} not monitored", units::format_bytes(bytes))
}
