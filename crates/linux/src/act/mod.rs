//! Acts on processes' memory: executes the operations of schemes with the calls that this kernel offers.
//!
//! The problem: `process_madvise` reports success where it did nothing (shared pages, no swap) and stops at the first
//! range that it refuses. It also splits huge pages. So the kernel's answer is not an outcome. The approach: operations
//! of one scheme on one target are gathered in batches of at most [`BATCH_BYTES`]. The page tables are read before
//! (present pages, pages that may be acted on) and after (the result). Every page that is not as wanted gets a reason
//! ([`Refusal`]), read from its frame where the kernel's answer does not show it.
//!
//! | action | how |
//! |---|---|
//! | pageout | MADV_PAGEOUT, whole blocks after MADV_COLLAPSE; anonymous memory while swap exceeds the reserve |
//! | cold, lru_deprio | MADV_COLD |
//! | willneed | MADV_WILLNEED; counted as applied if the kernel accepted the advice |
//! | hugepage, collapse | MADV_COLLAPSE of whole blocks with enough pages in memory |
//! | nohugepage | idle huge pages are split and their pages of zeros freed ([`huge_page`]) |
//! | migrate_hot, migrate_cold | move_pages(2) |
//! | stat | counted only |
//!
//! Limits: the target runs on between the two reads, so a page may be read back before it is counted. A page that stays
//! for no visible reason is [`Refusal::Kept`].

mod batch;
mod every_cpu;
mod filter;
mod foreseen;
mod huge_page;
mod huge_page_reclaim;
mod incompressible;
mod migrate;
mod page_walks;
mod physical;
mod reclaim;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::table::BlockFacts;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_policy::scheme::huge::BlockUse;
use isotherm_policy::scheme::{Action, Effect};
use isotherm_policy::{Actuator, Operation, Outcome, Refusal};

use crate::areas::{MappedArea, overlapping};
use crate::cgroup::GroupNumbers;
use crate::host;
use crate::node;
use crate::probe::{PageTableProbe, ProbeError, Result};
use crate::process::{Advised, Process, ProcessError};
use crate::swap::{self, SwapFacts};
use batch::Block;
use foreseen::LeftAlone;
use huge_page_reclaim::HugePageReclaim;
use incompressible::Incompressible;

pub(crate) use huge_page::MADV_COLLAPSE;
pub use physical::PhysicalActuator;

/// Maximum bytes of one batch. It bounds the time for which a target's mmap lock is held and a stop request waits.
pub(crate) const BATCH_BYTES: u64 = 64 << 20;
const BATCH_OPERATIONS: usize = 1024;

/// Time after which a target's mappings are read again: the batches of one step share one read. The kernel refuses
/// ranges that changed in between ([`Refusal::Unmapped`]), and an exec ends the reading of tables.
const AREAS_LAST: Duration = Duration::from_millis(100);

/// Options of executing actions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActOptions {
    /// Skip pages whose accessed bit is set. Right if the monitor has cleared the bits of all pages that it calls idle;
    /// wrong if it samples, as the bits of unsampled pages are old.
    pub spare_accessed: bool,
    /// Fraction of a block that must be in memory for it to become a huge page, 0 to 1.
    pub collapse_min_present: f64,
}

impl Default for ActOptions {
    fn default() -> Self {
        Self {
            spare_accessed: false,
            collapse_min_present: 0.5,
        }
    }
}

/// Executes operations on processes.
pub struct ProcessActuator {
    probe: PageTableProbe,
    options: ActOptions,
    swap: SwapFacts,
    /// Mappings of the targets of the current operations; none for a target that has ended.
    areas: BTreeMap<TargetId, (Instant, Vec<MappedArea>)>,
    advised: Vec<Advised>,
    incompressible: Incompressible,
    huge_page_reclaim: HugePageReclaim,
    groups: GroupNumbers,
    interrupted: BTreeMap<TargetId, Nanos>,
    /// Processors that the target runs on, while single pages of it are paged out.
    cpus: Vec<usize>,
    paged_out: Vec<(TargetId, u64, Bitmap)>,
    left_alone: LeftAlone,
    /// Ranges of frames to which actions are limited, if there is such a limit.
    frames: Option<Vec<Range<u64>>>,
}

impl ProcessActuator {
    /// Returns an actuator without targets.
    pub fn new(options: ActOptions) -> Result<Self> {
        Ok(Self {
            probe: PageTableProbe::new()?,
            options,
            swap: SwapFacts::default(),
            areas: BTreeMap::new(),
            advised: Vec::new(),
            incompressible: Incompressible::default(),
            huge_page_reclaim: HugePageReclaim::new(),
            groups: GroupNumbers::default(),
            interrupted: BTreeMap::new(),
            cpus: Vec::new(),
            paged_out: Vec::new(),
            left_alone: LeftAlone::default(),
            frames: None,
        })
    }

    /// Limits the actuator to pages in these ranges of physical memory: whole pages, in address order.
    #[must_use]
    pub fn within(mut self, ram: &[AddressRange]) -> Self {
        let frames = ram.iter().map(|r| r.start / PAGE_SIZE..r.end / PAGE_SIZE);
        self.frames = Some(frames.collect());
        self
    }

    fn keep_frames(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let Some(frames) = &self.frames else {
            return Ok(());
        };
        filter::keep_frames(&mut self.probe, target, frames, blocks)
    }

    /// Adds `process` as `target`.
    pub fn add(&mut self, target: TargetId, process: Process) -> Result<()> {
        self.probe.add(target, process)
    }

    /// Removes `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.probe.remove(target);
        self.areas.remove(&target);
        self.incompressible.forget(target);
        self.huge_page_reclaim.forget(target);
        self.interrupted.remove(&target);
        self.paged_out.retain(|(of, ..)| *of != target);
        self.left_alone.forget(target);
    }

    /// Returns the time for which single pages of each target were paged out since the last call. During that time the
    /// kernel kept interrupting the processors that run the target.
    pub fn take_interrupted(&mut self) -> BTreeMap<TargetId, Nanos> {
        std::mem::take(&mut self.interrupted)
    }

    /// Returns the pages paged out since the last call: target, block address and set of pages.
    pub fn take_paged_out(&mut self) -> Vec<(TargetId, u64, Bitmap)> {
        std::mem::take(&mut self.paged_out)
    }

    /// Reads the page tables of `blocks`. Returns `false` if the target has ended.
    pub fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        see: impl FnMut(BlockFacts),
    ) -> Result<bool> {
        self.probe.read_blocks(target, blocks, see)
    }

    /// Passes the use of each of `blocks` to `look`, with the unused pages of huge ones if the content shall be read.
    /// Passes none for a target that has ended.
    pub fn block_uses(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        is_read: bool,
        mut look: impl FnMut(BlockUse),
    ) -> Result<()> {
        if is_read {
            self.probe.contents(target, blocks, |contents| {
                look(BlockUse {
                    block: contents.block,
                    is_huge: contents.is_huge,
                    present: contents.present,
                    unused: Some(bits::count(&contents.zeros)),
                });
            })?;
            return Ok(());
        }
        self.probe.read_blocks(target, blocks, |facts| {
            look(BlockUse {
                block: facts.address,
                is_huge: facts.huge,
                present: facts.present,
                unused: None,
            });
        })?;
        Ok(())
    }

    fn act_on(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>> {
        let started = Instant::now();
        let target = operations[0].target;
        let Some(mut blocks) = self.blocks(target, operations)? else {
            let exited = operations.iter().map(|o| refused(o, Refusal::Exited));
            return Ok(exited.collect());
        };
        self.keep_frames(target, &mut blocks)?;
        let mut young = {
            let meant = (operations, blocks.as_mut_slice());
            filter::apply(&mut self.probe, &mut self.groups, target, meant)?
        };
        self.make_old(target, &mut young)?;
        let takes_away = matches!(
            operations[0].action.effect(),
            Some(Effect::Nearness(false) | Effect::HugePages(false))
        );
        if self.options.spare_accessed && operations[0].idle_only && takes_away {
            self.give_second_chance(target, operations, &mut blocks)?;
        }
        if operations[0].action.is_reclaim() {
            self.refuse_unreclaimable(operations, &mut blocks);
        }
        match operations[0].action {
            Action::Stat => {}
            Action::Pageout => self.page_out(target, &mut blocks)?,
            Action::Cold | Action::LruDeprio => self.cool(target, &mut blocks)?,
            Action::Willneed => self.bring_in(target, operations, &mut blocks)?,
            Action::Hugepage | Action::Collapse => {
                self.collapse(target, operations, &mut blocks)?;
            }
            Action::Nohugepage => self.give_back_unused(target, &mut blocks)?,
            Action::MigrateHot | Action::MigrateCold => {
                let operation = &operations[0];
                let is_idle = operation.action == Action::MigrateCold;
                self.migrate(target, &operation.destinations, is_idle, &mut blocks)?;
            }
            Action::LruPrio => refuse_all(&mut blocks, Refusal::Unsupported),
        }
        let mut outcomes: Vec<Outcome> = operations
            .iter()
            .map(|operation| batch::outcome(operation, &mut blocks))
            .collect();
        share_time(operations, &mut outcomes, started.elapsed().into());
        self.leave_shared(operations, &outcomes);
        Ok(outcomes)
    }

    /// Skips pages whose accessed bit is set. Unless operations name pages, whose bits were sampled, it clears the bit:
    /// either the page was touched just now, or its bit was not yet sampled. A page that is still idle the next time has
    /// a clear bit then.
    fn give_second_chance(
        &mut self,
        target: TargetId,
        operations: &[Operation],
        blocks: &mut [Block],
    ) -> Result<()> {
        if operations.iter().any(|operation| operation.pages.is_none()) {
            let mut touched: Vec<Block> = blocks
                .iter()
                .filter(|block| !bits::is_empty(&bits::and(&block.wanted, &block.accessed)))
                .cloned()
                .collect();
            for block in &mut touched {
                block.wanted = bits::and(&block.wanted, &block.accessed);
            }
            self.make_old(target, &mut touched)?;
        }
        for block in blocks {
            let accessed = block.accessed;
            block.refuse(&accessed, Refusal::Kept);
        }
        Ok(())
    }

    /// Clears the accessed bits of the wanted pages.
    fn make_old(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let ranges = self.wanted(target, blocks);
        self.advise(target, &ranges, libc::MADV_COLD, blocks)
    }

    /// Returns the blocks in which the operations' ranges have pages; `None` if the target is gone.
    fn blocks(&mut self, target: TargetId, operations: &[Operation]) -> Result<Option<Vec<Block>>> {
        let areas = areas_of(&self.areas, target);
        let mut parts: Vec<AddressRange> = operations
            .iter()
            .flat_map(|operation| batch::clip(operation.range, areas))
            .collect();
        parts.sort_unstable();
        let Some(addresses) = self.probe.occupied_blocks(target, &parts)? else {
            return Ok(None);
        };
        let mut blocks: Vec<Block> = Vec::with_capacity(addresses.len());
        let alive = self.probe.read_blocks(target, &addresses, |facts| {
            let mut block = block(&facts, &parts, areas);
            batch::keep_pages(&mut block, operations);
            blocks.push(block);
        })?;
        Ok(alive.then_some(blocks))
    }

    /// Reads the page tables of `blocks` again, and returns what `see` finds in each; `unread` for a block that cannot
    /// be read.
    fn look_again<R: Clone>(
        &mut self,
        target: TargetId,
        blocks: &[Block],
        unread: R,
        see: impl Fn(&BlockFacts) -> R,
    ) -> Result<Vec<R>> {
        let addresses: Vec<u64> = blocks.iter().map(|block| block.address).collect();
        let mut seen = vec![unread; blocks.len()];
        self.probe.read_blocks(target, &addresses, |facts| {
            if let Ok(i) = addresses.binary_search(&facts.address) {
                seen[i] = see(&facts);
            }
        })?;
        Ok(seen)
    }

    fn wanted(&self, target: TargetId, blocks: &[Block]) -> Vec<AddressRange> {
        let areas = areas_of(&self.areas, target);
        batch::wanted(blocks, areas)
    }

    /// Gives `advice` about `ranges`, and refuses the pages of ranges that the kernel refused.
    fn advise(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
        advice: i32,
        blocks: &mut [Block],
    ) -> Result<()> {
        let Some(process) = self.probe.process(target) else {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        let answer = if advice == libc::MADV_PAGEOUT && !self.cpus.is_empty() {
            every_cpu::page_out(process, &self.cpus, ranges, &mut self.advised)
        } else {
            process.advise(ranges, advice, &mut self.advised)
        };
        match answer {
            Ok(()) => {}
            Err(ProcessError::NoSuchProcess { .. }) => {
                refuse_all(blocks, Refusal::Exited);
                return Ok(());
            }
            Err(ProcessError::Refused { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EPERM)) =>
            {
                refuse_all(blocks, Refusal::Denied);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        for (range, advised) in ranges.iter().zip(&self.advised) {
            if let Advised::Refused(errno) = advised {
                for block in batch::within(blocks, *range) {
                    let pages = bits::mask(block.address, *range);
                    block.refuse(&pages, refusal(*errno));
                }
            }
        }
        Ok(())
    }
}

/// Returns the reason why `action` is impossible on this machine, if it is. Known before anything is loaded.
pub fn lacks(action: Action) -> Option<String> {
    match action {
        Action::LruPrio => {
            Some("only the kernel's own DAMON can move pages to the active list".into())
        }
        Action::Hugepage | Action::Collapse if host::kernel_version() < (6, 1) => Some(format!(
            "this is Linux {}; MADV_COLLAPSE came with 6.1",
            host::kernel_release()
        )),
        Action::MigrateHot | Action::MigrateCold if node::count() < 2 => {
            Some("this machine has one memory node; there is nowhere to migrate to".into())
        }
        _ => None,
    }
}

impl Actuator for ProcessActuator {
    type Error = ProbeError;

    fn lacks(&self, action: Action) -> Option<String> {
        lacks(action)
    }

    fn act(&mut self, operations: &[Operation], outcomes: &mut Vec<Outcome>) -> Result<()> {
        outcomes.clear();
        self.swap = swap::facts();
        self.incompressible.begin();
        let targets: BTreeSet<TargetId> = operations.iter().map(|o| o.target).collect();
        self.read_areas(targets)?;
        outcomes.resize(operations.len(), Outcome::default());
        let kind = |operation: &Operation| (operation.target, operation.scheme, operation.action);
        for places in batch::gather(operations, kind, BATCH_OPERATIONS, BATCH_BYTES) {
            let batch = batch::pick(operations, &places);
            let is_there = self.areas.contains_key(&batch[0].target);
            let gone = (!is_there).then_some(Refusal::Exited);
            let done = if let Some(why) = gone.or_else(|| self.impossible(&batch[0])) {
                batch.iter().map(|o| refused(o, why)).collect()
            } else if let Some(outcomes) = self.never_reclaimed(&batch) {
                outcomes
            } else if batch.len() == 1 && batch[0].range.len() > BATCH_BYTES {
                vec![self.act_in_parts(&batch[0])?]
            } else {
                self.act_on(&batch)?
            };
            for (place, outcome) in places.into_iter().zip(done) {
                outcomes[place] = outcome;
            }
        }
        Ok(())
    }
}

impl ProcessActuator {
    fn read_areas(&mut self, targets: impl IntoIterator<Item = TargetId>) -> Result<()> {
        self.areas
            .retain(|_, (read, _)| read.elapsed() < AREAS_LAST);
        for target in targets {
            if self.areas.contains_key(&target) {
                continue;
            }
            // The target may have called exec, or mapped and unmapped memory since.
            let alive = self.probe.refresh(target)?;
            if let Some(Ok(areas)) = self.probe.mappings(target)
                && alive
            {
                self.areas.insert(target, (Instant::now(), areas));
            }
        }
        Ok(())
    }

    /// Executes one operation that is too large for a batch.
    fn act_in_parts(&mut self, operation: &Operation) -> Result<Outcome> {
        let mut whole = Outcome::default();
        let mut start = operation.range.start;
        while start < operation.range.end {
            let end = (start + BATCH_BYTES) & !(BLOCK_SIZE - 1);
            let part = operation.part(AddressRange::new(start, end.min(operation.range.end)));
            start = part.range.end;
            for outcome in self.act_on(std::slice::from_ref(&part))? {
                whole.add(&outcome);
            }
        }
        Ok(whole)
    }
}

fn block(facts: &BlockFacts, parts: &[AddressRange], areas: &[MappedArea]) -> Block {
    let range = AddressRange::new(facts.address, facts.address + BLOCK_SIZE);
    let mut mine = bits::NONE;
    let first = parts.partition_point(|part| part.end <= range.start);
    for part in parts[first..].iter().take_while(|p| p.start < range.end) {
        mine = bits::or(&mine, &bits::mask(facts.address, *part));
    }
    let mut anonymous = bits::NONE;
    for area in overlapping(areas, range).filter(|area| !area.is_file()) {
        anonymous = bits::or(&anonymous, &bits::mask(facts.address, area.range));
    }
    let present = bits::and(&facts.present, &mine);
    Block {
        address: facts.address,
        huge: facts.huge,
        there: facts.present,
        present,
        accessed: bits::and(&facts.accessed, &present),
        anonymous,
        passed: present,
        wanted: present,
        ..Block::default()
    }
}

fn areas_of(
    areas: &BTreeMap<TargetId, (Instant, Vec<MappedArea>)>,
    target: TargetId,
) -> &[MappedArea] {
    areas.get(&target).map_or(&[], |(_, areas)| areas)
}

fn refuse_all(blocks: &mut [Block], why: Refusal) {
    for block in blocks {
        block.refuse(&bits::ALL, why);
    }
}

fn refused(operation: &Operation, why: Refusal) -> Outcome {
    Outcome {
        refused: BTreeMap::from([(why, operation.extent())]),
        ..Outcome::default()
    }
}

/// Maps an errno of `process_madvise` to the refusal of the range.
fn refusal(errno: i32) -> Refusal {
    match errno {
        libc::EINVAL => Refusal::Locked,
        libc::ENOMEM => Refusal::Unmapped,
        libc::EAGAIN | libc::EBUSY => Refusal::NoRoom,
        libc::EPERM | libc::EACCES => Refusal::Denied,
        libc::ESRCH => Refusal::Exited,
        libc::ENOSYS => Refusal::Unsupported,
        _ => Refusal::Other,
    }
}

/// Divides the time of a batch among its operations in proportion to their bytes.
fn share_time(operations: &[Operation], outcomes: &mut [Outcome], took: Nanos) {
    let total: u64 = operations.iter().map(|o| o.range.len()).sum();
    for (operation, outcome) in operations.iter().zip(outcomes) {
        let share =
            u128::from(took.0) * u128::from(operation.range.len()) / u128::from(total.max(1));
        outcome.took = Nanos(share as u64);
    }
}
