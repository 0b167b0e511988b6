//! Tests of damaged and malicious records: never a panic, never much memory, an error that names the place.

use proptest::prelude::*;

use super::pages::{page_header, scan};
use super::{by_page, every_item, header, snapshot, write};
use crate::frame::{END_OF_STREAM, MAX_BODY, MAX_METADATA};
use crate::schema::{CHECKSUM_KEY, HEADER_KEY, VERSION_KEY};
use crate::{Header, Item, Reader, RecordError};

/// Reads to the end, and returns items and error.
fn exhaust(bytes: &[u8]) -> (Vec<Item>, Option<RecordError>) {
    let mut reader = match Reader::open(bytes) {
        Ok(reader) => reader.replay_pages(),
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut items = Vec::new();
    for item in reader.by_ref() {
        match item {
            Ok(item) => items.push(item),
            Err(error) => {
                assert!(reader.next().is_none(), "after an error it ends");
                return (items, Some(error));
            }
        }
    }
    (items, None)
}

fn refused(bytes: &[u8], word: &str) {
    let said = exhaust(bytes).1.expect("an error").to_string();
    assert!(said.contains(word), "{said}");
}

/// Returns the offsets of a record's messages, the schema first.
fn message_starts(bytes: &[u8]) -> Vec<usize> {
    let words = (0..bytes.len() - 4).step_by(8);
    words.filter(|at| bytes[*at..at + 4] == [0xff; 4]).collect()
}

/// Returns `bytes` with every `from` replaced by the equally long `to`.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    bytes
}

/// Returns a record whose messages have no checksum, like those of another Arrow writer: the other checks must suffice.
fn unchecked(bytes: &[u8]) -> Vec<u8> {
    replaced(bytes, CHECKSUM_KEY, "isotherm.-----")
}

#[test]
fn what_is_no_record_is_named() {
    refused(b"", "empty");
    let json = b"[{\"kdamond_idx\": 0, \"context_idx\": 0}]";
    refused(json, "not an isotherm record");
    refused(&END_OF_STREAM, "without a schema");
    let record = write(&header(), &every_item());
    let without_header = replaced(&record, HEADER_KEY, "isotherm.hhhhhh");
    refused(&without_header, "isotherm.header");
    let of_other_columns = replaced(&record, "nr_accesses", "nr_excesses");
    refused(&of_other_columns, "nr_excesses");
    let rest = message_starts(&record)[1];
    refused(&record[rest..], "does not begin with a schema");
}

#[test]
fn a_later_version_is_refused_as_such() {
    let record = write(&header(), &[]);
    // The value stands beside its key; any other "3" of its own length-prefixed kind may change too.
    let mut changed = false;
    for at in 0..record.len() - 5 {
        if record[at..at + 6] == [1, 0, 0, 0, b'3', 0] {
            let mut later = record.clone();
            later[at + 4] = b'9';
            changed |= matches!(exhaust(&later).1, Some(RecordError::Version { .. }));
        }
    }
    assert!(changed, "the {VERSION_KEY} was found");
}

#[test]
fn claims_beyond_the_limits_are_refused_before_memory_is_taken() {
    let record = write(&header(), &every_item());
    for (at, _) in message_starts(&record).iter().zip(0..3) {
        let mut long = record.clone();
        long[at + 4..at + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        match exhaust(&long).1 {
            Some(RecordError::TooLarge { claimed, limit, .. }) => {
                assert!(claimed > limit && limit == MAX_METADATA);
            }
            // The first message decides whether this is a record at all.
            other => panic!("{other:?}"),
        }
        // The length is within the limit, but beyond the file's end: the record is torn, not an error.
        let mut torn = record.clone();
        torn[at + 4..at + 8].copy_from_slice(&(MAX_METADATA as u32).to_le_bytes());
        let error = exhaust(&torn).1;
        let is_torn = matches!(error, None | Some(RecordError::NoHeader { .. }));
        assert!(is_torn, "{error:?}");
    }
}

#[test]
fn a_decompression_bomb_is_refused() {
    // A column's claimed length stands before its compressed bytes.
    let items: Vec<Item> = (0..10)
        .map(|tenth| Item::Snapshot(snapshot(0, tenth, &"[0,4)=9 [4,8)=? ".repeat(50))))
        .collect();
    let record = unchecked(&write(&header(), &items));
    let magic = 0xfd2f_b528_u32.to_le_bytes();
    let frames: Vec<usize> = (8..record.len() - 4)
        .filter(|at| record[*at..at + 4] == magic)
        .collect();
    for claimed in [MAX_BODY + 1, i64::MAX as u64, u64::MAX - 1, 1 << 63] {
        for frame in &frames {
            let mut bomb = record.clone();
            bomb[frame - 8..*frame].copy_from_slice(&claimed.to_le_bytes());
            let error = exhaust(&bomb).1;
            let is_refused = matches!(error, Some(RecordError::TooLarge { .. }));
            assert!(is_refused, "{error:?}");
        }
    }
    assert!(frames.len() >= 5, "columns of equal values are compressed");
}

#[test]
fn damage_is_found_by_the_checksum_and_what_comes_before_is_read() {
    let items = by_page(every_item());
    let record = write(&header(), &every_item());
    let starts = message_starts(&record);
    let first_item = starts[1];
    for at in first_item..record.len() {
        for bit in [0x01, 0x10] {
            let mut damaged = record.clone();
            damaged[at] ^= bit;
            let (got, _) = exhaust(&damaged);
            let is_before = items.starts_with(&got);
            assert!(is_before, "damage at {at} (messages at {starts:?})");
        }
    }
}

#[test]
fn hostile_headers_are_errors() {
    let mut hostile: Vec<Header> = Vec::new();
    let mut long = header();
    long.command = vec!["x".repeat(1 << 16); 4];
    hostile.push(long);
    let mut odd = header();
    odd.settings.insert("granularity".into(), "page".into());
    odd.settings.insert(String::new(), "\0\u{10ffff}".into());
    hostile.push(odd);
    for header in hostile {
        let record = write(&header, &[]);
        let reader = Reader::open(&record[..]).expect("odd, not wrong");
        assert_eq!(reader.header(), &header);
        for at in (0..record.len()).step_by(record.len() / 300) {
            let mut damaged = record.clone();
            damaged[at] = !damaged[at];
            exhaust(&damaged);
        }
    }
}

#[test]
fn items_that_types_allow_and_sense_does_not_are_errors() {
    let record = write(&header(), &every_item());
    let backward = replaced(&record, "\"end\":32768", "\"end\":4096 ");
    refused(&unchecked(&backward), "backward");
    let negative = replaced(&record, "\"pid\":12", "\"pid\":-1");
    refused(&unchecked(&negative), "does not parse");
}

pub(crate) fn damage() -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8)
}

pub(crate) fn damaged(mut bytes: Vec<u8>, damage: &[(usize, u8)]) -> Vec<u8> {
    for (at, byte) in damage {
        let length = bytes.len();
        bytes[at % length] = *byte;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_records_never_panic(damage in damage()) {
        let record = write(&header(), &every_item());
        let pages = [scan(0, "AAi Ai"), scan(1, "i ?."), scan(2, "AiA?")];
        let pages = write(&page_header(), &pages);
        // Other Arrow writers write no checksums, which would find most damage.
        for record in [unchecked(&record), unchecked(&pages), record] {
            exhaust(&damaged(record, &damage));
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), tail: bool) {
        let mut record = if tail { write(&header(), &[]) } else { Vec::new() };
        if tail {
            record.truncate(record.len() - 8);
        }
        record.extend(bytes);
        exhaust(&record);
    }
}
