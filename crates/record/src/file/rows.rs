//! The rows of one message, yielded snapshot by snapshot.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, TimestampNanosecondType, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, BooleanArray, FixedSizeBinaryArray, Float32Array, RecordBatch, UInt64Array,
};
use arrow_buffer::ScalarBuffer;
use isotherm_engine::{AddressRange, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId};

use crate::check::check_memory;
use crate::error::RecordError;
use crate::item::Item;
use crate::pages::{PageBlock, PageSnapshot, bits, check_blocks};
use crate::schema::Kind;

/// Decoded rows, and the number of rows yielded so far.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Offset of the rows' message.
    offset: u64,
    next_row: usize,
    snapshot: ScalarBuffer<u32>,
    start_time: ScalarBuffer<i64>,
    end_time: ScalarBuffer<i64>,
    target: ScalarBuffer<u32>,
    columns: Columns,
}

#[derive(Debug)]
enum Columns {
    Regions {
        start: ScalarBuffer<u64>,
        end: ScalarBuffer<u64>,
        nr_accesses: Float32Array,
        nr_samples: ScalarBuffer<u32>,
        age: ScalarBuffer<u32>,
        age_ns: ScalarBuffer<u64>,
        /// Resident, touched, unknown, swapped; version 1 has none of them.
        memory: Option<[UInt64Array; 4]>,
    },
    Pages {
        block: ScalarBuffer<u64>,
        huge: BooleanArray,
        present: FixedSizeBinaryArray,
        accessed: FixedSizeBinaryArray,
        unknown: FixedSizeBinaryArray,
    },
}

impl Rows {
    /// Splits a batch with the columns of the record's schema.
    pub(crate) fn new(offset: u64, kind: Kind, batch: &RecordBatch) -> Result<Self, RecordError> {
        for (column, field) in batch.columns().iter().zip(kind.fields()) {
            if column.null_count() > 0 && !field.is_nullable() {
                return Err(RecordError::corrupt(
                    offset,
                    format!("has rows without `{}`", field.name()),
                ));
            }
        }
        let columns = match kind {
            Kind::Regions | Kind::BareRegions => Columns::Regions {
                start: values::<UInt64Type>(batch, 4),
                end: values::<UInt64Type>(batch, 5),
                nr_accesses: batch.column(6).as_primitive::<Float32Type>().clone(),
                nr_samples: values::<UInt32Type>(batch, 7),
                age: values::<UInt32Type>(batch, 8),
                age_ns: values::<UInt64Type>(batch, 9),
                memory: (kind == Kind::Regions).then(|| {
                    [10, 11, 12, 13]
                        .map(|column| batch.column(column).as_primitive::<UInt64Type>().clone())
                }),
            },
            Kind::Pages => Columns::Pages {
                block: values::<UInt64Type>(batch, 4),
                huge: batch.column(5).as_boolean().clone(),
                present: batch.column(6).as_fixed_size_binary().clone(),
                accessed: batch.column(7).as_fixed_size_binary().clone(),
                unknown: batch.column(8).as_fixed_size_binary().clone(),
            },
        };
        Ok(Self {
            offset,
            next_row: 0,
            snapshot: values::<UInt32Type>(batch, 0),
            start_time: values::<TimestampNanosecondType>(batch, 1),
            end_time: values::<TimestampNanosecondType>(batch, 2),
            target: values::<UInt32Type>(batch, 3),
            columns,
        })
    }

    /// Returns the number of the next snapshot.
    pub(crate) fn next_number(&self) -> Option<u32> {
        self.snapshot.get(self.next_row).copied()
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
        let same = self.snapshot[first..].iter().take_while(|n| **n == number);
        let rows = first..first + same.count();
        self.next_row = rows.end;
        let target = self.target[first];
        if self.target[rows.clone()].iter().any(|t| *t != target) {
            return Err(self.corrupt(&format!("has several targets in snapshot {number}")));
        }
        let start = self.time(self.start_time[first])?;
        let end = self.time(self.end_time[first])?;
        let target = TargetId(target);
        Ok(Some(match &self.columns {
            Columns::Regions { nr_samples, .. } => Item::Snapshot(Snapshot {
                target,
                start,
                end,
                nr_samples: nr_samples[first],
                regions: self.regions(rows)?,
                ..Snapshot::default()
            }),
            Columns::Pages { .. } => Item::Pages(PageSnapshot {
                target,
                start,
                end,
                blocks: self.blocks(rows)?,
            }),
        }))
    }

    fn regions(&self, rows: Range<usize>) -> Result<Vec<RegionSnapshot>, RecordError> {
        let Columns::Regions {
            start,
            end,
            nr_accesses,
            age,
            age_ns,
            memory,
            ..
        } = &self.columns
        else {
            unreachable!("called for rows of regions");
        };
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
            let memory = memory.as_ref().map(|parts| memory_of(parts, row));
            let region = RegionSnapshot {
                range,
                nr_accesses,
                age: age[row],
                age_ns: Nanos(age_ns[row]),
                memory: memory
                    .transpose()
                    .map_err(|why| self.corrupt(why))?
                    .flatten(),
            };
            check_memory(&region).map_err(|reason| self.corrupt(&reason))?;
            regions.push(region);
        }
        Ok(regions)
    }

    fn blocks(&self, rows: Range<usize>) -> Result<Vec<PageBlock>, RecordError> {
        let Columns::Pages {
            block,
            huge,
            present,
            accessed,
            unknown,
        } = &self.columns
        else {
            unreachable!("called for rows of pages");
        };
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

    fn time(&self, nanos: i64) -> Result<Nanos, RecordError> {
        u64::try_from(nanos)
            .map(Nanos)
            .map_err(|_| self.corrupt("has a time before 1970"))
    }

    fn corrupt(&self, reason: &str) -> RecordError {
        RecordError::corrupt(self.offset, reason)
    }
}

fn values<T: ArrowPrimitiveType>(batch: &RecordBatch, column: usize) -> ScalarBuffer<T::Native> {
    batch.column(column).as_primitive::<T>().values().clone()
}

/// Returns the memory of a region: all four values are known, or none.
fn memory_of(parts: &[UInt64Array; 4], row: usize) -> Result<Option<RegionMemory>, &'static str> {
    match parts
        .each_ref()
        .map(|p| p.is_valid(row).then(|| p.value(row)))
    {
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
