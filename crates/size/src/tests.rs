//! Sizes of made-up records.

use isotherm_engine::monitor::bits::{NONE, mask_of};
use isotherm_engine::page_cache::CachedBytes;
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
    assert!(at(0.000_1) >= 495, "{}", at(0.000_1));
    assert!(at(0.01) < 110, "{}", at(0.01));
}

/// A bulk load before the watch: 4 MiB are dirty at first, and 1 MiB in the end, of which half is likely needed.
#[test]
fn page_cache_that_is_written_once_is_not_needed() {
    let mut items = items("", |_| 0..0);
    for (at, dirty) in [(20, 4 * MIB), (60, MIB)] {
        let mut cached = CachedBytes {
            dirty,
            ..CachedBytes::default()
        };
        cached.ages.idle[0] = 5 * MIB;
        items.push(Item::Usage(UsageSample {
            time: second(at),
            cached: Some(cached),
            ..UsageSample::default()
        }));
    }
    let needed = size(&items, SizeOptions::default()).memory.unmapped_needed;
    let bounds = needed.map(|needed| (needed.bytes, needed.high_bytes));
    assert_eq!(bounds, Some((MIB / 2, MIB)));
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

/// The size of a program with 512 pages, a fifth of which is used, in a group with this charge at every second.
fn size_of_group(name: &str, charge: impl Fn(u64) -> GroupCharge) -> SizeReport {
    let mut items = items(name, |_| 0..0);
    items.extend((0..60).map(|number| {
        Item::Usage(UsageSample {
            time: second(number),
            charged: Some(charge(number)),
            system_swap: Some(0),
            ..UsageSample::default()
        })
    }));
    items.sort_by_key(|item| match item {
        Item::Usage(usage) => usage.time,
        Item::Pages(pages) => pages.end,
        _ => Nanos(0),
    });
    size(&items, SizeOptions::default())
}

/// Its hot pages are in use at each scan, but it has no time to touch them often.
#[test]
fn a_daemon_that_looks_around_once_a_second_needs_little() {
    let need = |cpu_us: u64| {
        let mut items = items("", |_| 0..0);
        items.extend((0..60).map(|number| {
            Item::Usage(UsageSample {
                time: second(number),
                cpu: [(TARGET.0, Nanos::from_micros(cpu_us * number))].into(),
                ..UsageSample::default()
            })
        }));
        let options = SizeOptions {
            swap_cost: Some(Nanos(10_000)),
            ..SizeOptions::default()
        };
        size(&items, options).with_swap.request
    };
    let hot = HOT as u64 * PAGE_SIZE;
    // A refault at each microsecond of 0.1 ms in a second: 1 ms. It is 0.1 %, and 1 % at most.
    let [idle, busy] = [need(100), need(10_000)];
    assert!(idle.bytes < hot && busy.bytes >= hot, "{idle:?}, {busy:?}");
    assert!(need(200).high_bytes >= hot);
}

#[test]
fn mapped_memory_that_others_are_charged_for_is_not_needed_in_the_group() {
    let charged = GroupCharge {
        anonymous: Some(0),
        mapped: Some(64 * PAGE_SIZE),
        page_cache: Some(64 * PAGE_SIZE),
        ..GroupCharge::default()
    };
    let report = size_of_group("/usr/lib/libc.so", |_| charged);
    let all = size(&items("/usr/lib/libc.so", |_| 0..0), SizeOptions::default());
    assert_eq!(report.memory.foreign_bytes, Some(448 * PAGE_SIZE));
    assert_eq!(report.memory.unmapped_peak_bytes, Some(0));
    let [own, all] = [report, all].map(|of| of.with_swap.request);
    assert!(own.bytes < all.bytes / 4, "{own:?} of {all:?}");
    assert_eq!((own.low_bytes, own.high_bytes), (0, all.high_bytes));
}

#[test]
fn what_the_kernel_counts_beside_samples_raises_the_numbers() {
    let charged = |number: u64| GroupCharge {
        total: Some(200 * MIB),
        kernel: Some(MIB),
        page_cache: Some(100 * MIB),
        peak: Some(if number < 30 { 201 * MIB } else { 203 * MIB }),
        swap_refaults: Some(0),
        file_refaults: Some(0),
        ..GroupCharge::default()
    };
    let enough = size_of_group("", charged);
    // Its machine has no swap.
    assert!(!enough.advice().1 && enough.advice().0 == enough.without_swap);
    // All of its kernel memory may belong to its page cache.
    let beside = enough.with_swap.request.bytes
        - size(&items("", |_| 0..0), SizeOptions::default())
            .with_swap
            .request
            .bytes;
    assert_eq!(beside, 100 * MIB);
    let room = enough.with_swap.limit.bytes - enough.with_swap.high.bytes;
    assert_eq!(room, 3 * MIB);
    // 4,000 pages of 11 us in a second are 4.4 % of its time.
    let short = size_of_group("", |number| GroupCharge {
        swap_refaults: Some(4000 * number),
        ..charged(number)
    });
    let lost = short.present_slowdown.expect("refaults were counted");
    assert!((0.04..0.05).contains(&lost), "{lost}");
    assert!(short.with_swap.request.bytes >= 200 * MIB);
    let mut text = Vec::new();
    isotherm_report::Render::text(&short, &isotherm_report::Style::default(), &mut text)
        .expect("text");
    let text = String::from_utf8(text).expect("text");
    assert!(
        text.contains("short of memory") && text.contains("without swap"),
        "{text}"
    );
}

/// 25,600 pages come in every other second; each takes 0.2 to 1.5 us to reclaim, which is 0.3 to 2 % of the time.
#[test]
fn page_cache_that_comes_and_goes_may_be_needed_for_the_time_that_its_reclaim_takes() {
    let need = |each: u64| {
        let charged = |number: u64| GroupCharge {
            total: Some(200 * MIB),
            page_cache: Some(number % 2 * each),
            ..GroupCharge::default()
        };
        size_of_group("", charged).with_swap.request
    };
    let (more, less) = (need(100 * MIB), need(20 * MIB));
    assert!(
        more.bytes < 150 * MIB && more.high_bytes == 200 * MIB,
        "{more:?}"
    );
    assert!(less.high_bytes < 50 * MIB, "{less:?}");
    assert_eq!(need(1000 * MIB).bytes, 200 * MIB);
}

#[test]
fn a_record_without_scans_has_no_size() {
    let size = Size::new(&Header::default(), Scope::default(), SizeOptions::default());
    assert_eq!(size.finish(), None);
}
