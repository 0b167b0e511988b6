//! Replay of a page-granular record: the accesses of real programs as simulated processes.

mod load;
mod traced;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, ensure};
use isotherm_engine::calibration::{Bound, Calibration};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::{CalibrationSample, Item, Reader, UsageSample, input};
use isotherm_sim::cost::MachineCosts;
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, SimProcessSpec, SwapKind, Trace,
};

use traced::Traced;

/// Traced processes, and a machine like theirs.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Processes with the times of their first scans, in this order; those that start together by memory, largest
    /// first.
    pub processes: Vec<(Nanos, SimProcessSpec)>,
    /// Machine with one node of the same size, and compressed swap.
    pub machine: MachineSpec,
    /// Costs of acting on the recorded machine, as far as they were measured.
    pub calibration: Calibration,
    /// Notes for the user on the reading of the trace, a sentence each.
    pub notes: Vec<String>,
    /// Process ids of the processes that outlived the trace.
    pub live: Vec<u32>,
}

/// Default ratio of memory to its compressed size.
const ZRAM_RATIO: f64 = 3.0;

const NOT_MEASURED: &str = "what paging out costs was not measured with it (there was no swap, or an older isotherm \
    recorded it), so costs are those of another machine and other content; `isotherm calibrate` measures, and --costs \
    takes what it measured";

const PROCESSES_MAX: usize = 64;

/// Reads a record of page scans.
///
/// # Errors
/// Fails if the record cannot be read or replayed.
pub fn read_trace(path: &Path) -> anyhow::Result<Replay> {
    let name = path.display();
    let input = input::open(path)?;
    let reader = Reader::open(input.bytes).with_context(|| format!("cannot read {name}"))?;
    let mut replay = Replay::read(reader, &name.to_string())?;
    replay.notes.splice(0..0, input.notes);
    Ok(replay)
}

impl Replay {
    /// Returns the process with most memory.
    pub fn largest(&self) -> Option<&SimProcessSpec> {
        let processes = self.processes.iter().rev().map(|(_, process)| process);
        processes.max_by_key(|process| process.mapped_bytes())
    }

    /// Returns the traced program's name: that of its largest process, with the number of others.
    pub fn program(&self) -> String {
        let name = self.largest().map_or("", |process| &process.name);
        match self.processes.len() {
            0 | 1 => name.to_owned(),
            nr => format!("{name} and {} more", nr - 1),
        }
    }

    /// Replaces the costs of the recorded machine by these.
    pub fn set_costs(&mut self, costs: Calibration) {
        set_costs(&mut self.machine, &costs);
        self.notes.retain(|note| note != NOT_MEASURED);
        self.calibration = costs;
    }

    /// Reads a record of page scans; `name` is its name in messages.
    ///
    /// # Errors
    /// Fails if the record cannot be read or replayed.
    pub fn read<R: Read>(mut reader: Reader<R>, name: &str) -> anyhow::Result<Self> {
        ensure!(
            reader.is_page_record(),
            "{name} holds no page scans, and regions cannot be replayed; make a trace with \
             `isotherm record --pages -o {name} ...`"
        );
        let mut seen = Seen::default();
        for item in reader.by_ref() {
            seen.take(item.with_context(|| format!("cannot read {name}"))?);
        }
        let truncated = reader.truncated();
        let mut replay = seen
            .replay()
            .with_context(|| format!("{name} cannot be replayed"))?;
        let truncated = truncated.map(|truncated| format!("{name}: {truncated}"));
        replay.notes.extend(truncated);
        Ok(replay)
    }

    /// Returns a sample of one block of `nr`, and the ratio of the whole trace's memory to the sample's. The sample's
    /// machine has `nr` times the costs of a page. Blocks are drawn in the order of their accesses, so that hot and
    /// cold memory keep their shares. `None` if no block is left.
    pub fn one_in(&self, nr: u32) -> Option<(Self, f64)> {
        let mut blocks: Vec<(u64, usize, AreaSpec)> = Vec::new();
        for (at, (_, process)) in self.processes.iter().enumerate() {
            let parts = process.areas.iter().flat_map(blocks_of);
            blocks.extend(parts.map(|part| (counted(&part, Trace::accessed_in), at, part)));
        }
        blocks.sort_by_key(|(accessed, at, part)| (*accessed, *at, part.range.start));
        let mut some = self.clone();
        { some.processes.iter_mut() }.for_each(|(_, process)| process.areas.clear());
        let nr_skipped = nr as usize / 2;
        for (_, at, part) in blocks.into_iter().skip(nr_skipped).step_by(nr as usize) {
            some.processes[at].1.areas.push(part);
        }
        some.processes
            .retain(|(_, process)| !process.areas.is_empty());
        for (_, process) in &mut some.processes {
            process.areas.sort_by_key(|area| area.range.start);
        }
        some.machine.costs = some.machine.costs.for_one_in(nr);
        let seen = some.seen_pages();
        (seen > 0).then(|| (some, self.seen_pages() as f64 / seen as f64))
    }

    /// Number of resident pages, each counted once for each scan that found it.
    pub fn seen_pages(&self) -> u64 {
        let areas = self
            .processes
            .iter()
            .flat_map(|(_, process)| &process.areas);
        areas.map(|area| counted(area, Trace::seen)).sum()
    }

    /// Makes a replay of the items of a session with page scans.
    ///
    /// # Errors
    /// Fails if they cannot be replayed.
    pub fn of(items: impl Iterator<Item = Item>) -> anyhow::Result<Self> {
        let mut seen = Seen::default();
        items.for_each(|item| seen.take(item));
        seen.replay()
    }
}

#[derive(Default)]
struct Seen {
    targets: BTreeMap<TargetId, Traced>,
    usage: Vec<UsageSample>,
    /// CPU time of the recorder, by the time of its sample.
    recorder: BTreeMap<Nanos, Nanos>,
    calibration: Option<CalibrationSample>,
    live: BTreeMap<TargetId, u32>,
}

impl Seen {
    fn take(&mut self, item: Item) {
        match item {
            Item::TargetStart(start) => {
                self.live.insert(start.target, start.pid);
                self.targets.entry(start.target).or_default().name = start.name;
            }
            Item::TargetExit(exit) => drop(self.live.remove(&exit.target)),
            Item::Mappings(change) => {
                let traced = self.targets.entry(change.target).or_default();
                for mapping in change.added {
                    traced.mappings.insert(mapping.range.start, mapping);
                }
            }
            Item::Pages(pages) => {
                let traced = self.targets.entry(pages.target).or_default();
                traced.scans.push(pages);
            }
            Item::Usage(usage) => self.usage.push(usage),
            Item::Cost(cost) => drop(self.recorder.insert(cost.time, cost.cost.monitor_cpu)),
            Item::Calibration(calibration) => self.calibration = Some(calibration),
            _ => {}
        }
    }

    fn replay(mut self) -> anyhow::Result<Replay> {
        let start = { self.targets.values() }
            .filter_map(|traced| Some(traced.scans.first()?.start))
            .min()
            .context("it holds no scan")?;
        let longest = self.targets.values().map(|traced| traced.scans.len()).max();
        ensure!(
            longest.is_none_or(|nr| nr < 65_000),
            "it holds {} scans; record fewer, by a longer --aggregation-interval",
            longest.unwrap_or(0)
        );
        let mut notes = self.keep_largest();
        ensure!(!self.targets.is_empty(), "nothing of it was in memory");
        let measured = self.calibration.take().unwrap_or_default();
        if measured.costs.page_out_whole_ns.is_none() {
            notes.push(NOT_MEASURED.to_owned());
        }
        let mut processes: Vec<(Nanos, SimProcessSpec)> = { self.targets.iter() }
            .filter_map(|(target, traced)| {
                let from = traced.scans.first()?.start;
                let spec = SimProcessSpec {
                    cpus: load::of_target(&self.usage, *target, from),
                    refuses_huge: measured.refuse_huge.contains(target),
                    ..traced.process(measured.shared.get(&target.0))
                };
                Some((from.since(start), spec))
            })
            .collect();
        processes.sort_by_key(|(at, process)| (*at, Reverse(process.mapped_bytes())));
        let sizes = self.usage.iter().map(|usage| usage.system_total);
        // Memory that processes share exists once for each of them.
        let shared = processes
            .iter()
            .skip(1)
            .map(|(_, process)| process.shared_bytes());
        let size = sizes.max().unwrap_or(0).max(1 << 30) + shared.sum::<u64>();
        let others = load::of_others(&self, measured.costs.cpus, start);
        Ok(Replay {
            processes,
            machine: machine(size, others, &measured.costs),
            calibration: *measured.costs,
            notes,
            live: self.live.into_values().collect(),
        })
    }

    /// Drops processes without resident memory, and the smallest beyond the limit.
    fn keep_largest(&mut self) -> Vec<String> {
        self.targets.retain(|_, traced| traced.seen_pages() > 0);
        let (nr, all) = (self.targets.len(), self.seen_pages());
        if nr <= PROCESSES_MAX {
            return Vec::new();
        }
        let mut sizes: Vec<(u64, TargetId)> = { self.targets.iter() }
            .map(|(target, traced)| (traced.seen_pages(), *target))
            .collect();
        sizes.sort_unstable_by_key(|(pages, target)| (Reverse(*pages), *target));
        for (_, target) in sizes.split_off(PROCESSES_MAX) {
            self.targets.remove(&target);
        }
        vec![format!(
            "of {nr} processes in the trace the {PROCESSES_MAX} with most memory are replayed: {:.1} % of what all had",
            100.0 * self.seen_pages() as f64 / all as f64
        )]
    }

    fn seen_pages(&self) -> u64 {
        self.targets.values().map(Traced::seen_pages).sum()
    }
}

/// Sums up a trace's figure over the pages of an area.
fn counted(area: &AreaSpec, of: fn(&Trace, Range<u32>) -> u64) -> u64 {
    match &area.pattern {
        Pattern::Trace(trace, first) => of(
            trace,
            *first..*first + (area.range.len() / PAGE_SIZE) as u32,
        ),
        Pattern::Phases(_) => 0,
    }
}

fn blocks_of(area: &AreaSpec) -> impl Iterator<Item = AreaSpec> {
    let blocks = area.range.start / BLOCK_SIZE..area.range.end.div_ceil(BLOCK_SIZE);
    blocks.filter_map(|block| {
        let block = AddressRange::new(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
        let range = block.intersection(area.range)?;
        let pattern = match &area.pattern {
            Pattern::Trace(trace, first) => {
                let before = (range.start - area.range.start) / PAGE_SIZE;
                Pattern::Trace(trace.clone(), first + before as u32)
            }
            other @ Pattern::Phases(_) => other.clone(),
        };
        Some(AreaSpec {
            range,
            pattern,
            ..area.clone()
        })
    })
}

/// Returns a machine with one node of this size and compressed swap, with the measured costs.
fn machine(bytes: u64, others: Vec<(Nanos, f64)>, measured: &Calibration) -> MachineSpec {
    let swap = SwapKind::Zram { ratio: ZRAM_RATIO };
    let mut machine = MachineSpec {
        nodes: vec![NodeSpec::new(bytes)],
        swap: Some((swap, bytes)),
        others,
        ..MachineSpec::default()
    };
    set_costs(&mut machine, measured);
    machine
}

fn set_costs(machine: &mut MachineSpec, costs: &Calibration) {
    machine.costs = MachineCosts::default().calibrated(costs, Bound::Middle);
    if let Some((kind, _)) = &mut machine.swap {
        let ratio = costs.compression_ratio.unwrap_or(ZRAM_RATIO);
        *kind = SwapKind::Zram { ratio };
    }
    if costs.cpus > 0 {
        machine.cpus = costs.cpus;
    }
}

#[cfg(test)]
mod tests;
