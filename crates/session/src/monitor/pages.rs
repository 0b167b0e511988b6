//! Page granularity: the scanner reads every page's accessed bit in every scan.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_config::{ClearBy, PageAttributes};
use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::frames::{FrameMap, MappedClass, NR_MAPPERS, PageAge};
use isotherm_engine::monitor::bits;
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, CpuLedger, Intervals, Nanos, PAGE_SIZE, TargetId,
};
use isotherm_linux::probe::ClearMethod;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::probe::scan::{ScanError, ScannedBlock, Scanner};
use isotherm_linux::process::Process;
use isotherm_record::{Item, PageBlock, PageSnapshot};

use super::by_frame::drop_mappings;
use super::once::FirstPages;
use super::{ByFrame, GroupCache, Monitor, MonitorStatus, NextStep, TargetTables};
use crate::targets::TargetSet;

/// Ratio of unknown to accessed pages above which clearing by madvise misses too much.
const TOO_MUCH_UNKNOWN: f64 = 0.1;
/// CPU share that scans of all processes of the machine may take. With more memory, the interval grows.
const MACHINE_SHARE: f64 = 0.1;

pub(crate) struct Pages {
    probe: PageTableProbe,
    targets: TargetSet,
    scanner: Scanner,
    attributes: PageAttributes,
    /// Targets that are cleared by clear_refs, and those for which the choice has been made.
    by_refs: BTreeSet<TargetId>,
    asked: BTreeSet<TargetId>,
    last_scan: BTreeMap<TargetId, Nanos>,
    nr_unknown: u64,
    /// Physical memory as the target, with the state of its frames.
    by_frame: Option<(ByFrame, FrameMap)>,
    /// Scans of processes that are recorded by frame, if they are acted on.
    unrecorded: Option<Vec<Item>>,
    first: FirstPages,
    group_cache: Option<GroupCache>,
    /// Set if all processes are scanned, however many: scans may take at most [`MACHINE_SHARE`].
    pub(crate) is_machine: bool,
}

impl Pages {
    pub(crate) fn new(
        probe: PageTableProbe,
        targets: TargetSet,
        attributes: PageAttributes,
    ) -> Self {
        Self {
            probe,
            targets,
            scanner: Scanner::new(ClearMethod::Madvise, attributes.max_stall),
            attributes,
            by_refs: BTreeSet::new(),
            asked: BTreeSet::new(),
            last_scan: BTreeMap::new(),
            nr_unknown: 0,
            by_frame: None,
            unrecorded: None,
            first: FirstPages::default(),
            group_cache: None,
            is_machine: false,
        }
    }

    /// Records memory by frame; with `is_acted_on`, scans of processes are kept for acting.
    pub(crate) fn told_by_frame(mut self, by_frame: ByFrame, is_acted_on: bool) -> Self {
        self.by_frame = Some((by_frame, FrameMap::default()));
        self.unrecorded = is_acted_on.then(Vec::new);
        self
    }

    /// Reports the page cache of the control group as well.
    pub(crate) fn with_group_cache(mut self, group_cache: Option<GroupCache>) -> Self {
        self.group_cache = group_cache;
        self
    }

    fn scan(&mut self, id: TargetId, now: Nanos, items: &mut Vec<Item>) -> Result<(), ScanError> {
        let ranges = self.targets.mappings(id);
        let is_by_refs =
            self.attributes.clear_by == ClearBy::ClearRefs || self.by_refs.contains(&id);
        self.scanner.set_method(if is_by_refs {
            ClearMethod::ClearRefs
        } else {
            ClearMethod::Madvise
        });
        let Some(mut blocks) = self.scanner.scan(&mut self.probe, id, &ranges)? else {
            return Ok(());
        };
        let Some(start) = self.last_scan.insert(id, now) else {
            return self.add_frames(id, &blocks, &ranges);
        };
        if self.probe.hides_accesses(id) {
            // A set accessed bit proves an access; a clear one proves nothing.
            for block in &mut blocks {
                let facts = &block.facts;
                block.unknown = std::array::from_fn(|i| {
                    block.unknown[i] | facts.present[i] & !facts.accessed[i]
                });
            }
        }
        let unknown = count(&blocks, |block| block.unknown);
        let accessed = count(&blocks, |block| block.facts.accessed);
        self.nr_unknown += unknown;
        self.add_frames(id, &blocks, &[])?;
        let blocks = blocks.iter().map(page_block).collect();
        let pages = Item::Pages(PageSnapshot::new(id, (start, now), blocks));
        match (&self.by_frame, &mut self.unrecorded) {
            (None, _) => items.push(pages),
            (Some(_), Some(unrecorded)) => unrecorded.push(pages),
            (Some(_), None) => {}
        }
        self.switch_if_useful(
            id,
            unknown as f64 > accessed as f64 * TOO_MUCH_UNKNOWN,
            now,
            items,
        );
        Ok(())
    }

    /// Switches to clear_refs if madvise misses much and clear_refs stays within the limit.
    fn switch_if_useful(
        &mut self,
        id: TargetId,
        misses_much: bool,
        now: Nanos,
        items: &mut Vec<Item>,
    ) {
        if !misses_much || self.attributes.clear_by != ClearBy::Auto || !self.asked.insert(id) {
            return;
        }
        let rss = self
            .probe
            .process(id)
            .and_then(|p| p.usage().ok())
            .map_or(0, |usage| usage.rss);
        let hold_ms = self.scanner.clear_refs_hold_ms(rss);
        let limit_ms = self.attributes.max_stall.0 as f64 / 1e6;
        let text = if hold_ms <= limit_ms {
            self.by_refs.insert(id);
            format!(
                "much of the memory is shared: clearing by clear_refs from now on (about {hold_ms:.1} ms)"
            )
        } else {
            format!(
                "much of the memory is shared and stays unknown: clear_refs would hold the target up for {hold_ms:.1} ms, the limit is {limit_ms:.1} ms"
            )
        };
        if !self.is_machine {
            items.push(Item::Note { time: now, text });
        }
    }

    /// Enters the result of a target's scan for its frames. Pages in `unscanned` ranges are unknown.
    fn add_frames(
        &mut self,
        id: TargetId,
        blocks: &[ScannedBlock],
        unscanned: &[AddressRange],
    ) -> Result<(), ScanError> {
        let Some((by_frame, frames)) = &mut self.by_frame else {
            return Ok(());
        };
        let addresses: Vec<u64> = if unscanned.is_empty() {
            blocks.iter().map(|block| block.facts.address).collect()
        } else {
            let blocks = self.probe.occupied_blocks(id, unscanned)?;
            blocks.unwrap_or_default()
        };
        // Each mapper of a frame counts once; mappers beyond the available numbers share one.
        let mapper = (id.0 as usize % NR_MAPPERS) as u16;
        let mut rest = blocks.iter().peekable();
        self.probe
            .each_frame(id, &addresses, |address, frame, nr| {
                while rest
                    .next_if(|block| block.facts.address + BLOCK_SIZE <= address)
                    .is_some()
                {}
                let block = rest.peek().filter(|block| block.facts.address <= address);
                for i in 0..u64::from(nr) {
                    let page = ((address % BLOCK_SIZE) / PAGE_SIZE + i) as usize;
                    let frame = frame + i;
                    if by_frame.has(frame) {
                        frames.add(
                            mapper,
                            MappedClass::Anonymous,
                            frame,
                            age_in(block.copied(), page),
                        );
                    }
                }
            })?;
        Ok(())
    }
}

/// Returns the age of a page by a scan. A page that has appeared since was accessed.
fn age_in(block: Option<&ScannedBlock>, page: usize) -> PageAge {
    match block {
        None => PageAge::Unknown,
        Some(block) if bits::has(&block.unknown, page) => PageAge::Unknown,
        Some(block) if !bits::has(&block.facts.present, page) => PageAge::Touched,
        Some(block) if bits::has(&block.facts.accessed, page) => PageAge::Touched,
        Some(_) => PageAge::idle_for(Nanos(0)),
    }
}

fn count(blocks: &[ScannedBlock], of: impl Fn(&ScannedBlock) -> [u64; 8]) -> u64 {
    blocks
        .iter()
        .map(|block| u64::from(bits::count(&of(block))))
        .sum()
}

fn page_block(block: &ScannedBlock) -> PageBlock {
    let known = |pages| bits::and_not(&pages, &block.unknown);
    PageBlock {
        block: block.facts.address,
        huge: block.facts.huge,
        present: block.facts.present,
        accessed: known(block.facts.accessed),
        unknown: block.unknown,
    }
}

impl Monitor for Pages {
    fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        let before = self.probe.cost().monitor_cpu;
        if let Some((by_frame, frames)) = &mut self.by_frame {
            items.extend(by_frame.start(now));
            frames.clear();
        }
        let first_new = items.len();
        for ended in self.targets.update(&mut self.probe, now, items)? {
            self.scanner.forget(ended);
            self.last_scan.remove(&ended);
            self.by_refs.remove(&ended);
            self.asked.remove(&ended);
        }
        if self.targets.is_over() {
            return Ok(None);
        }
        let is_first = self.last_scan.is_empty();
        for id in self.targets.ids().collect::<Vec<_>>() {
            match self.scan(id, now, items) {
                // The process has ended or grown: the machine's other processes must not miss their scans.
                Err(ScanError::ClearRefs { .. } | ScanError::TooLong { .. })
                    if self.is_machine && self.by_refs.remove(&id) => {}
                Err(ScanError::TooLong { .. }) if self.is_machine => self.scanner.forget(id),
                scanned => scanned?,
            }
        }
        if let Some(error) = { self.group_cache.as_mut() }.and_then(|of| of.step(now).err()) {
            self.group_cache = None;
            let text = format!("the page cache is not watched any more: {error:#}");
            items.push(Item::Note { time: now, text });
        }
        if self.attributes.counts_once && self.targets.ids().nth(1).is_some() {
            let scans = &mut items[first_new..];
            self.first.count_once(&mut self.probe, scans)?;
        }
        if let Some((by_frame, frames)) = &mut self.by_frame {
            let pages = by_frame.pages(frames, now);
            drop_mappings(items, first_new);
            // The first scan only clears; it has no result.
            items.extend((!is_first).then_some(pages));
        }
        let mut wait = self.attributes.interval;
        if self.is_machine && !is_first {
            let spent = self.probe.cost().monitor_cpu.since(before).0 as f64;
            wait = wait.max(Nanos((spent / MACHINE_SHARE) as u64));
        }
        Ok(Some(now + wait))
    }

    fn take_internal_snapshots(&mut self) -> Vec<Item> {
        let unrecorded = self.unrecorded.as_mut();
        unrecorded.map(std::mem::take).unwrap_or_default()
    }

    fn target_tables(&mut self, target: TargetId) -> Option<TargetTables<'_>> {
        let is_told = self.by_frame.is_none();
        is_told.then_some((&mut self.probe, &self.targets, target))
    }

    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        MonitorStatus {
            cost: cpu.of_watching(self.probe.cost()),
            nr_unknown: self.nr_unknown,
            intervals: Intervals {
                sample: self.attributes.interval,
                aggregation: self.attributes.interval,
                update: self.attributes.interval,
            },
        }
    }

    fn group_cache(&self) -> Option<CachedBytes> {
        self.group_cache.as_ref()?.bytes()
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets.processes(&self.probe)
    }

    fn summary(&self, _cpu: CpuLedger) -> Option<String> {
        let cost = self.scanner.cost();
        Some(format!(
            "{} page scans: {:.2} ms of CPU for each GiB, clearing by {:?}; longest hold of a target's memory lock {:.2} ms",
            cost.scans,
            cost.cpu_ms_per_gib(),
            self.scanner.method(),
            cost.longest_hold.0 as f64 / 1e6
        ))
    }
}
