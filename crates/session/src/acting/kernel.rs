//! The kernel's DAMON acts, within the limits of Isotherm's guard.
//!
//! Problem: DAMOS's quotas limit the work of schemes, not its cost to the owners of the memory. Approach: the guard
//! gets the same signals as where Isotherm acts, and commits put the work that it allows into the kernel's schemes
//! ([`Grant`]):
//!
//! - nothing (paused, stopped, in debt): every action is `stat`, so that watching and ages continue;
//! - a rate: a quota of bytes, and the oldest memory first if the user's own quota has no order. DAMOS charges
//!   addresses, whether or not they hold memory. The quota is therefore multiplied by the recent ratio of bytes tried
//!   to bytes that left memory ([`effect`]);
//! - CPU time, if no processor is idle: a quota of time;
//! - back-off (`backoff`): memory must be idle for a multiple of the time.
//!
//! A quota is in force from the end of its first window on; on Linux 6.12 that first window has none (measured: 100 MiB
//! at once, by a quota of 4 MiB a second). Held schemes therefore get their quotas first, and act when the kernel
//! reports that these are in force. A user's quotas stay in force where they are less. The time that acting takes from
//! the targets is the kdamond's CPU time beyond that of watching.
//!
//! Limits: a commit waits for the end of an aggregation interval, and the kernel continues until then: only the quota
//! in force bounds its work within an interval. Where memory is denser than it was lately, more is acted on in a window
//! than the rate. The owners of physical memory are not known: the guard sees the machine's pressure and its reads of
//! swap.

use anyhow::bail;
use isotherm_config::{ActingSpec, ContextSpec, SessionSpec};
use isotherm_damon::DamonError;
use isotherm_engine::{Nanos, TargetId};
use isotherm_policy::BoundBy;
use isotherm_policy::guard::{Guard, Pool};
use isotherm_policy::scheme::{Action, QuotaState, Scheme, SchemeEngine, SchemeStatus, Stats};
use isotherm_record::{ActionSample, Item};

mod effect;
mod grant;

use super::guard::{Meters, lacks_of};
use super::locks::Locks;
use super::permits::PodPermits;
use super::summary::{ActingStatus, ContextStatus};
use super::{Acts, is_dry_run};
use crate::kernel::held;
use crate::monitor::Force;
use crate::session::Session;
use effect::Effect;
use grant::{ChargeRatio, Grant, Limits, are_in_force, longest_window};

/// Interval of the guard's measurements, as where Isotherm acts.
const PERIOD: Nanos = Nanos::from_millis(1_000);
/// Successive failed commits after which a kdamond that acts and must be held is restarted.
const FAILURES: u32 = 3;

/// Schemes of a session that the kernel executes.
pub(super) struct KernelActing {
    contexts: Vec<KernelContext>,
    locks: Locks,
    dry_run: bool,
}

impl KernelActing {
    pub(super) fn new(spec: &SessionSpec) -> anyhow::Result<Self> {
        let locks = Locks::of(spec)?;
        let contexts = spec.contexts.iter().enumerate();
        let contexts = contexts.map(|(at, context)| KernelContext::new(at, context));
        Ok(Self {
            contexts: contexts.collect::<anyhow::Result<_>>()?,
            locks,
            dry_run: is_dry_run(spec),
        })
    }

    fn follow_targets(&mut self, session: &Session, items: &[Item]) -> anyhow::Result<()> {
        for item in items {
            match item {
                Item::TargetStart(start) => {
                    if let Some(Item::Note { text, .. }) = self.locks.acquire(start)? {
                        bail!("{text}, and kernel DAMON cannot leave it out; end that one first");
                    }
                }
                Item::TargetExit(exit) => {
                    let context = &mut self.contexts[session.monitor.context_of(exit.target)];
                    context.meters.waits.forget(exit.target);
                    self.locks.release(exit.target);
                }
                _ => {}
            }
        }
        self.locks.has_begun = true;
        Ok(())
    }
}

impl Acts for KernelActing {
    fn warnings(&self) -> Vec<String> {
        lacks_of({ self.contexts.iter() }.map(|context| &context.meters))
    }

    fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.follow_targets(session, items)?;
        let now = session.now();
        for context in &mut self.contexts {
            context.take(items);
            context.step(now, session, items)?;
        }
        Ok(())
    }

    fn finish(&mut self, session: &mut Session, items: &[Item]) {
        let now = session.now();
        for context in &mut self.contexts {
            context.take(items);
            context.charge_paged_out(session);
            context.read_counters(now, session);
        }
    }

    fn wake_at(&self, _now: Nanos) -> Option<Nanos> {
        self.contexts.iter().map(|context| context.next).min()
    }

    fn status(&self) -> ActingStatus<'_> {
        let contexts = self.contexts.iter().map(KernelContext::status);
        ActingStatus::of(self.dry_run, None, contexts.collect())
    }

    fn cpu(&self) -> Nanos {
        let all = self.contexts.iter().map(|context| context.cpu);
        all.fold(Nanos(0), |sum, cpu| sum + cpu)
    }

    fn exchange(&mut self, of_all: Vec<ActingSpec>, session: &mut Session) -> anyhow::Result<()> {
        for (context, acting) in self.contexts.iter().zip(&of_all) {
            context.meters.can_set(acting.limits)?;
            SchemeEngine::new(acting.schemes.clone())?;
        }
        let now = session.now();
        for (at, acting) in of_all.iter().enumerate() {
            let tuned = self.contexts[at].tune(now, acting.schemes.clone(), session);
            let Err(error) = tuned else { continue };
            // The contexts that have new schemes already return to their former ones.
            for context in &mut self.contexts[..=at] {
                context.go_back(now, session);
            }
            return Err(error);
        }
        for (context, acting) in self.contexts.iter_mut().zip(of_all) {
            context.former = None;
            context.guard.set_limits(acting.limits);
            context.meters.set(acting.limits, acting.act_budget);
        }
        Ok(())
    }

    fn permit_only(&mut self, _: PodPermits) -> anyhow::Result<()> {
        anyhow::bail!("the kernel's DAMON knows nothing of pods; act by `--world linux`")
    }

    fn set_context_paused(&mut self, at: usize, is_paused: bool) {
        self.contexts[at].is_paused = is_paused;
        self.contexts[at].next = Nanos(0);
    }
}

struct KernelContext {
    at: usize,
    schemes: Vec<Scheme>,
    /// Schemes before a tuning that may fail in another context.
    former: Option<Vec<Scheme>>,
    guard: Guard,
    meters: Meters,
    is_dry_run: bool,
    is_paused: bool,
    charged: ChargeRatio,
    effect: Effect,
    /// Reports of the kernel on paging out since the last second.
    paging_out: Vec<ActionSample>,
    /// Bytes that went out of memory by paging out so far.
    paged_out: u64,
    /// Grant that the kernel's schemes have; `None` before the first.
    granted: Option<Grant>,
    /// Time at which schemes were held with the quotas under which they will act.
    armed: Option<Nanos>,
    failures: u32,
    next: Nanos,
    cpu: Nanos,
    looked: Option<Nanos>,
    /// Counts of each scheme, and the state of its quota.
    results: Vec<(Stats, QuotaState)>,
    kdamond: Option<u32>,
}

impl KernelContext {
    fn new(at: usize, spec: &ContextSpec) -> anyhow::Result<Self> {
        let acting = spec.acting.clone().unwrap_or_default();
        SchemeEngine::new(acting.schemes.clone())?;
        let nr = acting.schemes.len();
        Ok(Self {
            at,
            guard: Guard::new(acting.limits),
            meters: Meters::new(at, spec, &acting)?,
            schemes: acting.schemes,
            former: None,
            is_dry_run: acting.is_dry_run,
            is_paused: acting.is_paused,
            charged: ChargeRatio::new(),
            effect: Effect::default(),
            paging_out: Vec::new(),
            paged_out: 0,
            granted: None,
            armed: None,
            failures: 0,
            next: Nanos(0),
            cpu: Nanos(0),
            looked: None,
            results: vec![Default::default(); nr],
            kdamond: None,
        })
    }

    /// Adds the work that the kernel reports.
    fn take(&mut self, items: &[Item]) {
        for item in items {
            let Item::Action(sample) = item else { continue };
            if sample.context != self.meters.name {
                continue;
            }
            let Some((stats, _)) = self.results.get_mut(sample.scheme as usize) else {
                continue;
            };
            for (why, bytes) in &sample.refused {
                *stats.refused.entry(*why).or_default() += bytes;
            }
            stats.took = stats.took + sample.took;
            match sample.action.parse::<Action>() {
                Ok(Action::Stat) | Err(()) => {}
                Ok(_) if sample.dry_run => {}
                Ok(Action::Pageout) => self.paging_out.push(sample.clone()),
                Ok(action) => {
                    self.charged.note(sample.sz_tried, sample.sz_applied);
                    self.guard
                        .charge(Pool::Processes, action, sample.sz_applied);
                }
            }
        }
    }

    fn charge_paged_out(&mut self, session: &Session) {
        let samples = std::mem::take(&mut self.paging_out);
        let claimed: u64 = samples.iter().map(|sample| sample.sz_applied).sum();
        let paged = self.effect.look(session, self.at, claimed);
        if samples.is_empty() {
            return;
        }
        let tried = samples.iter().map(|sample| sample.sz_tried).sum();
        self.charged.note(tried, paged.out);
        self.paged_out += paged.out;
        self.guard
            .charge(Pool::Processes, Action::Pageout, paged.out);
        // The owner of the rest is not known: the target of which most was tried is taken.
        let known: u64 = paged.by_target.values().sum();
        let parts = samples.iter().flat_map(|sample| &sample.targets);
        let most = parts.max_by_key(|part| part.sz_tried);
        let most = most.map_or(TargetId(0), |part| part.target);
        let rest = paged.out.saturating_sub(known);
        self.meters.waits.paged_out(most, rest);
        for (target, bytes) in paged.by_target {
            self.meters.waits.paged_out(target, bytes);
        }
    }

    /// Measures the targets' losses once a second, and has the kernel act as far as that allows.
    fn step(
        &mut self,
        now: Nanos,
        session: &mut Session,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + PERIOD;
        self.charge_paged_out(session);
        self.charged.learn();
        self.read_counters(now, session);
        let guard = &mut self.guard;
        items.extend(self.meters.observe(now, session, guard, false, None));
        let grant = self.grant();
        let kdamond = session.monitor.kdamond(self.at);
        let may_commit = kdamond.is_none_or(|kdamond| kdamond.may_commit(now));
        let can_wait =
            |granted: Grant| !grant.differs(granted) || !may_commit && !grant.is_less_than(granted);
        if self.granted.is_some_and(can_wait) {
            return Ok(());
        }
        if let Err(error) = self.set(now, grant, session) {
            match error.downcast_ref() {
                Some(DamonError::Changed { .. }) => return Err(error),
                Some(error) if DamonError::is_of_the_end(error) => return Ok(()),
                _ => self.failures += 1,
            }
            if self.failures == 1 {
                let text =
                    format!("kernel DAMON did not take what its schemes may do now: {error:#}");
                items.push(Item::Note { time: now, text });
            }
        }
        Ok(())
    }

    fn read_counters(&mut self, now: Nanos, session: &mut Session) {
        let Some(kdamond) = session.monitor.kdamond(self.at) else {
            return;
        };
        let cpu = kdamond.acting_cpu();
        if kdamond.take_begun_anew() {
            (self.granted, self.armed) = (None, None);
        }
        self.kdamond = kdamond.pid();
        for ((stats, quota), counted) in self.results.iter_mut().zip(kdamond.totals()) {
            stats.nr_tried = counted.nr_tried;
            stats.sz_tried = counted.sz_tried;
            stats.nr_applied = counted.nr_applied;
            stats.sz_applied = counted.sz_applied;
            stats.sz_ops_filter_passed = counted.sz_ops_filter_passed.unwrap_or_default();
            stats.qt_exceeds = counted.qt_exceeds;
            stats.nr_snapshots = counted.nr_snapshots.unwrap_or_default();
            quota.effective = counted.effective_bytes.filter(|bytes| *bytes > 0);
        }
        let taken = cpu.since(self.cpu);
        let elapsed = self.looked.replace(now).map(|looked| now.since(looked));
        self.cpu = cpu;
        self.meters
            .kernel_took(now, taken, elapsed, &mut self.guard);
    }

    fn grant(&self) -> Grant {
        if self.is_paused {
            return Grant::Nothing;
        }
        if self.is_dry_run || !self.guard.limits().is_limited() {
            let time_per_s = (!self.is_dry_run).then(|| self.meters.acting.time_per_s(&self.guard));
            return Grant::Some(Limits {
                bytes_per_s: None,
                time_per_s: time_per_s.flatten(),
                backoff: 1,
            });
        }
        let status = self.guard.status();
        let charged = status.bytes_per_s.map(|bytes| self.charged.charge(bytes));
        Grant::of(&status, charged, self.meters.acting.time_per_s(&self.guard))
    }

    /// Applies the schemes to the kernel as far as is granted. Held schemes act once their quotas are in force, in the
    /// turn of another second.
    fn set(&mut self, now: Nanos, grant: Grant, session: &mut Session) -> anyhow::Result<()> {
        let Some(kdamond) = session.monitor.kdamond(self.at) else {
            return Ok(());
        };
        let mut in_force = grant.limit(&self.schemes, self.guard.limits().is_limited());
        let mut force = match grant {
            Grant::Nothing => Force::Held,
            Grant::Some(_) if self.is_dry_run => Force::Pretends,
            Grant::Some(_) => Force::Acts,
        };
        let was_held = matches!(self.granted, None | Some(Grant::Nothing));
        let waits = self
            .armed
            .is_none_or(|since| now.since(since) < longest_window(&in_force));
        let is_in_force = are_in_force(&in_force, kdamond.totals());
        let arms = force == Force::Acts && was_held && waits && !is_in_force;
        if arms && self.armed.is_some() {
            return Ok(());
        }
        if arms {
            force = Force::Held;
        }
        if force != Force::Acts {
            in_force = held(&in_force);
        }
        if !was_held && force == Force::Held && self.failures >= FAILURES {
            kdamond.begin_anew();
        }
        kdamond.set_schemes(now, &self.schemes, in_force, force)?;
        self.failures = 0;
        self.armed = arms.then_some(now);
        self.granted = Some(if arms { Grant::Nothing } else { grant });
        Ok(())
    }

    /// Exchanges the schemes; the former ones are kept until all contexts have taken theirs.
    fn tune(
        &mut self,
        now: Nanos,
        schemes: Vec<Scheme>,
        session: &mut Session,
    ) -> anyhow::Result<()> {
        let nr = schemes.len();
        self.former = Some(std::mem::replace(&mut self.schemes, schemes));
        self.armed = None;
        // Anything that acting lacks is reported, even if nothing may be done now.
        if !self.is_dry_run
            && let Some(kdamond) = session.monitor.kdamond(self.at)
        {
            kdamond.require(&self.schemes)?;
        }
        // As after a hold, new quotas must come into force first.
        let grant = self.granted.take().unwrap_or_else(|| self.grant());
        self.set(now, grant, session)?;
        self.results.resize_with(nr, Default::default);
        Ok(())
    }

    fn go_back(&mut self, now: Nanos, session: &mut Session) {
        let Some(former) = self.former.take() else {
            return;
        };
        self.results.resize_with(former.len(), Default::default);
        self.schemes = former;
        let grant = self.granted.unwrap_or(Grant::Nothing);
        if self.set(now, grant, session).is_err() {
            // The next step tries again.
            self.granted = None;
        }
    }

    /// Whether the context pages out, and not in a dry run.
    fn pages_out(&self) -> bool {
        let is_pageout = |scheme: &Scheme| scheme.action == Action::Pageout;
        !self.is_dry_run && self.schemes.iter().any(is_pageout)
    }

    /// Returns the limit that binds, if it is one of ours: the kernel reports none of its own.
    fn bound_by(&self) -> Option<BoundBy> {
        if self.is_paused {
            Some(BoundBy::Paused)
        } else {
            let has_stopped = self.guard.has_stopped(Pool::Processes);
            has_stopped.then_some(BoundBy::Guard)
        }
    }

    fn status(&self) -> ContextStatus<'_> {
        let schemes = self.schemes.iter().zip(&self.results);
        let schemes = schemes.map(|(scheme, (stats, quota))| SchemeStatus {
            action: scheme.action,
            pattern: &scheme.pattern,
            is_active: true,
            is_finished: scheme.max_nr_snapshots > 0
                && stats.nr_snapshots >= scheme.max_nr_snapshots,
            next_apply: None,
            next_check: None,
            withheld_bytes: 0,
            quota,
            stats,
        });
        ContextStatus {
            name: self.meters.name.as_deref(),
            paused: self.is_paused,
            schemes: schemes.collect(),
            limits: self.guard.limits(),
            guard: self.meters.status(&self.guard),
            bound_by: self.bound_by(),
            bound_times: Vec::new(),
            huge_pages: None,
            kdamond: self.kdamond,
            paged_out_bytes: self.pages_out().then_some(self.paged_out),
        }
    }
}
