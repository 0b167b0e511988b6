//! Page granularity: every page's accessed bit at every look, by the scanner.

use isotherm_config::{ClearBy, PageAttributes};
use isotherm_engine::monitor::bits;
use isotherm_engine::{AccessProbe, AddressRange, Cost, Intervals, Nanos, TargetId};
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::probe::scan::{ClearMethod, ScanError, ScannedBlock, Scanner};
use isotherm_linux::process::Process;
use isotherm_record::{Item, PageBlock, PageSnapshot};

use super::Monitor;
use crate::targets::TargetSet;

/// More of the accessed pages unknown than this: clearing by madvise misses too much.
const TOO_MUCH_UNKNOWN: f64 = 0.1;

pub(crate) struct Pages {
    probe: PageTableProbe,
    targets: TargetSet,
    scanner: Scanner,
    interval: Nanos,
    may_switch: bool,
    max_stall: Nanos,
    last_scan: std::collections::BTreeMap<TargetId, Nanos>,
    nr_unknown: u64,
}

impl Pages {
    pub(crate) fn new(
        probe: PageTableProbe,
        targets: TargetSet,
        attributes: PageAttributes,
    ) -> Self {
        let PageAttributes {
            interval,
            max_stall,
            clear_by,
        } = attributes;
        let method = match clear_by {
            ClearBy::ClearRefs => ClearMethod::ClearRefs,
            ClearBy::Auto | ClearBy::Madvise => ClearMethod::Madvise,
        };
        Self {
            probe,
            targets,
            scanner: Scanner::new(method, max_stall),
            interval,
            may_switch: clear_by == ClearBy::Auto,
            max_stall,
            last_scan: std::collections::BTreeMap::new(),
            nr_unknown: 0,
        }
    }

    fn scan(&mut self, id: TargetId, now: Nanos, items: &mut Vec<Item>) -> Result<(), ScanError> {
        let ranges: Vec<AddressRange> = self.targets.mappings(id).iter().map(|m| m.range).collect();
        let Some(mut blocks) = self.scanner.scan(&mut self.probe, id, &ranges)? else {
            return Ok(());
        };
        let Some(start) = self.last_scan.insert(id, now) else {
            return Ok(());
        };
        if self.probe.hides_accesses(id) {
            // That a page was accessed is known, that it was not is not.
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
        let blocks = blocks.iter().map(page_block).collect();
        items.push(Item::Pages(PageSnapshot {
            target: id,
            start,
            end: now,
            blocks,
        }));
        self.switch_if_useful(
            id,
            unknown as f64 > accessed as f64 * TOO_MUCH_UNKNOWN,
            now,
            items,
        );
        Ok(())
    }

    /// Clears by clear_refs from now on, if madvise misses much and that stays within the limit.
    fn switch_if_useful(
        &mut self,
        id: TargetId,
        misses_much: bool,
        now: Nanos,
        items: &mut Vec<Item>,
    ) {
        if !misses_much || !std::mem::take(&mut self.may_switch) {
            return;
        }
        let rss = self
            .probe
            .process(id)
            .and_then(|p| p.usage().ok())
            .map_or(0, |usage| usage.rss);
        let hold_ms = self.scanner.clear_refs_hold_ms(rss);
        let limit_ms = self.max_stall.0 as f64 / 1e6;
        let text = if hold_ms <= limit_ms {
            self.scanner.set_method(ClearMethod::ClearRefs);
            format!(
                "much of the memory is shared: clearing by clear_refs from now on (about {hold_ms:.1} ms)"
            )
        } else {
            format!(
                "much of the memory is shared and stays unknown: clear_refs would hold the target up for {hold_ms:.1} ms, the limit is {limit_ms:.1} ms"
            )
        };
        items.push(Item::Note { time: now, text });
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
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Option<Nanos>> {
        for ended in self.targets.update(&mut self.probe, now, items)? {
            self.scanner.forget(ended);
            self.last_scan.remove(&ended);
        }
        if self.targets.is_over() {
            return Ok(None);
        }
        for id in self.targets.ids().collect::<Vec<_>>() {
            self.scan(id, now, items)?;
        }
        Ok(Some(now + self.interval))
    }

    fn leave_out(&mut self, cpu: Nanos) {
        self.probe.leave_out(cpu);
    }

    fn cost(&self) -> Cost {
        self.probe.cost()
    }

    fn nr_unknown(&self) -> u64 {
        self.nr_unknown
    }

    fn intervals(&self) -> Intervals {
        Intervals {
            sample: self.interval,
            aggregation: self.interval,
            update: self.interval,
        }
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets
            .ids()
            .filter_map(|id| Some((id, self.probe.process(id)?)))
            .collect()
    }

    fn summary(&self) -> Option<String> {
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
