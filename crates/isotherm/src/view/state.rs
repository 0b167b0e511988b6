//! What the view shows, as the items tell it. No terminal here.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::report::MappingTable;
use isotherm_record::{CostSample, Item, PageAges};

/// Snapshots whose working set is kept for the sparkline.
const HISTORY: usize = 240;
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

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Size => "size",
            Self::Age => "age",
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
    pub(super) rss: Option<u64>,
    pub(super) working_sets: VecDeque<u64>,
}

/// Bytes of a snapshot by what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) accessed: u64,
    pub(super) idle: u64,
    pub(super) unknown: u64,
    pub(super) total: u64,
}

/// Everything that is shown.
pub(super) struct State {
    pub(super) title: String,
    pub(super) targets: BTreeMap<TargetId, Target>,
    pub(super) selected: TargetId,
    pub(super) mappings: MappingTable,
    pub(super) cost: Option<CostSample>,
    /// Monitor and estimated induced CPU over the last second, in percent of one CPU.
    pub(super) cpu_percent: Option<(f64, f64)>,
    pub(super) clears_per_second: f64,
    pub(super) note: Option<String>,
    pub(super) sort: Sort,
    pub(super) scroll: u16,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) ended: bool,
    pages: PageAges,
}

impl State {
    pub(super) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            targets: BTreeMap::new(),
            selected: TargetId(0),
            mappings: MappingTable::default(),
            cost: None,
            cpu_percent: None,
            clears_per_second: 0.0,
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
                target.name.clone_from(&start.name);
            }
            Item::TargetExit(exit) => {
                if let Some(target) = self.targets.get_mut(&exit.target) {
                    target.ended = true;
                }
            }
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Note { text, .. } => self.note = Some(text.clone()),
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
            }
            Item::Cost(cost) if !self.paused => self.spend(*cost),
            _ => {}
        }
    }

    fn show(&mut self, snapshot: Snapshot) {
        let target = self.targets.entry(snapshot.target).or_default();
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
                self.clears_per_second =
                    (cost.cost.clears - last.cost.clears.min(cost.cost.clears)) as f64 / seconds;
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
