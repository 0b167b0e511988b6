//! Tests of the loops that real and simulated machines share: they end with their targets, and execute their plans as
//! far as the guard allows.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;

use isotherm_engine::drive::{MonitorLoop, TableProbe, TargetSource};
use isotherm_engine::monitor::bits::Bitmap;
use isotherm_engine::table::{BlockFacts, ClearedBy, TableAttributes};
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, BudgetShares, Cost, CpuLedger, Nanos, Sample, TargetId,
    Touch,
};
use isotherm_policy::guard::{Guard, GuardLimits, GuardSignals, Pool, Pools, STEP, StepTime};
use isotherm_policy::scheme::Action;
use isotherm_policy::{Executed, Operation, Outcome, Throughput, execute};

const TARGET: TargetId = TargetId(3);

/// A process of one block.
struct Process {
    is_gone: bool,
}

impl AccessProbe for Process {
    type Error = Infallible;

    fn arm(&mut self, _: &[Sample]) -> Result<(), Infallible> {
        Ok(())
    }

    fn check(&mut self, _: &mut Vec<Touch>) -> Result<(), Infallible> {
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }
}

impl TableProbe for Process {
    fn occupied_blocks(
        &mut self,
        _: TargetId,
        _: &[AddressRange],
    ) -> Result<Option<Vec<u64>>, Infallible> {
        Ok((!self.is_gone).then(|| vec![0]))
    }

    fn read_blocks(
        &mut self,
        _: TargetId,
        _: &[u64],
        _: impl FnMut(BlockFacts),
    ) -> Result<bool, Infallible> {
        Ok(!self.is_gone)
    }

    fn clear(&mut self, _: TargetId, _: &[AddressRange]) -> Result<(), Infallible> {
        Ok(())
    }

    fn clearable(
        &mut self,
        _: TargetId,
        _: u64,
        pages: &Bitmap,
        _: ClearedBy,
    ) -> Result<Bitmap, Infallible> {
        Ok(*pages)
    }
}

/// The target source of that process: whether it is gone.
struct One(bool);

impl TargetSource<Process> for One {
    fn update(&mut self, probe: &mut Process, _: Nanos) -> Result<Vec<TargetId>, Infallible> {
        let ended = probe.is_gone && !std::mem::replace(&mut self.0, probe.is_gone);
        Ok(ended.then_some(TARGET).into_iter().collect())
    }

    fn is_over(&self) -> bool {
        self.0
    }

    fn ids(&self) -> Vec<TargetId> {
        (!self.0).then_some(TARGET).into_iter().collect()
    }

    fn mappings(&self, _: TargetId) -> Vec<AddressRange> {
        vec![AddressRange::new(0, BLOCK_SIZE)]
    }
}

#[test]
fn a_process_that_ends_ends_the_loop() {
    let (mut probe, mut targets) = (Process { is_gone: false }, One(false));
    let attributes = TableAttributes::default();
    let mut look = MonitorLoop::tables(attributes, BudgetShares::PROCESSES, Nanos(0));
    let cpu = CpuLedger::default();
    let Ok(first) = look.step(Nanos(0), cpu, &mut probe, &mut targets, &mut Vec::new());
    assert!(first.is_some());
    probe.is_gone = true;
    look.look_for_ends(Nanos(1));
    let Ok(last) = look.step(Nanos(1), cpu, &mut probe, &mut targets, &mut Vec::new());
    assert_eq!(last, None);
}

#[test]
fn no_more_is_done_than_the_guard_allows() {
    let range = AddressRange::new(0, 1 << 30);
    let operation = Operation::on(Action::Pageout, TARGET, range);
    let mut guard = Guard::new(GuardLimits::of_slowdown(0.01));
    let signals = GuardSignals {
        slowdown: Some(0.0),
        ..GuardSignals::default()
    };
    guard.observe(Nanos(0), signals, Pools::processes(1 << 30));
    let pool = Pool::Processes;
    let act_and = |flow: ControlFlow<()>| {
        move |batch: &[Operation], outcomes: &mut Vec<Outcome>| {
            outcomes.extend(batch.iter().map(Outcome::assumed));
            Ok::<_, Infallible>(flow)
        }
    };
    let act = act_and(ControlFlow::Continue(()));
    let (mut pace, time) = (Throughput::default(), StepTime::usual(STEP));
    let plan = || VecDeque::from([operation.clone()]);
    let Ok(executed) = execute(&mut plan(), (&mut guard, pool), (&mut pace, time), act);
    let Executed { done, outcomes, .. } = executed;
    let applied: u64 = outcomes.iter().map(|outcome| outcome.applied).sum();
    assert_eq!(done.len(), 1, "its parts are one operation again");
    // The allowance is five hundredths of a GiB in the first second, plus the rest of the block that this ends in.
    let most = (52 << 20) + BLOCK_SIZE;
    assert!(applied > 50 << 20 && applied <= most, "{applied}");
    let mut free = Guard::new(GuardLimits::default());
    let stop = act_and(ControlFlow::Break(()));
    let mut rest = plan();
    let (guard, mut first) = ((&mut free, pool), Throughput::default());
    let Ok(stopped) = execute(&mut rest, guard, (&mut first, time), stop);
    assert_eq!(stopped.done[0].range.len(), 2 * BLOCK_SIZE, "one batch");
    assert_eq!(rest[0].range.start, 2 * BLOCK_SIZE);
    let Ok(all) = execute(&mut plan(), (&mut free, pool), (&mut pace, time), act);
    assert_eq!(all.done[0].range.len(), 1 << 30);
}
