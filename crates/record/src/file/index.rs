//! An index from time to the places of rows in a record, for another read of a part of a long record.
//!
//! Problem: after one pass over a record of gigabytes, a reader wants a minute of it in detail, without delay. But that
//! minute makes sense only with earlier items (targets, mappings).
//!
//! Approach: messages of rows are independent. The part is therefore the record without the messages of rows outside of
//! it. [`Skipping`] leaves their bytes out, and the rest is a record like any other. [`crate::Reader::with_index`]
//! collects the places.
//!
//! Limits: a message of rows, some 16,384 of them, is left out as a whole or not at all. Ages of pages count from the
//! first scan that is read. Ages in a part of a record of page scans ([`crate::PageAges`]) therefore differ from those
//! in the whole.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use isotherm_engine::Nanos;

/// The places of rows.
#[derive(Clone, Debug, Default)]
pub struct TimeIndex {
    messages: Vec<Rows>,
}

#[derive(Clone, Debug)]
struct Rows {
    bytes: Range<u64>,
    start: Nanos,
    end: Nanos,
}

impl TimeIndex {
    /// Notes that these bytes hold rows of this time, among others.
    pub(crate) fn note(&mut self, bytes: &Range<u64>, start: Nanos, end: Nanos) {
        match self.messages.last_mut() {
            Some(last) if last.bytes == *bytes => {
                last.start = last.start.min(start);
                last.end = last.end.max(end);
            }
            _ => self.messages.push(Rows {
                bytes: bytes.clone(),
                start,
                end,
            }),
        }
    }

    /// Returns the bytes of messages with no row between `from` and `to`, in order.
    pub fn outside(&self, from: Nanos, to: Nanos) -> Vec<Range<u64>> {
        let mut outside: Vec<Range<u64>> = Vec::new();
        let messages = self.messages.iter();
        for Rows { bytes, .. } in messages.filter(|m| m.end <= from || m.start >= to) {
            match outside.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ => outside.push(bytes.clone()),
            }
        }
        outside
    }
}

/// Reads `R` without some of its bytes.
#[derive(Debug)]
pub struct Skipping<R> {
    input: R,
    /// Byte ranges still to be skipped, in order.
    skipped: VecDeque<Range<u64>>,
    place: u64,
}

impl<R: Read + Seek> Skipping<R> {
    /// Reads from the beginning without `skipped` ([`TimeIndex::outside`]).
    pub fn new(input: R, skipped: Vec<Range<u64>>) -> Self {
        Self {
            input,
            skipped: skipped.into(),
            place: 0,
        }
    }
}

impl<R: Read + Seek> Read for Skipping<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(next) = self.skipped.pop_front_if(|next| next.start <= self.place) {
            self.place = self.input.seek(SeekFrom::Start(next.end))?;
        }
        let room = self
            .skipped
            .front()
            .map_or(u64::MAX, |next| next.start - self.place);
        let most = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let n = self.input.read(&mut buffer[..most])?;
        self.place += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use isotherm_engine::{AddressRange, RegionSnapshot, Snapshot, TargetId};

    use super::*;
    use crate::tests::write;
    use crate::{Header, Item, Reader, TargetStart};

    fn snapshot(second: u64) -> Item {
        let region = |page: u64| {
            let range = AddressRange::new(page << 12, (page + 1) << 12);
            RegionSnapshot::new(range, Some(second as f32))
        };
        let times = [second, second + 1].map(|second| Nanos(second * 1_000_000_000));
        let regions = (0..50).map(region).collect();
        Item::Snapshot(Snapshot::new(TargetId(0), times.into(), 200, regions))
    }

    fn note(second: u64) -> Item {
        Item::Note {
            time: Nanos(second * 1_000_000_000),
            text: format!("second {second}"),
        }
    }

    fn record() -> Vec<u8> {
        let mut items = vec![Item::TargetStart(TargetStart::default())];
        for second in 0..100 {
            items.push(snapshot(second));
            items.extend((second % 10 == 9).then(|| note(second)));
        }
        write(&Header::default(), &items)
    }

    #[test]
    fn a_part_has_its_rows_and_all_that_is_no_row() {
        let bytes = record();
        let mut whole = Reader::open(&bytes[..]).expect("a record").with_index();
        let all: Vec<Item> = whole.by_ref().map(|item| item.expect("whole")).collect();
        let index = whole.take_index().expect("asked for");
        let (from, to) = (Nanos(30_000_000_000), Nanos(33_000_000_000));
        let skipped = index.outside(from, to);
        let left: u64 = skipped.iter().map(|range| range.end - range.start).sum();
        let length = bytes.len() as u64;
        assert!(left * 10 > length * 8, "{left} of {length}");
        let part = Reader::open(Skipping::new(Cursor::new(&bytes), skipped)).expect("a record");
        let part: Vec<Item> = part.map(|item| item.expect("whole")).collect();
        let is_in = |item: &&Item| match item {
            Item::Snapshot(snapshot) => snapshot.end > from && snapshot.start < to,
            _ => true,
        };
        let wanted: Vec<&Item> = all.iter().filter(is_in).collect();
        let found: Vec<&Item> = part.iter().filter(is_in).collect();
        assert_eq!(found, wanted);
        let (nr, nr_all) = (part.len(), all.len());
        assert!(nr < nr_all / 3, "{nr} of {nr_all}");
    }

    #[test]
    fn without_skips_it_is_the_same() {
        let bytes = record();
        let mut copy = Vec::new();
        let mut whole = Skipping::new(Cursor::new(&bytes), Vec::new());
        whole.read_to_end(&mut copy).expect("read");
        assert_eq!(copy, bytes);
        let (begin, end) = (0..3, bytes.len() as u64 - 2..bytes.len() as u64);
        copy.clear();
        let mut parts = Skipping::new(Cursor::new(&bytes), vec![begin, end]);
        parts.read_to_end(&mut copy).expect("read");
        assert_eq!(copy, bytes[3..bytes.len() - 2]);
    }
}
