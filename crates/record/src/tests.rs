//! Tests of a record: writing and reading, cuts at any byte, damage, and malice.
//!
//! One record serves most tests ([`every_item`]). It has every kind of item, in an order in which each must stay behind
//! the one before it.

pub(crate) mod hostile;
mod pages;
mod table;

use std::io::{self, Cursor, Write};

use arrow_schema::DataType;
use isotherm_engine::monitor::bits;
use isotherm_engine::{
    AddressRange, BLOCK_SIZE, BlockPages, Cost, Nanos, RegionMemory, RegionSnapshot, Snapshot,
    TargetId,
};
use isotherm_policy::compaction::{CompactionAttributes, CompactionStatus, NodeFacts, ZoneFacts};
use proptest::prelude::*;

use crate::columns::Kind;
use crate::reader::check_item;
use crate::writer::MAX_ROWS_HELD;
use crate::{
    CompactionSample, CostSample, FragmentationSample, Header, Item, Mapping, MappingChange,
    Reader, RecordError, TargetExit, TargetStart, UsageSample, Writer,
};

const SECOND: u64 = 1_000_000_000;

pub(crate) fn header() -> Header {
    Header {
        writer: "isotherm test".into(),
        host: "here".into(),
        kernel: "6.1.0".into(),
        command: vec!["redis-server".into(), "--port".into(), "1".into()],
        started: Nanos(10 * SECOND),
        operations: "vaddr".into(),
        sample_interval: Nanos::from_millis(5),
        aggregation_interval: Nanos::from_millis(100),
        update_interval: Nanos::from_millis(1000),
        settings: [("cpu_budget".to_string(), "1 %".to_string())].into(),
    }
}

/// Builds a snapshot from a picture, e.g. `"[0,4)=9@2 [4,8)=? [8,16)=3@1:4/2/1/3"`. Each region has pages, accesses
/// (`?` for unknown) and age. Pages resident, touched, unknown and swapped out follow where they are known.
pub(crate) fn snapshot(target: u32, tenth: u64, picture: &str) -> Snapshot {
    let regions = picture.split_whitespace().map(|text| {
        let (range, rest) = text[1..].split_once(")=").expect("[a,b)=n@age");
        let (rest, memory) = match rest.split_once(':') {
            Some((rest, parts)) => (rest, Some(memory(parts))),
            None => (rest, None),
        };
        let (start, end) = range.split_once(',').expect("a,b");
        let (accesses, age) = rest.split_once('@').unwrap_or((rest, "0"));
        let age: u32 = age.parse().expect("an age");
        let page = |text: &str| text.parse::<u64>().expect("a page") * 4096;
        RegionSnapshot {
            range: AddressRange::new(page(start), page(end)),
            nr_accesses: accesses.parse().ok(),
            age,
            age_ns: Nanos::from_millis(100 * u64::from(age)),
            memory,
        }
    });
    let start = Nanos(10 * SECOND) + Nanos::from_millis(100 * tenth);
    let times = (start, start + Nanos::from_millis(100));
    Snapshot::new(TargetId(target), times, 20, regions.collect())
}

fn memory(parts: &str) -> RegionMemory {
    let pages = |text: &str| text.parse::<u64>().expect("pages") * 4096;
    let [resident, touched, unknown, swapped] = parts.split('/').map(pages).collect::<Vec<_>>()[..]
    else {
        panic!("resident/touched/unknown/swapped")
    };
    RegionMemory {
        resident,
        touched,
        unknown,
        swapped,
    }
}

/// Builds the second block: every third page of it was touched, and one page is unknown.
fn block() -> BlockPages {
    let mut touched = bits::NONE;
    (0..512)
        .step_by(3)
        .for_each(|page| bits::set(&mut touched, page));
    BlockPages {
        block: BLOCK_SIZE,
        resident: [u64::MAX; 8],
        touched,
        unknown: [2, 0, 0, 0, 0, 0, 0, 0],
        untouched_for: Nanos(7 * SECOND),
        ..BlockPages::default()
    }
}

/// Converts blocks that items list page by page to regions.
pub(crate) fn by_page(items: Vec<Item>) -> Vec<Item> {
    let items = items.into_iter().map(|item| match item {
        Item::Snapshot(snapshot) => Item::Snapshot(snapshot.by_page()),
        other => other,
    });
    items.collect()
}

/// Builds every kind of item of a record of regions.
pub(crate) fn every_item() -> Vec<Item> {
    let time = Nanos(10 * SECOND);
    let target = TargetId(0);
    let range = |start, end| AddressRange::new(start, end);
    let heap = Mapping::private(range(4096, 8 * 4096), "[heap]");
    vec![
        Item::TargetStart(TargetStart::new(time, target, 12, "redis-server")),
        Item::Mappings(MappingChange {
            removed: vec![range(0, 4096)],
            ..MappingChange::adding(time, target, vec![heap])
        }),
        Item::Snapshot(snapshot(
            0,
            0,
            "[0,4)=9@2 [4,8)=? [9,20)=0.25@7:6/3/1/2 [20,30)=0@9:0/0/0/10",
        )),
        Item::Snapshot(Snapshot {
            blocks: vec![block()],
            ..snapshot(2, 0, "[512,1024)=3@1:512/171/1/0")
        }),
        Item::Snapshot(snapshot(1, 0, "[0,4)=0@3")),
        Item::Snapshot(snapshot(0, 1, "")),
        Item::Usage(UsageSample {
            time,
            rss: [(0, 4096), (1, 8192)].into(),
            swap: [(0, 0)].into(),
            system_total: 1 << 34,
            system_free: 1 << 33,
            system_available: 1 << 33,
            ..UsageSample::default()
        }),
        Item::Cost(CostSample {
            time,
            cost: Cost::default(),
            sample_interval: Nanos::from_millis(5),
            aggregation_interval: Nanos::from_millis(100),
            monitor_rss: 1 << 24,
            unknown: 3,
        }),
        Item::Snapshot(snapshot(0, 2, "[0,4)=9@3 [4,8)=?")),
        fragmentation(time),
        compaction(time),
        Item::TargetExit(TargetExit {
            time,
            target,
            exit_code: None,
            signal: Some(9),
        }),
        Item::Note {
            time,
            text: "stopped by SIGINT \u{2013} \"quoted\"".into(),
        },
        Item::Snapshot(snapshot(1, 3, "[0,4)=20@4")),
    ]
}

fn fragmentation(time: Nanos) -> Item {
    Item::Fragmentation(FragmentationSample {
        time,
        attributes: CompactionAttributes::default(),
        facts: NodeFacts {
            zones: vec![ZoneFacts::default()],
            ..NodeFacts::default()
        },
        status: CompactionStatus::default(),
    })
}

fn compaction(time: Nanos) -> Item {
    Item::Compaction(CompactionSample {
        time,
        node: 1,
        score_before: 93.75,
        score_after: 80.0,
        ended: "at_low".into(),
        took: Nanos(SECOND),
        cpu: Nanos(SECOND / 2),
        migrate_scanned: 8192,
        free_scanned: 512,
        isolated: 32,
    })
}

pub(crate) fn write(header: &Header, items: &[Item]) -> Vec<u8> {
    let mut writer = Writer::create(Vec::new(), header).expect("the header is writable");
    for item in items {
        writer.write(item).expect("the item is writable");
    }
    writer.finish().expect("memory takes everything")
}

pub(crate) fn read(bytes: &[u8]) -> (Vec<Item>, Reader<Cursor<Vec<u8>>>) {
    let mut reader = Reader::open(Cursor::new(bytes.to_vec())).expect("the header is readable");
    let items = reader.by_ref().collect::<Result<_, _>>();
    (items.expect("the items are readable"), reader)
}

#[test]
fn every_kind_of_item_comes_back_in_order() {
    let bytes = write(&header(), &every_item());
    let (items, reader) = read(&bytes);
    assert_eq!(items, every_item());
    assert_eq!(reader.header(), &header());
    assert_eq!(reader.truncated(), None);
    assert!(!reader.is_page_record());
}

/// The version before regions had memory wrote `tests/version-1.isotherm`.
#[test]
fn records_of_the_first_version_are_read() {
    let (items, reader) = read(include_bytes!("tests/version-1.isotherm"));
    assert_eq!(reader.header(), &header());
    let mut expected = every_item();
    expected.retain(|item| !matches!(item, Item::Snapshot(s) if !s.blocks.is_empty()));
    for item in &mut expected {
        if let Item::Snapshot(snapshot) = item {
            snapshot.regions.retain(|r| r.range.start < 20 * 4096);
            snapshot.regions.iter_mut().for_each(|r| r.memory = None);
        }
    }
    assert_eq!(items, expected);
}

#[test]
fn snapshots_stand_alone_when_only_they_are_asked_for() {
    let bytes = write(&header(), &every_item());
    let mut reader = Reader::open(&bytes[..]).expect("readable");
    let targets = reader.snapshots().map(|s| s.expect("readable").target.0);
    assert_eq!(targets.collect::<Vec<_>>(), [0, 2, 1, 0, 0, 1]);
}

#[test]
fn a_record_cut_at_any_byte_reads_up_to_its_last_whole_message() {
    let items = every_item();
    let bytes = write(&header(), &items);
    let mut reader = Reader::open(&bytes[..]).expect("readable");
    let mut whole = 0;
    for length in 0..bytes.len() {
        reader = match Reader::open(&bytes[..length]) {
            Ok(reader) => reader,
            Err(RecordError::NotARecord(_)) if length == 0 => continue,
            Err(RecordError::NoHeader { length: said }) => {
                assert_eq!(said, length as u64);
                continue;
            }
            Err(error) => panic!("cut at {length}: {error}"),
        };
        let got: Vec<Item> = reader
            .by_ref()
            .map(|item| item.unwrap_or_else(|error| panic!("cut at {length}: {error}")))
            .collect();
        assert!(items.starts_with(&got), "cut at {length}");
        assert!(got.len() >= whole, "a longer record holds no less");
        whole = got.len();
        let truncation = reader.truncated().expect("it has no end mark");
        assert_eq!(truncation.bytes_read + truncation.bytes_lost, length as u64);
    }
    assert_eq!(whole, items.len(), "only the end mark was missing");
    let said = reader.truncated().expect("cut").to_string();
    assert!(said.contains("not finished"), "{said}");
}

#[test]
fn a_file_that_grew_but_was_not_written_ends_where_its_zeros_begin() {
    let mut bytes = write(&header(), &every_item());
    bytes.truncate(bytes.len() - 8);
    let length = bytes.len() as u64;
    bytes.resize(bytes.len() + 100_000, 0);
    let (items, reader) = read(&bytes);
    assert_eq!(items, every_item());
    assert_eq!(reader.truncated().expect("cut").bytes_read, length);
}

/// A counter of the writes to the file: each call would be one write(2).
#[derive(Default)]
struct Calls {
    writes: Vec<Vec<u8>>,
    /// Number of bytes after which writes fail, in the middle of a write if necessary.
    room: Option<usize>,
}

impl Write for Calls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = bytes.len();
        if let Some(room) = &mut self.room {
            taken = taken.min(*room);
            *room -= taken;
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.writes.push(bytes[..taken].to_vec());
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_flush_is_one_write_of_whole_messages() {
    let mut writer = Writer::create(Calls::default(), &header()).expect("writable");
    let mut written = Vec::new();
    for item in every_item() {
        writer.write(&item).expect("writable");
        written.push(item);
        let before = writer.output.writes.len();
        writer.flush().expect("writable");
        let calls = &writer.output.writes;
        let nr_calls = calls.len() - before;
        assert!(nr_calls <= 1, "{nr_calls} writes in one flush");
        let (items, reader) = read(&calls.concat());
        assert_eq!(items, written, "after a flush nothing is held back");
        assert_eq!(reader.truncated().expect("unfinished").bytes_lost, 0);
    }
}

#[test]
fn a_killed_recorder_leaves_whole_messages() {
    // A SIGKILL between two writes leaves any prefix of them; within one, that is a cut file.
    let mut writer = Writer::create(Calls::default(), &header()).expect("writable");
    let snapshots: Vec<Item> = (0..100)
        .map(|tenth| Item::Snapshot(snapshot(0, tenth, "[0,4)=9 [4,8)=?")))
        .collect();
    for item in &snapshots {
        writer.write(item).expect("writable");
    }
    let calls = &writer.output.writes;
    for killed_after in 1..=calls.len() {
        let (items, reader) = read(&calls[..killed_after].concat());
        assert!(snapshots.starts_with(&items));
        assert_eq!(reader.truncated().expect("unfinished").bytes_lost, 0);
    }
    let (items, _) = read(&calls.concat());
    let held = snapshots.len() - items.len();
    assert!(held <= 11, "{held} snapshots of 100 ms were held back");
}

#[test]
fn a_full_disk_closes_the_writer_and_leaves_a_readable_record() {
    let whole = write(&header(), &every_item()).len();
    let head = write(&header(), &[]).len() - 8;
    for room in (head..whole).step_by(97) {
        let disk = Calls {
            room: Some(room),
            ..Calls::default()
        };
        let mut writer = Writer::create(disk, &header()).expect("the header has room");
        let items = every_item();
        let failed = items.iter().find_map(|item| writer.write(item).err());
        if failed.is_none() {
            continue;
        }
        assert!(matches!(failed, Some(RecordError::Write { .. })));
        let again = writer.write(&every_item()[0]);
        assert!(matches!(again, Err(RecordError::Closed)), "{again:?}");
        let (items, _) = read(&writer.output.writes.concat());
        assert!(every_item().starts_with(&items));
    }
}

#[test]
fn rows_are_held_back_within_bounds() {
    let big = |tenth| {
        let pages = (0..6000).map(|i| format!("[{},{})=1", 2 * i, 2 * i + 1));
        let picture: Vec<String> = pages.collect();
        Item::Snapshot(snapshot(0, tenth, &picture.join(" ")))
    };
    let items: Vec<Item> = (0..8).map(big).collect();
    let mut writer = Writer::create(Calls::default(), &header()).expect("writable");
    for (n, item) in items.iter().enumerate() {
        writer.write(item).expect("writable");
        let (there, _) = read(&writer.output.writes.concat());
        assert!((n + 1 - there.len()) * 6000 <= MAX_ROWS_HELD);
    }
    let bytes = writer.finish().expect("writable").writes.concat();
    assert_eq!(read(&bytes).0, items);
}

#[test]
fn what_a_record_cannot_hold_is_refused_by_name() {
    let mut writer = Writer::create(Vec::new(), &header()).expect("writable");
    let mut bad = snapshot(0, 0, "[0,4)=9");
    bad.regions[0].nr_accesses = Some(f32::NAN);
    let refused = |result: Result<(), RecordError>, word: &str| {
        let said = result.expect_err("refused").to_string();
        assert!(said.contains(word), "{said}");
    };
    refused(writer.write(&Item::Snapshot(bad)), "NaN");
    for picture in ["[0,4)=9:5/0/0/0", "[0,4)=9:3/0/0/2", "[0,4)=9:2/2/1/0"] {
        let bad = Item::Snapshot(snapshot(0, 0, picture));
        refused(writer.write(&bad), "resident");
    }
    refused(writer.write(&pages::scan(0, "4")), "granularity");
    // The writer kept nothing of it.
    let good = Item::Snapshot(snapshot(0, 0, "[0,4)=9"));
    writer.write(&good).expect("writable");
    assert_eq!(read(&writer.finish().expect("memory")).0, [good]);
}

/// Generates memory that `length` bytes of addresses can hold.
fn memory_within(length: u64, cuts: [u64; 3]) -> RegionMemory {
    let resident = cuts[0] % (length + 1);
    let touched = cuts[1] % (resident + 1);
    RegionMemory {
        resident,
        touched,
        unknown: (resident - touched) / 2,
        swapped: cuts[2] % (length - resident + 1),
    }
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let region = (
        0..1_u64 << 47,
        1..1_u64 << 40,
        proptest::option::of(0_f32..1e6),
        any::<u32>(),
        any::<u64>(),
        proptest::option::of(proptest::array::uniform3(any::<u64>())),
    );
    let regions = proptest::collection::vec(region, 0..40);
    (
        any::<u32>(),
        0..i64::MAX as u64,
        0..i64::MAX as u64,
        any::<u32>(),
        regions,
    )
        .prop_map(|(target, start, end, nr_samples, regions)| Snapshot {
            target: TargetId(target),
            start: Nanos(start),
            end: Nanos(end),
            nr_samples,
            regions: regions
                .into_iter()
                .map(
                    |(start, length, nr_accesses, age, age_ns, memory)| RegionSnapshot {
                        range: AddressRange::new(start, start + length),
                        nr_accesses,
                        age,
                        age_ns: Nanos(age_ns),
                        memory: memory.map(|cuts| memory_within(length, cuts)),
                    },
                )
                .collect(),
            ..Snapshot::default()
        })
}

proptest! {
    #[test]
    fn any_snapshots_and_notes_come_back(
        parts in proptest::collection::vec((any_snapshot(), proptest::option::of(".*")), 0..20),
    ) {
        let mut items = Vec::new();
        for (snapshot, note) in parts {
            let time = snapshot.end;
            items.push(Item::Snapshot(snapshot));
            items.extend(note.map(|text| Item::Note { time, text }));
        }
        prop_assert!(items.iter().all(|item| check_item(item).is_ok()));
        let bytes = write(&header(), &items);
        prop_assert_eq!(read(&bytes).0, items);
    }
}

#[test]
fn the_documentation_names_every_column() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../../docs/reference/record.md"));
    let text = text.expect("docs/reference/record.md");
    for kind in [Kind::Regions, Kind::Pages] {
        for field in kind.fields() {
            let kind = match field.data_type() {
                DataType::Timestamp(..) => "timestamp, ns, UTC".to_string(),
                other => other.to_string(),
            };
            let is_nullable = field.is_nullable();
            let null = if is_nullable { ", nullable" } else { "" };
            let row = format!("| `{}` | {kind}{null} | ", field.name());
            assert!(text.contains(&row), "docs/reference/record.md lacks: {row}");
        }
    }
}
