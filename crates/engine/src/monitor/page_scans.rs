//! Page scans as snapshots, for acting on memory when every page is scanned.
//!
//! Problem: a scan shows for each page whether it was accessed since the previous scan; schemes ask for the idle time
//! of memory.
//!
//! Approach: each block keeps the time since which it is idle as a whole. If some of its pages are in use, it keeps
//! that time for each of the others ([`PageSince`]). A snapshot has a region for each block, and [lists the idle
//! pages](Snapshot::idle_pages) of blocks in use, as the table monitor does.
//!
//! Limits: the resolution of ages is a scan: a page counts as accessed until the scan before the one that saw it idle.
//! Pages that were read back after a page-out are not recognised, as a scan does not show swap.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bits::{self, ALL, Bitmap, and, and_not, count, is_empty, or};
use super::idle_pages::IdlePages;
use super::page_since::{PageSince, nanos_of, ticks};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, block_of};
use crate::snapshot::{RegionMemory, RegionSnapshot, Snapshot, TargetId};

/// The result of one scan for one 2 MiB block of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PageBlock {
    /// Address of the block, a multiple of its size.
    pub block: u64,
    /// Whether one huge page maps all of it.
    pub huge: bool,
    /// Pages that are mapped.
    pub present: Bitmap,
    /// Pages that were accessed since the scan before.
    pub accessed: Bitmap,
    /// Pages without a usable accessed bit (shared, locked, not clearable).
    pub unknown: Bitmap,
}

/// The state of all targets' pages.
#[derive(Debug, Default)]
pub struct PageScans {
    /// Start of the first scan, the origin of ages.
    started: Option<Nanos>,
    targets: BTreeMap<TargetId, BTreeMap<u64, Block>>,
}

#[derive(Debug)]
struct Block {
    state: State,
    /// Tick since which it is in this state.
    since: u32,
    page_since: Option<PageSince>,
}

/// Accesses to a block, or to most of a region's memory, in the last interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Accessed,
    Unknown,
}

impl PageScans {
    /// Takes in a scan of `target` at `end` with the pages accessed since `start`: `blocks`, in address order. Blocks
    /// that it leaves out are not mapped. Returns the snapshot.
    pub fn push(
        &mut self,
        target: TargetId,
        (start, end): (Nanos, Nanos),
        blocks: impl Iterator<Item = PageBlock>,
    ) -> Snapshot {
        let started = *self.started.get_or_insert(start);
        let (from, now) = (ticks(start.since(started)), ticks(end.since(started)));
        let known = self.targets.entry(target).or_default();
        let mut before = std::mem::take(known);
        let (mut regions, mut idle_pages) = (Vec::new(), Vec::new());
        for pages in blocks.filter(|pages| !is_empty(&pages.present)) {
            let block = before.remove(&pages.block);
            let mut block = block.unwrap_or_else(|| Block::new(&pages, from));
            block.update(&pages, from, now);
            regions.push(block.region(&pages, now, end.since(start)));
            idle_pages.extend(block.idle_pages(&pages, now));
            known.insert(pages.block, block);
        }
        Snapshot {
            idle_pages: Arc::new(idle_pages),
            ..Snapshot::new(target, (start, end), 1, regions)
        }
    }

    /// Restarts the age of memory in `range` at `now`, after an action on it. An idle block restarts only if `range`
    /// covers all of it.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        let now = ticks(now.since(self.started.unwrap_or(now)));
        let first = block_of(range.start);
        let Some(blocks) = self.targets.get_mut(&target) else {
            return;
        };
        for (address, block) in blocks.range_mut(first..range.end) {
            let pages = bits::mask(*address, range);
            if pages == ALL {
                block.since = now;
            }
            if let Some(page_since) = &mut block.page_since {
                page_since.reset(&pages, now);
            }
        }
    }

    /// Forgets `target`, which has ended.
    pub fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }
}

fn state_of(pages: &PageBlock) -> State {
    if !is_empty(&pages.accessed) {
        State::Accessed
    } else if is_empty(&pages.unknown) {
        State::Idle
    } else {
        State::Unknown
    }
}

fn untouched(pages: &PageBlock) -> Bitmap {
    and_not(&pages.present, &or(&pages.accessed, &pages.unknown))
}

impl Block {
    fn new(pages: &PageBlock, from: u32) -> Self {
        Self {
            state: state_of(pages),
            since: from,
            page_since: None,
        }
    }

    /// Takes in the accesses to its pages between `from` and `now`.
    fn update(&mut self, pages: &PageBlock, from: u32, now: u32) {
        let (state, untouched) = (state_of(pages), untouched(pages));
        let idle_since = if self.state == State::Idle {
            self.since
        } else {
            from
        };
        if state == State::Idle {
            self.page_since = None;
        } else if let Some(page_since) = &mut self.page_since {
            page_since.update(now, &untouched, &ALL);
        } else {
            self.page_since = Some(PageSince::new(now, &untouched, |_| idle_since));
        }
        if state != self.state {
            (self.state, self.since) = (state, from);
        }
    }

    fn region(&self, pages: &PageBlock, now: u32, interval: Nanos) -> RegionSnapshot {
        let age_ns = nanos_of(now.saturating_sub(self.since));
        let age = age_ns.0.checked_div(interval.0).unwrap_or(0);
        let part = |of: &Bitmap| bits::bytes(&and(of, &pages.present));
        let touched = f64::from(count(&pages.accessed)) / f64::from(count(&pages.present));
        RegionSnapshot {
            range: AddressRange::new(pages.block, pages.block + BLOCK_SIZE),
            nr_accesses: match self.state {
                State::Unknown => None,
                State::Idle => Some(0.0),
                State::Accessed => Some(touched as f32),
            },
            age: u32::try_from(age).unwrap_or(u32::MAX),
            age_ns,
            memory: Some(RegionMemory {
                resident: bits::bytes(&pages.present),
                touched: part(&pages.accessed),
                unknown: part(&pages.unknown),
                swapped: 0,
            }),
        }
    }

    fn idle_pages(&self, pages: &PageBlock, now: u32) -> Option<IdlePages> {
        let page_since = self.page_since.as_ref()?;
        let mut idle = IdlePages::new(pages.block);
        for page in bits::each(&untouched(pages)) {
            let idle_for = nanos_of(now.saturating_sub(page_since.of(page, now)));
            idle.add(page, idle_for);
        }
        (!is_empty(&idle.pages)).then_some(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::{NONE, mask_of};
    use crate::test_pictures::second;

    const TARGET: TargetId = TargetId(3);

    fn time(n: u64) -> Nanos {
        Nanos(1_795_525_045_354_631_477) + second(n)
    }

    fn scan(scans: &mut PageScans, n: u64, accessed: [Bitmap; 2]) -> Snapshot {
        let blocks = accessed.into_iter().zip([0, BLOCK_SIZE]);
        let blocks = blocks.map(|(accessed, block)| PageBlock {
            block,
            present: ALL,
            accessed,
            ..PageBlock::default()
        });
        scans.push(TARGET, (time(n - 1), time(n)), blocks)
    }

    #[test]
    fn ages_are_of_blocks_that_are_idle_and_of_pages_of_others() {
        let mut scans = PageScans::default();
        scan(&mut scans, 1, [ALL, ALL]);
        scan(&mut scans, 2, [mask_of(0..10), NONE]);
        let seen = scan(&mut scans, 5, [mask_of(0..20), NONE]);
        assert_eq!(seen.regions[1].idle(), BLOCK_SIZE);
        assert_eq!(seen.regions[1].age_ns, second(4));
        assert_eq!(seen.regions[0].touched(), 20 * 4096);
        let idle = &seen.idle_pages;
        assert_eq!((idle.len(), idle[0].pages), (1, mask_of(20..512)));
        let of_age = |n: u64| idle[0].of_age(idle[0].range(), second(n), Nanos(u64::MAX));
        assert_eq!((of_age(4), of_age(5)), (mask_of(20..512), NONE));
        // This block was idle as a whole, and is in use now.
        let seen = scan(&mut scans, 6, [NONE, mask_of(0..1)]);
        let idle = &seen.idle_pages;
        assert_eq!((idle.len(), idle[0].block), (1, BLOCK_SIZE));
        let of_age = |n: u64| idle[0].of_age(idle[0].range(), second(n), Nanos(u64::MAX));
        assert_eq!((of_age(5), of_age(6)), (mask_of(1..512), NONE));
    }

    #[test]
    fn what_was_acted_on_and_what_is_gone_counts_anew() {
        let mut scans = PageScans::default();
        for n in 1..10 {
            scan(&mut scans, n, [mask_of(0..1), NONE]);
        }
        let pages = AddressRange::new(10 * 4096, 20 * 4096);
        scans.reset_age(TARGET, pages, time(9));
        let block = AddressRange::new(BLOCK_SIZE, 2 * BLOCK_SIZE);
        scans.reset_age(TARGET, block, time(9));
        let seen = scan(&mut scans, 10, [mask_of(0..1), NONE]);
        let idle = &seen.idle_pages[0];
        let old = idle.of_age(idle.range(), second(5), Nanos(u64::MAX));
        assert_eq!(old, and_not(&mask_of(1..512), &mask_of(10..20)));
        assert_eq!(seen.regions[1].age_ns, second(1));
        scans.push(TARGET, (time(10), time(11)), std::iter::empty());
        let seen = scan(&mut scans, 12, [NONE, NONE]);
        assert_eq!(seen.regions[0].age_ns, second(1));
        scans.forget(TARGET);
    }

    #[test]
    fn unknown_is_not_idle() {
        let mut scans = PageScans::default();
        let pages = PageBlock {
            present: ALL,
            unknown: mask_of(0..100),
            ..PageBlock::default()
        };
        for n in 1..5 {
            let times = (time(n - 1), time(n));
            let seen = scans.push(TARGET, times, std::iter::once(pages));
            assert_eq!(seen.regions[0].nr_accesses, None);
            assert_eq!(seen.idle_pages[0].pages, mask_of(100..512));
        }
    }
}
