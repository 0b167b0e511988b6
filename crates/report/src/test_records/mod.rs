//! Test records, written as pictures: `[0,4)=9 [4,8)=?` is two regions of four pages each, the first
//! accessed at 9 of 10 checks, the second unknown. `@5` after a region is an age of 5 s.

pub(crate) mod machine;

use std::collections::BTreeMap;

use isotherm_engine::{
    AddressRange, Nanos, NodeMoves, PAGE_SIZE, RegionMemory, RegionSnapshot, Snapshot, TargetId,
};
use isotherm_policy::Refusal;
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, NodeFacts, ZoneFacts,
};
use isotherm_policy::guard::{Account, Guard, GuardLimits, GuardStatus};

use isotherm_record::item::{
    ActionSample, CompactionSample, FragmentationSample, GuardSample, Header, Item,
    KernelMigrations, Mapping, MappingChange, TargetStart, UsageSample,
};

/// The start of all sample records, a full second.
pub(crate) const STARTED: Nanos = Nanos(1_700_000_000_000_000_000);

/// Returns a time in milliseconds after the beginning.
pub(crate) fn at(ms: u64) -> Nanos {
    STARTED + Nanos::from_millis(ms)
}

/// Builds a snapshot of `target` from `from_ms` to `to_ms`.
pub(crate) fn snapshot_at(target: u32, from_ms: u64, to_ms: u64, picture: &str) -> Snapshot {
    let regions = picture.split_whitespace().map(region).collect();
    Snapshot::new(TargetId(target), (at(from_ms), at(to_ms)), 10, regions)
}

fn region(text: &str) -> RegionSnapshot {
    let (range, facts) = text.split_once('=').expect("[a,b)=n");
    let range = range.trim_matches(['[', ')']);
    let (start, end) = range.split_once(',').expect("[a,b)");
    let (accesses, age) = facts.split_once('@').unwrap_or((facts, "0"));
    let page = |text: &str| text.parse::<u64>().expect("a page") * PAGE_SIZE;
    let seconds: u64 = age.parse().expect("an age");
    let accesses = (accesses != "?").then(|| accesses.parse().expect("a count"));
    let region = RegionSnapshot::new(AddressRange::new(page(start), page(end)), accesses);
    region.aged(seconds as u32 * 10, Nanos::from_millis(seconds * 1000))
}

pub(crate) fn mapping(range: AddressRange, name: &str) -> Mapping {
    Mapping::private(range, name)
}

/// Builds a region without an access whose first `resident` bytes are memory.
pub(crate) fn idle_region(range: AddressRange, resident: u64) -> RegionSnapshot {
    RegionSnapshot::new(range, Some(0.0)).holding(RegionMemory::resident(resident))
}

pub(crate) fn header() -> Header {
    Header {
        writer: "isotherm test".into(),
        host: "lab".into(),
        kernel: "6.12.0".into(),
        command: vec!["redis-server".into()],
        started: STARTED,
        operations: "vaddr".into(),
        ..Header::default()
    }
}

/// Builds a record of a process with a heap, an anonymous area and a stack. The heap's first half is hot from the
/// beginning, its second half from 2 s on. The area is idle; the stack's use is unknown at first.
pub(crate) fn small_record() -> Vec<Item> {
    let mapping = |start: u64, end: u64, name: &str| {
        let range = AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
        mapping(range, name)
    };
    let mappings = vec![
        mapping(16, 20, "/usr/bin/redis-server"),
        mapping(20, 32, "[heap]"),
        mapping(64, 96, ""),
        mapping(9_000, 9_004, "[stack]"),
    ];
    let start = TargetStart::new(STARTED, TargetId(0), 42, "redis-server");
    let mut items = vec![
        Item::TargetStart(start),
        Item::Mappings(MappingChange::adding(STARTED, TargetId(0), mappings)),
    ];
    for second in 0..8_u64 {
        let later = if second < 2 { "0" } else { "6" };
        let stack = if second < 4 { "?" } else { "1" };
        let picture = format!(
            "[16,24)=10@{second} [24,32)={later}@2 [64,96)=0@{second} [9000,9004)={stack}@1"
        );
        items.push(Item::Usage(UsageSample {
            time: at(second * 1000),
            rss: [(0, (40 + second) * PAGE_SIZE)].into(),
            swap: [(0, 0)].into(),
            system_total: 1000 * PAGE_SIZE,
            system_free: (500 - second) * PAGE_SIZE,
            system_available: 700 * PAGE_SIZE,
            ..UsageSample::default()
        }));
        let snapshot = snapshot_at(0, second * 1000, (second + 1) * 1000, &picture);
        items.push(Item::Snapshot(snapshot));
    }
    items
}

/// Builds a record of a node whose free memory is used up by huge pages until it is compacted, twice.
pub(crate) fn fragmentation_record() -> Vec<Item> {
    let mut controller = CompactionController::new(CompactionAttributes::default());
    let mut items = Vec::new();
    for second in 0..10_u64 {
        let huge_pages = [8, 6, 4, 2, 0][second as usize % 5];
        let facts = |free_huge: u64| {
            let normal = [9216, 512, 0, 0, 0, 0, 0, 0, 0, free_huge, 0];
            NodeFacts {
                node: 0,
                zones: vec![
                    zone("DMA", 4_000, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3]),
                    zone("Normal", 60_000, normal),
                ],
                kswapd_active: false,
            }
        };
        let now = at(second * 1000);
        let before = facts(huge_pages);
        let decision = controller.check(now, &before);
        items.push(sample(now, &controller, before));
        if let CompactionDecision::Compact { .. } = decision {
            let end = now + Nanos::from_millis(200);
            controller.done(end, &facts(8));
            items.push(Item::Compaction(CompactionSample {
                time: end,
                node: 0,
                score_before: 93.75,
                score_after: 67.0,
                ended: "at_low".into(),
                took: Nanos::from_millis(200),
                cpu: Nanos::from_millis(150),
                migrate_scanned: 8192,
                free_scanned: 16384,
                isolated: 4096,
            }));
            items.push(sample(end, &controller, facts(8)));
        }
    }
    items
}

fn zone(name: &str, present_pages: u64, free_blocks: [u64; 11]) -> ZoneFacts {
    ZoneFacts {
        name: name.into(),
        present_pages,
        free_blocks,
        contended: false,
    }
}

fn sample(time: Nanos, controller: &CompactionController, facts: NodeFacts) -> Item {
    Item::Fragmentation(FragmentationSample {
        time,
        attributes: *controller.attributes(),
        facts,
        status: controller.status(),
    })
}

/// Builds the items of a demotion: 3 MiB move to node 1, and 1 MiB moves back.
fn demotion(second: u64) -> [Item; 2] {
    let mut moved = NodeMoves::default();
    moved.add(0, 1, 3 << 20);
    moved.add(1, 0, 1 << 20);
    let counters = |pages| BTreeMap::from([("pgdemote_kswapd".to_owned(), pages)]);
    [
        Item::Action(ActionSample {
            time: at(1000 * second),
            scheme: 1,
            action: "migrate_cold".into(),
            nr_tried: 1,
            sz_tried: 4 << 20,
            sz_applied: 4 << 20,
            took: Nanos::from_millis(9),
            moved,
            ..ActionSample::default()
        }),
        Item::Usage(UsageSample {
            time: at(1000 * second),
            migrations: KernelMigrations {
                machine: counters(100 + second),
                nodes: BTreeMap::from([(0, counters(60 + second)), (1, counters(40))]),
            },
            ..UsageSample::default()
        }),
    ]
}

/// Builds a record of a scheme that acts for 20 s, another one, and their guard, which closes once. The other scheme
/// demotes now and then, while the kernel does so as well.
pub(crate) fn actions_record() -> Vec<Item> {
    let mut items = Vec::new();
    for second in 0..=20 {
        items.push(Item::Action(ActionSample {
            time: at(1000 * second),
            action: "pageout".into(),
            nr_tried: 3,
            sz_tried: 12 << 20,
            sz_applied: 10 << 20,
            refused: [(Refusal::Shared, 2 << 20)].into(),
            took: Nanos::from_millis(15),
            cpu: Nanos::from_millis(12),
            ..ActionSample::default()
        }));
        if second % 5 == 0 {
            items.extend(demotion(second));
        }
        let lost = Nanos::from_millis(8 * second);
        items.push(Item::Guard(GuardSample {
            time: at(1000 * second),
            context: None,
            status: GuardStatus {
                is_open: second != 7,
                nr_stops: u64::from(second >= 7),
                limit_ratio: Some(second as f64 / 20.0),
                bytes_per_s: Some(16 << 20),
                since_start: Account {
                    lost,
                    allowed: Nanos::from_millis(10 * second),
                },
                ..Guard::new(GuardLimits::default()).status()
            },
        }));
    }
    items
}
