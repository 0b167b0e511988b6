//! Heat maps of a record, or of a part of it.

use isotherm_report::heatmap::{Layer, Layers};
use serde_json::{Value, json};

use super::list;
use crate::container::Arrays;

pub(super) fn json(layers: &Layers, arrays: &mut Arrays) -> Value {
    json!({
        "start_s": layers.start_ns.as_secs_f64(),
        "column_s": layers.column_ns.as_secs_f64(),
        "columns": layers.columns,
        "is_exact": layers.is_exact,
        "left_out": layers.targets_left_out,
        "of": list(&layers.targets, |of| layer(of, arrays)),
    })
}

fn layer(layer: &Layer, arrays: &mut Arrays) -> Value {
    let runs = layer.axis.runs.iter();
    // Addresses are text, because 64 bits do not fit in the page's numbers.
    let addresses = runs.clone().map(|run| format!("{:#x}", run.range.start));
    let mappings = layer.mappings.iter();
    json!({
        "label": layer.target.label(),
        "unit_bytes": layer.axis.unit_bytes,
        "runs": arrays.u32(runs.map(|run| run.place)),
        "run_addresses": addresses.collect::<Vec<_>>(),
        "segments": layer.axis.segments,
        "names": layer.names.iter().map(|name| &**name).collect::<Vec<_>>(),
        "mappings": arrays.u32(mappings.flat_map(|m| [m.place, m.units, m.name])),
        "columns": arrays.u32(layer.columns.iter().copied()),
        "gaps": arrays.u32(gaps(layer)),
        "units": arrays.u32(layer.units.iter().copied()),
        "rates": arrays.u16(&layer.rates),
        "ages": arrays.u16(&layer.ages),
    })
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
