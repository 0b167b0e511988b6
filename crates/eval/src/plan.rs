//! The order of runs: repeat by repeat, workload by workload, and within each all configurations, beginning with
//! another one in each repeat. Any drift (temperature, neighbours, a disk that fills) thus hits all configurations
//! alike, and no configuration always follows the same other.

use isotherm_tune::fnv::{FNV_START, fnv};

use crate::experiment::{Experiment, RunConfiguration, Workload};
use crate::journal::{Entry, RunEntry, RunResult};

/// Repeat number of a tuning run: the workload is recorded without schemes and tuned, and nothing is measured.
pub const TUNING: u32 = 0;
/// Expected duration of a search, as a multiple of a run's. It is that of a workload of half a gibibyte and 16 s, with
/// all of 143 to 256 settings, on two CPUs.
const SEARCH_RUNS: f64 = 1.0;

/// One run to make.
#[derive(Clone, Debug)]
pub struct PlannedRun<'a> {
    /// Workload to run.
    pub workload: &'a Workload,
    /// Configuration of the run.
    pub configuration: &'a RunConfiguration,
    /// Number of the repeat, from 1; or [`TUNING`].
    pub repeat: u32,
    /// Digest of everything that could change the result: another fingerprint means another run.
    pub fingerprint: String,
}

impl PlannedRun<'_> {
    /// Returns the run's name in messages.
    pub fn title(&self) -> String {
        let (workload, configuration) = (&self.workload.name, &self.configuration.name);
        if self.is_tuning() {
            return format!("{workload} {configuration}, recorded and tuned");
        }
        format!("{workload} {configuration} #{}", self.repeat)
    }

    /// Whether the workload is recorded and tuned in this run, and not measured.
    pub fn is_tuning(&self) -> bool {
        self.repeat == TUNING
    }

    /// Whether `entry` is this run, made with these settings.
    pub fn is_run(&self, entry: &RunEntry) -> bool {
        self.has_name_of(entry) && self.fingerprint == entry.fingerprint
    }

    /// Whether `entry` is this run by name, but was made with other settings.
    pub fn differs_from(&self, entry: &RunEntry) -> bool {
        self.has_name_of(entry) && self.fingerprint != entry.fingerprint
    }

    /// Whether it has been measured, or tuned, already.
    pub fn is_finished(&self, entries: &[Entry]) -> bool {
        entries.iter().any(|entry| match entry {
            Entry::Run(run) => {
                !self.is_tuning()
                    && self.is_run(run)
                    && matches!(run.outcome, RunResult::Measured(_))
            }
            Entry::Tuned(tuned) => self.is_tuning() && tuned.is_for(self),
            Entry::Machine(_) => false,
        })
    }

    /// Returns the run's entry in the journal.
    pub fn entry(
        &self,
        time_s: u64,
        outcome: RunResult,
        monitor: Option<serde_json::Value>,
    ) -> RunEntry {
        RunEntry {
            workload: self.workload.name.clone(),
            configuration: self.configuration.name.clone(),
            repeat: self.repeat,
            fingerprint: self.fingerprint.clone(),
            time_s,
            outcome,
            monitor,
        }
    }

    fn has_name_of(&self, entry: &RunEntry) -> bool {
        self.workload.name == entry.workload
            && self.configuration.name == entry.configuration
            && self.repeat == entry.repeat
    }
}

/// Returns the runs of `experiment`, in order.
pub fn plan(experiment: &Experiment) -> Vec<PlannedRun<'_>> {
    let nr = experiment.configurations.len();
    let mut runs = Vec::new();
    for repeat in 1..=experiment.repeats {
        for (index, workload) in experiment.workloads.iter().enumerate() {
            for step in 0..nr {
                let turn = (step + index + repeat as usize - 1) % nr;
                let configuration = &experiment.configurations[turn];
                runs.push(PlannedRun {
                    workload,
                    configuration,
                    repeat,
                    fingerprint: fingerprint(experiment, workload, configuration),
                });
            }
        }
    }
    runs
}

/// Inserts a [`TUNING`] run before the first run of each workload under a configuration that is tuned.
pub fn with_tuning(runs: Vec<PlannedRun<'_>>) -> Vec<PlannedRun<'_>> {
    let mut all: Vec<PlannedRun<'_>> = Vec::with_capacity(runs.len());
    for run in runs {
        let is_same = |other: &PlannedRun<'_>| {
            (&other.workload.name, &other.configuration.name)
                == (&run.workload.name, &run.configuration.name)
        };
        if run.configuration.tune.is_some() && !all.iter().any(is_same) {
            all.push(PlannedRun {
                repeat: TUNING,
                ..run.clone()
            });
        }
        all.push(run);
    }
    all
}

/// Returns the seconds that `runs` take in all; `None` if the duration of a workload is not known.
pub fn estimate_s(experiment: &Experiment, runs: &[PlannedRun<'_>]) -> Option<f64> {
    let one = |run: &PlannedRun<'_>| {
        let runs = if run.is_tuning() {
            1.0 + SEARCH_RUNS
        } else {
            1.0
        };
        Some(run.workload.expected_s? * runs + experiment.cool_down_s as f64)
    };
    runs.iter().map(one).sum()
}

/// Returns a digest of the run's settings. It protects against oversight, not against an adversary.
pub(crate) fn fingerprint(
    experiment: &Experiment,
    workload: &Workload,
    configuration: &RunConfiguration,
) -> String {
    let settings = (&experiment.zram, experiment.drop_caches);
    let mut text = serde_json::to_string(&(settings, workload, configuration))
        .expect("strings and flags are always JSON");
    for (name, value) in &experiment.parameters {
        text += &[" ", name, "=", value].concat();
    }
    let hash = fnv(FNV_START, text.as_bytes());
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"a\"\nrepeats = 2\n[[workload]]\nname = \"w\"\nrun = \"1\"\n\
        [[workload]]\nname = \"v\"\nrun = \"2\"\n[[configuration]]\nname = \"orig\"\n\
        [[configuration]]\nname = \"thp\"\nthp = \"always\"\n";

    /// Returns workload, configuration and repeat of each run.
    fn order(runs: &[PlannedRun<'_>]) -> String {
        let place = |run: &PlannedRun<'_>| {
            let (workload, configuration) = (&run.workload.name, &run.configuration.name);
            format!("{workload}{configuration}{}", run.repeat)
        };
        let places: Vec<String> = runs.iter().map(place).collect();
        places.join(" ")
    }

    #[test]
    fn configurations_take_turns_at_being_first() {
        let experiment = Experiment::parse(TEXT).expect("it is right");
        let expected = "worig1 wthp1 vthp1 vorig1 wthp2 worig2 vorig2 vthp2";
        assert_eq!(order(&plan(&experiment)), expected);
    }

    #[test]
    fn a_workload_is_tuned_once_before_its_first_run() {
        let text = TEXT.replace(
            "name = \"thp\"\n",
            "name = \"t\"\n[configuration.tune]\npreset=\"prcl\"\n",
        );
        let text = text.replace("thp = \"always\"\n", "");
        let experiment = Experiment::parse(&text).expect("it is right");
        let runs = with_tuning(plan(&experiment));
        let expected = "worig1 wt0 wt1 vt0 vt1 vorig1 wt2 worig2 vorig2 vt2";
        assert_eq!(order(&runs), expected);
        assert_eq!(runs[1].fingerprint, runs[2].fingerprint);
        let seeded = text.replace("preset", "seed=2\npreset");
        let seeded = Experiment::parse(&seeded).expect("it is right");
        assert_ne!(runs[1].fingerprint, plan(&seeded)[1].fingerprint);
        let reported = text.replace("run = ", "expected_s = 10\nrun = ");
        let experiment = Experiment::parse(&reported).expect("it is right");
        let seconds = estimate_s(&experiment, &with_tuning(plan(&experiment)));
        assert_eq!(seconds, Some(8.0 * 10.0 + 2.0 * 20.0));
    }

    #[test]
    fn an_estimate_is_the_sum_of_what_workloads_say() {
        let estimate = |text: &str| {
            let experiment = Experiment::parse(text).expect("it is right");
            estimate_s(&experiment, &plan(&experiment))
        };
        assert_eq!(estimate(TEXT), None);
        let reported = TEXT.replace("run = ", "expected_s = 10\nrun = ");
        let reported = reported.replace("repeats = 2", "repeats = 2\ncool_down_s = 1");
        assert_eq!(estimate(&reported), Some(8.0 * 11.0));
    }

    #[test]
    fn only_what_could_change_a_result_changes_its_fingerprint() {
        let prints = |text: &str| -> Vec<String> {
            let experiment = Experiment::parse(text).expect("it is right");
            let runs = plan(&experiment).into_iter();
            runs.map(|run| run.fingerprint).collect()
        };
        let before = prints(TEXT);
        let one = prints(&TEXT.replace("repeats = 2", "repeats = 1"));
        assert_eq!(before[..4], one[..]);
        let after = prints(&TEXT.replace("run = \"1\"", "run = \"3\""));
        assert_ne!(before[0], after[0]);
        assert_eq!(before[2], after[2]);
        assert_ne!(before, prints(&format!("zram = \"1G\"\n{TEXT}")));
    }
}
