//! The parts of a foreign record, from which one of ours is written.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;

use isotherm_engine::{Intervals, Nanos, Snapshot, TargetId};

use super::ages::Ages;
use super::setting::{
    AGES_SETTING, RECORD_SETTING, RecordFields, RecordSetting, SaidIntervals, nr_samples,
};
use super::spool::Spool;
use crate::convert::{Conversion, ConvertError};
use crate::item::{Header, Item, TargetStart};
use crate::writer::Writer;

/// The parts of a foreign record that were read so far.
pub(crate) struct Collected<'a> {
    spool: Spool<'a>,
    nr_lists: u32,
    targets: Vec<Target>,
    intervals: Option<Intervals>,
    nr_samples_missing: bool,
    conversion: Conversion,
}

/// The largest number of lists of snapshots: damo has one for each target and pair of intervals.
const MAX_LISTS: u32 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    number: u32,
    pub(crate) target: TargetId,
}

#[derive(Default)]
struct Target {
    fields: RecordFields,
    first_start: Option<Nanos>,
    /// Length of a snapshot, where only the ends of snapshots are known.
    interval: Option<Nanos>,
    has_ages: bool,
    /// The intervals in the file, by their number of access checks; 0 where the file lacks them.
    said: BTreeMap<u32, Option<SaidIntervals>>,
}

impl<'a> Collected<'a> {
    pub(super) fn new(folder: &'a Path) -> Self {
        Self {
            spool: Spool::new(folder),
            nr_lists: 0,
            targets: Vec::new(),
            intervals: None,
            nr_samples_missing: false,
            conversion: Conversion::default(),
        }
    }

    /// Begins a list of snapshots of the target in `fields`. Several lists may belong to one target: damo begins
    /// another where intervals change.
    pub(crate) fn begin(&mut self, fields: RecordFields) -> Result<List, ConvertError> {
        let number = self.nr_lists;
        if number == MAX_LISTS {
            return Err(ConvertError::Impossible(format!(
                "more than {MAX_LISTS} lists of snapshots"
            )));
        }
        self.nr_lists += 1;
        let known = self.targets.iter().position(|t| t.fields == fields);
        let index = known.unwrap_or(self.targets.len());
        if known.is_none() {
            self.targets.push(Target {
                fields,
                ..Target::default()
            });
        }
        Ok(List {
            number,
            target: TargetId(index as u32),
        })
    }

    /// Keeps damo's intervals of a list, or their absence, for the way back.
    pub(crate) fn keep_intervals(&mut self, list: List, said: Option<SaidIntervals>) {
        let nr_samples = said.as_ref().and_then(|said| nr_samples(said.intervals));
        let target = &mut self.targets[list.target.0 as usize];
        target.said.entry(nr_samples.unwrap_or(0)).or_insert(said);
    }

    /// Sets the intervals; the first ones go to the header.
    pub(crate) fn set_intervals(&mut self, intervals: Intervals) {
        self.intervals.get_or_insert(intervals);
    }

    /// Sets the length of a target's snapshots, where only their ends are known.
    pub(crate) fn set_interval(&mut self, target: TargetId, interval: Nanos) {
        self.targets[target.0 as usize].interval = Some(interval);
        self.set_intervals(Intervals {
            aggregation: interval,
            ..Intervals::default()
        });
    }

    pub(crate) fn set_has_ages(&mut self, list: List) {
        self.targets[list.target.0 as usize].has_ages = true;
    }

    /// Adds a snapshot to a list that was begun. An `nr_samples` of 0 means that it is unknown.
    pub(crate) fn push(&mut self, list: List, mut snapshot: Snapshot) -> Result<(), ConvertError> {
        snapshot.regions.sort_by_key(|region| region.range.start);
        let overlap = snapshot
            .regions
            .windows(2)
            .find(|pair| pair[0].range.end > pair[1].range.start);
        if let Some(pair) = overlap {
            return Err(ConvertError::Impossible(format!(
                "regions that overlap, {:?} and {:?}",
                pair[0].range, pair[1].range
            )));
        }
        self.nr_samples_missing |= snapshot.nr_samples == 0;
        self.conversion.snapshots += 1;
        self.conversion.regions += snapshot.regions.len() as u64;
        let target = &mut self.targets[list.target.0 as usize];
        let first = target.first_start.get_or_insert(snapshot.start);
        *first = snapshot.start.min(*first);
        self.spool.push(list.number, &snapshot)
    }

    pub(crate) fn left_out(&mut self, kind: &'static str, count: u64) {
        self.conversion.left_out.add(kind, count);
    }

    pub(super) fn write<W: Write>(mut self, output: W) -> Result<Conversion, ConvertError> {
        if self.conversion.snapshots == 0 {
            return Err(ConvertError::Impossible("no snapshot".to_string()));
        }
        let nr_samples = self.spool.assumed_nr_samples();
        if self.nr_samples_missing {
            self.conversion.assumed.push(format!(
                "{nr_samples} access checks in each aggregation interval, as the file does not say"
            ));
        }
        if self.targets.iter().any(|target| !target.has_ages) {
            self.conversion.assumed.push(
                "ages of regions, which the file does not have, by how their access counts changed"
                    .to_owned(),
            );
        }
        let mut writer = Writer::create(output, &self.header(nr_samples))?;
        for (index, target) in self.targets.iter().enumerate() {
            let start = target.first_start.unwrap_or_default();
            let time = start - target.interval.unwrap_or_default().min(start);
            let name = target.fields.target_id.as_ref();
            let name = name.map_or("damo's".to_string(), |id| format!("damo's {id}"));
            let start = TargetStart::new(time, TargetId(index as u32), 0, name);
            writer.write(&Item::TargetStart(start))?;
            self.conversion.items += 1;
        }
        let targets = &self.targets;
        let mut begun = HashSet::new();
        let mut ages = Ages::default();
        self.spool.merge_into(&mut writer, |snapshot| {
            if snapshot.nr_samples == 0 {
                snapshot.nr_samples = nr_samples;
            }
            let target = &targets[snapshot.target.0 as usize];
            if let Some(interval) = target.interval {
                if begun.insert(snapshot.target) {
                    snapshot.start = snapshot.end - interval.min(snapshot.end);
                }
                for region in &mut snapshot.regions {
                    region.age_ns = Nanos(u64::from(region.age).saturating_mul(interval.0));
                }
            }
            if !target.has_ages {
                ages.give(snapshot);
            }
        })?;
        writer.finish()?;
        Ok(self.conversion)
    }

    fn header(&self, nr_samples: u32) -> Header {
        let intervals = self.intervals.unwrap_or_default();
        let mut header = Header {
            writer: concat!("isotherm ", env!("CARGO_PKG_VERSION"), " convert").to_string(),
            operations: "unknown".to_string(),
            started: self
                .targets
                .iter()
                .filter_map(|target| target.first_start)
                .min()
                .unwrap_or_default(),
            sample_interval: intervals.sample,
            aggregation_interval: intervals.aggregation,
            update_interval: intervals.update,
            ..Header::default()
        };
        if header.sample_interval == Nanos(0) {
            header.sample_interval = Nanos(header.aggregation_interval.0 / u64::from(nr_samples));
        }
        for (index, target) in self.targets.iter().enumerate() {
            if !target.has_ages {
                let name = format!("{AGES_SETTING}{index}");
                header.settings.insert(name, "derived".to_owned());
            }
            // A list without its number of checks has the assumed one.
            let known = |(checks, said): (&u32, &Option<SaidIntervals>)| {
                let checks = if *checks > 0 { *checks } else { nr_samples };
                (checks, said.clone())
            };
            let setting = RecordSetting {
                fields: target.fields.clone(),
                intervals: target.said.iter().map(known).collect(),
            };
            if let Ok(json) = serde_json::to_string(&setting) {
                header
                    .settings
                    .insert(format!("{RECORD_SETTING}{index}"), json);
            }
        }
        header
    }
}
