//! A trace of a program that uses its blocks in all ways, for tests of what-if, native and in a browser.

use std::fs::File;
use std::path::Path;

use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, TargetId};
use isotherm_record::{
    Header, Item, Mapping, MappingChange, PageBlock, PageSnapshot, TargetStart, Writer,
};

const BLOCKS: u64 = 24;
const PAGES: u64 = 512;
const START: u64 = 0x7f00_0000_0000;

/// Writes a trace of `scans` scans, a second each.
pub(crate) fn trace(path: &Path, scans: u64) {
    let second = |n: u64| Nanos(1_000_000_000 * (n + 1));
    let granularity = ("granularity".to_owned(), "page".to_owned());
    let header = Header {
        started: second(0),
        settings: [granularity].into(),
        ..Header::default()
    };
    let mut writer =
        Writer::create(File::create(path).expect("a file"), &header).expect("a record");
    let mut write = |item: Item| writer.write(&item).expect("written");
    let (time, target) = (second(0), TargetId(0));
    let start = TargetStart::new(time, target, 0, "drawn");
    write(Item::TargetStart(start));
    let range = AddressRange::new(START, START + BLOCKS * BLOCK_SIZE);
    let heap = vec![Mapping::private(range, "[heap]")];
    write(Item::Mappings(MappingChange::adding(time, target, heap)));
    for scan in 0..scans {
        let times = (second(scan), second(scan + 1));
        let blocks = (0..BLOCKS).map(|block| seen(block, scan)).collect();
        write(Item::Pages(PageSnapshot::new(target, times, blocks)));
    }
    writer.finish().expect("finished");
}

fn seen(block: u64, scan: u64) -> PageBlock {
    let mut accessed = [0_u64; 8];
    for page in 0..PAGES {
        if scan == 0 || is_accessed(block, page, scan) {
            accessed[page as usize / 64] |= 1 << (page % 64);
        }
    }
    PageBlock {
        block: START + block * BLOCK_SIZE,
        present: [u64::MAX; 8],
        accessed,
        unknown: [0; 8],
        huge: false,
    }
}

/// Returns whether a page is accessed. The block decides its pattern: busy, idle, at times, scattered, anywhere, or a
/// moving window.
fn is_accessed(block: u64, page: u64, scan: u64) -> bool {
    let draw = (block * PAGES + page).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match block % 6 {
        0 => true,
        1 => false,
        2 => scan.is_multiple_of(7 + block),
        3 => draw.is_multiple_of(8),
        4 => (draw + scan * 31).is_multiple_of(16),
        _ => page * 8 / PAGES == scan % 8,
    }
}
