//! What a heatmap knows before it is put into cells: columns of pieces, exact to the page as far as the bounds of
//! [`super`] allow. For pages that zoom, and make cells of it themselves.
//!
//! Addresses are places on an axis that leaves unmapped addresses out: [`AxisRun`]s say which lie where, in units of
//! [`Layer::unit_bytes`], so that a place has 32 bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, TargetId};
use serde::Serialize;

use super::axis::Axis;
use super::column::{self, Column, Piece};
use super::{Heatmap, RecordInfo, TargetInfo};

/// Rates as 16 bits, and what is none above them.
pub const RATE_CODES: RateCodes = RateCodes {
    most: 65_000,
    swapped: 65_533,
    unknown: 65_534,
};

/// How [`Layer::rates`] are to be read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RateCodes {
    /// This is a rate of 1.
    pub most: u16,
    /// This is no rate: all of it is swapped out.
    pub swapped: u16,
    /// Nor is this: it is not known.
    pub unknown: u16,
}

/// Addresses that stand on the axis as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisRun {
    /// These addresses.
    pub range: AddressRange,
    /// Where on the axis they begin, in units.
    pub place: u32,
}

/// A part of the axis between gaps that are marked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSegment {
    /// Where on the axis it begins, in units.
    pub place: u32,
    /// How long it is there, in units.
    pub units: u32,
    /// Bytes cut out between the segment before and this one.
    pub gap_before_bytes: u64,
}

/// What was last known to lie somewhere on the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMapping {
    /// Where it begins, in units.
    pub place: u32,
    /// How long it is there, in units.
    pub units: u32,
    /// Which of [`Layer::names`].
    pub name: u32,
}

/// One target's.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Whose memory.
    pub target: TargetInfo,
    /// Bytes of a place on the axis: a page, and more where the axis is longer than 32 bits.
    pub unit_bytes: u64,
    /// From the lowest address up.
    pub runs: Vec<AxisRun>,
    /// From the lowest address up.
    pub segments: Vec<LayerSegment>,
    /// Names of mappings.
    pub names: Vec<Arc<str>>,
    /// From the lowest address up.
    pub mappings: Vec<LayerMapping>,
    /// How many pieces there are before each column, and after the last: one more than columns.
    pub columns: Vec<u32>,
    /// Where each piece begins.
    pub places: Vec<u32>,
    /// How long each is.
    pub units: Vec<u32>,
    /// The mean access rate of each; see [`RATE_CODES`].
    pub rates: Vec<u16>,
    /// For how long each had about that rate: 1000 log2(1 + 100 s).
    pub ages: Vec<u16>,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// Where the facts come from.
    pub record: RecordInfo,
    /// When the first column begins.
    pub start_ns: Nanos,
    /// How much time a column stands for.
    pub column_ns: Nanos,
    /// How many columns.
    pub columns: usize,
    /// The targets, the largest first.
    pub targets: Vec<Layer>,
    /// How many smaller targets were left out.
    pub targets_left_out: usize,
}

impl Heatmap {
    /// All that is known, instead of the report.
    pub fn finish_layers(mut self) -> Layers {
        let start = self.start.unwrap_or_default();
        let columns = self.nr_columns();
        let targets = self.take_largest();
        Layers {
            start_ns: self.context.offset(start),
            record: self.context.record_info(),
            column_ns: self.width,
            columns,
            targets: targets
                .iter()
                .map(|(target, lists)| self.layer(*target, lists, columns))
                .collect(),
            targets_left_out: self.targets_left_out,
        }
    }

    fn layer(&self, target: TargetId, lists: &[Column], columns: usize) -> Layer {
        let axis = Axis::new(&column::covered(lists, |_| true), self.options.rows);
        let unit_bytes = unit_of(axis.bytes());
        let mut layer = Layer {
            target: self.context.target_info(target),
            unit_bytes,
            runs: Vec::with_capacity(axis.runs.len()),
            segments: segments(&axis, unit_bytes),
            names: Vec::new(),
            mappings: Vec::new(),
            columns: vec![0],
            places: Vec::new(),
            units: Vec::new(),
            rates: Vec::new(),
            ages: Vec::new(),
        };
        let mut numbers: BTreeMap<&Arc<str>, u32> = BTreeMap::new();
        for run in &axis.runs {
            layer.runs.push(AxisRun {
                range: run.range,
                place: (run.offset / unit_bytes) as u32,
            });
            for (part, name) in self.mappings.parts(target, run.range) {
                let number = *numbers.entry(name).or_insert(layer.names.len() as u32);
                if number == layer.names.len() as u32 {
                    layer.names.push(Arc::clone(name));
                }
                let from = run.offset + (part.start - run.range.start);
                layer.push_mapping(from, part.len(), number);
            }
        }
        for column in lists {
            let mut runs = axis.runs.iter().peekable();
            for piece in &column.pieces {
                while runs.next_if(|run| run.range.end <= piece.start).is_some() {}
                // Pieces lie in runs, which are made of them.
                if let Some(run) = runs.peek() {
                    let from = run.offset + piece.start.saturating_sub(run.range.start);
                    layer.push_piece(from, piece);
                }
            }
            layer.columns.push(layer.places.len() as u32);
        }
        layer
            .columns
            .resize(columns.max(lists.len()) + 1, layer.places.len() as u32);
        layer
    }
}

impl Layer {
    fn push_piece(&mut self, from: u64, piece: &Piece) {
        let place = from / self.unit_bytes;
        let end = (from + (piece.end - piece.start)) / self.unit_bytes;
        if end > place {
            self.places.push(place as u32);
            self.units.push((end - place) as u32);
            self.rates.push(rate(piece));
            self.ages.push(age(piece.age));
        }
    }

    fn push_mapping(&mut self, from: u64, bytes: u64, name: u32) {
        let place = from / self.unit_bytes;
        let units = ((from + bytes) / self.unit_bytes - place) as u32;
        let place = place as u32;
        match self.mappings.last_mut() {
            Some(last) if last.name == name && last.place + last.units == place => {
                last.units += units;
            }
            _ => self.mappings.push(LayerMapping { place, units, name }),
        }
    }
}

/// The least power of two of pages by which an axis of so many bytes has places of 32 bits.
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

/// 1000 log2(1 + 100 s): a centisecond at the low end, 0.07 % further up, 20 bits of seconds at most.
fn age(seconds: f32) -> u16 {
    ((1.0 + f64::from(seconds) * 100.0).log2() * 1000.0).min(65_535.0) as u16
}

#[cfg(test)]
mod tests {
    use super::super::HeatmapOptions;
    use super::*;
    use crate::samples::{header, snapshot_at};
    use crate::{Accumulate, Scope};
    use isotherm_engine::RegionMemory;
    use isotherm_record::Item;

    fn layers(snapshots: &[&str]) -> Layers {
        let mut heatmap = Heatmap::new(&header(), Scope::default(), HeatmapOptions::default());
        for (second, text) in (0..).zip(snapshots) {
            let (from, to) = (second * 1000, second * 1000 + 1000);
            heatmap.push(&Item::Snapshot(snapshot_at(0, from, to, text)));
        }
        heatmap.finish_layers()
    }

    /// Each column's pieces, as `place+units=rate`, in tenths.
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
        let found = layers(&["[0,4)=9 [4,8)=0 [1000,1002)=?", "[2,8)=1"]);
        let layer = &found.targets[0];
        assert_eq!(shown(layer), ["0+4=9 4+4=0 8+2=?", "2+6=1"]);
        assert_eq!((found.columns, layer.columns.len()), (2, 3));
        let places: Vec<u32> = layer.runs.iter().map(|run| run.place).collect();
        assert_eq!(places, [0, 8]);
        assert_eq!(layer.segments.len(), 2);
        assert_eq!(layer.segments[1].gap_before_bytes, 992 * PAGE_SIZE);
    }

    #[test]
    fn what_is_swapped_out_is_neither_idle_nor_unknown() {
        let mut heatmap = Heatmap::new(&header(), Scope::default(), HeatmapOptions::default());
        let mut snapshot = snapshot_at(0, 0, 1000, "[0,4)=9 [4,8)=0 [8,9)=0");
        for (region, (resident, swapped)) in
            snapshot.regions.iter_mut().zip([(4, 0), (0, 4), (0, 0)])
        {
            region.memory = Some(RegionMemory {
                resident: resident * PAGE_SIZE,
                swapped: swapped * PAGE_SIZE,
                ..RegionMemory::default()
            });
        }
        heatmap.push(&Item::Snapshot(snapshot));
        assert_eq!(
            shown(&heatmap.finish_layers().targets[0]),
            ["0+4=9 4+4=out"]
        );
    }

    #[test]
    fn a_place_has_32_bits_however_much_memory() {
        assert_eq!(unit_of(1 << 30), PAGE_SIZE);
        assert_eq!(unit_of(16 << 40), 2 * PAGE_SIZE);
        assert_eq!(unit_of(16 << 50), 2048 * PAGE_SIZE);
    }
}
