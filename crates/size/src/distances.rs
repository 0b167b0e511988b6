//! Stack distances of pages, from page scans: how much memory an access needs, in order not to read its page back.
//!
//! Problem: how often does a program read pages back under each limit of its memory? Trying a limit takes a run, and
//! may slow the program to a crawl.
//!
//! Approach: a limit reclaims the least recently used page first. So a page stays if no more memory than the limit was
//! used since its last access. That amount is the access's stack distance (Mattson et al., *Evaluation Techniques for
//! Storage Hierarchies*, 1970). One pass over a record counts the distances, and so tells the refaults at all limits.
//!
//! Scans of all targets form one sequence. Pages that the same scan saw have no order, so a distance has two bounds.
//! The greatest counts every page that may lie between, as if each interval went through its pages in the same order.
//! The least is of intervals that go to and fro: the last page of one is the first of the next.
//!
//! A scan shows one access in an interval where there may be millions. If a limit does not hold the pages that were
//! used in two intervals after each other, all of that time counts as lost. Pages that others use in one of the intervals
//! alone are left out, but for the bound. A program makes at most one refault in a microsecond of its CPU time, by the
//! bound ten. So a daemon that only looks around once a second loses little.
//!
//! A likely distance is spread evenly up to the greatest. The more pages of one scan return together, the nearer to the
//! greatest it begins. No more are read back than by a sweep in random order (`Spreads::add_returned`). If a page was last
//! accessed before the record, its distance is only known to be greater than the memory used since (it is censored). It is
//! distributed like the greater distances that were seen. Without any, it lies between the last of these and all memory.
//!
//! A process that ends before its fifth scan does not show which memory it uses again: all of it has to fit. So do pages
//! that appear and are freed between two scans of a process, and memory of processes that no scan sees.
//!
//! Limits: a page counts as accessed when a scan first sees it. A page that was swapped out during the record and comes
//! back is such a page. A page of unknown state is never read back, and takes its place in memory.

use std::collections::{BTreeMap, HashMap};

use isotherm_engine::monitor::bits::{NONE, and, and_not, count, each, has, or};
use isotherm_engine::{Nanos, PAGES_PER_BLOCK, TargetId};
use isotherm_record::pages::{PageBits, PageBlock, PageSnapshot};

use crate::counts::Counts;
use crate::misses::{Misses, Spreads};

/// Number of scans after which a target's reuse is known.
const YOUNG: usize = 5;
/// CPU time of a program from one refault to the next, if its memory in use does not fit: likely, and at least.
const BETWEEN: Nanos = Nanos(1_000);
const BETWEEN_LEAST: Nanos = Nanos(100);

/// Pages in the order of their last accesses, as far as scans tell it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Pages in memory by the scan that saw their last access.
    last_seen: Counts,
    /// Whether each scan is the first of its target, which finds pages and no accesses.
    is_first: Vec<bool>,
    /// Accesses by the least distance that they can have.
    pub(crate) least: Misses,
    /// Accesses by the greatest distance that they can have.
    pub(crate) greatest: Misses,
    /// Accesses by likely distances.
    between: Spreads,
    /// Accesses of pages that were last accessed before the first scan, by the pages that were accessed since.
    censored: Misses,
    /// Memory in use of each target.
    in_use: BTreeMap<TargetId, InUse>,
    /// Seconds in which it does not fit, of all targets, likely.
    seconds: Misses,
}

/// Seconds in which a target's memory in use does not fit, by the memory that it needs.
#[derive(Clone, Debug, Default)]
struct InUse {
    sum: f64,
    greatest: Misses,
    /// The same by pages that two intervals used. Others count by the distances of their accesses.
    likely: Misses,
    /// Pages of the interval before the last one.
    before: u64,
    last: Interval,
}

/// Memory in use of a target between two of its scans.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    pages: u64,
    /// Those of them that the interval before used, too, or that were freed in this one.
    common: u64,
    seconds: f64,
}

impl InUse {
    fn add(&mut self, interval: Interval) {
        self.sum += interval.seconds;
        self.greatest
            .add(interval.pages, [0.0, 0.0, interval.seconds]);
        self.add_last(interval.pages);
        self.before = self.last.pages;
        self.last = interval;
    }

    /// Counts the last interval, as it is known what the `next` one uses.
    fn add_last(&mut self, next: u64) {
        let Interval {
            pages,
            common,
            seconds,
        } = self.last;
        if seconds > 0.0 {
            let likely = common.max(pages.min(self.before.max(next)));
            self.likely.add(likely, [0.0, 0.0, seconds]);
        }
    }
}

/// Changes of one scan.
#[derive(Default)]
struct Changes {
    /// Pages that were read or written again, by the scan that saw them last, and by backing.
    again: BTreeMap<u32, [u64; 2]>,
    /// Pages of unknown state, by the scan that saw them last.
    renewed: BTreeMap<u32, u64>,
    new: u64,
    gone: BTreeMap<u32, u64>,
}

impl Order {
    fn remove(&mut self, pages: impl Iterator<Item = (u32, u64)>) -> u64 {
        let remove = |(scan, pages): (u32, u64)| {
            self.last_seen.remove(scan as usize, pages);
            pages
        };
        pages.map(remove).sum()
    }

    /// Takes in a scan. `before` is the scan before of the same target, and the seconds between the two; `None` for the
    /// first scan. The `nr_first` first scans found the pages of the beginning, which have no order.
    fn apply(
        &mut self,
        target: TargetId,
        changes: &Changes,
        before: Option<(u32, f64)>,
        nr_first: usize,
    ) {
        if let Some(before) = before {
            self.add_in_use(target, changes, before, nr_first);
        }
        self.forget(&changes.gone);
        let again = || {
            changes
                .again
                .iter()
                .map(|(scan, pages)| (*scan, pages[0] + pages[1]))
        };
        let mut older: u64 = again().map(|(_, pages)| pages).sum();
        let mut newer = 0;
        let mut last = self.last_seen.len();
        for (&scan, by_backing) in changes.again.iter().rev() {
            let scan = scan as usize;
            let is_of_beginning = scan < nr_first;
            newer += self.newer_than(scan, last, nr_first);
            let own = self.last_seen.sum(scan..scan + 1);
            let here = if is_of_beginning {
                self.last_seen.sum(0..nr_first)
            } else {
                own
            };
            let pages: u64 = by_backing.iter().sum();
            older -= pages;
            let greatest = newer + here + older + changes.new;
            let follows = before.filter(|(before, _)| *before as usize == scan);
            // What is used at the beginning has not come back.
            if follows.is_none() || !self.is_first[scan] {
                let [swap, file] = by_backing.map(|pages| pages as f64);
                self.greatest.add(greatest, [swap, file, 0.0]);
                let kept = changes.renewed.get(&(scan as u32)).copied().unwrap_or(0);
                let together = pages as f64 / own.saturating_sub(kept).max(1) as f64;
                if self.is_first[scan] {
                    let places = newer + 1..=newer + here.max(1);
                    self.add_first(places, pages, together, [swap, file]);
                } else {
                    let least = newer + 1;
                    let accesses = [swap, file, 0.0];
                    self.between
                        .add_returned(least, greatest.max(least), together, accesses);
                }
                self.least
                    .spread(newer + 1, newer + pages, [swap, file, 0.0]);
            }
            newer += own;
            last = scan;
        }
        let renewed = changes.renewed.iter().map(|(scan, pages)| (*scan, *pages));
        let now = self.remove(again()) + self.remove(renewed) + changes.new;
        self.last_seen.push(now);
        self.is_first.push(before.is_none());
    }

    /// Adds the time between two scans, in which some memory was in use. It may be used a million times, so it has to fit:
    /// the pages of the interval `before` that were used in this one too, or were freed in it.
    fn add_in_use(
        &mut self,
        target: TargetId,
        changes: &Changes,
        (before, seconds): (u32, f64),
        nr_first: usize,
    ) {
        let again = changes.again.get(&before);
        let again: u64 = again.map_or(0, |by_backing| by_backing.iter().sum());
        let freed = changes.gone.get(&before).copied().unwrap_or(0);
        let before = before as usize;
        // The first scan finds pages, and no accesses.
        let freed = if self.is_first[before] { 0 } else { freed };
        if again + freed > 0 {
            let newer = self.newer_than(before, self.last_seen.len(), nr_first);
            let in_use = self.in_use.entry(target).or_default();
            in_use.add(Interval {
                pages: newer + again + freed,
                common: again + freed,
                seconds,
            });
        }
    }

    /// Adds seconds in which memory had to fit.
    fn add_seconds(&mut self, pages: u64, seconds: f64) {
        self.greatest.add(pages, [0.0, 0.0, seconds]);
        self.seconds.add(pages, [0.0, 0.0, seconds]);
    }

    /// Counts the times in which memory was in use. `cpu_s` are the targets' CPU times, as far as they are known; a refault
    /// takes `cost`.
    fn settle(&mut self, cpu_s: &BTreeMap<TargetId, f64>, cost: Nanos) {
        for (target, mut in_use) in std::mem::take(&mut self.in_use) {
            in_use.add_last(in_use.last.pages);
            let most = |between: Nanos| {
                let refaults_s = |cpu_s: f64| cpu_s / between.as_secs_f64() * cost.as_secs_f64();
                let share = cpu_s
                    .get(&target)
                    .map(|cpu_s| refaults_s(*cpu_s) / in_use.sum);
                share.unwrap_or(1.0).min(1.0)
            };
            let seconds = std::mem::take(&mut self.seconds);
            self.seconds = seconds.with_seconds_of(&in_use.likely, most(BETWEEN));
            let greatest = std::mem::take(&mut self.greatest);
            self.greatest = greatest.with_seconds_of(&in_use.greatest, most(BETWEEN_LEAST));
        }
    }

    /// Returns the pages that were last seen after `scan` and before scan `end`. Those of the first scans have no order.
    fn newer_than(&self, scan: usize, end: usize, nr_first: usize) -> u64 {
        let from = if scan < nr_first { nr_first } else { scan + 1 };
        self.last_seen.sum(from.min(end)..end)
    }

    /// Adds accesses to `pages` that were last accessed before the first scan, at some of the `places` of such pages. The
    /// share `together` is spread evenly over all places. The rest has at least the middle of the first places.
    fn add_first(
        &mut self,
        places: std::ops::RangeInclusive<u64>,
        pages: u64,
        together: f64,
        by_backing: [f64; 2],
    ) {
        let part = |share: f64| [by_backing[0] * share, by_backing[1] * share, 0.0];
        let least = *places.start();
        self.between.add(least, *places.end(), part(together));
        self.censored.add(least + pages / 2, part(1.0 - together));
    }

    /// Returns the accesses by their likely distances, which are `most` pages at most.
    pub(crate) fn likely(&self, most: u64) -> Misses {
        let likely = self.between.misses().with_censored(&self.censored, most);
        let likely = likely.with_seconds_of(&self.seconds, 1.0);
        likely.at_most(&self.greatest)
    }

    fn forget(&mut self, gone: &BTreeMap<u32, u64>) {
        self.remove(gone.iter().map(|(scan, pages)| (*scan, *pages)));
    }
}

/// Pages of all targets, and the distances of their accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Distances {
    targets: HashMap<TargetId, HashMap<u64, Block>>,
    /// Number of each target's last scan.
    last_scan: HashMap<TargetId, u32>,
    /// End of each scan of any target, in the order of the record.
    ends: Vec<Nanos>,
    /// Pages in use at each scan of a target that has had few scans, of all memory and of files, and its seconds.
    young: HashMap<TargetId, Vec<([u64; 2], f64)>>,
    /// Number of scans in the first round.
    nr_first: usize,
    /// All memory.
    pub(crate) all: Order,
    /// Memory of files alone: without swap, only that is read back.
    pub(crate) files: Order,
}

#[derive(Clone, Debug)]
struct Block {
    present: PageBits,
    /// Pages that the first scan did not find.
    appeared: PageBits,
    file: PageBits,
    /// The scan that saw each page's last access.
    last: Box<[u32; PAGES_PER_BLOCK]>,
    seen: u32,
}

/// Facts of mappings about the pages of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockFacts {
    /// Pages of files.
    pub(crate) file: PageBits,
    /// Pages that cannot be reclaimed.
    pub(crate) kept: PageBits,
}

/// Bytes in memory after a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) pages: u64,
    pub(crate) file_pages: u64,
    pub(crate) unknown_pages: u64,
    /// Pages that stay whatever the limit: of unknown state, or unreclaimable.
    pub(crate) kept_pages: u64,
    /// Those of files.
    pub(crate) kept_file_pages: u64,
}

impl Distances {
    /// Takes in a scan; `facts` are the mappings' about a block.
    pub(crate) fn scan(
        &mut self,
        scan: &PageSnapshot,
        facts: impl Fn(u64) -> BlockFacts,
    ) -> Resident {
        let number = self.ends.len() as u32;
        self.ends.push(scan.end);
        let last = self.last_scan.insert(scan.target, number);
        let is_first = last.is_none();
        let seconds = scan.end.since(scan.start).as_secs_f64();
        let before = last.map(|last| (last, seconds));
        let blocks = self.targets.entry(scan.target).or_default();
        let mut changes = [Changes::default(), Changes::default()];
        let mut resident = Resident::default();
        for now in &scan.blocks {
            let facts = facts(now.block);
            let block = blocks.entry(now.block).or_insert_with(Block::new);
            block.take(now, &facts, (number, is_first), &mut changes);
            resident.pages += u64::from(count(&now.present));
            resident.file_pages += u64::from(count(&and(&now.present, &block.file)));
            resident.unknown_pages += u64::from(count(&now.unknown));
            let kept = and(&now.present, &or(&now.unknown, &facts.kept));
            resident.kept_pages += u64::from(count(&kept));
            resident.kept_file_pages += u64::from(count(&and(&kept, &block.file)));
        }
        blocks.retain(|_, block| {
            let is_there = block.seen == number;
            if !is_there {
                let present = block.present;
                block.drop_pages(&present, &mut changes);
            }
            is_there
        });
        let [all, files] = &changes;
        if is_first && scan.start < self.ends[0] && self.nr_first == number as usize {
            self.nr_first = number as usize + 1;
        }
        self.all.apply(scan.target, all, before, self.nr_first);
        self.files.apply(scan.target, files, before, self.nr_first);
        self.grow(scan, [resident.pages, resident.file_pages]);
        resident
    }

    /// Notes the pages in use while a target is young. These are all its own, and those that the targets scanned before it
    /// used in the same interval.
    fn grow(&mut self, scan: &PageSnapshot, own: [u64; 2]) {
        let number = self.ends.len() - 1;
        let scans = self.young.entry(scan.target).or_default();
        if scans.len() < YOUNG {
            let from = self.ends.partition_point(|end| *end <= scan.start);
            let others = from.max(self.nr_first).min(number)..number;
            let [all, files] = [&self.all, &self.files].map(|of| of.last_seen.sum(others.clone()));
            let seconds = scan.end.since(scan.start).as_secs_f64();
            scans.push(([own[0] + all, own[1] + files], seconds));
        }
    }

    /// Counts a time in which the group had `pages` that no scan saw: with all that was in use, they have to fit.
    pub(crate) fn unseen(&mut self, pages: u64, from: Nanos, to: Nanos) {
        let scan = self.ends.partition_point(|end| *end <= from);
        let scans = scan.max(self.nr_first).min(self.ends.len())..self.ends.len();
        let in_use = self.all.last_seen.sum(scans);
        let seconds = to.since(from).as_secs_f64();
        self.all.add_seconds(in_use + pages, seconds);
    }

    /// Counts the time of targets that are young at the record's end, and of memory in use. `cpu_s` are the targets' CPU
    /// times; `costs` are those of a refault from swap, and from a file.
    pub(crate) fn settle(&mut self, cpu_s: &BTreeMap<TargetId, f64>, costs: [Nanos; 2]) {
        for (_, scans) in std::mem::take(&mut self.young) {
            self.count_young(&scans);
        }
        self.all.settle(cpu_s, costs[0]);
        self.files.settle(cpu_s, costs[1]);
    }

    fn count_young(&mut self, scans: &[([u64; 2], f64)]) {
        for ([pages, file_pages], seconds) in scans.iter().filter(|_| scans.len() < YOUNG) {
            self.all.add_seconds(*pages, *seconds);
            self.files.add_seconds(*file_pages, *seconds);
        }
    }

    /// Forgets a target that has ended.
    pub(crate) fn end(&mut self, target: TargetId) {
        self.last_scan.remove(&target);
        let scans = self.young.remove(&target).unwrap_or_default();
        self.count_young(&scans);
        let mut changes = [Changes::default(), Changes::default()];
        for mut block in self
            .targets
            .remove(&target)
            .into_iter()
            .flat_map(HashMap::into_values)
        {
            let present = block.present;
            block.drop_pages(&present, &mut changes);
        }
        self.all.forget(&changes[0].gone);
        self.files.forget(&changes[1].gone);
    }

    /// Returns the pages that appeared during the record and have not been accessed since `time`.
    pub(crate) fn appeared_and_idle_since(&self, time: Nanos) -> u64 {
        let blocks = self.targets.values().flat_map(HashMap::values);
        let idle = |block: &Block| {
            let pages = and(&block.present, &block.appeared);
            let is_idle = |page: &usize| self.ends[block.last[*page] as usize] <= time;
            each(&pages).filter(is_idle).count() as u64
        };
        blocks.map(idle).sum()
    }
}

impl Block {
    fn new() -> Self {
        Self {
            present: NONE,
            appeared: NONE,
            file: NONE,
            last: Box::new([0; PAGES_PER_BLOCK]),
            seen: 0,
        }
    }

    /// Takes in what scan `number` saw; `is_first` says that the target was not scanned before.
    fn take(
        &mut self,
        now: &PageBlock,
        facts: &BlockFacts,
        (number, is_first): (u32, bool),
        changes: &mut [Changes; 2],
    ) {
        let gone = and_not(&self.present, &now.present);
        self.drop_pages(&gone, changes);
        let kept = and(&self.present, &or(&now.unknown, &facts.kept));
        let again = and_not(&and(&self.present, &now.accessed), &kept);
        for page in each(&again) {
            let last = self.last[page];
            let is_file = has(&self.file, page);
            let [all, files] = changes.each_mut();
            all.again.entry(last).or_default()[usize::from(is_file)] += 1;
            if is_file {
                files.again.entry(last).or_default()[1] += 1;
            }
            self.last[page] = number;
        }
        for page in each(&kept) {
            self.count(page, |changes| &mut changes.renewed, changes);
            self.last[page] = number;
        }
        let new = and_not(&now.present, &self.present);
        self.file = or(&and_not(&self.file, &new), &and(&new, &facts.file));
        changes[0].new += u64::from(count(&new));
        changes[1].new += u64::from(count(&and(&new, &self.file)));
        for page in each(&new) {
            self.last[page] = number;
        }
        if !is_first {
            self.appeared = or(&self.appeared, &new);
        }
        self.present = now.present;
        self.seen = number;
    }

    fn drop_pages(&mut self, pages: &PageBits, changes: &mut [Changes; 2]) {
        for page in each(pages) {
            self.count(page, |c| &mut c.gone, changes);
        }
        self.present = and_not(&self.present, pages);
        self.appeared = and_not(&self.appeared, pages);
    }

    fn count(&self, page: usize, of: Which, [all, files]: &mut [Changes; 2]) {
        let last = self.last[page];
        *of(all).entry(last).or_default() += 1;
        if has(&self.file, page) {
            *of(files).entry(last).or_default() += 1;
        }
    }
}

/// The kind of a change.
type Which = fn(&mut Changes) -> &mut BTreeMap<u32, u64>;

#[cfg(test)]
mod tests;
