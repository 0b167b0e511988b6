//! The columns of a record's rows: each declares its name and type by its values. All writers of tables convert
//! snapshots to rows here.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, Float32Array, TimestampNanosecondArray,
    UInt32Array, UInt64Array,
};
use arrow_buffer::Buffer;
use arrow_schema::Field;
use isotherm_engine::{Nanos, Snapshot, TargetId};

use crate::item::Header;
use crate::pages::{GRANULARITY, GRANULARITY_PAGE, PageSnapshot, push_bits};

/// Columns of the memory at a region's addresses, in bytes; all null where the source cannot tell.
pub(crate) const MEMORY_COLUMNS: [&str; 4] = ["resident", "touched", "unknown", "swapped"];

/// A column, declared by its values.
pub(crate) type Column = (Field, ArrayRef);

pub(crate) fn column(name: &str, is_nullable: bool, values: impl Array + 'static) -> Column {
    let field = Field::new(name, values.data_type().clone(), is_nullable);
    (field, Arc::new(values))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regions,
    /// Regions of version 1: addresses alone. They are only read.
    BareRegions,
    Pages,
}

impl Kind {
    pub(crate) fn of(header: &Header) -> Self {
        if header.settings.get(GRANULARITY).map(String::as_str) == Some(GRANULARITY_PAGE) {
            Self::Pages
        } else {
            Self::Regions
        }
    }

    /// Returns the bytes of one decoded row.
    pub(crate) fn row_bytes(self) -> usize {
        match self {
            Self::BareRegions => 57,
            // The memory columns have 8 bytes and a validity bit each.
            Self::Regions => 57 + 4 * 9,
            Self::Pages => 229,
        }
    }

    pub(crate) fn fields(self) -> Vec<Field> {
        let columns = Columns::default().into_columns(self).into_iter();
        columns.map(|(field, _)| field).collect()
    }
}

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
        let columns = self.into_columns(kind).into_iter();
        columns.map(|(_, values)| values).collect()
    }

    pub(crate) fn into_columns(self, kind: Kind) -> Vec<Column> {
        let time = |name: &str, times: Vec<i64>| {
            let times = TimestampNanosecondArray::from(times).with_timezone("UTC");
            column(name, false, times)
        };
        let bitmaps = |name: &str, bytes: Vec<u8>| {
            let bitmaps = FixedSizeBinaryArray::try_new(64, Buffer::from_vec(bytes), None)
                .expect("64 bytes were pushed for each row");
            column(name, false, bitmaps)
        };
        let mut columns = vec![
            column("snapshot", false, UInt32Array::from(self.snapshot)),
            time("start_time", self.start_time),
            time("end_time", self.end_time),
            column("target", false, UInt32Array::from(self.target)),
        ];
        if kind == Kind::Pages {
            columns.extend([
                column("block", false, UInt64Array::from(self.start)),
                column("huge", false, BooleanArray::from(self.huge)),
                bitmaps("present", self.present),
                bitmaps("accessed", self.accessed),
                bitmaps("unknown", self.unknown),
            ]);
            return columns;
        }
        columns.extend([
            column("start", false, UInt64Array::from(self.start)),
            column("end", false, UInt64Array::from(self.end)),
            column("nr_accesses", true, Float32Array::from(self.nr_accesses)),
            column("nr_samples", false, UInt32Array::from(self.nr_samples)),
            column("age", false, UInt32Array::from(self.age)),
            column("age_ns", false, UInt64Array::from(self.age_ns)),
        ]);
        if kind == Kind::Regions {
            let memory = MEMORY_COLUMNS.into_iter().zip(self.memory);
            columns.extend(memory.map(|(name, part)| column(name, true, UInt64Array::from(part))));
        }
        columns
    }
}
