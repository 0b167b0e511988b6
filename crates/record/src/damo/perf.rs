//! Reads what `perf script` prints of DAMON's trace points (damo's `perf_script`).
//!
//! ```text
//! kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=17 4096-8192: 0 3
//! ```
//!
//! One line is one region; a snapshot is the lines of one target up to its `nr_regions`. Older
//! kernels print no age. Only the end of a snapshot is there: it starts where the target's last one
//! ended, and the first one is given the mean length. Lines of other events are passed over.
//!
//! Limit: neither interval is there. The aggregation interval is the mean distance of snapshots; the
//! sampling interval is taken for DAMON's default of 5 ms, unless more accesses were counted than it
//! allows, and a warning says so.

use std::io::{BufRead, BufReader, Read};

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};

use super::{
    Collector, DEFAULT_AGGREGATION, DEFAULT_SAMPLE, DamoError, Imported, Limited, checks, header,
    in_order,
};

const EVENT: &str = "damon_aggregated:";
/// A line longer than this is none of perf's.
const MAX_LINE: u64 = 64 << 10;

/// Reads the text of `perf script`.
pub fn read(input: impl Read) -> Result<Imported, DamoError> {
    let mut reader = BufReader::with_capacity(1 << 16, Limited::new(input));
    let mut collector = Collector::default();
    let mut open: Vec<Open> = Vec::new();
    let mut line = Vec::new();
    let mut most = 0;
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line);
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) if reader.get_ref().exceeded => return Err(DamoError::TooLarge),
            Err(error) => return Err(DamoError::Read(error)),
        }
        let at = |reason| DamoError::Line {
            line: number,
            reason,
        };
        let Some(event) = Event::parse(&String::from_utf8_lossy(&line)).map_err(at)? else {
            continue;
        };
        most = most.max(event.region.map_or(0, |(_, n, _)| n));
        let target = collector.target(event.target, || format!("damo target {}", event.target));
        take(&mut open, &mut collector.snapshots, target, &event).map_err(at)?;
    }
    // The last snapshot of each target may have been cut off.
    let unfinished = open.iter().filter(|o| o.left > 0).count();
    for one in open {
        one.close(&mut collector.snapshots)
            .map_err(DamoError::Invalid)?;
    }
    Ok(finish(collector, most, unfinished))
}

/// A snapshot of which more lines are expected.
struct Open {
    target: TargetId,
    end: Nanos,
    left: u64,
    /// Whether it is damo's fake one: its only region is empty.
    fake: bool,
    regions: Vec<RegionSnapshot>,
}

impl Open {
    fn close(mut self, into: &mut Vec<Snapshot>) -> Result<(), String> {
        in_order(&mut self.regions)?;
        into.push(Snapshot {
            target: self.target,
            // Told apart from the others when starts are found; a fake one has no regions.
            start: if self.fake { Nanos(u64::MAX) } else { Nanos(0) },
            end: self.end,
            nr_samples: 0,
            regions: self.regions,
        });
        Ok(())
    }
}

fn take(
    open: &mut Vec<Open>,
    closed: &mut Vec<Snapshot>,
    target: TargetId,
    event: &Event,
) -> Result<(), String> {
    let mut index = open.iter().position(|o| o.target == target);
    if let Some(at) = index
        && (open[at].left == 0 || open[at].end != event.end)
    {
        if event.end < open[at].end {
            return Err(format!(
                "is {} ns older than the one before it; the lines must be in order of time",
                open[at].end.0 - event.end.0
            ));
        }
        open.swap_remove(at).close(closed)?;
        index = None;
    }
    let at = index.unwrap_or_else(|| {
        open.push(Open {
            target,
            end: event.end,
            left: event.nr_regions,
            fake: false,
            regions: Vec::new(),
        });
        open.len() - 1
    });
    let one = &mut open[at];
    one.left = one.left.saturating_sub(1);
    match event.region {
        Some((range, accesses, age)) => one.regions.push(RegionSnapshot {
            range,
            nr_accesses: Some(accesses as f32),
            age,
            age_ns: Nanos(0),
        }),
        None => one.fake = event.nr_regions == 1,
    }
    Ok(())
}

/// Finds what the text does not say: starts, intervals, ages as times.
fn finish(mut collector: Collector<u64>, most: u32, unfinished: usize) -> Imported {
    let snapshots = &mut collector.snapshots;
    snapshots.sort_by_key(|s| (s.target, s.end));
    let mut total = 0;
    let mut steps = 0;
    for of_target in snapshots.chunk_by(|a, b| a.target == b.target) {
        total += of_target[of_target.len() - 1].end.since(of_target[0].end).0;
        steps += of_target.len() as u64 - 1;
    }
    let aggregation = match total.checked_div(steps) {
        Some(mean) if mean > 0 => Nanos(mean),
        _ => DEFAULT_AGGREGATION,
    };
    let nr_samples = checks(DEFAULT_SAMPLE, aggregation).max(most);
    for of_target in snapshots.chunk_by_mut(|a, b| a.target == b.target) {
        let mean = match of_target {
            [first, .., last] => last.end.since(first.end).0 / (of_target.len() as u64 - 1),
            _ => aggregation.0,
        };
        let mut start = Nanos(of_target[0].end.0.saturating_sub(mean));
        for snapshot in of_target {
            if snapshot.start != Nanos(u64::MAX) {
                snapshot.start = start;
            }
            start = snapshot.end;
            snapshot.nr_samples = nr_samples;
            for region in &mut snapshot.regions {
                region.age_ns = Nanos(aggregation.0.saturating_mul(region.age.into()));
            }
        }
    }
    snapshots.retain(|s| s.start != Nanos(u64::MAX));
    let mut warnings = Vec::new();
    if !snapshots.is_empty() {
        warnings.push(format!(
            "perf_script does not say how often regions were checked; {nr_samples} checks in each \
             {} ms are assumed, so access rates may be off by a factor",
            aggregation.0 / 1_000_000
        ));
    }
    if unfinished > 0 {
        warnings.push(format!(
            "{unfinished} snapshots end before all of their regions are there"
        ));
    }
    let started = snapshots.iter().map(|s| s.start).min().unwrap_or_default();
    let sample = Nanos(aggregation.0 / u64::from(nr_samples));
    Imported {
        header: header("perf_script", started, sample, aggregation),
        items: collector.into_items(),
        warnings,
    }
}

/// One `damon_aggregated` line.
struct Event {
    end: Nanos,
    target: u64,
    nr_regions: u64,
    /// Range, accesses, age; `None` for damo's fake region.
    region: Option<(AddressRange, u32, u32)>,
}

impl Event {
    /// `None` for a line that is about something else.
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(name) = words.iter().position(|word| word.ends_with(EVENT)) else {
            return Ok(None);
        };
        let (Some(time), [target, regions, range, accesses, rest @ ..]) =
            (name.checked_sub(1).map(|i| words[i]), &words[name + 1..])
        else {
            return Err("ends before a region does".to_string());
        };
        let bad = |what: &str, text: &str| format!("has the {what} {text:?}, which is no number");
        let number = |what: &str, text: &str| text.parse::<u64>().map_err(|_| bad(what, text));
        let named = |what: &str, text: &str| {
            let value = text.strip_prefix(what).and_then(|v| v.strip_prefix('='));
            let value = value.ok_or_else(|| format!("has {text:?} in place of {what}="))?;
            number(what, value)
        };
        let end = seconds(time).ok_or_else(|| bad("time", time))?;
        let (target, nr_regions) = (named("target_id", target)?, named("nr_regions", regions)?);
        let bounds = range.trim_end_matches(':').split_once('-');
        let (first, last) = bounds.ok_or_else(|| format!("has the range {range:?}"))?;
        let (first, last) = (number("address", first)?, number("address", last)?);
        let region = if first == last {
            None
        } else {
            let range = AddressRange::checked(first, last)
                .ok_or_else(|| format!("has a region that ends before it starts: {range}"))?;
            let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let age = rest.first().map_or(Ok(0), |age| number("age", age))?;
            Some((range, small(number("access count", accesses)?), small(age)))
        };
        Ok(Some(Self {
            end,
            target,
            nr_regions,
            region,
        }))
    }
}

/// `82877.315633:` without rounding it.
fn seconds(text: &str) -> Option<Nanos> {
    let text = text.strip_suffix(':')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)
        .map(Nanos)
}
