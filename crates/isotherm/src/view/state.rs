//! The state of the view, made of items. It uses no terminal.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::page_cache::PAGE_CACHE;
use isotherm_engine::{MemoryTotals, Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{CacheSample, CostSample, Item, PageAges};
use isotherm_render::colour::Palette;
use isotherm_report::MappingTable;
use isotherm_session::protocol::BlameStatus;

use super::field::{Field, IDLE, LONG_IDLE};
use super::page_cache;

/// Snapshots whose working set is kept for the sparkline.
const HISTORY: usize = 240;
/// Snapshots of the past, one for each second.
const PAST: usize = 16;
const PAST_STEP: Nanos = Nanos(1_000_000_000);
/// Regions of all of the past, whatever the size of a snapshot.
const PAST_REGIONS: usize = 400_000;
/// A view older than this is marked as stale.
const STALE: Nanos = Nanos(2_000_000_000);

/// The order of the lists of regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Rate,
    Size,
    Age,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Rate => Self::Size,
            Self::Size => Self::Age,
            Self::Age => Self::Rate,
        }
    }
}

/// A target, its last snapshot and its history.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) ended: bool,
    pub(super) snapshot: Snapshot,
    pub(super) sums: Sums,
    /// Snapshots a second or more apart, before the present one; the latest last.
    pub(super) past: VecDeque<Snapshot>,
    began: Option<Nanos>,
    rss: Option<u64>,
    swap: Option<u64>,
    pub(super) working_sets: VecDeque<u64>,
}

impl Target {
    pub(super) fn has_snapshot(&self) -> bool {
        self.began.is_some()
    }

    /// Returns the time for which it has been watched.
    pub(super) fn elapsed(&self) -> Nanos {
        self.began
            .map_or(Nanos(0), |began| self.snapshot.end.since(began))
    }

    /// Returns resident bytes: the monitor's if it knows them, else RSS; `None` without either.
    pub(super) fn resident(&self) -> Option<u64> {
        let totals = self.has_snapshot().then_some(self.sums.totals);
        totals.and_then(|all| all.known_resident()).or(self.rss)
    }

    /// Returns swapped-out bytes: the monitor's if it knows them, else VmSwap; `None` without either.
    pub(super) fn swapped(&self) -> Option<u64> {
        let totals = self.has_snapshot().then_some(self.sums.totals);
        totals.and_then(|all| all.known_swapped()).or(self.swap)
    }

    /// Returns its bytes in a column; `None` if they are not known.
    pub(super) fn bytes(&self, field: Field) -> Option<u64> {
        let by_monitor = self.has_snapshot().then_some(self.sums);
        match field {
            Field::WorkingSet => by_monitor.map(|sums| sums.totals.touched),
            Field::Idle => by_monitor.map(|sums| sums.idle),
            Field::LongIdle => by_monitor.map(|sums| sums.long_idle),
            Field::Unknown => by_monitor.map(|sums| sums.totals.unknown),
            Field::Swapped => self.swapped(),
            Field::Pid | Field::Name | Field::Resident | Field::Trend => self.resident(),
        }
    }

    /// Adds the snapshot so far to the past, if it is far enough from the last one there.
    fn remember(&mut self) {
        let snapshot = std::mem::take(&mut self.snapshot);
        let last = self.past.back().map_or(Nanos(0), |last| last.end);
        if !self.has_snapshot() || snapshot.end.since(last) < PAST_STEP {
            return;
        }
        self.past.push_back(snapshot);
        let mut nr_regions: usize = self.past.iter().map(|s| s.regions.len()).sum();
        while self.past.len() > PAST || nr_regions > PAST_REGIONS {
            nr_regions -= self.past.pop_front().map_or(0, |s| s.regions.len());
        }
    }
}

/// Bytes of a snapshot, by access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) totals: MemoryTotals,
    pub(super) idle: u64,
    pub(super) long_idle: u64,
}

impl Sums {
    /// Returns the bytes that were neither accessed in the last interval nor idle for long.
    pub(super) fn cooling(self) -> u64 {
        let totals = self.totals;
        let cold = totals.resident.saturating_sub(totals.touched);
        cold.saturating_sub(self.idle)
            .saturating_sub(totals.unknown)
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) title: String,
    pub(super) palette: Palette,
    pub(super) targets: BTreeMap<TargetId, Target>,
    /// The target whose map the user opened.
    pub(super) opened: Option<TargetId>,
    /// The target that the list's cursor is on; the first without one.
    cursor: Option<TargetId>,
    pub(super) order: Field,
    /// The time now, if the items are live.
    pub(super) now: Option<Nanos>,
    pub(super) mappings: MappingTable,
    pub(super) cost: Option<CostSample>,
    /// Monitor and estimated induced CPU over the last second, in percent of one CPU.
    pub(super) cpu_percent: Option<(f64, f64)>,
    pub(super) clears_per_second: f64,
    pub(super) checks_per_second: f64,
    pub(super) note: Option<String>,
    /// Functions that touched idle memory first, if stacks are taken.
    pub(super) blame: Option<BlameStatus>,
    pub(super) sort: Sort,
    pub(super) scroll: usize,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) ended: bool,
    pages: PageAges,
}

impl State {
    pub(super) fn new(title: &str, palette: Palette) -> Self {
        Self {
            title: title.to_owned(),
            palette,
            ..Self::default()
        }
    }

    /// Applies an item. While paused, the shown state does not change; names and ends are kept.
    pub(super) fn update(&mut self, item: &Item) {
        match item {
            Item::TargetStart(start) => {
                let target = self.targets.entry(start.target).or_default();
                target.pid = start.pid;
                target.name = isotherm_record::printable(&start.name).into_owned();
            }
            Item::TargetExit(exit) => {
                if let Some(target) = self.targets.get_mut(&exit.target) {
                    target.ended = true;
                }
            }
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Note { text, .. } => {
                self.note = Some(isotherm_record::printable(text).into_owned());
            }
            Item::Snapshot(snapshot) if !self.paused => self.show(snapshot.clone()),
            Item::Pages(pages) if !self.paused => {
                if let Ok(snapshot) = self.pages.snapshot(pages) {
                    self.show(snapshot);
                }
            }
            Item::Usage(usage) if !self.paused => {
                for (id, rss) in &usage.rss {
                    self.targets.entry(TargetId(*id)).or_default().rss = Some(*rss);
                }
                for (id, swap) in &usage.swap {
                    self.targets.entry(TargetId(*id)).or_default().swap = Some(*swap);
                }
            }
            Item::Cost(cost) if !self.paused => self.spend(*cost),
            Item::Machine(sample) if !self.paused => {
                let page_cache = sample.page_cache.iter();
                page_cache.for_each(|of| self.show_page_cache(of));
            }
            _ => {}
        }
    }

    fn show(&mut self, snapshot: Snapshot) {
        let target = self.targets.entry(snapshot.target).or_default();
        target.remember();
        target.began.get_or_insert(snapshot.start);
        target.sums = sums(&snapshot);
        target.snapshot = snapshot;
        if target.working_sets.len() == HISTORY {
            target.working_sets.pop_front();
        }
        target.working_sets.push_back(target.sums.totals.touched);
    }

    fn show_page_cache(&mut self, sample: &CacheSample) {
        let target = self.targets.entry(PAGE_CACHE).or_default();
        "page cache".clone_into(&mut target.name);
        let (snapshot, names) = page_cache::reported(sample, &target.snapshot);
        target.rss = Some(snapshot.totals().resident);
        self.mappings.apply(&names);
        self.show(snapshot);
    }

    fn spend(&mut self, cost: CostSample) {
        if let Some(last) = self.cost.replace(cost) {
            let seconds = cost.time.since(last.time).as_secs_f64();
            if seconds > 0.0 {
                let percent =
                    |now: Nanos, then: Nanos| 100.0 * now.since(then).as_secs_f64() / seconds;
                self.cpu_percent = Some((
                    percent(cost.cost.monitor_cpu, last.cost.monitor_cpu),
                    percent(cost.cost.induced_cpu, last.cost.induced_cpu),
                ));
                let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
                self.clears_per_second = rate(cost.cost.clears, last.cost.clears);
                self.checks_per_second = rate(cost.cost.checks, last.cost.checks);
            }
        }
    }

    /// Returns the target whose map is shown: the opened one, or the only one.
    pub(super) fn target(&self) -> Option<(TargetId, &Target)> {
        let opened = self.opened;
        let opened = opened.and_then(|id| Some((id, self.targets.get(&id)?)));
        opened.or_else(|| match self.listed()[..] {
            [only] => Some(only),
            _ => None,
        })
    }

    pub(super) fn shows_list(&self) -> bool {
        self.target().is_none()
    }

    /// Returns the targets of the list in its order, ended ones last and physical memory first.
    pub(super) fn listed(&self) -> Vec<(TargetId, &Target)> {
        // Physical memory contains the memory of the others, which are then known by name only.
        let is_whole = |id: TargetId, target: &Target| target.pid == 0 && id != PAGE_CACHE;
        let by_frame = self
            .targets
            .iter()
            .any(|(id, target)| is_whole(*id, target));
        let targets = self.targets.iter().map(|(id, target)| (*id, target));
        let mut listed: Vec<_> = targets
            .filter(|(_, target)| target.has_snapshot() || !(target.ended || by_frame))
            .collect();
        listed.sort_by_cached_key(|(id, target)| {
            let name = (self.order == Field::Name).then(|| target.name.clone());
            let smaller = std::cmp::Reverse(target.bytes(self.order));
            (target.ended, !is_whole(*id, target), name, smaller)
        });
        listed
    }

    pub(super) fn cursor(&self, listed: &[(TargetId, &Target)]) -> usize {
        let place = listed.iter().position(|(id, _)| Some(*id) == self.cursor);
        place.unwrap_or(0)
    }

    /// Returns the age of the newest snapshot that is shown, if it is stale.
    pub(super) fn stale(&self) -> Option<Nanos> {
        let now = self.now.filter(|_| !self.paused && !self.ended)?;
        let live = self
            .targets
            .values()
            .filter(|t| t.has_snapshot() && !t.ended);
        let newest = live
            .map(|t| &t.snapshot)
            .max_by_key(|snapshot| snapshot.end)?;
        let age = now.since(newest.end);
        let interval = newest.end.since(newest.start);
        (age > STALE && age > interval + interval).then_some(age)
    }

    /// Moves the list's cursor, or scrolls the map's lists, up to the end of the longer one.
    pub(super) fn move_by(&mut self, lines: isize) {
        if self.shows_list() {
            let listed = self.listed();
            let last = listed.len().saturating_sub(1);
            let at = self.cursor(&listed).saturating_add_signed(lines).min(last);
            // A cursor on the first line stays there when targets change places.
            self.cursor = (at > 0).then(|| listed[at].0);
        } else {
            let longest = self.regions(true).len().max(self.regions(false).len());
            let at = self.scroll.saturating_add_signed(lines);
            self.scroll = at.min(longest.saturating_sub(1));
        }
    }

    /// Sorts the list by the next field or the one before, or the map's lists by the next.
    pub(super) fn sort(&mut self, forwards: bool) {
        if self.shows_list() {
            self.order = self.order.next(forwards);
        } else {
            self.sort = self.sort.next();
        }
    }

    /// Opens the map of the target that the cursor is on.
    pub(super) fn open(&mut self) {
        if self.shows_list() {
            let listed = self.listed();
            self.opened = listed.get(self.cursor(&listed)).map(|(id, _)| *id);
            self.scroll = 0;
        }
    }

    /// Goes back to the list; returns false if there is none, or if it is shown.
    pub(super) fn back(&mut self) -> bool {
        let Some(opened) = self.opened.take() else {
            return false;
        };
        self.cursor = Some(opened);
        self.scroll = 0;
        self.shows_list()
    }

    /// Opens the map of the next target in the list's order.
    pub(super) fn next_target(&mut self) {
        let Some((shown, _)) = self.target() else {
            return;
        };
        let listed = self.listed();
        let at = listed.iter().position(|(id, _)| *id == shown);
        let next = at.map_or(0, |at| (at + 1) % listed.len());
        self.opened = listed.get(next).map(|(id, _)| *id);
        self.scroll = 0;
    }

    /// Returns known regions of the shown target, hottest or coldest first, by the chosen order.
    pub(super) fn regions(&self, hot: bool) -> Vec<RegionSnapshot> {
        let Some((_, target)) = self.target() else {
            return Vec::new();
        };
        let is_hot = |region: &RegionSnapshot| region.nr_accesses.map(|n| n > 0.0);
        let mut regions: Vec<RegionSnapshot> = target
            .snapshot
            .regions
            .iter()
            .filter(|r| is_hot(r) == Some(hot) && r.resident() > 0)
            .copied()
            .collect();
        let size = |r: &RegionSnapshot| std::cmp::Reverse(shown_bytes(r, hot));
        match (self.sort, hot) {
            // In the list of cold memory, the largest regions matter most.
            (Sort::Size, _) | (Sort::Rate, false) => regions.sort_by_key(size),
            (Sort::Rate, true) => regions.sort_by(|a, b| {
                let by_rate = b
                    .nr_accesses
                    .unwrap_or(0.0)
                    .total_cmp(&a.nr_accesses.unwrap_or(0.0));
                by_rate.then_with(|| size(a).cmp(&size(b)))
            }),
            _ => regions.sort_by_key(|r| (std::cmp::Reverse(r.age_ns), size(r))),
        }
        regions
    }
}

fn sums(snapshot: &Snapshot) -> Sums {
    let idle_for = |age: Nanos| {
        let idle = snapshot.regions.iter().filter(|r| r.age_ns >= age);
        idle.fold(0, |sum: u64, region| sum.saturating_add(region.idle()))
    };
    Sums {
        totals: snapshot.totals(),
        idle: idle_for(IDLE),
        long_idle: idle_for(LONG_IDLE),
    }
}

/// Returns the bytes of a region that a list is about: the touched ones, or those that are idle.
pub(super) fn shown_bytes(region: &RegionSnapshot, hot: bool) -> u64 {
    if hot { region.touched() } else { region.idle() }
}
