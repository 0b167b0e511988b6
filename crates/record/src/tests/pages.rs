//! Records of page scans, and their replay.

use isotherm_engine::monitor::bits::put;
use isotherm_engine::{BLOCK_SIZE, Nanos, Snapshot, TargetId};

use super::{header, read, write};
use crate::pages::{GRANULARITY, GRANULARITY_PAGE};
use crate::{Header, Item, PageAges, PageBlock, PageSnapshot, Reader};

pub(crate) fn page_header() -> Header {
    let mut header = header();
    let settings = &mut header.settings;
    settings.insert(GRANULARITY.into(), GRANULARITY_PAGE.into());
    header
}

/// Builds a scan from a picture, a word for each block: its first pages one by one (`A` accessed, `i` idle, `?`
/// unknown, `.` absent), the last repeated to the block's end.
pub(crate) fn scan(second: u64, picture: &str) -> Item {
    let blocks = picture.split_whitespace().enumerate().map(|(n, pages)| {
        let mut block = PageBlock {
            block: n as u64 * BLOCK_SIZE,
            ..PageBlock::default()
        };
        let last = pages.chars().last().expect("a word");
        let pages = pages.chars().chain(std::iter::repeat(last));
        for (page, kind) in pages.take(512).enumerate() {
            put(&mut block.present, page, kind != '.');
            put(&mut block.accessed, page, kind == 'A');
            put(&mut block.unknown, page, kind == '?');
        }
        block
    });
    let [start, end] = [second, second + 1].map(|second| Nanos(second * 1_000_000_000));
    let scan = PageSnapshot::new(TargetId(3), (start, end), blocks.collect());
    Item::Pages(scan)
}

/// Formats regions as `[first page,end page)=accesses@age`.
fn picture(snapshot: &Snapshot) -> String {
    let regions = snapshot.regions.iter().map(|r| {
        assert_eq!(r.age_ns.0, u64::from(r.age) * 1_000_000_000);
        let accesses = r.nr_accesses.map_or("?".to_string(), |n| n.to_string());
        let (start, end) = (r.range.start / 4096, r.range.end / 4096);
        format!("[{start},{end})={accesses}@{}", r.age)
    });
    regions.collect::<Vec<_>>().join(" ")
}

#[test]
fn scans_come_back_as_they_were() {
    let items = [scan(0, "AAi Ai"), scan(1, "i ?."), scan(2, "")];
    let bytes = write(&page_header(), &items);
    let (got, reader) = read(&bytes);
    assert_eq!(got, items);
    assert!(reader.is_page_record());
}

fn check(scans: &[&str], regions: &[&str]) {
    let items: Vec<Item> = (0..).zip(scans).map(|(n, s)| scan(n, s)).collect();
    let bytes = write(&page_header(), &items);
    let mut reader = Reader::open(&bytes[..]).expect("readable").replay_pages();
    let mut ages = PageAges::default();
    for (item, expected) in items.iter().zip(regions) {
        let Some(Ok(Item::Snapshot(replayed))) = reader.next() else {
            panic!("page snapshots replay as snapshots");
        };
        assert_eq!(picture(&replayed), *expected);
        let Item::Pages(pages) = item else {
            unreachable!("scan() makes pages");
        };
        assert_eq!(ages.snapshot(pages).expect("few pages"), replayed);
    }
    assert!(reader.next().is_none());
}

#[test]
fn replayed_pages_become_regions_with_ages() {
    check(&["Ai"], &["[0,1)=1@0 [1,512)=0@0"]);
    // Neighbours of the same state and age are one region, across blocks too.
    check(&["i i"], &["[0,1024)=0@0"]);
    check(
        &["AAi i", "AAi i", "Ai i", "i i"],
        &[
            "[0,2)=1@0 [2,1024)=0@0",
            "[0,2)=1@1 [2,1024)=0@1",
            "[0,1)=1@2 [1,2)=0@0 [2,1024)=0@2",
            "[0,1)=0@0 [1,2)=0@1 [2,1024)=0@3",
        ],
    );
}

#[test]
fn absent_pages_are_no_region_and_unknown_ones_have_no_frequency() {
    check(&["A.?"], &["[0,1)=1@0 [2,512)=?@0"]);
    // Pages that were absent in between have no age.
    check(
        &["i i", "i", "i i"],
        &["[0,1024)=0@0", "[0,512)=0@1", "[0,512)=0@2 [512,1024)=0@0"],
    );
}
