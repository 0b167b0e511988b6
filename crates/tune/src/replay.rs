//! Predictions by replays: the behaviour of a traced program on the simulated machine, under given schemes.
//!
//! The trace is read once and shared. Each replay has a machine of its own, so that any number of them runs at a time.
//! A replay that is stopped ends within a simulated second.
//!
//! A sample of the trace's blocks can represent all of them. Each operation on a page then takes longer by the sampling
//! factor, and results are scaled up; they are not exact ([`Replays::coarse`]).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, ensure};
use isotherm_config::{ContextSpec, SessionSpec};
use isotherm_engine::Nanos;
use isotherm_engine::calibration::Calibration;
use isotherm_session::simulated::{Occupancy, Replay, Scenario, simulation};
use isotherm_sim::machine::{AreaSpec, MachineSpec, Pattern, SimProcessSpec, Trace};
use isotherm_sim::simulation::{Event, Simulation};

use super::param::TraceTimes;
use super::plan::TuningPlan;
use super::predict::{Estimate, Prediction, rounded, thinned};
use super::space::Settings;
use crate::fnv::{FNV_START, fnv};

/// Predicts the results of settings, by a replay or a live run.
pub trait Evaluate: Sync {
    /// Returns the prediction under the schemes with these settings; `None` if it was asked to stop. The same settings
    /// give the same prediction, whatever is evaluated at the same time. Fails if the settings cannot be evaluated.
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>>;
}

const SERIES_PARTS: usize = 120;

/// Number of other machines that bounds are found with.
pub(super) const NR_VARIATIONS: usize = 4;

/// Callback after each simulated second of each replay; a replay goes on while it returns `true`.
#[derive(Clone)]
pub struct EachSecond(Arc<dyn Fn() -> bool + Send + Sync>);

impl EachSecond {
    /// Creates a callback of `goes_on`.
    pub fn new(goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(goes_on))
    }
}

impl From<Arc<AtomicBool>> for EachSecond {
    fn from(stop: Arc<AtomicBool>) -> Self {
        Self::new(move || !stop.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for EachSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EachSecond")
    }
}

/// Replays of one trace.
#[derive(Debug)]
pub struct Replays {
    processes: Vec<(Nanos, SimProcessSpec)>,
    pub(super) machine: MachineSpec,
    /// Costs of acting on the machine, as far as they were measured.
    pub(super) calibration: Calibration,
    each_second: EachSecond,
    /// One block in this many is replayed.
    one_in: u32,
    /// Ratio of the whole trace's memory to that of the replayed blocks.
    times: f64,
    watching: SessionSpec,
    base: Totals,
    /// Totals without schemes on the other machines that bounds are found with, by the machine's place.
    other_bases: [OnceLock<Totals>; NR_VARIATIONS],
}

#[derive(Clone, Debug, Default)]
struct Totals {
    /// Progress of each process that ran.
    progress: Vec<Progress>,
    occupancy: Occupancy,
    /// Longest minimum age of the schemes.
    idle_for: Nanos,
    acting_cpu: f64,
    monitor_cpu: f64,
    refaults: u64,
    guard_stops: u64,
    was_killed: bool,
}

/// Work that a process did, and time that it lost meanwhile, in seconds. The end of a process is known to 10 ms only,
/// the losses exactly.
#[derive(Clone, Copy, Debug)]
struct Progress {
    started: f64,
    work: f64,
    lost_to_watching: f64,
    /// Time lost to everything else but first faults, which a program has anyway.
    lost: f64,
    /// CPU time that its work takes, seconds.
    weight: f64,
}

impl Replays {
    /// Creates replays of `replay`. Replays it once as `watching` asks, without schemes, as the base of all
    /// comparisons. Returns `None` if it was asked to stop meanwhile. Fails if the trace cannot be simulated.
    pub fn new(
        watching: &SessionSpec,
        replay: Replay,
        each_second: impl Into<EachSecond>,
    ) -> anyhow::Result<Option<Self>> {
        Self::of(watching, replay, (1, 1.0), each_second.into())
    }

    /// Creates replays of one block in `one_in`. Fails if the trace cannot be simulated, or if the sample has no block.
    pub fn coarse(
        watching: &SessionSpec,
        replay: &Replay,
        one_in: u32,
        each_second: impl Into<EachSecond>,
    ) -> anyhow::Result<Option<Self>> {
        let some = replay.one_in(one_in);
        let (some, times) =
            some.with_context(|| format!("of one block in {one_in} none is left"))?;
        Self::of(watching, some, (one_in, times), each_second.into())
    }

    fn of(
        watching: &SessionSpec,
        replay: Replay,
        (one_in, times): (u32, f64),
        each_second: EachSecond,
    ) -> anyhow::Result<Option<Self>> {
        let mut replays = Self {
            processes: replay.processes,
            machine: replay.machine,
            calibration: replay.calibration,
            each_second,
            one_in,
            times,
            watching: watching.clone(),
            base: Totals::default(),
            other_bases: [const { OnceLock::new() }; NR_VARIATIONS],
        };
        let Some(base) = replays.run(watching, &replays.machine)? else {
            return Ok(None);
        };
        replays.base = base;
        Ok(Some(replays))
    }

    /// Returns the prediction without schemes, watched as under them.
    pub fn base(&self) -> Prediction {
        self.prediction(&self.base, &self.base)
    }

    /// Returns the prediction for `spec`, without bounds; `None` if it was asked to stop. Fails if `spec` cannot be
    /// simulated.
    pub fn predicted(&self, spec: &SessionSpec) -> anyhow::Result<Option<Prediction>> {
        let totals = self.run(spec, &self.machine)?;
        Ok(totals.map(|totals| self.prediction(&totals, &self.base)))
    }

    /// Returns the prediction for `spec` on one of the machines that bounds are found with. Its base is the program
    /// without schemes on that machine, so that the load of others is not attributed to schemes.
    pub(super) fn predict_on(
        &self,
        place: usize,
        spec: &SessionSpec,
        machine: &MachineSpec,
    ) -> anyhow::Result<Option<Prediction>> {
        if self.other_bases[place].get().is_none() {
            let Some(base) = self.run(&self.watching, machine)? else {
                return Ok(None);
            };
            // A faster thread found the same totals.
            self.other_bases[place].set(base).ok();
        }
        let base = self.other_bases[place].get().unwrap_or(&self.base);
        let totals = self.run(spec, machine)?;
        Ok(totals.map(|totals| self.prediction(&totals, base)))
    }

    fn run(&self, spec: &SessionSpec, machine: &MachineSpec) -> anyhow::Result<Option<Totals>> {
        let mut schemes = spec.contexts.iter().flat_map(ContextSpec::schemes);
        ensure!(
            machine.nodes.len() > 1 || !schemes.any(|scheme| scheme.action.migrates()),
            "the schemes move memory between nodes, and a trace is replayed on a machine of one; give it a second (--far \
             64G --memory-bound 20%), or try them by `isotherm simulate SCENARIO -c FILE`, with a scenario that has nodes"
        );
        let mut scenario = Scenario {
            machine: machine.clone(),
            starts: self.processes.clone(),
            ..Scenario::default()
        };
        scenario.machine.seed = spec.seed;
        let end = scenario.end(None)?;
        let mut simulation = simulation(&self.scaled(spec), scenario, end)?;
        let mut totals = Totals {
            idle_for: spec.idle_for(),
            // Nodes beyond the first exist only where a user asked for them.
            occupancy: Occupancy::new(machine.nodes.len() > 1),
            ..Totals::default()
        };
        let mut events = Vec::new();
        while simulation.step(&mut events) {
            totals.occupancy.look(&simulation);
            let has_second = events.iter().any(|event| matches!(event, Event::Second));
            events.clear();
            if has_second && !(self.each_second.0)() {
                return Ok(None);
            }
        }
        totals.occupancy.look(&simulation);
        totals.finish(&simulation, &self.processes)?;
        Ok(Some(totals))
    }

    /// Scales quotas down to the share of the memory that is replayed.
    fn scaled(&self, spec: &SessionSpec) -> SessionSpec {
        let mut spec = spec.clone();
        for context in &mut spec.contexts {
            for scheme in context.acting.iter_mut().flat_map(|a| &mut a.schemes) {
                // A quota of 0 is no limit.
                let bytes = scheme.quota.bytes;
                scheme.quota.bytes = (bytes / u64::from(self.one_in)).max(bytes.min(1));
            }
        }
        spec
    }

    /// Scales a sample's prediction up to the whole trace.
    fn whole(&self, mut of: Prediction) -> Prediction {
        if self.one_in == 1 {
            return of;
        }
        for bytes in [
            &mut of.resident_mean_bytes,
            &mut of.saved_mean_bytes,
            &mut of.swapped_mean_bytes,
            &mut of.pool_mean_bytes,
            &mut of.far_mean_bytes,
            &mut of.huge_mean_bytes,
        ] {
            *bytes = rounded(*bytes * self.times);
        }
        for number in of.resident_bytes.iter_mut().chain([&mut of.refaults]) {
            *number = (*number as f64 * self.times) as u64;
        }
        of
    }

    /// Returns the saved share in steady state; or the record length that it needs, if this record is too short.
    fn steady(&self, of: &Totals) -> (Option<f64>, Option<Nanos>) {
        let Some(base) = self.base.occupancy.steady_near(of.idle_for) else {
            return (None, Some(Occupancy::needed_for(of.idle_for)));
        };
        let resident = of.occupancy.steady_near(of.idle_for);
        let share = resident.map(|resident| rounded((base - resident) / base.max(1.0)));
        (share, None)
    }

    /// Returns the prediction from a replay's totals and those without schemes on the same machine.
    fn prediction(&self, of: &Totals, by_itself: &Totals) -> Prediction {
        let (steady_share, needed_ns) = self.steady(of);
        let mean = of.occupancy.mean();
        let (resident, base) = (mean.near(), self.base.occupancy.mean().near());
        // The program without Isotherm is not watched.
        let alone = by_itself.pace(|process| process.work + process.lost);
        let pace = of.pace(Progress::seconds);
        let ends = of.progress.iter().map(|p| p.started + p.seconds());
        self.whole(Prediction {
            seconds: rounded(ends.fold(0.0, f64::max)),
            resident_mean_bytes: rounded(resident),
            saved_mean_bytes: rounded(base - resident),
            saved_share: Estimate::new((base - resident) / base.max(1.0)),
            steady_share,
            needed_ns,
            slowdown: Estimate::new(pace / alone.max(1e-9) - 1.0),
            acting_cpu_seconds: Estimate::new(of.acting_cpu),
            monitor_cpu_seconds: rounded(of.monitor_cpu),
            refaults: of.refaults,
            swapped_mean_bytes: rounded(mean.swapped),
            pool_mean_bytes: rounded(mean.pool),
            far_mean_bytes: rounded(mean.far),
            huge_mean_bytes: rounded(mean.huge),
            guard_stops: of.guard_stops,
            was_killed: of.was_killed,
            resident_bytes: thinned(&of.occupancy.near_by_second(), SERIES_PARTS),
        })
    }
}

impl Progress {
    fn seconds(&self) -> f64 {
        self.work + self.lost + self.lost_to_watching
    }
}

/// Replays under one plan.
#[derive(Debug)]
pub struct PlannedReplays<'a> {
    /// Replays of the trace.
    pub replays: &'a Replays,
    /// Plan that settings are applied to.
    pub plan: &'a TuningPlan,
}

impl Evaluate for PlannedReplays<'_> {
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>> {
        let spec = self.plan.session(settings)?;
        self.replays.predicted(&spec)
    }
}

impl Totals {
    fn finish(
        &mut self,
        simulation: &Simulation,
        specs: &[(Nanos, SimProcessSpec)],
    ) -> anyhow::Result<()> {
        let machine = simulation.machine();
        let processes = machine.processes();
        ensure!(!processes.is_empty(), "the traced program never started");
        // Processes start in the order in which they are given.
        self.progress = { processes.iter().zip(specs) }
            .map(|(process, (started, spec))| {
                let losses = process.losses;
                Progress {
                    started: started.as_secs_f64(),
                    work: process.work().as_secs_f64(),
                    lost_to_watching: losses.monitoring,
                    lost: losses.total() - losses.first_faults - losses.monitoring,
                    weight: spec.cpu_seconds(),
                }
            })
            .collect();
        self.acting_cpu = machine.stats().acting_cpu.as_secs_f64();
        self.refaults = processes.iter().map(|process| process.major_faults).sum();
        self.was_killed = processes.iter().any(|process| process.was_killed);
        for context in 0..simulation.nr_contexts() {
            self.monitor_cpu += simulation.cost(context).monitor_cpu.as_secs_f64();
            self.guard_stops += simulation.guard(context).nr_stops;
        }
        Ok(())
    }

    /// Returns the seconds for a second of work: the mean over all processes, weighted by the CPU time that their work
    /// takes. A process that waits for others takes none, and is as slow as they are.
    fn pace(&self, seconds: impl Fn(&Progress) -> f64) -> f64 {
        let all: f64 = self.progress.iter().map(|process| process.weight).sum();
        let weight = |process: &Progress| {
            if all > 0.0 {
                process.weight / all
            } else {
                1.0 / self.progress.len() as f64
            }
        };
        let paces = { self.progress.iter() }
            .map(|process| weight(process) * seconds(process) / process.work.max(1e-9));
        paces.sum()
    }
}

/// Returns the times of a trace, and its digest: the same for the same accesses of the same memory.
pub fn trace_facts(replay: &Replay) -> anyhow::Result<(TraceTimes, u64)> {
    let mut longest: Option<&Trace> = None;
    let mut digest = FNV_START;
    for (at, process) in &replay.processes {
        let area = process.areas.first();
        let Some(AreaSpec {
            pattern: Pattern::Trace(trace, _),
            ..
        }) = area
        else {
            anyhow::bail!("it is no replay of a trace");
        };
        for number in [at.0, trace.digest()] {
            digest = fnv(digest, &number.to_le_bytes());
        }
        if longest.is_none_or(|longest| longest.duration() < trace.duration()) {
            longest = Some(trace);
        }
    }
    let trace = longest.context("it is a replay of no process")?;
    let scans = trace.nr_scans().max(1) as u64;
    let times = TraceTimes {
        duration: trace.duration(),
        interval: Nanos(trace.duration().0 / scans),
    };
    Ok((times, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_others_weighs_nothing() {
        let process = |lost: f64, weight: f64| Progress {
            started: 0.0,
            work: 10.0,
            lost_to_watching: 0.0,
            lost,
            weight,
        };
        let check = |of: &[Progress], wanted: f64| {
            let totals = Totals {
                progress: of.to_vec(),
                ..Totals::default()
            };
            let pace = totals.pace(Progress::seconds);
            assert!((pace - wanted).abs() < 1e-9, "{of:?}: {pace}");
        };
        check(&[process(1.0, 10.0)], 1.1);
        check(&[process(1.0, 10.0), process(0.0, 0.0)], 1.1);
        check(&[process(1.0, 5.0), process(0.0, 15.0)], 1.025);
        // Their CPU time is not known.
        check(&[process(1.0, 0.0), process(0.0, 0.0)], 1.05);
    }
}
