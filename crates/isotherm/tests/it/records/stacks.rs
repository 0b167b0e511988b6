//! A small record with stacks, as `record --stacks` writes it.

use std::fs::File;
use std::path::Path;

use isotherm_engine::{AddressRange, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::stacks::{NO_STACK, STACKS_SETTING};
use isotherm_record::{
    CodeModule, FaultSample, Header, Item, StackFrame, StackId, StackNode, StackSamples,
    TargetStart, Writer,
};

/// Writes the record of a process whose memory has been idle for ten minutes.
pub(crate) fn stacks_record(path: &Path) {
    let mut header = Header::default();
    let settings = &mut header.settings;
    settings.insert(STACKS_SETTING.to_owned(), "0.005".to_owned());
    let file = File::create(path).expect("a file");
    let mut writer = Writer::create(file, &header).expect("a record");
    let start = TargetStart {
        time: Nanos(1),
        pid: 12,
        name: "service".to_owned(),
        ..TargetStart::default()
    };
    let range = AddressRange::new(0x10_0000, 0x20_0000);
    let samples = StackSamples {
        time: Nanos(2),
        modules: vec![CodeModule {
            path: "/nowhere/service".to_owned(),
            build_id: None,
        }],
        frames: vec![StackFrame::File {
            module: 0,
            offset: 4096,
        }],
        threads: vec!["service".to_owned()],
        stacks: vec![StackNode {
            caller: NO_STACK,
            frame: 0,
        }],
        samples: vec![FaultSample {
            time: Nanos(2),
            address: range.start,
            stack: StackId(1),
            pages: 17,
            ..FaultSample::default()
        }],
        ..StackSamples::default()
    };
    let snapshot = Snapshot {
        target: TargetId(0),
        start: Nanos::from_millis(600_000),
        end: Nanos::from_millis(601_000),
        nr_samples: 1,
        regions: vec![RegionSnapshot {
            range,
            nr_accesses: Some(0.0),
            age: 600,
            age_ns: Nanos::from_millis(600_000),
            memory: Some(RegionMemory::resident(range.len())),
        }],
        ..Snapshot::default()
    };
    let items = [
        Item::TargetStart(start),
        Item::Stacks(samples),
        Item::Snapshot(snapshot),
    ];
    for item in items {
        writer.write(&item).expect("written");
    }
    writer.finish().expect("a whole record");
}
