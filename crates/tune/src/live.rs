//! Tuning confirmed and corrected by live runs.
//!
//! **Problem.** Replays are cheap and err; live runs are right and take minutes. A handful of them must show which
//! setting is best, and how sure that is.
//!
//! **Approach.** Runs under schemes alternate with runs without, so that drift hits both. Each is compared with its
//! neighbours. From the differences a Gaussian process ([`model`]) corrects the predictions of all settings that were
//! replayed, and adds bounds. The next run is of the setting that would be recommended. Once that was run, the next is
//! of the setting with the highest expected improvement within the limit, over the possible values of memory and time
//! (Gardner and others, *Bayesian optimization with inequality constraints*, 2014). The runs end when no setting
//! promises more than a tenth of what has been gained.
//!
//! **Limits.** The errors of memory and time are taken to be independent. Settings that were not replayed are not
//! considered.

mod model;
pub(super) mod run;
mod text;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use serde::Serialize;

use super::journal::{Journal, JournalError};
use super::objective::Objective;
use super::predict::{Estimate, Prediction, rounded};
use super::search::Search;
use super::space::{SearchPoint, Settings};
use model::{Model, Normal, Observed, Predicted, Prior};
pub use run::LiveRun;

/// Error of replayed memory savings: chosen near the widening of bounds (`bounds.rs`), and not measured on its own.
const SAVED: Prior = Prior {
    offset: 0.03,
    factor: 0.15,
    own: 0.1,
    noise: 0.005,
};
/// Error of replayed slowdowns. None was measured: half a percentage point, and half of the predicted slowdown, twice,
/// are assumed.
const SLOWDOWN: Prior = Prior {
    offset: 0.005,
    factor: 0.5,
    own: 0.5,
    noise: 0.01,
};
/// Distance of the bounds in standard deviations: nine of ten values are within, and one of twenty is beyond either.
const BOUNDS: f64 = 1.645;
/// Smallest promised gain that is worth another run, as a share of what is gained: the aim for regret.
const ENOUGH: f64 = 0.1;
/// The middles of nine equally likely parts of a normal distribution.
const QUANTILES: [f64; 9] = [
    -1.593, -0.967, -0.589, -0.282, 0.0, 0.282, 0.589, 0.967, 1.593,
];

/// Makes live runs.
pub trait LiveRuns {
    /// Runs the program without schemes, with a recorder beside it that writes its trace to `path`. Returns `false` if
    /// it was asked to stop. Fails if the run fails, with the reason.
    fn trace(&mut self, path: &Path) -> anyhow::Result<bool>;

    /// Runs the program under the schemes with these settings, or without schemes. Returns `None` if it was asked to
    /// stop. Fails if the run fails, with the reason.
    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>>;
}

/// Progress of live runs.
#[derive(Debug)]
pub enum LiveEvent<'a> {
    /// A run begins: its settings, or `None` without schemes, and the number of runs under schemes made before it.
    Begins(Option<&'a Settings>, usize),
    /// A run has ended, or was in the journal.
    Ended(&'a LiveRun),
    /// The journal can no longer be written.
    JournalFailed(&'a JournalError),
}

/// The reason why there are no more runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LiveEnd {
    /// No other setting is predicted to improve the result by more than a tenth of the gain so far.
    Enough,
    /// All runs that were allowed have been made.
    AllMade,
    /// The runs were asked to stop.
    Stopped,
}

/// A run under schemes beside the replay's prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compared {
    /// Values of the knobs.
    pub settings: Settings,
    /// Memory saved against the runs without schemes before and after it: a share of their memory.
    pub saved_share: f64,
    /// Additional time for the same work against these runs, a share.
    pub slowdown: f64,
    /// Memory saved as the replay predicted it, a share.
    pub predicted_saved_share: Estimate,
    /// Slowdown as the replay predicted it.
    pub predicted_slowdown: Estimate,
    /// The run.
    pub run: LiveRun,
}

/// Results of live runs, which correct the predictions of [`super::Tuned`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Live {
    /// The reason why there are no more runs.
    pub end: LiveEnd,
    /// Number of runs without schemes.
    pub nr_bases: usize,
    /// Mean seconds for a unit of work in these.
    pub base_seconds_of_work: f64,
    /// Mean resident memory in these, bytes.
    pub base_resident_mean_bytes: f64,
    /// Variation of a single run's time, a share.
    pub noise_of_time: f64,
    /// Variation of a single run's memory, a share.
    pub noise_of_memory: f64,
    /// The runs under schemes, in the order in which they were made.
    pub compared: Vec<Compared>,
}

impl Live {
    pub(super) fn settings(&self) -> impl Iterator<Item = &Settings> {
        self.compared.iter().map(|one| &one.settings)
    }

    /// Returns the recommended setting, and the nearest beyond the limit. Both are of those that were run, or of all
    /// where none was. `search` is the one that these runs corrected.
    pub fn best<'a>(
        &self,
        search: &'a Search,
    ) -> (Option<&'a SearchPoint>, Option<&'a SearchPoint>) {
        let run: BTreeSet<String> = self.settings().map(Settings::key).collect();
        let is_meant = |point: &SearchPoint| {
            run.is_empty() || run.contains(&search.space().settings(point).key())
        };
        search.best_of(&is_meant)
    }
}

/// Live runs of settings that a search has predictions of.
#[derive(Debug)]
struct Runs<'a> {
    objective: Objective,
    search: &'a Search,
    predicted: BTreeMap<SearchPoint, Prediction>,
    by_key: BTreeMap<String, SearchPoint>,
    made: Vec<LiveRun>,
}

/// Errors of replays as learnt from the runs, each with the variation of a single run.
#[derive(Debug)]
struct Learnt {
    memory: (Model, f64),
    time: (Model, f64),
    /// Mean resident memory without schemes, bytes.
    without: f64,
}

/// Makes at most `most` runs under schemes, with runs without schemes between, and corrects the predictions of `search`
/// by them. Runs of the journal count as made. Fails if a run fails.
pub fn run_live(
    search: &mut Search,
    objective: Objective,
    most: usize,
    makes: &mut dyn LiveRuns,
    mut journal: Option<&mut Journal>,
    on_event: &mut dyn FnMut(LiveEvent<'_>),
) -> anyhow::Result<Live> {
    let predicted = search.observed().clone();
    let by_key = predicted
        .keys()
        .map(|point| (search.space().settings(point).key(), point.clone()));
    let mut runs = Runs {
        objective,
        by_key: by_key.collect(),
        predicted,
        search,
        made: Vec::new(),
    };
    let known = journal.as_deref().map(Journal::live_runs);
    let mut known: VecDeque<LiveRun> = known.unwrap_or_default().to_vec().into();
    let end = loop {
        let wanted = match runs.next(most) {
            Ok(wanted) => wanted,
            Err(end) => break end,
        };
        let settings = wanted.map(|point| runs.search.space().settings(&point));
        let nr = runs.nr_under_schemes();
        on_event(LiveEvent::Begins(settings.as_ref(), nr));
        let made = match known.pop_front() {
            Some(made) => made,
            None => match makes.run(settings.as_ref())? {
                Some(made) => {
                    let journal = journal.as_deref_mut();
                    let noted = journal.map(|journal| journal.note_live(&made));
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
    let live = runs.reported(end);
    for (point, prediction) in runs.corrected() {
        search.observe(point, prediction);
    }
    Ok(live)
}

impl Runs<'_> {
    /// Returns the setting of the next run; `None`: without schemes.
    fn next(&self, most: usize) -> Result<Option<SearchPoint>, LiveEnd> {
        if self.made.last().is_none_or(|last| last.settings.is_some()) {
            return Ok(None);
        }
        if self.nr_under_schemes() >= most {
            return Err(LiveEnd::AllMade);
        }
        let (learnt, corrected) = (self.learnt(), self.corrected());
        let was_run: BTreeSet<&SearchPoint> = self.pairs().map(|(point, ..)| point).collect();
        let best = self.best(&corrected);
        let Some(best) = best else {
            // The setting that is most likely within the limit.
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

    /// Returns the setting that would be recommended.
    fn best<'a>(
        &self,
        corrected: &'a BTreeMap<SearchPoint, Prediction>,
    ) -> Option<&'a SearchPoint> {
        // Before any run, settings with bounds are known best.
        let has_bounds = corrected.values().any(|p| p.slowdown.has_bounds());
        let meant = { corrected.iter() }.filter(|(_, p)| !has_bounds || p.slowdown.has_bounds());
        let ranked = meant.map(|(point, p)| (self.objective.rank(p), point));
        let within = ranked.filter(|(rank, _)| rank.violation <= 0.0);
        let best = within.min_by(|a, b| a.0.compare(&b.0))?;
        Some(best.1)
    }

    fn nr_under_schemes(&self) -> usize {
        let made = self.made.iter();
        made.filter(|run| run.settings.is_some()).count()
    }

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

    /// Returns each run under schemes, with the runs without schemes before and after it.
    fn pairs(&self) -> impl Iterator<Item = (&SearchPoint, &LiveRun, Vec<&LiveRun>)> {
        self.made.iter().enumerate().filter_map(|(at, run)| {
            let point = self.by_key.get(run.settings.as_ref()?)?;
            let is_base = |run: &&LiveRun| run.settings.is_none();
            let before = self.made[..at].iter().rev().find(is_base);
            let after = self.made[at + 1..].iter().find(is_base);
            Some((point, run, before.into_iter().chain(after).collect()))
        })
    }

    fn place(&self, point: &SearchPoint) -> Vec<f64> {
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
            predicted: self.predicted(point, of),
            live: live(run, &bases),
            nr_bases: bases.len(),
        });
        let same: Vec<f64> = self.bases().map(base).collect();
        let noise = prior.noise_of(&same);
        let observed: Vec<_> = observed.collect();
        (Model::new(prior, &observed, noise), noise)
    }

    fn predicted(&self, point: &SearchPoint, of: fn(&Prediction) -> &Estimate) -> Predicted {
        Predicted {
            place: self.place(point),
            value: of(&self.predicted[point]).value,
        }
    }

    fn learnt(&self) -> Learnt {
        let memory = |run: &LiveRun| run.resident_mean_bytes;
        let time = |run: &LiveRun| run.seconds_of_work;
        Learnt {
            memory: self.model(SAVED, |p| &p.saved_share, saved_share, memory),
            time: self.model(SLOWDOWN, |p| &p.slowdown, slowdown, time),
            without: self.mean_of_bases(memory),
        }
    }

    /// Returns the saved memory and the slowdown of a setting, live, on average over runs.
    fn expected(&self, learnt: &Learnt, point: &SearchPoint) -> (Normal, Normal) {
        let saved = self.predicted(point, |p| &p.saved_share);
        let slowdown = self.predicted(point, |p| &p.slowdown);
        let (memory, time) = (&learnt.memory.0, &learnt.time.0);
        (memory.correct(&saved), time.correct(&slowdown))
    }

    /// Returns the measured CPU rate of acting as a multiple of the predicted rate; `None` if no time is predicted.
    fn acting_factor(&self) -> Option<f64> {
        let sums = self.pairs().fold((0.0, 0.0), |sums, (point, run, _)| {
            let predicted = &self.predicted[point];
            let rate = predicted.acting_cpu_seconds.value / predicted.seconds.max(1e-9);
            let live = run.acting_cpu_seconds.unwrap_or(0.0) / run.seconds.max(1e-9);
            (sums.0 + live, sums.1 + rate)
        });
        (sums.1 > 0.0).then(|| sums.0 / sums.1)
    }

    /// Returns the predictions of all settings, corrected by the runs.
    fn corrected(&self) -> BTreeMap<SearchPoint, Prediction> {
        if self.pairs().next().is_none() {
            return self.predicted.clone();
        }
        let learnt = self.learnt();
        let acting = self.acting_factor().unwrap_or(1.0);
        let corrected = self.predicted.iter().map(|(point, prediction)| {
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

    /// Returns the probability that a setting is within the limit, and its expected gain over `loss` there.
    fn promise(&self, learnt: &Learnt, point: &SearchPoint, loss: f64) -> (f64, f64) {
        let (saved, slowdown) = self.expected(learnt, point);
        let predicted = &self.predicted[point];
        let draws = QUANTILES
            .iter()
            .flat_map(|a| QUANTILES.iter().map(move |b| (a, b)));
        let ranks = draws.map(|(a, b)| {
            let drawn = |of: &Normal, by: f64| of.mean + by * of.deviation;
            let (saved, slowdown) = (drawn(&saved, *a), drawn(&slowdown, *b));
            let drawn = with(predicted, learnt.without, saved, slowdown);
            self.objective.rank(&drawn)
        });
        let within = ranks.filter(|rank| rank.violation <= 0.0);
        let (nr, gain) = within.fold((0.0, 0.0), |(nr, gain), rank| {
            (nr + 1.0, gain + (loss - rank.loss).max(0.0))
        });
        let of = (QUANTILES.len() * QUANTILES.len()) as f64;
        (nr / of, gain / of)
    }

    fn reported(&self, end: LiveEnd) -> Live {
        let learnt = self.learnt();
        let compared = self.pairs().filter(|(_, _, bases)| !bases.is_empty());
        let compared = compared.map(|(point, run, bases)| Compared {
            settings: self.search.space().settings(point),
            saved_share: rounded(saved_share(run, &bases)),
            slowdown: rounded(slowdown(run, &bases)),
            predicted_saved_share: self.predicted[point].saved_share,
            predicted_slowdown: self.predicted[point].slowdown,
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

fn saved_share(run: &LiveRun, bases: &[&LiveRun]) -> f64 {
    1.0 - run.resident_mean_bytes / mean(bases, |run| run.resident_mean_bytes).max(1.0)
}

fn slowdown(run: &LiveRun, bases: &[&LiveRun]) -> f64 {
    run.seconds_of_work / mean(bases, |run| run.seconds_of_work).max(1e-300) - 1.0
}

fn mean(runs: &[&LiveRun], of: fn(&LiveRun) -> f64) -> f64 {
    runs.iter().map(|run| of(run)).sum::<f64>() / runs.len().max(1) as f64
}

/// Returns a prediction with this saved memory and slowdown in place of its own.
fn with(predicted: &Prediction, without: f64, saved: f64, slowdown: f64) -> Prediction {
    let saved = saved.min(1.0);
    Prediction {
        resident_mean_bytes: rounded(without * (1.0 - saved)),
        saved_mean_bytes: rounded(without * saved),
        saved_share: Estimate::new(saved),
        // Live runs measure the mean alone.
        steady_share: None,
        needed_ns: None,
        slowdown: Estimate::new(slowdown),
        ..predicted.clone()
    }
}

fn bounded(of: Normal, most: f64) -> Estimate {
    let off = BOUNDS * of.deviation;
    let value = Estimate::new(of.mean.min(most));
    value.within(of.mean - off, (of.mean + off).min(most))
}

#[cfg(test)]
mod tests;
