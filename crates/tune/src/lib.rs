//! Tuning: finds the numbers of schemes that suit a program best, from one recording of it.
//!
//! **Problem.** The best minimum age for paging memory out, or the best density for making it huge, differs between
//! programs. DAMOOS finds it by 9 to 58 live runs of the program.
//!
//! **Approach.** A trace (`record --pages`) is replayed on the simulated machine under one setting after the other. A
//! [`Space`] holds the settings, an [`Objective`] ranks them, and a [`Search`] chooses the next to try. The predictor
//! of a setting's results is behind a trait ([`Evaluate`]): replays here ([`Replays`]). The result is the whole
//! trade-off between memory and time, and one setting of it within the limit ([`Tuned`]).
//!
//! **Limits.** Predictions are the simulated machine's (docs/concepts/simulator.md), of one stretch of the program's
//! life. They leave out what a trace does not show: the gain of huge pages, and accesses between two scans.
//!
//! Sources: DAMOOS (Park and others; its repository, 2021) for the score; docs/how-to/tune.md for what was measured.

mod baseline;
mod bounds;
mod depth;
pub mod fnv;
mod front;
mod journal;
pub mod json_lines;
mod live;
mod objective;
mod output;
mod param;
mod plan;
mod predict;
mod replay;
mod request;
mod result;
mod search;
mod space;

use output::{format, page};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

pub use baseline::PublishedMethod;
use baseline::run_method;
pub use bounds::NR_REPLAYS_BOUNDED;
pub use depth::SETTINGS;
pub use front::front;
pub use journal::{Fingerprint, Journal, JournalError};
pub use live::{Compared, Live, LiveEnd, LiveEvent, LiveRun, LiveRuns, run_live};
pub use objective::{
    MemoryLimit, Objective, Prices, Rank, SLOWDOWN_MAX_PERCENT, damoos_points, damoos_score,
};
pub use page::page;
pub use param::{Knob, ParamError, Parameter, TraceTimes, Value};
pub use plan::TuningPlan;
pub use predict::{Estimate, Prediction};
pub use replay::{EachSecond, Evaluate, PlannedReplays, Replays, trace_facts};
pub use request::{Confirm, Effort, METHODS, OBJECTIVES, Seeks, TuneRequest, Tuning};
pub use result::{Coarse, Found, Subject, Trial, Tried, Tuned};
pub use search::Search;
pub use space::{SearchPoint, Setting, Settings, Space, SpaceError};

/// The end of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchCompletion {
    /// The search has nothing more to try.
    Finished,
    /// The search was asked to stop.
    Stopped,
}

/// Progress of a search.
#[derive(Debug)]
pub enum SearchEvent<'a> {
    /// A part of the search begins.
    Begins(Stage),
    /// A point was evaluated, or its prediction was known; the number of points done so far.
    Evaluated(usize),
    /// A new best setting, in words.
    Leads(String),
    /// All points were evaluated; bounds of the best follow.
    Settles,
    /// The journal can no longer be written; the search goes on without it.
    JournalFailed(&'a JournalError),
}

/// A part of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// One block in this many is replayed; 1: all blocks.
    pub one_in: u32,
    /// Maximum number of points that it evaluates.
    pub nr_most: usize,
    /// Predicted seconds of this part and all later parts, from the time of a replay without schemes.
    pub expected_s: f64,
}

/// Adds bounds to the prediction of the setting that is recommended. With its bounds this setting may be beyond the
/// limit. Then lower ranks are tried, by steps twice as long each time, until one is within. The highest setting within
/// the limit is searched between the two (Bentley and Yao, *An almost optimal algorithm for unbounded searching*,
/// 1976). The search relies on bounds that mostly get narrower the less a scheme does. Settings that even the narrowest
/// bounds leave beyond the limit are skipped, unless there are no others. Fails if a setting cannot be simulated.
pub fn settle(
    search: &mut Search,
    replays: &PlannedReplays<'_>,
) -> anyhow::Result<SearchCompletion> {
    let mut ranked = search.ranked();
    if ranked.iter().any(|point| !search.is_surely_beyond(point)) {
        ranked.retain(|point| !search.is_surely_beyond(point));
    }
    // The range of ranks that may be within the limit, up to the first that is known to be within.
    let (mut first, mut within, mut step) = (0, ranked.len(), 1);
    while first < within {
        let at = if within < ranked.len() {
            usize::midpoint(first, within - 1)
        } else {
            step *= 2;
            (first + step / 2 - 1).min(ranked.len() - 1)
        };
        let point = &ranked[at];
        if !search.observed()[point].slowdown.has_bounds() {
            let spec = replays.plan.session(&search.space().settings(point))?;
            let prediction = search.observed()[point].clone();
            match replays.replays.with_bounds(&spec, prediction)? {
                Some(prediction) => search.observe(point.clone(), prediction),
                None => return Ok(SearchCompletion::Stopped),
            }
        }
        if search.is_within(point) {
            within = at;
        } else {
            first = at + 1;
        }
    }
    Ok(SearchCompletion::Finished)
}

/// Searches until there is nothing more to try, or `stop` is set. `jobs` evaluations run at a time; their number does
/// not change the result. Fails if a point cannot be evaluated.
pub fn run(
    search: &mut Search,
    evaluate: &dyn Evaluate,
    mut journal: Option<&mut Journal>,
    jobs: usize,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(SearchEvent<'_>),
) -> anyhow::Result<SearchCompletion> {
    loop {
        let batch = search.suggest();
        if batch.is_empty() {
            return Ok(SearchCompletion::Finished);
        }
        let completion = try_all(search, batch, evaluate, &mut journal, jobs, stop, on_event)?;
        if completion == SearchCompletion::Stopped {
            return Ok(completion);
        }
        if let Some(lead) = search.lead() {
            on_event(SearchEvent::Leads(lead));
        }
    }
}

/// Lets `search` observe the predictions of `points`: those of the journal, or new ones, which the journal then keeps.
fn try_all(
    search: &mut Search,
    points: Vec<SearchPoint>,
    evaluate: &dyn Evaluate,
    journal: &mut Option<&mut Journal>,
    jobs: usize,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(SearchEvent<'_>),
) -> anyhow::Result<SearchCompletion> {
    let mut wanted = Vec::new();
    for point in points {
        let settings = search.space().settings(&point);
        let known = journal
            .as_deref()
            .and_then(|journal| journal.get(&settings));
        match known.cloned() {
            Some(prediction) => {
                search.observe(point, prediction);
                on_event(SearchEvent::Evaluated(search.observed().len()));
            }
            None => wanted.push((point, settings)),
        }
    }
    let mut take = |at: usize, prediction: Prediction| {
        let (point, settings): &(SearchPoint, Settings) = &wanted[at];
        let noted = journal
            .as_deref_mut()
            .map(|j| j.note(settings, &prediction));
        if let Some(Err(error)) = noted {
            on_event(SearchEvent::JournalFailed(&error));
        }
        search.observe(point.clone(), prediction);
        on_event(SearchEvent::Evaluated(search.observed().len()));
    };
    let settings: Vec<&Settings> = wanted.iter().map(|(_, settings)| settings).collect();
    evaluate_all(&settings, evaluate, jobs, stop, &mut take)
}

/// Tries the points of a published method, one after the other, and lets `search` observe them, so that results are
/// reported in the same way. It ends when the method is done, or an evaluation was stopped. Fails if a point cannot be
/// evaluated.
pub fn run_published(
    (method, seed): (PublishedMethod, u64),
    search: &mut Search,
    evaluate: &dyn Evaluate,
    mut journal: Option<&mut Journal>,
    start: SearchPoint,
    on_event: &mut dyn FnMut(SearchEvent<'_>),
) -> anyhow::Result<SearchCompletion> {
    let space = search.space().clone();
    // An evaluation that is asked to stop ends without a prediction.
    let never = AtomicBool::new(false);
    let mut run = |point: &SearchPoint| -> anyhow::Result<Option<Prediction>> {
        if !search.observed().contains_key(point) {
            let points = vec![point.clone()];
            try_all(search, points, evaluate, &mut journal, 1, &never, on_event)?;
        }
        Ok(search.observed().get(point).cloned())
    };
    let is_done = run_method(method, &space, start, seed, &mut run)?;
    Ok(if is_done {
        SearchCompletion::Finished
    } else {
        SearchCompletion::Stopped
    })
}

/// Evaluates all of `settings`, and passes each prediction to `take` as soon as it is there.
fn evaluate_all(
    settings: &[&Settings],
    evaluate: &dyn Evaluate,
    jobs: usize,
    stop: &AtomicBool,
    take: &mut dyn FnMut(usize, Prediction),
) -> anyhow::Result<SearchCompletion> {
    let next = AtomicUsize::new(0);
    let has_failed = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    let work = |send: mpsc::Sender<_>| {
        while !stop.load(Ordering::Relaxed) && !has_failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(settings) = settings.get(at) else {
                break;
            };
            let result = evaluate.evaluate(settings);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            // The receiver outlives this thread.
            let _ = send.send((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, settings.len().max(1)) {
            let (send, work) = (send.clone(), &work);
            scope.spawn(move || work(send));
        }
        drop(send);
        let mut nr_done = 0;
        let mut failed = Ok(());
        for (at, result) in receive {
            match result {
                Ok(Some(prediction)) => {
                    take(at, prediction);
                    nr_done += 1;
                }
                Ok(None) => {}
                Err(error) => {
                    let error = error.context(format!("cannot replay with {}", settings[at]));
                    failed = failed.and(Err(error));
                }
            }
        }
        failed?;
        Ok(if nr_done == settings.len() {
            SearchCompletion::Finished
        } else {
            SearchCompletion::Stopped
        })
    })
}

#[cfg(test)]
mod tests;
