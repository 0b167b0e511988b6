//! The guard's eyes: waits, refaults, pressure and the targets' own speed, once a second; and the
//! budget of acting.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use isotherm_engine::guard::{
    ActBudget, Guard, GuardLimits, GuardSignals, GuardStatus, STEP, WaitSource, room_of,
    waited_share,
};
use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::load::CpuTimes;
use isotherm_linux::{cgroup, pressure};

use super::Setup;
use super::idle::IdleMeter;
use super::progress::Progress;
use super::waits::Waits;
use crate::recorder::Session;
use crate::units::{parse_duration, parse_share};

const PERIOD: Nanos = Nanos(1_000_000_000);
/// What targets may lose unless the user says otherwise.
const MAX_SLOWDOWN: f64 = 0.01;
/// What acting may take from busy CPUs unless the user says otherwise.
const ACT_BUDGET: f64 = 0.05;
/// How the guard stands is told at least so often.
const TOLD_EVERY: Nanos = Nanos(10_000_000_000);

/// What targets may lose by being acted on.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "The guard")]
pub(crate) struct GuardArgs {
    /// Share of their time that targets may lose [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "no_guard")]
    pub(crate) max_slowdown: Option<f64>,

    /// Refaults (major faults) per second that targets may have, e.g. 100 or 100/s
    #[arg(long, value_name = "N/s", value_parser = parse_rate, conflicts_with = "no_guard")]
    pub(crate) max_refaults: Option<f64>,

    /// Share of time in which some task may wait for memory (PSI)
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "no_guard")]
    pub(crate) max_psi: Option<f64>,

    /// Time that one target may wait for memory within a second, e.g. 50ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "no_guard")]
    pub(crate) max_refault_wait: Option<Nanos>,

    /// Share of one CPU that acting may take where no CPU is idle [default: 5%; none with --no-guard]
    #[arg(long, value_name = "SHARE", value_parser = parse_budget)]
    pub(crate) act_budget: Option<f64>,

    /// A command that prints how far the targets have got: a number that counts up. Their speed is
    /// then part of the slowdown
    #[arg(long, value_name = "COMMAND", conflicts_with = "no_guard")]
    pub(crate) progress_cmd: Option<String>,

    /// Act whatever it costs the targets
    #[arg(long)]
    pub(crate) no_guard: bool,
}

fn parse_budget(text: &str) -> anyhow::Result<f64> {
    let share = parse_share(text)?;
    ensure!(
        share > 0.0,
        "'{text}' is nothing; schemes could not act at all"
    );
    Ok(share)
}

fn parse_rate(text: &str) -> anyhow::Result<f64> {
    let number = text.strip_suffix("/s").unwrap_or(text).replace(',', "");
    let rate: f64 = number
        .trim()
        .parse()
        .map_err(|_| anyhow::anyhow!("'{text}' is not a number per second, e.g. 100/s"))?;
    ensure!(
        rate.is_finite() && rate > 0.0,
        "'{text}' is not above zero; nothing could be acted on"
    );
    Ok(rate)
}

impl GuardArgs {
    /// The limits, on top of those of a configuration.
    pub(crate) fn limits(&self, configured: GuardLimits) -> GuardLimits {
        if self.no_guard {
            return GuardLimits::default();
        }
        let limits = GuardLimits {
            max_slowdown: self.max_slowdown.or(configured.max_slowdown),
            max_refaults_per_s: self.max_refaults.or(configured.max_refaults_per_s),
            max_psi: self.max_psi.or(configured.max_psi),
            max_refault_wait: self.max_refault_wait.or(configured.max_refault_wait),
        };
        if limits.is_limited() {
            return limits;
        }
        GuardLimits {
            max_slowdown: Some(MAX_SLOWDOWN),
            ..limits
        }
    }
}

impl GuardArgs {
    /// Share of one CPU that acting may take, on top of that of a configuration.
    pub(crate) fn act_budget(&self, configured: Option<f64>) -> Option<f64> {
        let by_default = (!self.no_guard).then_some(ACT_BUDGET);
        self.act_budget.or(configured).or(by_default)
    }
}

/// Refuses limits on what this kernel does not tell.
fn can_be_kept(limits: GuardLimits, group: Option<&Path>) -> anyhow::Result<()> {
    ensure!(
        limits.max_psi.is_none() || pressure::some_memory_us(group).is_some(),
        "--max-psi: this kernel does not tell memory pressure (CONFIG_PSI=y, and psi=1 on its \
         command line, would enable it); --max-refaults and --max-slowdown work without"
    );
    Ok(())
}

/// The guard and what it looks at.
pub(super) struct Watch {
    context: usize,
    is_physical: bool,
    guard: Guard,
    limits: GuardLimits,
    needs_psi: bool,
    group: Option<PathBuf>,
    waits: Waits,
    progress: Option<Progress>,
    budget: ActBudget,
    idle: IdleMeter,
    /// The part of the CPU time in use that is the targets': of what acting takes from others, they
    /// lose so much.
    target_share: f64,
    /// Share of acting's time that targets have lost lately, as it interrupted them.
    interrupting: f64,
    times: Option<(Nanos, CpuTimes)>,
    next: Nanos,
    next_told: Nanos,
    last: Option<Nanos>,
    psi_before: Option<u64>,
}

impl Watch {
    /// That of the context at this place of the session.
    pub(super) fn new(context: usize, setup: &Setup) -> anyhow::Result<Self> {
        let limits = setup.limits;
        let group = setup
            .context
            .targets
            .cgroup
            .as_deref()
            .map(cgroup::find)
            .transpose()?;
        can_be_kept(limits, group.as_deref())?;
        let progress = setup
            .progress_cmd
            .as_deref()
            .map(Progress::start)
            .transpose()?;
        let waits = Waits::new();
        let is_limited = limits.max_slowdown.is_some() || limits.max_refault_wait.is_some();
        if let Some(lack) = waits.lacks()
            && is_limited
            && !setup.dry_run
        {
            eprintln!("isotherm: {lack}");
        }
        Ok(Self {
            context,
            is_physical: setup.is_physical(),
            guard: Guard::new(limits),
            limits,
            needs_psi: limits.max_psi.is_some(),
            group,
            waits,
            progress,
            budget: ActBudget::new(setup.act_budget),
            idle: IdleMeter::default(),
            target_share: 1.0,
            interrupting: 0.0,
            times: None,
            next: Nanos(0),
            next_told: Nanos(0),
            last: None,
            psi_before: None,
        })
    }

    /// The law by which is acted.
    pub(super) fn guard_mut(&mut self) -> &mut Guard {
        &mut self.guard
    }

    pub(super) fn status(&self) -> GuardStatus {
        GuardStatus {
            budget: self.budget.status(),
            ..self.guard.status()
        }
    }

    pub(super) fn limits(&self) -> GuardLimits {
        self.limits
    }

    /// Whether `limits` could be set.
    pub(super) fn can_set(&self, limits: GuardLimits) -> anyhow::Result<()> {
        can_be_kept(limits, self.group.as_deref())
    }

    /// Changes limits and budget while running; [`Watch::can_set`] says whether they can be kept.
    pub(super) fn set(&mut self, limits: GuardLimits, act_budget: Option<f64>) {
        self.guard.set_limits(limits);
        self.limits = limits;
        self.needs_psi = limits.max_psi.is_some();
        self.budget.set_share(act_budget);
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.waits.forget(target);
    }

    /// So much was paged out of `target`.
    pub(super) fn paged_out(&mut self, target: TargetId, bytes: u64) {
        self.waits.paged_out(target, bytes);
    }

    /// A step of acting begins. Yields how long it may take.
    pub(super) fn begin(&mut self, now: Nanos) -> Nanos {
        let idle_cpus = self.idle.stop(now);
        self.budget.refill(now, idle_cpus);
        let taken = self.budget.taken_share() * self.target_share + self.interrupting;
        let room = self.guard.loss_room_ns();
        let room = room.map_or(STEP, |ns| room_of(ns, taken));
        self.budget.room().min(room)
    }

    /// It is over, took so much CPU time, and interrupted each of these targets for so long.
    pub(super) fn end(&mut self, now: Nanos, cpu: Nanos, times: &BTreeMap<TargetId, Nanos>) {
        let taken = self.budget.charge(cpu).0 as f64 * self.target_share;
        let interrupted = self.waits.interrupted(times).min(cpu).0 as f64;
        self.guard.taken(now, Nanos((taken + interrupted) as u64));
        let share = interrupted / (cpu.0 as f64).max(1.0);
        self.interrupting += (share - self.interrupting) / 2.0;
        self.idle.start(now);
    }

    /// Looks, if a second has passed. Yields how the guard stands where that has changed, and now and
    /// then where it has not.
    pub(super) fn observe(&mut self, now: Nanos, session: &Session) -> Option<GuardStatus> {
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        let (signals, resident) = self.signals(now, session);
        // What is normal must be known before anything is done.
        if self.progress.as_ref().is_some_and(|p| !p.is_ready()) {
            return None;
        }
        let changed = self.guard.observe(now, signals, resident);
        if !changed && now < self.next_told {
            return None;
        }
        self.next_told = now + TOLD_EVERY;
        Some(self.status())
    }

    fn signals(&mut self, now: Nanos, session: &Session) -> (GuardSignals, u64) {
        let elapsed = self.last.replace(now).map(|last| now.since(last));
        let live = session.live().into_iter();
        let of_context = live.filter(|(id, _)| session.context_of(*id) == self.context);
        let group = self.group.as_deref();
        let waited = self.waits.look(now, elapsed, of_context, group);
        let psi_total = self
            .needs_psi
            .then(|| pressure::some_memory_us(self.group.as_deref()))
            .flatten();
        let psi_before = std::mem::replace(&mut self.psi_before, psi_total);
        let is_resting = self.guard.allowance() == Some(0);
        let lost_speed = self
            .progress
            .as_mut()
            .and_then(|progress| progress.slowdown(is_resting));
        self.learn_share(now, waited.cpu_s);
        let Some(seconds) = elapsed.map(Nanos::as_secs_f64).filter(|s| *s > 0.0) else {
            return (GuardSignals::default(), waited.resident);
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
        };
        if let Some(lost) = lost_speed {
            signals.slowdown = Some(signals.slowdown.map_or(lost, |waited| waited.max(lost)));
            let lost = Nanos((lost * seconds * 1e9) as u64);
            if signals.waited.is_none_or(|waited| lost > waited) {
                signals.waited = Some(lost);
                signals.waited_by = Some(WaitSource::Progress);
            }
        }
        (signals, waited.resident)
    }

    /// Which part of the CPU time in use was the targets'.
    fn learn_share(&mut self, now: Nanos, cpu_s: f64) {
        let Some(times) = CpuTimes::read() else {
            self.target_share = 1.0;
            return;
        };
        if let Some((before, then)) = self.times.replace((now, times))
            && !self.is_physical
        {
            let wall = now.since(before).as_secs_f64() * f64::from(times.nr);
            let busy = wall - times.idle.since(then.idle).as_secs_f64();
            self.target_share = if busy > 0.0 {
                (cpu_s / busy).clamp(0.0, 1.0)
            } else {
                1.0
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_their_unit() {
        assert_eq!(parse_rate("100/s").ok(), Some(100.0));
        assert_eq!(parse_rate("1,000").ok(), Some(1000.0));
        for bad in ["", "0", "-1/s", "many", "nan"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn there_is_a_guard_unless_it_is_refused() {
        let limits = |args: &GuardArgs| args.limits(GuardLimits::default());
        let by_default = limits(&GuardArgs::default());
        assert_eq!(by_default.max_slowdown, Some(MAX_SLOWDOWN));
        let only_refaults = GuardArgs {
            max_refaults: Some(5.0),
            ..GuardArgs::default()
        };
        assert_eq!(limits(&only_refaults).max_slowdown, None);
        let none = GuardArgs {
            no_guard: true,
            ..GuardArgs::default()
        };
        assert!(!limits(&none).is_limited());
        assert_eq!(none.act_budget(None), None);
        assert_eq!(none.act_budget(Some(0.2)), Some(0.2));
        assert_eq!(GuardArgs::default().act_budget(None), Some(ACT_BUDGET));
        assert!(parse_budget("0%").is_err() && parse_budget("5%").is_ok());
    }
}
