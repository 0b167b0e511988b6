//! A target's page tables, for who reads them besides its monitor.

use isotherm_engine::{AddressRange, TargetId};
use isotherm_linux::probe::{BlockContents, PageTableProbe, ProbeError};

use crate::targets::TargetSet;

/// The page tables of one target.
pub(crate) struct TargetTables<'a> {
    probe: &'a mut PageTableProbe,
    targets: &'a TargetSet,
    /// What the probe calls it.
    id: TargetId,
}

impl<'a> TargetTables<'a> {
    /// Those of the target that `probe` and `targets` call so.
    pub(crate) fn new(probe: &'a mut PageTableProbe, targets: &'a TargetSet, id: TargetId) -> Self {
        Self { probe, targets, id }
    }

    /// The identity of its address space: another one after exec.
    pub(crate) fn space(&self) -> Option<(u64, u64)> {
        self.probe.address_space(self.id)
    }

    /// Addresses of its huge pages of private anonymous memory. `None` if it is gone.
    pub(crate) fn huge_pages(&mut self) -> Result<Option<Vec<u64>>, ProbeError> {
        let anonymous: Vec<AddressRange> = self.targets.anonymous(self.id);
        self.probe.huge_pages(self.id, &anonymous)
    }

    /// Looks into the pages of `blocks`. `false` if it is gone.
    pub(crate) fn contents(
        &mut self,
        blocks: &[u64],
        see: impl FnMut(BlockContents),
    ) -> Result<bool, ProbeError> {
        self.probe.contents(self.id, blocks, see)
    }
}
