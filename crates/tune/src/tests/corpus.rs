//! Two hundred traces of randomly drawn programs, and the properties that hold for every one of them.

use std::collections::BTreeMap;

use isotherm_sim::statistics::scramble;

use super::*;

const NR_TRACES: u64 = 200;

/// Random numbers from a seed.
struct Draws(u64);

impl Draws {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 = scramble(self.0);
        self.0 % (most + 1)
    }
}

/// Access pattern of a part of a program's memory.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// In use in every scan.
    Busy,
    /// Written once.
    Idle,
    /// In use in one scan of this many.
    Every(u64),
    /// In use from one scan to another.
    Phase(u64, u64),
    /// One page of this many is in use, always the same.
    Scattered(u64),
    /// Each page is in use in one scan of this many, at random.
    Random(u64),
    /// A window of a quarter that moves on in each scan.
    Sweep,
    /// Mapped from one scan on.
    Grown(u64),
    /// Mapped until one scan, and in use until then.
    Freed(u64),
}

impl Kind {
    fn draw(draws: &mut Draws, scans: u64) -> Self {
        let mut scan = || draws.up_to(scans - 1);
        match scan() * 9 / scans {
            0 => Self::Busy,
            1 => Self::Idle,
            2 => Self::Every(2 + scan()),
            3 => {
                let (a, b) = (scan(), scan());
                Self::Phase(a.min(b), a.max(b))
            }
            4 => Self::Scattered(2 + scan()),
            5 => Self::Random(2 + scan()),
            6 => Self::Sweep,
            7 => Self::Grown(scan()),
            _ => Self::Freed(1 + scan()),
        }
    }

    /// Returns whether a page of this many is mapped in a scan, and whether it is in use.
    fn of(self, (page, pages): (u64, u64), scan: u64, draw: u64) -> (bool, bool) {
        match self {
            Self::Busy => (true, true),
            Self::Idle => (true, scan == 0),
            Self::Every(of) => (true, scan.is_multiple_of(of)),
            Self::Phase(from, to) => (true, scan == 0 || (from..to).contains(&scan)),
            Self::Scattered(of) => (true, scan == 0 || scramble(page).is_multiple_of(of)),
            Self::Random(of) => (true, scan == 0 || draw.is_multiple_of(of)),
            Self::Sweep => (true, scan == 0 || (page * 4 / pages) == scan % 4),
            Self::Grown(from) => (scan >= from, scan == from),
            Self::Freed(until) => (scan < until, scan < until),
        }
    }
}

/// Returns the trace of this number, with 2 to 5 blocks and 16 to 32 scans.
fn replay_of(number: u64) -> Replay {
    let mut draws = Draws(scramble(number));
    let scans = 16 + draws.up_to(16);
    let parts: Vec<Kind> = (0..2 + draws.up_to(3))
        .map(|_| Kind::draw(&mut draws, scans))
        .collect();
    let block = PAGES_PER_BLOCK as u64;
    let pages = parts.len() as u64 * block;
    let ends = (1..=scans).map(|scan| Nanos::from_millis(1000 * scan));
    let mut trace = Trace::new(ends.collect(), pages as u32);
    for scan in 0..scans {
        for page in 0..pages {
            let place = (page % block, block);
            let draw = scramble(number ^ scan << 32 ^ page << 8);
            let (is_there, is_used) = parts[(page / block) as usize].of(place, scan, draw);
            if is_there {
                trace.note(scan as usize, page as u32, is_used);
            }
        }
    }
    trace.finish();
    let mut replay = replay();
    let process = &mut replay.processes[0].1;
    let area = &mut process.areas[0];
    area.range.end = area.range.start + pages * isotherm_engine::PAGE_SIZE;
    area.pattern = Pattern::Trace(Arc::new(trace), 0);
    process.work = Some(Nanos::from_millis(1000 * scans));
    replay
}

/// Replays that make each prediction once.
struct Known<'a>(&'a PlannedReplays<'a>, Mutex<BTreeMap<String, Prediction>>);

impl Evaluate for Known<'_> {
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>> {
        if let Some(known) = self.1.lock().expect("no panic").get(&settings.key()) {
            return Ok(Some(known.clone()));
        }
        let made = self.0.evaluate(settings)?;
        if let Some(made) = &made {
            check(made, self.0.replays.base().resident_mean_bytes);
            let mut known = self.1.lock().expect("no panic");
            known.insert(settings.key(), made.clone());
        }
        Ok(made)
    }
}

/// Returns the most that a search of `budget` points saves within the limit, a share.
fn saved_by(known: &Known<'_>, space: &Space, budget: usize) -> f64 {
    let contexts = known.0.plan.contexts();
    let mut search = Search::new(space.clone(), OBJECTIVE, budget, 1, contexts);
    let stop = AtomicBool::new(false);
    run(&mut search, known, None, 2, &stop, &mut |_| {}).expect("it runs");
    assert!(search.observed().len() <= budget);
    let best = search.best().0.map(|point| &search.observed()[point]);
    best.map_or(0.0, |best| {
        assert!(best.slowdown.most() <= 0.02);
        best.saved_share.value.max(0.0)
    })
}

fn check(prediction: &Prediction, base: f64) {
    let (saved, slowdown) = (prediction.saved_share.value, prediction.slowdown.value);
    assert!(saved.is_finite() && saved <= 1.0, "{prediction:?}");
    assert!(slowdown.is_finite() && slowdown > -0.01, "{prediction:?}");
    let sum = prediction.resident_mean_bytes + prediction.saved_mean_bytes;
    assert!((sum - base).abs() <= 1.0 + base * 1e-6, "{sum} of {base}");
    assert!(!prediction.was_killed && prediction.acting_cpu_seconds.value >= 0.0);
}

#[test]
fn of_two_hundred_programs_a_search_of_a_part_finds_what_there_is() {
    let plan = plan();
    let (mut missed, mut had_any) = (0, 0);
    for number in 0..NR_TRACES {
        let replay = replay_of(number);
        let (times, _) = trace_facts(&replay).expect("a trace");
        let replays = replays(&plan, replay);
        let saved = replays.base().saved_mean_bytes;
        assert!(saved.abs() < 1.0, "trace {number}");
        let planned = super::planned(&replays, &plan);
        let known = Known(&planned, Mutex::default());
        let params = ["age=2s..14s:6".to_owned(), "size=4K,1M".to_owned()];
        let space = Space::new(&params, plan.contexts(), times).expect("a space");
        let all = saved_by(&known, &space, space.len());
        let some = saved_by(&known, &space, 5);
        had_any += u64::from(all > 0.01);
        missed += u64::from(some < 0.95 * all - 0.01);
    }
    assert!(had_any > NR_TRACES / 2, "{had_any} have idle memory");
    assert!(missed * 20 <= NR_TRACES, "{missed} searches miss it");
}
