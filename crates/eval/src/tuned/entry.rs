//! What tuning found for a workload, as the journal keeps it.

use serde::{Deserialize, Serialize};

use crate::plan::PlannedRun;
use crate::tune::Estimate;

/// A workload was recorded and tuned for a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedEntry {
    /// Its workload's name.
    pub workload: String,
    /// Its configuration's name.
    pub configuration: String,
    /// Of the runs that it is for: [`PlannedRun::fingerprint`].
    pub fingerprint: String,
    /// When the search ended, in seconds since the Unix epoch.
    pub time_s: u64,
    /// A digest of the trace.
    pub trace: String,
    /// The program of which the trace is.
    pub program: String,
    /// How much of the workload's resident memory, which may be that of several processes, that program had while it
    /// was recorded.
    pub program_share: f64,
    /// Settings that were tried.
    pub nr_tried: u64,
    /// Why this is recommended, in the words of `tune`.
    pub why: String,
    /// The best setting; `None`: none is within the limit.
    pub setting: Option<Setting>,
}

/// A setting, and what is foretold of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// What the knobs are set to, for people.
    pub text: String,
    /// The configuration that `run` takes.
    pub schemes: String,
    /// Whether the replays were guarded, as the runs then are.
    pub is_guarded: bool,
    /// Saved, a share of what is resident without schemes.
    pub saved_share: Estimate,
    /// How much longer the program takes, a share of that time.
    pub slowdown: Estimate,
    /// CPU time of acting.
    pub acting_cpu_seconds: Estimate,
}

/// What of `tune --json` is kept.
#[derive(Deserialize)]
struct Told {
    program: String,
    is_guarded: bool,
    nr_tried: u64,
    why: String,
    base: Base,
    recommended: Option<Trial>,
}

#[derive(Deserialize)]
struct Base {
    resident_mean_bytes: f64,
}

#[derive(Deserialize)]
struct Trial {
    settings: Vec<Knob>,
    prediction: Prediction,
}

#[derive(Deserialize)]
struct Knob {
    parameter: String,
    text: String,
}

#[derive(Deserialize)]
struct Prediction {
    saved_share: Estimate,
    slowdown: Estimate,
    acting_cpu_seconds: Estimate,
}

impl TunedEntry {
    /// What `tune --json` printed of `run`'s workload, whose processes had `rss_kib` of memory while they were recorded.
    /// `schemes` is the file that it wrote; where it recommends nothing it wrote none.
    ///
    /// # Errors
    /// What it printed is no JSON of that kind.
    pub fn read(
        run: &PlannedRun<'_>,
        json: &str,
        schemes: &str,
        rss_kib: f64,
    ) -> Result<Self, serde_json::Error> {
        let told: Told = serde_json::from_str(json)?;
        let is_guarded = told.is_guarded;
        let setting = told.recommended.map(|trial| {
            let knobs = trial.settings.iter();
            let texts: Vec<String> = knobs
                .map(|knob| format!("{} {}", knob.parameter, knob.text))
                .collect();
            Setting {
                text: texts.join(", "),
                schemes: schemes.to_owned(),
                is_guarded,
                saved_share: trial.prediction.saved_share,
                slowdown: trial.prediction.slowdown,
                acting_cpu_seconds: trial.prediction.acting_cpu_seconds,
            }
        });
        Ok(Self {
            workload: run.workload.name.clone(),
            configuration: run.configuration.name.clone(),
            fingerprint: run.fingerprint.clone(),
            time_s: 0,
            trace: String::new(),
            program: told.program,
            program_share: told.base.resident_mean_bytes / 1024.0 / rss_kib.max(1.0),
            nr_tried: told.nr_tried,
            why: told.why,
            setting,
        })
    }

    /// Whether `run` is one that it is for, with the settings that the experiment has now.
    pub fn is_for(&self, run: &PlannedRun<'_>) -> bool {
        self.workload == run.workload.name
            && self.configuration == run.configuration.name
            && self.fingerprint == run.fingerprint
    }
}
