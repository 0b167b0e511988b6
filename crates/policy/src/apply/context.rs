//! Acting in one context: executes its schemes' plans as far as the guard allows, and reports the outcomes to the
//! schemes and the monitor.
//!
//! This is the order of `kdamond_apply_schemes()` in the kernel's `mm/damon/core.c`, with three additional steps.
//! Memory that was read back soon after a page-out is protected ([`RefaultHistory`]). The guard limits the work.
//! Operations that do not fit into a step wait for the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use super::huge::HugeBound;
use super::trial::Purpose;
use super::{DryRun, Executed, Throughput, execute};
use crate::guard::{Guard, GuardLimits, OnLoan, Pool, RefaultHistory, STEP, StepTime};
use crate::port::{Actuator, Operation, Outcome, Refusal};
use crate::scheme::huge::{BlockUse, WasteStatus};
use crate::scheme::{Action, Metric, Scheme, SchemeEngine, SchemeError, SystemFacts};
use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos, block_of};
use isotherm_engine::monitor::bits;
use isotherm_engine::snapshot::{Snapshot, TargetId};

/// The world that a context acts in: this machine, or a simulated one.
pub trait Platform: Actuator {
    /// Measures the metrics in `wanted`, and no others, for goals and watermarks.
    fn facts(
        &mut self,
        wanted: &[Metric],
        schemes: &SchemeEngine,
        snapshots: &[Snapshot],
    ) -> SystemFacts;

    /// Appends the outcomes that `operations` would have, in a dry run. By default all of them succeed.
    fn assume(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Self::Error> {
        outcomes.extend(operations.iter().map(Outcome::assumed));
        Ok(())
    }

    /// Restarts the age of memory that was acted on.
    fn reset_age(&mut self, target: TargetId, range: AddressRange);

    /// Returns whether the user asked to stop: then no further work is begun.
    fn is_stopped(&self) -> bool {
        false
    }

    /// Returns whether [`Platform::present`] works, which reveals the pages that were read back.
    fn knows_present(&self) -> bool {
        self.knows_blocks()
    }

    /// Passes the number of resident pages of each block to a closure; none for a target that has exited.
    fn present(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(u64, u32),
    ) -> Result<(), Self::Error> {
        self.block_uses(target, blocks, false, |found| {
            look(found.block, bits::count(&found.present));
        })
    }

    /// Returns whether [`Platform::block_uses`] works, which reveals the waste of a huge page.
    fn knows_blocks(&self) -> bool {
        false
    }

    /// Passes the state of each block to a closure, with its unused pages if it is to be read. It passes none for a
    /// target that has exited.
    fn block_uses(
        &mut self,
        _target: TargetId,
        _blocks: &[u64],
        _is_read: bool,
        _look: impl FnMut(BlockUse),
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Measures the page walks of blocks of small pages, and passes their number a second to a closure. It passes nothing
    /// for blocks where that is unknown.
    fn page_walks(
        &mut self,
        _target: TargetId,
        _blocks: &[u64],
        _look: impl FnMut(u64, f64),
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Notes that bytes of a target were paged out.
    fn note_paged_out(&mut self, _target: TargetId, _bytes: u64) {}
}

/// Schemes of a context, with their guard and their plans.
#[derive(Debug)]
pub struct Context {
    pub(super) schemes: SchemeEngine,
    pub(super) guard: Guard,
    /// Memory that a dry run has counted already; `None`: it is no dry run.
    dry_run: Option<DryRun>,
    history: RefaultHistory,
    huge: HugeBound,
    /// Plans by pool, in the order of [`Pool::ALL`].
    pub(super) queues: [Queue; 2],
    /// Pool that had the first turn in the last step.
    turn: Pool,
    /// Part of the last step that was done on a loan.
    on_loan: OnLoan,
}

/// Plans for the memory of one pool, which the guard may stop separately.
#[derive(Debug, Default)]
pub(super) struct Queue {
    throughput: Throughput,
    /// Planned operations that did not fit into one step.
    pub(super) pending: VecDeque<Operation>,
}

impl Context {
    /// Returns a context that has not acted yet. A dry run executes nothing, and assumes that everything succeeds.
    ///
    /// # Errors
    /// Fails if a scheme is invalid.
    pub fn new(
        schemes: Vec<Scheme>,
        limits: GuardLimits,
        is_dry_run: bool,
    ) -> Result<Self, SchemeError> {
        Ok(Self {
            schemes: SchemeEngine::new(schemes)?,
            guard: Guard::new(limits),
            dry_run: is_dry_run.then(DryRun::default),
            history: RefaultHistory::default(),
            huge: HugeBound::default(),
            queues: Default::default(),
            turn: Pool::PageCache,
            on_loan: OnLoan::default(),
        })
    }

    /// Returns its schemes.
    pub fn schemes(&self) -> &SchemeEngine {
        &self.schemes
    }

    /// Replaces its schemes and drops the plans of the former ones.
    ///
    /// # Errors
    /// Fails if a scheme is invalid. Then everything stays as it is.
    pub fn set_schemes(&mut self, schemes: Vec<Scheme>) -> Result<(), SchemeError> {
        self.schemes.set_schemes(schemes)?;
        self.clear_pending();
        Ok(())
    }

    /// Stops or resumes acting.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.schemes.set_paused(is_paused);
        self.clear_pending();
    }

    /// Returns its guard.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns its guard, for reporting losses.
    pub fn guard_mut(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Limits the waste of huge pages that schemes make to this share of the targets' memory; `None`: no limit.
    pub fn set_max_waste(&mut self, max_waste: Option<f64>) {
        self.huge.max_waste = max_waste;
    }

    /// Returns the state of the huge pages that were made under a limit on their waste.
    pub fn waste(&self) -> Option<WasteStatus> {
        self.huge.status()
    }

    /// Returns whether it is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// Returns the bytes that would be paged out now if the schemes had really acted.
    pub fn would_be_out(&self) -> u64 {
        self.dry_run.as_ref().map_or(0, DryRun::paged_out)
    }

    /// Forgets a target that exited.
    pub fn forget(&mut self, target: TargetId) {
        self.history.forget(target);
        self.guard.forget(target);
        self.huge.forget(target);
        self.drop_rest_of(target);
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.forget(target);
        }
    }

    /// Checks the watermarks that are due. If they deactivate all schemes, returns the time of the next check: until
    /// then no monitoring is needed.
    pub fn rests_until<W: Platform>(&mut self, now: Nanos, world: &mut W) -> Option<Nanos> {
        let schemes = &mut self.schemes;
        if !schemes.schemes().any(|scheme| scheme.watermarks.is_some()) {
            return None;
        }
        if schemes.next_check().is_none_or(|check| check <= now) {
            let facts = world.facts(&[Metric::FreeMem], schemes, &[]);
            schemes.check_watermarks(now, &facts);
        }
        let check = schemes.next_check();
        check.filter(|_| schemes.is_idle())
    }

    /// Returns the part of the last step that was done on a loan, and the guard to charge it to.
    pub fn on_loan(&mut self) -> (OnLoan, &mut Guard) {
        (self.on_loan, &mut self.guard)
    }

    /// Returns whether a plan is unfinished.
    pub fn has_pending(&self) -> bool {
        self.queues.iter().any(|queue| !queue.pending.is_empty())
    }

    /// Drops unfinished plans.
    pub fn clear_pending(&mut self) {
        for queue in &mut self.queues {
            queue.pending.clear();
        }
    }

    /// Returns the targets of unfinished plans.
    pub fn targets_of_pending(&self) -> BTreeSet<TargetId> {
        let rest = self.queues.iter().flat_map(|queue| &queue.pending);
        rest.map(|operation| operation.target).collect()
    }

    /// Drops unfinished plans for this target.
    pub fn drop_rest_of(&mut self, target: TargetId) {
        for queue in &mut self.queues {
            queue.pending.retain(|operation| operation.target != target);
        }
    }

    /// Plans for `snapshots` and executes pending operations, as far as they fit into `room` of time. Returns the
    /// operations and their outcomes.
    ///
    /// # Errors
    /// Fails if the world's actuator is useless as a whole.
    pub fn step<W: Platform>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        room: StepTime,
        world: &mut W,
    ) -> Result<(Vec<Operation>, Vec<Outcome>), W::Error> {
        let (mut done, mut outcomes) = (Vec::new(), Vec::new());
        if !snapshots.is_empty() {
            self.huge.is_short_of_time = room.usual < STEP;
            (done, outcomes) = self.plan(now, snapshots, world)?.into_iter().unzip();
        }
        let executed = self.execute(now, room, world)?;
        self.on_loan = executed.on_loan(self.huge.loan == Some(Purpose::Trial));
        done.extend(executed.done);
        outcomes.extend(executed.outcomes);
        if let Some(dry_run) = &mut self.dry_run {
            let assumed = done.iter().zip(&outcomes);
            let assumed = assumed.filter(|(_, outcome)| outcome.filter_passed > 0);
            let assumed = assumed.map(|(operation, outcome)| Operation {
                bytes: outcome.applied,
                ..operation.clone()
            });
            dry_run.assume(&assumed.collect::<Vec<_>>());
        }
        for (target, range) in self.schemes.done(&done, &outcomes) {
            if self.dry_run.is_none() {
                world.reset_age(target, range);
            }
        }
        Ok((done, outcomes))
    }

    /// Plans anew for the targets of the snapshots. Returns operations that are not executed, with their outcomes:
    /// protected memory, and small pages whose huge pages would waste too much.
    fn plan<W: Platform>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        world: &mut W,
    ) -> Result<Vec<(Operation, Outcome)>, W::Error> {
        let wanted = self.schemes.wanted_metrics(now);
        let mut facts = world.facts(&wanted, &self.schemes, snapshots);
        facts.backoff = self.guard.backoff();
        for snapshot in snapshots {
            self.guard.look(snapshot);
            if snapshot.age_ends.is_some() {
                let target = snapshot.target;
                let least = self.guard.least_age(target);
                facts.out_age.extend(least.map(|least| (target, least)));
            }
        }
        let mut plan = self.schemes.plan(now, snapshots, &facts);
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.observe(snapshots);
            plan = dry_run.fresh(&plan);
        }
        let (plan, kept) = self.keep_refaulted(now, snapshots, plan, world)?;
        let (mut plan, kept_small) =
            self.huge
                .narrow((now, plan), snapshots, (&mut self.guard, world))?;
        if self.huge.loan.is_some() {
            // Actions on a loan go first: the time of the others may be used up, which ends the step.
            plan.sort_by_key(|operation| !operation.action.makes_huge());
        }
        let is_new = |target| snapshots.iter().any(|s| s.target == target);
        for queue in &mut self.queues {
            queue.pending.retain(|operation| !is_new(operation.target));
        }
        for operation in plan {
            self.queues[operation.pool() as usize]
                .pending
                .push_back(operation);
        }
        let kept = kept.into_iter().map(|operation| {
            let outcome = Outcome {
                refused: [(Refusal::Refaulted, operation.bytes)].into(),
                ..Outcome::default()
            };
            (operation, outcome)
        });
        Ok(kept.chain(kept_small).collect())
    }

    /// Divides a plan into operations to execute, and memory that refaulted too soon the last time.
    fn keep_refaulted<W: Platform>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        plan: Vec<Operation>,
        world: &mut W,
    ) -> Result<(Vec<Operation>, Vec<Operation>), W::Error> {
        // Without a guard schemes act exactly as configured, as in DAMON.
        if !world.knows_present() || self.is_dry_run() || !self.guard.limits().is_limited() {
            return Ok((plan, Vec::new()));
        }
        for snapshot in snapshots {
            self.history.look(snapshot);
        }
        for (target, blocks) in self.history.candidates(&plan) {
            let history = &mut self.history;
            world.present(target, &blocks, |block, pages| {
                history.found(now, target, block, pages);
            })?;
        }
        Ok(self.history.sift(now, plan))
    }

    /// Executes planned operations as far as the guard allows and as they fit into `room`. Pools take turns. A long
    /// plan for one pool thus does not delay the other, whose bytes may cost a tenth.
    fn execute<W: Platform>(
        &mut self,
        now: Nanos,
        room: StepTime,
        world: &mut W,
    ) -> Result<Executed, W::Error> {
        let is_dry_run = self.is_dry_run();
        let mut pools = Pool::ALL;
        pools.sort_by_key(|pool| *pool == self.turn);
        self.turn = pools[0];
        let mut executed = Executed::default();
        for pool in pools {
            let queue = &mut self.queues[pool as usize];
            let took = executed.took();
            let on_loan = room.on_loan.filter(|_| self.huge.loan.is_some());
            let left = StepTime {
                usual: room.usual.since(took),
                on_loan: on_loan.map(|time| time.since(took)),
            };
            if world.is_stopped() {
                break;
            }
            executed.append(execute(
                &mut queue.pending,
                (&mut self.guard, pool),
                (&mut queue.throughput, left),
                |batch, outcomes| {
                    if is_dry_run {
                        world.assume(batch, outcomes)?;
                    } else {
                        world.act(batch, outcomes)?;
                    }
                    Ok(if world.is_stopped() {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    })
                },
            )?);
        }
        if !is_dry_run {
            self.note_paged_out(now, &executed, world)?;
        }
        Ok(executed)
    }

    /// Notes page-outs, so that later refaults are recognised.
    fn note_paged_out<W: Platform>(
        &mut self,
        now: Nanos,
        executed: &Executed,
        world: &mut W,
    ) -> Result<(), W::Error> {
        // By block, the time since which it was untouched.
        let mut blocks: BTreeMap<TargetId, BTreeMap<u64, Nanos>> = BTreeMap::new();
        for (operation, outcome) in executed.done.iter().zip(&executed.outcomes) {
            if operation.action != Action::Pageout || outcome.applied == 0 {
                continue;
            }
            world.note_paged_out(operation.target, outcome.applied);
            if operation.pages.is_some() {
                continue;
            }
            let first = block_of(operation.range.start);
            let idle_since = Nanos(now.0.saturating_sub(operation.age.0));
            let all = (first..operation.range.end).step_by(BLOCK_SIZE as usize);
            let of_target = blocks.entry(operation.target).or_default();
            of_target.extend(all.map(|block| (block, idle_since)));
        }
        if !world.knows_present() {
            return Ok(());
        }
        for (target, idle_since) in blocks {
            let all: Vec<u64> = idle_since.keys().copied().collect();
            let history = &mut self.history;
            world.present(target, &all, |block, left| {
                history.paged_out(idle_since[&block], target, block, left);
            })?;
        }
        Ok(())
    }
}
