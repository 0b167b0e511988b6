//! A machine of fast and slow nodes, watched by physical address: a probe of its accessed bits, and an
//! actuator that migrates its pages.
//!
//! A node is one zone, and node `n` is zone `n`. New pages go to the first node that has room, as by
//! default in the kernel, and stay where they are unless a scheme moves them. A new page for which no
//! node has room wakes all nodes' kswapd, a migrated one its target's, which drops page cache; a page that
//! is migrated goes nowhere else (`GFP_NOWAIT`, no other node allowed, as in `mm/damon/paddr.c`).

use std::collections::BTreeMap;
use std::ops::Range;

use isotherm_engine::scheme::{Action, OpsFilter};
use isotherm_engine::{AddressRange, Nanos, Operation, Outcome, PAGE_SIZE, Refusal, Sample, Touch};

use crate::access::{Accesses, Use};
use crate::cost::TierCosts;
use crate::fault::Faults;
use crate::memory::{Memory, NodeSize, Owner, Page, Pfn};
use crate::page_cache::PageCache;

impl Watched {
    /// These samples by physical address, instead of those before.
    pub fn set(&mut self, samples: &[Sample]) {
        self.samples.clear();
        self.samples.extend_from_slice(samples);
        self.pages.clear();
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct TieredMachine {
    /// Where pages are.
    pub memory: Memory,
    /// How they are accessed.
    pub accesses: Accesses,
    costs: TierCosts,
    moved: BTreeMap<(u32, u32), u64>,
    cache: PageCache,
    faults: Faults,
    /// How often anything was put anywhere.
    changes: u64,
}

/// What a monitor watches.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    samples: Vec<Sample>,
    /// Pages whose bits may be set when it is looked at them, and for which sample: as of so many changes
    /// of the machine and of its accesses.
    pages: Vec<(u32, Page)>,
    changes: (u64, u64),
}

impl TieredMachine {
    /// Nodes of so many pages, of which `reserved` each are never given to processes.
    pub fn new(nodes: &[(u64, u64)], costs: TierCosts, seed: u64) -> Self {
        let sizes = nodes.iter().map(|(pages, _)| NodeSize {
            zones: vec![("Normal", *pages)],
        });
        let mut memory = Memory::new(&sizes.collect::<Vec<_>>());
        for (node, (_, reserved)) in nodes.iter().enumerate() {
            memory.set_watermark(node, *reserved);
        }
        Self {
            memory,
            accesses: Accesses::new(seed),
            costs,
            moved: BTreeMap::new(),
            cache: PageCache::default(),
            faults: Faults::default(),
            changes: 0,
        }
    }

    /// From now on `faults` happen.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Whether everything is in exactly one place, and known to be there; what is wrong, if not. Slow:
    /// for tests.
    pub fn check_places(&self) -> Result<(), String> {
        self.memory.check()?;
        self.cache.check(&self.memory)
    }

    /// The node that a frame is on.
    pub fn node_of(&self, frame: Pfn) -> u32 {
        self.memory.zone_at(frame) as u32
    }

    /// A node's physical addresses.
    pub fn range_of(&self, node: u32) -> AddressRange {
        let zone = &self.memory.zones()[node as usize];
        AddressRange::new(zone.start() * PAGE_SIZE, zone.end() * PAGE_SIZE)
    }

    /// Puts the `2^order` pages from `page` on on the first of `nodes` that has room. Where none has
    /// room for all, page by page; whether all are in memory.
    pub fn populate(&mut self, page: Page, order: u8, nodes: &[u32]) -> bool {
        self.changes += 1;
        if self.place(page, order, nodes) {
            return true;
        }
        for node in nodes {
            self.cache.make_room(*node, &mut self.memory);
        }
        self.place(page, order, nodes)
            || (order > 0 && (0..1 << order).all(|i| self.place(page + i, 0, nodes)))
    }

    fn place(&mut self, page: Page, order: u8, nodes: &[u32]) -> bool {
        let has_taken = |node: &&u32| {
            let frame = self.memory.allocate_pages(**node as usize, order, page);
            frame.is_some()
        };
        let taken = nodes.iter().find(has_taken).copied();
        if let Some(node) = taken {
            self.cache.note_placed(page, 1 << order, node);
        }
        taken.is_some()
    }

    /// From now on `pages`, none of which is in memory yet, are page cache.
    pub fn set_page_cache(&mut self, pages: Range<Page>) {
        self.cache = PageCache::new(pages, self.memory.zones().len());
    }

    /// Pages of the page cache that were dropped to make room.
    pub fn dropped(&self) -> u64 {
        self.cache.dropped()
    }

    /// Pages that were moved from one node to another.
    pub fn moved(&self) -> &BTreeMap<(u32, u32), u64> {
        &self.moved
    }

    /// Starts to watch.
    pub fn arm(&mut self, watched: &mut Watched, now: Nanos) {
        self.find_pages(watched);
        // Once clear, the bit of a page that nobody accesses stays clear.
        let accesses = &mut self.accesses;
        (watched.pages).retain(|(_, page)| accesses.clear(*page, now));
    }

    /// What became of the samples armed last.
    pub fn check(&mut self, watched: &mut Watched, now: Nanos, touches: &mut Vec<Touch>) {
        if watched.changes != self.changes() {
            self.find_pages(watched);
        }
        touches.clear();
        let mut pages = watched.pages.iter().peekable();
        for (i, sample) in (0..).zip(&watched.samples) {
            let mut accessed = 0;
            while let Some((_, page)) = pages.next_if(|(of, _)| *of == i) {
                accessed += u32::from(self.accesses.is_accessed(*page, now));
            }
            // The kernel takes a frame that nobody has for one that nobody accesses, and so it is.
            touches.push(Touch::Seen {
                observed: sample.nr_pages,
                accessed,
            });
        }
    }

    /// Looks up whose the frames are. All at once: each is a cache miss, and the processor waits for
    /// several of them at the same time only if nothing hangs on one.
    fn find_pages(&self, watched: &mut Watched) {
        watched.changes = self.changes();
        watched.pages.clear();
        for (i, sample) in (0..).zip(&watched.samples) {
            let owners = frames_of(sample).map(|frame| self.memory.owner(frame));
            watched.pages.extend(owners.filter_map(|owner| match owner {
                Owner::Page(page) => Some((i, page)),
                _ => None,
            }));
        }
    }

    fn changes(&self) -> (u64, u64) {
        (self.changes, self.accesses.changes())
    }

    /// Carries out operations: one outcome for each, in their order.
    pub fn act(
        &mut self,
        operations: &[Operation],
        now: Nanos,
        moves: &mut Vec<(Page, u32)>,
    ) -> Vec<Outcome> {
        let act = |operation| self.act_on(operation, now, moves);
        operations.iter().map(act).collect()
    }

    fn act_on(
        &mut self,
        operation: &Operation,
        now: Nanos,
        moves: &mut Vec<(Page, u32)>,
    ) -> Outcome {
        let mut done = Done::default();
        let end = operation.range.end / PAGE_SIZE;
        let mut frame = operation.range.start / PAGE_SIZE;
        while frame < end {
            let (owner, count) = self.memory.owners_from(frame, end);
            done.looked_at += count;
            if let Owner::Page(page) = owner {
                let run = Frames { frame, page, count };
                self.act_on_run(operation, run, now, &mut done, moves);
            } else {
                done.not_present += count;
            }
            frame += count;
        }
        done.outcome(&self.costs)
    }

    /// Acts on those of a run's pages that pass the filters: up to 64 at a time, as their bits lie in a
    /// word.
    fn act_on_run(
        &mut self,
        operation: &Operation,
        mut run: Frames,
        now: Nanos,
        done: &mut Done,
        moves: &mut Vec<(Page, u32)>,
    ) {
        let from = self.node_of(run.frame);
        let to = operation.destinations.first().map(|to| to.node);
        while run.count > 0 {
            let end = self.accesses.word_end(run.page);
            let word = run.split_off(u64::from(end - run.page));
            let mut passing = self.passing(operation, &word, now, done);
            let nr_passing = u64::from(passing.count_ones());
            done.passed += nr_passing;
            match (operation.action, to) {
                (Action::Stat, _) => done.applied += nr_passing,
                (Action::MigrateHot | Action::MigrateCold, Some(to)) if to == from => {
                    done.not_present += nr_passing;
                }
                (Action::MigrateHot | Action::MigrateCold, Some(to)) => {
                    while passing != 0 {
                        let first = passing.trailing_zeros();
                        let count = (passing >> first).trailing_ones();
                        self.migrate(word.part(first, count), (from, to), done, moves);
                        passing &= !(mask(count) << first);
                    }
                }
                _ => done.unsupported += nr_passing,
            }
        }
    }

    /// Moves a run of pages from one node to another.
    fn migrate(
        &mut self,
        mut run: Frames,
        (from, to): (u32, u32),
        done: &mut Done,
        moves: &mut Vec<(Page, u32)>,
    ) {
        self.changes += 1;
        done.tried += run.count;
        // Each page has its own faults.
        let together = if self.faults.are_possible() {
            1
        } else {
            run.count
        };
        while run.count > 0 {
            let room = self.cache.make_room(to, &mut self.memory);
            let wanted = together.min(run.count);
            if self.faults.is_contended() || self.faults.fails_migration() {
                run.split_off(wanted);
                done.kept += wanted;
                continue;
            }
            if room == 0 {
                // Nor will there be any for the others.
                run.split_off(wanted);
                done.no_room += wanted;
                continue;
            }
            let count = wanted.min(room);
            let count = self.memory.migrate_run(run.frame, count, to as usize);
            assert!(count > 0, "node {to} has room");
            let moved = run.split_off(count);
            self.cache.note_moved(moved.page, count, from, to);
            done.applied += count;
            *self.moved.entry((from, to)).or_default() += count;
            moves.extend((moved.page..moved.page + count as Page).map(|page| (page, to)));
        }
    }

    /// Which of up to 64 pages pass: of each the first filter that matches decides.
    fn passing(
        &mut self,
        operation: &Operation,
        word: &Frames,
        now: Nanos,
        done: &mut Done,
    ) -> u64 {
        let all_if = |has: bool| if has { u64::MAX } else { 0 };
        let (mut undecided, mut allowed) = (mask(word.count as u32), 0);
        for (filter, matching, allow) in &operation.filters {
            let has = match filter {
                OpsFilter::Anon => all_if(self.accesses.purpose(word.page) == Use::Anon),
                OpsFilter::Young => {
                    done.bits_looked_at += u64::from(undecided.count_ones());
                    self.accesses.take_accessed(word.page, undecided, now)
                }
                OpsFilter::Unmapped => all_if(self.accesses.purpose(word.page) == Use::File),
                OpsFilter::HugepageSize { min, .. } => all_if(*min <= PAGE_SIZE),
                OpsFilter::Active | OpsFilter::Memcg { .. } => 0,
            };
            let matched = undecided & if *matching { has } else { !has };
            undecided &= !matched;
            allowed |= matched & all_if(*allow);
        }
        allowed | undecided & all_if(operation.pass_unmatched)
    }
}

/// Pages that follow each other, in frames that do.
#[derive(Clone, Copy, Debug)]
struct Frames {
    frame: Pfn,
    page: Page,
    count: u64,
}

impl Frames {
    /// Takes off up to `count` from its start.
    fn split_off(&mut self, count: u64) -> Self {
        let count = count.min(self.count);
        let taken = Self { count, ..*self };
        self.frame += count;
        self.page += count as Page;
        self.count -= count;
        taken
    }

    /// `count` of them from the one at `first` on.
    fn part(self, first: u32, count: u32) -> Self {
        Self {
            frame: self.frame + u64::from(first),
            page: self.page + first,
            count: count.into(),
        }
    }
}

/// What an operation came to so far, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    looked_at: u64,
    bits_looked_at: u64,
    passed: u64,
    applied: u64,
    /// Whose migration was begun.
    tried: u64,
    not_present: u64,
    no_room: u64,
    kept: u64,
    unsupported: u64,
}

impl Done {
    fn outcome(&self, costs: &TierCosts) -> Outcome {
        let refused = [
            (Refusal::NotPresent, self.not_present),
            (Refusal::NoRoom, self.no_room),
            (Refusal::Kept, self.kept),
            (Refusal::Unsupported, self.unsupported),
        ];
        let refused = refused.into_iter().filter(|(_, pages)| *pages > 0);
        let took = self.looked_at * costs.look_at_frame.0
            + self.bits_looked_at * costs.look_at_bit.0
            + self.tried * costs.migrate_page.0;
        Outcome {
            filter_passed: self.passed * PAGE_SIZE,
            applied: self.applied * PAGE_SIZE,
            refused: refused.map(|(why, n)| (why, n * PAGE_SIZE)).collect(),
            took: Nanos(took),
        }
    }
}

/// The lowest `count` bits, from 1 to 64.
const fn mask(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}

fn frames_of(sample: &Sample) -> Range<Pfn> {
    let first = sample.address / PAGE_SIZE;
    first..first + u64::from(sample.nr_pages)
}

#[cfg(test)]
mod tests {
    use isotherm_engine::TargetId;
    use isotherm_engine::scheme::Destination;

    use super::*;
    use crate::access::Rates;
    use crate::cost::PUBLISHED_TIERS;

    fn demotion(range: AddressRange) -> Operation {
        Operation {
            scheme: 0,
            action: Action::MigrateCold,
            destinations: vec![Destination { node: 1, weight: 1 }],
            target: TargetId(0),
            range,
            bytes: range.len(),
            filters: vec![(OpsFilter::Young, true, false)],
            pass_unmatched: true,
            idle_only: true,
        }
    }

    #[test]
    fn idle_pages_move_as_long_as_there_is_room() {
        let mut machine = TieredMachine::new(&[(4096, 0), (1024, 0)], PUBLISHED_TIERS, 1);
        let pages = machine.memory.add_pages(4096);
        machine.accesses.add(pages, Use::Anon, Rates::Never);
        for block in 0..8 {
            assert!(machine.populate(block * 512, 9, &[0, 1]));
        }
        let operation = demotion(machine.range_of(0));
        let mut moves = Vec::new();
        // At first all are young, as they were just filled; looking makes them old.
        let first = machine.act(std::slice::from_ref(&operation), Nanos(0), &mut moves);
        assert_eq!((first[0].filter_passed, moves.len()), (0, 0));
        let second = machine.act(&[operation], Nanos::from_millis(1_000), &mut moves);
        assert_eq!(second[0].applied, 1024 * PAGE_SIZE);
        assert_eq!(second[0].refused[&Refusal::NoRoom], 3072 * PAGE_SIZE);
        assert_eq!((moves.len(), machine.moved()[&(0, 1)]), (1024, 1024));
        machine.memory.check().expect("every frame is in one place");
    }
}
