//! Writes damo's JSON from a record of ours.
//!
//! damo keeps each target's snapshots together, while our record is in the order of time. damo also knows one pair of
//! intervals for all of a target's snapshots. Where the number of checks changed (intervals were retuned), the export
//! begins another record of the same target. One pass writes each snapshot's JSON to a temporary file and notes its
//! place. Then the pieces are copied out target by target. It needs 24 bytes of memory for each snapshot.
//!
//! Beside damo's own names, a snapshot gets `nr_samples` (the number of checks of each region). damo ignores it and
//! [`import`](super::import()) reads it back, since intervals in microseconds do not always give it exactly.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use isotherm_engine::{Intervals, Nanos, Snapshot};

use super::setting::{RECORD_SETTING, RecordFields, RecordSetting, SaidIntervals};

use crate::convert::{Conversion, ConvertError};
use crate::item::{Header, Item};
use crate::reader::Reader;

/// Writes the rest of `record` as damo's `json`. Intermediate data goes to `folder`.
///
/// For `json_compressed`, let `output` be a zlib encoder.
pub fn export_json<R: Read, W: Write>(
    record: &mut Reader<R>,
    folder: &Path,
    output: W,
) -> Result<Conversion, ConvertError> {
    let scratch = |source| ConvertError::scratch(folder, source);
    let mut conversion = Conversion::default();
    let mut pieces = BufWriter::new(tempfile::tempfile_in(folder).map_err(scratch)?);
    let mut lists: BTreeMap<Key, List> = BTreeMap::new();
    let mut text = String::new();
    let mut offset = 0;
    record.turn_pages_into_regions();
    let record_aggregation = record.header().aggregation_interval;
    for item in &mut *record {
        let snapshot = match item? {
            Item::Snapshot(snapshot) => snapshot,
            other => {
                conversion.left_out.add(other.plural(), 1);
                continue;
            }
        };
        text.clear();
        push_snapshot(&mut text, &snapshot, &mut conversion);
        pieces.write_all(text.as_bytes()).map_err(scratch)?;
        let length = text.len() as u64;
        lists
            .entry((snapshot.target.0, snapshot.nr_samples))
            .or_insert_with(|| List::new(record_aggregation, &snapshot))
            .pieces
            .push((offset, length));
        offset += length;
        conversion.snapshots += 1;
    }
    let mut pieces = pieces
        .into_inner()
        .map_err(|error| scratch(error.into_error()))?;
    write_lists(record.header(), &lists, &mut pieces, output)?;
    Ok(conversion)
}

/// Target and `nr_samples`.
type Key = (u32, u32);

/// The snapshots of one of damo's records.
struct List {
    aggregation: Nanos,
    pieces: Vec<(u64, u64)>,
}

impl List {
    fn new(usual: Nanos, first: &Snapshot) -> Self {
        let lasted = first.end.since(first.start);
        // Snapshots last a little longer or shorter than requested; the difference is large where intervals changed.
        let near = lasted.0.abs_diff(usual.0) <= usual.0 / 4;
        Self {
            aggregation: if near { usual } else { lasted },
            pieces: Vec::new(),
        }
    }
}

fn push_snapshot(out: &mut String, snapshot: &Snapshot, conversion: &mut Conversion) {
    let mut total = 0u64;
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "{{\"start_time\": \"{}\", \"end_time\": \"{}\", \"nr_samples\": {}, \"regions\": [",
        snapshot.start.0, snapshot.end.0, snapshot.nr_samples
    );
    let mut first = true;
    for region in &snapshot.regions {
        let Some(samples) = region.nr_accesses else {
            conversion.left_out.unknown_regions += 1;
            continue;
        };
        conversion.regions += 1;
        if region.memory.is_some() {
            conversion
                .left_out
                .add("regions' resident and swapped bytes", 1);
        }
        total = total.saturating_add(region.range.len());
        out.push_str(if first { "" } else { ", " });
        first = false;
        let percent = f64::from(samples) * 100.0 / f64::from(snapshot.nr_samples.max(1));
        let _ = write!(
            out,
            "{{\"start\": \"{}\", \"end\": \"{}\", \
             \"nr_accesses\": {{\"samples\": {samples}, \"percent\": {percent}}}, \
             \"age\": {{\"usec\": \"{}\", \"aggr_intervals\": \"{}\"}}, \
             \"probe_hits\": [], \"sz_filter_passed\": \"0\"}}",
            region.range.start,
            region.range.end,
            Micros(region.age_ns),
            region.age
        );
    }
    let _ = write!(
        out,
        "], \"total_bytes\": \"{total}\", \"damos_stats\": null, \"sample_interval_us\": null}}"
    );
}

/// Microseconds, with a fraction where there is one.
struct Micros(Nanos);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nanos(nanos) = self.0;
        match nanos % 1000 {
            0 => write!(f, "{}", nanos / 1000),
            rest => write!(f, "{}.{rest:03}", nanos / 1000),
        }
    }
}

fn write_lists(
    header: &Header,
    lists: &BTreeMap<Key, List>,
    pieces: &mut File,
    output: impl Write,
) -> Result<(), ConvertError> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    let mut pieces = BufReader::with_capacity(1 << 16, pieces);
    pieces.rewind().map_err(ConvertError::Read)?;
    output.write_all(b"[").map_err(ConvertError::Write)?;
    let mut at = 0;
    for (index, ((target, nr_samples), list)) in lists.iter().enumerate() {
        let head = head(header, *target, *nr_samples, list.aggregation);
        let separator = if index > 0 { ", " } else { "" };
        write!(output, "{separator}{head}").map_err(ConvertError::Write)?;
        for (number, (offset, length)) in list.pieces.iter().enumerate() {
            let separator: &[u8] = if number > 0 { b", " } else { b"" };
            output.write_all(separator).map_err(ConvertError::Write)?;
            // The seek is relative, so that adjacent pieces come from the buffer.
            let step = *offset as i64 - at;
            pieces.seek_relative(step).map_err(ConvertError::Read)?;
            std::io::copy(&mut (&mut pieces).take(*length), &mut output)
                .map_err(ConvertError::Write)?;
            at = (*offset + *length) as i64;
        }
        output
            .write_all(b"], \"data_source\": \"unknown\"}")
            .map_err(ConvertError::Write)?;
    }
    output
        .write_all(b"]\n")
        .and_then(|()| output.flush())
        .map_err(ConvertError::Write)
}

/// Returns damo's own fields of this target, if the record came from damo.
fn setting(header: &Header, target: u32) -> RecordSetting {
    header
        .settings
        .get(&format!("{RECORD_SETTING}{target}"))
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_else(|| RecordSetting {
            fields: RecordFields {
                kdamond_idx: Some(0),
                context_idx: Some(0),
                scheme_idx: None,
                target_id: Some(target.into()),
            },
            intervals: Vec::new(),
        })
}

/// Formats the object up to its snapshots, in damo's order of names.
fn head(header: &Header, target: u32, nr_samples: u32, aggregation: Nanos) -> String {
    let RecordSetting { fields, intervals } = setting(header, target);
    let said = intervals
        .into_iter()
        .find(|(checks, _)| *checks == nr_samples);
    let intervals = match said {
        Some((_, said)) => said.map_or_else(|| "null".to_string(), |said| said_intervals(&said)),
        None => intervals_of(header, nr_samples, aggregation),
    };
    let json = |value: serde_json::Value| value.to_string();
    format!(
        "{{\"kdamond_idx\": {}, \"context_idx\": {}, \"intervals\": {intervals}, \
         \"scheme_idx\": {}, \"target_id\": {}, \
         \"scheme_filters\": [], \"snapshots\": [",
        json(serde_json::json!(fields.kdamond_idx)),
        json(serde_json::json!(fields.context_idx)),
        json(serde_json::json!(fields.scheme_idx)),
        json(serde_json::json!(fields.target_id)),
    )
}

/// Formats intervals as damo wrote them.
fn said_intervals(said: &SaidIntervals) -> String {
    let goal = said.goal.as_ref();
    let goal = goal.map(|goal| format!(", \"intervals_goal\": {goal}"));
    format!(
        "{{\"sample_us\": \"{}\", \"aggr_us\": \"{}\", \"ops_update_us\": \"{}\"{}}}",
        Micros(said.intervals.sample),
        Micros(said.intervals.aggregation),
        Micros(said.intervals.update),
        goal.unwrap_or_default(),
    )
}

/// Formats the intervals of a record that did not come from damo.
fn intervals_of(header: &Header, nr_samples: u32, aggregation: Nanos) -> String {
    // damo divides by these values.
    let positive = |time: Nanos| time.max(Nanos(1000));
    let update = match header.update_interval {
        Nanos(0) => aggregation,
        update => update,
    };
    said_intervals(&SaidIntervals {
        intervals: Intervals {
            sample: positive(Nanos(aggregation.0 / u64::from(nr_samples.max(1)))),
            aggregation: positive(aggregation),
            update: positive(update),
        },
        goal: None,
    })
}
