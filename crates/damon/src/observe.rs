//! Reports of a kdamond: schemes' counters, effective quotas, intervals, and the regions that schemes were tried on.

use std::io;

use isotherm_engine::{AddressRange, Intervals, Nanos};
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::error::{DamonError, Result};
use crate::tree::{EntryKind, Tree, TreePath};

/// Counters of one scheme, by DAMOS's names: `nr` counts regions, `sz` bytes. `None`: this kernel does not have the
/// counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStats {
    /// Regions that it was tried on.
    pub nr_tried: u64,
    /// Bytes of these regions.
    pub sz_tried: u64,
    /// Regions that the action was applied to.
    pub nr_applied: u64,
    /// Bytes that the action was applied to.
    pub sz_applied: u64,
    /// Bytes that passed filters by page.
    pub sz_ops_filter_passed: Option<u64>,
    /// Quota windows that ended with the quota used up.
    pub qt_exceeds: u64,
    /// Snapshots that it was tried on.
    pub nr_snapshots: Option<u64>,
    /// Current quota, in bytes a window.
    pub effective_bytes: Option<u64>,
}

impl KernelStats {
    /// Returns the growth since `before`, with the current quota. A counter that fell has restarted from zero.
    #[must_use]
    pub fn since(&self, before: Option<&Self>) -> Self {
        let zero = Self::default();
        let before = before.unwrap_or(&zero);
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let grown_if = |now: Option<u64>, before: Option<u64>| {
            now.map(|now| grown(now, before.unwrap_or_default()))
        };
        Self {
            nr_tried: grown(self.nr_tried, before.nr_tried),
            sz_tried: grown(self.sz_tried, before.sz_tried),
            nr_applied: grown(self.nr_applied, before.nr_applied),
            sz_applied: grown(self.sz_applied, before.sz_applied),
            sz_ops_filter_passed: grown_if(self.sz_ops_filter_passed, before.sz_ops_filter_passed),
            qt_exceeds: grown(self.qt_exceeds, before.qt_exceeds),
            nr_snapshots: grown_if(self.nr_snapshots, before.nr_snapshots),
            effective_bytes: self.effective_bytes,
        }
    }

    /// Adds a growth; the current quota becomes that of `grown`.
    pub fn add(&mut self, grown: &Self) {
        let sum_if = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
            (None, None) => None,
            (sum, more) => Some(sum.unwrap_or_default() + more.unwrap_or_default()),
        };
        self.nr_tried += grown.nr_tried;
        self.sz_tried += grown.sz_tried;
        self.nr_applied += grown.nr_applied;
        self.sz_applied += grown.sz_applied;
        self.sz_ops_filter_passed = sum_if(self.sz_ops_filter_passed, grown.sz_ops_filter_passed);
        self.qt_exceeds += grown.qt_exceeds;
        self.nr_snapshots = sum_if(self.nr_snapshots, grown.nr_snapshots);
        self.effective_bytes = grown.effective_bytes;
    }
}

/// A region that a scheme was tried on, from `tried_regions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRegion {
    pub range: AddressRange,
    /// Checks of the last aggregation interval in which it was accessed.
    pub nr_accesses: u32,
    /// Aggregation intervals for which it has had about this access frequency.
    pub age: u32,
    /// Bytes that passed filters by page, if this kernel reports them.
    pub sz_filter_passed: Option<u64>,
}

impl<T: Tree> Claim<T> {
    /// Returns the current counters of a running kdamond's schemes.
    ///
    /// # Errors
    /// Fails if the tree refuses the command; a kdamond that has ended has no counters.
    pub fn stats(&mut self, at: usize) -> Result<Vec<KernelStats>> {
        self.command(at, "update_schemes_stats")?;
        // Kernels before 6.9 do not know this command.
        let has_quotas = match self.command(at, "update_schemes_effective_quotas") {
            Ok(()) => true,
            Err(DamonError::Write { source, .. })
                if source.kind() == io::ErrorKind::InvalidInput =>
            {
                false
            }
            Err(error) => return Err(error),
        };
        let schemes = TreePath::kdamond(at).join("contexts/0/schemes");
        let nr: usize = self.number(&schemes.join("nr_schemes"))?;
        (0..nr)
            .map(|scheme| self.stats_of(&schemes.at(scheme), has_quotas))
            .collect()
    }

    fn stats_of(&self, scheme: &TreePath, has_quotas: bool) -> Result<KernelStats> {
        let stats = scheme.join("stats");
        let number = |name: &str| self.number(&stats.join(name));
        let effective = scheme.join("quotas/effective_bytes");
        let has_effective = has_quotas && self.tree.kind(&effective).is_some();
        Ok(KernelStats {
            nr_tried: number("nr_tried")?,
            sz_tried: number("sz_tried")?,
            nr_applied: number("nr_applied")?,
            sz_applied: number("sz_applied")?,
            sz_ops_filter_passed: self.number_if_there(&stats.join("sz_ops_filter_passed"))?,
            qt_exceeds: number("qt_exceeds")?,
            nr_snapshots: self.number_if_there(&stats.join("nr_snapshots"))?,
            effective_bytes: has_effective.then(|| self.number(&effective)).transpose()?,
        })
    }

    fn number_if_there(&self, path: &TreePath) -> Result<Option<u64>> {
        let is_there = self.tree.kind(path).is_some();
        is_there.then(|| self.number(path)).transpose()
    }

    /// Returns a running kdamond's current intervals; tuned ones where this kernel tunes them.
    pub fn intervals(&mut self, at: usize) -> Result<Intervals> {
        // Kernels without tuning do not know this command.
        let _ = self.command(at, "update_tuned_intervals");
        let path = TreePath::kdamond(at).join("contexts/0/monitoring_attrs/intervals");
        let time = |name: &str| -> Result<Nanos> {
            let us: u64 = self.number(&path.join(name))?;
            Ok(Nanos(us.saturating_mul(1_000)))
        };
        Ok(Intervals {
            sample: time("sample_us")?,
            aggregation: time("aggr_us")?,
            update: time("update_us")?,
        })
    }

    /// Returns the regions that a scheme was tried on in its last, or next, apply interval: this waits for it. They are
    /// in the order of addresses; the kernel does not report their targets.
    ///
    /// # Errors
    /// Fails if the tree refuses the command: kernels before 6.2 do not know it.
    pub fn tried_regions(&mut self, at: usize, scheme: usize) -> Result<Vec<KernelRegion>> {
        self.command(at, "update_schemes_tried_regions")?;
        let path = TreePath::kdamond(at)
            .join("contexts/0/schemes")
            .at(scheme)
            .join("tried_regions");
        let entries = self.tree.list(&path).map_err(DamonError::read(&path))?;
        let mut regions = Vec::new();
        for entry in entries {
            if entry.kind == EntryKind::Directory {
                regions.extend(self.tried_region(&path.join(&entry.name))?);
            }
        }
        regions.sort_unstable_by_key(|region: &KernelRegion| region.range);
        // The regions occupy kernel memory until they are cleared.
        self.command(at, "clear_schemes_tried_regions")?;
        Ok(regions)
    }

    /// Reads one region; `None` if it is empty.
    fn tried_region(&self, path: &TreePath) -> Result<Option<KernelRegion>> {
        let (start, end) = (
            self.number(&path.join("start"))?,
            self.number(&path.join("end"))?,
        );
        let Some(range) = AddressRange::checked(start, end) else {
            return Ok(None);
        };
        Ok(Some(KernelRegion {
            range,
            nr_accesses: self.number(&path.join("nr_accesses"))?,
            age: self.number(&path.join("age"))?,
            sz_filter_passed: self.number_if_there(&path.join("sz_filter_passed"))?,
        }))
    }
}
