//! Reads damo's `json` and `json_compressed`: a list of records, one for each target and scheme.
//!
//! Each region is made small as it is parsed, so that memory does not grow with how wordy the JSON
//! is. damo says how often a region was checked only through its intervals; where they are missing
//! the defaults are assumed, and a warning says so.

use std::io::{BufReader, Read};

use flate2::read::ZlibDecoder;
use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Collector, DEFAULT_AGGREGATION, DEFAULT_SAMPLE, DamoError, Imported, Limited, checks, header,
    in_order, units,
};

/// Reads damo's JSON.
pub fn read(input: impl Read) -> Result<Imported, DamoError> {
    import(input, "json")
}

/// Reads damo's zlib-compressed JSON.
pub fn read_compressed(input: impl Read) -> Result<Imported, DamoError> {
    import(ZlibDecoder::new(input), "json_compressed")
}

#[derive(Deserialize)]
struct RecordIn {
    #[serde(default)]
    kdamond_idx: Value,
    #[serde(default)]
    context_idx: Value,
    #[serde(default)]
    intervals: Option<IntervalsIn>,
    #[serde(default)]
    target_id: Value,
    snapshots: Vec<SnapshotIn>,
}

#[derive(Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are damo's")]
struct IntervalsIn {
    sample_us: Value,
    aggr_us: Value,
    #[serde(default)]
    ops_update_us: Value,
}

#[derive(Deserialize)]
struct SnapshotIn {
    start_time: Value,
    end_time: Value,
    #[serde(default)]
    sample_interval_us: Value,
    regions: Vec<RegionIn>,
}

#[derive(Deserialize)]
struct RawRegion {
    start: Value,
    end: Value,
    #[serde(default)]
    nr_accesses: Option<RawAccesses>,
    #[serde(default)]
    age: Option<RawAge>,
}

#[derive(Default, Deserialize)]
struct RawAccesses {
    #[serde(default)]
    samples: Value,
    #[serde(default)]
    percent: Value,
}

#[derive(Default, Deserialize)]
struct RawAge {
    #[serde(default)]
    usec: Value,
    #[serde(default)]
    aggr_intervals: Value,
}

/// A region without its words.
#[derive(Deserialize)]
#[serde(try_from = "RawRegion")]
struct RegionIn {
    start: u64,
    end: u64,
    samples: Option<f32>,
    percent: Option<f32>,
    age_ns: Option<u64>,
    age: Option<u32>,
}

/// `parse` of a value that may be missing.
fn optional<T>(
    value: &Value,
    what: &str,
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, String> {
    if value.is_null() {
        return Ok(None);
    }
    match parse(value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(format!("{what} {value} is not a number or amount")),
    }
}

fn required<T>(
    value: &Value,
    what: &str,
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<T, String> {
    optional(value, what, parse)?.ok_or_else(|| format!("{what} is missing"))
}

impl TryFrom<RawRegion> for RegionIn {
    type Error = String;

    fn try_from(raw: RawRegion) -> Result<Self, String> {
        let accesses = raw.nr_accesses.unwrap_or_default();
        let age = raw.age.unwrap_or_default();
        let small = |n: Option<f64>| n.map(|n| n as f32);
        let intervals = optional(&age.aggr_intervals, "age.aggr_intervals", units::number)?;
        Ok(Self {
            start: required(&raw.start, "a region's start", units::bytes)?,
            end: required(&raw.end, "a region's end", units::bytes)?,
            samples: small(optional(&accesses.samples, "samples", units::number)?),
            percent: small(optional(&accesses.percent, "percent", units::number)?),
            age_ns: optional(&age.usec, "age.usec", |v| units::time(v, 1000))?,
            // A cast from a float saturates; damo's fake region has -1.
            age: intervals.map(|n| n as u32),
        })
    }
}

fn import(input: impl Read, format: &str) -> Result<Imported, DamoError> {
    let mut reader = BufReader::with_capacity(1 << 16, Limited::new(input));
    let parsed: Result<Vec<RecordIn>, _> = serde_json::from_reader(&mut reader);
    let records = parsed.map_err(|error| {
        if reader.get_ref().exceeded {
            DamoError::TooLarge
        } else if error.is_io() {
            DamoError::Read(error.into())
        } else {
            DamoError::Json(error.to_string())
        }
    })?;
    let mut collector = Collector::default();
    let mut intervals = None;
    let mut guessed = 0u64;
    for (number, record) in records.into_iter().enumerate() {
        let in_record = |reason| DamoError::Invalid(format!("record {number}: {reason}"));
        let own = record.intervals.as_ref().map(Intervals::of).transpose();
        let own = own.map_err(in_record)?;
        if let (None, Some(own)) = (&intervals, own) {
            intervals = Some(own);
        }
        let target_id = &record.target_id;
        let key = [&record.kdamond_idx, &record.context_idx, target_id].map(Value::to_string);
        let target = collector.target(key, || format!("damo target {}", bare(target_id)));
        for snapshot in record.snapshots {
            let (mut snapshot, guess) = snapshot.finish(own).map_err(in_record)?;
            snapshot.target = target;
            guessed += u64::from(guess);
            collector.snapshots.push(snapshot);
        }
    }
    let started = collector.snapshots.iter().map(|s| s.start).min();
    let known = intervals.unwrap_or_default();
    let mut header = header(
        format,
        started.unwrap_or_default(),
        known.sample,
        known.aggregation,
    );
    header.update_interval = known.update;
    let mut warnings = Vec::new();
    if guessed > 0 {
        warnings.push(format!(
            "{guessed} snapshots do not say at which intervals they were taken; damo's defaults \
             (5 ms, 100 ms) are assumed, so their access rates may be wrong"
        ));
    }
    Ok(Imported {
        header,
        items: collector.into_items(),
        warnings,
    })
}

/// A target's id as it was written, without quotes.
fn bare(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_string)
}

#[derive(Clone, Copy)]
struct Intervals {
    sample: Nanos,
    aggregation: Nanos,
    update: Nanos,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            sample: DEFAULT_SAMPLE,
            aggregation: DEFAULT_AGGREGATION,
            update: Nanos::from_millis(1000),
        }
    }
}

impl Intervals {
    fn of(intervals: &IntervalsIn) -> Result<Self, String> {
        let micros = |value: &Value| units::time(value, 1000).map(Nanos);
        let read = Self {
            sample: required(&intervals.sample_us, "sample_us", micros)?,
            aggregation: required(&intervals.aggr_us, "aggr_us", micros)?,
            update: optional(&intervals.ops_update_us, "ops_update_us", micros)?
                .unwrap_or_default(),
        };
        if read.sample.0 == 0 || read.aggregation.0 == 0 {
            return Err("its sampling or aggregation interval is 0".to_string());
        }
        Ok(read)
    }
}

impl SnapshotIn {
    /// The snapshot, and whether its intervals were guessed.
    fn finish(self, intervals: Option<Intervals>) -> Result<(Snapshot, bool), String> {
        let nanos = |value: &Value| units::time(value, 1).map(Nanos);
        let start = required(&self.start_time, "start_time", nanos)?;
        let end = required(&self.end_time, "end_time", nanos)?;
        if end < start {
            return Err(format!(
                "a snapshot ends at {} ns, before it starts at {} ns",
                end.0, start.0
            ));
        }
        let micros = |value: &Value| units::time(value, 1000).map(Nanos);
        let sample = optional(&self.sample_interval_us, "sample_interval_us", micros)?;
        let sample = sample.filter(|s| s.0 > 0);
        let (known, guess) = match (intervals, sample) {
            (Some(intervals), _) => (intervals, false),
            (None, Some(sample)) if end > start => (
                Intervals {
                    sample,
                    aggregation: end.since(start),
                    ..Intervals::default()
                },
                false,
            ),
            (None, _) => (Intervals::default(), true),
        };
        let mut nr_samples = checks(known.sample, known.aggregation);
        if guess {
            let most = self.regions.iter().filter_map(|r| r.samples);
            nr_samples = most.fold(nr_samples, |most, n| most.max(n.ceil() as u32));
        }
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            regions.extend(region.finish(nr_samples, known.aggregation)?);
        }
        in_order(&mut regions)?;
        let snapshot = Snapshot {
            start,
            end,
            nr_samples,
            regions,
            ..Snapshot::default()
        };
        Ok((snapshot, guess))
    }
}

impl RegionIn {
    /// `None` for an empty region, as damo's fake one is.
    fn finish(
        &self,
        nr_samples: u32,
        aggregation: Nanos,
    ) -> Result<Option<RegionSnapshot>, String> {
        let (start, end) = (self.start, self.end);
        if start == end {
            return Ok(None);
        }
        let range = AddressRange::checked(start, end)
            .ok_or_else(|| format!("a region ends at {end:#x}, before it starts at {start:#x}"))?;
        let of_percent = self.percent.map(|p| p / 100.0 * nr_samples as f32);
        let nr_accesses = self.samples.or(of_percent);
        if nr_accesses.is_some_and(|n| !n.is_finite() || n < 0.0) {
            return Err(format!("the region {range:?} has {nr_accesses:?} accesses"));
        }
        let of_age = |age: u32| aggregation.0.saturating_mul(age.into());
        let age_ns = self.age_ns.or(self.age.map(of_age)).unwrap_or(0);
        let of_time = || u32::try_from(age_ns / aggregation.0.max(1)).unwrap_or(u32::MAX);
        Ok(Some(RegionSnapshot {
            range,
            nr_accesses,
            age: self.age.unwrap_or_else(of_time),
            age_ns: Nanos(age_ns),
        }))
    }
}
