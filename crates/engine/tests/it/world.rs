//! A synthetic memory of known truth: a world that suffices to run the engine.
//!
//! Every page of a hot range is touched at random at the range's rate. That is a Poisson process, so that a page is
//! found accessed after `t` seconds with probability 1 - exp(-rate t). All other memory is idle. Costs are those
//! measured in docs/results/overhead.md for a running target.

use isotherm_engine::{
    AddressRange, Attributes, Cost, Engine, Facts, Layout, Nanos, Sample, Snapshot, TargetId, Touch,
};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

const MIB: u64 = 1 << 20;
/// Start of the heap, in MiB.
const BASE: u64 = 1 << 20;

/// Cost of a tick, of reading a bit, of clearing a cluster, and the time that this takes from the target.
const TICK_NS: u64 = 15_000;
const CHECK_NS: u64 = 28;
const CLEAR_NS: u64 = 6_000;
const INDUCED_NS: u64 = 3_000;

/// Memory with pages that are each touched `rate` times a second.
#[derive(Clone, Debug)]
pub(crate) struct Hot {
    pub(crate) range: AddressRange,
    pub(crate) rate: f64,
}

/// A process with memory that `hot_at` makes hot at a given second.
pub(crate) struct World {
    pub(crate) mappings: Vec<AddressRange>,
    pub(crate) populated: Vec<AddressRange>,
    pub(crate) hot_at: Box<dyn Fn(f64) -> Vec<Hot>>,
    pub(crate) seed: u64,
}

/// Result of a run; precision and recall by bytes, as means over the scored snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) precision: f64,
    pub(crate) recall: f64,
    pub(crate) nr_regions: f64,
    /// Share of one CPU.
    pub(crate) cpu: f64,
    /// Seconds until precision and recall were both at least 0.9.
    pub(crate) found_after: Option<f64>,
    /// Mean error of the access rate by bytes, over all monitored memory.
    pub(crate) rate_error: f64,
}

/// Returns `nr` hot pieces of 2 MiB, in MiB, spread over `total`.
pub(crate) fn scattered(nr: u64, total: u64) -> Vec<(u64, u64)> {
    let starts: std::collections::BTreeSet<u64> = (0..nr)
        .map(|i| i * 2_654_435_761 % (total / 2) * 2)
        .collect();
    starts.into_iter().map(|start| (start, 2)).collect()
}

fn megabytes(from: u64, size: u64) -> AddressRange {
    AddressRange::new(from * MIB, (from + size) * MIB)
}

impl World {
    /// Returns a world with one mapping of `size` MiB, all populated, and hot pieces given as (start, size) in MiB.
    pub(crate) fn with_hot(size: u64, hot: &[(u64, u64)], rate: f64) -> Self {
        let hot = hot.to_vec();
        Self::with_hot_at(size, move |_| hot.clone(), rate)
    }

    /// Returns such a world with hot pieces that change over the seconds.
    pub(crate) fn with_hot_at(
        size: u64,
        hot: impl Fn(f64) -> Vec<(u64, u64)> + 'static,
        rate: f64,
    ) -> Self {
        let all = megabytes(BASE, size);
        // A program, its heap and a stack far apart, as the three ranges expect.
        let mappings = vec![megabytes(4, 1), all, megabytes(1 << 26, 1)];
        let one = move |(start, size)| Hot {
            range: megabytes(BASE + start, size),
            rate,
        };
        Self {
            populated: mappings.clone(),
            mappings,
            hot_at: Box::new(move |second| hot(second).into_iter().map(one).collect()),
            seed: 7,
        }
    }

    /// Extends the heap's mapping by `size` MiB that are not populated.
    #[allow(dead_code, reason = "each test that shares this file uses a part")]
    pub(crate) fn reserve(&mut self, size: u64) {
        let end = self.mappings[1].end;
        self.mappings[1].end = end + size * MIB;
    }

    fn layout(&self) -> Layout {
        Layout::Mappings {
            mappings: self.mappings.clone(),
            populated: Some(self.populated.clone()),
        }
    }

    /// Monitors for `seconds`, scoring snapshots from second `from` on.
    pub(crate) fn run(&self, attributes: Attributes, seconds: f64, from: f64) -> Score {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        let mut engine = Engine::new(attributes).expect("valid attributes");
        let mut layouts = Vec::new();
        let (mut touches, mut cost, mut now) = (Vec::new(), Cost::default(), Nanos(0));
        let (mut score, mut counted) = (Score::default(), 0.0);
        let mut spent_before = Nanos(0);
        while now.as_secs_f64() < seconds {
            let facts = Facts {
                touches: &touches,
                layouts: std::mem::take(&mut layouts),
                cost,
                ..Facts::default()
            };
            let plan = engine.tick(now, facts);
            let hot = (self.hot_at)(now.as_secs_f64());
            for snapshot in &plan.snapshots {
                let found = score_of(snapshot, &hot);
                if found.recall.min(found.precision) >= 0.9 {
                    score.found_after.get_or_insert(now.as_secs_f64());
                }
                if now.as_secs_f64() >= from {
                    counted += 1.0;
                    score.precision += found.precision;
                    score.recall += found.recall;
                    score.nr_regions += found.nr_regions;
                    score.rate_error += found.rate_error;
                }
            }
            if now.as_secs_f64() < from {
                spent_before = cost.monitor_cpu + cost.induced_cpu;
            }
            if plan.layouts_wanted {
                layouts.push((TargetId(1), self.layout()));
            }
            let window = plan.next_tick.since(now).as_secs_f64();
            touches.clear();
            cost.monitor_cpu = cost.monitor_cpu + Nanos(TICK_NS);
            for sample in &plan.samples {
                touches.push(look(sample, &hot, window, &mut rng, &mut cost));
            }
            now = plan.next_tick;
        }
        let spent = (cost.monitor_cpu + cost.induced_cpu).since(spent_before);
        Score {
            precision: score.precision / counted,
            recall: score.recall / counted,
            nr_regions: score.nr_regions / counted,
            rate_error: score.rate_error / counted,
            cpu: spent.as_secs_f64() / (seconds - from),
            found_after: score.found_after,
        }
    }
}

fn look(sample: &Sample, hot: &[Hot], window: f64, rng: &mut Pcg64Mcg, cost: &mut Cost) -> Touch {
    let mut accessed = 0;
    for page in 0..u64::from(sample.nr_pages) {
        let address = sample.address + page * isotherm_engine::PAGE_SIZE;
        let rate = hot
            .iter()
            .find(|hot| hot.range.contains(address))
            .map_or(0.0, |hot| hot.rate);
        let draw = rng.next_u64() as f64 / u64::MAX as f64;
        accessed += u32::from(draw < 1.0 - (-rate * window).exp());
    }
    cost.checks += u64::from(sample.nr_pages);
    cost.monitor_cpu = cost.monitor_cpu + Nanos(2 * CHECK_NS * u64::from(sample.nr_pages));
    if accessed > 0 {
        cost.clears += 1;
        cost.monitor_cpu = cost.monitor_cpu + Nanos(CLEAR_NS);
        cost.induced_cpu = cost.induced_cpu + Nanos(INDUCED_NS);
    }
    Touch::Seen {
        observed: sample.nr_pages,
        accessed,
    }
}

/// Scores a snapshot: a region counts as hot if at least a quarter of the checks found it accessed.
fn score_of(snapshot: &Snapshot, hot: &[Hot]) -> Score {
    let (mut claimed, mut right, mut error, mut monitored) = (0.0, 0.0, 0.0, 0.0);
    let wanted: f64 = hot.iter().map(|hot| hot.range.len() as f64).sum();
    let elapsed = snapshot.end.since(snapshot.start).as_secs_f64();
    let window = elapsed / f64::from(snapshot.nr_samples);
    for region in &snapshot.regions {
        let Some(rate) = snapshot.access_rate(region) else {
            continue;
        };
        let size = region.range.len() as f64;
        let mut idle = size;
        for hot in hot {
            let shared = hot
                .range
                .intersection(region.range)
                .map_or(0.0, |r| r.len() as f64);
            idle -= shared;
            let truth = 1.0 - (-hot.rate * window).exp();
            error += shared * (f64::from(rate) - truth).abs();
            if rate >= 0.25 {
                right += shared;
            }
        }
        error += idle * f64::from(rate);
        monitored += size;
        if rate >= 0.25 {
            claimed += size;
        }
    }
    Score {
        precision: if claimed > 0.0 { right / claimed } else { 0.0 },
        recall: right / wanted,
        nr_regions: snapshot.regions.len() as f64,
        rate_error: error / monitored,
        ..Score::default()
    }
}
