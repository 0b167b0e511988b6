//! The region monitor's loop: reads the samples' results, updates the targets, and samples again.

use super::TargetSource;
use crate::address::{AddressRange, Nanos};
use crate::attributes::{Attributes, AttributesError};
use crate::monitor::Intervals;
use crate::monitor::region::{Engine, Facts, layout};
use crate::port::{AccessProbe, Touch};
use crate::snapshot::{Snapshot, TargetId};

/// Loop of the region monitor.
#[derive(Debug)]
pub struct RegionLoop {
    engine: Engine,
    pub(super) ranges_wanted: bool,
    touches: Vec<Touch>,
    nr_samples: u64,
    nr_unknown: u64,
}

impl RegionLoop {
    /// Returns a loop that has not sampled yet.
    ///
    /// # Errors
    /// Fails if `attributes` are invalid.
    pub fn new(attributes: Attributes) -> Result<Self, AttributesError> {
        Ok(Self {
            engine: Engine::new(attributes)?,
            ranges_wanted: true,
            touches: Vec::new(),
            nr_samples: 0,
            nr_unknown: 0,
        })
    }

    /// Does the work that is due at `now` and appends the finished snapshots. Returns when to call again; `None` if no
    /// target is left.
    pub fn step<P: AccessProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        probe.check(&mut self.touches)?;
        let unknown = |touch: &&Touch| matches!(touch, Touch::Unknown(_));
        self.nr_samples += self.touches.len() as u64;
        self.nr_unknown += self.touches.iter().filter(unknown).count() as u64;
        let (mut ranges, mut ended) = (Vec::new(), Vec::new());
        // Ranges that the engine asked for are passed with the very next tick.
        if std::mem::take(&mut self.ranges_wanted) {
            ended = targets.update(probe, now)?;
            if targets.is_over() {
                return Ok(None);
            }
            let ranges_of = |id| match targets.limits() {
                Some(limits) => (id, limits.to_vec()),
                None => (id, layout::three_ranges(&targets.mappings(id))),
            };
            ranges = targets.ids().into_iter().map(ranges_of).collect();
        }
        let facts = Facts {
            touches: &self.touches,
            ranges,
            ended: &ended,
        };
        let plan = self.engine.tick(now, facts);
        probe.arm(&plan.samples)?;
        snapshots.extend(plan.snapshots.iter().cloned());
        self.ranges_wanted = plan.ranges_wanted;
        Ok(Some(plan.next_tick))
    }

    /// Restarts the age of memory that was acted on.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.engine.reset_age(target, range);
    }

    /// Returns the number of samples so far.
    pub fn nr_samples(&self) -> u64 {
        self.nr_samples
    }

    /// Returns the number of samples with an unknown result.
    pub fn nr_unknown(&self) -> u64 {
        self.nr_unknown
    }

    /// Returns the current intervals.
    pub fn intervals(&self) -> Intervals {
        self.engine.intervals()
    }
}
