//! Small records, as `record` writes them.

use std::fs::File;
use std::path::Path;

use isotherm_engine::{
    AddressRange, BLOCK_SIZE, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId,
};
use isotherm_record::stacks::{NO_STACK, STACKS_SETTING};
use isotherm_record::{
    CodeModule, FaultSample, Header, Item, MachineSample, Mapping, MappingChange, NodeMemory,
    PageBlock, PageSnapshot, StackFrame, StackId, StackNode, StackSamples, TargetStart, Writer,
};

/// The start of the record, in nanoseconds.
pub(crate) const STARTED: u64 = 1_700_000_000_000_000_000;

/// Returns the snapshot of the second that begins `second` seconds after [`STARTED`]: a hot, an idle and an unknown
/// region.
pub(crate) fn snapshot_of_second(second: u64) -> Snapshot {
    let age_ns = Nanos(second * 1_000_000_000);
    let region = |start: u64, nr_accesses| {
        let range = AddressRange::new(start << 20, (start + 1) << 20);
        RegionSnapshot::new(range, nr_accesses).aged(second as u32, age_ns)
    };
    let regions = vec![
        region(1, Some(10.0)),
        region(2, Some(0.0)),
        region(900, None),
    ];
    let start = Nanos(STARTED) + age_ns;
    let times = (start, start + Nanos(1_000_000_000));
    Snapshot::new(TargetId(0), times, 10, regions)
}

/// Writes a record of these items.
fn write(path: &Path, header: &Header, items: impl IntoIterator<Item = Item>) {
    let file = File::create(path).expect("a file");
    let mut writer = Writer::create(file, header).expect("a record");
    for item in items {
        writer.write(&item).expect("written");
    }
    writer.finish().expect("a whole record");
}

/// Writes the record of a machine's memory, which is idle and of one node, as `record --all` does.
pub(crate) fn machine_record(path: &Path) {
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
    write(path, &Header::default(), [Item::Machine(sample)]);
}

/// Writes the record of a program of one block whose first quarter is used all the time, over `scans` seconds.
pub(crate) fn page_record(path: &Path, scans: u64, is_paged: bool) {
    let second = |n: u64| Nanos(1_000_000_000 * (n + 1));
    let start = 0x7f00_0000_0000;
    let range = AddressRange::new(start, start + BLOCK_SIZE);
    let granularity = ("granularity".to_owned(), "page".to_owned());
    let header = Header {
        started: second(0),
        settings: is_paged.then_some(granularity).into_iter().collect(),
        ..Header::default()
    };
    let target = TargetStart::new(second(0), TargetId(0), 0, "traced");
    let heap = vec![Mapping::private(range, "[heap]")];
    let mappings = MappingChange::adding(second(0), TargetId(0), heap);
    let mut block = PageBlock {
        block: start,
        present: [u64::MAX; 8],
        ..PageBlock::default()
    };
    block.accessed[..2].fill(u64::MAX);
    let mut items = vec![Item::TargetStart(target), Item::Mappings(mappings)];
    items.extend((0..scans).map(|scan| {
        let (start, end) = (second(scan), second(scan + 1));
        if is_paged {
            Item::Pages(PageSnapshot::new(TargetId(0), (start, end), vec![block]))
        } else {
            Item::Snapshot(Snapshot::new(TargetId(0), (start, end), 1, Vec::new()))
        }
    }));
    write(path, &header, items);
}

/// Writes the record of a process whose memory has been idle for ten minutes.
pub(crate) fn stacks_record(path: &Path) {
    let mut header = Header::default();
    let settings = &mut header.settings;
    settings.insert(STACKS_SETTING.to_owned(), "0.005".to_owned());
    let start = TargetStart::new(Nanos(1), TargetId(0), 12, "service");
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
    let (idle, end) = (Nanos::from_millis(600_000), Nanos::from_millis(601_000));
    let region = RegionSnapshot::new(range, Some(0.0)).aged(600, idle);
    let region = region.holding(RegionMemory::resident(range.len()));
    let snapshot = Snapshot::new(TargetId(0), (idle, end), 1, vec![region]);
    let items = [
        Item::TargetStart(start),
        Item::Stacks(samples),
        Item::Snapshot(snapshot),
    ];
    write(path, &header, items);
}
