//! Predicts the effect of a scheme from a trace: the replays of `isotherm simulate`, for callers with the trace in
//! memory. A browser runs them as WebAssembly ([`abi`]): the same crates give the same bytes as their answer.
//!
//! An answer takes a tenth of a second to seconds. A trace can therefore be opened coarsely while a user moves a
//! slider. Then only one block in `one_in` is replayed, on a machine on which each action on a page takes as much
//! longer ([`TraceFacts::one_in`]).

pub mod abi;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use isotherm_config::{ActingRequest, Request, to_yaml};
use isotherm_policy::guard::GuardLimits;
use isotherm_record::Reader;
use isotherm_session::simulated::Replay;
use isotherm_tune::{EachSecond, Prediction, Replays, Settings, TuningPlan, trace_facts};
use serde::{Deserialize, Serialize};

/// A trace that can be queried.
#[derive(Debug)]
pub struct WhatIf {
    replay: Replay,
    replays: Replays,
    one_in: u32,
    targets: String,
    /// Finished simulated seconds of the current replay.
    seconds: Arc<AtomicU64>,
}

/// A query: schemes and a limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Schemes, one line each, as `isotherm run --scheme` takes them.
    pub schemes: Vec<String>,
    /// The guard's limit on the program's slowdown, 0 to 1; without it there is no guard.
    pub max_slowdown: Option<f64>,
}

/// The facts about a trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceFacts {
    /// Name of the program.
    pub program: String,
    /// Length of the trace in seconds.
    pub seconds: f64,
    /// Seconds between scans.
    pub interval_seconds: f64,
    /// Notes for the user, a sentence each.
    pub notes: Vec<String>,
    /// The replayed part: one block in this number; 1 means all.
    pub one_in: u32,
    /// The prediction for the program without schemes.
    pub base: Prediction,
}

/// Ways to run the query's schemes.
#[derive(Clone, Debug, Serialize)]
pub struct RunInstructions {
    /// A file for `isotherm run -c` and damo.
    pub yaml: String,
    /// The command without such a file.
    pub command: String,
}

impl WhatIf {
    /// Reads a record of page scans, and replays it once, or one block in `one_in`. `tell` gets the finished share of
    /// this and each later replay.
    ///
    /// # Errors
    /// Fails if the record cannot be read or replayed.
    pub fn open(
        record: &[u8],
        one_in: u32,
        tell: impl Fn(f64) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let reader = Reader::open(record).context("this is no record")?;
        let header = reader.header().clone();
        let one_in = one_in.max(1);
        let replay = Replay::read(reader, "the record")?;
        let all = trace_facts(&replay)?.0.duration.as_secs_f64();
        let seconds = Arc::new(AtomicU64::new(0));
        let done = Arc::clone(&seconds);
        let each_second = EachSecond::new(move || {
            tell((done.fetch_add(1, Ordering::Relaxed) as f64 / all.max(1.0)).min(1.0));
            true
        });
        Ok(Self {
            targets: header.target_options(&replay.live),
            replays: replays(&replay, one_in, each_second)?,
            replay,
            one_in,
            seconds,
        })
    }

    /// Returns the ways to run the query's schemes.
    ///
    /// # Errors
    /// Fails if a scheme does not parse.
    pub fn configuration(&self, question: &Question) -> anyhow::Result<RunInstructions> {
        let plan = question.plan()?;
        let schemes = question.schemes.iter();
        let mut words: Vec<String> = schemes.map(|line| format!("--scheme '{line}'")).collect();
        // Without a limit of its own, the command has the guard's default. The guard may matter for a service, even if
        // it made no difference here.
        let limit = question.max_slowdown;
        words.extend(limit.map(|share| format!("--max-slowdown {}%", share * 100.0)));
        Ok(RunInstructions {
            yaml: to_yaml(&plan.configuration(&Settings::default())),
            command: format!("isotherm run {} {}", words.join(" "), self.targets),
        })
    }

    /// Returns the facts about the trace.
    ///
    /// # Errors
    /// Fails if the record holds no traced process.
    pub fn facts(&self) -> anyhow::Result<TraceFacts> {
        let (times, _) = trace_facts(&self.replay)?;
        Ok(TraceFacts {
            program: self.replay.program(),
            seconds: times.duration.as_secs_f64(),
            interval_seconds: times.interval.as_secs_f64(),
            notes: self.replay.notes.clone(),
            one_in: self.one_in,
            base: self.replays.base(),
        })
    }

    /// Predicts the effect of the query's schemes.
    ///
    /// # Errors
    /// Fails if a scheme does not parse, or if the replay was stopped.
    pub fn predict(&self, question: &Question) -> anyhow::Result<Prediction> {
        let spec = question.plan()?.session(&Settings::default())?;
        self.seconds.store(0, Ordering::Relaxed);
        self.replays.predicted(&spec)?.context("it was stopped")
    }
}

fn replays(replay: &Replay, one_in: u32, each_second: EachSecond) -> anyhow::Result<Replays> {
    // Any plan for idle pages watches in this way.
    let idle = Question {
        schemes: vec!["4K max 0 0 5s max pageout".to_owned()],
        max_slowdown: None,
    };
    let watching = idle.plan()?.watching()?;
    let replays = if one_in > 1 {
        Replays::coarse(&watching, replay, one_in, each_second)?
    } else {
        Replays::new(&watching, replay.clone(), each_second)?
    };
    replays.context("it was stopped")
}

impl Question {
    fn plan(&self) -> anyhow::Result<TuningPlan> {
        let request = Request {
            acting: ActingRequest {
                scheme_lines: self.schemes.clone(),
                no_guard: self.max_slowdown.is_none(),
                limits: GuardLimits::of_slowdown(self.max_slowdown),
                ..ActingRequest::default()
            },
            ..Request::default()
        };
        Ok(TuningPlan::new(Vec::new(), request, None)?)
    }
}

#[cfg(test)]
mod tests;
