//! One traced process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use isotherm_record::{Mapping, PageBlock, PageSnapshot};
use isotherm_sim::machine::{AreaSpec, Pattern, SimProcessSpec, Trace, Use};

/// Contents of a record about one process.
#[derive(Default)]
pub(super) struct Traced {
    pub(super) name: String,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) scans: Vec<PageSnapshot>,
}

impl Traced {
    /// Number of resident pages, each counted once for each scan that found it.
    pub(super) fn seen_pages(&self) -> u64 {
        let blocks = self.scans.iter().flat_map(|scan| &scan.blocks);
        blocks
            .map(|block| u64::from(bits::count(&block.present)))
            .sum()
    }

    /// Returns the process as if it began with its first scan; other processes share the `shared` ranges.
    pub(super) fn process(&self, shared: Option<&Vec<AddressRange>>) -> SimProcessSpec {
        let areas = self.areas(shared.map_or(&[], Vec::as_slice));
        let start = self.scans.first().map_or(Nanos(0), |scan| scan.start);
        let trace = Arc::new(self.trace(&areas, start));
        SimProcessSpec {
            name: self.name.clone(),
            has_run: true,
            work: Some(trace.duration()),
            areas: specs(&areas, &trace),
            ..SimProcessSpec::default()
        }
    }

    /// Returns the parts of mappings with blocks in which a page was ever seen.
    fn areas(&self, shared: &[AddressRange]) -> Vec<(AddressRange, Use, String)> {
        let all = self.scans.iter().flat_map(|scan| &scan.blocks);
        let blocks: BTreeSet<u64> = all.map(|block| block.block).collect();
        let mut areas: Vec<(AddressRange, Use, String)> = Vec::new();
        for mapping in self.mappings.values() {
            let is_file = mapping.name.starts_with('/') && !mapping.permissions.contains('w');
            let is_shared = shared
                .iter()
                .any(|range| range.intersection(mapping.range).is_some());
            let purpose = match (mapping.unreclaimable, is_shared, is_file) {
                (Some(why), ..) => Use::Unreclaimable(why),
                (None, true, _) => Use::Shared,
                (None, false, true) => Use::File,
                (None, false, false) => Use::Anon,
            };
            let first = mapping.range.start / BLOCK_SIZE * BLOCK_SIZE;
            for block in blocks.range(first..mapping.range.end) {
                let block = AddressRange::new(*block, block + BLOCK_SIZE);
                let Some(part) = mapping.range.intersection(block) else {
                    continue;
                };
                match areas.last_mut() {
                    // A mapping that grew is listed twice: the later entry is complete.
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

/// Returns the traced memory as mappings of a program.
fn specs(areas: &[(AddressRange, Use, String)], trace: &Arc<Trace>) -> Vec<AreaSpec> {
    let mut first = 0;
    let specs = areas.iter().map(|(range, purpose, name)| {
        let spec = AreaSpec {
            purpose: *purpose,
            // Huge pages of the trace are not replayed as such.
            huge: Some(false),
            ..AreaSpec::new(name, *range, Pattern::Trace(trace.clone(), first))
        };
        first += (range.len() / PAGE_SIZE) as u32;
        spec
    });
    specs.collect()
}

/// Adds the result of a scan for an area in a block. Unknown pages count as accessed, never as cold.
fn note(trace: &mut Trace, interval: usize, range: AddressRange, base: u32, block: &PageBlock) {
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
