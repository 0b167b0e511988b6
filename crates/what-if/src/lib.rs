//! What would come of a scheme, asked of a trace: the replays of `isotherm simulate`, for whoever has the trace in
//! memory. A browser has them as WebAssembly ([`abi`]); the same crates, with the same bytes as their answer.
//!
//! An answer takes a tenth of a second to seconds. So a trace can be opened coarsely, for while somebody moves a slider:
//! one block in so many is replayed, on a machine on which what is done to a page takes as much longer
//! ([`Facts::one_in`]). Of traces of redis, a JVM, DuckDB and a program of 4 GiB one block in 16 comes within 8 points of
//! the memory that all save, and within a sixth of the slowdown.

pub mod abi;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use isotherm_config::{ActingRequest, Request, to_yaml};
use isotherm_engine::guard::GuardLimits;
use isotherm_eval::tune::{Plan, Prediction, Replays, Settings, trace_facts};
use isotherm_record::Reader;
use isotherm_session::simulated::Replay;
use serde::{Deserialize, Serialize};

/// A trace that can be asked.
#[derive(Debug)]
pub struct WhatIf {
    replay: Replay,
    replays: Replays,
    one_in: u32,
    /// The memory of the whole, in those of what is replayed.
    times: f64,
    /// Options that name the trace's targets.
    targets: String,
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
    /// One block in so many is replayed; 1: all.
    pub one_in: u32,
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
    /// Reads a record of page scans, or one block in so many of it, and replays it once.
    ///
    /// # Errors
    /// What cannot be read, or replayed.
    pub fn open(record: &[u8], one_in: u32) -> anyhow::Result<Self> {
        let reader = Reader::open(record).context("this is no record")?;
        let header = reader.header().clone();
        let one_in = one_in.max(1);
        let (replay, times) = if one_in > 1 {
            Replay::read_one_in(reader, "the record", one_in)?
        } else {
            (Replay::read(reader, "the record")?, 1.0)
        };
        let replays = replays(&replay)?;
        Ok(Self {
            targets: header.target_options(&replay.live),
            replay,
            replays,
            one_in,
            times,
        })
    }

    /// How to do what was asked.
    ///
    /// # Errors
    /// A scheme that is none.
    pub fn configuration(&self, question: &Question) -> anyhow::Result<Configuration> {
        let plan = question.plan()?;
        let schemes = question.schemes.iter();
        let mut words: Vec<String> = schemes.map(|line| format!("--scheme '{line}'")).collect();
        // Without a limit of its own, the command has the guard's default: what no guard cost here, it may cost a service.
        let limit = question.max_slowdown;
        words.extend(limit.map(|share| format!("--max-slowdown {}%", share * 100.0)));
        Ok(Configuration {
            yaml: to_yaml(&plan.configuration(&Settings::default())),
            command: format!("isotherm run {} {}", words.join(" "), self.targets),
        })
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
            one_in: self.one_in,
            base: self.whole(self.replays.base()),
        })
    }

    /// What would come of it.
    ///
    /// # Errors
    /// A scheme that is none.
    pub fn foretell(&self, question: &Question) -> anyhow::Result<Prediction> {
        let mut spec = question.plan()?.session(&Settings::default())?;
        for context in &mut spec.contexts {
            for scheme in context.acting.iter_mut().flat_map(|a| &mut a.schemes) {
                // 0 is no limit.
                let bytes = scheme.quota.bytes;
                scheme.quota.bytes = (bytes / u64::from(self.one_in)).max(bytes.min(1));
            }
        }
        let found = self.replays.predicted(&spec)?.context("it was stopped")?;
        Ok(self.whole(found))
    }

    /// What was found of one block in so many, as of all.
    fn whole(&self, mut of: Prediction) -> Prediction {
        for bytes in [
            &mut of.resident_mean_bytes,
            &mut of.saved_mean_bytes,
            &mut of.swapped_mean_bytes,
            &mut of.pool_mean_bytes,
            &mut of.far_mean_bytes,
            &mut of.huge_mean_bytes,
        ] {
            *bytes *= self.times;
        }
        for number in of.resident_bytes.iter_mut().chain([&mut of.refaults]) {
            *number = (*number as f64 * self.times) as u64;
        }
        of
    }
}

fn replays(replay: &Replay) -> anyhow::Result<Replays> {
    // As any plan for pages that are idle does.
    let idle = Question {
        schemes: vec!["4K max 0 0 5s max pageout".to_owned()],
        max_slowdown: None,
    };
    let watching = idle.plan()?.watching()?;
    let stop = Arc::new(AtomicBool::new(false));
    Replays::new(&watching, replay.clone(), stop)?.context("it was stopped")
}

impl Question {
    fn plan(&self) -> anyhow::Result<Plan> {
        let request = Request {
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
        };
        Ok(Plan::new(Vec::new(), request, None)?)
    }
}

#[cfg(test)]
mod tests;
