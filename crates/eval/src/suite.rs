//! All runs of an evaluation: values by workload, configuration and metric.

use std::collections::BTreeMap;

use isotherm_engine::statistics::{Interval, ValueSummary};
use isotherm_tune::{SLOWDOWN_MAX_PERCENT, damoos_points};

use crate::experiment::Experiment;
use crate::journal::{Entry, RunEntry, RunMachine, RunMeasurements, RunResult};
use crate::metric::{CPUTIME, METRICS, RSS, RUNTIME};
use crate::plan::{PlannedRun, plan};
use crate::table::{EvaluationTable, WorkloadRow, overhead_percent};
use crate::tuned::{self, Predicted};
use crate::workload_metric::WorkloadMetric;

/// Results of an evaluation.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Name of the experiment.
    pub name: String,
    /// Workloads with at least one measured run, in the experiment's order.
    pub workloads: Vec<String>,
    /// Configurations, in the experiment's order; the first is the base of comparisons.
    pub configurations: Vec<String>,
    /// Workloads that report their throughput: their runtime is for the same work, see [`Suite::cell`].
    pub by_throughput: Vec<String>,
    /// Names of [`Suite::workloads`] in published tables: their own, unless the experiment has another.
    pub published_names: Vec<String>,
    /// Measures that each of [`Suite::workloads`] reports.
    pub measures: Vec<Vec<WorkloadMetric>>,
    /// Settings that tuning found, with their predictions.
    pub predicted: Vec<Predicted>,
    /// Failed runs with no later measured repeat, with the reason.
    pub failed: Vec<RunEntry>,
    /// Workloads and configurations that could not run here, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Machines of the runs, without repetition.
    pub machines: Vec<RunMachine>,
    /// Number of runs planned and not yet measured, without those that were skipped.
    pub nr_missing: usize,
    cells: BTreeMap<(usize, usize), BTreeMap<u32, RunEntry>>,
}

/// Values of a metric over the repeats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Values by repeat.
    pub values: BTreeMap<u32, f64>,
}

/// DAMOOS's score, if it is significant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// Score as DAMOOS computes it.
    Points(f64),
    /// The noise leaves open whether the slowdown is above DAMOOS's limit.
    Noise,
}

/// Overhead of a configuration over the suite, repeat by repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverSuite {
    /// Number of workloads.
    pub nr_workloads: usize,
    /// Mean of the workloads' overheads, in which all have the same weight.
    pub mean: Interval,
    /// Overhead of their total, in which large and long ones weigh more.
    pub total: Interval,
}

impl Cell {
    /// Returns a summary of the values; `None` without values.
    pub fn summary(&self) -> Option<ValueSummary> {
        ValueSummary::of(self.values.values().copied())
    }
}

impl Suite {
    /// Gathers the results of `experiment` from `entries`. Each run's result is the last measurement with the
    /// experiment's current settings. `skipped` names workloads and configurations (`w`, `c`) that could not run.
    pub fn gather(
        experiment: &Experiment,
        entries: &[Entry],
        skipped: Vec<(String, String)>,
    ) -> Self {
        let planned = plan(experiment);
        let (machines, latest) = read(entries, &planned);
        let has_values = |fits: &dyn Fn(&RunEntry) -> bool| {
            let mut runs = latest.values();
            runs.any(|run| fits(run) && measured(run).is_some())
        };
        let names = experiment.workloads.iter().map(|w| w.name.clone());
        let workloads: Vec<String> = names
            .filter(|name| has_values(&|run| run.workload == *name))
            .collect();
        let names = experiment.configurations.iter().map(|c| c.name.clone());
        // The first stays in any case, as the base of comparisons.
        let configurations: Vec<String> = names
            .enumerate()
            .filter(|(index, name)| *index == 0 || has_values(&|run| run.configuration == *name))
            .map(|(_, name)| name)
            .collect();
        let place = |names: &[String], name: &str| names.iter().position(|n| n == name);
        let mut cells: BTreeMap<_, BTreeMap<u32, RunEntry>> = BTreeMap::new();
        let mut failed = Vec::new();
        for run in latest.into_values() {
            let workload = place(&workloads, &run.workload);
            let places = workload.zip(place(&configurations, &run.configuration));
            match (places, measured(run)) {
                (Some(key), Some(_)) => {
                    let runs = cells.entry(key).or_default();
                    runs.insert(run.repeat, run.clone());
                }
                _ => failed.push(run.clone()),
            }
        }
        let is_skipped = |name: &str| skipped.iter().any(|(what, _)| what == name);
        let wanted = planned.iter().filter(|planned| {
            !is_skipped(&planned.workload.name) && !is_skipped(&planned.configuration.name)
        });
        let done: usize = cells.values().map(BTreeMap::len).sum();
        let predicted = tuned::gather(entries, &planned, &workloads, &configurations);
        let mut suite = Self {
            predicted,
            name: experiment.name.clone(),
            workloads,
            configurations,
            by_throughput: Vec::new(),
            published_names: Vec::new(),
            measures: Vec::new(),
            failed,
            machines,
            nr_missing: wanted.count().saturating_sub(done),
            skipped,
            cells,
        };
        let mut kept = experiment.workloads.iter().collect::<Vec<_>>();
        kept.retain(|workload| suite.workloads.contains(&workload.name));
        for workload in kept {
            let name = workload.published_name().to_owned();
            suite.published_names.push(name);
            let measures = WorkloadMetric::all(&workload.measures, &workload.means);
            suite.measures.push(measures);
        }
        suite.by_throughput = (0..suite.workloads.len())
            .filter(|&workload| suite.reference_work(workload).is_some())
            .map(|workload| suite.workloads[workload].clone())
            .collect();
        suite
    }

    /// Returns the values of a metric. A workload that runs for a fixed time and reports its throughput has a constant
    /// runtime, so its runtime here is computed. It is the time for the work of the first configuration's median run,
    /// at its throughput. Its CPU time is for the same work, too.
    pub fn cell(&self, workload: usize, configuration: usize, metric: usize) -> Cell {
        let Some(runs) = self.cells.get(&(workload, configuration)) else {
            return Cell::default();
        };
        let work = (metric == RUNTIME || metric == CPUTIME)
            .then(|| self.reference_work(workload))
            .flatten();
        let value = |run: &RunEntry| {
            let measured = measured(run)?;
            match work {
                Some(work) => measured.throughput.and_then(|speed| {
                    let seconds = work / speed;
                    let cpus = measured.cpu_s.map(|cpu_s| cpu_s / measured.runtime_s);
                    if metric == CPUTIME {
                        cpus.map(|cpus| cpus * seconds)
                    } else {
                        Some(seconds)
                    }
                }),
                None => (METRICS[metric].of)(measured),
            }
        };
        let values = runs
            .iter()
            .filter_map(|(&repeat, run)| Some((repeat, value(run)?)));
        Cell {
            values: values.filter(|(_, value)| value.is_finite()).collect(),
        }
    }

    /// Returns the overhead of the medians over the first configuration, in percent.
    pub fn overhead(&self, workload: usize, configuration: usize, metric: usize) -> Option<f64> {
        let base = self.cell(workload, 0, metric).summary()?.median;
        let value = self.cell(workload, configuration, metric).summary()?.median;
        overhead_percent(base, value)
    }

    /// Returns the overhead within each repeat, whose runs were made close to each other, in percent.
    pub fn paired_overheads(
        &self,
        workload: usize,
        configuration: usize,
        metric: usize,
    ) -> Option<ValueSummary> {
        ValueSummary::of(self.pairs(workload, configuration, metric).into_values())
    }

    /// Returns the mean of [`Suite::paired_overheads`], and its interval.
    pub fn interval(
        &self,
        workload: usize,
        configuration: usize,
        metric: usize,
    ) -> Option<Interval> {
        Interval::of(self.pairs(workload, configuration, metric).into_values())
    }

    fn pairs(&self, workload: usize, configuration: usize, metric: usize) -> BTreeMap<u32, f64> {
        let base = self.cell(workload, 0, metric);
        let values = self.cell(workload, configuration, metric);
        paired(&base, &values)
    }

    /// Returns the values of a measure that the workload reports.
    pub fn measure_cell(
        &self,
        workload: usize,
        configuration: usize,
        metric: &WorkloadMetric,
    ) -> Cell {
        let runs = self.cells.get(&(workload, configuration));
        let values = runs
            .into_iter()
            .flatten()
            .filter_map(|(&repeat, run)| Some((repeat, metric.value(measured(run)?)?)));
        Cell {
            values: values.collect(),
        }
    }

    /// Returns the mean overhead of a measure over the first configuration within each repeat, in percent, and its
    /// interval.
    pub fn measure_interval(
        &self,
        workload: usize,
        configuration: usize,
        metric: &WorkloadMetric,
    ) -> Option<Interval> {
        let base = self.measure_cell(workload, 0, metric);
        let values = self.measure_cell(workload, configuration, metric);
        Interval::of(paired(&base, &values).into_values())
    }

    /// Returns the overhead of a configuration over the suite in each repeat, against the first configuration: the mean
    /// of the workloads' overheads, and the overhead of their total, in percent. It covers the workloads that have a
    /// pair at all, and the repeats in which each of them has one.
    pub fn over_suite(&self, configuration: usize, metric: usize) -> Option<OverSuite> {
        let workloads: Vec<usize> = (0..self.workloads.len())
            .filter(|&workload| !self.pairs(workload, configuration, metric).is_empty())
            .collect();
        let of = |workload: &usize| self.pairs(*workload, configuration, metric);
        let pairs: Vec<_> = workloads.iter().map(of).collect();
        let repeats = pairs.first()?.keys().copied();
        let is_in_all = |repeat: &u32| pairs.iter().all(|of| of.contains_key(repeat));
        let repeats: Vec<u32> = repeats.filter(is_in_all).collect();
        let nr = pairs.len() as f64;
        let mean = |repeat: &u32| pairs.iter().map(|of| of[repeat]).sum::<f64>() / nr;
        let sum = |repeat: u32, column: usize| -> Option<f64> {
            let values = workloads.iter().map(|&workload| {
                let cell = self.cell(workload, column, metric);
                cell.values.get(&repeat).copied()
            });
            values.sum()
        };
        let total = |&repeat: &u32| overhead_percent(sum(repeat, 0)?, sum(repeat, configuration)?);
        Some(OverSuite {
            nr_workloads: workloads.len(),
            mean: Interval::of(repeats.iter().map(mean))?,
            total: Interval::of(repeats.iter().filter_map(total))?,
        })
    }

    /// Returns the workload with the worst result of a configuration (adds most, or saves least), and its overhead.
    pub fn worst(&self, configuration: usize, metric: usize) -> Option<(usize, Interval)> {
        let intervals = (0..self.workloads.len()).filter_map(|workload| {
            Some((workload, self.interval(workload, configuration, metric)?))
        });
        intervals.max_by(|a, b| a.1.mean.total_cmp(&b.1.mean))
    }

    /// Returns DAMOOS's score of a configuration.
    pub fn score(&self, workload: usize, configuration: usize) -> Option<Score> {
        let runtime = self.overhead(workload, configuration, RUNTIME)?;
        let rss = self.overhead(workload, configuration, RSS)?;
        let paired = self.interval(workload, configuration, RUNTIME)?;
        let is_unsure = match paired.bounds() {
            Some(_) => paired.may_be(SLOWDOWN_MAX_PERCENT),
            None => runtime > SLOWDOWN_MAX_PERCENT,
        };
        Some(if is_unsure {
            Score::Noise
        } else {
            Score::Points(damoos_points(runtime, rss))
        })
    }

    /// Returns the medians of a metric as a table, in the unit for people.
    pub fn table(&self, metric: usize) -> EvaluationTable {
        let (unit, divisor, _) = METRICS[metric].shown();
        let median = |workload, configuration| {
            let short = self.cell(workload, configuration, metric).summary()?;
            Some(short.median / divisor)
        };
        let rows = self.workloads.iter().enumerate().map(|(workload, name)| {
            let values: Vec<Option<f64>> = (0..self.configurations.len())
                .map(|c| median(workload, c))
                .collect();
            WorkloadRow::of(name, &values)
        });
        EvaluationTable {
            name: METRICS[metric].name.into(),
            unit: unit.into(),
            configurations: self.configurations.clone(),
            sums: METRICS[metric].sums(),
            rows: rows.collect(),
        }
    }

    /// Returns every run that counts, in the order of workloads, configurations and repeats.
    pub fn runs(&self) -> impl Iterator<Item = (&RunEntry, &RunMeasurements)> {
        let runs = self.cells.values().flat_map(BTreeMap::values);
        runs.filter_map(|run| Some((run, measured(run)?)))
    }

    /// Returns the units of work done in the first configuration's median run.
    fn reference_work(&self, workload: usize) -> Option<f64> {
        let runs = self.cells.get(&(workload, 0))?;
        let works = runs.values().filter_map(|run| {
            let measured = measured(run)?;
            Some(measured.throughput.filter(|speed| *speed > 0.0)? * measured.runtime_s)
        });
        Some(ValueSummary::of(works)?.median)
    }
}

fn paired(base: &Cell, values: &Cell) -> BTreeMap<u32, f64> {
    let pairs = values.values.iter().filter_map(|(&repeat, &value)| {
        let base = base.values.get(&repeat)?;
        Some((repeat, overhead_percent(*base, value)?))
    });
    pairs.collect()
}

type Key<'a> = (&'a str, &'a str, u32);

/// Returns the machines, and the entry that counts of each planned run: the last that was measured.
fn read<'a>(
    entries: &'a [Entry],
    planned: &[PlannedRun<'_>],
) -> (Vec<RunMachine>, BTreeMap<Key<'a>, &'a RunEntry>) {
    let mut machines: Vec<RunMachine> = Vec::new();
    let mut latest: BTreeMap<Key<'_>, &RunEntry> = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Machine(machine) => {
                let time_s = machine.time_s;
                let same = |other: &RunMachine| {
                    RunMachine {
                        time_s,
                        ..other.clone()
                    } == *machine
                };
                if !machines.iter().any(same) {
                    machines.push(machine.clone());
                }
            }
            Entry::Run(run) => {
                let key: Key<'_> = (&run.workload, &run.configuration, run.repeat);
                let replaces = |old: &RunEntry| measured(old).is_none() || measured(run).is_some();
                let is_planned = planned.iter().any(|planned| planned.is_run(run));
                if is_planned && latest.get(&key).is_none_or(|old| replaces(old)) {
                    latest.insert(key, run);
                }
            }
            Entry::Tuned(_) => {}
        }
    }
    (machines, latest)
}

fn measured(run: &RunEntry) -> Option<&RunMeasurements> {
    match &run.outcome {
        RunResult::Measured(measured) => Some(measured),
        RunResult::Failed(_) => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::journal::RunMeasurements;

    /// Two workloads, one of which reports its throughput; three configurations, two repeats.
    pub(crate) const TEXT: &str = "name = \"small\"\nrepeats = 2\n\
        [[workload]]\nname = \"parsec3/canneal\"\nrun = \"1\"\n\
        [[workload]]\nname = \"redis\"\nrun = \"2\"\nprogress = '(.*)'\n\
        [[workload]]\nname = \"x264\"\nrequires = [\"x264\"]\nrun = \"3\"\n\
        [[configuration]]\nname = \"orig\"\n\
        [[configuration]]\nname = \"prcl\"\nisotherm = \"run {targets}\"\n";

    pub(crate) fn entries(experiment: &Experiment) -> Vec<Entry> {
        let mut entries = vec![Entry::Machine(RunMachine {
            host: "test".into(),
            kernel: "6.1".into(),
            cpu: "none".into(),
            nr_cpus: 2,
            memory_kib: 1 << 20,
            isotherm: "0.1.0".into(),
            foreign_swap_kib: None,
            time_s: 0,
        })];
        for run in plan(experiment) {
            let acts = run.configuration.isotherm.is_some() || run.configuration.tune.is_some();
            let drift = f64::from(run.repeat);
            let throughput =
                (run.workload.name == "redis").then_some(if acts { 950.0 } else { 1000.0 });
            let outcome = if run.workload.name == "x264" {
                RunResult::Failed("no such program".into())
            } else {
                RunResult::Measured(Box::new(RunMeasurements {
                    runtime_s: 10.0
                        + drift
                        + if acts && throughput.is_none() {
                            0.5
                        } else {
                            0.0
                        },
                    throughput,
                    samples: 10,
                    memused_kib: 2_000_000.0,
                    rss_kib: if acts { 400_000.0 } else { 1_000_000.0 },
                    pgmajfaults: if acts { 50 } else { 0 },
                    monitor_cpu_percent: acts.then_some(0.75),
                    pool_kib: Some(if acts { 150_000.0 } else { 0.0 }),
                    majflt: Some(if acts { 40 } else { 0 }),
                    refault_anon: Some(if acts { 60 } else { 0 }),
                    acting_cpu_s: acts.then_some(0.25),
                    guard_stops: acts.then_some(u64::from(run.repeat) - 1),
                    ..RunMeasurements::default()
                }))
            };
            entries.push(Entry::Run(Box::new(run.entry(0, outcome, None))));
        }
        entries
    }

    pub(crate) fn suite() -> Suite {
        let experiment = Experiment::parse(TEXT).expect("it is right");
        let skipped = vec![("x264".into(), "x264 is not installed".into())];
        Suite::gather(&experiment, &entries(&experiment), skipped)
    }

    #[test]
    fn runs_are_gathered_by_name_and_failures_are_told() {
        let suite = suite();
        assert_eq!(suite.workloads, ["parsec3/canneal", "redis"]);
        assert_eq!(suite.configurations, ["orig", "prcl"]);
        assert_eq!(
            (suite.runs().count(), suite.failed.len(), suite.nr_missing),
            (8, 4, 0)
        );
    }

    #[test]
    fn a_throughput_becomes_time_for_the_same_work() {
        let suite = suite();
        assert_eq!(suite.by_throughput, ["redis"]);
        // 11 500 requests in the median run; 950 a second would take 12.105 s.
        let time = suite.cell(1, 1, RUNTIME).summary();
        let time = time.expect("measured").median;
        assert!((time - 11_500.0 / 950.0).abs() < 1e-9, "{time}");
        let overhead = suite.overhead(1, 1, RUNTIME).expect("both are there");
        let expected = 100.0 / 0.95 - 100.0;
        assert!((overhead - expected).abs() < 1e-9, "{overhead}");
    }

    #[test]
    fn overheads_within_a_repeat_do_not_see_drift() {
        let suite = suite();
        let paired = suite.paired_overheads(0, 1, RUNTIME).expect("two pairs");
        assert_eq!(paired.n, 2);
        assert!((paired.max - 100.0 * 0.5 / 11.0).abs() < 1e-9);
        let Some(Score::Points(score)) = suite.score(0, 1) else {
            panic!("both are there, and far from the limit");
        };
        let expected = 30.0 - 0.5 * 100.0 * 0.5 / 11.5;
        assert!((score - expected).abs() < 1e-9, "{score}");
    }

    #[test]
    fn over_the_suite_a_repeat_counts_where_every_workload_has_a_pair() {
        let experiment = Experiment::parse(TEXT).expect("it is right");
        let mut entries = entries(&experiment);
        let all = Suite::gather(&experiment, &entries, Vec::new());
        let rss = all.over_suite(1, RSS).expect("all are there");
        assert_eq!((rss.nr_workloads, rss.mean.n, rss.total.n), (2, 2, 2));
        assert!((rss.mean.mean + 60.0).abs() < 1e-9 && !rss.total.may_be(0.0));
        assert_eq!(all.worst(1, RUNTIME).map(|(workload, _)| workload), Some(1));
        entries.retain(|entry| match entry {
            Entry::Run(run) => (run.workload.as_str(), run.repeat) != ("redis", 2),
            Entry::Machine(_) | Entry::Tuned(_) => true,
        });
        let cut = Suite::gather(&experiment, &entries, Vec::new());
        let rss = cut.over_suite(1, RSS).expect("the first repeat is there");
        assert_eq!((rss.nr_workloads, rss.mean.n), (2, 1));
        assert!(rss.mean.may_be(0.0), "one repeat says nothing of noise");
    }

    #[test]
    fn a_score_that_noise_may_have_made_is_none() {
        let experiment = Experiment::parse(TEXT).expect("it is right");
        let mut entries = entries(&experiment);
        for entry in &mut entries {
            if let Entry::Run(run) = entry
                && let RunResult::Measured(measured) = &mut run.outcome
                && (run.configuration.as_str(), run.repeat) == ("prcl", 2)
            {
                measured.runtime_s *= 1.5;
            }
        }
        let suite = Suite::gather(&experiment, &entries, Vec::new());
        assert_eq!(suite.score(0, 1), Some(Score::Noise));
    }

    #[test]
    fn what_was_measured_with_other_settings_does_not_count() {
        let experiment = Experiment::parse(TEXT).expect("it is right");
        let entries = entries(&experiment);
        let changed = TEXT.replace("run = \"1\"", "run = \"4\"");
        let changed = Experiment::parse(&changed).expect("it is right");
        let suite = Suite::gather(&changed, &entries, Vec::new());
        assert_eq!(suite.workloads, ["redis"]);
    }
}
