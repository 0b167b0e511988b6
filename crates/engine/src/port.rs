//! The seams: what a world (this machine, a simulated one, kernel DAMON) gives to the engine.
//!
//! The engine never calls these itself; a driver passes answers in and carries plans out. They are
//! defined here so that every world implements the same words.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::guard::Pool;
use crate::monitor::bits::{self, Bitmap};
use crate::monitor::page_cache::PAGE_CACHE;
use crate::moves::NodeMoves;
use crate::scheme::{Action, Destination, OpsFilter};
use crate::snapshot::TargetId;

/// Some neighbouring pages whose accessed bits are to be watched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Whose memory.
    pub target: TargetId,
    /// First page; a multiple of the page size.
    pub address: u64,
    /// How many pages from there, at least 1.
    pub nr_pages: u32,
}

/// Why nothing can be said about a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The target exited, or became another program.
    Exited,
    /// Nothing is mapped there any more.
    Unmapped,
    /// The page's accessed bit cannot be cleared: shared, locked, special or refused.
    Unclearable,
    /// No process maps this physical frame.
    NoMapping,
    /// The page table could not be read.
    Unreadable,
}

/// What became of one armed [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// `accessed` of `observed` pages were accessed since the sample was armed. A page that was not
    /// there at either end is observed and idle; one that appeared in between was accessed.
    Seen {
        /// Pages about which something is known, at least 1.
        observed: u32,
        /// Of these, the accessed ones.
        accessed: u32,
    },
    /// Nothing is known.
    Unknown(Gap),
}

impl Touch {
    /// A single page that was accessed.
    pub const ACCESSED: Self = Self::Seen {
        observed: 1,
        accessed: 1,
    };
    /// A single page that was not.
    pub const IDLE: Self = Self::Seen {
        observed: 1,
        accessed: 0,
    };
}

/// What watching has cost since the probe was made. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cost {
    /// CPU time of the monitor itself, kernel work on its behalf included.
    pub monitor_cpu: Nanos,
    /// CPU time that the monitor is estimated to have taken from targets (TLB flushes and refills).
    pub induced_cpu: Nanos,
    /// Accessed bits checked.
    pub checks: u64,
    /// Ranges of pages cleared.
    pub clears: u64,
    /// Clears that were refused or had no effect.
    pub refused: u64,
}

impl Cost {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            monitor_cpu: self.monitor_cpu + other.monitor_cpu,
            induced_cpu: self.induced_cpu + other.induced_cpu,
            checks: self.checks + other.checks,
            clears: self.clears + other.clears,
            refused: self.refused + other.refused,
        }
    }
}

/// Reads and clears accessed bits.
pub trait AccessProbe {
    /// What makes the probe useless as a whole (a single target's end does not: that is a [`Gap`]).
    type Error: std::error::Error + Send + Sync + 'static;

    /// Starts to watch `samples`, and forgets those armed before.
    fn arm(&mut self, samples: &[Sample]) -> Result<(), Self::Error>;

    /// Says what became of the samples armed last: one answer for each, in their order.
    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<(), Self::Error>;

    /// What that has cost so far.
    fn cost(&self) -> Cost;
}

/// Something to do to one range of a target's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The scheme that asks for it, by its place in the configuration.
    pub scheme: usize,
    pub action: Action,
    /// Where to, for actions that move memory.
    pub destinations: Arc<[Destination]>,
    /// Whose memory.
    pub target: TargetId,
    /// Where; whole pages.
    pub range: AddressRange,
    /// How many bytes of it hold memory: what the action can be about. All of the range where the
    /// monitor cannot tell.
    pub bytes: u64,
    /// How long it has been as the scheme wants it.
    pub age: Nanos,
    /// Rules that only the world can apply, page by page, in order; each with its `matching` and
    /// `allow`. Pages that none matches are acted on if `pass_unmatched`.
    pub filters: Arc<[(OpsFilter, bool, bool)]>,
    /// What becomes of pages that no filter matches.
    pub pass_unmatched: bool,
    /// The scheme is about memory that is not accessed: pages that were, since it was looked at, are
    /// not meant.
    pub idle_only: bool,
    /// Only these pages of the block that `range` lies in; `None`: all of `range`.
    pub pages: Option<Box<Bitmap>>,
    /// Of those that make huge pages: only these blocks, in order; `None`: as the actuator sees fit.
    pub blocks: Option<Arc<[u64]>>,
}

impl Operation {
    /// The memory that it is about.
    pub fn pool(&self) -> Pool {
        if self.target == PAGE_CACHE {
            Pool::PageCache
        } else {
            Pool::Processes
        }
    }

    /// The part of it that is about `range`, one of its own parts; memory counts as spread evenly.
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

    /// Its pages of the block at `block`.
    pub fn pages_of(&self, block: u64) -> Bitmap {
        let mask = bits::mask(block, self.range);
        let pages = self.pages.as_ref();
        pages.map_or(mask, |pages| bits::and(pages, &mask))
    }

    /// Whether a huge page may be made of the block at `block`, as far as the engine has decided on it.
    pub fn means_block(&self, block: u64) -> Option<bool> {
        let blocks = self.blocks.as_ref()?;
        Some(blocks.binary_search(&block).is_ok())
    }

    /// The addresses that it is about: of its range, or of its pages.
    pub fn stretches(&self) -> Vec<AddressRange> {
        let Some(pages) = &self.pages else {
            return vec![self.range];
        };
        let mut stretches = Vec::new();
        bits::runs(block_of(self.range.start), pages, &mut stretches);
        stretches
    }

    /// How many bytes of addresses that is, whatever they hold.
    pub fn extent(&self) -> u64 {
        let pages = self.pages.as_ref();
        pages.map_or(self.range.len(), |pages| bits::bytes(pages))
    }
}

fn block_of(address: u64) -> u64 {
    address & !(BLOCK_SIZE - 1)
}

/// Why the kernel reclaims no page of a mapping, by the mapping's flags (`can_madv_lru_vma()` in mm/madvise.c).
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

/// Why memory was not acted on.
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
    /// It belongs to a file that we may not write.
    NotOurFile,
    /// Nothing is mapped there.
    Unmapped,
    /// Nothing is there to act on: the pages are not in memory, or are as wanted already.
    NotPresent,
    /// It is of a file and has not been written to it yet.
    Dirty,
    /// It was accessed in the meantime, or the kernel kept it for a reason it does not tell.
    Kept,
    /// It came back soon after it had been reclaimed, and is kept for longer this time.
    Refaulted,
    /// It was paged out before, and compressed swap did not make it smaller.
    Incompressible,
    /// Too little of a block is in use for a huge page.
    Sparse,
    /// A huge page of it would waste more than it may.
    Wasteful,
    /// The program has written it: it is not what a huge page wastes.
    Written,
    /// No room at the destination, or for a huge page.
    NoRoom,
    /// The target exited, or became another program.
    Exited,
    /// This machine cannot do it.
    Unsupported,
    /// Not permitted.
    Denied,
    /// It looks idle, but accesses to it cannot all be seen: of a KVM guest, of a device.
    Unobservable,
    /// Something else; the log has the kernel's answer.
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

/// What became of one [`Operation`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that passed the operation's filters.
    pub filter_passed: u64,
    /// Bytes that the action was applied to, as seen afterwards.
    pub applied: u64,
    /// Bytes that it was not applied to, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Time that it took.
    pub took: Nanos,
    /// Which of what was applied went from which node to which, for actions that move memory.
    pub moved: NodeMoves,
}

impl Outcome {
    /// What a dry run reports: that all of it was done, in no time.
    pub fn assumed(operation: &Operation) -> Self {
        let bytes = operation.bytes;
        Self {
            filter_passed: bytes,
            applied: bytes,
            ..Self::default()
        }
    }

    /// What was refused of what was tried. Actuators account for whole ranges; a range's holes were
    /// never tried.
    pub fn refused_of_tried(&self, operation: &Operation) -> BTreeMap<Refusal, u64> {
        let sum = |refused: &BTreeMap<Refusal, u64>| {
            let bytes = refused.values();
            bytes.fold(self.applied, |sum, n| sum.saturating_add(*n))
        };
        let mut refused = self.refused.clone();
        let mut holes = sum(&refused).saturating_sub(operation.bytes.min(operation.extent()));
        // Those that are told of a range as a whole.
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

/// Carries out what schemes ask for.
pub trait Actuator {
    /// What makes the actuator useless as a whole; that one range is refused is an [`Outcome`].
    type Error: std::error::Error + Send + Sync + 'static;

    /// Why `action` cannot be done here, if it cannot.
    fn lacks(&self, action: Action) -> Option<String>;

    /// Carries out `operations`: one outcome for each, in their order.
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
            let operation = Operation {
                scheme: 0,
                action: Action::Pageout,
                destinations: [].into(),
                target: TargetId(0),
                range: AddressRange::new(0, 1000),
                bytes,
                age: Nanos(0),
                filters: [].into(),
                pass_unmatched: true,
                idle_only: true,
                pages: None,
                blocks: None,
            };
            let outcome = Outcome {
                applied,
                refused: refused.iter().copied().collect(),
                ..Outcome::default()
            };
            let refused = outcome.refused_of_tried(&operation);
            assert_eq!(refused.into_values().collect::<Vec<_>>(), wanted);
        };
        check(300, 200, &[(NotPresent, 800)], &[100]);
        check(300, 300, &[(NotPresent, 700)], &[]);
        check(300, 100, &[(Locked, 150), (NotPresent, 750)], &[150, 50]);
        check(300, 0, &[(Exited, 1000)], &[300]);
        check(300, 100, &[(Unmapped, 600), (NotPresent, 300)], &[200]);
        // More was there than was thought.
        check(300, 400, &[(Locked, 100), (NotPresent, 500)], &[100]);
        // The monitor could not tell.
        check(1000, 400, &[(NotPresent, 600)], &[600]);
    }
}
