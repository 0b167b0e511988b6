//! Heat maps.

use isotherm_report::heatmap::{Layer, LayerSegment, Layers};
use serde::Serialize;

use crate::container::{Arrays, Ref};

/// The layers of a record, or of a part of it.
#[derive(Serialize)]
pub(crate) struct LayersJson<'a> {
    start_s: f64,
    column_s: f64,
    columns: usize,
    is_exact: bool,
    left_out: usize,
    of: Vec<LayerJson<'a>>,
}

impl<'a> LayersJson<'a> {
    pub(crate) fn of(layers: &'a Layers, arrays: &mut Arrays) -> Self {
        Self {
            start_s: layers.start_ns.as_secs_f64(),
            column_s: layers.column_ns.as_secs_f64(),
            columns: layers.columns,
            is_exact: layers.is_exact,
            left_out: layers.targets_left_out,
            of: layers.targets.iter().map(|l| layer(l, arrays)).collect(),
        }
    }
}

#[derive(Serialize)]
struct LayerJson<'a> {
    label: String,
    unit_bytes: u64,
    runs: Ref,
    /// Addresses as text, because 64 bits do not fit in the page's numbers.
    run_addresses: Vec<String>,
    segments: &'a [LayerSegment],
    names: Vec<&'a str>,
    mappings: Ref,
    columns: Ref,
    gaps: Ref,
    units: Ref,
    rates: Ref,
    ages: Ref,
}

fn layer<'a>(layer: &'a Layer, arrays: &mut Arrays) -> LayerJson<'a> {
    let mappings = layer.mappings.iter();
    LayerJson {
        label: layer.target.label(),
        unit_bytes: layer.axis.unit_bytes,
        runs: arrays.u32(layer.axis.runs.iter().map(|run| run.place)),
        run_addresses: layer
            .axis
            .runs
            .iter()
            .map(|run| format!("{:#x}", run.range.start))
            .collect(),
        segments: &layer.axis.segments,
        names: layer.names.iter().map(|name| &**name).collect(),
        mappings: arrays.u32(mappings.flat_map(|m| [m.place, m.units, m.name])),
        columns: arrays.u32(layer.columns.iter().copied()),
        gaps: arrays.u32(gaps(layer)),
        units: arrays.u32(layer.units.iter().copied()),
        rates: arrays.u16(&layer.rates),
        ages: arrays.u16(&layer.ages),
    }
}

/// Iterates over the gaps before each piece in its column. Most gaps are zero, which packs well.
fn gaps(layer: &Layer) -> impl Iterator<Item = u32> {
    layer.columns.windows(2).flat_map(move |pair| {
        let mut end = 0;
        (pair[0]..pair[1]).map(move |at| {
            let at = at as usize;
            let gap = layer.places[at] - end;
            end = layer.places[at] + layer.units[at];
            gap
        })
    })
}
