//! Sizes of made-up records.

use isotherm_engine::monitor::bits::{NONE, mask_of};
use isotherm_engine::{AddressRange, BLOCK_SIZE, GroupCharge, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::item::{Header, Item, Mapping, MappingChange, TargetStart, UsageSample};
use isotherm_record::pages::{PageBlock, PageSnapshot};
use isotherm_report::{Accumulate, Scope};

use crate::{Size, SizeEstimate, SizeOptions, SizeReport};

const TARGET: TargetId = TargetId(3);
const HOT: usize = 100;
const MIB: u64 = 1 << 20;

fn second(number: u64) -> Nanos {
    Nanos::from_millis(1000 * number)
}

/// A program with one block of memory, whose first 100 pages are always used; `also` are the others used in a second.
pub(crate) fn items(name: &str, also: impl Fn(u64) -> std::ops::Range<usize>) -> Vec<Item> {
    let range = AddressRange::new(BLOCK_SIZE, 2 * BLOCK_SIZE);
    let mappings = vec![Mapping::private(range, name)];
    let mut items = vec![
        Item::TargetStart(TargetStart::new(second(0), TARGET, 7, "server")),
        Item::Mappings(MappingChange::adding(second(0), TARGET, mappings)),
    ];
    items.extend((0..60).map(|number| {
        let hot = mask_of(0..HOT);
        let others = mask_of(also(number));
        let block = PageBlock {
            block: BLOCK_SIZE,
            present: mask_of(0..512),
            accessed: std::array::from_fn(|word| hot[word] | others[word]),
            unknown: NONE,
            ..PageBlock::default()
        };
        let times = (second(number), second(number + 1));
        Item::Pages(PageSnapshot::new(TARGET, times, vec![block]))
    }));
    items
}

pub(crate) fn size(items: &[Item], options: SizeOptions) -> SizeReport {
    let mut size = Size::new(&Header::default(), Scope::default(), options);
    for item in items {
        size.push(item);
    }
    size.finish().expect("scans")
}

#[test]
fn what_is_used_is_needed_and_what_is_idle_is_not() {
    let report = size(&items("[heap]", |_| 0..0), SizeOptions::default());
    let hot = HOT as u64 * PAGE_SIZE;
    let need = report.with_swap.request;
    assert_eq!(report.memory.mapped_peak_bytes, 512 * PAGE_SIZE);
    assert!((hot..hot * 106 / 100).contains(&need.bytes), "{need:?}");
    assert!(need.low_bytes <= need.bytes && need.bytes <= need.high_bytes);
    // Without swap, anonymous memory stays.
    assert_eq!(
        report.without_swap.request,
        SizeEstimate::exactly(512 * PAGE_SIZE)
    );
    assert_eq!(report.with_swap.swap.high_bytes, 512 * PAGE_SIZE);
    let files = size(&items("/usr/lib/data", |_| 0..0), SizeOptions::default());
    assert!(
        files.without_swap.request.bytes < 110 * PAGE_SIZE,
        "{:?}",
        files.without_swap
    );
}

/// The others are read once in 20 s: 3 times in the record, 20 pages a second.
#[test]
fn a_loss_that_is_allowed_lowers_the_need() {
    let items = items("", |number| if number % 20 == 10 { 100..500 } else { 0..0 });
    let at = |max_slowdown: f64| {
        let options = SizeOptions {
            max_slowdown,
            swap_cost: Some(Nanos(100_000)),
            ..SizeOptions::default()
        };
        size(&items, options).with_swap.request.bytes / PAGE_SIZE
    };
    // 20 refaults of 100 us a second are 0.2 %, without those that no interval ends.
    assert!(at(0.000_1) >= 500, "{}", at(0.000_1));
    assert!(at(0.01) < 110, "{}", at(0.01));
}

#[test]
fn what_a_group_is_charged_for_beyond_mappings_counts() {
    let mut items = items("", |_| 0..0);
    let charged = GroupCharge {
        total: Some(10 * MIB),
        page_cache: Some(5 * MIB),
        shared: Some(0),
        kernel: Some(MIB),
        kernel_reclaimable: Some(MIB / 4),
        ..GroupCharge::default()
    };
    items.push(Item::Usage(UsageSample {
        time: second(60),
        charged: Some(charged),
        ..UsageSample::default()
    }));
    let report = size(&items, SizeOptions::default());
    assert_eq!(report.memory.peak_bytes, 10 * MIB);
    assert_eq!(report.memory.kernel_peak_bytes, Some(MIB));
    assert_eq!(report.memory.kernel_reclaimable_bytes, Some(MIB / 4));
    assert_eq!(report.memory.unmapped_peak_bytes, Some(5 * MIB));
    let request = report.with_swap.request;
    assert!(
        request.low_bytes < 2 * MIB && request.bytes > 5 * MIB,
        "{request:?}"
    );
}

#[test]
fn a_record_without_scans_has_no_size() {
    let size = Size::new(&Header::default(), Scope::default(), SizeOptions::default());
    assert_eq!(size.finish(), None);
}
