//! A small record of pages, as `record --pages` writes it.

use std::fs::File;
use std::path::Path;

use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, Snapshot, TargetId};
use isotherm_record::{
    Header, Item, Mapping, MappingChange, PageBlock, PageSnapshot, TargetStart, Writer,
};

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
    let file = File::create(path).expect("a file");
    let mut writer = Writer::create(file, &header).expect("a record");
    let mut write = |item: Item| writer.write(&item).expect("written");
    write(Item::TargetStart(TargetStart {
        time: second(0),
        name: "traced".into(),
        ..TargetStart::default()
    }));
    write(Item::Mappings(MappingChange {
        time: second(0),
        added: vec![Mapping {
            range,
            permissions: "rw-p".into(),
            name: "[heap]".into(),
            unreclaimable: None,
        }],
        ..MappingChange::default()
    }));
    for scan in 0..scans {
        let (from, to) = (second(scan), second(scan + 1));
        if is_paged {
            let mut block = PageBlock {
                block: start,
                present: [u64::MAX; 8],
                ..PageBlock::default()
            };
            block.accessed[..2].fill(u64::MAX);
            write(Item::Pages(PageSnapshot {
                target: TargetId(0),
                start: from,
                end: to,
                blocks: vec![block],
            }));
        } else {
            write(Item::Snapshot(Snapshot {
                start: from,
                end: to,
                nr_samples: 1,
                ..Snapshot::default()
            }));
        }
    }
    writer.finish().expect("finished");
}
