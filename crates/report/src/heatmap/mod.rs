//! The heatmap report: access rate over time and address.
//!
//! **Problem.** The time range and the addresses are unknown until the record has been read. The record may not fit in
//! memory. Reading it twice costs twice, and a pipe can be read only once.
//!
//! **Approach.** Time is cut into at most [`MAX_COLUMNS`] columns (or into the requested number of columns while
//! reading). When the record outgrows them, neighbours are joined and their width doubles. In a column the access rate
//! is a list of pieces of address space ([`column`]). The list has a cap, which halves when all columns together exceed
//! [`MAX_PIECES`]. At the end, when all addresses are known, the module lays out the address axis ([`axis`]) and sums
//! the pieces into cells.
//!
//! **Limits.** A cell holds means over its bytes and its time; a hot page in a cell of 10 MiB looks lukewarm. The
//! options `--from`, `--to` and `--target` show more detail.
//!
//! JSON: [`HeatmapReport`].

mod axis;
mod column;
mod layer;

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, Nanos, Snapshot, TargetId};
use serde::Serialize;

pub use axis::Segment;
pub use layer::{
    AxisRun, Layer, LayerAxis, LayerMapping, LayerSegment, Layers, RATE_CODES, RateCodes,
};

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::mapping::{MappingLabel, MappingTable};
use axis::Axis;
use column::{Column, Piece};
use isotherm_record::item::{Header, Item};

/// The largest number of columns while reading; a record that has outgrown it has at least half that number.
pub(crate) const MAX_COLUMNS: usize = 512;
/// The largest number of pieces of all columns together, 40 bytes each.
const MAX_PIECES: usize = 1 << 20;
/// The first and the smallest cap of the pieces of one column.
const PIECE_CAPS: (usize, usize) = (4096, 32);

/// The resolution of the result.
#[derive(Clone, Copy, Debug)]
pub struct HeatmapOptions {
    /// The largest number of columns while reading.
    pub columns_read: usize,
    /// The largest number of columns of the result.
    pub columns: usize,
    /// The approximate number of rows of each target.
    pub rows: usize,
    /// The largest number of targets; the largest targets stay.
    pub targets: usize,
}

impl Default for HeatmapOptions {
    fn default() -> Self {
        Self {
            columns_read: MAX_COLUMNS,
            columns: MAX_COLUMNS,
            rows: 600,
            targets: 16,
        }
    }
}

/// The data of one row and one column.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeatmapCell {
    /// Share of bytes and time that was monitored; 0 means that nothing is mapped here.
    pub monitored: f32,
    /// Mean access rate of the known part, 0 to 1; `None` where most is unknown.
    pub access_rate: Option<f32>,
    /// Mean age in seconds, weighted by bytes.
    pub age: f32,
}

/// The addresses of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Row"))]
pub struct HeatmapRow {
    /// Range from the first address to the last; parts cut out of the axis may lie between.
    #[cfg_attr(feature = "schema", schemars(with = "crate::exact::Ends"))]
    #[serde(flatten, serialize_with = "crate::exact::range")]
    pub range: AddressRange,
    /// Bytes on the axis.
    pub bytes: u64,
    /// The last known mapping at these addresses.
    pub mapping: Option<MappingLabel>,
}

/// The heatmap of one target.
///
/// In JSON, `cells` holds parallel arrays, with an entry for every cell that was monitored: `row`,
/// `column`, `access_rate` (`null`: unknown) and `age_ns`. Cells that are not listed are unmapped.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetHeatmap {
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Neighbouring rows between gaps, from the lowest address up.
    pub segments: Vec<Segment>,
    /// Rows, from the lowest address up.
    pub rows: Vec<HeatmapRow>,
    /// Cells row by row, each row from the earliest time on.
    #[cfg_attr(feature = "schema", schemars(with = "CellArrays"))]
    #[serde(serialize_with = "serialize_cells")]
    pub cells: CellGrid,
}

/// Cells row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellGrid {
    /// Number of columns of each row.
    pub columns: usize,
    /// All cells.
    pub cells: Vec<HeatmapCell>,
}

impl CellGrid {
    /// Returns the cells of a row.
    pub fn row(&self, row: usize) -> &[HeatmapCell] {
        &self.cells[row * self.columns..(row + 1) * self.columns]
    }
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeatmapReport {
    /// `heatmap`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Start of the first column.
    pub start_ns: Nanos,
    /// Time per column.
    pub column_ns: f64,
    /// Number of columns.
    pub columns: usize,
    /// The targets, the largest first.
    pub targets: Vec<TargetHeatmap>,
    /// Number of smaller targets that were left out.
    pub targets_left_out: usize,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Heatmap {
    context: RecordContext,
    options: HeatmapOptions,
    mappings: MappingTable,
    start: Option<Nanos>,
    width: Nanos,
    /// End of the last snapshot, from `start`.
    end: Nanos,
    targets: BTreeMap<TargetId, Vec<Column>>,
    cap: usize,
    pieces: usize,
    targets_left_out: usize,
    /// Whether pieces or columns were merged to save memory.
    is_joined: bool,
    scratch: Vec<Piece>,
}

impl Heatmap {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: HeatmapOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            width: Nanos(1),
            cap: PIECE_CAPS.0,
            ..Self::default()
        }
    }

    /// Sets the start of the whole record ([`RecordInfo::started_ns`]), where only a part of it is read.
    #[must_use]
    pub fn beginning_at(mut self, origin: Nanos) -> Self {
        self.context.set_origin(origin);
        self
    }

    fn lay(&mut self, snapshot: &Snapshot) {
        let length = snapshot.end.since(snapshot.start).0.max(1);
        let start = self.start.unwrap_or(snapshot.start);
        if self.start.replace(start).is_none() {
            self.width = Nanos(length);
        }
        let from = snapshot.start.since(start).0;
        let to = from.saturating_add(length);
        while (to - 1) / self.width.0 >= self.options.columns_read as u64 {
            self.double_width();
        }
        self.end = self.end.max(Nanos(to));
        let seconds = |nanos: u64| (nanos as f64 / 1e9) as f32;
        if length.saturating_mul(2) <= self.width.0 {
            // A snapshot much shorter than a column goes into one column as a whole, instead of two partial overlays.
            let middle = (from + length / 2) / self.width.0;
            self.lay_into(snapshot, middle as usize, seconds(length));
            return;
        }
        for column in from / self.width.0..=(to - 1) / self.width.0 {
            let begin = column * self.width.0;
            let part = to.min(begin.saturating_add(self.width.0)) - from.max(begin);
            // Clocks jitter: a sliver of a snapshot would otherwise be the only content of the next column.
            if part.saturating_mul(20) >= length {
                self.lay_into(snapshot, column as usize, seconds(part));
            }
        }
    }

    fn lay_into(&mut self, snapshot: &Snapshot, index: usize, seconds: f32) {
        let columns = self.targets.entry(snapshot.target).or_default();
        if columns.len() <= index {
            columns.resize(index + 1, Column::default());
        }
        let column = &mut columns[index];
        let before = column.pieces.len();
        column.lay(snapshot, seconds, &mut self.scratch);
        if column.pieces.len() > 2 * self.cap {
            column.coarsen(self.cap);
            self.is_joined = true;
        }
        self.pieces = self.pieces + column.pieces.len() - before;
        if self.pieces > MAX_PIECES {
            self.coarsen();
        }
    }

    /// Halves every column's cap. If the cap is at its minimum, halves the number of columns; if there is only one, the
    /// number of targets.
    fn coarsen(&mut self) {
        self.is_joined = true;
        if self.cap > PIECE_CAPS.1 {
            self.cap /= 2;
        } else if self.end > self.width {
            self.double_width();
        } else {
            self.targets_left_out += self.keep_largest(self.targets.len() / 2);
        }
        for column in self.targets.values_mut().flatten() {
            column.coarsen(self.cap);
        }
        self.count_pieces();
    }

    fn double_width(&mut self) {
        self.is_joined = true;
        self.width = Nanos(self.width.0 * 2);
        for columns in self.targets.values_mut() {
            for index in 0..columns.len().div_ceil(2) {
                let mut joined = std::mem::take(&mut columns[2 * index]);
                if let Some(later) = columns.get(2 * index + 1) {
                    joined.lay_column(later, &mut self.scratch);
                    joined.coarsen(self.cap);
                }
                columns[index] = joined;
            }
            columns.truncate(columns.len().div_ceil(2));
        }
        self.count_pieces();
    }

    fn count_pieces(&mut self) {
        let columns = self.targets.values().flatten();
        self.pieces = columns.map(|column| column.pieces.len()).sum();
    }

    /// Drops all but the `most` largest targets, by bytes times time; returns the number of dropped targets.
    fn keep_largest(&mut self, most: usize) -> usize {
        let mut by_size: Vec<(f64, TargetId)> =
            self.targets.iter().map(|(id, c)| (size(c), *id)).collect();
        by_size.sort_by(|a, b| b.0.total_cmp(&a.0));
        let left_out = by_size.get(most..).unwrap_or_default();
        for (_, target) in left_out {
            self.targets.remove(target);
        }
        left_out.len()
    }

    fn nr_columns(&self) -> usize {
        self.end.0.div_ceil(self.width.0) as usize
    }

    /// Takes the targets that are shown, the largest first.
    fn take_largest(&mut self) -> Vec<(TargetId, Vec<Column>)> {
        self.targets_left_out += self.keep_largest(self.options.targets);
        let mut targets: Vec<_> = std::mem::take(&mut self.targets).into_iter().collect();
        targets.sort_by(|a, b| size(&b.1).total_cmp(&size(&a.1)));
        targets
    }

    fn finish_target(
        &self,
        target: TargetId,
        lists: &[Column],
        (read, columns): (usize, usize),
        rows: usize,
    ) -> TargetHeatmap {
        let axis = Axis::new(&column::covered(lists, Piece::was_memory), rows);
        let mut sums = vec![CellSum::default(); axis.rows() * columns];
        for (index, list) in lists.iter().enumerate() {
            let column = index * columns / read;
            axis.distribute(
                &list.pieces,
                |piece| AddressRange::new(piece.start, piece.end),
                |piece, row, bytes| sums[row * columns + column].add(piece, bytes),
            );
        }
        let column_seconds = self.width.as_secs_f64() * read as f64 / columns as f64;
        let cell = |(index, sum): (usize, &CellSum)| {
            sum.cell(axis.row_bytes(index / columns) as f64 * column_seconds)
        };
        let row = |row| {
            let range = axis.row_range(row);
            HeatmapRow {
                range,
                bytes: axis.row_bytes(row),
                mapping: self.mappings.label(target, range),
            }
        };
        TargetHeatmap {
            target: self.context.target_info(target),
            rows: (0..axis.rows()).map(row).collect(),
            cells: CellGrid {
                columns,
                cells: sums.iter().enumerate().map(cell).collect(),
            },
            segments: axis.segments,
        }
    }
}

impl Accumulate for Heatmap {
    type Report = HeatmapReport;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Snapshot(snapshot) if self.context.admits(snapshot) => self.lay(snapshot),
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> HeatmapReport {
        self.context.end(end);
        let read = self.nr_columns();
        let columns = read.min(self.options.columns.max(1));
        let start = self.start.unwrap_or_default();
        let start_ns = self.context.offset(start);
        let targets = self.take_largest();
        let many = targets.len().saturating_sub(3).max(1);
        let rows = (self.options.rows / many).max(self.options.rows.min(100));
        let targets = targets
            .into_iter()
            .map(|(target, lists)| self.finish_target(target, &lists, (read, columns), rows))
            .collect();
        HeatmapReport {
            report: "heatmap",
            version: crate::VERSION,
            record: self.context.record_info(),
            start_ns,
            column_ns: self.width.0 as f64 * read as f64 / columns.max(1) as f64,
            columns,
            targets,
            targets_left_out: self.targets_left_out,
        }
    }
}

fn size(columns: &[Column]) -> f64 {
    let pieces = columns.iter().flat_map(|column| &column.pieces);
    let sizes = pieces.map(|p| (p.end - p.start) as f64 * f64::from(p.known + p.unknown));
    sizes.sum()
}

#[derive(Clone, Copy, Default)]
struct CellSum {
    accessed: f32,
    known: f32,
    unknown: f32,
    age: f32,
    age_bytes: f32,
}

impl CellSum {
    fn add(&mut self, piece: &Piece, bytes: u64) {
        let bytes = bytes as f32;
        self.accessed += piece.accessed * bytes;
        self.known += piece.known * bytes;
        self.unknown += piece.unknown * bytes;
        self.age += piece.age * bytes;
        self.age_bytes += bytes;
    }

    fn cell(&self, whole: f64) -> HeatmapCell {
        let seen = self.known + self.unknown;
        if seen <= 0.0 {
            return HeatmapCell::default();
        }
        let known = self.known > 0.0 && self.known >= self.unknown;
        HeatmapCell {
            monitored: ((f64::from(seen) / whole) as f32).min(1.0),
            access_rate: known.then(|| (self.accessed / self.known).clamp(0.0, 1.0)),
            age: self.age / self.age_bytes,
        }
    }
}

#[derive(Serialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct CellArrays {
    row: Vec<usize>,
    column: Vec<usize>,
    access_rate: Vec<Option<f32>>,
    age_ns: Vec<u64>,
}

fn serialize_cells<S: serde::Serializer>(grid: &CellGrid, out: S) -> Result<S::Ok, S::Error> {
    let mut arrays = CellArrays::default();
    for (index, cell) in grid.cells.iter().enumerate() {
        if cell.monitored > 0.0 {
            arrays.row.push(index / grid.columns);
            arrays.column.push(index % grid.columns);
            arrays.access_rate.push(cell.access_rate);
            arrays.age_ns.push((f64::from(cell.age) * 1e9) as u64);
        }
    }
    arrays.serialize(out)
}
