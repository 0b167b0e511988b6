//! The region monitor's loop: reads the samples' results, updates the targets, and samples again.

use super::TargetSource;
use crate::address::{AddressRange, Nanos};
use crate::attributes::{Attributes, AttributesError};
use crate::cpu_ledger::CpuLedger;
use crate::monitor::Intervals;
use crate::monitor::layout::Layout;
use crate::monitor::region::{Engine, Facts};
use crate::port::{AccessProbe, Touch};
use crate::snapshot::{Snapshot, TargetId};

/// Loop of the region monitor.
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
    /// Returns a loop that has not sampled yet.
    ///
    /// # Errors
    /// Fails if `attributes` are invalid.
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

    /// Does the work that is due at `now` and appends the finished snapshots. Returns when to call again; `None` if no
    /// target is left.
    pub fn step<P: AccessProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        cpu: CpuLedger,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        probe.check(&mut self.touches)?;
        let unknown = |touch: &&Touch| matches!(touch, Touch::Unknown(_));
        self.nr_samples += self.touches.len() as u64;
        self.nr_unknown += self.touches.iter().filter(unknown).count() as u64;
        let (mut layouts, mut ended) = (Vec::new(), Vec::new());
        // Layouts that the engine asked for are passed with the very next tick.
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
            cost: cpu.of_watching(probe.cost()),
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

    /// Makes the next step check which targets are alive.
    pub fn look_for_ends(&mut self) {
        self.layouts_wanted = true;
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
