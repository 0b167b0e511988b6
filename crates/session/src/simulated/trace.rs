//! A page-granular record as a simulated process: what a real program accessed, replayed.

mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use isotherm_engine::calibration::{Bound, Calibration};
use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::{CalibrationSample, Item, Mapping, PageSnapshot, Reader, UsageSample, input};

use isotherm_sim::cost::MachineCosts;
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, ProcessSpec, SwapKind, Trace, Use,
};

use load::Load;

/// A traced process, and a machine like the one that it ran on.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What it accessed.
    pub process: ProcessSpec,
    /// One node of as much memory, and compressed swap.
    pub machine: MachineSpec,
    /// What acting cost there, as far as that was measured.
    pub calibration: Calibration,
    /// What the user should know of how it was read, a sentence each.
    pub notes: Vec<String>,
}

/// What compressed memory takes of what it holds, unless a scenario says otherwise.
const ZRAM_RATIO: f64 = 3.0;

const NOT_MEASURED: &str = "what paging out costs was not measured with it (there was no swap, or an older isotherm \
    recorded it), so costs are those of another machine and other content; `isotherm calibrate` measures, and --costs \
    takes what it measured";

/// Reads a record of page scans; its first target is replayed.
///
/// # Errors
/// What cannot be read, or replayed.
pub fn read_trace(path: &Path) -> anyhow::Result<Replay> {
    let name = path.display();
    let input = input::open(path)?;
    let reader = Reader::open(input.bytes).with_context(|| format!("cannot read {name}"))?;
    let mut replay = Replay::read(reader, &name.to_string())?;
    replay.notes.splice(0..0, input.notes);
    Ok(replay)
}

impl Replay {
    /// On a machine that has so many bytes on a second node as well, an access to which takes `latency`. The program is taken to
    /// wait for memory in this share of its time, if all of it is near: no trace tells that.
    pub fn add_far_node(&mut self, bytes: u64, latency: Nanos, memory_bound: f64) {
        // The simulated machine's nodes are of whole blocks of 4 MiB.
        let size = bytes.next_multiple_of(2 * BLOCK_SIZE);
        self.machine.nodes.push(NodeSpec {
            latency,
            ..NodeSpec::new(size)
        });
        self.process.memory_bound = memory_bound;
    }

    /// On a machine with these costs instead of those that it was recorded with.
    pub fn set_costs(&mut self, costs: Calibration) {
        let machine = &mut self.machine;
        machine.costs = MachineCosts::default().calibrated(&costs, Bound::Middle);
        if let Some((kind, _)) = &mut machine.swap {
            *kind = swap_of(&costs);
        }
        if costs.cpus > 0 {
            machine.cpus = costs.cpus;
        }
        self.notes.retain(|note| note != NOT_MEASURED);
        self.calibration = costs;
    }

    /// Of a record of page scans, which messages call `name`; its first target is replayed.
    ///
    /// # Errors
    /// What cannot be read, or replayed.
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

    /// Of what a session with page scans told; its first target is replayed.
    ///
    /// # Errors
    /// What cannot be replayed.
    pub fn of(items: impl Iterator<Item = Item>) -> anyhow::Result<Self> {
        let mut seen = Seen::default();
        items.for_each(|item| seen.take(item));
        seen.replay()
    }
}

#[derive(Default)]
struct Seen {
    target: Option<TargetId>,
    name: String,
    others: BTreeSet<TargetId>,
    mappings: BTreeMap<u64, Mapping>,
    scans: Vec<PageSnapshot>,
    usage: Vec<UsageSample>,
    /// CPU time of the recorder, by when that was told.
    recorder: BTreeMap<Nanos, Nanos>,
    calibration: Option<CalibrationSample>,
}

impl Seen {
    fn take(&mut self, item: Item) {
        match item {
            Item::TargetStart(start) => {
                if *self.target.get_or_insert(start.target) == start.target {
                    self.name = start.name;
                } else {
                    self.others.insert(start.target);
                }
            }
            Item::Mappings(change) if Some(change.target) == self.target => {
                for mapping in change.added {
                    self.mappings.insert(mapping.range.start, mapping);
                }
            }
            Item::Pages(pages) if Some(pages.target) == self.target => self.scans.push(pages),
            Item::Usage(usage) => self.usage.push(usage),
            Item::Cost(cost) => drop(self.recorder.insert(cost.time, cost.cost.monitor_cpu)),
            Item::Calibration(calibration) => self.calibration = Some(calibration),
            _ => {}
        }
    }

    fn replay(mut self) -> anyhow::Result<Replay> {
        let first = self.scans.first().context("it holds no scan")?;
        let start = first.start;
        ensure!(
            self.scans.len() < 65_000,
            "it holds {} scans; record fewer, by a longer --aggregation-interval",
            self.scans.len()
        );
        let mut notes = Vec::new();
        if !self.others.is_empty() {
            notes.push(format!(
                "of {} processes in the trace only the first, {}, is replayed",
                self.others.len() + 1,
                self.name
            ));
        }
        let areas = self.areas();
        ensure!(!areas.is_empty(), "nothing of it was in memory");
        let trace = Arc::new(self.trace(&areas, start));
        let measured = self.calibration.take().unwrap_or_default();
        if measured.costs.page_out_whole_ns.is_none() {
            notes.push(NOT_MEASURED.to_owned());
        }
        let load = Load::of(&self, measured.costs.cpus, start);
        let process = ProcessSpec {
            name: self.name.clone(),
            cpus: load.target,
            has_run: true,
            refuses_huge: { self.target }.is_some_and(|it| measured.refuse_huge.contains(&it)),
            work: Some(trace.duration()),
            areas: specs(&areas, &trace),
            ..ProcessSpec::default()
        };
        let sizes = self.usage.iter().map(|usage| usage.system_total);
        let machine = machine(
            sizes.max().unwrap_or(0).max(1 << 30),
            load.others,
            &measured.costs,
        );
        Ok(Replay {
            process,
            machine,
            calibration: measured.costs,
            notes,
        })
    }

    /// Parts of mappings in whose blocks anything was ever seen.
    fn areas(&self) -> Vec<(AddressRange, Use, String)> {
        let all = self.scans.iter().flat_map(|scan| &scan.blocks);
        let blocks: BTreeSet<u64> = all.map(|block| block.block).collect();
        let mut areas: Vec<(AddressRange, Use, String)> = Vec::new();
        let shared = { self.calibration.as_ref() }
            .zip(self.target)
            .and_then(|(measured, target)| measured.shared.get(&target.0));
        let shared = shared.map_or(&[][..], Vec::as_slice);
        for mapping in self.mappings.values() {
            let is_file = mapping.name.starts_with('/') && !mapping.permissions.contains('w');
            let is_shared = shared
                .iter()
                .any(|range| range.intersection(mapping.range).is_some());
            let purpose = match (is_shared, is_file) {
                (true, _) => Use::Shared,
                (false, true) => Use::File,
                (false, false) => Use::Anon,
            };
            let first = mapping.range.start / BLOCK_SIZE * BLOCK_SIZE;
            for block in blocks.range(first..mapping.range.end) {
                let block = AddressRange::new(*block, block + BLOCK_SIZE);
                let Some(part) = mapping.range.intersection(block) else {
                    continue;
                };
                match areas.last_mut() {
                    // A mapping that grew is there twice: the later says all.
                    Some((last, ..)) if last.end > part.start => last.end = last.end.max(part.end),
                    Some((last, is, name))
                        if last.end == part.start && *is == purpose && *name == mapping.name =>
                    {
                        last.end = part.end;
                    }
                    _ => areas.push((part, purpose, mapping.name.clone())),
                }
            }
        }
        areas
    }

    fn trace(&self, areas: &[(AddressRange, Use, String)], start: Nanos) -> Trace {
        let pages: u64 = areas
            .iter()
            .map(|(range, ..)| range.len() / PAGE_SIZE)
            .sum();
        let ends = self.scans.iter().map(|scan| scan.end.since(start));
        let mut trace = Trace::new(ends.collect(), pages as u32);
        for (interval, scan) in self.scans.iter().enumerate() {
            let mut areas = areas.iter().peekable();
            let mut before = 0;
            for block in &scan.blocks {
                while let Some((range, ..)) = areas.peek()
                    && range.end <= block.block
                {
                    before += (range.len() / PAGE_SIZE) as u32;
                    areas.next();
                }
                // A block may hold the ends of several areas.
                let mut base = before;
                for (range, ..) in areas.clone() {
                    if range.start >= block.block + BLOCK_SIZE {
                        break;
                    }
                    note(&mut trace, interval, *range, base, block);
                    base += (range.len() / PAGE_SIZE) as u32;
                }
            }
        }
        trace.finish();
        trace
    }
}

/// The traced memory, as a program's mappings.
fn specs(areas: &[(AddressRange, Use, String)], trace: &Arc<Trace>) -> Vec<AreaSpec> {
    let mut first = 0;
    let specs = areas.iter().map(|(range, purpose, name)| {
        let spec = AreaSpec {
            name: name.clone(),
            range: *range,
            purpose: *purpose,
            // What was huge there is not replayed as such.
            huge: Some(false),
            pattern: Pattern::Trace(trace.clone(), first),
            fill: None,
            filled_of_block: None,
            released: None,
        };
        first += (range.len() / PAGE_SIZE) as u32;
        spec
    });
    specs.collect()
}

/// One node of so many bytes and compressed swap, with the costs that were measured.
fn machine(bytes: u64, others: Vec<(Nanos, f64)>, measured: &Calibration) -> MachineSpec {
    let assumed = MachineSpec::default();
    MachineSpec {
        cpus: match measured.cpus {
            0 => assumed.cpus,
            cpus => cpus,
        },
        nodes: vec![NodeSpec::new(bytes)],
        swap: Some((swap_of(measured), bytes)),
        others,
        costs: assumed.costs.calibrated(measured, Bound::Middle),
        ..assumed
    }
}

fn swap_of(measured: &Calibration) -> SwapKind {
    SwapKind::Zram {
        ratio: measured.compression_ratio.unwrap_or(ZRAM_RATIO),
    }
}

/// Notes what a scan saw of an area in a block. What is unknown is taken for accessed: unknown is not
/// cold.
fn note(
    trace: &mut Trace,
    interval: usize,
    range: AddressRange,
    base: u32,
    block: &isotherm_record::PageBlock,
) {
    let whole = AddressRange::new(block.block, block.block + BLOCK_SIZE);
    let Some(part) = range.intersection(whole) else {
        return;
    };
    for address in (part.start..part.end).step_by(PAGE_SIZE as usize) {
        let i = ((address - block.block) / PAGE_SIZE) as usize;
        let is_set = |pages| bits::has(pages, i);
        if is_set(&block.present) {
            let page = base + ((address - range.start) / PAGE_SIZE) as u32;
            let accessed = is_set(&block.accessed) || is_set(&block.unknown);
            trace.note(interval, page, accessed);
        }
    }
}
