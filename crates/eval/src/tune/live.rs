//! Tuning confirmed and corrected by live runs.
//!
//! **Problem.** Replays are cheap and err; live runs are right and take minutes. A handful of them must tell which setting
//! is best, and how sure that is.
//!
//! **Approach.** Runs under schemes alternate with runs without, so that drift hits both. Each is compared with its
//! neighbours; from the differences a Gaussian process ([`model`]) corrects what is foretold of every setting that was
//! replayed, with bounds. The next run is of the setting that would be recommended, until that was run; then of the one
//! that promises most beyond it: the expected improvement within the limit (Gardner and others, *Bayesian optimization
//! with inequality constraints*, 2014), over what memory and time may come to. It ends when no setting promises more than
//! a tenth of what has been gained.
//!
//! **Limits.** Memory and time are taken to err independently. A setting that was not replayed is not considered.

mod model;
#[cfg(feature = "live")]
mod programs;
#[cfg(feature = "live")]
mod service;
mod text;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::{Journal, JournalError};
use super::objective::Objective;
use super::predict::{Estimate, Prediction, rounded};
use super::search::Search;
use super::space::{Point, Settings};
use model::{Foretold, Model, Normal, Observed, Prior};
#[cfg(feature = "live")]
pub use programs::{ProgramRuns, ProgramSpec};
#[cfg(feature = "live")]
pub use service::{ServiceRuns, ServiceSpec};

/// How far off replays may be of memory saved: chosen near what bounds are widened by (`bounds.rs`), and not measured
/// by itself.
const SAVED: Prior = Prior {
    offset: 0.03,
    factor: 0.15,
    own: 0.1,
    noise: 0.005,
};
/// Of slowdowns nothing was measured: half a point, and half of what is foretold, twice, are assumed.
const SLOWDOWN: Prior = Prior {
    offset: 0.005,
    factor: 0.5,
    own: 0.5,
    noise: 0.01,
};
/// Bounds are this many deviations away: nine of ten are within, one of twenty beyond either.
const BOUNDS: f64 = 1.645;
/// What is still to be gained is no reason for another run, as a share of what is gained: the aim for regret.
const ENOUGH: f64 = 0.1;
/// The middles of nine equally likely parts of a normal distribution.
const QUANTILES: [f64; 9] = [
    -1.593, -0.967, -0.589, -0.282, 0.0, 0.282, 0.589, 0.967, 1.593,
];

/// What a live run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveRun {
    /// [`Settings::key`]; `None` without schemes.
    pub settings: Option<String>,
    /// Seconds for a unit of the program's work: for all of it, unless it tells what it does in a second.
    pub seconds_of_work: f64,
    /// Mean resident memory, bytes.
    pub resident_mean_bytes: f64,
    /// Seconds that were measured.
    pub seconds: f64,
    /// CPU time of acting; `None` without schemes.
    pub acting_cpu_seconds: Option<f64>,
    /// How often the guard stopped the schemes.
    pub guard_stops: Option<u64>,
}

/// Who makes live runs.
pub trait LiveRuns {
    /// Runs the program by itself with a recorder beside it that writes its trace to `path`; `false` where it was asked to
    /// stop.
    ///
    /// # Errors
    /// A run that failed, and why.
    fn trace(&mut self, path: &Path) -> anyhow::Result<bool>;

    /// Runs the program by itself, or under the schemes with these settings; `None` where it was asked to stop.
    ///
    /// # Errors
    /// A run that failed, and why.
    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>>;
}

/// What there is to tell of live runs.
#[derive(Debug)]
pub enum LiveEvent<'a> {
    /// A run begins, of these settings or without schemes; so many under schemes were made.
    Begins(Option<&'a Settings>, usize),
    /// A run has ended, or was known.
    Ended(&'a LiveRun),
    /// The journal can be written no more.
    JournalFailed(&'a JournalError),
}

/// Why there are no more runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LiveEnd {
    /// No setting promises more than a tenth of what is gained.
    Enough,
    /// As many as were allowed have been made.
    AllMade,
    /// It was asked to stop.
    Stopped,
}

/// A run under schemes beside what was foretold.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compared {
    /// What the knobs were set to.
    pub settings: Settings,
    /// Saved against the runs without schemes before and after it: a share of their memory.
    pub saved_share: f64,
    /// How much longer the same work took than in these, a share.
    pub slowdown: f64,
    /// What the replay foretold of it.
    pub foretold_saved_share: Estimate,
    /// What the replay foretold of it.
    pub foretold_slowdown: Estimate,
    /// The run.
    pub run: LiveRun,
}

/// What live runs came to. The predictions of [`super::Tuned`] are corrected by it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Live {
    /// Why there are no more.
    pub end: LiveEnd,
    /// Runs without schemes.
    pub nr_bases: usize,
    /// Mean seconds for a unit of work in these.
    pub base_seconds_of_work: f64,
    /// Mean resident memory in these, bytes.
    pub base_resident_mean_bytes: f64,
    /// By how much the time of a single run varies, a share.
    pub noise_of_time: f64,
    /// And its memory.
    pub noise_of_memory: f64,
    /// The runs under schemes, in the order in which they were made.
    pub compared: Vec<Compared>,
}

impl Live {
    /// The settings that were run.
    pub(super) fn settings(&self) -> impl Iterator<Item = &Settings> {
        self.compared.iter().map(|one| &one.settings)
    }

    /// What is recommended, and the nearest beyond the limit: of what was run, or of all where nothing was. `search` is what
    /// these runs corrected.
    pub fn best<'a>(&self, search: &'a Search) -> (Option<&'a Point>, Option<&'a Point>) {
        let run: BTreeSet<String> = self.settings().map(Settings::key).collect();
        let is_meant =
            |point: &Point| run.is_empty() || run.contains(&search.space().settings(point).key());
        search.best_of(&is_meant)
    }
}

/// Live runs of what a search foretold.
#[derive(Debug)]
struct Runs<'a> {
    objective: Objective,
    search: &'a Search,
    foretold: BTreeMap<Point, Prediction>,
    by_key: BTreeMap<String, Point>,
    made: Vec<LiveRun>,
}

/// What runs tell of how far replays are off, each with by how much a single run varies.
#[derive(Debug)]
struct Learnt {
    memory: (Model, f64),
    time: (Model, f64),
    /// Mean resident memory without schemes, bytes.
    without: f64,
}

/// Makes at most `most` runs under schemes, with others between, and corrects by them what `search` has observed. A journal's
/// runs count as made.
///
/// # Errors
/// A run that failed.
pub fn run_live(
    search: &mut Search,
    objective: Objective,
    most: usize,
    makes: &mut dyn LiveRuns,
    mut journal: Option<&mut Journal>,
    on_event: &mut dyn FnMut(LiveEvent<'_>),
) -> anyhow::Result<Live> {
    let foretold = search.observed().clone();
    let by_key = foretold
        .keys()
        .map(|point| (search.space().settings(point).key(), point.clone()));
    let mut runs = Runs {
        objective,
        by_key: by_key.collect(),
        foretold,
        search,
        made: Vec::new(),
    };
    let mut known: VecDeque<LiveRun> = journal
        .as_deref()
        .map(Journal::live_runs)
        .unwrap_or_default()
        .to_vec()
        .into();
    let end = loop {
        let wanted = match runs.next(most) {
            Ok(wanted) => wanted,
            Err(end) => break end,
        };
        let settings = wanted.map(|point| runs.search.space().settings(&point));
        on_event(LiveEvent::Begins(
            settings.as_ref(),
            runs.nr_under_schemes(),
        ));
        let made = match known.pop_front() {
            Some(made) => made,
            None => match makes.run(settings.as_ref())? {
                Some(made) => {
                    let noted = journal
                        .as_deref_mut()
                        .map(|journal| journal.note_live(&made));
                    if let Some(Err(error)) = noted {
                        on_event(LiveEvent::JournalFailed(&error));
                    }
                    made
                }
                None => break LiveEnd::Stopped,
            },
        };
        on_event(LiveEvent::Ended(&made));
        runs.made.push(made);
    };
    let live = runs.told(end);
    for (point, prediction) in runs.corrected() {
        search.observe(point, prediction);
    }
    Ok(live)
}

impl Runs<'_> {
    /// What is to be run next: without schemes where `None`.
    fn next(&self, most: usize) -> Result<Option<Point>, LiveEnd> {
        if self.made.last().is_none_or(|last| last.settings.is_some()) {
            return Ok(None);
        }
        if self.nr_under_schemes() >= most {
            return Err(LiveEnd::AllMade);
        }
        let (learnt, corrected) = (self.learnt(), self.corrected());
        let was_run: BTreeSet<&Point> = self.pairs().map(|(point, ..)| point).collect();
        let best = self.best(&corrected);
        let Some(best) = best else {
            // Which is most likely within the limit?
            let likely = corrected
                .keys()
                .map(|point| (self.promise(&learnt, point, f64::INFINITY).0, point));
            let likely = likely.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
            return likely
                .map(|(_, point)| Some(point.clone()))
                .ok_or(LiveEnd::Enough);
        };
        if !was_run.contains(best) {
            return Ok(Some(best.clone()));
        }
        let loss = self.objective.rank(&corrected[best]).loss;
        let gained = (self.objective.rank(&self.nothing()).loss - loss).abs();
        let promises = corrected
            .keys()
            .map(|point| (self.promise(&learnt, point, loss).1, point));
        let most = promises.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
        match most {
            Some((promised, point)) if promised > ENOUGH * gained.max(1e-9) => {
                Ok(Some(point.clone()))
            }
            _ => Err(LiveEnd::Enough),
        }
    }

    /// What would be recommended.
    fn best<'a>(&self, corrected: &'a BTreeMap<Point, Prediction>) -> Option<&'a Point> {
        // Before any run, what has bounds is known best.
        let has_bounds = corrected.values().any(|p| p.slowdown.has_bounds());
        let meant = { corrected.iter() }.filter(|(_, p)| !has_bounds || p.slowdown.has_bounds());
        let ranked = meant.map(|(point, p)| (self.objective.rank(p), point));
        let within = ranked.filter(|(rank, _)| rank.violation <= 0.0);
        within
            .min_by(|a, b| a.0.compare(&b.0))
            .map(|(_, point)| point)
    }

    fn nr_under_schemes(&self) -> usize {
        self.made
            .iter()
            .filter(|run| run.settings.is_some())
            .count()
    }

    /// Without schemes.
    fn nothing(&self) -> Prediction {
        let resident = self.mean_of_bases(|run| run.resident_mean_bytes);
        Prediction {
            resident_mean_bytes: resident,
            ..Prediction::default()
        }
    }

    fn bases(&self) -> impl Iterator<Item = &LiveRun> {
        self.made.iter().filter(|run| run.settings.is_none())
    }

    fn mean_of_bases(&self, of: fn(&LiveRun) -> f64) -> f64 {
        self.bases().map(of).sum::<f64>() / self.bases().count().max(1) as f64
    }

    /// Each run under schemes, with those without before and after it.
    fn pairs(&self) -> impl Iterator<Item = (&Point, &LiveRun, Vec<&LiveRun>)> {
        self.made.iter().enumerate().filter_map(|(at, run)| {
            let point = self.by_key.get(run.settings.as_ref()?)?;
            let is_base = |run: &&LiveRun| run.settings.is_none();
            let before = self.made[..at].iter().rev().find(is_base);
            let after = self.made[at + 1..].iter().find(is_base);
            Some((point, run, before.into_iter().chain(after).collect()))
        })
    }

    fn place(&self, point: &Point) -> Vec<f64> {
        let space = self.search.space();
        let last = |dimension: usize| (space.nr_steps(dimension) - 1).max(1) as f64;
        let places = point.0.iter().enumerate();
        places
            .map(|(dimension, at)| *at as f64 / last(dimension))
            .collect()
    }

    fn model(
        &self,
        prior: Prior,
        of: fn(&Prediction) -> &Estimate,
        live: fn(&LiveRun, &[&LiveRun]) -> f64,
        base: fn(&LiveRun) -> f64,
    ) -> (Model, f64) {
        let observed = self.pairs().map(|(point, run, bases)| Observed {
            foretold: self.foretold(point, of),
            live: live(run, &bases),
            nr_bases: bases.len(),
        });
        let same: Vec<f64> = self.bases().map(base).collect();
        let noise = prior.noise_of(&same);
        (
            Model::new(prior, &observed.collect::<Vec<_>>(), noise),
            noise,
        )
    }

    fn foretold(&self, point: &Point, of: fn(&Prediction) -> &Estimate) -> Foretold {
        Foretold {
            place: self.place(point),
            value: of(&self.foretold[point]).value,
        }
    }

    /// What the runs tell so far.
    fn learnt(&self) -> Learnt {
        Learnt {
            memory: self.model(
                SAVED,
                |p| &p.saved_share,
                saved_share,
                |run| run.resident_mean_bytes,
            ),
            time: self.model(
                SLOWDOWN,
                |p| &p.slowdown,
                slowdown,
                |run| run.seconds_of_work,
            ),
            without: self.mean_of_bases(|run| run.resident_mean_bytes),
        }
    }

    /// What a setting saves and costs, live, on average over runs.
    fn expected(&self, learnt: &Learnt, point: &Point) -> (Normal, Normal) {
        let saved = self.foretold(point, |p| &p.saved_share);
        let slowdown = self.foretold(point, |p| &p.slowdown);
        (
            learnt.memory.0.correct(&saved),
            learnt.time.0.correct(&slowdown),
        )
    }

    /// How many times as much CPU time acting took as was foretold.
    fn acting_factor(&self) -> Option<f64> {
        let sums = self.pairs().fold((0.0, 0.0), |sums, (point, run, _)| {
            let foretold = &self.foretold[point];
            let rate = foretold.acting_cpu_seconds.value / foretold.seconds.max(1e-9);
            let live = run.acting_cpu_seconds.unwrap_or(0.0) / run.seconds.max(1e-9);
            (sums.0 + live, sums.1 + rate)
        });
        (sums.1 > 0.0).then(|| sums.0 / sums.1)
    }

    /// What is foretold of every setting, by what the runs told.
    fn corrected(&self) -> BTreeMap<Point, Prediction> {
        if self.pairs().next().is_none() {
            return self.foretold.clone();
        }
        let learnt = self.learnt();
        let acting = self.acting_factor().unwrap_or(1.0);
        let corrected = self.foretold.iter().map(|(point, prediction)| {
            let (saved, slowdown) = self.expected(&learnt, point);
            let mut corrected = with(prediction, learnt.without, saved.mean, slowdown.mean);
            corrected.saved_share = bounded(saved, 1.0);
            corrected.slowdown = bounded(slowdown, f64::INFINITY);
            corrected.acting_cpu_seconds =
                Estimate::new(prediction.acting_cpu_seconds.value * acting);
            (point.clone(), corrected)
        });
        corrected.collect()
    }

    /// How likely a setting is within the limit, and how much better than `loss` it is expected to be there.
    fn promise(&self, learnt: &Learnt, point: &Point, loss: f64) -> (f64, f64) {
        let (saved, slowdown) = self.expected(learnt, point);
        let foretold = &self.foretold[point];
        let draws = QUANTILES
            .iter()
            .flat_map(|a| QUANTILES.iter().map(move |b| (a, b)));
        let ranks = draws.map(|(a, b)| {
            let drawn = |of: &Normal, by: f64| of.mean + by * of.deviation;
            self.objective.rank(&with(
                foretold,
                learnt.without,
                drawn(&saved, *a),
                drawn(&slowdown, *b),
            ))
        });
        let within = ranks.filter(|rank| rank.violation <= 0.0);
        let (nr, gain) = within.fold((0.0, 0.0), |(nr, gain), rank| {
            (nr + 1.0, gain + (loss - rank.loss).max(0.0))
        });
        let of = (QUANTILES.len() * QUANTILES.len()) as f64;
        (nr / of, gain / of)
    }

    fn told(&self, end: LiveEnd) -> Live {
        let learnt = self.learnt();
        let compared = self.pairs().filter(|(_, _, bases)| !bases.is_empty());
        let compared = compared.map(|(point, run, bases)| Compared {
            settings: self.search.space().settings(point),
            saved_share: rounded(saved_share(run, &bases)),
            slowdown: rounded(slowdown(run, &bases)),
            foretold_saved_share: self.foretold[point].saved_share,
            foretold_slowdown: self.foretold[point].slowdown,
            run: run.clone(),
        });
        Live {
            end,
            nr_bases: self.bases().count(),
            base_seconds_of_work: rounded(self.mean_of_bases(|run| run.seconds_of_work)),
            base_resident_mean_bytes: rounded(self.mean_of_bases(|run| run.resident_mean_bytes)),
            noise_of_time: rounded(learnt.time.1),
            noise_of_memory: rounded(learnt.memory.1),
            compared: compared.collect(),
        }
    }
}

/// What a run saved against others.
fn saved_share(run: &LiveRun, bases: &[&LiveRun]) -> f64 {
    1.0 - run.resident_mean_bytes / mean(bases, |run| run.resident_mean_bytes).max(1.0)
}

/// How much slower it was.
fn slowdown(run: &LiveRun, bases: &[&LiveRun]) -> f64 {
    run.seconds_of_work / mean(bases, |run| run.seconds_of_work).max(1e-300) - 1.0
}

fn mean(runs: &[&LiveRun], of: fn(&LiveRun) -> f64) -> f64 {
    runs.iter().map(|run| of(run)).sum::<f64>() / runs.len().max(1) as f64
}

/// A prediction, had it come to this.
fn with(foretold: &Prediction, without: f64, saved: f64, slowdown: f64) -> Prediction {
    let saved = saved.min(1.0);
    Prediction {
        resident_mean_bytes: rounded(without * (1.0 - saved)),
        saved_mean_bytes: rounded(without * saved),
        saved_share: Estimate::new(saved),
        // Live runs measure the mean alone.
        steady_share: None,
        needed_ns: None,
        slowdown: Estimate::new(slowdown),
        ..foretold.clone()
    }
}

fn bounded(of: Normal, most: f64) -> Estimate {
    let off = BOUNDS * of.deviation;
    let value = Estimate::new(of.mean.min(most));
    value.within(of.mean - off, (of.mean + off).min(most))
}

#[cfg(test)]
mod tests;
