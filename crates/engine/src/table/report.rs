//! Snapshots from segments: neighbours that are alike become one region.

use super::TableMonitor;
use super::segment::Segment;
use crate::address::{AddressRange, Nanos};
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};

/// Fewer accesses to a page in an aggregation interval, on average, count as none: they are those of
/// few pages among many, which as a region would be called in use whole. Its age tells of them.
const LEAST_ACCESSES: f32 = 0.25;

/// A region while it grows.
struct Draft {
    range: AddressRange,
    mapping: u64,
    /// Share of windows with a touch; `None` unknown.
    rate: Option<f32>,
    age: Nanos,
}

impl TableMonitor {
    /// One snapshot for each target, and every segment's age brought up to date.
    pub(super) fn report(&mut self, now: Nanos) -> Vec<Snapshot> {
        let highest = self
            .segments
            .iter()
            .filter(|s| s.is_known())
            .map(|s| s.rate)
            .fold(0.0, f32::max);
        let threshold = highest / 10.0;
        for segment in self.segments.iter_mut().filter(|s| s.is_known()) {
            segment.keep_age(now, threshold);
        }
        let nr_samples = (self.aggregation.0 / self.attributes.window.0).max(1) as u32;
        let least = LEAST_ACCESSES / nr_samples as f32;
        let values = infer(&self.segments, now, threshold, least);
        let drafts = self.drafts(&values, threshold);
        let mut snapshots = Vec::new();
        for (&target, from) in &mut self.snapshot_from {
            if *from == now {
                // The target was added just now: there was no interval yet.
                continue;
            }
            let regions = drafts
                .iter()
                .filter(|(of, _)| *of == target)
                .map(|(_, draft)| RegionSnapshot {
                    range: draft.range,
                    nr_accesses: draft.rate.map(|rate| rate * nr_samples as f32),
                    age: u32::try_from(draft.age.0 / self.aggregation.0).unwrap_or(u32::MAX),
                    age_ns: draft.age,
                    memory: None,
                })
                .collect();
            snapshots.push(Snapshot {
                target,
                start: *from,
                end: now,
                nr_samples,
                regions,
            });
            *from = now;
        }
        snapshots
    }

    /// Merges neighbours until there are few enough regions: as in DAMON, the difference that
    /// counts is doubled until they are.
    fn drafts(&self, values: &[Value], mut threshold: f32) -> Vec<(TargetId, Draft)> {
        let most = self.attributes.max_nr_regions as usize;
        let mut within_mappings = true;
        for _ in 0..24 {
            let drafts = merge(&self.segments, values, threshold, within_mappings);
            if drafts.len() <= most {
                return drafts;
            }
            within_mappings = false;
            threshold = (threshold * 2.0).max(0.001);
        }
        // Regions are not contiguous (many small mappings): more of them than asked for is the
        // truth, and dropping some would not be.
        merge(&self.segments, values, f32::MAX, false)
    }
}

/// What a segment is reported with.
#[derive(Clone, Copy)]
struct Value {
    rate: Option<f32>,
    age: Nanos,
}

/// Each segment's own value; for one that was not sampled yet, its neighbours' if these agree: as in
/// DAMON, a sample speaks for the memory around it until there are better ones. What was tried and
/// cannot be known stays unknown.
fn infer(segments: &[Segment], now: Nanos, threshold: f32, least: f32) -> Vec<Value> {
    let own = |s: &Segment| Value {
        rate: s
            .is_known()
            .then_some(if s.rate < least { 0.0 } else { s.rate }),
        age: now.since(s.age_from),
    };
    let mut values: Vec<Value> = segments.iter().map(own).collect();
    let mut before: Option<usize> = None;
    for i in 0..segments.len() {
        if values[i].rate.is_none() {
            continue;
        }
        if let Some(first) = before.replace(i)
            && let Some(value) = agreed(segments, &values, first, i, threshold)
        {
            for j in first + 1..i {
                if segments[j].nr_unknown == 0 {
                    values[j] = value;
                }
            }
        }
    }
    values
}

/// Most segments between two samples that these may speak for.
const INFERRED_SEGMENTS: usize = 64;

/// The value of what lies between the known segments `first` and `last`, if they agree.
fn agreed(
    segments: &[Segment],
    values: &[Value],
    first: usize,
    last: usize,
    threshold: f32,
) -> Option<Value> {
    let (a, b) = (values[first], values[last]);
    let (x, y) = (a.rate?, b.rate?);
    let near = last - first > 1 && last - first <= INFERRED_SEGMENTS;
    let same_memory = segments[first].target == segments[last].target
        && segments[first].mapping == segments[last].mapping
        && segments[first].range.end <= segments[last].range.start;
    let alike = (x > 0.0) == (y > 0.0) && (x - y).abs() <= threshold;
    (near && same_memory && alike).then(|| Value {
        rate: Some(f32::midpoint(x, y)),
        age: a.age.min(b.age),
    })
}

fn merge(
    segments: &[Segment],
    values: &[Value],
    threshold: f32,
    within_mappings: bool,
) -> Vec<(TargetId, Draft)> {
    let mut drafts: Vec<(TargetId, Draft)> = Vec::new();
    for (segment, value) in segments.iter().zip(values) {
        let next = Draft {
            range: segment.range,
            mapping: segment.mapping,
            rate: value.rate,
            age: value.age,
        };
        match drafts.last_mut() {
            Some((target, last))
                if *target == segment.target
                    && last.range.end == next.range.start
                    && (!within_mappings || last.mapping == next.mapping)
                    && alike(last, &next, threshold) =>
            {
                last.absorb(&next);
            }
            _ => drafts.push((segment.target, next)),
        }
    }
    drafts
}

fn alike(a: &Draft, b: &Draft, threshold: f32) -> bool {
    match (a.rate, b.rate) {
        (None, None) => true,
        (Some(x), Some(y)) => {
            let far = threshold > 0.5;
            // Idle for 3 s and idle for an hour are not alike, unless regions must be saved.
            let (young, old) = (a.age.min(b.age).0 as f64, a.age.max(b.age).0 as f64);
            let same_age = x > 0.0 || old < young * 1.3 + 1e9;
            far || ((x > 0.0) == (y > 0.0) && (x - y).abs() <= threshold && same_age)
        }
        // Unknown is not cold: it never joins what is known.
        _ => false,
    }
}

impl Draft {
    /// Adds a neighbour; rate and age become means weighted by size, as in DAMON.
    fn absorb(&mut self, next: &Draft) {
        let (mine, other) = (self.range.len() as f64, next.range.len() as f64);
        let mean = |a: f64, b: f64| (a * mine + b * other) / (mine + other);
        if let (Some(a), Some(b)) = (self.rate, next.rate) {
            self.rate = Some(mean(f64::from(a), f64::from(b)) as f32);
        }
        self.age = Nanos(mean(self.age.0 as f64, next.age.0 as f64) as u64);
        self.range = AddressRange::new(self.range.start, next.range.end);
    }
}
