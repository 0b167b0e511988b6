//! Reads what DAMON's trace points print: a line for each region of each snapshot.
//!
//! ```text
//! kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=17 4096-8192: 0 3
//! kdamond.0  4452 [000] 80801.060214: damon:damos_before_apply: ctx_idx=0 scheme_idx=0 target_idx=0 nr_regions=11 4096-8192: 0 136
//! ```
//!
//! That is `perf script`; `trace-cmd report` prints the same with other words before the time. A snapshot is complete
//! when `nr_regions` lines of its target were read. Where the kernel dropped some, the incomplete snapshot stays until
//! the next one begins with a later time. Only the end of a snapshot is printed. The first snapshot is therefore given
//! the mean length of the others, as in damo. Kernels before 5.16 print no age. A last line that does not end and does
//! not parse is torn, and left out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{BufRead, Read};

use isotherm_engine::units::{SECOND, parse_time_in};
use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot};

use super::collected::{Collected, List};
use super::setting::RecordFields;
use crate::convert::ConvertError;
use crate::writer::MAX_REGIONS;

/// Longest line that is read.
const MAX_LINE: u64 = 1 << 16;
/// Length of a snapshot where there is only one: DAMON's default.
const DEFAULT_INTERVAL: Nanos = Nanos::from_millis(100);
/// The longest gap between lines of one snapshot, which are printed together; a longer gap begins another.
const SAME_SNAPSHOT: Nanos = Nanos::from_millis(20);

/// Reads all of `input` into `collected`.
pub(crate) fn read(input: impl BufRead, collected: &mut Collected<'_>) -> Result<(), ConvertError> {
    let mut trace = Trace {
        collected,
        event: None,
        has_ages: false,
        targets: HashMap::new(),
    };
    let mut lines = Lines {
        input,
        line: Vec::new(),
        number: 0,
    };
    while let Some(line) = lines.next()? {
        let is_open = !line.ends_with('\n');
        let Some(event) = Event::parse(line) else {
            continue;
        };
        let number = lines.number;
        match event {
            // Ages are printed for all regions, or for none.
            Ok(event) if is_open && !event.has_age && trace.has_ages => trace.lose_last_line(),
            Ok(event) => trace.take(&event, number)?,
            Err(_) if is_open && trace.event.is_some() => trace.lose_last_line(),
            Err(reason) => return Err(lines.error(reason)),
        }
    }
    trace.finish()
}

/// Lines of bounded length.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<&str>, ConvertError> {
        self.line.clear();
        self.number += 1;
        let read = (&mut self.input)
            .take(MAX_LINE)
            .read_until(b'\n', &mut self.line)
            .map_err(ConvertError::Read)?;
        if read as u64 == MAX_LINE {
            return Err(self.error(format!("is longer than {MAX_LINE} bytes")));
        }
        // A line that is not text is none of ours, like any other that does not parse.
        Ok((read > 0).then(|| std::str::from_utf8(&self.line).unwrap_or_default()))
    }

    fn error(&self, reason: String) -> ConvertError {
        ConvertError::Trace {
            line: self.number,
            reason,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Aggregated,
    BeforeApply,
}

#[derive(Debug)]
struct Event {
    kind: Kind,
    time: Nanos,
    target: u64,
    nr_regions: usize,
    /// The region; `None` in the line with which damo shows the length of a single snapshot.
    region: Option<RegionSnapshot>,
    /// Whether the line has an age; kernels before 5.16 print none.
    has_age: bool,
}

impl Event {
    /// Parses a line; returns `None` if it is not one of DAMON's regions.
    fn parse(line: &str) -> Option<Result<Self, String>> {
        let mut time = "";
        let mut words = line.split_ascii_whitespace();
        let kind = loop {
            let word = words.next()?;
            match word.strip_prefix("damon:").unwrap_or(word) {
                "damon_aggregated:" => break Kind::Aggregated,
                "damos_before_apply:" => break Kind::BeforeApply,
                _ => time = word,
            }
        };
        Some(Self::fields(kind, time, words).map_err(|what| format!("has {what}: {}", line.trim())))
    }

    fn fields<'a>(
        kind: Kind,
        time: &str,
        words: impl Iterator<Item = &'a str>,
    ) -> Result<Self, &'static str> {
        let time = time
            .strip_suffix(':')
            .and_then(|t| parse_time_in(t, SECOND).ok())
            .map(|time| time.0);
        let (mut target, mut nr_regions, mut span) = (None, None, None);
        let mut numbers = Vec::new();
        for word in words.take(16) {
            if let Some((name, value)) = word.split_once('=') {
                match name {
                    // damo's own snapshots have no known target.
                    "target_id" if value == "None" => target = Some(0),
                    "target_id" | "target_idx" => target = value.parse().ok(),
                    "nr_regions" => nr_regions = value.parse().ok(),
                    _ => {}
                }
            } else if span.is_none() {
                span = word.strip_suffix(':').and_then(|s| s.split_once('-'));
            } else {
                numbers.push(word.parse::<i64>().map_err(|_| "a count that is none")?);
            }
        }
        let (start, end) = span.ok_or("no addresses")?;
        let start: u64 = start.parse().map_err(|_| "a broken address")?;
        let end: u64 = end.parse().map_err(|_| "a broken address")?;
        let nr_accesses = *numbers.first().ok_or("no access count")?;
        let fake = start == 0 && end == 0 && nr_accesses == -1;
        let region = if fake {
            None
        } else {
            let count = u32::try_from(nr_accesses).map_err(|_| "an impossible access count")?;
            let age = numbers.get(1).copied().unwrap_or(0);
            let range = AddressRange::checked(start, end);
            let range = range.ok_or("a region that ends before it starts")?;
            let age = u32::try_from(age).map_err(|_| "an impossible age")?;
            let region = RegionSnapshot::new(range, Some(count as f32));
            Some(region.aged(age, Nanos(0)))
        };
        Ok(Self {
            kind,
            time: Nanos(time.ok_or("no time")?),
            target: target.ok_or("no target")?,
            nr_regions: nr_regions
                .filter(|n| (1..=MAX_REGIONS).contains(n))
                .ok_or("no number of regions, or an impossible one")?,
            region,
            has_age: numbers.len() > 1,
        })
    }
}

/// The snapshots under construction.
struct Trace<'c, 'f> {
    collected: &'c mut Collected<'f>,
    /// The kind of event that counts, the first one. A trace may hold both kinds, with the same data twice.
    event: Option<Kind>,
    has_ages: bool,
    targets: HashMap<u64, Assembly>,
}

struct Assembly {
    list: List,
    nr_regions: usize,
    regions: Vec<RegionSnapshot>,
    /// End of the snapshot under construction, and time of its latest line.
    end: Nanos,
    latest: Nanos,
    /// Ends of the first and last snapshots, and the number of ends.
    first_end: Option<Nanos>,
    last_end: Nanos,
    nr_ends: u64,
}

impl Trace<'_, '_> {
    /// Takes the event of a line by its number.
    fn take(&mut self, event: &Event, line: u64) -> Result<(), ConvertError> {
        if *self.event.get_or_insert(event.kind) != event.kind {
            self.collected.left_out("lines of another event", 1);
            return Ok(());
        }
        let collected = &mut *self.collected;
        let assembly = match self.targets.entry(event.target) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let list = collected.begin(RecordFields {
                    target_id: Some(event.target.into()),
                    ..RecordFields::default()
                })?;
                entry.insert(Assembly::new(list, event.time))
            }
        };
        if event.time < assembly.latest {
            let reason = "is earlier than the one before".to_string();
            return Err(ConvertError::Trace { line, reason });
        }
        if event.has_age {
            self.has_ages = true;
            collected.set_has_ages(assembly.list);
        }
        let Some(region) = event.region else {
            assembly.close(collected)?;
            assembly.count_end(event.time);
            return Ok(());
        };
        let late = event.time.since(assembly.latest) > SAME_SNAPSHOT;
        if late || event.nr_regions != assembly.nr_regions {
            assembly.close(collected)?;
        }
        if assembly.regions.is_empty() {
            assembly.end = event.time;
            assembly.nr_regions = event.nr_regions;
        }
        assembly.latest = event.time;
        assembly.regions.push(region);
        if assembly.regions.len() == assembly.nr_regions {
            assembly.close(collected)?;
        }
        Ok(())
    }

    fn lose_last_line(&mut self) {
        self.collected.left_out("torn last lines", 1);
    }

    fn finish(mut self) -> Result<(), ConvertError> {
        if self.event.is_none() {
            return Err(ConvertError::NoTrace);
        }
        // In the order of the targets, so that the same trace always gives the same record.
        let mut assemblies: Vec<Assembly> = self.targets.drain().map(|(_, a)| a).collect();
        assemblies.sort_by_key(|assembly| assembly.list.target);
        for mut assembly in assemblies {
            assembly.close(self.collected)?;
            let interval = assembly.first_end.and_then(|first| {
                let span = assembly.last_end.since(first).0;
                span.checked_div(assembly.nr_ends - 1).map(Nanos)
            });
            let interval = interval
                .filter(|interval| interval.0 > 0)
                .unwrap_or(DEFAULT_INTERVAL);
            self.collected.set_interval(assembly.list.target, interval);
        }
        Ok(())
    }
}

impl Assembly {
    fn new(list: List, time: Nanos) -> Self {
        Self {
            list,
            nr_regions: 0,
            regions: Vec::new(),
            end: time,
            latest: time,
            first_end: None,
            last_end: Nanos(0),
            nr_ends: 0,
        }
    }

    fn close(&mut self, collected: &mut Collected<'_>) -> Result<(), ConvertError> {
        if self.regions.is_empty() {
            return Ok(());
        }
        let missing = self.nr_regions - self.regions.len();
        collected.left_out("regions that the trace lost", missing as u64);
        let start = self.first_end.map_or(self.end, |_| self.last_end);
        let regions = std::mem::take(&mut self.regions);
        let snapshot = Snapshot::new(self.list.target, (start, self.end), 0, regions);
        collected.push(self.list, snapshot)?;
        self.count_end(self.end);
        Ok(())
    }

    fn count_end(&mut self, end: Nanos) {
        self.first_end.get_or_insert(end);
        self.last_end = end;
        self.nr_ends += 1;
    }
}
