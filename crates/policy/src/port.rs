//! Operations on memory, their outcomes, and the port of a world that executes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::guard::Pool;
use crate::scheme::{Action, Destination, OpsFilter};
use isotherm_engine::NodeMoves;
use isotherm_engine::address::{AddressRange, Nanos, block_of};
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::monitor::page_cache::PAGE_CACHE;
use isotherm_engine::snapshot::TargetId;

/// An action on one range of a target's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Index in the configuration of the scheme that asks for it.
    pub scheme: usize,
    pub action: Action,
    /// Destination nodes, for actions that move memory.
    pub destinations: Arc<[Destination]>,
    /// Target that the memory belongs to.
    pub target: TargetId,
    /// Address range of whole pages.
    pub range: AddressRange,
    /// Bytes of the range that hold memory and that the action can apply to. It is all of the range where the monitor
    /// does not know.
    pub bytes: u64,
    /// Time for which the memory has matched the scheme's pattern.
    pub age: Nanos,
    /// Rules that only the world can apply, page by page, in order; each with its `matching` and `allow`.
    pub filters: Arc<[(OpsFilter, bool, bool)]>,
    /// Whether pages that match no filter are acted on.
    pub pass_unmatched: bool,
    /// Whether the scheme is about memory that is not accessed: pages that were accessed since the last check are
    /// excluded.
    pub idle_only: bool,
    /// Pages of the block that `range` lies in; `None`: all of `range`.
    pub pages: Option<Box<Bitmap>>,
    /// Blocks to make huge, in order, for actions that make huge pages; `None`: the actuator decides.
    pub blocks: Option<Arc<[u64]>>,
}

impl Operation {
    /// Returns an operation of the first scheme on idle memory, which fills all of `range`, without filters.
    pub fn on(action: Action, target: TargetId, range: AddressRange) -> Self {
        Self {
            scheme: 0,
            action,
            destinations: Arc::default(),
            target,
            range,
            bytes: range.len(),
            age: Nanos(0),
            filters: Arc::default(),
            pass_unmatched: true,
            idle_only: true,
            pages: None,
            blocks: None,
        }
    }

    /// Returns the pool that its memory belongs to.
    pub fn pool(&self) -> Pool {
        if self.target == PAGE_CACHE {
            Pool::PageCache
        } else {
            Pool::Processes
        }
    }

    /// Returns the part of it that is about `range`, one of its own parts; memory counts as spread evenly.
    #[must_use]
    pub fn part(&self, range: AddressRange) -> Self {
        let mut part = self.clone();
        part.range = range;
        part.bytes = if let Some(pages) = &mut part.pages {
            **pages = bits::and(pages, &bits::mask(block_of(range.start), range));
            bits::bytes(pages)
        } else {
            let whole = u128::from(self.range.len().max(1));
            let bytes = u128::from(self.bytes) * u128::from(range.len()) / whole;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        part
    }

    /// Returns its pages of the block at `block`.
    pub fn pages_of(&self, block: u64) -> Bitmap {
        let mask = bits::mask(block, self.range);
        let pages = self.pages.as_ref();
        pages.map_or(mask, |pages| bits::and(pages, &mask))
    }

    /// Returns whether the block at `block` may become a huge page; `None`: the engine has not decided.
    pub fn means_block(&self, block: u64) -> Option<bool> {
        let blocks = self.blocks.as_ref()?;
        Some(blocks.binary_search(&block).is_ok())
    }

    /// Returns the addresses that it is about: its range, or those of its pages.
    pub fn stretches(&self) -> Vec<AddressRange> {
        let Some(pages) = &self.pages else {
            return vec![self.range];
        };
        let mut stretches = Vec::new();
        bits::runs(block_of(self.range.start), pages, &mut stretches);
        stretches
    }

    /// Returns the size of these addresses in bytes, regardless of what they hold.
    pub fn extent(&self) -> u64 {
        let pages = self.pages.as_ref();
        pages.map_or(self.range.len(), |pages| bits::bytes(pages))
    }
}

/// Huge pages at the first faults of a command that a session starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThpPolicy {
    /// Use the system's setting.
    #[default]
    Inherit,
    /// Use them only where the program, or a scheme, asks for them.
    Advised,
    /// Use none, not even for schemes.
    Never,
}

/// Reason why the kernel reclaims no page of a mapping, by the mapping's flags (`can_madv_lru_vma()` in mm/madvise.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Unreclaimable {
    /// Locked memory: mlock(2), mlockall(2), `MAP_LOCKED`, memfd_secret(2).
    Locked,
    /// Device memory (`VM_IO`, `VM_PFNMAP`).
    Device,
    /// Huge pages of hugetlbfs.
    HugeTlb,
    /// The process maps most of its pages at several addresses.
    Several,
}

/// Reason why memory was not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// There is no swap, and the memory is anonymous.
    NoSwap,
    /// Swap is full.
    SwapFull,
    /// It is mapped more than once, by other processes or by this one.
    Shared,
    /// It is locked, or special.
    Locked,
    /// It belongs to a file that Isotherm may not write.
    NotOurFile,
    /// Nothing is mapped there.
    Unmapped,
    /// No page is left to act on: the pages are not in memory, or are already in the wanted state.
    NotPresent,
    /// It belongs to a file and has not been written back yet.
    Dirty,
    /// It was accessed in the meantime, or the kernel kept it for a reason that it does not report.
    Kept,
    /// It was read back soon after it had been reclaimed, and is protected for longer this time.
    Refaulted,
    /// It was paged out before, and compressed swap did not make it smaller.
    Incompressible,
    /// Too little of a block is in use for a huge page.
    Sparse,
    /// A huge page of it would exceed the limit on waste.
    Wasteful,
    /// The program has written it, so it is not waste of a huge page.
    Written,
    /// No memory is free at the destination, or for a huge page.
    NoRoom,
    /// The target exited, or executed another program.
    Exited,
    /// This machine cannot do it.
    Unsupported,
    /// The kernel did not permit it.
    Denied,
    /// It looks idle, but not all accesses to it can be seen: those of a KVM guest or of a device.
    Unobservable,
    /// Another reason; the log has the kernel's answer.
    Other,
}

impl From<Unreclaimable> for Refusal {
    fn from(why: Unreclaimable) -> Self {
        match why {
            Unreclaimable::Locked | Unreclaimable::HugeTlb => Self::Locked,
            Unreclaimable::Device => Self::Unobservable,
            Unreclaimable::Several => Self::Shared,
        }
    }
}

/// Result of one [`Operation`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that passed the operation's filters.
    pub filter_passed: u64,
    /// Bytes that the action was applied to, as checked afterwards.
    pub applied: u64,
    /// Bytes that the action was not applied to, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Time that the operation took.
    pub took: Nanos,
    /// Bytes moved from node to node, for actions that move memory.
    pub moved: NodeMoves,
}

impl Outcome {
    /// Returns the outcome that a dry run reports: the action was applied to all bytes, in no time.
    pub fn assumed(operation: &Operation) -> Self {
        Self {
            filter_passed: operation.bytes,
            applied: operation.bytes,
            ..Self::default()
        }
    }

    /// Adds the result of another part of the operation.
    pub fn add(&mut self, part: &Self) {
        self.filter_passed += part.filter_passed;
        self.applied += part.applied;
        for (why, bytes) in &part.refused {
            *self.refused.entry(*why).or_default() += bytes;
        }
        self.took = self.took + part.took;
        self.moved.merge(&part.moved);
    }

    /// Returns the bytes that were tried: those of the operation, or more if the range held more than the monitor knew.
    /// Each has one result: it was applied, or `refused` for one reason ([`Self::refused_of_tried`]).
    pub fn tried(&self, operation: &Operation, refused: &BTreeMap<Refusal, u64>) -> u64 {
        self.sum_with(refused).max(operation.bytes)
    }

    fn sum_with(&self, refused: &BTreeMap<Refusal, u64>) -> u64 {
        { refused.values() }.fold(self.applied, |sum, n| sum.saturating_add(*n))
    }

    /// Returns the refused bytes without the range's holes. Actuators account for whole ranges; holes were never tried.
    pub fn refused_of_tried(&self, operation: &Operation) -> BTreeMap<Refusal, u64> {
        let mut refused = self.refused.clone();
        let known = operation.bytes.min(operation.extent());
        let mut holes = self.sum_with(&refused).saturating_sub(known);
        // These reasons are reported for a range as a whole.
        for why in [
            Refusal::NotPresent,
            Refusal::Unmapped,
            Refusal::Exited,
            Refusal::Unsupported,
            Refusal::Unobservable,
            Refusal::Refaulted,
        ] {
            if let Some(bytes) = refused.get_mut(&why) {
                let out = holes.min(*bytes);
                *bytes -= out;
                holes -= out;
            }
        }
        refused.retain(|_, bytes| *bytes > 0);
        refused
    }
}

/// Executes the operations of schemes.
pub trait Actuator {
    /// Error that makes the actuator useless as a whole; the refusal of one range is an [`Outcome`].
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns why `action` is unavailable here; `None` if it is available.
    fn lacks(&self, action: Action) -> Option<String>;

    /// Executes `operations` and appends one outcome for each, in their order.
    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::Refusal::{Exited, Locked, NotPresent, Unmapped};
    use super::*;

    #[test]
    fn holes_are_not_refused() {
        let check = |bytes: u64, applied: u64, refused: &[(Refusal, u64)], wanted: &[u64]| {
            let range = AddressRange::new(0, 1000);
            let mut operation = Operation::on(Action::Pageout, TargetId(0), range);
            operation.bytes = bytes;
            let outcome = Outcome {
                applied,
                refused: refused.iter().copied().collect(),
                ..Outcome::default()
            };
            let refused = outcome.refused_of_tried(&operation);
            let sum = applied + wanted.iter().sum::<u64>();
            assert_eq!(outcome.tried(&operation, &refused), sum.max(bytes));
            assert_eq!(refused.into_values().collect::<Vec<_>>(), wanted);
        };
        check(300, 200, &[(NotPresent, 800)], &[100]);
        check(300, 300, &[(NotPresent, 700)], &[]);
        check(300, 100, &[(Locked, 150), (NotPresent, 750)], &[150, 50]);
        check(300, 0, &[(Exited, 1000)], &[300]);
        check(300, 100, &[(Unmapped, 600), (NotPresent, 300)], &[200]);
        // The range held more memory than the monitor knew.
        check(300, 400, &[(Locked, 100), (NotPresent, 500)], &[100]);
        // The monitor did not know how much memory the range held.
        check(1000, 400, &[(NotPresent, 600)], &[600]);
    }
}
