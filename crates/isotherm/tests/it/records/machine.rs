//! A small record of a machine's memory, as `record --all` writes it.

use std::fs::File;
use std::path::Path;

use isotherm_engine::Nanos;
use isotherm_record::{Header, Item, MachineSample, NodeMemory, Writer};

/// Writes the record of an idle machine of one node.
pub(crate) fn machine_record(path: &Path) {
    let file = File::create(path).expect("a file");
    let mut writer = Writer::create(file, &Header::default()).expect("a record");
    let node = NodeMemory {
        total: 8 << 30,
        free: 7 << 30,
        ..NodeMemory::default()
    };
    let sample = MachineSample {
        time: Nanos(1_000_000_000),
        nodes: vec![node],
        ..MachineSample::default()
    };
    writer.write(&Item::Machine(sample)).expect("written");
    writer.finish().expect("a whole record");
}
