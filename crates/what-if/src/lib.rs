//! What would come of a scheme, asked of a trace: the replays of `isotherm simulate`, for whoever has the trace in
//! memory. A browser has them as WebAssembly ([`abi`]); the same crates, with the same bytes as their answer.
//!
//! A replay of a large trace takes seconds. So there is a coarse one as well, of one block in some, for while somebody
//! moves a slider: it is told with every answer whether it is exact.

pub mod abi;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use isotherm_config::{ActingRequest, Request, SessionSpec, TargetSpec, to_yaml};
use isotherm_engine::guard::GuardLimits;
use isotherm_eval::tune::{Plan, Prediction, Replays, Settings, trace_facts};
use isotherm_record::Reader;
use isotherm_session::simulated::Replay;
use serde::{Deserialize, Serialize};

/// A trace that can be asked.
#[derive(Debug)]
pub struct WhatIf {
    replay: Replay,
    exact: Replays,
}

/// What is asked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Schemes, in a line each, as `isotherm run --scheme` takes them.
    pub schemes: Vec<String>,
    /// What the guard lets the program lose, 0 to 1; no guard stands over it without.
    pub max_slowdown: Option<f64>,
}

/// What a trace is of.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The program.
    pub program: String,
    /// How long it was traced.
    pub seconds: f64,
    /// Seconds between scans.
    pub interval_seconds: f64,
    /// What the user should know, a sentence each.
    pub notes: Vec<String>,
    /// The program without schemes.
    pub base: Prediction,
}

/// How to do what was asked.
#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    /// A file for `isotherm run -c` and damo.
    pub yaml: String,
    /// The command without such a file.
    pub command: String,
}

impl WhatIf {
    /// Reads a record of page scans, and replays it once.
    ///
    /// # Errors
    /// What cannot be read, or replayed.
    pub fn open(record: &[u8]) -> anyhow::Result<Self> {
        let reader = Reader::open(record).context("this is no record")?;
        let replay = Replay::read(reader, "the record")?;
        let exact = replays(&replay)?;
        Ok(Self { replay, exact })
    }

    /// What it is of.
    ///
    /// # Errors
    /// That it is of nothing.
    pub fn facts(&self) -> anyhow::Result<Facts> {
        let (times, _) = trace_facts(&self.replay)?;
        Ok(Facts {
            program: self.replay.program(),
            seconds: times.duration.as_secs_f64(),
            interval_seconds: times.interval.as_secs_f64(),
            notes: self.replay.notes.clone(),
            base: self.exact.base(),
        })
    }

    /// What would come of it.
    ///
    /// # Errors
    /// A scheme that is none.
    pub fn foretell(&self, question: &Question) -> anyhow::Result<Prediction> {
        let spec = question.session()?;
        self.exact.predicted(&spec)?.context("it was stopped")
    }
}

fn replays(replay: &Replay) -> anyhow::Result<Replays> {
    let watching = Request {
        targets: Some(TargetSpec::Simulated),
        ..Request::default()
    };
    let stop = Arc::new(AtomicBool::new(false));
    Replays::new(&watching.watch()?, replay.clone(), stop)?.context("it was stopped")
}

impl Question {
    fn request(&self) -> Request {
        Request {
            acting: ActingRequest {
                scheme_lines: self.schemes.clone(),
                no_guard: self.max_slowdown.is_none(),
                limits: GuardLimits {
                    max_slowdown: self.max_slowdown,
                    ..GuardLimits::default()
                },
                ..ActingRequest::default()
            },
            ..Request::default()
        }
    }

    fn session(&self) -> anyhow::Result<SessionSpec> {
        Ok(self.request().act(&[], Some(TargetSpec::Simulated))?)
    }

    /// How to do it.
    ///
    /// # Errors
    /// A scheme that is none.
    pub fn configuration(&self) -> anyhow::Result<Configuration> {
        let plan = Plan::new(Vec::new(), self.request(), None)?;
        let words: Vec<String> = self
            .schemes
            .iter()
            .map(|scheme| format!("--scheme '{scheme}'"))
            .collect();
        let guard = match self.max_slowdown {
            None => "--no-guard".to_owned(),
            Some(share) => format!("--max-slowdown {}%", share * 100.0),
        };
        Ok(Configuration {
            yaml: to_yaml(&plan.configuration(&Settings::default())),
            command: format!("isotherm run {} {guard} --pid PID", words.join(" ")),
        })
    }
}
