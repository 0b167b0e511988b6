//! The shared state of all kdamonds of a session: the claimed tree, and the buffer with the events of all.

use std::collections::BTreeMap;

use isotherm_damon::{Claim, DamonContext, DirectoryTree};
use isotherm_linux::damon_trace::{DamonTrace, Traced};

pub(super) struct SharedDamon {
    pub(super) claim: Claim<DirectoryTree>,
    /// Buffer with the events; `None` on a kernel without readable tracepoints.
    pub(super) trace: Option<DamonTrace>,
    /// The kdamonds' process ids as last known, by their places.
    pub(super) pids: Vec<Option<u32>>,
    /// Events that have come and were not fetched yet, by kdamond.
    waiting: BTreeMap<u32, Vec<Traced>>,
    events: Vec<Traced>,
}

impl SharedDamon {
    pub(super) fn new(
        claim: Claim<DirectoryTree>,
        trace: Option<DamonTrace>,
        nr: usize,
    ) -> anyhow::Result<Self> {
        let mut hub = Self {
            claim,
            trace,
            pids: vec![None; nr],
            waiting: BTreeMap::new(),
            events: Vec::new(),
        };
        for at in 0..nr {
            hub.follow(at)?;
        }
        Ok(hub)
    }

    fn follow(&mut self, at: usize) -> anyhow::Result<()> {
        let pid = self.claim.pid(at)?;
        self.pids[at] = pid.and_then(|pid| u32::try_from(pid).ok());
        if let (Some(trace), Some(pid)) = (&self.trace, self.pids[at]) {
            trace.follow(pid)?;
        }
        Ok(())
    }

    pub(super) fn take(&mut self, at: usize) -> anyhow::Result<Vec<Traced>> {
        if let Some(trace) = &mut self.trace {
            trace.take(&mut self.events)?;
        }
        for event in self.events.drain(..) {
            self.waiting.entry(event.kdamond).or_default().push(event);
        }
        let pid = self.pids[at];
        Ok(pid
            .and_then(|pid| self.waiting.remove(&pid))
            .unwrap_or_default())
    }

    pub(super) fn nr_lost(&self) -> u64 {
        self.trace.as_ref().map_or(0, DamonTrace::nr_lost)
    }

    /// Restarts a kdamond, which loses its regions and counters.
    pub(super) fn restart(&mut self, at: usize, context: &DamonContext) -> anyhow::Result<()> {
        self.claim.restart(at, context)?;
        self.follow(at)
    }
}
