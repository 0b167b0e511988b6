//! Predictions by replays: what a traced program does on the simulated machine, under the schemes in question.
//!
//! The trace is read once and shared; each replay has a machine of its own, so that any number of them runs at a
//! time. A replay that nobody waits for any more ends within a simulated second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, ensure};
use isotherm_config::{ContextSpec, SessionSpec};
use isotherm_engine::calibration::Calibration;
use isotherm_engine::{Nanos, PAGE_SIZE, TargetId};
use isotherm_session::simulated::{Replay, Scenario, simulation};
use isotherm_sim::machine::{AreaSpec, MachineSpec, Pattern, Process, ProcessSpec, Swap};
use isotherm_sim::simulation::{Event, Simulation};

use super::bounds::NR_VARIATIONS;
use super::param::TraceTimes;
use super::plan::Plan;
use super::predict::{Estimate, Prediction, rounded, thinned};
use super::space::Settings;

/// Who foretells what comes of settings: a replay, or a live run.
pub trait Evaluate: Sync {
    /// What comes of the schemes with these settings; `None` where it was asked to stop. The same settings give the
    /// same answer, whoever else asks at the same time.
    ///
    /// # Errors
    /// Settings that cannot be evaluated.
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>>;
}

/// Parts that the resident memory is told in over time.
const SERIES_PARTS: usize = 120;

/// Replays of one trace.
#[derive(Debug)]
pub struct Replays {
    process: ProcessSpec,
    machine: MachineSpec,
    calibration: Calibration,
    stop: Arc<AtomicBool>,
    watching: SessionSpec,
    /// The program by itself.
    base: Totals,
    /// The same on other machines, by their place among those that bounds are found with.
    other_bases: [OnceLock<Totals>; NR_VARIATIONS],
}

/// What a replay came to, by itself.
#[derive(Clone, Debug, Default)]
struct Totals {
    /// Work that was done, and what was lost meanwhile: by watching, and by all else but first faults, which a program
    /// has anyway. When it ended is known to 10 ms only, what it lost exactly.
    work: f64,
    lost_to_watching: f64,
    lost: f64,
    /// On the first node.
    rss: Vec<u64>,
    swapped: f64,
    pool: f64,
    far: f64,
    huge: f64,
    acting_cpu: f64,
    monitor_cpu: f64,
    refaults: u64,
    guard_stops: u64,
    was_killed: bool,
}

impl Replays {
    /// Of `replay`. Replays it once as `watching` says, without schemes, which all else is compared with; `None` where
    /// it was asked to stop meanwhile.
    ///
    /// # Errors
    /// What cannot be simulated.
    pub fn new(
        watching: &SessionSpec,
        replay: Replay,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Option<Self>> {
        let mut replays = Self {
            process: replay.process,
            machine: replay.machine,
            calibration: replay.calibration,
            stop,
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

    /// The program without schemes: watched, as under them.
    pub fn base(&self) -> Prediction {
        self.prediction(&self.base, &self.base)
    }

    /// What `spec` asks for, without bounds; `None` where it was asked to stop.
    ///
    /// # Errors
    /// What cannot be simulated.
    pub fn predicted(&self, spec: &SessionSpec) -> anyhow::Result<Option<Prediction>> {
        self.predict(spec, &self.machine)
    }

    /// The machine that is replayed on.
    pub(super) fn machine(&self) -> &MachineSpec {
        &self.machine
    }

    /// What acting costs on it, as far as that was measured.
    pub(super) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// What `spec` asks for on `machine`, without bounds; `None` where it was asked to stop.
    pub(super) fn predict(
        &self,
        spec: &SessionSpec,
        machine: &MachineSpec,
    ) -> anyhow::Result<Option<Prediction>> {
        let totals = self.run(spec, machine)?;
        Ok(totals.map(|totals| self.prediction(&totals, &self.base)))
    }

    /// The same on the machine at this place among those that bounds are found with: against the program by itself on
    /// that one, as what others do to it is no schemes' doing.
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
            // Who was faster found the same.
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
            starts: vec![(Nanos(0), self.process.clone())],
            ..Scenario::default()
        };
        scenario.machine.seed = spec.seed;
        let end = scenario.end(None)?;
        let mut simulation = simulation(spec, scenario, end)?;
        let mut totals = Totals::default();
        let mut events = Vec::new();
        while simulation.step(&mut events) {
            let has_second = events.iter().any(|event| matches!(event, Event::Second));
            events.clear();
            if has_second {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                totals.look(&simulation);
            }
        }
        totals.finish(&simulation)?;
        Ok(Some(totals))
    }

    /// A replay beside the one without schemes.
    fn prediction(&self, of: &Totals, by_itself: &Totals) -> Prediction {
        let (resident, base) = (of.mean(of.rss_sum()), self.base.mean(self.base.rss_sum()));
        let pace = |seconds: f64, of: &Totals| seconds / of.work.max(1e-9);
        let seconds = of.work + of.lost + of.lost_to_watching;
        // By itself nobody watches it.
        let alone = pace(by_itself.work + by_itself.lost, by_itself);
        Prediction {
            seconds: rounded(seconds),
            resident_mean_bytes: rounded(resident),
            saved_mean_bytes: rounded(base - resident),
            saved_share: Estimate::new((base - resident) / base.max(1.0)),
            slowdown: Estimate::new(pace(seconds, of) / alone.max(1e-9) - 1.0),
            acting_cpu_seconds: Estimate::new(of.acting_cpu),
            monitor_cpu_seconds: rounded(of.monitor_cpu),
            refaults: of.refaults,
            swapped_mean_bytes: rounded(of.mean(of.swapped)),
            pool_mean_bytes: rounded(of.mean(of.pool)),
            far_mean_bytes: rounded(of.mean(of.far)),
            huge_mean_bytes: rounded(of.mean(of.huge)),
            guard_stops: of.guard_stops,
            was_killed: of.was_killed,
            resident_bytes: thinned(&of.rss, SERIES_PARTS),
        }
    }
}

/// Replays under one plan.
#[derive(Debug)]
pub struct PlannedReplays<'a> {
    /// What is replayed.
    pub replays: &'a Replays,
    /// What settings are of.
    pub plan: &'a Plan,
}

impl Evaluate for PlannedReplays<'_> {
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>> {
        let spec = self.plan.session(settings)?;
        self.replays.predicted(&spec)
    }
}

impl Totals {
    /// A second has passed.
    fn look(&mut self, simulation: &Simulation) {
        let machine = simulation.machine();
        let Some(process) = machine.processes().first().filter(|p| p.is_running()) else {
            return;
        };
        self.swapped += process.swapped() as f64;
        self.huge += process.huge() as f64;
        let pool = machine.swap().map_or(0, Swap::pool_pages);
        self.pool += (pool * PAGE_SIZE) as f64;
        let far = 1..machine.memory().nr_nodes();
        let far: u64 = far.map(|node| machine.anon_on(TargetId(0), node)).sum();
        let far = far * PAGE_SIZE;
        self.far += far as f64;
        self.rss.push(process.rss().saturating_sub(far));
    }

    /// It is over.
    fn finish(&mut self, simulation: &Simulation) -> anyhow::Result<()> {
        let machine = simulation.machine();
        let process = machine.processes().first();
        let process: &Process = process.context("the traced program never started")?;
        let losses = process.losses();
        self.work = process.work().as_secs_f64();
        self.lost_to_watching = losses.monitoring;
        self.lost = losses.total() - losses.first_faults - losses.monitoring;
        self.acting_cpu = machine.stats().acting_cpu.as_secs_f64();
        self.refaults = process.major_faults();
        self.was_killed = process.was_killed();
        for context in 0..simulation.nr_contexts() {
            self.monitor_cpu += simulation.cost(context).monitor_cpu.as_secs_f64();
            self.guard_stops += simulation.guard(context).nr_stops;
        }
        Ok(())
    }

    fn rss_sum(&self) -> f64 {
        self.rss.iter().map(|rss| *rss as f64).sum()
    }

    /// A sum over seconds by how many they were.
    fn mean(&self, sum: f64) -> f64 {
        sum / self.rss.len().max(1) as f64
    }
}

/// The times of a trace, and its digest: the same for the same accesses of the same memory.
pub fn trace_facts(replay: &Replay) -> anyhow::Result<(TraceTimes, u64)> {
    let area = replay.process.areas.first();
    let Some(AreaSpec {
        pattern: Pattern::Trace(trace, _),
        ..
    }) = area
    else {
        anyhow::bail!("it is no replay of a trace");
    };
    let scans = trace.nr_scans().max(1) as u64;
    let times = TraceTimes {
        duration: trace.duration(),
        interval: Nanos(trace.duration().0 / scans),
    };
    Ok((times, trace.digest()))
}
