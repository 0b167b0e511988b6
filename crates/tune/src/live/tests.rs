//! Live runs of a made-up program whose true results are known.

use super::*;
use crate::Fingerprint;
use crate::tests::{contexts, prcl_space};

const MAX_SLOWDOWN: f64 = 0.02;
const OBJECTIVE: Objective = Objective::Memory {
    max_slowdown: MAX_SLOWDOWN,
};

/// Searches 20 ages: the younger the age, the more memory is saved and the more time is lost.
fn search() -> Search {
    let space = prcl_space(&["age=1s..30s:20"], 60);
    let mut search = Search::new(space, OBJECTIVE, 64, 1, &contexts("prcl"));
    loop {
        let batch = search.suggest();
        if batch.is_empty() {
            return search;
        }
        for point in batch {
            let prediction = predicted(&point);
            search.observe(point, prediction);
        }
    }
}

fn predicted(point: &SearchPoint) -> Prediction {
    let at = point.0[0] as f64;
    let nothing = Prediction {
        seconds: 60.0,
        acting_cpu_seconds: Estimate::new(0.5),
        ..Prediction::default()
    };
    let (saved, slowdown) = (0.6 * (1.0 - at / 20.0), 0.04 * (-at / 4.0).exp());
    with(&nothing, 1e9, saved, slowdown)
}

/// A program whose results differ from predictions by constant factors, with noise.
struct Program<'a> {
    search: &'a Search,
    saved_factor: f64,
    slowdown_factor: f64,
    noise: f64,
    random: u64,
    nr_made: usize,
    stops_after: usize,
}

impl Program<'_> {
    fn draw(&mut self) -> f64 {
        // Twelve equal draws make a normal one.
        let draws = (0..12).map(|_| {
            let product = self.random.wrapping_mul(6_364_136_223_846_793_005);
            self.random = product.wrapping_add(1);
            (self.random >> 11) as f64 / (1_u64 << 53) as f64
        });
        draws.sum::<f64>() - 6.0
    }

    fn slowdown(&self, point: &SearchPoint) -> f64 {
        predicted(point).slowdown.value * self.slowdown_factor
    }

    fn saved(&self, point: &SearchPoint) -> f64 {
        predicted(point).saved_share.value * self.saved_factor
    }

    fn point(&self, settings: &Settings) -> SearchPoint {
        let points = self.search.observed().keys();
        let mut same = points.filter(|point| self.search.space().settings(point) == *settings);
        same.next().expect("it was replayed").clone()
    }
}

impl LiveRuns for Program<'_> {
    fn trace(&mut self, _path: &Path) -> anyhow::Result<bool> {
        Ok(true)
    }

    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>> {
        if self.nr_made == self.stops_after {
            return Ok(None);
        }
        self.nr_made += 1;
        let (saved, slowdown) = settings.map_or((0.0, 0.0), |settings| {
            let point = self.point(settings);
            (self.saved(&point), self.slowdown(&point))
        });
        let seconds = 60.0 * (1.0 + slowdown) * (1.0 + self.noise * self.draw());
        Ok(Some(LiveRun {
            settings: settings.map(Settings::key),
            seconds_of_work: seconds,
            resident_mean_bytes: 1e9 * (1.0 - saved) * (1.0 + 0.2 * self.noise * self.draw()),
            seconds,
            acting_cpu_seconds: settings.map(|_| 1.0),
            guard_stops: Some(0),
        }))
    }
}

fn program(search: &Search, factors: (f64, f64), noise: f64, seed: u64) -> Program<'_> {
    Program {
        search,
        saved_factor: factors.0,
        slowdown_factor: factors.1,
        noise,
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        nr_made: 0,
        stops_after: usize::MAX,
    }
}

fn tuned(mut program: Program<'_>, journal: Option<&mut Journal>) -> (Live, Search) {
    let mut search = search();
    let live = run_live(
        &mut search,
        OBJECTIVE,
        5,
        &mut program,
        journal,
        &mut |_| {},
    );
    (live.expect("no run fails"), search)
}

/// Returns the largest share that can truly be saved within the limit.
fn most(program: &Program<'_>) -> f64 {
    let points = program.search.observed().keys();
    let within = points.filter(|point| program.slowdown(point) <= MAX_SLOWDOWN);
    within.map(|point| program.saved(point)).fold(0.0, f64::max)
}

#[test]
fn where_replays_are_right_a_run_or_two_are_enough() {
    let search = search();
    let (live, after) = tuned(program(&search, (1.0, 1.0), 0.001, 1), None);
    assert_eq!(live.end, LiveEnd::Enough);
    assert!(live.compared.len() <= 4, "{live:?}");
    assert_eq!(live.nr_bases, live.compared.len() + 1, "{live:?}");
    let truth = program(&search, (1.0, 1.0), 0.0, 1);
    let found = truth.saved(&live.best(&after).0.cloned().expect("one"));
    assert!(found > most(&truth) - 0.07, "{found} of {}", most(&truth));
}

#[test]
fn where_replays_are_wrong_the_limit_holds() {
    let search = search();
    // The replays' own choice is at 2 % by prediction, and at 6 % in truth.
    let (live, after) = tuned(program(&search, (0.8, 3.0), 0.002, 2), None);
    let truth = program(&search, (0.8, 3.0), 0.0, 2);
    let best = live.best(&after).0.cloned().expect("one");
    assert!(truth.slowdown(&best) < MAX_SLOWDOWN, "{live:?}");
    let saved = after.observed()[&best].saved_share;
    assert!((saved.value - truth.saved(&best)).abs() < 0.02, "{saved:?}");
    assert!(saved.least() <= truth.saved(&best) && truth.saved(&best) <= saved.most());
}

/// The aims are a limit that is broken in 5 % of cases at most, and a tenth of the range for regret. If a run varies by
/// half of the limit, certainty costs more than that.
#[test]
fn of_many_programs_few_break_the_limit_and_little_is_lost() {
    let search = search();
    let (mut broken, mut regret, mut nr_runs, cases) = (0, 0.0, 0, 200);
    for seed in 1..=cases {
        let mut drawn = program(&search, (1.0, 1.0), 0.01, seed);
        let factors = (1.0 + 0.15 * drawn.draw(), (0.5 * drawn.draw()).exp());
        let (live, after) = tuned(program(&search, factors, 0.01, seed), None);
        nr_runs += live.compared.len() as u64;
        let truth = program(&search, factors, 0.0, seed);
        let found = live.best(&after).0.cloned();
        let slowdown = found.as_ref().map_or(0.0, |point| truth.slowdown(point));
        broken += u64::from(slowdown > MAX_SLOWDOWN);
        let saved = found.as_ref().map_or(0.0, |point| truth.saved(point));
        let range = truth.saved(&SearchPoint(vec![0]));
        regret += (most(&truth) - saved).max(0.0) / range / cases as f64;
    }
    assert!(broken * 20 <= cases, "{broken} of {cases} break the limit");
    assert!(regret < 0.13, "{regret} of the range is lost on average");
    assert!(nr_runs < 4 * cases, "{nr_runs} runs for {cases} programs");
}

#[test]
fn an_interruption_changes_no_byte() {
    let search = search();
    let (whole, _) = tuned(program(&search, (0.9, 2.0), 0.01, 3), None);
    let folder = tempfile::tempdir().expect("a folder");
    for stops_after in 0..4 {
        let path = folder.path().join(stops_after.to_string());
        let open = || Journal::open(&path, &Fingerprint::new(1, "options")).expect("a journal");
        let mut first = program(&search, (0.9, 2.0), 0.01, 3);
        first.stops_after = stops_after;
        let (live, _) = tuned(first, Some(&mut open()));
        assert_eq!(live.end, LiveEnd::Stopped);
        // The draws continue where they were.
        let mut second = program(&search, (0.9, 2.0), 0.01, 3);
        for _ in 0..2 * stops_after {
            second.draw();
        }
        let (live, _) = tuned(second, Some(&mut open()));
        assert_eq!(live, whole, "after {stops_after}");
    }
}

#[test]
fn nothing_within_the_limit_is_said_and_not_run_for_ever() {
    let search = search();
    let (live, after) = tuned(program(&search, (1.0, 500.0), 0.001, 4), None);
    assert!(live.compared.len() <= 5);
    assert_eq!(live.best(&after).0, None, "{live:?}");
}
