//! A target's page tables, for readers besides its monitor.

use isotherm_engine::{AddressRange, TargetId};
use isotherm_linux::probe::{BlockContents, PageTableProbe, ProbeError};

use crate::targets::TargetSet;

/// The page tables of one target.
pub(crate) struct TargetTables<'a> {
    probe: &'a mut PageTableProbe,
    targets: &'a TargetSet,
    /// Target id in the probe.
    id: TargetId,
}

impl<'a> TargetTables<'a> {
    /// Makes the tables of the target that `probe` and `targets` know by this id.
    pub(crate) fn new(probe: &'a mut PageTableProbe, targets: &'a TargetSet, id: TargetId) -> Self {
        Self { probe, targets, id }
    }

    /// Identity of the address space; it changes with exec.
    pub(crate) fn space(&self) -> Option<(u64, u64)> {
        self.probe.address_space(self.id)
    }

    /// Returns the addresses of its huge pages of private anonymous memory. `None` if the process is gone.
    pub(crate) fn huge_pages(&mut self) -> Result<Option<Vec<u64>>, ProbeError> {
        let anonymous: Vec<AddressRange> = self.targets.anonymous(self.id);
        self.probe.huge_pages(self.id, &anonymous)
    }

    /// Reads the pages of `blocks`. Returns `false` if the process is gone.
    pub(crate) fn contents(
        &mut self,
        blocks: &[u64],
        see: impl FnMut(BlockContents),
    ) -> Result<bool, ProbeError> {
        self.probe.contents(self.id, blocks, see)
    }
}
