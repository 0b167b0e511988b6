//! Tests of a record as Arrow tables, which must hold the items' data and nothing else.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch, RecordBatchReader};
use isotherm_engine::Snapshot;

use super::{by_page, every_item, header, write};
use crate::input::RecordFile;
use crate::table::{Batches, RecordTable, regions};
use crate::{Item, Reader, RecordError};

fn batches(table: RecordTable) -> RecordBatch {
    let bytes = write(&header(), &every_item());
    let reader = Reader::open(&bytes[..]).expect("a record");
    let mut batches = Batches::new(reader, table).expect("it has that table");
    let batch = batches.next().expect("one batch").expect("no error");
    assert_eq!(batch.schema(), batches.schema());
    assert!(batches.next().is_none());
    batch
}

fn snapshots() -> Vec<Snapshot> {
    let items = by_page(every_item()).into_iter();
    let snapshots = items.filter_map(|item| match item {
        Item::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    });
    snapshots.collect()
}

#[test]
fn regions_are_those_of_the_snapshots_and_the_unknown_is_null() {
    let table = batches(RecordTable::Regions);
    let snapshots = snapshots();
    let all: Vec<_> = snapshots.iter().flat_map(|s| &s.regions).collect();
    assert_eq!(table.num_rows(), all.len());
    let column = |name| table.column_by_name(name).expect("a column");
    let starts = column("start").as_primitive::<UInt64Type>();
    let accesses = column("nr_accesses").as_primitive::<Float32Type>();
    let resident = column("resident").as_primitive::<UInt64Type>();
    for (row, region) in all.iter().enumerate() {
        assert_eq!(starts.value(row), region.range.start);
        let known = accesses.is_valid(row).then(|| accesses.value(row));
        assert_eq!(known, region.nr_accesses);
        let known = resident.is_valid(row).then(|| resident.value(row));
        assert_eq!(known, region.memory.map(|memory| memory.resident));
    }
    let numbers = column("snapshot").as_primitive::<UInt32Type>();
    let first = regions(0, &snapshots[0]);
    assert_eq!(numbers.values()[..first.num_rows()], [0, 0, 0, 0]);
    let (part, whole) = (first.column(4), table.column(4).slice(0, 4));
    assert_eq!(part.to_data(), whole.to_data());
}

#[test]
fn a_snapshot_without_regions_is_a_row_all_the_same() {
    let table = batches(RecordTable::Snapshots);
    let snapshots = snapshots();
    assert_eq!(table.num_rows(), snapshots.len());
    let column = |name| table.column_by_name(name).expect("a column");
    let touched = column("touched").as_primitive::<UInt64Type>();
    let regions = column("regions").as_primitive::<UInt32Type>();
    for (row, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(touched.value(row), snapshot.totals().touched);
        assert_eq!(regions.value(row) as usize, snapshot.regions.len());
    }
    assert!(regions.values().contains(&0));
}

#[test]
fn items_are_told_by_kind_and_parse_again() {
    let table = batches(RecordTable::Items);
    let mut others = every_item();
    others.retain(|item| !matches!(item, Item::Snapshot(_)));
    assert_eq!(table.num_rows(), others.len());
    let json = table.column_by_name("item").expect("a column");
    let json = json.as_string::<i32>();
    for (row, item) in others.iter().enumerate() {
        let whole = format!("{{\"{}\":{}}}", item.kind(), json.value(row));
        let read: Item = serde_json::from_str(&whole).expect("an item");
        assert_eq!(read, *item);
    }
}

#[test]
fn regions_are_no_pages() {
    let bytes = write(&header(), &every_item());
    let reader = Reader::open(&bytes[..]).expect("a record");
    let refused = Batches::new(reader, RecordTable::Pages);
    assert!(matches!(refused.err(), Some(RecordError::NoPages)));
}

#[test]
fn a_file_is_read_by_several_from_the_beginning() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("record");
    std::fs::write(&path, write(&header(), &every_item())).expect("it is ours");
    let file = RecordFile::open(&path).expect("a record");
    // Its name may go to another file.
    std::fs::remove_file(&path).expect("it is ours");
    let mut readers = [(); 2].map(|()| file.reader().expect("a record"));
    for _ in 0..3 {
        let [first, second] = readers.each_mut().map(Iterator::next);
        assert_eq!(first.expect("one").ok(), second.expect("one").ok());
    }
    assert!(RecordFile::open(&path).is_err());
}
