//! The guard's measurements: waits, refaults, pressure and the targets' own speed, once a second; and the budget of
//! acting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::ensure;
use isotherm_config::{ActingSpec, ContextSpec};
use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::act::ProcessActuator;
use isotherm_linux::clock;
use isotherm_linux::load::CpuTimes;
use isotherm_linux::pressure;
use isotherm_policy::guard::{
    ActMeter, Guard, GuardLimits, GuardSignals, GuardStatus, OnLoan, Pools, StepTime, WaitSource,
    waited_share,
};
use isotherm_record::{GuardSample, Item};

use super::file_waits::{FileWaits, FilesRead};
use super::idle::IdleMeter;
use super::progress::Progress;
use super::waits::Waits;
use crate::session::Session;
use crate::start::parts::group_of;

const PERIOD: Nanos = Nanos(1_000_000_000);
/// Longest time between two reports of the guard's state.
const TOLD_EVERY: Nanos = Nanos(10_000_000_000);

/// Refuses limits on values that this kernel does not report.
fn can_be_kept(limits: GuardLimits, group: Option<&Path>) -> anyhow::Result<()> {
    ensure!(
        limits.max_psi.is_none() || pressure::some_memory_us(group).is_some(),
        "--max-psi: this kernel does not tell memory pressure (CONFIG_PSI=y, and psi=1 on its \
         command line, would enable it); --max-refaults and --max-slowdown work without"
    );
    Ok(())
}

pub(super) struct Meters {
    context: usize,
    pub(super) name: Option<String>,
    is_physical: bool,
    needs_psi: bool,
    group: Option<PathBuf>,
    pub(super) waits: Waits,
    /// Waits for pages of files, where the page cache is dropped as well.
    file_waits: FileWaits,
    /// Remark for the user on the measurement of waits.
    pub(super) lacks: Option<String>,
    progress: Option<Progress>,
    pub(super) acting: ActMeter,
    idle: IdleMeter,
    times: Option<(Nanos, CpuTimes)>,
    next: Nanos,
    next_told: Nanos,
    last: Option<Nanos>,
    psi_before: Option<u64>,
}

/// Returns the remarks for the user on the measurement of waits, without repetitions.
pub(super) fn lacks_of<'a>(meters: impl Iterator<Item = &'a Meters>) -> Vec<String> {
    let lacks: BTreeSet<String> = meters.filter_map(|meters| meters.lacks.clone()).collect();
    lacks.into_iter().collect()
}

impl Meters {
    pub(super) fn new(
        at: usize,
        context: &ContextSpec,
        acting: &ActingSpec,
    ) -> anyhow::Result<Self> {
        let limits = acting.limits;
        let group = group_of(&context.targets)?;
        can_be_kept(limits, group.as_deref())?;
        let command = acting.progress_command.as_deref();
        let progress = command.map(Progress::start).transpose()?;
        let waits = Waits::new();
        let bounds_waits = limits.max_slowdown.is_some() || limits.max_refault_wait.is_some();
        let lacks = waits.lacks().filter(|_| bounds_waits && !acting.is_dry_run);
        Ok(Self {
            context: at,
            name: context.name.clone(),
            is_physical: context.samples_frames(),
            needs_psi: limits.max_psi.is_some(),
            group,
            waits,
            file_waits: FileWaits::default(),
            lacks,
            progress,
            acting: ActMeter::new(acting.act_budget),
            idle: IdleMeter::default(),
            times: None,
            next: Nanos(0),
            next_told: Nanos(0),
            last: None,
            psi_before: None,
        })
    }

    /// Returns the state of `guard`, with the budget that is measured here.
    pub(super) fn status(&self, guard: &Guard) -> GuardStatus {
        GuardStatus {
            budget: self.acting.status(),
            ..guard.status()
        }
    }

    pub(super) fn can_set(&self, limits: GuardLimits) -> anyhow::Result<()> {
        can_be_kept(limits, self.group.as_deref())
    }

    /// Changes limits and budget while running; [`Meters::can_set`] checks that the limits can be kept.
    pub(super) fn set(&mut self, limits: GuardLimits, act_budget: Option<f64>) {
        self.needs_psi = limits.max_psi.is_some();
        self.acting.set_share(act_budget);
    }

    /// Begins a step of acting. Returns the time that it may take.
    pub(super) fn begin(&mut self, now: Nanos, guard: &Guard) -> StepTime {
        let idle_cpus = self.idle.stop(now);
        self.acting.begin(now, idle_cpus, guard)
    }

    /// Ends a step of acting. `spent` is its CPU time and its elapsed time; `times` has the time for which each target was
    /// interrupted.
    pub(super) fn end(
        &mut self,
        now: Nanos,
        spent: (Nanos, Nanos),
        times: &BTreeMap<TargetId, Nanos>,
        loan: (OnLoan, &mut Guard),
    ) {
        let interrupted = self.waits.interrupted(times);
        self.acting.end(now, spent, interrupted, loan);
        self.idle.start(now);
    }

    /// Adds the CPU time `cpu` that the kernel took for acting in the time that has `elapsed`.
    pub(super) fn kernel_took(
        &mut self,
        now: Nanos,
        cpu: Nanos,
        elapsed: Option<Nanos>,
        guard: &mut Guard,
    ) {
        // The processors on which the kernel acted would have been idle.
        let acted = elapsed.filter(|elapsed| elapsed.0 > 0);
        let acted = acted.map_or(0.0, |elapsed| cpu.as_secs_f64() / elapsed.as_secs_f64());
        let idle_cpus = self.idle.stop(now).map(|idle| idle + acted);
        self.acting.others_acted(now, cpu, idle_cpus, guard);
        self.idle.start(now);
    }

    /// Reads the meters, if a second has passed, and passes the signals to the guard. Returns the guard's state if it
    /// has changed, and every 10 s if not. `actuator` executes the operations, if the paged-out pages are known.
    pub(super) fn observe(
        &mut self,
        now: Nanos,
        session: &mut Session,
        guard: &mut Guard,
        drops_cache: bool,
        actuator: Option<&mut ProcessActuator>,
    ) -> Option<Item> {
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        let files = drops_cache
            .then(|| session.monitor.page_cache(self.context))
            .flatten();
        let files = files.map(|page_cache| self.file_waits.look(now, page_cache));
        let is_resting = guard.is_resting();
        let is_first = self.last.is_none();
        let (signals, pools) = self.signals(now, session, files, is_resting, actuator);
        if is_first {
            let lived = if self.is_physical {
                clock::since_boot()
            } else {
                self.waits.lived()
            };
            guard.grant(now, lived);
        }
        // The normal speed must be known before anything is acted on.
        let progress = self.progress.as_ref();
        if progress.is_some_and(|progress| progress.baseline.is_none()) {
            return None;
        }
        let changed = guard.observe(now, signals, pools);
        if !changed && now < self.next_told {
            return None;
        }
        self.next_told = now + TOLD_EVERY;
        Some(Item::Guard(GuardSample {
            time: now,
            context: self.name.clone(),
            status: self.status(guard),
        }))
    }

    fn signals(
        &mut self,
        now: Nanos,
        session: &Session,
        files: Option<FilesRead>,
        is_resting: bool,
        actuator: Option<&mut ProcessActuator>,
    ) -> (GuardSignals, Pools) {
        let elapsed = self.last.replace(now).map(|last| now.since(last));
        let mut waited = if self.is_physical {
            self.waits.look_at_machine(now)
        } else {
            let live = session.live().into_iter();
            let of_context = live.filter(|(id, _)| session.monitor.context_of(*id) == self.context);
            let group = self.group.as_deref();
            self.waits.look(now, elapsed, of_context, group, actuator)
        };
        let mut pools = Pools::processes(waited.resident);
        if let Some(files) = files {
            pools.cache_share = waited.add_files(&files);
            pools.page_cache = Some(files.cached);
        }
        let psi_total = self
            .needs_psi
            .then(|| pressure::some_memory_us(self.group.as_deref()))
            .flatten();
        let psi_before = std::mem::replace(&mut self.psi_before, psi_total);
        let lost_speed = self
            .progress
            .as_mut()
            .and_then(|progress| progress.slowdown(is_resting));
        self.learn_share(now, waited.cpu_s);
        let Some(seconds) = elapsed.map(Nanos::as_secs_f64).filter(|s| *s > 0.0) else {
            return (GuardSignals::default(), pools);
        };
        let share = |time: Nanos| waited_share(1, time, waited.cpu_s, seconds);
        let psi = psi_total
            .zip(psi_before)
            .map(|(total, before)| total.saturating_sub(before) as f64 / 1e6 / seconds);
        let mut signals = GuardSignals {
            slowdown: waited.together.map(share),
            refaults_per_s: Some(waited.refaults as f64 / seconds),
            psi,
            waited: waited.longest,
            waited_by: waited.by,
            refault_cost: self.waits.cost().map(|cost| {
                // Threads that run side by side wait side by side.
                let threads = waited.cpu_s / seconds / self.waits.nr_seen().max(1) as f64;
                Nanos((cost.0 as f64 / threads.max(1.0)) as u64)
            }),
        };
        if let Some(lost) = lost_speed {
            if signals.slowdown.is_none_or(|waited| lost > waited) && files.is_some() {
                pools.cache_share = None;
            }
            signals.slowdown = Some(signals.slowdown.map_or(lost, |waited| waited.max(lost)));
            let lost = Nanos((lost * seconds * 1e9) as u64);
            if signals.waited.is_none_or(|waited| lost > waited) {
                signals.waited = Some(lost);
                signals.waited_by = Some(WaitSource::Progress);
            }
        }
        (signals, pools)
    }

    fn learn_share(&mut self, now: Nanos, cpu_s: f64) {
        let Some(times) = CpuTimes::read() else {
            self.acting.set_target_share(1.0);
            return;
        };
        if let Some((before, then)) = self.times.replace((now, times))
            && !self.is_physical
        {
            let wall = now.since(before).as_secs_f64() * f64::from(times.nr);
            let busy = wall - times.idle.since(then.idle).as_secs_f64();
            let share = if busy > 0.0 { cpu_s / busy } else { 1.0 };
            self.acting.set_target_share(share.clamp(0.0, 1.0));
        }
    }
}
