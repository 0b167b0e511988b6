//! Snapshots converted to rows, column by column, for all writers of tables.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, Float32Array, TimestampNanosecondArray,
    UInt32Array, UInt64Array,
};
use arrow_buffer::Buffer;
use isotherm_engine::{Nanos, Snapshot, TargetId};

use crate::pages::{PageSnapshot, push_bits};
use crate::schema::Kind;

/// Rows to be written, by column. The columns of the other kind of record stay empty.
#[derive(Default)]
pub(crate) struct Columns {
    snapshot: Vec<u32>,
    start_time: Vec<i64>,
    end_time: Vec<i64>,
    target: Vec<u32>,
    /// Start of a region, or address of a block.
    start: Vec<u64>,
    end: Vec<u64>,
    nr_accesses: Vec<Option<f32>>,
    nr_samples: Vec<u32>,
    age: Vec<u32>,
    age_ns: Vec<u64>,
    memory: [Vec<Option<u64>>; 4],
    huge: Vec<bool>,
    present: Vec<u8>,
    accessed: Vec<u8>,
    unknown: Vec<u8>,
}

impl Columns {
    pub(crate) fn len(&self) -> usize {
        self.snapshot.len()
    }

    /// Adds a row for each region of snapshot `number`.
    pub(crate) fn push_snapshot(&mut self, number: u32, snapshot: &Snapshot) {
        let common = (snapshot.target, snapshot.start, snapshot.end);
        self.push_common(number, common, snapshot.regions.len());
        self.nr_samples
            .resize(self.snapshot.len(), snapshot.nr_samples);
        for region in &snapshot.regions {
            self.start.push(region.range.start);
            self.end.push(region.range.end);
            self.nr_accesses.push(region.nr_accesses);
            self.age.push(region.age);
            self.age_ns.push(region.age_ns.0);
            let memory = region.memory;
            let parts = memory.map(|m| [m.resident, m.touched, m.unknown, m.swapped]);
            for (index, column) in self.memory.iter_mut().enumerate() {
                column.push(parts.map(|parts| parts[index]));
            }
        }
    }

    /// Adds a row for each block of snapshot `number`.
    pub(crate) fn push_pages(&mut self, number: u32, pages: &PageSnapshot) {
        let common = (pages.target, pages.start, pages.end);
        self.push_common(number, common, pages.blocks.len());
        for block in &pages.blocks {
            self.start.push(block.block);
            self.huge.push(block.huge);
            push_bits(&mut self.present, &block.present);
            push_bits(&mut self.accessed, &block.accessed);
            push_bits(&mut self.unknown, &block.unknown);
        }
    }

    /// Adds `count` rows of the target, start and end of a snapshot.
    fn push_common(
        &mut self,
        number: u32,
        (target, start, end): (TargetId, Nanos, Nanos),
        count: usize,
    ) {
        let rows = self.snapshot.len() + count;
        let time = |t: Nanos| i64::try_from(t.0).unwrap_or(i64::MAX);
        self.snapshot.resize(rows, number);
        self.start_time.resize(rows, time(start));
        self.end_time.resize(rows, time(end));
        self.target.resize(rows, target.0);
    }

    pub(crate) fn into_arrays(self, kind: Kind) -> Vec<ArrayRef> {
        let time = |times: Vec<i64>| {
            Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC")) as ArrayRef
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from(self.snapshot)),
            time(self.start_time),
            time(self.end_time),
            Arc::new(UInt32Array::from(self.target)),
            Arc::new(UInt64Array::from(self.start)),
        ];
        let bitmaps = |bytes: Vec<u8>| {
            Arc::new(
                FixedSizeBinaryArray::try_new(64, Buffer::from_vec(bytes), None)
                    .expect("64 bytes were pushed for each row"),
            ) as ArrayRef
        };
        match kind {
            Kind::Regions | Kind::BareRegions => {
                columns.push(Arc::new(UInt64Array::from(self.end)));
                columns.push(Arc::new(Float32Array::from(self.nr_accesses)));
                columns.push(Arc::new(UInt32Array::from(self.nr_samples)));
                columns.push(Arc::new(UInt32Array::from(self.age)));
                columns.push(Arc::new(UInt64Array::from(self.age_ns)));
                if kind == Kind::Regions {
                    let memory = self.memory.into_iter();
                    columns
                        .extend(memory.map(|part| Arc::new(UInt64Array::from(part)) as ArrayRef));
                }
            }
            Kind::Pages => {
                columns.push(Arc::new(BooleanArray::from(self.huge)));
                columns.push(bitmaps(self.present));
                columns.push(bitmaps(self.accessed));
                columns.push(bitmaps(self.unknown));
            }
        }
        columns
    }
}
