//! Code shared by the tests: a lock for tests that must run alone, and operations on memory of this process.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use isotherm_engine::scheme::Action;
use isotherm_engine::{Actuator, AddressRange, Operation, Outcome, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::process::Process;

pub(crate) const ME: TargetId = TargetId(0);

/// Lock of the tests, which are threads of one process. A child that one of them forks shares the pages of all of them,
/// and the kernel may merge neighbouring mappings of two of them. Swap is shared by the whole machine.
static TURN: RwLock<()> = RwLock::new(());

/// Locks out all other tests, for a test that acts on memory.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a shared lock, for a test that only reads and clears accessed bits: similar tests run meanwhile.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an actuator on this process; prints SKIP and returns `None` if it is not allowed.
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
    Operation::on(action, ME, range)
}

pub(crate) fn act(actuator: &mut ProcessActuator, operation: Operation) -> Outcome {
    let mut outcomes = Vec::new();
    actuator.act(&[operation], &mut outcomes).expect("acts");
    outcomes.remove(0)
}
