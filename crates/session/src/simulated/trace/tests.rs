//! Replay of records with several processes.

use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, PAGE_SIZE};
use isotherm_policy::Unreclaimable;
use isotherm_record::{Mapping, MappingChange, PageBlock, PageSnapshot, TargetStart};

use isotherm_sim::machine::Use;

use super::*;

fn second(n: u64) -> Nanos {
    Nanos(n * 1_000_000_000)
}

/// Returns the items of a process with `pages` resident pages that is scanned in these seconds.
fn process(target: u32, name: &str, pages: u32, scans: std::ops::Range<u64>) -> Vec<Item> {
    let start = 0x7f00_0000_0000;
    let target = TargetId(target);
    let block = |nr: u32| PageBlock {
        block: start + u64::from(nr) * BLOCK_SIZE,
        present: bits::mask_of(0..(pages - nr * 512).min(512) as usize),
        ..PageBlock::default()
    };
    let blocks: Vec<PageBlock> = (0..pages.div_ceil(512).max(1)).map(block).collect();
    let scan = |n: u64| {
        let times = (second(n), second(n + 1));
        Item::Pages(PageSnapshot::new(target, times, blocks.clone()))
    };
    let range = AddressRange::new(start, start + u64::from(pages.max(1)) * PAGE_SIZE);
    let heap = vec![Mapping::private(range, "[heap]")];
    let begins = [
        Item::TargetStart(TargetStart::new(Nanos(0), target, 0, name)),
        Item::Mappings(MappingChange::adding(Nanos(0), target, heap)),
    ];
    begins.into_iter().chain(scans.map(scan)).collect()
}

#[test]
fn all_processes_of_a_record_are_replayed() {
    let items = [
        process(0, "sh", 10, 5..9),
        process(1, "program", 500, 5..9),
        process(2, "late", 300, 7..9),
        process(3, "nothing", 0, 5..9),
    ];
    let replay = Replay::of(items.into_iter().flatten()).expect("it can be replayed");
    let seen: Vec<_> = { replay.processes.iter() }
        .map(|(at, process)| (at.0 / 1_000_000_000, process.name.as_str(), process.work))
        .collect();
    let wanted = [
        (0, "program", Some(second(4))),
        (0, "sh", Some(second(4))),
        (2, "late", Some(second(2))),
    ];
    assert_eq!(seen, wanted);
    assert_eq!(replay.program(), "program and 2 more");
}

#[test]
fn of_too_many_processes_the_largest_are_replayed() {
    let nr = PROCESSES_MAX as u32 + 6;
    let items = (0..nr).flat_map(|target| process(target, "worker", target + 1, 0..2));
    let replay = Replay::of(items).expect("it can be replayed");
    assert_eq!(replay.processes.len(), PROCESSES_MAX);
    let (_, least) = replay.processes.last().expect("many");
    let bytes = least.mapped_bytes();
    assert_eq!(bytes, 7 * PAGE_SIZE, "six smaller ones are left out");
    let said = "of 70 processes in the trace the 64 with most memory";
    assert!(replay.notes[0].starts_with(said), "{:?}", replay.notes);
}

#[test]
fn unreclaimable_mappings_are_replayed_as_such() {
    let items = process(0, "locked", 4, 0..2).into_iter().map(|mut item| {
        if let Item::Mappings(change) = &mut item {
            change.added[0].unreclaimable = Some(Unreclaimable::Locked);
        }
        item
    });
    let replay = Replay::of(items).expect("it can be replayed");
    let area = &replay.processes[0].1.areas[0];
    assert_eq!(area.purpose, Use::Unreclaimable(Unreclaimable::Locked));
}

#[test]
fn one_block_in_two_stands_for_all() {
    let items = process(0, "program", 64 * 512, 0..3);
    let replay = Replay::of(items.into_iter()).expect("it can be replayed");
    let whole = replay.largest().expect("one").mapped_bytes();
    let (some, times) = replay.one_in(2).expect("some blocks are left");
    let kept = some.largest().expect("one").mapped_bytes();
    assert_eq!(2 * kept, whole);
    assert!((times - 2.0).abs() < 1e-9, "{times}");
}

#[test]
fn nothing_in_memory_is_said() {
    let error =
        Replay::of(process(0, "empty", 0, 0..2).into_iter()).expect_err("nothing to replay");
    assert_eq!(error.to_string(), "nothing of it was in memory");
    assert!(Replay::of(std::iter::empty()).is_err());
}
