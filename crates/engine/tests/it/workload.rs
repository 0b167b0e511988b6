//! Tests of whether the engine finds hot memory, in synthetic memory of known truth.
//!
//! Every page of a hot range is touched at random at the range's rate. That is a Poisson process, so that a page is
//! found accessed after `t` seconds with probability 1 - exp(-rate t). All other memory is idle.

use isotherm_engine::{
    AddressRange, Attributes, Engine, Facts, Nanos, Sample, Snapshot, TargetId, Touch,
};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

const MIB: u64 = 1 << 20;
/// Start of the heap, in MiB.
const BASE: u64 = 1 << 20;
/// Accesses per second to each hot page.
const RATE: f64 = 200.0;

/// A process with one hot piece of memory.
struct World {
    ranges: Vec<AddressRange>,
    hot_at: Box<dyn Fn(f64) -> AddressRange>,
}

/// Result of a run; precision and recall by bytes, as means over the scored snapshots.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    precision: f64,
    recall: f64,
    /// Seconds until precision and recall were both at least 0.9.
    found_after: Option<f64>,
}

fn megabytes(from: u64, size: u64) -> AddressRange {
    AddressRange::new(from * MIB, (from + size) * MIB)
}

impl World {
    /// Returns a world with a heap of `size` MiB, of which `hot_size` MiB are hot: at a given second those from
    /// `hot_start` on.
    fn with_hot(size: u64, hot_start: impl Fn(f64) -> u64 + 'static, hot_size: u64) -> Self {
        Self {
            // A program, its heap and a stack far apart.
            ranges: vec![
                megabytes(4, 1),
                megabytes(BASE, size),
                megabytes(1 << 26, 1),
            ],
            hot_at: Box::new(move |second| megabytes(BASE + hot_start(second), hot_size)),
        }
    }

    /// Monitors by DAMON's defaults for `seconds`, scoring snapshots from second `from` on.
    fn run(&self, seconds: f64, from: f64) -> Score {
        let mut rng = Pcg64Mcg::seed_from_u64(7);
        let mut engine = Engine::new(Attributes::default()).expect("valid attributes");
        let (mut ranges, mut touches, mut now) = (Vec::new(), Vec::new(), Nanos(0));
        let (mut score, mut counted) = (Score::default(), 0.0);
        while now.as_secs_f64() < seconds {
            let facts = Facts {
                touches: &touches,
                ranges: std::mem::take(&mut ranges),
                ..Facts::default()
            };
            let plan = engine.tick(now, facts);
            let hot = (self.hot_at)(now.as_secs_f64());
            for snapshot in &plan.snapshots {
                let (precision, recall) = score_of(snapshot, hot);
                if recall.min(precision) >= 0.9 {
                    score.found_after.get_or_insert(now.as_secs_f64());
                }
                if now.as_secs_f64() >= from {
                    counted += 1.0;
                    score.precision += precision;
                    score.recall += recall;
                }
            }
            if plan.ranges_wanted {
                ranges.push((TargetId(1), self.ranges.clone()));
            }
            let window = plan.next_tick.since(now).as_secs_f64();
            let samples = plan.samples.iter();
            touches = samples.map(|s| look(s, hot, window, &mut rng)).collect();
            now = plan.next_tick;
        }
        score.precision /= counted;
        score.recall /= counted;
        score
    }
}

fn look(sample: &Sample, hot: AddressRange, window: f64, rng: &mut Pcg64Mcg) -> Touch {
    let draw = rng.next_u64() as f64 / u64::MAX as f64;
    Touch::of(hot.contains(sample.address) && draw < 1.0 - (-RATE * window).exp())
}

/// Returns precision and recall of a snapshot: a region counts as hot if at least a quarter of the checks found it
/// accessed.
fn score_of(snapshot: &Snapshot, hot: AddressRange) -> (f64, f64) {
    let (mut claimed, mut right) = (0.0, 0.0);
    for region in &snapshot.regions {
        if snapshot.access_rate(region) >= Some(0.25) {
            let shared = hot.intersection(region.range);
            right += shared.map_or(0.0, |shared| shared.len() as f64);
            claimed += region.range.len() as f64;
        }
    }
    let precision = if claimed > 0.0 { right / claimed } else { 0.0 };
    (precision, right / hot.len() as f64)
}

#[test]
fn a_hot_tenth_is_found() {
    let score = World::with_hot(1024, |_| 301, 101).run(30.0, 10.0);
    assert!(score.precision >= 0.95, "precision: {score:?}");
    assert!(score.recall >= 0.95, "recall: {score:?}");
    let found_after = score.found_after.expect("it is found");
    assert!(found_after <= 2.0, "too late: {score:?}");
}

#[test]
fn ten_steps_of_five_seconds_are_followed() {
    let world = World::with_hot(1000, |second| 100 * ((second / 5.0) as u64 % 10), 100);
    // An aggregation interval across a step sees both, so that the bound is lower than in the static world.
    let score = world.run(50.0, 5.0);
    assert!(score.precision >= 0.85 && score.recall >= 0.85, "{score:?}");
}
