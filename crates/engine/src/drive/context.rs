//! Acting in one context: what its schemes plan from snapshots is carried out as far as the guard
//! allows, and what came of it goes back to the schemes and to the monitor.
//!
//! This is the order of `kdamond_apply_schemes()` in the kernel's `mm/damon/core.c`, with three steps
//! of our own: memory that came back soon after it was paged out is kept ([`RefaultHistory`]), the
//! guard says how much may be done, and what does not go into a step waits for the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use super::huge::HugeBound;
use super::{Carried, DryRun, Pace, carry_out};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::guard::{Guard, GuardLimits, Pool, RefaultHistory};
use crate::port::{Actuator, Operation, Outcome, Refusal};
use crate::scheme::huge::{BlockUse, WasteStatus};
use crate::scheme::{Action, Metric, Scheme, SchemeEngine, SchemeError, SystemFacts};
use crate::snapshot::{Snapshot, TargetId};

/// The world that a context acts in: this machine, or a simulated one.
pub trait World: Actuator {
    /// Measures what goals and watermarks are about: those in `wanted`, and no more.
    fn facts(
        &mut self,
        wanted: &[Metric],
        schemes: &SchemeEngine,
        snapshots: &[Snapshot],
    ) -> SystemFacts;

    /// What would come of carrying out `operations`, in a dry run: all of it, unless a world knows better.
    fn assume(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Self::Error> {
        outcomes.extend(operations.iter().map(Outcome::assumed));
        Ok(())
    }

    /// Memory was acted on: its age counts anew.
    fn reset_age(&mut self, target: TargetId, range: AddressRange);

    /// Whether the end was asked for: then nothing further is begun.
    fn is_stopped(&self) -> bool {
        false
    }

    /// Whether [`World::present`] can be asked, by which is known what came back.
    fn knows_present(&self) -> bool {
        false
    }

    /// How many pages of each of `blocks` are in memory; of a target that has ended, none is told.
    fn present(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        look: impl FnMut(u64, u32),
    ) -> Result<(), Self::Error> {
        let _ = (target, blocks, look);
        Ok(())
    }

    /// Whether [`World::block_uses`] can be asked, by which is known what a huge page would waste.
    fn knows_blocks(&self) -> bool {
        false
    }

    /// What each of `blocks` is like; with what of it is unused, if it `is_read`. Of a target that has ended,
    /// none is told.
    fn block_uses(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        is_read: bool,
        look: impl FnMut(BlockUse),
    ) -> Result<(), Self::Error> {
        let _ = (target, blocks, is_read, look);
        Ok(())
    }

    /// So much was paged out.
    fn note_paged_out(&mut self, target: TargetId, bytes: u64) {
        let _ = (target, bytes);
    }
}

/// A context's schemes at work.
#[derive(Debug)]
pub struct Context {
    schemes: SchemeEngine,
    guard: Guard,
    /// What a dry run has counted already; `None`: it is none.
    dry_run: Option<DryRun>,
    history: RefaultHistory,
    huge: HugeBound,
    /// Of [`Pool::ALL`].
    lanes: [Lane; 2],
    /// The pool that had the first turn at the last step.
    turn: Pool,
}

/// What is to be done to the memory of one pool, which the guard may hold up without the other.
#[derive(Debug, Default)]
struct Lane {
    pace: Pace,
    /// What is left of plans that did not go into one step.
    rest: VecDeque<Operation>,
}

impl Context {
    /// One that has not acted yet. In a dry run nothing is done, and all of it is taken to be.
    ///
    /// # Errors
    /// What is wrong with a scheme.
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
            lanes: Default::default(),
            turn: Pool::PageCache,
        })
    }

    /// Its schemes.
    pub fn schemes(&self) -> &SchemeEngine {
        &self.schemes
    }

    /// Exchanges its schemes; what was planned by the former is dropped.
    ///
    /// # Errors
    /// What is wrong with a scheme. Then everything stays as it is.
    pub fn set_schemes(&mut self, schemes: Vec<Scheme>) -> Result<(), SchemeError> {
        self.schemes.set_schemes(schemes)?;
        self.drop_rest();
        Ok(())
    }

    /// Stops acting, or goes on.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.schemes.set_paused(is_paused);
        self.drop_rest();
    }

    /// Its guard.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Its guard, to tell it what was lost.
    pub fn guard_mut(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Huge pages that schemes make may waste this share of the targets' memory; `None`: any.
    pub fn set_max_waste(&mut self, max_waste: Option<f64>) {
        self.huge.set(max_waste);
    }

    /// How huge pages stand that were made under a bound on their waste.
    pub fn waste(&self) -> Option<WasteStatus> {
        self.huge.status()
    }

    /// Whether nothing is done.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// Bytes that would be out of memory now, had the dry run been none.
    pub fn would_be_out(&self) -> u64 {
        self.dry_run.as_ref().map_or(0, DryRun::paged_out)
    }

    /// `target` is no more.
    pub fn forget(&mut self, target: TargetId) {
        self.history.forget(target);
        self.huge.forget(target);
        self.drop_rest_of(target);
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.forget(target);
        }
    }

    /// Looks at watermarks that it is time for. Yields when to look again, if all schemes rest by them: until then
    /// nothing needs to be watched.
    pub fn rests_until<W: World>(&mut self, now: Nanos, world: &mut W) -> Option<Nanos> {
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

    /// Whether a plan has not been finished.
    pub fn has_rest(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.rest.is_empty())
    }

    /// What is left of a plan is not wanted any more.
    pub fn drop_rest(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.rest.clear());
    }

    /// Whose memory is in what is left of plans.
    pub fn targets_of_rest(&self) -> BTreeSet<TargetId> {
        let rest = self.lanes.iter().flat_map(|lane| &lane.rest);
        rest.map(|operation| operation.target).collect()
    }

    /// What is left of a plan for this target is not wanted any more.
    pub fn drop_rest_of(&mut self, target: TargetId) {
        for lane in &mut self.lanes {
            lane.rest.retain(|operation| operation.target != target);
        }
    }

    /// Does what follows from `snapshots`, or goes on with what is left of a plan, as far as that goes
    /// into `room` of time. Yields what was done and what came of it.
    ///
    /// # Errors
    /// What makes the world's actuator useless as a whole.
    pub fn step<W: World>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        room: Nanos,
        world: &mut W,
    ) -> Result<(Vec<Operation>, Vec<Outcome>), W::Error> {
        let (mut done, mut outcomes) = (Vec::new(), Vec::new());
        if !snapshots.is_empty() {
            (done, outcomes) = self.plan(now, snapshots, world)?.into_iter().unzip();
        }
        let carried = self.carry_out(room, world)?;
        done.extend(carried.done);
        outcomes.extend(carried.outcomes);
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

    /// Plans anew for the targets of the snapshots. Yields what is not to be done: memory that came back is
    /// kept, and small pages of which huge ones would waste too much.
    fn plan<W: World>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        world: &mut W,
    ) -> Result<Vec<(Operation, Outcome)>, W::Error> {
        let wanted = self.schemes.wanted_metrics(now);
        let mut facts = world.facts(&wanted, &self.schemes, snapshots);
        facts.patience = self.guard.patience();
        let mut plan = self.schemes.plan(now, snapshots, &facts);
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.observe(snapshots);
            plan = dry_run.fresh(&plan);
        }
        let (plan, kept) = self.keep_refaulted(now, snapshots, plan, world)?;
        let (plan, kept_small) = self.huge.narrow(plan, snapshots, world)?;
        let is_new = |target| snapshots.iter().any(|s| s.target == target);
        for lane in &mut self.lanes {
            lane.rest.retain(|operation| !is_new(operation.target));
        }
        for operation in plan {
            self.lanes[operation.pool() as usize]
                .rest
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

    /// Divides a plan into what may be done, and what came back too soon the last time.
    fn keep_refaulted<W: World>(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        plan: Vec<Operation>,
        world: &mut W,
    ) -> Result<(Vec<Operation>, Vec<Operation>), W::Error> {
        // Without a guard schemes do what they say, as DAMON's do.
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

    /// Carries out as much of what is planned as the guard allows and as goes into `room`. Pools take turns: a
    /// long plan for the one does not hold up the other, of which a byte may cost a tenth.
    fn carry_out<W: World>(&mut self, room: Nanos, world: &mut W) -> Result<Carried, W::Error> {
        let is_dry_run = self.is_dry_run();
        let mut pools = Pool::ALL;
        pools.sort_by_key(|pool| *pool == self.turn);
        self.turn = pools[0];
        let mut carried = Carried::default();
        for pool in pools {
            let lane = &mut self.lanes[pool as usize];
            let left = room.since(carried.took());
            if world.is_stopped() {
                break;
            }
            carried.append(carry_out(
                &mut lane.rest,
                (&mut self.guard, pool),
                (&mut lane.pace, left),
                |portion, outcomes| {
                    if is_dry_run {
                        world.assume(portion, outcomes)?;
                    } else {
                        world.act(portion, outcomes)?;
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
            self.note_paged_out(&carried, world)?;
        }
        Ok(carried)
    }

    /// What was paged out may come back.
    fn note_paged_out<W: World>(
        &mut self,
        carried: &Carried,
        world: &mut W,
    ) -> Result<(), W::Error> {
        let mut blocks: BTreeMap<TargetId, Vec<u64>> = BTreeMap::new();
        for (operation, outcome) in carried.done.iter().zip(&carried.outcomes) {
            if operation.action != Action::Pageout || outcome.applied == 0 {
                continue;
            }
            world.note_paged_out(operation.target, outcome.applied);
            if operation.pages.is_some() {
                continue;
            }
            let first = operation.range.start & !(BLOCK_SIZE - 1);
            let of_target = blocks.entry(operation.target).or_default();
            of_target.extend((first..operation.range.end).step_by(BLOCK_SIZE as usize));
        }
        if !world.knows_present() {
            return Ok(());
        }
        for (target, mut blocks) in blocks {
            blocks.sort_unstable();
            blocks.dedup();
            let history = &mut self.history;
            world.present(target, &blocks, |block, left| {
                history.paged_out(target, block, left);
            })?;
        }
        Ok(())
    }
}
