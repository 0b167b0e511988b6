//! The rows of one message, yielded snapshot by snapshot.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, TimestampNanosecondType, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch, UInt64Array};
use isotherm_engine::{AddressRange, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId};

use crate::columns::Kind;
use crate::error::RecordError;
use crate::item::Item;
use crate::pages::{PageBlock, PageSnapshot, bits, check_blocks};

/// Decoded rows, and the number of rows yielded so far. The columns are in the order of [`Kind::fields`].
#[derive(Debug)]
pub(crate) struct Rows {
    /// Offset of the rows' message.
    offset: u64,
    kind: Kind,
    batch: RecordBatch,
    next_row: usize,
}

impl Rows {
    /// Takes a batch with the columns of the record's schema.
    pub(crate) fn new(offset: u64, kind: Kind, batch: RecordBatch) -> Result<Self, RecordError> {
        for (column, field) in batch.columns().iter().zip(kind.fields()) {
            if column.null_count() > 0 && !field.is_nullable() {
                return Err(RecordError::corrupt(
                    offset,
                    format!("has rows without `{}`", field.name()),
                ));
            }
        }
        Ok(Self {
            offset,
            kind,
            batch,
            next_row: 0,
        })
    }

    /// Returns the number of the next snapshot.
    pub(crate) fn next_number(&self) -> Option<u32> {
        self.values::<UInt32Type>(0).get(self.next_row).copied()
    }

    /// Returns the first row of the next snapshot.
    #[cfg(feature = "parquet")]
    pub(crate) fn next_row(&self) -> usize {
        self.next_row
    }

    /// Returns the next snapshot, or `None` after the last.
    pub(crate) fn next_item(&mut self) -> Result<Option<Item>, RecordError> {
        let first = self.next_row;
        let Some(number) = self.next_number() else {
            return Ok(None);
        };
        let numbers = self.values::<UInt32Type>(0)[first..].iter();
        let rows = first..first + numbers.take_while(|n| **n == number).count();
        self.next_row = rows.end;
        let targets = &self.values::<UInt32Type>(3)[rows.clone()];
        let target = TargetId(targets[0]);
        if targets.iter().any(|other| *other != target.0) {
            return Err(self.corrupt(&format!("has several targets in snapshot {number}")));
        }
        let time = |column| self.time(self.values::<TimestampNanosecondType>(column)[first]);
        let (start, end) = (time(1)?, time(2)?);
        Ok(Some(if self.kind == Kind::Pages {
            Item::Pages(PageSnapshot::new(target, (start, end), self.blocks(rows)?))
        } else {
            let (nr_samples, regions) = (self.values::<UInt32Type>(7)[first], self.regions(rows)?);
            Item::Snapshot(Snapshot::new(target, (start, end), nr_samples, regions))
        }))
    }

    fn regions(&self, rows: Range<usize>) -> Result<Vec<RegionSnapshot>, RecordError> {
        let (start, end) = (self.values::<UInt64Type>(4), self.values::<UInt64Type>(5));
        let nr_accesses = self.batch.column(6).as_primitive::<Float32Type>();
        let (age, age_ns) = (self.values::<UInt32Type>(8), self.values::<UInt64Type>(9));
        // Version 1 has no memory.
        let memory = (self.kind == Kind::Regions).then(|| {
            [10, 11, 12, 13].map(|column| self.batch.column(column).as_primitive::<UInt64Type>())
        });
        let mut regions = Vec::with_capacity(rows.len());
        let values = nr_accesses.values();
        for row in rows {
            let Some(range) = AddressRange::checked(start[row], end[row]) else {
                return Err(self.corrupt(&format!(
                    "has a region that ends before it starts, {:#x} to {:#x}",
                    start[row], end[row]
                )));
            };
            let nr_accesses = nr_accesses.is_valid(row).then_some(values[row]);
            if nr_accesses.is_some_and(|n| !n.is_finite() || n < 0.0) {
                return Err(self.corrupt(&format!("has a region with {} accesses", values[row])));
            }
            let memory = memory.map(|parts| memory_of(parts, row)).transpose();
            let region = RegionSnapshot {
                memory: memory.map_err(|why| self.corrupt(why))?.flatten(),
                ..RegionSnapshot::new(range, nr_accesses).aged(age[row], Nanos(age_ns[row]))
            };
            check_memory(&region).map_err(|reason| self.corrupt(&reason))?;
            regions.push(region);
        }
        Ok(regions)
    }

    fn blocks(&self, rows: Range<usize>) -> Result<Vec<PageBlock>, RecordError> {
        let block = self.values::<UInt64Type>(4);
        let huge = self.batch.column(5).as_boolean();
        let [present, accessed, unknown] =
            [6, 7, 8].map(|column| self.batch.column(column).as_fixed_size_binary());
        let blocks: Vec<PageBlock> = rows
            .map(|row| PageBlock {
                block: block[row],
                huge: huge.value(row),
                present: bits(present.value(row)),
                accessed: bits(accessed.value(row)),
                unknown: bits(unknown.value(row)),
            })
            .collect();
        check_blocks(&blocks).map_err(|reason| self.corrupt(&reason))?;
        Ok(blocks)
    }

    fn values<T: ArrowPrimitiveType>(&self, column: usize) -> &[T::Native] {
        self.batch.column(column).as_primitive::<T>().values()
    }

    fn time(&self, nanos: i64) -> Result<Nanos, RecordError> {
        u64::try_from(nanos)
            .map(Nanos)
            .map_err(|_| self.corrupt("has a time before 1970"))
    }

    fn corrupt(&self, reason: &str) -> RecordError {
        RecordError::corrupt(self.offset, reason)
    }
}

/// Returns the memory of a region: all four values are known, or none.
fn memory_of(parts: [&UInt64Array; 4], row: usize) -> Result<Option<RegionMemory>, &'static str> {
    match parts.map(|part| part.is_valid(row).then(|| part.value(row))) {
        [Some(resident), Some(touched), Some(unknown), Some(swapped)] => Ok(Some(RegionMemory {
            resident,
            touched,
            unknown,
            swapped,
        })),
        [None, None, None, None] => Ok(None),
        _ => Err("has a region with only a part of its memory counts"),
    }
}

/// Checks the memory that a region claims: it must not exceed the addresses, nor the parts the whole. Returns a
/// description of the fault.
pub(crate) fn check_memory(region: &RegionSnapshot) -> Result<(), String> {
    let Some(memory) = region.memory else {
        return Ok(());
    };
    let is_within = |sum: Option<u64>, whole: u64| sum.is_some_and(|sum| sum <= whole);
    let parts = memory.touched.checked_add(memory.unknown);
    let all = memory.resident.checked_add(memory.swapped);
    if is_within(parts, memory.resident) && is_within(all, region.range.len()) {
        return Ok(());
    }
    Err(format!(
        "has a region of {} bytes with {} resident ({} touched, {} unknown) and {} swapped out",
        region.range.len(),
        memory.resident,
        memory.touched,
        memory.unknown,
        memory.swapped
    ))
}
