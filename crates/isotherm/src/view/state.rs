//! What the view shows, as the items tell it. No terminal here.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::report::MappingTable;
use isotherm_record::report::render::colour::Palette;
use isotherm_record::{CostSample, Item, PageAges};

/// Snapshots whose working set is kept for the sparkline.
const HISTORY: usize = 240;
/// One snapshot of the past is kept for each second, and so many seconds.
const PAST: usize = 16;
const PAST_STEP: Nanos = Nanos(1_000_000_000);
/// All of the past has at most so many regions, whatever a snapshot has.
const PAST_REGIONS: usize = 400_000;
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

/// Bytes of a snapshot by what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) accessed: u64,
    pub(super) idle: u64,
    pub(super) unknown: u64,
    pub(super) total: u64,
}

impl Sums {
    /// Neither accessed in the last interval nor idle for long.
    pub(super) fn cooling(self) -> u64 {
        self.total - self.accessed - self.idle - self.unknown
    }
}

/// Everything that is shown.
pub(super) struct State {
    pub(super) title: String,
    pub(super) palette: Palette,
    pub(super) targets: BTreeMap<TargetId, Target>,
    pub(super) selected: TargetId,
    pub(super) mappings: MappingTable,
    pub(super) cost: Option<CostSample>,
    /// Monitor and estimated induced CPU over the last second, in percent of one CPU.
    pub(super) cpu_percent: Option<(f64, f64)>,
    pub(super) clears_per_second: f64,
    pub(super) checks_per_second: f64,
    pub(super) note: Option<String>,
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
            selected: TargetId(0),
            mappings: MappingTable::default(),
            cost: None,
            cpu_percent: None,
            clears_per_second: 0.0,
            checks_per_second: 0.0,
            note: None,
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

    /// The target that is shown: the selected one, or the first there is.
    pub(super) fn target(&self) -> Option<(TargetId, &Target)> {
        let selected = self
            .targets
            .get(&self.selected)
            .map(|target| (self.selected, target));
        selected.or_else(|| self.targets.iter().next().map(|(id, target)| (*id, target)))
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

    pub(super) fn next_target(&mut self) {
        let after = self.targets.range((
            std::ops::Bound::Excluded(self.selected),
            std::ops::Bound::Unbounded,
        ));
        let next = after.map(|(id, _)| *id).next();
        self.selected = next
            .or_else(|| self.targets.keys().next().copied())
            .unwrap_or_default();
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
            .filter(|r| is_hot(r) == Some(hot))
            .copied()
            .collect();
        let size = |r: &RegionSnapshot| std::cmp::Reverse(r.range.len());
        match (self.sort, hot) {
            (Sort::Size, _) => regions.sort_by_key(size),
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
    let mut sums = Sums::default();
    for region in &snapshot.regions {
        let bytes = region.range.len();
        sums.total += bytes;
        match region.nr_accesses {
            None => sums.unknown += bytes,
            Some(n) if n > 0.0 => sums.accessed += bytes,
            Some(_) if region.age_ns >= IDLE => sums.idle += bytes,
            Some(_) => {}
        }
    }
    sums
}
