//! The guard's eyes: refaults, pressure and the targets' own speed, once a second.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use isotherm_engine::guard::{Guard, GuardLimits, GuardSignals, GuardStatus, waited_share};
use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::{cgroup, pressure};

use super::Setup;
use super::progress::Progress;
use crate::recorder::Session;
use crate::units::parse_share;

const PERIOD: Nanos = Nanos(1_000_000_000);
/// What targets may lose unless the user says otherwise.
const MAX_SLOWDOWN: f64 = 0.01;

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

    /// A command that prints how far the targets have got: a number that counts up. Their speed is
    /// then part of the slowdown
    #[arg(long, value_name = "COMMAND", conflicts_with = "no_guard")]
    pub(crate) progress_cmd: Option<String>,

    /// Act whatever it costs the targets
    #[arg(long)]
    pub(crate) no_guard: bool,
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
    guard: Guard,
    limits: GuardLimits,
    needs_psi: bool,
    group: Option<PathBuf>,
    refault_cost: Option<Nanos>,
    progress: Option<Progress>,
    next: Nanos,
    last: Option<Nanos>,
    before: BTreeMap<TargetId, pressure::Progress>,
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
        Ok(Self {
            context,
            guard: Guard::new(limits),
            limits,
            needs_psi: limits.max_psi.is_some(),
            group,
            refault_cost: limits.max_slowdown.and_then(|_| pressure::refault_cost()),
            progress,
            next: Nanos(0),
            last: None,
            before: BTreeMap::new(),
            psi_before: None,
        })
    }

    /// The law by which is acted.
    pub(super) fn guard_mut(&mut self) -> &mut Guard {
        &mut self.guard
    }

    pub(super) fn status(&self) -> GuardStatus {
        self.guard.status()
    }

    pub(super) fn limits(&self) -> GuardLimits {
        self.limits
    }

    /// Whether `limits` could be set.
    pub(super) fn can_set(&self, limits: GuardLimits) -> anyhow::Result<()> {
        can_be_kept(limits, self.group.as_deref())
    }

    /// Changes the limits while running; [`Watch::can_set`] says whether they can be kept.
    pub(super) fn set_limits(&mut self, limits: GuardLimits) {
        self.guard.set_limits(limits);
        self.limits = limits;
        self.needs_psi = limits.max_psi.is_some();
        if limits.max_slowdown.is_some() && self.refault_cost.is_none() {
            self.refault_cost = pressure::refault_cost();
        }
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.before.remove(&target);
    }

    /// Looks, if a second has passed. Yields how the guard stands where that has changed.
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
        changed.then(|| self.guard.status())
    }

    fn signals(&mut self, now: Nanos, session: &Session) -> (GuardSignals, u64) {
        let elapsed = self.last.replace(now).map(|last| now.since(last));
        let (mut faults, mut cpu, mut resident) = (0, 0.0, 0);
        let live = session.live().into_iter();
        let of_context = live.filter(|(id, _)| session.context_of(*id) == self.context);
        for (target, process) in of_context {
            resident += process.usage().map_or(0, |usage| usage.rss);
            let Some(progress) = pressure::progress(process) else {
                continue;
            };
            if let Some(before) = self.before.insert(target, progress) {
                faults += progress.major_faults.saturating_sub(before.major_faults);
                cpu += progress.cpu.since(before.cpu).as_secs_f64();
            }
        }
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
        let Some(seconds) = elapsed.map(Nanos::as_secs_f64).filter(|s| *s > 0.0) else {
            return (GuardSignals::default(), resident);
        };
        let waited = self
            .refault_cost
            .map(|cost| waited_share(faults, cost, cpu, seconds));
        let slowdown = match (waited, lost_speed) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        let psi = psi_total
            .zip(psi_before)
            .map(|(total, before)| total.saturating_sub(before) as f64 / 1e6 / seconds);
        let signals = GuardSignals {
            slowdown,
            refaults_per_s: Some(faults as f64 / seconds),
            psi,
        };
        (signals, resident)
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
    }
}
