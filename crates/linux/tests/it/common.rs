//! Shared by the tests: which of them may run at the same time, and operations on memory of this process.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use isotherm_engine::scheme::Action;
use isotherm_engine::{Actuator, AddressRange, Nanos, Operation, Outcome, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::process::Process;

pub(crate) const ME: TargetId = TargetId(0);

/// Tests are threads of one process: a child that one of them forks shares the pages of all of them, and the kernel
/// may join neighbouring mappings of two of them. Swap is the whole machine's.
static TURN: RwLock<()> = RwLock::new(());

/// For a test that acts on memory: no other test that holds a turn runs meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that only reads and clears marks of accesses: others like it run meanwhile.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// An actuator on this process; prints SKIP and yields nothing where it is not allowed.
pub(crate) fn actuator(test: &str, options: ActOptions) -> Option<ProcessActuator> {
    let mut actuator = match ProcessActuator::new(options) {
        Ok(actuator) => actuator,
        Err(error) => {
            eprintln!("SKIP {test}: {error}");
            return None;
        }
    };
    let me = Process::open(std::process::id()).expect("we exist");
    actuator.add(ME, me).expect("our own tables");
    Some(actuator)
}

pub(crate) fn operation(action: Action, range: AddressRange) -> Operation {
    Operation {
        scheme: 0,
        action,
        destinations: [].into(),
        target: ME,
        range,
        bytes: range.len(),
        age: Nanos(0),
        filters: [].into(),
        pass_unmatched: true,
        idle_only: true,
        pages: None,
        blocks: None,
    }
}

pub(crate) fn act(actuator: &mut ProcessActuator, operation: Operation) -> Outcome {
    let mut outcomes = Vec::new();
    actuator.act(&[operation], &mut outcomes).expect("acts");
    outcomes.remove(0)
}
