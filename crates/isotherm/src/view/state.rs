//! What the view shows, as the items tell it. No terminal here.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::page_cache::PAGE_CACHE;
use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{CacheSample, CostSample, Item, PageAges};
use isotherm_report::MappingTable;
use isotherm_report::render::colour::Palette;
use isotherm_session::protocol::BlameStatus;

use super::page_cache;

/// Snapshots whose working set is kept for the sparkline.
const HISTORY: usize = 240;
/// One snapshot of the past is kept for each second, and so many seconds.
const PAST: usize = 16;
const PAST_STEP: Nanos = Nanos(1_000_000_000);
/// All of the past has at most so many regions, whatever a snapshot has.
const PAST_REGIONS: usize = 400_000;
/// A view older than this is said to be so.
const STALE: Nanos = Nanos(2_000_000_000);
/// How far a page key scrolls.
const PAGE: usize = 10;
/// Regions idle for this long count as idle.
pub(super) const IDLE: Nanos = Nanos(5_000_000_000);

/// How the lists of regions are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
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

/// One target.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) ended: bool,
    pub(super) snapshot: Snapshot,
    /// Snapshots a second or more apart, before the present one; the latest last.
    pub(super) past: VecDeque<Snapshot>,
    /// When its first snapshot began.
    began: Option<Nanos>,
    pub(super) rss: Option<u64>,
    pub(super) swap: Option<u64>,
    pub(super) working_sets: VecDeque<u64>,
}

impl Target {
    pub(super) fn has_snapshot(&self) -> bool {
        self.began.is_some()
    }

    /// For how long it has been watched.
    pub(super) fn elapsed(&self) -> Nanos {
        self.began
            .map_or(Nanos(0), |began| self.snapshot.end.since(began))
    }

    /// Puts what was shown until now into the past, if it is far enough from the last there.
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

/// Bytes of memory of a snapshot by what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) accessed: u64,
    pub(super) idle: u64,
    pub(super) unknown: u64,
    /// All of it: resident memory, or addresses where the source cannot tell.
    pub(super) total: u64,
    /// Addresses, whatever they hold.
    pub(super) addresses: u64,
    /// What is memory is known.
    pub(super) is_exact: bool,
}

impl Sums {
    /// Neither accessed in the last interval nor idle for long.
    pub(super) fn cooling(self) -> u64 {
        self.total
            .saturating_sub(self.accessed)
            .saturating_sub(self.idle)
            .saturating_sub(self.unknown)
    }
}

/// Everything that is shown.
#[expect(clippy::struct_excessive_bools, reason = "each is switched by itself")]
pub(super) struct State {
    pub(super) title: String,
    pub(super) palette: Palette,
    pub(super) targets: BTreeMap<TargetId, Target>,
    /// The user's choice; the largest without one.
    pub(super) selected: Option<TargetId>,
    /// The time now, where items are of now.
    pub(super) now: Option<Nanos>,
    /// The list of all targets is shown.
    pub(super) overview: bool,
    pub(super) mappings: MappingTable,
    pub(super) cost: Option<CostSample>,
    /// Monitor and estimated induced CPU over the last second, in percent of one CPU.
    pub(super) cpu_percent: Option<(f64, f64)>,
    pub(super) clears_per_second: f64,
    pub(super) checks_per_second: f64,
    pub(super) note: Option<String>,
    /// Whose code touched idle memory first, where stacks are taken.
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
            targets: BTreeMap::new(),
            selected: None,
            now: None,
            overview: false,
            mappings: MappingTable::default(),
            cost: None,
            cpu_percent: None,
            clears_per_second: 0.0,
            checks_per_second: 0.0,
            note: None,
            blame: None,
            sort: Sort::Rate,
            scroll: 0,
            paused: false,
            help: false,
            ended: false,
            pages: PageAges::new(),
        }
    }

    /// Takes an item in. While paused, what is shown stands still; names and ends are kept.
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
                sample
                    .page_cache
                    .iter()
                    .for_each(|of| self.show_page_cache(of));
            }
            _ => {}
        }
    }

    fn show(&mut self, snapshot: Snapshot) {
        let target = self.targets.entry(snapshot.target).or_default();
        target.remember();
        target.began.get_or_insert(snapshot.start);
        target.snapshot = snapshot;
        if target.working_sets.len() == HISTORY {
            target.working_sets.pop_front();
        }
        target
            .working_sets
            .push_back(sums(&target.snapshot).accessed);
    }

    fn show_page_cache(&mut self, sample: &CacheSample) {
        let target = self.targets.entry(PAGE_CACHE).or_default();
        "page cache".clone_into(&mut target.name);
        let (snapshot, names) = page_cache::told(sample, &target.snapshot);
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

    /// The target that is shown: the selected one, or the largest that has not ended and has addresses.
    pub(super) fn target(&self) -> Option<(TargetId, &Target)> {
        let selected = self
            .selected
            .and_then(|id| Some((id, self.targets.get(&id)?)));
        let mut others = self.by_size().into_iter();
        selected.or_else(|| others.find(|(id, _)| *id != PAGE_CACHE))
    }

    /// All targets, those that have ended last, physical memory and the largest first.
    pub(super) fn by_size(&self) -> Vec<(TargetId, &Target)> {
        let mut targets: Vec<_> = self
            .targets
            .iter()
            .map(|(id, target)| (*id, target))
            .collect();
        let size = |target: &Target| target.rss.unwrap_or_else(|| sums(&target.snapshot).total);
        // Physical memory is all of the others'.
        let is_part = |id: TargetId, target: &Target| target.pid != 0 || id == PAGE_CACHE;
        targets.sort_by_cached_key(|(id, target)| {
            let smaller = std::cmp::Reverse(size(target));
            (target.ended, is_part(*id, target), smaller)
        });
        targets
    }

    /// How old the newest that is shown is, where that is too old to pass for the present.
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

    /// Scrolls the lists by a line or a page, up to the end of the longer one.
    pub(super) fn scroll_by(&mut self, down: bool, page: bool) {
        let step = if page { PAGE } else { 1 };
        if down {
            let longest = self.regions(true).len().max(self.regions(false).len());
            self.scroll = (self.scroll + step).min(longest.saturating_sub(1));
        } else {
            self.scroll = self.scroll.saturating_sub(step);
        }
    }

    /// Goes on to the next target by size.
    pub(super) fn next_target(&mut self) {
        let shown = self.target().map(|(id, _)| id);
        let order: Vec<TargetId> = self.by_size().into_iter().map(|(id, _)| id).collect();
        let place = order.iter().position(|id| Some(*id) == shown);
        let next = place.map_or(0, |place| (place + 1) % order.len().max(1));
        self.selected = order.get(next).copied();
        self.scroll = 0;
    }

    /// Known regions of the shown target, hottest or coldest first, by the chosen order.
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
            // Of cold memory, what there is most of matters most.
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

/// Adds a snapshot's bytes up.
pub(super) fn sums(snapshot: &Snapshot) -> Sums {
    let totals = snapshot.totals();
    let long = snapshot.regions.iter().filter(|r| r.age_ns >= IDLE);
    Sums {
        accessed: totals.touched,
        idle: long.fold(0, |sum: u64, region| sum.saturating_add(region.idle())),
        unknown: totals.unknown,
        total: totals.resident,
        addresses: totals.addresses,
        is_exact: totals.is_exact,
    }
}

/// Bytes of a region that a list is about: the touched ones, or those that are idle.
pub(super) fn shown_bytes(region: &RegionSnapshot, hot: bool) -> u64 {
    if hot { region.touched() } else { region.idle() }
}
