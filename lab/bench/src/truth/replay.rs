//! A check without a second observer: a trace is replayed in the simulated machine, and the monitor there is compared
//! with the trace.
//!
//! A trace is a record of page scans: of a real program (`isotherm record --pages`), or of a program of the family. The
//! latter is made from its log of touches by [`write`], without a scan. The accesses of a simulated process are exact
//! to the scan's interval, and synthetic below it. So pages of the scans that a snapshot holds in part may count either
//! way. The simulated process lags behind the trace by the time that it lost. It loses time in first faults at its
//! start, and then evenly, by the simulation's total.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_record::{
    Header, Item, Mapping, MappingChange, PageBlock, PageSnapshot, Reader, TargetStart, Writer,
};
use isotherm_workload::family::journal::Touched;
use isotherm_workload::family::pages::PageSet;
use isotherm_workload::family::verdict::{Truth, Verdict, verdict};
use isotherm_workload::family::{EDGE, TouchJournal};

use super::super::child::Guarded;
use super::super::recording::{Recorded, read as read_record};
use super::super::{BenchContext, Mode};
use super::Run;

/// Interval of the traces that are made here.
const STEP: Nanos = Nanos::from_millis(25);
/// Share of the lost time that may have been lost unevenly.
const LAG_UNEVEN: f64 = 0.1;
const LIMIT: Duration = Duration::from_mins(5);

/// Replays a trace under each mode's monitor. `moves` are the times after its start at which its hot memory moves.
pub(super) fn run(
    context: &BenchContext,
    trace: &Path,
    modes: &[Mode],
    moves: &[Nanos],
) -> Result<Vec<Run>> {
    let mut truth = Trace::read(trace)?;
    let mut runs = Vec::new();
    for mode in modes {
        let (recorded, lag) =
            simulate(context, trace, mode).with_context(|| format!("simulating {}", mode.name))?;
        truth.lag = lag;
        let moves: Vec<Nanos> = moves.iter().map(|at| *at + lag.at(*at).1).collect();
        let verdicts: Vec<Verdict> = super::settled(&recorded.snapshots, &moves)
            .filter(|s| s.end <= truth.end())
            .map(|s| verdict(&truth, s))
            .collect();
        let name = format!("~{}", mode.name);
        runs.push(Run {
            recorder_rss_bytes: 0,
            ..Run::of(name, &recorded, verdicts, &Vec::new())
        });
    }
    Ok(runs)
}

/// Simulates; returns also the lag of the process behind the trace.
fn simulate(context: &BenchContext, trace: &Path, mode: &Mode) -> Result<(Recorded, Lag)> {
    let output = context.scratch("simulated.isotherm");
    let _ = std::fs::remove_file(&output);
    let mut command = Command::new(&context.isotherm);
    command
        .args(["simulate", "--quiet", "--json", "--trace"])
        .arg(trace)
        .arg("-o")
        .arg(&output)
        .args(&mode.flags);
    let report = Guarded::json(context, &mut command, LIMIT)?;
    let lost = report["processes"][0]["lost_seconds"]
        .as_object()
        .context("the simulation does not say what the process lost")?;
    let seconds = report["simulated_seconds"].as_f64().unwrap_or(0.0);
    let all: f64 = lost.values().filter_map(serde_json::Value::as_f64).sum();
    let first = lost["first_faults"].as_f64().unwrap_or(0.0);
    let rate = (all - first).max(0.0) / seconds.max(1.0);
    Ok((read_record(&output)?, Lag { first, rate }))
}

/// Writes the touches of a program of the family from `start` to `end` as a record of page scans.
pub(super) fn write(
    context: &BenchContext,
    journal: &TouchJournal,
    start: Nanos,
    end: Nanos,
) -> Result<PathBuf> {
    let path = context.scratch("trace.isotherm");
    let file = BufWriter::new(File::create(&path).context("cannot create the trace")?);
    let memory = journal.ready.memory;
    let header = Header {
        writer: "isotherm-bench truth".into(),
        operations: "vaddr".into(),
        started: start,
        settings: BTreeMap::from([(
            isotherm_record::pages::GRANULARITY.to_owned(),
            isotherm_record::pages::GRANULARITY_PAGE.to_owned(),
        )]),
        ..Header::default()
    };
    let mut writer = Writer::create(file, &header)?;
    let case = TargetStart::new(start, TargetId(0), 0, "case");
    writer.write(&Item::TargetStart(case))?;
    let mappings = vec![Mapping::private(memory, "")];
    let mappings = MappingChange::adding(start, TargetId(0), mappings);
    writer.write(&Item::Mappings(mappings))?;
    let mut time = start;
    while time + STEP <= end {
        let touched = journal.touched_by(time, time + STEP, Nanos(0));
        let blocks = (0..memory.len() / BLOCK_SIZE).map(|block| scan(journal, block, &touched));
        let times = (time, time + STEP);
        let pages = PageSnapshot::new(TargetId(0), times, blocks.collect());
        writer.write(&Item::Pages(pages))?;
        time = time + STEP;
    }
    writer.finish()?;
    Ok(path)
}

fn scan(journal: &TouchJournal, block: u64, touched: &Touched) -> PageBlock {
    let mut scan = PageBlock {
        block: journal.ready.memory.start + block * BLOCK_SIZE,
        ..PageBlock::default()
    };
    for page in 0..PAGES_PER_BLOCK {
        let number = block as usize * PAGES_PER_BLOCK + page;
        let is_present = journal.layout.is_populated(number as u64);
        bits::put(&mut scan.present, page, is_present);
        // A batch across the edge of two scans counts in both.
        let is_touched = touched.certain.contains(number) || touched.either.contains(number);
        bits::put(&mut scan.accessed, page, is_touched);
    }
    scan
}

/// The known accesses of a record of page scans.
struct Trace {
    blocks: BTreeMap<u64, usize>,
    /// Ends of intervals, since the start, and the pages accessed in each.
    scans: Vec<(Nanos, PageSet)>,
    lag: Lag,
}

/// Lag of the simulated process behind the trace, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    /// Lag from its first faults on.
    first: f64,
    /// Further lag in each second.
    rate: f64,
}

impl Lag {
    /// Returns the least and the greatest lag at a time, as far as losses are even.
    fn at(self, time: Nanos) -> (Nanos, Nanos) {
        let grown = self.rate * time.as_secs_f64();
        let nanos = |seconds: f64| Nanos((seconds.max(0.0) * 1e9) as u64);
        let near = LAG_UNEVEN * grown + EDGE.as_secs_f64();
        let lag = self.first + grown;
        (nanos(lag - near), nanos(lag + near))
    }
}

impl Trace {
    fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
        let reader = Reader::open(BufReader::new(file))?;
        let mut scans: Vec<PageSnapshot> = Vec::new();
        for item in reader {
            if let Item::Pages(scan) = item.with_context(|| format!("cannot read {name}"))?
                && scans
                    .first()
                    .is_none_or(|first| first.target == scan.target)
            {
                scans.push(scan);
            }
        }
        let Some(start) = scans.first().map(|scan| scan.start) else {
            bail!("{name} holds no page scans; `isotherm record --pages` makes them");
        };
        let blocks = scans.iter().flat_map(|scan| &scan.blocks).map(|b| b.block);
        let blocks: BTreeSet<u64> = blocks.collect();
        let blocks: BTreeMap<u64, usize> = blocks.into_iter().zip(0..).collect();
        let scans = scans.iter().map(|scan| {
            let mut accessed = PageSet::new(blocks.len() * PAGES_PER_BLOCK);
            for block in &scan.blocks {
                let first = blocks[&block.block] * PAGES_PER_BLOCK;
                // The replay treats unknown pages as accessed.
                let pages = bits::or(&block.accessed, &block.unknown);
                bits::each(&pages).for_each(|page| accessed.insert(first + page));
            }
            (scan.end.since(start), accessed)
        });
        Ok(Self {
            scans: scans.collect(),
            blocks,
            lag: Lag::default(),
        })
    }

    fn end(&self) -> Nanos {
        self.scans.last().map_or(Nanos(0), |(end, _)| *end)
    }
}

impl Truth for Trace {
    fn touched(&self, start: Nanos, end: Nanos) -> Touched {
        let mut certain = PageSet::new(self.blocks.len() * PAGES_PER_BLOCK);
        let mut either = certain.clone();
        let mut began = Nanos(0);
        let (least, most) = self.lag.at(start);
        for (ended, accessed) in &self.scans {
            if began + least >= start && *ended + most <= end {
                certain.add(accessed);
            } else if began + least < end && *ended + most > start {
                either.add(accessed);
            }
            began = *ended;
        }
        either.remove(&certain);
        certain.index();
        either.index();
        Touched { certain, either }
    }

    fn parts(&self, range: AddressRange) -> Vec<(AddressRange, Range<usize>)> {
        let mut parts: Vec<(AddressRange, Range<usize>)> = Vec::new();
        let first = range.start / BLOCK_SIZE * BLOCK_SIZE;
        for (block, place) in self.blocks.range(first..range.end) {
            let whole = AddressRange::new(*block, block + BLOCK_SIZE);
            let Some(part) = whole.intersection(range) else {
                continue;
            };
            let page = |address: u64| {
                place * PAGES_PER_BLOCK + (address - block).div_ceil(PAGE_SIZE) as usize
            };
            let pages = page(part.start)..page(part.end);
            match parts.last_mut() {
                Some((last, of)) if last.end == part.start => {
                    *last = AddressRange::new(last.start, part.end);
                    of.end = pages.end;
                }
                _ => parts.push((part, pages)),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let block = |n: u64| 0x7f00_0000_0000 + n * BLOCK_SIZE;
        let scan = |pages: &[usize]| {
            let mut set = PageSet::new(3 * PAGES_PER_BLOCK);
            for page in pages {
                set.insert(*page);
            }
            set
        };
        Trace {
            blocks: BTreeMap::from([(block(0), 0), (block(1), 1), (block(9), 2)]),
            scans: vec![
                (Nanos::from_millis(100), scan(&[1])),
                (Nanos::from_millis(200), scan(&[2, 3])),
                (Nanos::from_millis(300), scan(&[3, 4])),
            ],
            lag: Lag::default(),
        }
    }

    #[test]
    fn scans_within_are_certain_and_those_at_the_edges_are_not() {
        let touched = trace().touched(Nanos::from_millis(50), Nanos::from_millis(250));
        let members = |set: &PageSet| (0..8).filter(|p| set.contains(*p)).collect::<Vec<_>>();
        assert_eq!(members(&touched.certain), [2, 3]);
        assert_eq!(members(&touched.either), [1, 4]);
    }

    #[test]
    fn what_lags_is_held_against_what_was_before() {
        let late = Trace {
            lag: Lag {
                first: 0.1,
                rate: 0.0,
            },
            ..trace()
        };
        // Scans cover 100 to 200, 200 to 300 and 300 to 400 ms.
        let touched = late.touched(Nanos::from_millis(150), Nanos::from_millis(350));
        assert!(touched.certain.contains(2) && !touched.certain.contains(1));
        assert!(touched.either.contains(1) && touched.either.contains(4));
    }

    #[test]
    fn parts_of_a_range_are_the_blocks_that_are_known() {
        let base = 0x7f00_0000_0000;
        let range = AddressRange::new(base + PAGE_SIZE, base + 10 * BLOCK_SIZE);
        let parts = trace().parts(range);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].1, 1..1024);
        assert_eq!(parts[1].1, 1024..1536);
    }
}
