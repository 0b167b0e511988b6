//! `isotherm reproduce`: Published experiments, simulated at their published size.

mod figure;
mod page;
mod tiering;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use isotherm_report::render::csv_text;
use isotherm_report::render::table::{Align, Table};
use isotherm_sim::experiment::reclaim::Configuration;
use isotherm_sim::experiment::tiering::{Distribution, Placement, Setting};
use isotherm_sim::paper::{Comparison, Difference, compaction, reclaim, tiering as cells};

/// Simulate published experiments at their published size, beside the published numbers.
///
/// Everything that is shown is simulated, and some costs were chosen so that a published number comes
/// out: that is called calibrated; what was put in as a constant or a size is called input; all else
/// predicted.
#[derive(clap::Args)]
#[command(after_help = "\
compaction: Nitin Gupta, Proactive Compaction for the Linux kernel (2020): 1 TiB, 80 CPUs.
tiering: HMSDK v2.0 Performance Results, and DAMON based tiered memory management for CXL memory (both
2024): redis on 512 GB of DRAM and 96 GB of CXL memory.
reclaim: SeongJae Park, DAMON: data access monitor, v24, and its physical memory patches (2021).

Examples:
  isotherm reproduce all
  isotherm reproduce compaction -o published    and CSV and a page with the figures in that folder
  isotherm reproduce tiering --json")]
pub(crate) struct Args {
    /// Which one.
    #[arg(value_enum)]
    paper: Paper,
    /// Write CSV and an HTML page into this folder.
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    #[command(flatten)]
    result: crate::out::ResultArgs,
    /// Runs at the same time; each takes up to 3 GiB.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// No progress bar.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Paper {
    /// How long huge pages take on a fragmented machine.
    Compaction,
    /// What redis loses on CXL memory, and what migration wins back.
    Tiering,
    /// What DAMON's schemes save and cost, on synthetic programs with the published footprints.
    Reclaim,
    /// All of them.
    All,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut all = Vec::new();
    let mut notes = Vec::new();
    if matches!(args.paper, Paper::Compaction | Paper::All) {
        let runs = compaction_runs(args);
        let comparisons = compaction::comparisons(&runs);
        keep(
            args,
            "compaction",
            &comparisons,
            &page::compaction(&runs, &comparisons),
        )?;
        if let Some(folder) = &args.output {
            write(
                folder,
                "compaction-latencies.csv",
                page::latency_csv(&runs).as_bytes(),
            )?;
            write(
                folder,
                "compaction-scores.csv",
                page::score_csv(&runs).as_bytes(),
            )?;
        }
        notes.extend(compaction::notes());
        all.extend(comparisons);
    }
    if matches!(args.paper, Paper::Tiering | Paper::All) {
        let runs = tiering_runs(args)?;
        let comparisons = cells::comparisons(&runs);
        keep(
            args,
            "tiering",
            &comparisons,
            &page::tiering(&runs, &comparisons),
        )?;
        notes.extend(cells::notes(&comparisons));
        all.extend(comparisons);
    }
    if matches!(args.paper, Paper::Reclaim | Paper::All) {
        let evaluation = reclaim::Evaluation::new(configurations());
        let title = |run: &reclaim::Run| evaluation.title(run);
        let runs = simulate((args.jobs, args.quiet), &evaluation.runs(), title, |run| {
            evaluation.make(run)
        });
        let comparisons = evaluation.comparisons(&runs);
        keep(args, "reclaim", &comparisons, &page::reclaim(&comparisons))?;
        notes.extend(reclaim::notes(&comparisons));
        all.extend(comparisons);
    }
    let mut out = std::io::stdout().lock();
    let text = if args.result.is_json() {
        crate::out::json(&serde_json::json!({ "comparisons": all }))? + "\n"
    } else {
        table(&all, &notes)
    };
    out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
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
    args: &Args,
) -> Vec<(
    compaction::Run,
    isotherm_sim::experiment::compaction::Outcome,
)> {
    let title = |run: &compaction::Run| run.title();
    let mut runs = simulate((args.jobs, args.quiet), &compaction::RUNS, title, |run| {
        run.make()
    });
    runs.sort_by_key(|(run, _)| match run {
        compaction::Run::Driver(p) => (0, *p),
        compaction::Run::Java(p) => (1, *p),
        compaction::Run::Unmovable(p) => (2, *p),
    });
    runs
}

/// And for what the same records come to.
fn tiering_runs(
    args: &Args,
) -> anyhow::Result<Vec<(cells::Run, isotherm_sim::experiment::tiering::Outcome)>> {
    let tiered = tiering::contexts(&Setting::published(0))?;
    let (jobs, runs) = ((args.jobs, args.quiet), cells::runs());
    let mut runs = simulate(jobs, &runs, cells::Run::title, |run| run.make(&tiered));
    runs.sort_by_key(|(run, _)| {
        let is_default = run.placement == Placement::Default;
        let is_latest = run.distribution == Distribution::Latest;
        (is_default, is_latest, run.cold_gib)
    });
    Ok(runs)
}

/// Writes what is to be kept of a paper.
fn keep(args: &Args, name: &str, comparisons: &[Comparison], page: &str) -> anyhow::Result<()> {
    if let Some(folder) = &args.output {
        write(folder, &format!("{name}.csv"), csv(comparisons).as_bytes())?;
        write(folder, &format!("{name}.html"), page.as_bytes())?;
    }
    Ok(())
}

/// Makes runs, some at a time, in their order; the outcomes stand in the same order.
fn simulate<R: Copy + Sync, O: Send>(
    (jobs, is_quiet): (u8, bool),
    runs: &[R],
    title: impl Fn(&R) -> String + Sync,
    make: impl Fn(&R) -> O + Sync,
) -> Vec<(R, O)> {
    let bar = progress_bar(is_quiet, runs.len());
    let next = AtomicUsize::new(0);
    let made: Mutex<Vec<(usize, O)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(at) else { break };
                    bar.set_message(title(run));
                    let outcome = make(run);
                    bar.inc(1);
                    made.lock()
                        .expect("no run panics with it")
                        .push((at, outcome));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut made = made.into_inner().expect("all runs have ended");
    made.sort_by_key(|(at, _)| *at);
    made.into_iter()
        .map(|(at, outcome)| (runs[at], outcome))
        .collect()
}

fn progress_bar(quiet: bool, nr: usize) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta}  {msg}");
    ProgressBar::new(nr as u64).with_style(style.expect("a template of ours"))
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    crate::whole_file::write(&folder.join(name), bytes)
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

fn table(comparisons: &[Comparison], notes: &[String]) -> String {
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
    use isotherm_sim::paper::Role;

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

    /// Small versions of a paper's experiments, in their order.
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
            let reads = redis::reads(&setting, tiering::Distribution::Zipfian);
            let tiered = super::tiering::contexts(&setting).expect("a plan of ours");
            tiering::run(&setting, tiered, &reads)
        };
        let name = |_: &_| String::new();
        let drivers = simulate((jobs, true), &[0, 20, 40, 60, 80], name, compaction);
        let name = |_: &_| String::new();
        let cells = simulate((jobs, true), &[440, 460, 480], name, tiering);
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
