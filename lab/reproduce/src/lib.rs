//! Published experiments, simulated at their published size, beside the published numbers.
//!
//! Compaction: Nitin Gupta, Proactive Compaction for the Linux kernel (2020). Tiering: HMSDK v2.0
//! Performance Results, and DAMON based tiered memory management for CXL memory (both 2024). Reclaim:
//! SeongJae Park, DAMON: data access monitor, v24, and its physical memory patches (2021).

pub mod experiment;
mod page;
pub mod published;
mod text;
mod tiering;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::experiment::compaction::CompactionOutcome;
use crate::experiment::reclaim::{Knowledge, ReclaimConfiguration, Watched};
use crate::experiment::tiering::{KeyDistribution, Placement, TieringOutcome, TieringSetting};
use crate::published::compaction::{self, CompactionRun};
use crate::published::second_machine::{self, SecondRun};
use crate::published::tiering::{self as cells, TieringRun};
use crate::published::{reclaim, summaries};
use isotherm_sim::machine::Rules;

pub use published::{PublishedComparison, Summary};
pub use text::text;

/// Published experiments that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedExperiment {
    /// Latency of huge pages on a fragmented machine.
    Compaction,
    /// Slowdown of redis on CXL memory, and the gain of migration.
    Tiering,
    /// Savings and costs of DAMON's schemes, on synthetic programs with the published footprints.
    Reclaim,
}

impl PublishedExperiment {
    /// All experiments, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Compaction, Self::Tiering, Self::Reclaim];
}

/// Results of an experiment.
#[derive(Debug)]
pub struct Reproduction {
    /// Title of the experiment.
    pub title: &'static str,
    /// Mean values and mean errors of the numbers.
    pub summaries: Vec<Summary>,
    /// Simulated numbers beside published ones.
    pub comparisons: Vec<PublishedComparison>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
    /// Files to keep, by name: CSV, and a page with the figures.
    pub files: Vec<(String, String)>,
}

/// Progress of the runs, reported by several threads.
#[derive(Clone, Debug)]
pub enum RunProgress {
    /// The number of planned runs.
    Planned(usize),
    /// A run begins.
    Begun(String),
    /// A run has ended.
    Ended,
}

type Tell<'a> = &'a (dyn Fn(RunProgress) + Sync);

/// Simulates an experiment with `jobs` runs at the same time. Each run takes up to 3 GiB. Fails if the experiment
/// cannot be simulated.
pub fn reproduce(
    experiment: PublishedExperiment,
    jobs: u8,
    tell: Tell<'_>,
) -> anyhow::Result<Reproduction> {
    Ok(match experiment {
        PublishedExperiment::Compaction => {
            let runs = compaction_runs(jobs, tell);
            let comparisons = compaction::comparisons(&runs);
            let names = ("Proactive compaction", "compaction");
            let page = |all: &Reproduction| page::compaction(&runs, all);
            let mut all = reproduction(names, comparisons, compaction::notes(), page);
            let of_figures = [
                ("compaction-latencies.csv", page::latency_csv(&runs)),
                ("compaction-scores.csv", page::score_csv(&runs)),
            ];
            all.files
                .extend(of_figures.map(|(name, text)| (name.to_owned(), text)));
            all
        }
        PublishedExperiment::Tiering => {
            let runs = tiering_runs(jobs, tell)?;
            let mut comparisons = cells::comparisons(&runs);
            comparisons.extend(second_machine::comparisons(&second_runs(jobs, tell)?));
            let mut notes = cells::notes(&comparisons);
            notes.push(second_machine::note());
            let page = |all: &Reproduction| page::tiering(&runs, all);
            reproduction(("Tiered memory", "tiering"), comparisons, notes, page)
        }
        PublishedExperiment::Reclaim => {
            let evaluation = reclaim::Evaluation::new(configurations());
            let title = |run: &reclaim::ReclaimRun| evaluation.title(run);
            let make = |run: &reclaim::ReclaimRun| evaluation.make(run);
            let runs = simulate((jobs, tell), &evaluation.runs(), title, make);
            let comparisons = evaluation.comparisons(&runs);
            let names = ("DAMON's schemes", "reclaim");
            reproduction(names, comparisons, reclaim::notes(), page::reclaim)
        }
    })
}

/// Builds the results of an experiment, with the files that are kept of every one.
fn reproduction(
    (title, name): (&'static str, &str),
    comparisons: Vec<PublishedComparison>,
    notes: Vec<String>,
    page: impl Fn(&Reproduction) -> String,
) -> Reproduction {
    let summaries = summaries(&comparisons);
    let mut all = Reproduction {
        title,
        summaries,
        comparisons,
        notes,
        files: Vec::new(),
    };
    let summary = text::summary_csv(&all.summaries);
    all.files = vec![
        (format!("{name}.csv"), text::csv(&all.comparisons)),
        (format!("{name}-summary.csv"), summary),
        (format!("{name}.html"), page(&all)),
    ];
    all
}

/// Returns the configurations of DAMON's evaluation. Those that depend on the amount of idle memory are in it twice:
/// with and without knowledge of it.
fn configurations() -> Vec<ReclaimConfiguration> {
    use Knowledge::{Nothing, Prcl};
    use Watched::{Physical, Program};

    let of = |name, title, watched, scheme: Option<&str>, knowledge| ReclaimConfiguration {
        name,
        title,
        thp: name == "thp",
        watched,
        schemes: scheme
            .and_then(isotherm_config::preset)
            .map_or_else(Vec::new, |preset| preset.schemes),
        rules: Rules::KernelDamon,
        knowledge,
    };
    let program = Some(Program);
    let physical = Some(Physical);
    let by_isotherm = ReclaimConfiguration {
        rules: Rules::Isotherm,
        ..of("ethp", "ethp by Isotherm", program, Some("ethp"), Prcl)
    };
    vec![
        of("orig", "orig", None, None, Nothing),
        of("rec", "rec", program, None, Nothing),
        of("prec", "prec", physical, None, Nothing),
        of("thp", "thp", None, None, Nothing),
        of("ethp", "ethp", program, Some("ethp"), Nothing),
        of("ethp", "ethp, idle known", program, Some("ethp"), Prcl),
        by_isotherm,
        of("prcl", "prcl", program, Some("prcl"), Nothing),
        of("prcl", "prcl, idle known", program, Some("prcl"), Prcl),
        of("pprcl", "pprcl", physical, Some("pprcl"), Nothing),
        of("pprcl", "pprcl, idle known", physical, Some("pprcl"), Prcl),
    ]
}

/// Makes the runs of compaction, sorted so that those of the drivers are together.
fn compaction_runs(jobs: u8, tell: Tell<'_>) -> Vec<(CompactionRun, CompactionOutcome)> {
    let title = |run: &CompactionRun| run.title();
    let mut runs = simulate((jobs, tell), &compaction::RUNS, title, |run| run.make());
    runs.sort_by_key(|(run, _)| *run);
    runs
}

/// Makes the runs of tiering, sorted by placement (the default last), key distribution and size of the cold block.
fn tiering_runs(jobs: u8, tell: Tell<'_>) -> anyhow::Result<Vec<(TieringRun, TieringOutcome)>> {
    let tiered = tiering::contexts(&TieringSetting::published(0))?;
    let make = |run: &TieringRun| run.make(&tiered);
    let mut runs = simulate((jobs, tell), &cells::runs(), TieringRun::title, make);
    runs.sort_by_key(|(run, _)| {
        let is_default = run.placement == Placement::Default;
        let is_latest = run.distribution == KeyDistribution::Latest;
        (is_default, is_latest, run.cold_gib)
    });
    Ok(runs)
}

fn second_runs(jobs: u8, tell: Tell<'_>) -> anyhow::Result<Vec<(SecondRun, TieringOutcome)>> {
    let tiered = tiering::contexts(&second_machine::setting(0))?;
    let make = |run: &SecondRun| run.make(&tiered);
    let runs = second_machine::runs();
    Ok(simulate((jobs, tell), &runs, SecondRun::title, make))
}

/// Makes runs, `jobs` at a time, in their order; the outcomes are in the same order.
fn simulate<R: Copy + Sync, O: Send>(
    (jobs, tell): (u8, Tell<'_>),
    runs: &[R],
    title: impl Fn(&R) -> String + Sync,
    make: impl Fn(&R) -> O + Sync,
) -> Vec<(R, O)> {
    tell(RunProgress::Planned(runs.len()));
    let next = AtomicUsize::new(0);
    let made: Mutex<Vec<(usize, O)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(at) else { break };
                    tell(RunProgress::Begun(title(run)));
                    let outcome = make(run);
                    tell(RunProgress::Ended);
                    made.lock()
                        .expect("no run panics with it")
                        .push((at, outcome));
                }
            });
        }
    });
    let mut made = made.into_inner().expect("all runs have ended");
    made.sort_by_key(|(at, _)| *at);
    made.into_iter()
        .map(|(at, outcome)| (runs[at], outcome))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_runs(jobs: u8) -> String {
        use crate::experiment::compaction::{CompactionSetting, driver};
        use crate::experiment::{redis, tiering};

        let compaction = |proactiveness: &u32| {
            let published = CompactionSetting::published(*proactiveness);
            driver(&CompactionSetting {
                memory_mib: 2048,
                frag_mib: 1900,
                ..published
            })
        };
        let tiering = |cold_gib: &u64| {
            let setting = tiering::TieringSetting {
                fast_mib: 512,
                slow_mib: 128,
                system_mib: 16,
                cold_mib: *cold_gib,
                anon_mib: 64,
                file_mib: 32,
                records: 30_000,
                run: isotherm_engine::Nanos::from_millis(60_000),
                ..tiering::TieringSetting::published(0)
            };
            let reads = redis::reads(&setting, tiering::KeyDistribution::Zipfian);
            let tiered = super::tiering::contexts(&setting).expect("a plan of ours");
            tiering::run(&setting, tiered, &reads)
        };
        let name = |_: &_| String::new();
        let drivers = simulate((jobs, &|_| ()), &[0, 20, 40, 60, 80], name, compaction);
        let name = |_: &_| String::new();
        let cells = simulate((jobs, &|_| ()), &[440, 460, 480], name, tiering);
        format!("{drivers:?} {cells:?}")
    }

    #[test]
    fn jobs_change_no_byte() {
        let one = small_runs(1);
        assert_eq!(small_runs(2), one);
        assert_eq!(small_runs(4), one);
    }
}
