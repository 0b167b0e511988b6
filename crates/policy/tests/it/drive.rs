//! Tests of the loops that real and simulated machines share. With the same facts they do the same in all worlds. They
//! execute their plans as far as the guard allows.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;

use isotherm_engine::drive::{TableLoop, TableProbe, TargetSource};
use isotherm_engine::table::{BlockFacts, ClearedBy, TableAttributes};
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, BudgetShares, Cost, CpuLedger, Nanos, PAGE_SIZE, Sample,
    Snapshot, TargetId, Touch,
};
use isotherm_policy::guard::{Guard, GuardLimits, GuardSignals, Pool, Pools, STEP};
use isotherm_policy::scheme::Action;
use isotherm_policy::{Executed, Throughput, execute};
use isotherm_policy::{Operation, Outcome};

const BLOCKS: u64 = 8;
const TARGET: TargetId = TargetId(3);

/// A process of eight blocks; the first one is touched between any two reads.
#[derive(Default)]
struct Script {
    /// Blocks with accessed bits that were cleared and not set since.
    clear: [bool; BLOCKS as usize],
    armed: Vec<Sample>,
    cost: Cost,
    /// Calls that it received, in their order.
    asked: Vec<String>,
    is_gone: bool,
}

fn block(address: u64) -> usize {
    (address / BLOCK_SIZE) as usize - 1
}

impl AccessProbe for Script {
    type Error = Infallible;

    fn arm(&mut self, samples: &[Sample]) -> Result<(), Infallible> {
        self.asked.push(format!("arm {samples:?}"));
        self.armed = samples.to_vec();
        self.cost.monitor_cpu = self.cost.monitor_cpu + Nanos(5_000 * samples.len() as u64);
        Ok(())
    }

    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<(), Infallible> {
        touches.clear();
        let samples = self.armed.iter();
        touches.extend(samples.map(|sample| Touch::of(block(sample.address) == 0)));
        Ok(())
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

impl TableProbe for Script {
    fn occupied_blocks(
        &mut self,
        _: TargetId,
        _: &[AddressRange],
    ) -> Result<Option<Vec<u64>>, Infallible> {
        Ok((!self.is_gone).then(|| (1..=BLOCKS).map(|block| block * BLOCK_SIZE).collect()))
    }

    fn read_blocks(
        &mut self,
        _: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(BlockFacts),
    ) -> Result<bool, Infallible> {
        self.asked.push(format!("read {blocks:x?}"));
        for &address in blocks {
            let is_clear = self.clear[block(address)] && block(address) != 0;
            look(BlockFacts {
                address,
                huge: false,
                present: [u64::MAX; 8],
                accessed: if is_clear { [0; 8] } else { [u64::MAX; 8] },
                swapped: [0; 8],
            });
        }
        Ok(!self.is_gone)
    }

    fn clear(&mut self, _: TargetId, ranges: &[AddressRange]) -> Result<(), Infallible> {
        self.asked.push(format!("clear {ranges:?}"));
        for range in ranges {
            for address in (range.start..range.end).step_by(BLOCK_SIZE as usize) {
                self.clear[block(address)] = true;
            }
        }
        Ok(())
    }

    fn is_clearable(&mut self, _: TargetId, _: u64, _: ClearedBy) -> Result<bool, Infallible> {
        Ok(true)
    }
}

/// The target source of that process.
struct One {
    is_gone: bool,
}

impl TargetSource<Script> for One {
    fn update(&mut self, probe: &mut Script, _: Nanos) -> Result<Vec<TargetId>, Infallible> {
        let ended = probe.is_gone && !std::mem::replace(&mut self.is_gone, probe.is_gone);
        Ok(ended.then_some(TARGET).into_iter().collect())
    }

    fn is_over(&self) -> bool {
        self.is_gone
    }

    fn ids(&self) -> Vec<TargetId> {
        (!self.is_gone).then_some(TARGET).into_iter().collect()
    }

    fn mappings(&self, _: TargetId) -> Vec<AddressRange> {
        vec![AddressRange::new(BLOCK_SIZE, (BLOCKS + 1) * BLOCK_SIZE)]
    }
}

fn table_loop() -> TableLoop {
    let attributes = TableAttributes::default();
    TableLoop::new(attributes, BudgetShares::PROCESSES, Nanos(0))
}

/// Runs for `seconds`. Returns the calls that the probe received, and the snapshots.
fn watched(seconds: u64) -> (Vec<String>, Vec<Snapshot>) {
    let (mut probe, mut targets) = (Script::default(), One { is_gone: false });
    let mut look = table_loop();
    let (mut now, mut snapshots) = (Nanos(0), Vec::new());
    let cpu = CpuLedger::default();
    while now < Nanos::from_millis(1000 * seconds) {
        let Ok(next) = look.step(now, cpu, &mut probe, &mut targets, &mut snapshots);
        now = next.expect("the process is there");
    }
    (probe.asked, snapshots)
}

#[test]
fn the_same_facts_lead_to_the_same_plans() {
    let (asked, snapshots) = watched(20);
    assert_eq!(watched(20), (asked, snapshots));
}

#[test]
fn what_is_touched_is_told_from_what_is_not() {
    let (_, snapshots) = watched(20);
    let last = snapshots.last().expect("there are snapshots");
    let at = |address: u64| last.regions.iter().find(|r| r.range.contains(address));
    let rate = |address| at(address).and_then(|region| last.access_rate(region));
    assert!(rate(BLOCK_SIZE) > Some(0.5), "{last:?}");
    assert_eq!(rate(5 * BLOCK_SIZE), Some(0.0), "{last:?}");
    assert!(at(5 * BLOCK_SIZE).expect("a region").age_ns > Nanos::from_millis(5_000));
}

#[test]
fn a_process_that_ends_ends_the_loop() {
    let (mut probe, mut targets) = (Script::default(), One { is_gone: false });
    let mut look = table_loop();
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
    let mut guard = Guard::new(GuardLimits {
        max_slowdown: Some(0.01),
        ..GuardLimits::default()
    });
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
    let mut pace = Throughput::default();
    let plan = || VecDeque::from([operation.clone()]);
    let Ok(executed) = execute(&mut plan(), (&mut guard, pool), (&mut pace, STEP), act);
    let Executed { done, outcomes } = executed;
    let applied: u64 = outcomes.iter().map(|outcome| outcome.applied).sum();
    assert_eq!(done.len(), 1, "its parts are one operation again");
    // The allowance is five hundredths of a GiB in the first second, plus the rest of the block that this ends in.
    assert!(
        applied > 50 << 20 && applied <= (52 << 20) + BLOCK_SIZE,
        "{}",
        applied / PAGE_SIZE
    );
    let mut free = Guard::new(GuardLimits::default());
    let stop = act_and(ControlFlow::Break(()));
    let mut rest = plan();
    let Ok(stopped) = execute(
        &mut rest,
        (&mut free, pool),
        (&mut Throughput::default(), STEP),
        stop,
    );
    assert_eq!(stopped.done[0].range.len(), 2 * BLOCK_SIZE, "one batch");
    assert_eq!(rest[0].range.start, 2 * BLOCK_SIZE);
    let Ok(all) = execute(&mut plan(), (&mut free, pool), (&mut pace, STEP), act);
    assert_eq!(all.done[0].range.len(), 1 << 30);
}
