//! Suites that wait for one of two workers.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use super::plan::Suite;

/// Suites that compute; a worker that is free takes the next.
#[derive(Clone)]
pub(super) struct Queue(Arc<(Mutex<Waiting>, Condvar)>);

struct Waiting {
    suites: VecDeque<Suite>,
    /// A suite of virtual machines is running. It keeps both processors busy, so only one runs at a time.
    has_vm: bool,
}

impl Queue {
    pub(super) fn new(suites: Vec<Suite>) -> Self {
        let waiting = Waiting {
            suites: suites.into(),
            has_vm: false,
        };
        Self(Arc::new((Mutex::new(waiting), Condvar::new())))
    }

    /// Returns the next suite that may run, those of virtual machines first, as they take longest; `None` if none is
    /// left.
    pub(super) fn take(&self) -> Option<Suite> {
        let (waiting, changed) = &*self.0;
        let mut waiting = waiting.lock().expect("no panic");
        loop {
            let of_vm = |suite: &Suite| suite.boots_machines();
            let vm = waiting.suites.iter().position(of_vm);
            let other = waiting.suites.iter().position(|suite| !of_vm(suite));
            if let Some(at) = vm.filter(|_| !waiting.has_vm).or(other) {
                let suite = waiting.suites.remove(at)?;
                waiting.has_vm |= suite.boots_machines();
                return Some(suite);
            }
            if waiting.suites.is_empty() {
                return None;
            }
            waiting = changed.wait(waiting).expect("no panic");
        }
    }

    pub(super) fn done(&self, suite: &Suite) {
        let (waiting, changed) = &*self.0;
        if suite.boots_machines() {
            waiting.lock().expect("no panic").has_vm = false;
        }
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Kind;
    use super::*;

    #[test]
    fn machines_come_first_and_one_at_a_time() {
        let suite = |name| Suite::new(name, Kind::Check, 1, &["true"]);
        let queue = Queue::new(["clippy", "vm", "features", "vm-long"].map(suite).into());
        let take = || queue.take().expect("one is left");
        let vm = take();
        let names = [vm.name, take().name, take().name];
        assert_eq!(names, ["vm", "clippy", "features"]);
        let waits = queue.clone();
        let waits = std::thread::spawn(move || waits.take().map(|suite| suite.name));
        queue.done(&vm);
        assert_eq!(waits.join().expect("no panic"), Some("vm-long"));
        assert!(queue.take().is_none());
    }
}
