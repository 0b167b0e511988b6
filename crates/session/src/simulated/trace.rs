//! A page-granular record as a simulated process: what a real program accessed, replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::{Item, Mapping, PageSnapshot, Reader, input};

use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, ProcessSpec, SwapKind, Trace, Use,
};

/// A traced process, and a machine like the one that it ran on.
#[derive(Debug)]
pub struct Replay {
    /// What it accessed.
    pub process: ProcessSpec,
    /// One node of as much memory, and compressed swap.
    pub machine: MachineSpec,
    /// What the user should know of how it was read, a sentence each.
    pub notes: Vec<String>,
}

/// What compressed memory takes of what it holds, unless a scenario says otherwise.
const ZRAM_RATIO: f64 = 3.0;

/// Reads a record of page scans; its first target is replayed.
///
/// # Errors
/// What cannot be read, or replayed.
pub fn read_trace(path: &Path) -> anyhow::Result<Replay> {
    let name = path.display();
    let input = input::open(path)?;
    let mut reader = Reader::open(input.bytes).with_context(|| format!("cannot read {name}"))?;
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
    replay.notes.splice(0..0, input.notes);
    let truncated = truncated.map(|truncated| format!("{name}: {truncated}"));
    replay.notes.extend(truncated);
    Ok(replay)
}

impl Replay {
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
    system_total: u64,
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
            Item::Usage(usage) => self.system_total = self.system_total.max(usage.system_total),
            _ => {}
        }
    }

    fn replay(self) -> anyhow::Result<Replay> {
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
        let process = ProcessSpec {
            name: self.name.clone(),
            threads: 1,
            work: Some(trace.duration()),
            memory_bound: 0.0,
            accesses_per_s: None,
            areas: specs.collect(),
        };
        let size = self.system_total.max(1 << 30);
        let machine = MachineSpec {
            nodes: vec![NodeSpec::new(size)],
            swap: Some((SwapKind::Zram { ratio: ZRAM_RATIO }, size)),
            ..MachineSpec::default()
        };
        Ok(Replay {
            process,
            machine,
            notes,
        })
    }

    /// Parts of mappings in whose blocks anything was ever seen.
    fn areas(&self) -> Vec<(AddressRange, Use, String)> {
        let all = self.scans.iter().flat_map(|scan| &scan.blocks);
        let blocks: BTreeSet<u64> = all.map(|block| block.block).collect();
        let mut areas: Vec<(AddressRange, Use, String)> = Vec::new();
        for mapping in self.mappings.values() {
            let is_file = mapping.name.starts_with('/') && !mapping.permissions.contains('w');
            let purpose = if is_file { Use::File } else { Use::Anon };
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
