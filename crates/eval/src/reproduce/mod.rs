//! Published experiments, simulated at their published size, beside the published numbers.
//!
//! Compaction: Nitin Gupta, Proactive Compaction for the Linux kernel (2020). Tiering: HMSDK v2.0
//! Performance Results, and DAMON based tiered memory management for CXL memory (both 2024). Reclaim:
//! SeongJae Park, DAMON: data access monitor, v24, and its physical memory patches (2021).

mod figure;
mod page;
mod tiering;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use isotherm_report::render::csv_text;
use isotherm_report::render::table::{Align, Table};
use isotherm_sim::experiment::reclaim::Configuration;
use isotherm_sim::experiment::tiering::{KeyDistribution, Placement, Setting};
use isotherm_sim::published::{
    Comparison, Difference, compaction, reclaim, second_machine, tiering as cells,
};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// How long huge pages take on a fragmented machine.
    Compaction,
    /// What redis loses on CXL memory, and what migration wins back.
    Tiering,
    /// What DAMON's schemes save and cost, on synthetic programs with the published footprints.
    Reclaim,
}

impl Published {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 3] = [Self::Compaction, Self::Tiering, Self::Reclaim];
}

/// What came of an experiment.
#[derive(Debug)]
pub struct Reproduction {
    /// Simulated numbers beside published ones.
    pub comparisons: Vec<Comparison>,
    /// What is to be known of them, a sentence each.
    pub notes: Vec<String>,
    /// Files to keep, by name: CSV, and a page with the figures.
    pub files: Vec<(String, String)>,
}

/// How far the runs are. Told by several threads.
#[derive(Clone, Debug)]
pub enum RunProgress {
    /// So many runs are to be made.
    Planned(usize),
    /// This one begins.
    Begun(String),
    /// One has ended.
    Ended,
}

/// Simulates an experiment, `jobs` runs at the same time, of which each takes up to 3 GiB.
///
/// # Errors
/// What cannot be simulated.
pub fn reproduce(
    experiment: Published,
    jobs: u8,
    tell: &(dyn Fn(RunProgress) + Sync),
) -> anyhow::Result<Reproduction> {
    Ok(match experiment {
        Published::Compaction => {
            let runs = compaction_runs(jobs, tell);
            let comparisons = compaction::comparisons(&runs);
            let mut files = files(
                "compaction",
                &comparisons,
                page::compaction(&runs, &comparisons),
            );
            files.push((
                "compaction-latencies.csv".to_owned(),
                page::latency_csv(&runs),
            ));
            files.push(("compaction-scores.csv".to_owned(), page::score_csv(&runs)));
            Reproduction {
                notes: compaction::notes(),
                comparisons,
                files,
            }
        }
        Published::Tiering => {
            let runs = tiering_runs(jobs, tell)?;
            let mut comparisons = cells::comparisons(&runs);
            comparisons.extend(second_machine::comparisons(&second_runs(jobs, tell)?));
            let mut notes = cells::notes(&comparisons);
            notes.push(second_machine::note());
            Reproduction {
                files: files(
                    "tiering",
                    &comparisons,
                    page::tiering(&runs, &comparisons, &notes),
                ),
                notes,
                comparisons,
            }
        }
        Published::Reclaim => {
            let evaluation = reclaim::Evaluation::new(configurations());
            let title = |run: &reclaim::ReclaimRun| evaluation.title(run);
            let make = |run: &reclaim::ReclaimRun| evaluation.make(run);
            let runs = simulate((jobs, tell), &evaluation.runs(), title, make);
            let comparisons = evaluation.comparisons(&runs);
            Reproduction {
                files: files("reclaim", &comparisons, page::reclaim(&comparisons)),
                notes: reclaim::notes(&comparisons),
                comparisons,
            }
        }
    })
}

/// The files that are kept of every experiment.
fn files(name: &str, comparisons: &[Comparison], page: String) -> Vec<(String, String)> {
    vec![
        (format!("{name}.csv"), csv(comparisons)),
        (format!("{name}.html"), page),
    ]
}

/// Those of DAMON's evaluation.
fn configurations() -> Vec<Configuration> {
    let of = |name, thp, watched, preset: Option<&str>| Configuration {
        name,
        thp,
        watched,
        schemes: preset
            .and_then(isotherm_config::preset)
            .map_or_else(Vec::new, |preset| preset.schemes),
    };
    vec![
        of("orig", false, None, None),
        of("rec", false, Some(false), None),
        of("prec", false, Some(true), None),
        of("thp", true, None, None),
        of("ethp", false, Some(false), Some("ethp")),
        of("prcl", false, Some(false), Some("prcl")),
        of("pprcl", false, Some(true), Some("pprcl")),
    ]
}

/// People look for the drivers together.
fn compaction_runs(
    jobs: u8,
    tell: &(dyn Fn(RunProgress) + Sync),
) -> Vec<(
    compaction::CompactionRun,
    isotherm_sim::experiment::compaction::CompactionOutcome,
)> {
    let title = |run: &compaction::CompactionRun| run.title();
    let mut runs = simulate((jobs, tell), &compaction::RUNS, title, |run| run.make());
    runs.sort_by_key(|(run, _)| match run {
        compaction::CompactionRun::Driver(p) => (0, *p),
        compaction::CompactionRun::Java(p) => (1, *p),
        compaction::CompactionRun::Unmovable(p) => (2, *p),
    });
    runs
}

/// And for what the same records come to.
fn tiering_runs(
    jobs: u8,
    tell: &(dyn Fn(RunProgress) + Sync),
) -> anyhow::Result<
    Vec<(
        cells::TieringRun,
        isotherm_sim::experiment::tiering::TieringOutcome,
    )>,
> {
    let tiered = tiering::contexts(&Setting::published(0))?;
    let mut runs = simulate(
        (jobs, tell),
        &cells::runs(),
        cells::TieringRun::title,
        |run| run.make(&tiered),
    );
    runs.sort_by_key(|(run, _)| {
        let is_default = run.placement == Placement::Default;
        let is_latest = run.distribution == KeyDistribution::Latest;
        (is_default, is_latest, run.cold_gib)
    });
    Ok(runs)
}

/// The second machine's.
fn second_runs(
    jobs: u8,
    tell: &(dyn Fn(RunProgress) + Sync),
) -> anyhow::Result<
    Vec<(
        second_machine::SecondRun,
        isotherm_sim::experiment::tiering::TieringOutcome,
    )>,
> {
    let tiered = tiering::contexts(&second_machine::setting(0))?;
    Ok(simulate(
        (jobs, tell),
        &second_machine::runs(),
        second_machine::SecondRun::title,
        |run| run.make(&tiered),
    ))
}

/// Makes runs, some at a time, in their order; the outcomes stand in the same order.
fn simulate<R: Copy + Sync, O: Send>(
    (jobs, tell): (u8, &(dyn Fn(RunProgress) + Sync)),
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

const HEAD: [&str; 8] = [
    "experiment",
    "configuration",
    "metric",
    "unit",
    "simulated",
    "published",
    "difference",
    "is",
];

/// The fields of a comparison, for people.
fn fields(comparison: &Comparison) -> Vec<String> {
    vec![
        comparison.experiment.into(),
        comparison.configuration.clone(),
        comparison.metric.clone(),
        comparison.unit.into(),
        number(comparison.simulated),
        comparison.published.map_or_else(|| "-".into(), number),
        match comparison.difference() {
            None => "-".into(),
            Some(Difference::Percent(percent)) => format!("{percent:+.1} %"),
            Some(Difference::Points(points)) => format!("{points:+.1} points"),
        },
        comparison.role.name().into(),
    ]
}

/// With as many digits as say something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 || v.fract().abs() < 1e-9 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// All of it as a table, for people.
pub fn table(comparisons: &[Comparison], notes: &[String]) -> String {
    let mut columns = HEAD.map(|head| (head, Align::Left));
    for column in &mut columns[4..7] {
        column.1 = Align::Right;
    }
    let mut table = Table::new(&columns);
    for comparison in comparisons {
        table.row(fields(comparison));
    }
    let mut text =
        String::from("Simulated at the published size; see `isotherm reproduce --help`.\n");
    text.extend(notes.iter().map(|note| format!("- {note}\n")));
    text.push('\n');
    text + &table.text()
}

fn csv(comparisons: &[Comparison]) -> String {
    let plain = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
    let rows = comparisons.iter().map(|comparison| {
        let mut fields = fields(comparison);
        fields[4] = comparison.simulated.to_string();
        fields[5] = plain(comparison.published);
        fields[6] = plain(comparison.difference().map(|difference| match difference {
            Difference::Percent(value) | Difference::Points(value) => value,
        }));
        fields
    });
    let head = HEAD.map(str::to_owned).to_vec();
    csv_text(std::iter::once(head).chain(rows))
}

#[cfg(test)]
mod tests {
    use isotherm_sim::published::Role;

    use super::*;

    fn comparison(simulated: f64, published: Option<f64>) -> Comparison {
        Comparison {
            experiment: "driver",
            configuration: "proactiveness 20".into(),
            metric: "mean".into(),
            unit: "us",
            simulated,
            published,
            role: Role::Predicted,
        }
    }

    #[test]
    fn what_was_not_published_is_not_compared() {
        let text = table(
            &[comparison(3.5, Some(4.0)), comparison(21_746.41, None)],
            &[],
        );
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert!(lines[0].contains("3.50          4     -12.5 %"), "{text}");
        assert!(lines[1].contains("21746          -           -"), "{text}");
    }

    /// Small versions of published experiments, in their order.
    fn small_runs(jobs: u8) -> String {
        use isotherm_sim::experiment::compaction::{Setting, driver};
        use isotherm_sim::experiment::{redis, tiering};

        let compaction = |proactiveness: &u32| {
            let published = Setting::published(*proactiveness);
            driver(&Setting {
                memory_mib: 2048,
                frag_mib: 1900,
                ..published
            })
        };
        let tiering = |cold_gib: &u64| {
            let setting = tiering::Setting {
                fast_mib: 512,
                slow_mib: 128,
                system_mib: 16,
                cold_mib: *cold_gib,
                anon_mib: 64,
                file_mib: 32,
                records: 30_000,
                run: isotherm_engine::Nanos::from_millis(60_000),
                ..tiering::Setting::published(0)
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

    #[test]
    fn csv_has_plain_numbers() {
        let text = csv(&[comparison(1.25, None)]);
        assert_eq!(
            text.lines().nth(1),
            Some("driver,proactiveness 20,mean,us,1.25,,,predicted")
        );
    }
}
