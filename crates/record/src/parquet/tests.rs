//! Tests of both conversions, and of damaged files.

use std::fs::File;
use std::io::{Read, Seek, Write};

use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{export, import};
use crate::convert::{Conversion, ConvertError};
use crate::item::Item;
use crate::pages::{PageBlock, PageSnapshot};
use crate::reader::Reader;
use crate::tests::{by_page, every_item, header, read, snapshot, write};

/// Returns a record as a Parquet file.
fn exported(record: &[u8]) -> (File, Conversion) {
    let mut table = tempfile::tempfile().expect("a file");
    let mut reader = Reader::open(record).expect("readable");
    let conversion = export(&mut reader, table.try_clone().expect("a file")).expect("exports");
    table.rewind().expect("rewinds");
    (table, conversion)
}

/// Returns a file of these bytes.
fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("written");
    file.rewind().expect("rewinds");
    file
}

#[test]
fn no_damage_makes_it_panic() {
    let (mut table, _) = exported(&write(&header(), &every_item()));
    let mut whole = Vec::new();
    table.read_to_end(&mut whole).expect("read");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
        // The import must return, with a result or an error.
        let _ = import(&file_of(&damaged), std::io::sink());
    }
}

fn there_and_back(record: &[u8]) -> Vec<u8> {
    let (table, exported) = exported(record);
    let mut back = Vec::new();
    let imported = import(&table, &mut back).expect("imports");
    assert_eq!(exported, imported);
    back
}

#[test]
fn nothing_is_lost_and_the_order_is_kept() {
    let record = write(&header(), &every_item());
    // Blocks listed page by page return as regions.
    assert_eq!(read(&there_and_back(&record)).0, by_page(every_item()));
}

#[test]
fn snapshots_that_lie_across_batches_are_whole_again() {
    let mut items = Vec::new();
    for tenth in 0..7 {
        let mut snapshot = snapshot(0, tenth, "[0,1)=1");
        snapshot.regions = vec![snapshot.regions[0]; 5000];
        for (page, region) in (0..).zip(&mut snapshot.regions) {
            region.range.start = page * 4096;
            region.range.end = (page + 1) * 4096;
        }
        items.push(Item::Snapshot(snapshot));
    }
    let record = write(&header(), &items);
    assert_eq!(read(&there_and_back(&record)).0, items);
}

#[test]
fn pages_stay_pages() {
    let mut header = header();
    header.settings = [("granularity".to_string(), "page".to_string())].into();
    let block = PageBlock {
        block: 2 << 20,
        present: [7; 8],
        accessed: [1; 8],
        ..PageBlock::default()
    };
    let pages = PageSnapshot {
        blocks: vec![block],
        ..PageSnapshot::default()
    };
    let items = vec![Item::Pages(pages.clone()), Item::Pages(pages)];
    let record = write(&header, &items);
    assert_eq!(read(&there_and_back(&record)).0, items);
}

/// Builds a Parquet file of `record` without the parts in `lost`: `metadata`, or a column.
fn rewritten(record: &[u8], lost: &[&str]) -> File {
    let (table, _) = exported(record);
    let builder = ParquetRecordBatchReaderBuilder::try_new(table).expect("is Parquet");
    let batches: Vec<RecordBatch> = builder
        .build()
        .expect("is Parquet")
        .map(|batch| {
            let batch = batch.expect("decodes");
            let names = batch.schema();
            let kept = names.fields().iter().enumerate();
            let kept = kept.filter(|(_, field)| !lost.contains(&field.name().as_str()));
            let kept: Vec<usize> = kept.map(|(index, _)| index).rev().collect();
            batch.project(&kept).expect("has these columns")
        })
        .collect();
    let mut output = tempfile::tempfile().expect("a file");
    let schema = batches[0].schema();
    let mut writer =
        ArrowWriter::try_new(output.try_clone().expect("a file"), schema, None).expect("a writer");
    for batch in &batches {
        writer.write(batch).expect("writes");
    }
    writer.close().expect("writes");
    output.rewind().expect("rewinds");
    output
}

#[test]
fn a_table_without_its_metadata_and_order_of_columns_comes_back_whole() {
    let record = write(&header(), &every_item());
    let mut back = Vec::new();
    let conversion = import(&rewritten(&record, &[]), &mut back).expect("imports");
    assert!(conversion.assumed.is_empty(), "{:?}", conversion.assumed);
    assert_eq!(read(&back).0, by_page(every_item()));
    let reader = Reader::open(&back[..]).expect("readable");
    assert_eq!(*reader.header(), header());
}

#[test]
fn a_table_of_bare_rows_says_what_it_lacks() {
    let record = write(&header(), &every_item());
    let bare = rewritten(&record, &["isotherm_header", "isotherm_items"]);
    let mut back = Vec::new();
    let conversion = import(&bare, &mut back).expect("imports");
    assert_eq!(conversion.assumed.len(), 2, "{:?}", conversion.assumed);
    let reader = Reader::open(&back[..]).expect("readable");
    assert_eq!(reader.header().operations, "unknown");
    let items: Vec<Item> = reader.map(|item| item.expect("whole")).collect();
    let snapshots = |items: &[Item]| -> Vec<Item> {
        let of_rows = |item: &&Item| matches!(item, Item::Snapshot(s) if !s.regions.is_empty());
        items.iter().filter(of_rows).cloned().collect()
    };
    assert_eq!(snapshots(&items), snapshots(&by_page(every_item())));
    let is_start = |item: &Item| matches!(item, Item::TargetStart(_));
    assert!(items.iter().any(is_start), "{items:?}");
    let lacks = rewritten(&record, &["nr_accesses"]);
    let error = import(&lacks, Vec::new()).expect_err("lacks a column");
    let said = "no column nr_accesses";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn a_record_without_rows_keeps_its_items() {
    let items: Vec<Item> = every_item()
        .into_iter()
        .filter(|item| !matches!(item, Item::Snapshot(_) | Item::Pages(_)))
        .collect();
    let record = write(&header(), &items);
    assert_eq!(read(&there_and_back(&record)).0, items);
}

#[test]
fn other_files_are_refused() {
    let file = file_of(b"PAR1 and then nothing");
    let error = import(&file, Vec::new()).expect_err("is no Parquet");
    assert!(matches!(error, ConvertError::Parquet(_)), "{error}");
}
