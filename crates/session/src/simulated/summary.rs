//! Results of a simulation for processes, schemes and the machine, and their distance from a live run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;

use anyhow::ensure;
use indexmap::IndexMap;
use isotherm_engine::Nanos;
use isotherm_policy::Refusal;
use isotherm_record::{Item, Reader};
use isotherm_sim::machine::Losses;
use isotherm_sim::simulation::{Event, Simulation};
use isotherm_sim::statistics::Distribution;
use serde::{Serialize, Serializer};

use isotherm_engine::units::{format_bytes, format_time};
use isotherm_policy::scheme::huge::WasteStatus;

use super::Occupancy;
use crate::messages::refused_words;

/// Sums that a simulation collects as it runs.
#[derive(Default)]
pub(crate) struct Summary {
    seconds: u64,
    used_byte_seconds: f64,
    /// Memory of all processes together; it looks at the simulation after each step.
    pub(super) all: Occupancy,
    processes: Vec<Usage>,
    idle_for: Nanos,
    schemes: BTreeMap<(usize, usize), SchemeReport>,
}

#[derive(Clone, Copy, Default)]
struct Usage {
    seconds: u64,
    rss: f64,
    swapped: f64,
    rss_max: u64,
}

impl Usage {
    fn add(&mut self, rss: u64, swapped: u64) {
        self.seconds += 1;
        self.rss += rss as f64;
        self.swapped += swapped as f64;
        self.rss_max = self.rss_max.max(rss);
    }

    fn rss_mean(&self) -> f64 {
        self.rss / self.seconds.max(1) as f64
    }

    fn swapped_mean(&self) -> f64 {
        self.swapped / self.seconds.max(1) as f64
    }
}

/// Returns the saved part of the maximum, in percent.
fn saved_percent(mean: f64, most: f64) -> f64 {
    100.0 * (1.0 - mean / most.max(1.0))
}

impl Summary {
    /// Makes the summary of a session; `idle_for` is the longest minimum age of its schemes.
    pub(crate) fn new(idle_for: Nanos) -> Self {
        Self {
            idle_for,
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, event: &Event, simulation: &Simulation) {
        let machine = simulation.machine();
        match event {
            Event::Second => {
                self.seconds += 1;
                self.used_byte_seconds += machine.used() as f64;
                self.processes
                    .resize(machine.processes().len(), Usage::default());
                let processes = machine.processes().iter().zip(&mut self.processes);
                for (process, usage) in processes.filter(|(process, _)| process.is_running()) {
                    usage.add(process.rss(), process.swapped());
                }
            }
            Event::Acted {
                context,
                done,
                outcomes,
                ..
            } => {
                for (operation, outcome) in done.iter().zip(outcomes) {
                    let at = (*context, operation.scheme);
                    let scheme = self.schemes.entry(at).or_insert_with(|| SchemeReport {
                        context: *context,
                        scheme: operation.scheme,
                        action: operation.action.name().to_owned(),
                        ..SchemeReport::default()
                    });
                    scheme.tried_bytes += operation.bytes;
                    scheme.applied_bytes += outcome.applied;
                    for (why, bytes) in outcome.refused_of_tried(operation) {
                        *scheme.refused_bytes.entry(why).or_default() += bytes;
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn report(self, simulation: &Simulation) -> SimulationReport {
        let machine = simulation.machine();
        let now = machine.now();
        let processes = machine.processes().iter().zip(&self.processes);
        let processes = processes.map(|(process, usage)| {
            let ended = process.ended.unwrap_or(now);
            let seconds = ended.since(process.started).as_secs_f64();
            let work = process.work().as_secs_f64();
            let losses = process.losses;
            ProcessReport {
                name: process.name().to_owned(),
                seconds,
                work_seconds: work,
                was_killed: process.was_killed,
                slowdown_percent: 100.0 * ((seconds - losses.first_faults) / work.max(1e-9) - 1.0),
                lost_seconds: losses,
                rss_mean_bytes: usage.rss_mean(),
                rss_max_bytes: usage.rss_max,
                swapped_mean_bytes: usage.swapped_mean(),
                major_faults: process.major_faults,
                huge_bytes: process.huge(),
            }
        });
        let processes: Vec<ProcessReport> = processes.collect();
        let stats = machine.stats();
        let monitors = (0..simulation.nr_contexts()).map(|context| {
            let cost = simulation.cost(context);
            cost.monitor_cpu.as_secs_f64()
        });
        let seconds = now.as_secs_f64();
        let stops = (0..simulation.nr_contexts()).map(|at| simulation.guard(at).nr_stops);
        SimulationReport {
            simulated_seconds: seconds,
            used_mean_bytes: self.used_byte_seconds / self.seconds.max(1) as f64,
            monitor_cpu_percent: 100.0 * monitors.sum::<f64>() / seconds.max(1e-9),
            acting_cpu_seconds: stats.acting_cpu.as_secs_f64(),
            reclaim_cpu_seconds: stats.reclaim_cpu.as_secs_f64(),
            huge_pages: HugePages {
                faults: stats.huge_faults,
                latency_us: machine.huge_fault_latency(),
                fallbacks: stats.huge_fallbacks,
                compacted_for: stats.compaction_successes,
                compaction_failures: stats.compaction_failures,
                compaction_stall_seconds: stats.compaction_stall.as_secs_f64(),
                kcompactd_cpu_seconds: stats.kcompactd_cpu.as_secs_f64(),
            },
            guard_stops: stops.sum(),
            huge_waste: (0..simulation.nr_contexts())
                .filter_map(|at| simulation.waste(at))
                .collect(),
            oom_kills: stats.oom_kills,
            idle_for_seconds: self.idle_for.as_secs_f64(),
            resident_mean_bytes: self.all.mean().near(),
            steady_resident_mean_bytes: self.all.steady_near(self.idle_for),
            all: self.all,
            processes,
            schemes: self.schemes.into_values().collect(),
            prediction: None,
            against: None,
        }
    }
}

/// Results of a simulation. `isotherm simulate --json` prints them in serialised form.
#[derive(Serialize)]
pub struct SimulationReport {
    simulated_seconds: f64,
    used_mean_bytes: f64,
    pub(crate) monitor_cpu_percent: f64,
    acting_cpu_seconds: f64,
    reclaim_cpu_seconds: f64,
    huge_pages: HugePages,
    guard_stops: u64,
    /// Huge pages that schemes have made under a bound on their waste, by context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    huge_waste: Vec<WasteStatus>,
    oom_kills: u64,
    /// Longest minimum age of the schemes: no memory can reach it earlier.
    idle_for_seconds: f64,
    resident_mean_bytes: f64,
    /// `resident_mean_bytes` without the first `idle_for_seconds`; `null` if these are more than half of the time.
    steady_resident_mean_bytes: Option<f64>,
    #[serde(skip)]
    all: Occupancy,
    processes: Vec<ProcessReport>,
    schemes: Vec<SchemeReport>,
    /// Prediction for a traced program, with its bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<ProgramPrediction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Comparison>,
}

/// A number and the bounds of its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounded {
    /// Predicted value.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Prediction for a traced program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProgramPrediction {
    /// Saved memory in percent of the program's memory without schemes.
    pub saved_percent: Bounded,
    /// `saved_percent` without the beginning, in which no memory could reach the minimum age; `null` if the beginning
    /// is more than half of the time.
    pub steady_saved_percent: Option<f64>,
    /// Additional run time in percent of the run time without schemes.
    pub slowdown_percent: Bounded,
    /// CPU time of acting in seconds.
    pub acting_cpu_seconds: Bounded,
}

impl ProgramPrediction {
    fn say(&self, text: &mut String) {
        let bounds = |of: &Bounded, digits: usize| {
            let Bounded { value, low, high } = of;
            format!("{value:.digits$} ({low:.digits$} to {high:.digits$})")
        };
        let steady = self.steady_saved_percent;
        let _ = writeln!(
            text,
            "predicted, with bounds: {} % of its memory saved{}, {} % slower, {} s of CPU for acting",
            bounds(&self.saved_percent, 1),
            steady.map_or_else(String::new, |steady| format!(
                " ({steady:.1} % in steady state)"
            )),
            bounds(&self.slowdown_percent, 2),
            bounds(&self.acting_cpu_seconds, 2),
        );
    }
}

/// Huge pages of faults, and the compaction for them.
#[derive(Serialize)]
struct HugePages {
    faults: u64,
    latency_us: Distribution,
    fallbacks: u64,
    compacted_for: u64,
    compaction_failures: u64,
    compaction_stall_seconds: f64,
    kcompactd_cpu_seconds: f64,
}

#[derive(Serialize)]
struct ProcessReport {
    name: String,
    seconds: f64,
    work_seconds: f64,
    was_killed: bool,
    /// Slowdown without first faults, which a program has anyway.
    slowdown_percent: f64,
    #[serde(serialize_with = "by_cause")]
    lost_seconds: Losses,
    rss_mean_bytes: f64,
    rss_max_bytes: u64,
    swapped_mean_bytes: f64,
    major_faults: u64,
    huge_bytes: u64,
}

/// A cause of losses: the key, the name for people, and the seconds.
type Cause = (&'static str, &'static str, fn(&Losses) -> f64);

const CAUSES: [Cause; 7] = [
    ("refaults", "refaults", |losses| losses.refaults),
    ("first_faults", "first faults", |losses| losses.first_faults),
    ("compaction", "compaction", |losses| losses.compaction),
    ("slow_nodes", "slow nodes", |losses| losses.tiers),
    ("translations", "translations", |losses| losses.translations),
    ("monitoring", "monitoring", |losses| losses.monitoring),
    ("cpu_contention", "others on its CPUs", |losses| {
        losses.contention
    }),
];

fn by_cause<S: Serializer>(losses: &Losses, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(CAUSES.map(|(key, _, of)| (key, of(losses))))
}

#[derive(Default, Serialize)]
struct SchemeReport {
    context: usize,
    scheme: usize,
    action: String,
    tried_bytes: u64,
    applied_bytes: u64,
    refused_bytes: BTreeMap<Refusal, u64>,
}

/// All processes together, compared with a live run of them.
#[derive(Serialize)]
struct Comparison {
    live_rss_mean_bytes: f64,
    live_rss_max_bytes: u64,
    live_swapped_mean_bytes: f64,
    /// Saved part of the maximum, in percent.
    live_saved_percent: f64,
    predicted_saved_percent: f64,
    /// Predicted minus live.
    error_points: f64,
}

impl SimulationReport {
    /// Compares all processes with those of a live record, over the simulated time: a trace is shorter than its
    /// recording by the first scan.
    ///
    /// # Errors
    /// Fails if the record cannot be read or holds no memory use.
    pub fn compare<R: Read>(&mut self, live: Reader<R>) -> anyhow::Result<()> {
        let mut usage = Usage::default();
        let mut started = None;
        for item in live {
            if let Item::Usage(sample) = item?
                && let rss = sample.rss.values().sum::<u64>()
                && rss > 0
            {
                let since = sample.time.since(*started.get_or_insert(sample.time));
                if since.as_secs_f64() >= self.simulated_seconds {
                    break;
                }
                usage.add(rss, sample.swap.values().sum());
            }
        }
        ensure!(usage.seconds > 0, "it holds no memory use of a process");
        ensure!(self.all.seconds() > 0.0, "no process was simulated");
        let live = saved_percent(usage.rss_mean(), usage.rss_max as f64);
        let predicted = saved_percent(self.all.mean().resident, self.all.resident_max());
        self.against = Some(Comparison {
            live_rss_mean_bytes: usage.rss_mean(),
            live_rss_max_bytes: usage.rss_max,
            live_swapped_mean_bytes: usage.swapped_mean(),
            live_saved_percent: live,
            predicted_saved_percent: predicted,
            error_points: predicted - live,
        });
        Ok(())
    }

    /// Record length that the steady state needs, if the simulated time is too short.
    pub fn needed(&self) -> Option<Nanos> {
        let needed = Occupancy::needed_for(Nanos((self.idle_for_seconds * 1e9) as u64));
        (needed > Nanos(0) && self.steady_resident_mean_bytes.is_none()).then_some(needed)
    }

    /// Returns the results as text for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "simulated {:.1} s; memory in use {} on average; watching took {:.2} % of a CPU, acting \
             {:.2} s, the kernel's reclaim {:.2} s\n",
            self.simulated_seconds,
            format_bytes(self.used_mean_bytes as u64),
            self.monitor_cpu_percent,
            self.acting_cpu_seconds,
            self.reclaim_cpu_seconds,
        );
        self.huge_pages.say(&mut text);
        let mut names: IndexMap<&str, Vec<&ProcessReport>> = IndexMap::new();
        for process in &self.processes {
            names.entry(&process.name).or_default().push(process);
        }
        for processes in names.values() {
            match processes.as_slice() {
                [process] => process.say(&mut text),
                alike => say_alike(alike, &mut text),
            }
        }
        self.say_steady(&mut text);
        for scheme in &self.schemes {
            scheme.say(&mut text);
        }
        for huge in &self.huge_waste {
            let _ = writeln!(
                text,
                "of {} that schemes made huge, {} were never written (at most {} may be); {} stayed small for that",
                format_bytes(huge.huge),
                format_bytes(huge.wasted),
                format_bytes(huge.max),
                format_bytes(huge.kept_small),
            );
        }
        if self.guard_stops > 0 {
            let stops = self.guard_stops;
            let _ = writeln!(text, "the guard stopped the schemes {stops} time(s)");
        }
        if let Some(predicted) = &self.prediction {
            predicted.say(&mut text);
        }
        if let Some(against) = &self.against {
            let _ = writeln!(
                text,
                "predicted: {:.1} % of its memory saved; live: {:.1} %; off by {:+.1} points",
                against.predicted_saved_percent, against.live_saved_percent, against.error_points
            );
        }
        text
    }

    /// Adds the mean RSS without the first part, in which no memory could be idle for the schemes' minimum age.
    fn say_steady(&self, text: &mut String) {
        if let Some(steady) = self
            .steady_resident_mean_bytes
            .filter(|_| self.idle_for_seconds > 0.0)
        {
            if self.processes.len() > 1 {
                let mean = format_bytes(self.resident_mean_bytes as u64);
                let _ = write!(text, "all processes: RSS {mean} on average; ");
            } else {
                text.push_str("  steady state: RSS ");
            }
            let _ = writeln!(
                text,
                "{} without the first {}, in which no memory could be idle for that long",
                format_bytes(steady as u64),
                format_time(Nanos((self.idle_for_seconds * 1e9) as u64)),
            );
        }
    }
}

impl SchemeReport {
    fn say(&self, text: &mut String) {
        let refused = refused_words(&self.refused_bytes);
        let _ = writeln!(
            text,
            "{}: {} tried, {} applied{}{refused}",
            self.action,
            format_bytes(self.tried_bytes),
            format_bytes(self.applied_bytes),
            if refused.is_empty() {
                ""
            } else {
                "; refused: "
            },
        );
    }
}

impl HugePages {
    fn say(&self, text: &mut String) {
        if self.faults + self.fallbacks > 0 {
            let _ = writeln!(
                text,
                "huge pages: {} at first faults ({:.0} us each, {:.0} us at most), {} of them by direct \
                 compaction ({:.3} s), {} not to be had",
                self.faults,
                self.latency_us.mean,
                self.latency_us.max,
                self.compacted_for,
                self.compaction_stall_seconds,
                self.fallbacks,
            );
        }
        if self.kcompactd_cpu_seconds > 0.0 {
            let _ = writeln!(
                text,
                "the compaction threads took {:.3} s",
                self.kcompactd_cpu_seconds
            );
        }
    }
}

/// Prints all processes of one name in one line: one line for each of thousands would be useless.
fn say_alike(processes: &[&ProcessReport], text: &mut String) {
    let mean = |of: fn(&ProcessReport) -> f64| {
        processes.iter().map(|process| of(process)).sum::<f64>() / processes.len() as f64
    };
    let worst = processes
        .iter()
        .map(|process| process.slowdown_percent)
        .fold(f64::MIN, f64::max);
    let killed = processes.iter().filter(|process| process.was_killed);
    let end = match killed.count() {
        0 => String::new(),
        killed => format!(", {killed} killed for want of memory"),
    };
    let of_each = |of: fn(&ProcessReport) -> f64| format_bytes(mean(of) as u64);
    let _ = writeln!(
        text,
        "{} ({} processes): {:.1} s for {:.1} s of work on average ({:+.2} %, {worst:+.2} % at worst){end}; \
         of each RSS {} on average, {} in swap; {} major faults in all",
        processes[0].name,
        processes.len(),
        mean(|process| process.seconds),
        mean(|process| process.work_seconds),
        mean(|process| process.slowdown_percent),
        of_each(|process| process.rss_mean_bytes),
        of_each(|process| process.swapped_mean_bytes),
        processes
            .iter()
            .map(|process| process.major_faults)
            .sum::<u64>(),
    );
    say_lost("lost in all", processes, text);
}

/// Adds what the processes lost together, by cause.
fn say_lost(head: &str, processes: &[&ProcessReport], text: &mut String) {
    let causes = CAUSES.iter().filter_map(|(_, name, of)| {
        let seconds = processes.iter().map(|process| of(&process.lost_seconds));
        let seconds: f64 = seconds.sum();
        (seconds.abs() >= 0.0005).then(|| format!("{name} {seconds:.3} s"))
    });
    let causes: Vec<String> = causes.collect();
    if !causes.is_empty() {
        let _ = writeln!(text, "  {head}: {}", causes.join(", "));
    }
}

impl ProcessReport {
    fn say(&self, text: &mut String) {
        let end = if self.was_killed {
            ", killed for want of memory"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{}: {:.1} s for {:.1} s of work ({:+.2} %){end}; RSS {} on average, {} at most; {} in swap on \
             average; {} major faults",
            self.name,
            self.seconds,
            self.work_seconds,
            self.slowdown_percent,
            format_bytes(self.rss_mean_bytes as u64),
            format_bytes(self.rss_max_bytes),
            format_bytes(self.swapped_mean_bytes as u64),
            self.major_faults,
        );
        say_lost("lost", &[self], text);
    }
}
