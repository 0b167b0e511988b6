//! Records of several processes are replayed as such.

use isotherm_engine::{AddressRange, PAGE_SIZE};
use isotherm_record::{Mapping, MappingChange, PageBlock, PageSnapshot, TargetStart};

use super::*;

fn second(n: u64) -> Nanos {
    Nanos(n * 1_000_000_000)
}

/// A process of one block, of which so many pages are there, that is scanned in these seconds.
fn process(target: u32, name: &str, pages: u32, scans: std::ops::Range<u64>) -> Vec<Item> {
    let start = 0x7f00_0000_0000;
    let target = TargetId(target);
    let mut block = PageBlock {
        block: start,
        ..PageBlock::default()
    };
    for page in 0..pages as usize {
        block.present[page / 64] |= 1 << (page % 64);
    }
    let scan = |n: u64| {
        Item::Pages(PageSnapshot {
            target,
            start: second(n),
            end: second(n + 1),
            blocks: vec![block],
        })
    };
    let mapping = Mapping {
        range: AddressRange::new(start, start + u64::from(pages.max(1)) * PAGE_SIZE),
        permissions: "rw-p".into(),
        name: "[heap]".into(),
        unreclaimable: None,
    };
    let begins = [
        Item::TargetStart(TargetStart {
            target,
            name: name.into(),
            ..TargetStart::default()
        }),
        Item::Mappings(MappingChange {
            target,
            added: vec![mapping],
            ..MappingChange::default()
        }),
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
    let least = replay
        .processes
        .last()
        .map(|(_, process)| process.mapped_bytes());
    assert_eq!(least, Some(7 * PAGE_SIZE), "six smaller ones are left out");
    assert!(
        replay.notes[0].starts_with("of 70 processes in the trace the 64 with most memory"),
        "{:?}",
        replay.notes
    );
}

#[test]
fn nothing_in_memory_is_said() {
    let error =
        Replay::of(process(0, "empty", 0, 0..2).into_iter()).expect_err("nothing to replay");
    assert_eq!(error.to_string(), "nothing of it was in memory");
    assert!(Replay::of(std::iter::empty()).is_err());
}
