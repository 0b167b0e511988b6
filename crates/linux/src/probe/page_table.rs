//! Samples processes' memory: clears accessed bits and reads them again later.
//!
//! The approach: read the sampled pages' bits, and clear those that are set with `process_madvise(MADV_COLD)`. Each
//! sample takes one range, since the TLB flush at its end is the cost. The bits are then read again, as the kernel
//! reports success even where it did nothing. A bit that is still set belongs to a page that cannot be cleared (mapped
//! twice, locked, zero page: unknown), or to one that was touched in between (accessed). The frame's flags and map
//! count decide which. Large folios are cleared whole or not at all, because clearing a part splits them.
//!
//! Limits: MADV_COLD also moves the page to the inactive list. Pages that are mapped by several processes are unknown.
//! The cost of clearing for the target is estimated, not measured (see [`Induced`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;
use std::time::Instant;

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, Cost, Gap, Nanos, PAGE_SIZE, Sample, TargetId, Touch,
};
use thiserror::Error;

use super::aliases::Aliases;
use super::clear_refs::{ClearMethod, ClearRefs};
use super::entry::Leaf;
use super::induced::Induced;
use super::secondary::{Secondary, SecondaryTables};
use super::walker::{AddressSpace, SpaceFacts, Walker, WalkerError};
use crate::arch;
use crate::clock::process_cpu;
use crate::frames::Frames;
use crate::process::{Advised, Process, ProcessError};

/// Number of pages of a block that are looked at first.
const LOOKED_AT: usize = 16;

/// Reason why the probe as a whole cannot continue.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error(transparent)]
    Walker(#[from] WalkerError),
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Result of an access to a target's memory.
pub(crate) type Result<T, E = ProbeError> = std::result::Result<T, E>;

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) process: Process,
    pub(super) space: Option<AddressSpace>,
    pub(super) facts: SpaceFacts,
    pub(super) secondary: Secondary,
}

/// State of a page since its sample began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// The accessed bit is clear.
    Armed,
    /// No page was present.
    Absent,
    /// The page was touched between clearing and verifying.
    Touched,
    /// The page cannot be sampled.
    Excluded(Gap),
}

/// Samples the accessed bits of processes' pages.
pub struct PageTableProbe {
    pub(super) walker: Walker,
    pub(super) frames: Option<Frames>,
    pub(super) targets: BTreeMap<TargetId, Watched>,
    armed: Vec<Sample>,
    /// Frames that the sampled pages must lie in to be valid; empty if there is no such condition.
    frames_wanted: Vec<u64>,
    states: Vec<PageState>,
    leaves: Vec<Leaf>,
    ranges: Vec<AddressRange>,
    outcomes: Vec<Advised>,
    pub(super) induced: Induced,
    pub(super) clear_refs: ClearRefs,
    /// Pages of the largest folio below 2 MiB that anonymous memory may consist of.
    pub(super) folio_pages: usize,
    pub(super) cost: Cost,
    pub(super) aliases: BTreeMap<TargetId, Aliases>,
    /// Targets that can no longer be watched, and the reasons.
    failed: BTreeMap<TargetId, String>,
}

impl PageTableProbe {
    /// Loads the BPF program. Targets are added later.
    pub fn new() -> Result<Self> {
        Ok(Self {
            walker: Walker::new()?,
            frames: Frames::open().ok(),
            targets: BTreeMap::new(),
            armed: Vec::new(),
            frames_wanted: Vec::new(),
            states: Vec::new(),
            leaves: Vec::new(),
            ranges: Vec::new(),
            outcomes: Vec::new(),
            induced: Induced::measured(),
            clear_refs: ClearRefs::default(),
            folio_pages: largest_folio(),
            cost: Cost::default(),
            aliases: BTreeMap::new(),
            failed: BTreeMap::new(),
        })
    }

    /// Watches `process` as `target` from now on.
    pub fn add(&mut self, target: TargetId, process: Process) -> Result<()> {
        let space = self.walker.locate(process.pid())?;
        process.may_be_advised()?;
        let facts = self.walker.facts(&space).unwrap_or_default();
        self.targets.insert(
            target,
            Watched {
                secondary: Secondary::of(&process, facts),
                process,
                space: Some(space),
                facts,
            },
        );
        Ok(())
    }

    /// Stops watching `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.targets.remove(&target);
        self.failed.remove(&target);
        self.aliases.remove(&target);
    }

    /// Returns the reason why the target can no longer be watched, though it lives. Returns each reason once.
    pub fn take_failure(&mut self, target: TargetId) -> Option<String> {
        self.failed.remove(&target)
    }

    /// Returns the facts of the target's address space, as of the last refresh.
    pub fn facts(&self, target: TargetId) -> Option<SpaceFacts> {
        self.targets.get(&target).map(|watched| watched.facts)
    }

    /// Returns the [identity](AddressSpace::id) of the target's address space, as of the last refresh; exec changes it.
    pub fn address_space(&self, target: TargetId) -> Option<(u64, u64)> {
        let space = self.targets.get(&target)?.space?;
        Some(space.id())
    }

    /// Returns the process of `target`.
    pub fn process(&self, target: TargetId) -> Option<&Process> {
        self.targets.get(&target).map(|watched| &watched.process)
    }

    /// Returns the kernel's files about frames; `None` without privilege.
    pub(crate) fn frames(&self) -> Option<&Frames> {
        self.frames.as_ref()
    }

    /// Returns one leaf for each page of `spans` (first page, number of pages). Returns `false` if the target is gone.
    pub(crate) fn leaves(
        &mut self,
        target: TargetId,
        spans: &[(u64, u32)],
        leaves: &mut Vec<Leaf>,
    ) -> Result<bool> {
        leaves.clear();
        let read = self.read_space(target, |walker, space| walker.walk(space, spans, leaves));
        Ok(read?.is_some())
    }

    /// Lets `read` read the target's address space. Returns `None` if the target is gone.
    pub(super) fn read_space<R>(
        &mut self,
        target: TargetId,
        read: impl FnOnce(&mut Walker, &AddressSpace) -> Result<R, WalkerError>,
    ) -> Result<Option<R>> {
        let Some(space) = self.targets.get(&target).and_then(|w| w.space) else {
            return Ok(None);
        };
        match read(&mut self.walker, &space) {
            Ok(found) => Ok(Some(found)),
            Err(WalkerError::Gone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds the target's page tables again: it may have called exec. Returns `false` if it has ended.
    pub fn refresh(&mut self, target: TargetId) -> Result<bool> {
        let Some(watched) = self.targets.get_mut(&target) else {
            return Ok(false);
        };
        let known = watched.space.map(|space| self.walker.facts(&space));
        if let Some(Ok(facts)) = known
            && watched.process.is_alive()
        {
            watched.facts = facts;
            watched.secondary.look(&watched.process, facts);
            return Ok(true);
        }
        watched.space = match self.walker.locate(watched.process.pid()) {
            Ok(space) if watched.process.is_alive() => Some(space),
            Ok(_) | Err(WalkerError::NoAddressSpace { .. }) => None,
            // The known space is kept: reading notices if it is wrong.
            Err(error) if error.is_passing() => return Ok(watched.process.is_alive()),
            Err(error) => return Err(error.into()),
        };
        if let Some(space) = watched.space {
            watched.facts = self.walker.facts(&space).unwrap_or_default();
            watched.secondary = Secondary::of(&watched.process, watched.facts);
        }
        Ok(watched.space.is_some())
    }

    /// Returns the kind of secondary page tables of the target's memory, as of the last refresh.
    pub fn secondary_page_tables(&self, target: TargetId) -> Option<SecondaryTables> {
        self.targets.get(&target)?.secondary.found()
    }

    /// Whether the target's memory has accesses that its page tables do not show. Memory that looks idle is then
    /// unknown.
    pub fn hides_accesses(&self, target: TargetId) -> bool {
        self.secondary_page_tables(target).is_some()
    }

    /// Clears the accessed bits of `ranges`, and continues after those that are refused.
    pub fn clear(&mut self, target: TargetId, ranges: &[AddressRange]) -> Result<()> {
        let mut all = Cow::Borrowed(ranges);
        if let Some(aliases) = self.aliases.get(&target) {
            all.to_mut().extend(aliases.ranges_of(ranges));
        }
        if arch::frame_shift() > 0 {
            all = Cow::Owned(self.whole_leaves(target, &all)?);
        }
        let Some(watched) = self.targets.get(&target) else {
            return Ok(());
        };
        let started = Instant::now();
        match watched
            .process
            .advise(&all, libc::MADV_COLD, &mut self.outcomes)
        {
            // The next read reports the target's end.
            Ok(()) | Err(ProcessError::NoSuchProcess { .. }) => {}
            // The target may belong to another user after exec: no reason to lose the others.
            Err(error) => drop(self.failed.insert(target, error.to_string())),
        }
        self.induced
            .add(ranges.len(), started.elapsed().as_nanos() as f64);
        self.cost.clears += ranges.len() as u64;
        self.cost.refused += self
            .outcomes
            .iter()
            .filter(|o| matches!(o, Advised::Refused(_)))
            .count() as u64;
        Ok(())
    }

    /// Returns the size of a huge page: 2 MiB, or more if the kernel's pages are larger than 4 KiB.
    pub(crate) fn huge_page_bytes(&self) -> u64 {
        1 << self.walker.format.block_shift()
    }

    /// Widens ranges to whole huge pages where these are larger than a block: clearing a part would split them.
    fn whole_leaves(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Vec<AddressRange>> {
        let blocks_of = |range: &AddressRange| {
            let (range, first) = (*range, range.start & !(BLOCK_SIZE - 1));
            let blocks = (first..range.end).step_by(BLOCK_SIZE as usize);
            blocks.map(move |block| {
                AddressRange::new(block.max(range.start), (block + BLOCK_SIZE).min(range.end))
            })
        };
        let mut parts: Vec<AddressRange> = ranges.iter().flat_map(blocks_of).collect();
        let spans: Vec<(u64, u32)> = parts.iter().map(|part| (part.start, 1)).collect();
        let mut leaves = Vec::new();
        self.leaves(target, &spans, &mut leaves)?;
        let bytes = self.huge_page_bytes();
        for (part, _) in { parts.iter_mut() }
            .zip(&leaves)
            .filter(|(_, leaf)| leaf.is_larger())
        {
            let start = part.start & !(bytes - 1);
            *part = AddressRange::new(start, start + bytes);
        }
        parts.dedup();
        Ok(parts)
    }

    /// Returns the pages of the block at `block` whose accessed bits `method` can clear, out of `pages`. Neighbours may
    /// differ: after fork, those that were written to are not shared. Each page costs system calls, so all are looked at
    /// only if a few of them differ.
    pub(super) fn clearable(
        &mut self,
        target: TargetId,
        block: u64,
        pages: &Bitmap,
        method: ClearMethod,
    ) -> Result<Bitmap> {
        let step = (bits::count(pages) as usize).div_ceil(LOOKED_AT).max(1);
        let mut few = bits::NONE;
        bits::each(pages)
            .step_by(step)
            .for_each(|page| bits::set(&mut few, page));
        let of_few = self.clearable_of(target, block, &few, method)?;
        if of_few == bits::NONE {
            Ok(of_few)
        } else if of_few == few {
            Ok(*pages)
        } else {
            self.clearable_of(target, block, pages, method)
        }
    }

    fn clearable_of(
        &mut self,
        target: TargetId,
        block: u64,
        pages: &Bitmap,
        method: ClearMethod,
    ) -> Result<Bitmap> {
        let mut spans = Vec::new();
        let mut page_of = Vec::new();
        for page in bits::each(pages) {
            let start = block + page as u64 * PAGE_SIZE;
            let range = AddressRange::new(start, start + PAGE_SIZE);
            // The page may be mapped at another of its addresses only.
            let aliases = self.aliases.get(&target).map(|all| all.ranges_of(&[range]));
            for range in iter::once(range).chain(aliases.into_iter().flatten()) {
                spans.push((range.start, 1));
                page_of.push(page);
            }
        }
        let mut leaves = Vec::new();
        let mut clearable = bits::NONE;
        if self.leaves(target, &spans, &mut leaves)?
            && let Some(frames) = &self.frames
        {
            let there = page_of
                .iter()
                .zip(&leaves)
                .filter(|(_, leaf)| leaf.is_present());
            for (page, leaf) in there {
                let is_clearable = match method {
                    ClearMethod::Madvise => frames.is_clearable(leaf.frame()),
                    ClearMethod::ClearRefs => frames.is_clearable_by_clear_refs(leaf.frame()),
                };
                bits::put(&mut clearable, *page, is_clearable.unwrap_or(false));
            }
        }
        Ok(clearable)
    }

    /// Works like `arm` for pages of which each is valid only while it lies in its frame.
    pub(super) fn arm_frames(&mut self, samples: &[Sample], frames: Vec<u64>) -> Result<()> {
        self.frames_wanted = frames;
        self.arm_groups(samples)
    }

    fn arm_groups(&mut self, samples: &[Sample]) -> Result<()> {
        self.armed.clear();
        self.armed.extend_from_slice(samples);
        self.states.clear();
        for group in samples.chunk_by(|a, b| a.target == b.target) {
            let first = self.states.len();
            self.states
                .resize(first + group.len(), PageState::Excluded(Gap::Exited));
            self.arm_target(group, first)?;
        }
        Ok(())
    }

    /// Starts `samples`, all of one target. `self.states` has been filled with `Excluded(Exited)` for their pages,
    /// starting at `first`.
    fn arm_target(&mut self, samples: &[Sample], first: usize) -> Result<()> {
        if !self.read_samples(samples)? {
            return Ok(());
        }
        self.plan_clears(samples, first);
        let ranges = std::mem::take(&mut self.ranges);
        let cleared = self.clear(samples[0].target, &ranges);
        self.ranges = ranges;
        cleared?;
        self.verify(samples, first)
    }

    /// Reads the leaves of `samples`, all of one target. Returns `false` if the target is gone.
    fn read_samples(&mut self, samples: &[Sample]) -> Result<bool> {
        let spans: Vec<(u64, u32)> = samples.iter().map(|s| (s.address, 1)).collect();
        let mut leaves = std::mem::take(&mut self.leaves);
        let is_there = self.leaves(samples[0].target, &spans, &mut leaves);
        self.leaves = leaves;
        let is_there = is_there?;
        if is_there {
            self.cost.checks += self.leaves.len() as u64;
        }
        Ok(is_there)
    }

    /// Derives the state of each page and the ranges to clear from `self.leaves`.
    fn plan_clears(&mut self, samples: &[Sample], first: usize) {
        self.ranges.clear();
        for (at, (sample, leaf)) in (first..).zip(samples.iter().zip(&self.leaves)) {
            let wanted = self.frames_wanted.get(at);
            let state = if wanted.is_some_and(|frame| !leaf.holds(*frame)) {
                PageState::Excluded(Gap::NoMapping)
            } else {
                state_before_clearing(*leaf)
            };
            self.states[at] = state;
            if state != PageState::Armed || !leaf.is_accessed() {
                continue;
            }
            let range = if leaf.is_huge_2m() {
                let start = sample.address & !(BLOCK_SIZE - 1);
                AddressRange::new(start, start + BLOCK_SIZE)
            } else {
                whole_folio(self.frames.as_ref(), sample.address, *leaf)
            };
            // Samples of small regions may share a huge page: clear it once.
            if self.ranges.last() != Some(&range) {
                self.ranges.push(range);
            }
        }
    }

    /// Reads the cleared bits again: a bit that is still set means "touched" or "cannot be cleared".
    fn verify(&mut self, samples: &[Sample], first: usize) -> Result<()> {
        let before = std::mem::take(&mut self.leaves);
        if !self.read_samples(samples)? {
            self.states[first..].fill(PageState::Excluded(Gap::Exited));
            return Ok(());
        }
        let states = self.states[first..].iter_mut();
        for ((state, before), leaf) in states.zip(&before).zip(&self.leaves) {
            if *state == PageState::Armed && before.is_accessed() && leaf.is_accessed() {
                *state = still_set(self.frames.as_ref(), *leaf);
                self.cost.refused += u64::from(*state != PageState::Touched);
            }
        }
        Ok(())
    }

    fn check_target(
        &mut self,
        samples: &[Sample],
        first: usize,
        touches: &mut Vec<Touch>,
    ) -> Result<()> {
        if !self.read_samples(samples)? {
            touches.extend(samples.iter().map(|_| Touch::Unknown(Gap::Exited)));
            return Ok(());
        }
        let hides = self.hides_accesses(samples[0].target);
        for (state, leaf) in self.states[first..].iter().zip(&self.leaves) {
            touches.push(match touch_of(*state, *leaf) {
                // Others access the memory unseen: that a page was not accessed is never certain.
                Touch::Idle if hides => Touch::Unknown(Gap::Unclearable),
                touch => touch,
            });
        }
        Ok(())
    }
}

impl AccessProbe for PageTableProbe {
    type Error = ProbeError;

    fn arm(&mut self, samples: &[Sample]) -> Result<()> {
        self.frames_wanted.clear();
        self.arm_groups(samples)
    }

    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<()> {
        touches.clear();
        let samples = std::mem::take(&mut self.armed);
        let mut first = 0;
        for group in samples.chunk_by(|a, b| a.target == b.target) {
            self.check_target(group, first, touches)?;
            first += group.len();
        }
        self.armed = samples;
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost {
            monitor_cpu: process_cpu(),
            induced_cpu: Nanos(self.induced.total_ns as u64),
            ..self.cost
        }
    }
}

/// Returns the pages of 4 KiB of the largest folio below a huge page that the system may give to anonymous memory (mTHP,
/// Linux 6.8).
///
/// Limits: the sizes are those of now, up to 2 MiB. Folios of files and shared memory have sizes of their own, and may be split.
///
/// Source: Documentation/admin-guide/mm/transhuge.rst, "Hugepage sizes".
fn largest_folio() -> usize {
    let sizes = std::fs::read_dir("/sys/kernel/mm/transparent_hugepage");
    let enabled = sizes.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let policy = std::fs::read_to_string(entry.path().join("enabled")).ok()?;
        let bytes = kib.parse::<u64>().ok()? << 10;
        let is_small = bytes < BLOCK_SIZE || bytes == BLOCK_SIZE && arch::frame_shift() > 0;
        let may_be = is_small && !policy.contains("[never]");
        may_be.then_some((bytes / PAGE_SIZE) as usize)
    });
    enabled.max().unwrap_or(1 << arch::frame_shift())
}

fn state_before_clearing(leaf: Leaf) -> PageState {
    if leaf.is_unreadable() {
        PageState::Excluded(Gap::Unreadable)
    } else if leaf.is_huge_1g() {
        // Only hugetlbfs and device memory have 1 GiB leaves, and MADV_COLD accepts neither.
        PageState::Excluded(Gap::Unclearable)
    } else if leaf.is_present() {
        PageState::Armed
    } else {
        PageState::Absent
    }
}

/// Decides the meaning of a bit that is still set after clearing.
fn still_set(frames: Option<&Frames>, leaf: Leaf) -> PageState {
    match frames.map(|frames| frames.is_clearable(leaf.frame())) {
        Some(Ok(true)) => PageState::Touched,
        _ => PageState::Excluded(Gap::Unclearable),
    }
}

/// Returns the page at `address`, or the large folio that holds it: clearing a part of one would split it.
fn whole_folio(frames: Option<&Frames>, address: u64, leaf: Leaf) -> AddressRange {
    let folio = || -> Option<AddressRange> {
        let (start, end) = frames?.folio(leaf.frame()).ok()??;
        let before = (leaf.frame() - start) * PAGE_SIZE;
        let after = (end - leaf.frame()) * PAGE_SIZE;
        AddressRange::checked(address.checked_sub(before)?, address + after)
    };
    folio().unwrap_or_else(|| AddressRange::new(address, address + PAGE_SIZE))
}

/// Returns the result of a sample from the state of its page and the current leaf.
fn touch_of(state: PageState, leaf: Leaf) -> Touch {
    match state {
        PageState::Excluded(why) => Touch::Unknown(why),
        _ if leaf.is_unreadable() => Touch::Unknown(Gap::Unreadable),
        PageState::Touched => Touch::Accessed,
        // A page that appears between two checks was accessed.
        PageState::Absent => Touch::of(leaf.is_present()),
        PageState::Armed if leaf.is_present() => Touch::of(leaf.is_accessed()),
        PageState::Armed if leaf.is_swapped() => Touch::Idle,
        PageState::Armed => Touch::Unknown(Gap::Unmapped),
    }
}
