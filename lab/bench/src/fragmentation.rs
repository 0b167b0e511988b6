//! Faults of 2 MiB in fragmented memory: with the kernel's own proactive compaction, and with Isotherm's.
//!
//! The bench follows Nitin Gupta, *Proactive Compaction for the Linux kernel*. Most of memory is fragmented as his
//! `frag` does it (`experiments/workloads/frag.py`). A driver then allocates huge pages, with one write to each, until
//! most of the free memory is used. Each arm has the same rest in between, in which proactive compaction can work, and
//! continues while the driver runs. Memory is fragmented anew for each run.
//!
//! The driver allocates pages at full speed, or, with `--pace`, steadily, which leaves proactive compaction more time.
//! For a page that is not ready, the fault itself must compact.
//!
//! Limits: his driver is a kernel module, which zeroes nothing; a fault here zeroes 2 MiB, about 90 us. Some
//! hypervisors take back free memory. The first touch of a block that was compacted ahead then also waits for the
//! hypervisor (1 to 5 ms, here). Compaction does not cause that. Such faults are recognised by a duration of over 1 ms
//! without a stall (`compact_stall`), counted, and left out of a second mean. The driver reads that counter between
//! faults, which slows its full speed a little. For memory that is advised MADV_HUGEPAGE, the settings `always`,
//! `madvise` and `defer+madvise` of `transparent_hugepage/defrag` are the same (`vma_thp_gfp_mask` in
//! mm/huge_memory.c). The bench changes that setting only if it is one of the others, which never compact directly.

pub(crate) mod driver;
mod settings;
mod simulated;
mod state;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use isotherm_engine::statistics::nearest_rank;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::child::Guarded;
use super::machine::meminfo;
use super::stats::cell;
use super::table::Table;
use super::{BenchContext, BenchOutcome};

use driver::{Demand, Driven, Fault, HUGE};
use settings::{PROACTIVENESS, Settings, THP_DEFRAG, THP_ENABLED};
use state::{Counters, Free};

/// Memory that must stay available at every moment.
const FLOOR: u64 = 2 << 30;
/// Free memory that is not fragmented: the floor, and the memory of the bench itself.
const LEAVE: &str = "2.5GiB";
/// Share of the memory available above the floor that the driver allocates.
const TAKEN: f64 = 0.8;
/// Populating 20 GiB takes a minute if the hypervisor must find the memory first.
const READY_LIMIT: Duration = Duration::from_mins(5);
/// A time longer than any run of the driver.
const DAEMON_LIMIT: Duration = Duration::from_mins(10);
const PERCENTILES: [u32; 6] = [5, 25, 50, 75, 95, 99];
/// A time longer than a fault that finds a huge page ready.
const SLOW_NANOS: u64 = 1_000_000;

/// Options of this bench only.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// fragmentation: fragment this much, instead of all that is free but 2.5 GiB
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// fragmentation: the driver's pace in MiB/s; 0, the default, is as fast as it can
    #[arg(long, value_name = "MIB_PER_S")]
    pace: Vec<u64>,
    /// fragmentation: seconds between fragmenting and the driver (default 20; 2 with --quick)
    #[arg(long, value_name = "SECONDS")]
    rest: Option<u64>,
}

/// The source of proactive compaction.
#[derive(Clone, Copy, Debug)]
struct Arm {
    name: &'static str,
    /// The kernel's proactiveness.
    kernel: &'static str,
    /// The proactiveness of `isotherm compact --daemon`, if it runs.
    ours: Option<&'static str>,
}

const ARMS: [Arm; 5] = [
    arm("kernel-0", "0", None),
    arm("kernel-20", "20", None),
    arm("ours-20", "0", Some("20")),
    arm("kernel-80", "80", None),
    arm("ours-80", "0", Some("80")),
];

const fn arm(name: &'static str, kernel: &'static str, ours: Option<&'static str>) -> Arm {
    Arm { name, kernel, ours }
}

/// One run of one arm.
#[derive(Serialize)]
struct Run {
    arm: &'static str,
    pace_mib_per_s: u64,
    fragmented_by: Ready,
    /// Free memory before fragmenting, after it, after the rest, and after the driver.
    before: Free,
    fragmented: Free,
    rested: Free,
    driven: Free,
    latency: Latency,
    during_rest: Counters,
    during_drive: Counters,
    ours: Option<Ours>,
    driver_seconds: f64,
    driver_system_seconds: f64,
    /// The driver stopped early, as available memory reached the floor.
    out_of_memory: bool,
}

/// The fragmenter's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    bytes: u64,
    freed: u64,
    fill_seconds: f64,
    free_seconds: f64,
    seed: u64,
}

/// Durations of the faults that brought a huge page.
#[derive(Serialize)]
struct Latency {
    faults: usize,
    huge: usize,
    /// Number of these that waited for compaction.
    stalled: usize,
    /// Number of faults over 1 ms without a stall: the hypervisor's delays.
    slow_unstalled: usize,
    percentiles_us: Vec<(u32, f64)>,
    max_us: f64,
    mean_us: f64,
    /// Mean without the slow faults that did not stall.
    mean_guest_us: f64,
}

/// The work of `isotherm compact`.
#[derive(Clone, Copy, Serialize)]
struct Ours {
    rounds: u64,
    round_seconds: f64,
    /// CPU time of the rounds and of the checks.
    cpu_seconds: f64,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if let Some(reason) = why_not(context) {
        return Ok(BenchOutcome::Skip(reason));
    }
    let mut settings = Settings::open()?;
    prepare(&mut settings)?;
    let arms: Vec<Arm> = ARMS
        .into_iter()
        .filter(|arm| context.only.is_empty() || context.only.iter().any(|only| only == arm.name))
        .collect();
    let options = &context.fragmentation;
    let paces = if options.pace.is_empty() {
        &[0][..]
    } else {
        &options.pace
    };
    let plan = (1..=context.repeats).flat_map(|_| paces.iter());
    let plan = plan.flat_map(|pace| arms.iter().map(move |arm| (*arm, *pace)));
    let (mut runs, mut beside, mut incomplete) = (Vec::new(), Vec::new(), None);
    for (arm, pace) in plan {
        let started = Instant::now();
        match measure(context, &mut settings, arm, pace) {
            Ok(run) => {
                tell(&run, started.elapsed());
                beside.push(simulated::simulate(context, arm, &run)?);
                runs.push(run);
            }
            Err(error) if runs.is_empty() => return Err(error.context(arm.name)),
            // Results of the runs before the failure are valid.
            Err(error) => {
                let why = format!("{}, {}: {error:#}", arm.name, pace_name(pace));
                eprintln!("not complete: {why}");
                incomplete = Some(why);
                break;
            }
        }
    }
    let defrag = settings::read(THP_DEFRAG)?;
    let mut tables = tables(&runs, &defrag);
    tables.push(simulated::table(&beside));
    Ok(BenchOutcome::Done {
        tables,
        data: json!({
            "defrag": defrag,
            "rest_seconds": rest(context).as_secs(),
            "incomplete": incomplete,
            "runs": runs,
            "simulated": beside,
        }),
    })
}

fn tell(run: &Run, took: Duration) {
    eprintln!(
        "{} {}: p50 {:.0} us, mean {:.0} us, {} of {} huge, {} stalled; score {:.1} -> {:.1} -> {:.1}; \
         filled in {:.1} s, took {:.0} s",
        run.arm,
        pace_name(run.pace_mib_per_s),
        run.latency
            .percentiles_us
            .get(2)
            .map_or(f64::NAN, |(_, us)| *us),
        run.latency.mean_us,
        run.latency.huge,
        run.latency.faults,
        run.latency.stalled,
        run.fragmented.score,
        run.rested.score,
        run.driven.score,
        run.fragmented_by.fill_seconds,
        took.as_secs_f64()
    );
}

fn why_not(context: &BenchContext) -> Option<String> {
    if !context.named {
        return Some("it takes most of the machine's memory; name it to run it".into());
    }
    if let Err(error) = fs::OpenOptions::new().write(true).open(PROACTIVENESS) {
        return Some(format!(
            "cannot open {PROACTIVENESS}: {error}; it needs root and Linux 5.9"
        ));
    }
    let python = Command::new("python3").arg("-V").output();
    python.is_err().then(|| "there is no python3".into())
}

/// Allows huge pages on request, with direct compaction in the fault.
fn prepare(settings: &mut Settings) -> anyhow::Result<()> {
    if settings::read(THP_ENABLED)? == "never" {
        settings.set(THP_ENABLED, "madvise")?;
    }
    if ["never", "defer"].contains(&&*settings::read(THP_DEFRAG)?) {
        settings.set(THP_DEFRAG, "madvise")?;
    }
    Ok(())
}

fn rest(context: &BenchContext) -> Duration {
    let default = if context.quick { 2 } else { 20 };
    Duration::from_secs(context.fragmentation.rest.unwrap_or(default))
}

fn measure(
    context: &BenchContext,
    settings: &mut Settings,
    arm: Arm,
    pace: u64,
) -> anyhow::Result<Run> {
    settings.set(PROACTIVENESS, "0")?;
    let before = Free::look(context)?;
    let (mut fragmenter, ready) = fragment(context)?;
    let fragmented = Free::look(context)?;
    let start = Counters::read()?;
    settings.set(PROACTIVENESS, arm.kernel)?;
    let daemon = arm
        .ours
        .map(|proactiveness| Daemon::start(context, proactiveness))
        .transpose()?;
    context.sleep(rest(context))?;
    // The fragmenter ends early if too little memory is available.
    fragmenter.check_running()?;
    let rested = Free::look(context)?;
    let middle = Counters::read()?;
    let Driven {
        faults,
        seconds,
        system_seconds,
        out_of_memory,
    } = driver::run(context, demand(&ready, pace)?)?;
    let end = Counters::read()?;
    let driven = Free::look(context)?;
    let ours = daemon.map(Daemon::stop).transpose()?;
    settings.set(PROACTIVENESS, "0")?;
    fragmenter.check_running()?;
    fragmenter.stop()?;
    Ok(Run {
        arm: arm.name,
        pace_mib_per_s: pace,
        fragmented_by: ready,
        before,
        fragmented,
        rested,
        driven,
        latency: latency(&faults),
        during_rest: middle.since(&start),
        during_drive: end.since(&middle),
        ours,
        driver_seconds: seconds,
        driver_system_seconds: system_seconds,
        out_of_memory,
    })
}

/// Fragments memory; it stays fragmented until the process ends.
fn fragment(context: &BenchContext) -> anyhow::Result<(Guarded, Ready)> {
    let said = context.scratch("frag.stdout");
    let mut command = Command::new("python3");
    command.arg(context.root.join("experiments/workloads/frag.py"));
    let size = context.fragmentation.size.as_deref();
    match size.or(context.quick.then_some("1GiB")) {
        Some(size) => command.args(["--size", size]),
        None => command.args(["--leave", LEAVE]),
    };
    command.args(["--floor", &FLOOR.to_string()]);
    command.stdout(File::create(&said).context("cannot write to the temporary folder")?);
    let mut child = Guarded::spawn(context, &mut command)?;
    let end = Instant::now() + READY_LIMIT;
    loop {
        if let Some(ready) = line(&said, "ready ")? {
            return Ok((child, serde_json::from_str(&ready)?));
        }
        if Instant::now() > end {
            bail!(
                "memory was not fragmented after {} s",
                READY_LIMIT.as_secs()
            );
        }
        child.check_running()?;
        context.sleep(Duration::from_millis(50))?;
    }
}

/// Returns the rest of the last whole line that begins with `start`.
fn line(path: &Path, start: &str) -> anyhow::Result<Option<String>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let found = whole
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(start));
    Ok(found.map(str::to_owned))
}

/// Returns a demand for most of the available memory, but no more than was fragmented.
fn demand(ready: &Ready, pace: u64) -> anyhow::Result<Demand> {
    let available = meminfo("MemAvailable:").context("/proc/meminfo has no MemAvailable")?;
    let most = (available.saturating_sub(FLOOR) as f64 * TAKEN) as u64;
    let interval_us = (pace > 0).then(|| 1_000_000 * (HUGE >> 20) / pace);
    Ok(Demand {
        pages: most.min(ready.freed) / HUGE,
        interval_us: interval_us.unwrap_or(0),
        floor: FLOOR,
    })
}

/// A running `isotherm compact --daemon`.
struct Daemon {
    child: Guarded,
    said: std::path::PathBuf,
}

impl Daemon {
    fn start(context: &BenchContext, proactiveness: &str) -> anyhow::Result<Self> {
        let said = context.scratch("compact.stdout");
        let mut command = Command::new(&context.isotherm);
        command.args(["compact", "--daemon", "--json"]);
        command.args(["--proactiveness", proactiveness]);
        // The limit ends the daemon also if the bench is killed and cannot end it.
        let limit = rest(context) + DAEMON_LIMIT;
        command.args(["--duration", &format!("{}s", limit.as_secs())]);
        command.stdout(File::create(&said).context("cannot write to the temporary folder")?);
        let child = Guarded::spawn(context, &mut command)?;
        Ok(Self { child, said })
    }

    fn stop(mut self) -> anyhow::Result<Ours> {
        self.child.check_running()?;
        self.child.stop()?;
        let end = line(&self.said, "{\"event\":\"end\"")?
            .context("`isotherm compact` did not tell of its end")?;
        let end: Value = serde_json::from_str(&format!("{{\"event\":\"end\"{end}"))?;
        let seconds = |value: &Value| value.as_f64().unwrap_or(f64::NAN) / 1e9;
        let rounds = &end["rounds"];
        Ok(Ours {
            rounds: rounds["count"].as_u64().context("no count of rounds")?,
            round_seconds: seconds(&rounds["took_ns"]),
            cpu_seconds: seconds(&rounds["cpu_ns"]) + seconds(&end["own_cpu_ns"]),
        })
    }
}

fn latency(faults: &[Fault]) -> Latency {
    let mut huge: Vec<&Fault> = faults.iter().filter(|fault| fault.huge).collect();
    huge.sort_unstable_by_key(|fault| fault.nanos);
    let us = |nanos: u64| nanos as f64 / 1e3;
    let mean = |faults: &mut dyn Iterator<Item = &&Fault>| {
        let (sum, count) = faults.fold((0, 0_u64), |(sum, n), fault| (sum + fault.nanos, n + 1));
        us(sum) / count as f64
    };
    let is_slow_unstalled = |fault: &&&Fault| !fault.stalled && fault.nanos > SLOW_NANOS;
    let nanos: Vec<u64> = huge.iter().map(|fault| fault.nanos).collect();
    Latency {
        faults: faults.len(),
        huge: huge.len(),
        stalled: huge.iter().filter(|fault| fault.stalled).count(),
        slow_unstalled: huge.iter().filter(is_slow_unstalled).count(),
        percentiles_us: PERCENTILES
            .into_iter()
            .filter_map(|percent| Some((percent, us(nearest_rank(&nanos, percent)?))))
            .collect(),
        max_us: us(nanos.last().copied().unwrap_or(0)),
        mean_us: mean(&mut huge.iter()),
        mean_guest_us: mean(&mut huge.iter().filter(|fault| !is_slow_unstalled(fault))),
    }
}

fn pace_name(pace: u64) -> String {
    match pace {
        0 => "full speed".into(),
        pace => format!("{pace} MiB/s"),
    }
}

const FAULT_HEAD: [&str; 13] = [
    "arm",
    "pace",
    "p5",
    "p25",
    "p50",
    "p75",
    "p95",
    "p99",
    "mean",
    "mean*",
    "stalled %",
    "slow* %",
    "huge %",
];
const WORK_HEAD: [&str; 14] = [
    "arm",
    "pace",
    "fragmented",
    "rested",
    "driven",
    "stalls",
    "success",
    "fail",
    "wakes",
    "fallbacks",
    "kcompactd CPU s",
    "ours CPU s",
    "driver CPU s",
    "driver s",
];

fn tables(runs: &[Run], defrag: &str) -> Vec<Table> {
    let mut faults = Table::new(
        format!(
            "2 MiB faults in us, medians of runs [least..most]; defrag is {defrag}; slow*: over 1 ms \
             without a stall (the hypervisor), which mean* leaves out"
        ),
        &FAULT_HEAD,
    );
    let mut work = Table::new(
        "scores, and what was done in the rest and while the driver ran",
        &WORK_HEAD,
    );
    let mut seen = Vec::new();
    for run in runs {
        let key = (run.arm, run.pace_mib_per_s);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let group: Vec<&Run> = runs
            .iter()
            .filter(|run| (run.arm, run.pace_mib_per_s) == key)
            .collect();
        let name = [run.arm.to_owned(), pace_name(run.pace_mib_per_s)];
        faults.row(
            name.clone()
                .into_iter()
                .chain(fault_cells(&group))
                .collect(),
        );
        work.row(name.into_iter().chain(work_cells(&group)).collect());
    }
    vec![faults, work]
}

fn fault_cells(runs: &[&Run]) -> Vec<String> {
    let of = |digits: usize, value: &dyn Fn(&Latency) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| value(&run.latency)).collect();
        cell(&values, digits)
    };
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    let mut cells: Vec<String> = (0..PERCENTILES.len())
        .map(|index| {
            of(0, &|latency| {
                latency
                    .percentiles_us
                    .get(index)
                    .map_or(f64::NAN, |(_, us)| *us)
            })
        })
        .collect();
    cells.push(of(0, &|latency| latency.mean_us));
    cells.push(of(0, &|latency| latency.mean_guest_us));
    cells.push(of(1, &|latency| share(latency.stalled, latency.huge)));
    cells.push(of(1, &|latency| {
        share(latency.slow_unstalled, latency.huge)
    }));
    cells.push(of(1, &|latency| share(latency.huge, latency.faults)));
    cells
}

fn work_cells(runs: &[&Run]) -> Vec<String> {
    let of = |digits: usize, value: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
        cell(&values, digits)
    };
    let count = |name: &'static str| {
        of(0, &|run| {
            let added = |counters: &Counters| counters.vmstat.get(name).copied().unwrap_or(0);
            (added(&run.during_rest) + added(&run.during_drive)) as f64
        })
    };
    vec![
        of(1, &|run| run.fragmented.score),
        of(1, &|run| run.rested.score),
        of(1, &|run| run.driven.score),
        count("compact_stall"),
        count("compact_success"),
        count("compact_fail"),
        count("compact_daemon_wake"),
        count("thp_fault_fallback"),
        of(2, &|run| {
            run.during_rest.kcompactd_seconds + run.during_drive.kcompactd_seconds
        }),
        of(2, &|run| run.ours.map_or(0.0, |ours| ours.cpu_seconds)),
        of(2, &|run| run.driver_system_seconds),
        of(1, &|run| run.driver_seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_fell_back_to_small_pages_are_counted_but_not_timed() {
        let fault = |nanos, huge, stalled| Fault {
            nanos,
            huge,
            stalled,
        };
        let latency = latency(&[
            fault(90_000, true, false),
            fault(500, false, false),
            fault(2_000_000, true, false),
            fault(1_500_000, true, true),
        ]);
        assert_eq!((latency.faults, latency.huge), (4, 3));
        assert_eq!((latency.stalled, latency.slow_unstalled), (1, 1));
        assert_eq!(latency.percentiles_us[0], (5, 90.0));
        assert!((latency.mean_us - 3590.0 / 3.0).abs() < 1e-9);
        assert!((latency.mean_guest_us - 795.0).abs() < 1e-9);
    }
}
