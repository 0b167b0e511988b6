//! The data of a heatmap before it is divided into cells: columns of pieces, exact to the page as far as the bounds of
//! [`super`] allow. Pages that zoom use it, and compute cells themselves.
//!
//! Addresses are places on an axis that leaves unmapped addresses out. [`AxisRun`]s map address ranges to places. A
//! place counts in units of [`Layer::unit_bytes`], so that it fits in 32 bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, TargetId};
use serde::Serialize;

use super::axis::Axis;
use super::column::{self, Column, Piece};
use super::{Heatmap, RecordEnd, RecordInfo, TargetInfo};

/// The encoding of rates in 16 bits; values above the highest rate are no rates.
pub const RATE_CODES: RateCodes = RateCodes {
    most: 65_000,
    swapped: 65_533,
    unknown: 65_534,
};

/// The codes of [`Layer::rates`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RateCodes {
    /// Code of a rate of 1.
    pub most: u16,
    /// Code of a piece that is completely swapped out, and has no rate.
    pub swapped: u16,
    /// Code of an unknown rate.
    pub unknown: u16,
}

/// An address range that lies on the axis without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisRun {
    /// The addresses.
    pub range: AddressRange,
    /// Start of the range on the axis, in units.
    pub place: u32,
}

/// A part of the axis between marked gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSegment {
    /// Start of the segment on the axis, in units.
    pub place: u32,
    /// Length of the segment on the axis, in units.
    pub units: u32,
    /// Bytes cut out between the segment before and this one.
    pub gap_before_bytes: u64,
}

/// The last known mapping at a part of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMapping {
    /// Start of the mapping on the axis, in units.
    pub place: u32,
    /// Length of the mapping on the axis, in units.
    pub units: u32,
    /// Index in [`Layer::names`].
    pub name: u32,
}

/// The address axis: ranges and their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerAxis {
    /// Bytes per place: a page, or more where the axis is longer than 32 bits.
    pub unit_bytes: u64,
    /// Address runs, from the lowest address up.
    pub runs: Vec<AxisRun>,
    /// Segments, from the lowest address up.
    pub segments: Vec<LayerSegment>,
}

/// The data of one target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// The target.
    pub target: TargetInfo,
    /// Its address axis.
    pub axis: LayerAxis,
    /// Names of mappings.
    pub names: Vec<Arc<str>>,
    /// Mappings, from the lowest address up.
    pub mappings: Vec<LayerMapping>,
    /// Number of pieces before each column, and after the last: one entry more than columns.
    pub columns: Vec<u32>,
    /// Start of each piece on the axis.
    pub places: Vec<u32>,
    /// Length of each piece.
    pub units: Vec<u32>,
    /// Mean access rate of each piece; see [`RATE_CODES`].
    pub rates: Vec<u16>,
    /// Time since each piece's rate last changed much, as 1000 log2(1 + 100 s).
    pub ages: Vec<u16>,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// The record that the data is based on.
    pub record: RecordInfo,
    /// Start of the first column.
    pub start_ns: Nanos,
    /// Time per column.
    pub column_ns: Nanos,
    /// Number of columns.
    pub columns: usize,
    /// Whether nothing was merged to save memory: a smaller part of the record would be no finer.
    pub is_exact: bool,
    /// The targets, the largest first.
    pub targets: Vec<Layer>,
    /// Number of smaller targets that were left out.
    pub targets_left_out: usize,
}

impl Heatmap {
    /// Returns all data, instead of the report.
    pub fn finish_layers(mut self, end: RecordEnd) -> Layers {
        self.context.end(end);
        let targets = self.take_largest();
        let layers = targets.iter().map(|(target, lists)| {
            let axis = Axis::new(&column::covered(lists, |_| true), self.options.rows);
            self.layer(*target, lists, LayerAxis::of(&axis))
        });
        let layers = layers.collect();
        self.layers(layers)
    }

    /// Returns the data of one target, on the axis of a larger part of the record.
    pub fn finish_layer_on(mut self, target: TargetId, axis: &LayerAxis) -> Layers {
        let lists = self.targets.remove(&target).unwrap_or_default();
        let layer = self.layer(target, &lists, axis.clone());
        self.layers(vec![layer])
    }

    fn layers(&mut self, targets: Vec<Layer>) -> Layers {
        Layers {
            start_ns: self.context.offset(self.start.unwrap_or_default()),
            record: self.context.record_info(),
            column_ns: self.width,
            columns: self.nr_columns(),
            is_exact: !self.is_joined,
            targets,
            targets_left_out: self.targets_left_out,
        }
    }

    fn layer(&self, target: TargetId, lists: &[Column], axis: LayerAxis) -> Layer {
        let mut layer = Layer {
            target: self.context.target_info(target),
            axis,
            columns: vec![0],
            ..Layer::default()
        };
        let mut numbers: BTreeMap<&Arc<str>, u32> = BTreeMap::new();
        for run in layer.axis.runs.clone() {
            for (part, name) in self.mappings.parts(target, run.range) {
                let number = *numbers.entry(name).or_insert(layer.names.len() as u32);
                if number == layer.names.len() as u32 {
                    layer.names.push(Arc::clone(name));
                }
                layer.push_mapping(&run, part, number);
            }
        }
        for column in lists {
            let mut next = 0;
            for piece in &column.pieces {
                let runs = layer.axis.runs[next..].iter();
                next += runs.take_while(|run| run.range.end <= piece.start).count();
                // Pieces lie within runs, because runs are built from them.
                if let Some(run) = layer.axis.runs.get(next).copied() {
                    layer.push_piece(&run, piece);
                }
            }
            layer.columns.push(layer.places.len() as u32);
        }
        let columns = self.nr_columns().max(lists.len());
        layer.columns.resize(columns + 1, layer.places.len() as u32);
        layer
    }
}

impl LayerAxis {
    fn of(axis: &Axis) -> Self {
        let unit_bytes = unit_of(axis.bytes());
        let runs = axis.runs.iter().map(|run| AxisRun {
            range: run.range,
            place: (run.offset / unit_bytes) as u32,
        });
        Self {
            unit_bytes,
            runs: runs.collect(),
            segments: segments(axis, unit_bytes),
        }
    }
}

impl Layer {
    fn push_piece(&mut self, run: &AxisRun, piece: &Piece) {
        let range = AddressRange::new(piece.start, piece.end);
        let Some((place, units)) = self.axis.place(run, range) else {
            return;
        };
        self.places.push(place);
        self.units.push(units);
        self.rates.push(rate(piece));
        self.ages.push(age(piece.age));
    }

    fn push_mapping(&mut self, run: &AxisRun, part: AddressRange, name: u32) {
        let Some((place, units)) = self.axis.place(run, part) else {
            return;
        };
        match self.mappings.last_mut() {
            Some(last) if last.name == name && last.place + last.units == place => {
                last.units += units;
            }
            _ => self.mappings.push(LayerMapping { place, units, name }),
        }
    }
}

impl LayerAxis {
    /// Returns the place and the length on the axis of the part of a range that lies in a run.
    fn place(&self, run: &AxisRun, range: AddressRange) -> Option<(u32, u32)> {
        let part = run.range.intersection(range)?;
        let place = |address: u64| (address - run.range.start) / self.unit_bytes;
        let units = place(part.end) - place(part.start);
        (units > 0).then_some((run.place + place(part.start) as u32, units as u32))
    }
}

/// Returns the smallest unit, a power of two of pages, by which an axis of `bytes` has places of 32 bits.
fn unit_of(bytes: u64) -> u64 {
    let mut unit = PAGE_SIZE;
    while bytes / unit > u64::from(u32::MAX) {
        unit *= 2;
    }
    unit
}

fn segments(axis: &Axis, unit_bytes: u64) -> Vec<LayerSegment> {
    let of = |segment: &super::Segment| {
        let place = axis.row_offset(segment.first_row) / unit_bytes;
        let end = axis.row_offset(segment.first_row + segment.rows) / unit_bytes;
        LayerSegment {
            place: place as u32,
            units: (end - place).max(1) as u32,
            gap_before_bytes: segment.gap_before_bytes,
        }
    };
    axis.segments.iter().map(of).collect()
}

fn rate(piece: &Piece) -> u16 {
    let seen = piece.known + piece.unknown;
    if piece.swapped > seen {
        RATE_CODES.swapped
    } else if piece.known <= 0.0 || piece.known < piece.unknown {
        RATE_CODES.unknown
    } else {
        let rate = (piece.accessed / piece.known).clamp(0.0, 1.0);
        (rate * f32::from(RATE_CODES.most)).ceil() as u16
    }
}

/// Encodes an age as 1000 log2(1 + 100 s). The precision is a centisecond at the low end, 0.07 % further up; the value
/// saturates at 20 bits of seconds.
fn age(seconds: f32) -> u16 {
    ((1.0 + f64::from(seconds) * 100.0).log2() * 1000.0).min(65_535.0) as u16
}

#[cfg(test)]
mod tests {
    use super::super::HeatmapOptions;
    use super::*;
    use crate::test_records::{header, snapshot_at};
    use crate::{Accumulate, Scope};
    use isotherm_engine::RegionMemory;
    use isotherm_record::Item;

    fn heatmap(scope: Scope, snapshots: &[&str]) -> Heatmap {
        let mut heatmap = Heatmap::new(&header(), scope, HeatmapOptions::default());
        for (second, text) in (0..).zip(snapshots) {
            let (from, to) = (second * 1000, second * 1000 + 1000);
            heatmap.push(&Item::Snapshot(snapshot_at(0, from, to, text)));
        }
        heatmap
    }

    /// Formats each column's pieces as `place+units=rate`, in tenths.
    fn shown(layer: &Layer) -> Vec<String> {
        let piece = |at: usize| {
            let rate = match layer.rates[at] {
                rate if rate == RATE_CODES.unknown => "?".to_owned(),
                rate if rate == RATE_CODES.swapped => "out".to_owned(),
                rate => format!("{}", (f32::from(rate) / 6500.0).round()),
            };
            format!("{}+{}={rate}", layer.places[at], layer.units[at])
        };
        let column = |pair: &[u32]| {
            let pieces: Vec<String> = (pair[0]..pair[1]).map(|at| piece(at as usize)).collect();
            pieces.join(" ")
        };
        layer.columns.windows(2).map(column).collect()
    }

    #[test]
    fn pieces_are_on_an_axis_without_what_was_never_there() {
        let lines = ["[0,4)=9 [4,8)=0 [1000,1002)=?", "[2,8)=1"];
        let found = heatmap(Scope::default(), &lines).finish_layers(RecordEnd::default());
        let layer = &found.targets[0];
        assert_eq!(shown(layer), ["0+4=9 4+4=0 8+2=?", "2+6=1"]);
        assert_eq!((found.columns, layer.columns.len()), (2, 3));
        let places: Vec<u32> = layer.axis.runs.iter().map(|run| run.place).collect();
        assert_eq!(places, [0, 8]);
        assert_eq!(layer.axis.segments.len(), 2);
        assert_eq!(layer.axis.segments[1].gap_before_bytes, 992 * PAGE_SIZE);
    }

    #[test]
    fn what_is_swapped_out_is_neither_idle_nor_unknown() {
        let mut heatmap = heatmap(Scope::default(), &[]);
        let mut snapshot = snapshot_at(0, 0, 1000, "[0,4)=9 [4,8)=0 [8,9)=0");
        let memory = [(4, 0), (0, 4), (0, 0)];
        for (region, (resident, swapped)) in snapshot.regions.iter_mut().zip(memory) {
            region.memory = Some(RegionMemory {
                resident: resident * PAGE_SIZE,
                swapped: swapped * PAGE_SIZE,
                ..RegionMemory::default()
            });
        }
        heatmap.push(&Item::Snapshot(snapshot));
        let layers = heatmap.finish_layers(RecordEnd::default());
        assert_eq!(shown(&layers.targets[0]), ["0+4=9 4+4=out"]);
    }

    #[test]
    fn a_place_has_32_bits_however_much_memory() {
        assert_eq!(unit_of(1 << 30), PAGE_SIZE);
        assert_eq!(unit_of(16 << 40), 2 * PAGE_SIZE);
        assert_eq!(unit_of(16 << 50), 2048 * PAGE_SIZE);
    }

    #[test]
    fn a_part_stands_on_the_axis_of_the_whole() {
        let lines = ["[0,4)=9 [4,8)=0 [1000,1002)=?", "[2,8)=1 [1000,1002)=5"];
        let whole = heatmap(Scope::default(), &lines).finish_layers(RecordEnd::default());
        let scope = Scope {
            from: Some(Nanos::from_millis(1000)),
            ..Scope::default()
        };
        let part = heatmap(scope, &lines);
        let part = part.finish_layer_on(TargetId(0), &whole.targets[0].axis);
        assert_eq!(shown(&part.targets[0]), ["2+6=1 8+2=5"]);
        assert_eq!(part.targets[0].axis, whole.targets[0].axis);
        assert_eq!(part.start_ns, Nanos::from_millis(1000));
        assert!(part.is_exact);
    }
}
