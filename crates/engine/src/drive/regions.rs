//! The region monitor's loop: what became of the samples, who is there, what is sampled next.

use super::TargetSource;
use crate::address::{AddressRange, Nanos};
use crate::attributes::{Attributes, AttributesError};
use crate::monitor::Intervals;
use crate::monitor::layout::Layout;
use crate::monitor::region::{Engine, Facts};
use crate::port::{AccessProbe, Touch};
use crate::snapshot::{Snapshot, TargetId};

/// The loop.
#[derive(Debug)]
pub struct RegionLoop {
    engine: Engine,
    populated_only: bool,
    layouts_wanted: bool,
    touches: Vec<Touch>,
    nr_samples: u64,
    nr_unknown: u64,
}

impl RegionLoop {
    /// A loop that has not looked yet.
    ///
    /// # Errors
    /// What is wrong with `attributes`.
    pub fn new(attributes: Attributes) -> Result<Self, AttributesError> {
        Ok(Self {
            populated_only: attributes.strategy.populated_only,
            engine: Engine::new(attributes)?,
            layouts_wanted: true,
            touches: Vec::new(),
            nr_samples: 0,
            nr_unknown: 0,
        })
    }

    /// Does what is due at `now` and appends the snapshots that are finished. Yields when to come
    /// back; `None` if nobody is left.
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
        let (mut layouts, mut ended) = (Vec::new(), Vec::new());
        // What is wanted is told with the very next tick.
        if std::mem::take(&mut self.layouts_wanted) {
            ended = targets.update(probe, now)?;
            if targets.is_over() {
                return Ok(None);
            }
            layouts = self.layouts(probe, targets)?;
        }
        let facts = Facts {
            touches: &self.touches,
            layouts,
            ended: &ended,
            cost: probe.cost(),
        };
        let plan = self.engine.tick(now, facts);
        probe.arm(&plan.samples)?;
        snapshots.extend(plan.snapshots.iter().cloned());
        self.layouts_wanted = plan.layouts_wanted;
        Ok(Some(plan.next_tick))
    }

    fn layouts<P: AccessProbe, T: TargetSource<P>>(
        &self,
        probe: &mut P,
        targets: &mut T,
    ) -> Result<Vec<(TargetId, Layout)>, P::Error> {
        let mut layouts = Vec::new();
        for id in targets.ids() {
            if let Some(limits) = targets.limits() {
                layouts.push((id, Layout::Fixed(limits.to_vec())));
                continue;
            }
            let mappings = targets.mappings(id);
            let mappings: Vec<AddressRange> = mappings.iter().map(|m| m.range).collect();
            let populated = if self.populated_only {
                targets.populated(probe, id, &mappings)?
            } else {
                None
            };
            let layout = Layout::Mappings {
                mappings,
                populated,
            };
            layouts.push((id, layout));
        }
        Ok(layouts)
    }

    /// The next step looks who is there.
    pub fn look_for_ends(&mut self) {
        self.layouts_wanted = true;
    }

    /// Memory was acted on: its age counts anew.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.engine.reset_age(target, range);
    }

    /// Samples so far.
    pub fn nr_samples(&self) -> u64 {
        self.nr_samples
    }

    /// Of these, the ones about which nothing could be known.
    pub fn nr_unknown(&self) -> u64 {
        self.nr_unknown
    }

    /// The intervals in force.
    pub fn intervals(&self) -> Intervals {
        self.engine.intervals()
    }
}
