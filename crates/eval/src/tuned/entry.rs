//! Results of tuning a workload, as the journal keeps them.

use isotherm_tune::Estimate;
use serde::{Deserialize, Serialize};

use crate::plan::PlannedRun;

/// Entry of a workload that was recorded and tuned for a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedEntry {
    /// Name of the workload.
    pub workload: String,
    /// Name of the configuration.
    pub configuration: String,
    /// Fingerprint of the runs that it is for: [`PlannedRun::fingerprint`].
    pub fingerprint: String,
    /// Time of the end of the search, in seconds since the Unix epoch.
    pub time_s: u64,
    /// A digest of the trace.
    pub trace: String,
    /// Program that was traced.
    pub program: String,
    /// Share of that program in the workload's resident memory during the recording; a workload may have several
    /// processes.
    pub program_share: f64,
    /// Number of settings that were tried.
    pub nr_tried: u64,
    /// Reason for the recommendation, in the words of `tune`.
    pub why: String,
    /// The best setting; `None`: none is within the limit.
    pub setting: Option<TunedSetting>,
}

/// A setting and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedSetting {
    /// Values of the knobs, for people.
    pub text: String,
    /// The configuration that `run` takes.
    pub schemes: String,
    /// Whether the replays were guarded, as the runs then are.
    pub is_guarded: bool,
    /// Memory saved, a share of what is resident without schemes.
    pub saved_share: Estimate,
    /// Additional running time against the program without Isotherm, as a share of that time.
    pub slowdown: Estimate,
    /// CPU time of acting, seconds.
    pub acting_cpu_seconds: Estimate,
}

/// Fields of `tune --json` that are kept.
#[derive(Deserialize)]
struct TuneJson {
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
    /// Reads the output of `tune --json` for `run`'s workload, whose processes had `rss_kib` of memory during the
    /// recording. `schemes` is the file that it wrote; it wrote none if it recommended nothing. Fails if the output is
    /// no JSON of `tune`.
    pub fn read(
        run: &PlannedRun<'_>,
        json: &str,
        schemes: &str,
        rss_kib: f64,
    ) -> Result<Self, serde_json::Error> {
        let reported: TuneJson = serde_json::from_str(json)?;
        let is_guarded = reported.is_guarded;
        let setting = reported.recommended.map(|trial| {
            let knobs = trial.settings.iter();
            let texts: Vec<String> = knobs
                .map(|knob| format!("{} {}", knob.parameter, knob.text))
                .collect();
            TunedSetting {
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
            program: reported.program,
            program_share: reported.base.resident_mean_bytes / 1024.0 / rss_kib.max(1.0),
            nr_tried: reported.nr_tried,
            why: reported.why,
            setting,
        })
    }

    /// Whether `run` is one of its runs, with the experiment's current settings.
    pub fn is_for(&self, run: &PlannedRun<'_>) -> bool {
        self.workload == run.workload.name
            && self.configuration == run.configuration.name
            && self.fingerprint == run.fingerprint
    }
}
