//! Reads damo's JSON, a snapshot at a time.
//!
//! The file is one list of objects, each with a list of snapshots that can be gigabytes long. The module therefore
//! walks the two outer levels itself, and holds only single snapshots. Names and units are those of `DamonRecord`,
//! `DamonSnapshot` and `DamonRegion.to_kvpairs` in damo.

use std::fmt;
use std::io::Read;

use isotherm_engine::{AddressRange, Intervals, Nanos, RegionSnapshot, Snapshot};
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::collected::{Collected, List};
use super::setting::{RecordFields, SaidIntervals, nr_samples};
use super::text::{Bytes, Microseconds, Nanoseconds, Number};

use crate::convert::{ConvertError, DEFAULT_NR_SAMPLES};
use crate::writer::MAX_REGIONS;

#[derive(Deserialize)]
struct DamoIntervals {
    #[serde(rename = "sample_us")]
    sample: Microseconds,
    #[serde(rename = "aggr_us")]
    aggregation: Microseconds,
    #[serde(rename = "ops_update_us")]
    update: Microseconds,
    #[serde(rename = "intervals_goal", default)]
    goal: Option<serde_json::Value>,
}

impl From<DamoIntervals> for SaidIntervals {
    fn from(damo: DamoIntervals) -> Self {
        Self {
            intervals: Intervals {
                sample: Nanos(damo.sample.0),
                aggregation: Nanos(damo.aggregation.0),
                update: Nanos(damo.update.0),
            },
            goal: damo.goal,
        }
    }
}

#[derive(Deserialize)]
struct DamoSnapshot {
    start_time: Option<Nanoseconds>,
    end_time: Nanoseconds,
    #[serde(deserialize_with = "bounded_regions")]
    regions: Vec<DamoRegion>,
    #[serde(default)]
    damos_stats: Option<IgnoredAny>,
    /// Number of checks of each region; our own field beside damo's.
    #[serde(default)]
    nr_samples: Option<u32>,
}

#[derive(Deserialize)]
struct DamoRegion {
    start: Bytes,
    end: Bytes,
    #[serde(default)]
    nr_accesses: Option<DamoAccesses>,
    #[serde(default)]
    age: Option<DamoAge>,
    #[serde(default)]
    probe_hits: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    sz_filter_passed: Option<Bytes>,
}

#[derive(Deserialize)]
struct DamoAccesses {
    #[serde(default)]
    samples: Option<Number>,
    #[serde(default)]
    percent: Option<Number>,
}

#[derive(Deserialize)]
struct DamoAge {
    #[serde(default)]
    usec: Option<Microseconds>,
    #[serde(default)]
    aggr_intervals: Option<Number>,
}

impl DamoAge {
    fn is_known(&self) -> bool {
        self.usec.is_some() || self.aggr_intervals.is_some()
    }
}

/// Reads all of `input` into `collected`.
pub(crate) fn read(input: impl Read, collected: &mut Collected<'_>) -> Result<(), ConvertError> {
    let mut deserializer = serde_json::Deserializer::from_reader(input);
    let mut walk = Walk {
        collected,
        failure: None,
    };
    let walked = (&mut deserializer).deserialize_seq(Records(&mut walk));
    if let Some(failure) = walk.failure {
        return Err(failure);
    }
    walked
        .and_then(|()| deserializer.end())
        .map_err(ConvertError::Json)
}

/// The visitors' shared state. A failure that is not JSON's own waits here until they have unwound.
struct Walk<'c, 'f> {
    collected: &'c mut Collected<'f>,
    failure: Option<ConvertError>,
}

struct Records<'w, 'c, 'f>(&'w mut Walk<'c, 'f>);

impl<'de> Visitor<'de> for Records<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records, as damo writes it")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        while records.next_element_seed(Record(self.0))?.is_some() {}
        Ok(())
    }
}

struct Record<'w, 'c, 'f>(&'w mut Walk<'c, 'f>);

impl<'de> DeserializeSeed<'de> for Record<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Record<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record with `target_id` and `snapshots`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let walk = self.0;
        let mut fields = RecordFields::default();
        let mut said: Option<SaidIntervals> = None;
        let mut has_snapshots = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "kdamond_idx" if !has_snapshots => fields.kdamond_idx = map.next_value()?,
                "context_idx" if !has_snapshots => fields.context_idx = map.next_value()?,
                "scheme_idx" if !has_snapshots => fields.scheme_idx = map.next_value()?,
                "target_id" if !has_snapshots => fields.target_id = map.next_value()?,
                "intervals" if !has_snapshots => {
                    said = map
                        .next_value::<Option<DamoIntervals>>()?
                        .map(SaidIntervals::from);
                }
                "scheme_filters" => {
                    let filters = map.next_value::<Option<Vec<IgnoredAny>>>()?;
                    let count = filters.map_or(0, |filters| filters.len());
                    walk.collected.left_out("scheme filters", count as u64);
                }
                "snapshots" if !has_snapshots => {
                    has_snapshots = true;
                    let list = match walk.collected.begin(fields.clone()) {
                        Ok(list) => list,
                        Err(failure) => {
                            walk.failure = Some(failure);
                            return Err(A::Error::custom("stopped"));
                        }
                    };
                    walk.collected.keep_intervals(list, said.clone());
                    map.next_value_seed(Snapshots {
                        walk,
                        list,
                        intervals: said.as_ref().map(|said| said.intervals),
                    })?;
                }
                // Fields about the snapshots' target and units must come before the snapshots.
                "snapshots" | "kdamond_idx" | "context_idx" | "scheme_idx" | "target_id"
                | "intervals" => {
                    return Err(A::Error::custom(format_args!(
                        "`{key}` after `snapshots`; damo writes it before"
                    )));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if !has_snapshots {
            return Err(A::Error::missing_field("snapshots"));
        }
        if let Some(said) = said {
            walk.collected.set_intervals(said.intervals);
        }
        Ok(())
    }
}

struct Snapshots<'w, 'c, 'f> {
    walk: &'w mut Walk<'c, 'f>,
    list: List,
    intervals: Option<Intervals>,
}

impl<'de> DeserializeSeed<'de> for Snapshots<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Snapshots<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of snapshots")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut snapshots: A) -> Result<(), A::Error> {
        let mut last_end = None;
        while let Some(snapshot) = snapshots.next_element::<DamoSnapshot>()? {
            let end = Nanos(snapshot.end_time.0);
            let taken = take(
                snapshot,
                self.list,
                self.intervals,
                last_end,
                self.walk.collected,
            );
            if let Err(failure) = taken {
                self.walk.failure = Some(failure);
                return Err(A::Error::custom("stopped"));
            }
            last_end = Some(end);
        }
        Ok(())
    }
}

fn take(
    damo: DamoSnapshot,
    list: List,
    intervals: Option<Intervals>,
    last_end: Option<Nanos>,
    collected: &mut Collected<'_>,
) -> Result<(), ConvertError> {
    let end = Nanos(damo.end_time.0);
    let start = match damo.start_time {
        Some(start) => Nanos(start.0),
        None => last_end.unwrap_or(end),
    };
    collected.left_out("scheme statistics", u64::from(damo.damos_stats.is_some()));
    // 0 where it is unknown.
    let nr_samples = damo.nr_samples.or_else(|| nr_samples(intervals?));
    let nr_samples = nr_samples.unwrap_or(0);
    let interval = intervals.map_or(end.since(start), |i| i.aggregation);
    let nr_regions = damo.regions.len();
    let mut regions = Vec::with_capacity(nr_regions);
    let mut has_ages = false;
    for region in damo.regions {
        collected.left_out(
            "probe hits",
            region.probe_hits.as_ref().map_or(0, Vec::len) as u64,
        );
        let passed = region.sz_filter_passed.is_some_and(|passed| passed.0 > 0);
        collected.left_out("sizes that passed filters", u64::from(passed));
        has_ages |= region.age.as_ref().is_some_and(DamoAge::is_known);
        regions.extend(region_of(&region, nr_samples, interval)?);
    }
    if has_ages {
        collected.set_has_ages(list);
    }
    if regions.is_empty() && nr_regions > 0 {
        // This is damo's own mark: a last snapshot that only shows the length of the one before.
        return Ok(());
    }
    let snapshot = Snapshot::new(list.target, (start, end), nr_samples, regions);
    collected.push(list, snapshot)
}

/// Converts a region, unless it is damo's mark of an empty snapshot. `nr_samples` of 0 is unknown.
fn region_of(
    damo: &DamoRegion,
    nr_samples: u32,
    interval: Nanos,
) -> Result<Option<RegionSnapshot>, ConvertError> {
    let accesses = damo.nr_accesses.as_ref();
    let samples = accesses.and_then(|a| a.samples).map(|n| n.0);
    let (start, end) = (damo.start.0, damo.end.0);
    if start == 0 && end == 0 && samples.is_some_and(|n| n < 0.0) {
        return Ok(None);
    }
    let Some(range) = AddressRange::checked(start, end) else {
        return Err(ConvertError::Impossible(format!(
            "a region that starts at {start} and ends at {end}"
        )));
    };
    let nr_samples = if nr_samples > 0 {
        nr_samples
    } else {
        DEFAULT_NR_SAMPLES
    };
    let percent = accesses.and_then(|a| a.percent).map(|n| n.0);
    let nr_accesses = samples.or(percent.map(|p| p / 100.0 * f64::from(nr_samples)));
    if nr_accesses.is_some_and(|n| !(0.0..=1e9).contains(&n)) {
        return Err(ConvertError::Impossible(format!(
            "a region with {} accesses at {start}",
            nr_accesses.unwrap_or_default()
        )));
    }
    let age = damo.age.as_ref();
    let count = age.and_then(|age| age.aggr_intervals).map(|n| n.0);
    let time = age.and_then(|age| age.usec).map(|us| us.0);
    Ok(Some(RegionSnapshot {
        age: match (count, time) {
            (Some(count), _) => count as u32,
            (None, Some(time)) => u32::try_from(time / interval.0.max(1)).unwrap_or(u32::MAX),
            (None, None) => 0,
        },
        age_ns: match (time, count) {
            (Some(time), _) => Nanos(time),
            (None, Some(count)) => Nanos((count as u64).saturating_mul(interval.0)),
            (None, None) => Nanos(0),
        },
        ..RegionSnapshot::new(range, nr_accesses.map(|n| n as f32))
    }))
}

fn bounded_regions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<DamoRegion>, D::Error> {
    struct Regions;
    impl<'de> Visitor<'de> for Regions {
        type Value = Vec<DamoRegion>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of regions")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut regions = Vec::new();
            while let Some(region) = seq.next_element()? {
                if regions.len() == MAX_REGIONS {
                    return Err(A::Error::custom(format_args!(
                        "a snapshot of more than {MAX_REGIONS} regions"
                    )));
                }
                regions.push(region);
            }
            Ok(regions)
        }
    }
    deserializer.deserialize_seq(Regions)
}
