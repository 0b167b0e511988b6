//! Writes damo's `json` and `json_compressed`.
//!
//! In damo the most accesses that a region can have are its record's aggregation interval over its
//! sampling interval. Ours are each snapshot's number of checks, which changes when intervals are
//! retuned or samples are missed. So snapshots are grouped by target, aggregation interval and number
//! of checks, each group is one record of damo's list, and its `sample_us` is the interval that gives
//! just that number: access rates are the same on both sides.
//!
//! Limit: snapshots are held in memory until all are there, since damo wants them by target.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{DEFAULT_AGGREGATION, DamoError, units};
use crate::item::{Header, Item};

/// Gathers items and writes them as damo's JSON.
#[derive(Debug)]
pub struct Exporter {
    groups: Vec<Group>,
    /// The interval in force, as far as the items so far say.
    aggregation: Nanos,
    update: Nanos,
    left_out: LeftOut,
}

/// What a damo record cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Regions about whose accesses nothing was known.
    pub unknown_regions: u64,
    /// Items other than snapshots: mappings, memory use, cost, notes, starts and ends of targets.
    pub other_items: u64,
}

#[derive(Debug)]
struct Group {
    target: TargetId,
    aggregation: Nanos,
    update: Nanos,
    nr_samples: u32,
    snapshots: Vec<Snapshot>,
}

impl Exporter {
    /// Starts with what the header says of intervals.
    pub fn new(header: &Header) -> Self {
        Self {
            groups: Vec::new(),
            aggregation: header.aggregation_interval,
            update: header.update_interval,
            left_out: LeftOut::default(),
        }
    }

    /// Takes the next item. Page snapshots must have been replayed to regions before.
    pub fn push(&mut self, item: Item) {
        match item {
            Item::Snapshot(snapshot) => self.push_snapshot(snapshot),
            Item::Cost(cost) => {
                self.aggregation = cost.aggregation_interval;
                self.left_out.other_items += 1;
            }
            _ => self.left_out.other_items += 1,
        }
    }

    /// What was left out so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Writes damo's JSON.
    pub fn write(&self, output: impl Write) -> Result<(), DamoError> {
        serde_json::to_writer(output, &self.groups).map_err(|error| DamoError::Write(error.into()))
    }

    /// Writes damo's zlib-compressed JSON.
    pub fn write_compressed(&self, output: impl Write) -> Result<(), DamoError> {
        let buffer = std::io::BufWriter::with_capacity(
            1 << 16,
            ZlibEncoder::new(output, Compression::default()),
        );
        let mut buffer = buffer;
        self.write(&mut buffer)?;
        let encoder = buffer
            .into_inner()
            .map_err(|error| DamoError::Write(error.into_error()))?;
        encoder.finish().map_err(DamoError::Write)?;
        Ok(())
    }

    fn push_snapshot(&mut self, mut snapshot: Snapshot) {
        let before = snapshot.regions.len();
        snapshot.regions.retain(|r| r.nr_accesses.is_some());
        self.left_out.unknown_regions += (before - snapshot.regions.len()) as u64;
        let aggregation = self.aggregation_of(&snapshot);
        let nr_samples = snapshot.nr_samples.max(1);
        let same = |group: &&mut Group| {
            group.target == snapshot.target
                && group.aggregation == aggregation
                && group.nr_samples == nr_samples
        };
        if let Some(group) = self.groups.iter_mut().rev().find(same) {
            group.snapshots.push(snapshot);
            return;
        }
        self.groups.push(Group {
            target: snapshot.target,
            aggregation,
            update: self.update,
            nr_samples,
            snapshots: vec![snapshot],
        });
    }

    /// The interval in force, unless the snapshot is so much shorter or longer that it cannot be.
    fn aggregation_of(&self, snapshot: &Snapshot) -> Nanos {
        const MILLISECOND: u64 = 1_000_000;
        let lasted = snapshot.end.since(snapshot.start).0;
        let nominal = self.aggregation.0;
        if lasted == 0 && nominal == 0 {
            return DEFAULT_AGGREGATION;
        }
        if lasted == 0 || (nominal > 0 && lasted.abs_diff(nominal) <= nominal / 4) {
            return self.aggregation;
        }
        Nanos(lasted.next_multiple_of(MILLISECOND))
    }
}

impl Group {
    /// A time in microseconds, with a fraction only where it has one.
    fn sample_us(&self) -> String {
        let nanos = self.aggregation.0 as f64 / f64::from(self.nr_samples);
        format!("{}", nanos / 1000.0)
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("record", 8)?;
        out.serialize_field("kdamond_idx", &0)?;
        out.serialize_field("context_idx", &0)?;
        out.serialize_field("intervals", &IntervalsOut(self))?;
        out.serialize_field("scheme_idx", &None::<u32>)?;
        out.serialize_field("target_id", &self.target)?;
        out.serialize_field("scheme_filters", &[(); 0])?;
        out.serialize_field("snapshots", &Snapshots(self))?;
        out.serialize_field("data_source", "unknown")?;
        out.end()
    }
}

struct IntervalsOut<'a>(&'a Group);

impl Serialize for IntervalsOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = |time: Nanos| (time.0 / 1000).to_string();
        let mut out = serializer.serialize_struct("intervals", 3)?;
        out.serialize_field("sample_us", &self.0.sample_us())?;
        out.serialize_field("aggr_us", &micros(self.0.aggregation))?;
        out.serialize_field("ops_update_us", &micros(self.0.update))?;
        out.end()
    }
}

struct Snapshots<'a>(&'a Group);

impl Serialize for Snapshots<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let snapshots = self.0.snapshots.iter();
        serializer.collect_seq(snapshots.map(|snapshot| SnapshotOut {
            snapshot,
            nr_samples: self.0.nr_samples,
        }))
    }
}

struct SnapshotOut<'a> {
    snapshot: &'a Snapshot,
    nr_samples: u32,
}

impl Serialize for SnapshotOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let snapshot = self.snapshot;
        let bytes = snapshot.regions.iter().map(|r| u128::from(r.range.len()));
        let mut out = serializer.serialize_struct("snapshot", 6)?;
        out.serialize_field("start_time", &snapshot.start.0.to_string())?;
        out.serialize_field("end_time", &snapshot.end.0.to_string())?;
        out.serialize_field("regions", &Regions(self))?;
        out.serialize_field("total_bytes", &bytes.sum::<u128>().to_string())?;
        out.serialize_field("damos_stats", &None::<u32>)?;
        out.serialize_field("sample_interval_us", &None::<u32>)?;
        out.end()
    }
}

struct Regions<'a>(&'a SnapshotOut<'a>);

impl Serialize for Regions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let regions = self.0.snapshot.regions.iter();
        serializer.collect_seq(regions.map(|region| RegionOut {
            region,
            nr_samples: self.0.nr_samples,
        }))
    }
}

struct RegionOut<'a> {
    region: &'a RegionSnapshot,
    nr_samples: u32,
}

impl Serialize for RegionOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let region = self.region;
        let mut out = serializer.serialize_struct("region", 6)?;
        out.serialize_field("start", &units::grouped(region.range.start))?;
        out.serialize_field("end", &units::grouped(region.range.end))?;
        out.serialize_field("nr_accesses", &AccessesOut(self))?;
        out.serialize_field("age", &AgeOut(region))?;
        out.serialize_field("probe_hits", &[(); 0])?;
        out.serialize_field("sz_filter_passed", "0 B")?;
        out.end()
    }
}

struct AccessesOut<'a>(&'a RegionOut<'a>);

impl Serialize for AccessesOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let samples = self.0.region.nr_accesses;
        let percent = samples.map(|n| f64::from(n) * 100.0 / f64::from(self.0.nr_samples));
        let mut out = serializer.serialize_struct("nr_accesses", 2)?;
        match samples {
            Some(n) if n.fract() == 0.0 => out.serialize_field("samples", &(n as u64))?,
            other => out.serialize_field("samples", &other)?,
        }
        out.serialize_field("percent", &percent)?;
        out.end()
    }
}

struct AgeOut<'a>(&'a RegionSnapshot);

impl Serialize for AgeOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("age", 2)?;
        out.serialize_field("usec", &units::exact_time(self.0.age_ns.0))?;
        out.serialize_field("aggr_intervals", &units::grouped(self.0.age.into()))?;
        out.end()
    }
}
