//! Contents of targets' huge pages, and the pages in them that were never written: they show which code wastes memory.
//!
//! Problem: the waste of a huge page shows only in its content, and reading all of it takes 0.15 s a gigabyte. Huge
//! pages come and go, and programs fill them while they are read.
//!
//! Approach: about once a second the blocks that are huge pages are listed, one level above the tables of pages. Some
//! of them are read: in random order those that were never read, then those that were read longest ago. A huge page
//! whose pages are all written is read again later. A token bucket pays for both, half for each. When recording ends,
//! huge pages are read once more for a quarter of a second.
//!
//! Limits: a page of zeros counts as not written. A huge page that is filled after its last reading counts as it was
//! read. At most [`READS_MAX`] huge pages of a target are read, 128 GiB; others count as not read. The huge pages of a
//! process that ends before the recording are not read at its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use isotherm_engine::monitor::bits;
use isotherm_engine::{BLOCK_SIZE, Nanos, TargetId};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::probe::BlockContents;
use isotherm_record::huge::READS_MAX;
use isotherm_record::{HugePageRead, HugePagesSample, Item, TargetHugePages};

use crate::monitor::{Monitor, due_first};

/// Shortest interval between two listings of huge pages.
const LISTING: Nanos = Nanos::from_millis(1_000);
/// Share of the budget that listing may take.
const LISTING_SHARE: f64 = 0.5;
/// Limit of saved tokens: some 60 huge pages.
const SAVED_NS_MAX: f64 = 20e6;
/// Huge pages that are read in one run, which takes 1 ms, and in one step.
const PER_RUN: usize = 4;
const PER_STEP: usize = 8;
/// Limit of the huge pages that a listing selects for reading.
const TURN_MAX: usize = 1024;
/// Delay before a fully written huge page is read again: its pages stay written while it exists.
const WRITTEN_LATER: Nanos = Nanos::from_millis(60_000);
/// Limit of the CPU time that reading takes when recording ends.
const LAST_MAX: Nanos = Nanos::from_millis(250);

#[derive(Default)]
pub(super) struct HugePages {
    share: f64,
    saved_ns: f64,
    at: Nanos,
    next_listing: Nanos,
    pub(super) cpu: Nanos,
    targets: BTreeMap<TargetId, OfTarget>,
    turn: VecDeque<(TargetId, u64)>,
    /// Pending reports of targets that have ended.
    ended: Vec<TargetHugePages>,
}

#[derive(Default)]
struct OfTarget {
    /// Address space of the blocks.
    space: Option<(u64, u64)>,
    bytes: u64,
    told_bytes: Option<u64>,
    /// Blocks of the last listing by address, with the result of the last reading.
    blocks: BTreeMap<u64, Option<Read>>,
    /// Blocks that were reported and are no longer huge pages.
    gone: Vec<u64>,
}

/// Result of reading one huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    never_written: u32,
    time: Nanos,
    is_told: bool,
}

impl HugePages {
    pub(super) fn new(share: f64, now: Nanos) -> Self {
        Self {
            share,
            saved_ns: SAVED_NS_MAX,
            at: now,
            next_listing: now,
            ..Self::default()
        }
    }

    /// Lists huge pages and reads some, within the available tokens.
    pub(super) fn step(&mut self, now: Nanos, monitor: &mut dyn Monitor, items: &mut Vec<Item>) {
        let earned = self.share * now.since(self.at).0 as f64;
        self.at = now;
        self.saved_ns = (self.saved_ns + earned).min(SAVED_NS_MAX);
        let before = process_cpu();
        if now >= self.next_listing {
            self.list(now, monitor);
            let took = process_cpu().since(before).0 as f64;
            let wait = Nanos((took / (self.share * LISTING_SHARE).max(1e-9)) as u64);
            self.next_listing = now + wait.max(LISTING);
            items.extend(self.tell(now));
        }
        let mut nr = 0;
        while nr < PER_STEP
            && self.saved_ns > process_cpu().since(before).0 as f64
            && self.read_some(now, monitor)
        {
            nr += PER_RUN;
        }
        let took = process_cpu().since(before);
        self.saved_ns -= took.0 as f64;
        self.cpu = self.cpu + took;
    }

    /// Reads huge pages for a moment when recording ends, and reports all that is pending.
    pub(super) fn last(&mut self, now: Nanos, monitor: &mut dyn Monitor) -> Option<Item> {
        let before = process_cpu();
        self.list(now, monitor);
        while process_cpu().since(before) < LAST_MAX && self.read_some(now, monitor) {}
        self.cpu = self.cpu + process_cpu().since(before);
        self.tell(now)
    }

    fn list(&mut self, now: Nanos, monitor: &mut dyn Monitor) {
        let alive: BTreeSet<TargetId> = monitor.live().into_iter().map(|(id, _)| id).collect();
        let ended = self.targets.extract_if(.., |id, _| !alive.contains(id));
        let last_words = ended.filter_map(|(id, mut of_target)| of_target.tell(id, READS_MAX));
        self.ended.extend(last_words);
        for id in alive {
            let Some((probe, targets, own)) = monitor.target_tables(id) else {
                continue;
            };
            // The target has ended, or the kernel lacked a resource: the next listing tries again.
            if let Ok(Some(found)) = probe.huge_pages(own, &targets.anonymous(own)) {
                let of_target = self.targets.entry(id).or_default();
                of_target.update(probe.address_space(own), &found);
            }
        }
        self.choose(now);
    }

    fn choose(&mut self, now: Nanos) {
        let all = self.targets.iter().flat_map(|(id, of_target)| {
            let blocks = of_target.blocks.iter();
            blocks.map(move |(block, read)| {
                let due = read.map_or(Nanos(0), |read| read.due());
                (due, (*id, *block))
            })
        });
        // A page that was read at `now` has no news.
        let all = all.filter(|(due, ..)| *due < now);
        self.turn = due_first(all, TURN_MAX).into();
    }

    /// Reads the next huge pages. Returns `false` if there are none.
    fn read_some(&mut self, now: Nanos, monitor: &mut dyn Monitor) -> bool {
        let nr = self.turn.len().min(PER_RUN);
        let mut next: Vec<(TargetId, u64)> = self.turn.drain(..nr).collect();
        next.sort_unstable();
        for of_target in next.chunk_by(|a, b| a.0 == b.0) {
            let id = of_target[0].0;
            let blocks: Vec<u64> = of_target.iter().map(|(_, block)| *block).collect();
            let known = self.targets.get_mut(&id);
            let Some((known, (probe, _, own))) = known.zip(monitor.target_tables(id)) else {
                continue;
            };
            if known.space != probe.address_space(own) {
                // The process runs another program: the next listing finds its blocks.
                continue;
            }
            // If the target has ended or the kernel lacks a resource, the result stays as it was.
            let _ = probe.contents(own, &blocks, |contents| known.take(now, &contents));
        }
        nr > 0
    }

    fn tell(&mut self, now: Nanos) -> Option<Item> {
        // Changes beyond the limit are reported in the next call.
        let mut room = READS_MAX;
        let ended = self.ended.extract_if(.., |of_target| {
            let fits = of_target.nr_reported() <= room;
            room -= if fits { of_target.nr_reported() } else { 0 };
            fits
        });
        let mut targets: Vec<TargetHugePages> = ended.collect();
        for (id, of_target) in &mut self.targets {
            let reported = of_target.tell(*id, room);
            room -= reported.as_ref().map_or(0, TargetHugePages::nr_reported);
            targets.extend(reported);
        }
        targets.sort_by_key(|of_target| of_target.target);
        (!targets.is_empty()).then_some(Item::HugePages(HugePagesSample { time: now, targets }))
    }
}

impl OfTarget {
    /// Replaces the list of huge pages; `found` is in address order.
    fn update(&mut self, space: Option<(u64, u64)>, found: &[u64]) {
        let is_same = self.space == space;
        self.space = space;
        self.bytes = found.len() as u64 * BLOCK_SIZE;
        let mut before = std::mem::take(&mut self.blocks);
        for block in found.iter().take(READS_MAX) {
            let read = if is_same { before.remove(block) } else { None };
            self.blocks.insert(*block, read.flatten());
        }
        let reported = before.into_iter();
        let reported = reported.filter(|(_, read)| read.is_some_and(|read| read.is_told));
        self.gone.extend(reported.map(|(block, _)| block));
    }

    fn take(&mut self, now: Nanos, contents: &BlockContents) {
        let Some(known) = self.blocks.get_mut(&contents.block) else {
            return;
        };
        if contents.is_huge && bits::is_empty(&contents.unreadable) {
            *known = Some(Read {
                never_written: bits::count(&contents.zeros),
                time: now,
                is_told: false,
            });
        }
    }

    /// Reports the changes of this target, at most `room` huge pages.
    fn tell(&mut self, target: TargetId, room: usize) -> Option<TargetHugePages> {
        self.gone.sort_unstable();
        self.gone.dedup();
        let later = self.gone.split_off(self.gone.len().min(room));
        let gone = std::mem::replace(&mut self.gone, later);
        let mut read = Vec::new();
        for (block, known) in &mut self.blocks {
            if gone.len() + read.len() >= room {
                break;
            }
            let Some(known) = known.as_mut().filter(|known| !known.is_told) else {
                continue;
            };
            known.is_told = true;
            read.push(HugePageRead {
                block: *block,
                never_written: known.never_written,
                time: known.time,
            });
        }
        let is_new = self.told_bytes.replace(self.bytes) != Some(self.bytes);
        (is_new || !read.is_empty() || !gone.is_empty()).then_some(TargetHugePages {
            target,
            bytes: self.bytes,
            read,
            gone,
        })
    }
}

impl Read {
    /// Time at which the page is due; the earliest is read first.
    fn due(&self) -> Nanos {
        match self.never_written {
            0 => self.time + WRITTEN_LATER,
            _ => self.time,
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::PAGES_PER_BLOCK;

    use super::*;

    const TARGET: TargetId = TargetId(3);

    fn block(number: u64) -> u64 {
        number * BLOCK_SIZE
    }

    /// Returns a state with `nr` huge pages after the first listing.
    fn with(nr: u64) -> HugePages {
        let mut pages = HugePages::new(0.001, Nanos(0));
        let found: Vec<u64> = (0..nr).map(block).collect();
        let of_target = pages.targets.entry(TARGET).or_default();
        of_target.update(Some((1, 0)), &found);
        pages.choose(Nanos(1));
        pages
    }

    fn take(pages: &mut HugePages, number: u64, never_written: usize, now: Nanos) {
        let mut contents = BlockContents {
            block: block(number),
            is_huge: true,
            ..BlockContents::default()
        };
        (0..never_written).for_each(|page| bits::set(&mut contents.zeros, page));
        let of_target = pages.targets.get_mut(&TARGET).expect("the target");
        of_target.take(now, &contents);
    }

    fn reported(pages: &mut HugePages) -> Option<TargetHugePages> {
        match pages.tell(Nanos(9)) {
            Some(Item::HugePages(mut sample)) => sample.targets.pop(),
            _ => None,
        }
    }

    #[test]
    fn what_was_never_read_comes_first_then_the_oldest_and_what_is_full_last() {
        let mut pages = with(5);
        assert_eq!(pages.turn.len(), 5);
        let second = |s: u64| Nanos::from_millis(s * 1000);
        take(&mut pages, 0, 0, second(1));
        take(&mut pages, 1, 7, second(3));
        take(&mut pages, 2, 7, second(2));
        let turn = |pages: &mut HugePages, now| {
            pages.choose(now);
            let turn = pages.turn.iter();
            turn.map(|(_, at)| at / BLOCK_SIZE).collect::<Vec<u64>>()
        };
        let early = turn(&mut pages, second(4));
        let first = [early[0], early[1]];
        assert!([[3, 4], [4, 3]].contains(&first), "{early:?}");
        assert_eq!(early[2..], [2, 1]);
        assert_eq!(turn(&mut pages, second(70))[2..], [2, 1, 0]);
    }

    #[test]
    fn what_is_new_is_told_once() {
        let mut pages = with(3);
        let first = reported(&mut pages).expect("how much there is");
        assert_eq!((first.bytes, first.read.len()), (3 * BLOCK_SIZE, 0));
        assert_eq!(reported(&mut pages), None);
        take(&mut pages, 1, 384, Nanos(7));
        let read = reported(&mut pages).expect("what was read").read;
        assert_eq!((read[0].block, read[0].never_written), (block(1), 384));
        assert_eq!(reported(&mut pages), None);
    }

    #[test]
    fn what_is_split_or_unmapped_or_of_another_program_has_gone() {
        let mut pages = with(4);
        (0..3).for_each(|number| take(&mut pages, number, PAGES_PER_BLOCK, Nanos(7)));
        reported(&mut pages).expect("what was read");
        take(&mut pages, 0, 1, Nanos(8));
        let of_target = pages.targets.get_mut(&TARGET).expect("the target");
        of_target.update(Some((1, 0)), &[block(0), block(3)]);
        let after = reported(&mut pages).expect("two have gone");
        assert_eq!(after.gone, [block(1), block(2)]);
        assert_eq!((after.bytes, after.read.len()), (2 * BLOCK_SIZE, 1));
        let of_target = pages.targets.get_mut(&TARGET).expect("the target");
        of_target.update(Some((2, 0)), &[block(0), block(3)]);
        let after = reported(&mut pages).expect("another program");
        assert_eq!((after.gone, after.read), (vec![block(0)], Vec::new()));
        assert_eq!(after.bytes, 2 * BLOCK_SIZE);
    }
}
