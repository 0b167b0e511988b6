//! Acts on processes' memory: what operation schemes ask for, done with what this kernel offers.
//!
//! The problem: `process_madvise` says "done" where it did nothing (shared pages, no swap), stops at
//! the first range that it refuses, and splits huge pages on the way. So an answer of the kernel is
//! not an outcome. The approach: operations of one scheme on one target are gathered in batches of at
//! most [`BATCH_BYTES`]; the page tables are read before (what is there, what may be acted on) and after
//! (what came of it), and every page that is not as wanted gets a reason ([`Refusal`]), by asking
//! the frame itself where the kernel's answer does not tell.
//!
//! | action | how |
//! |---|---|
//! | pageout | MADV_PAGEOUT, of whole blocks after MADV_COLLAPSE; anonymous memory only where there is swap beyond the system's reserve |
//! | cold, lru_deprio | MADV_COLD |
//! | willneed | MADV_WILLNEED; counted as applied where the kernel took the advice |
//! | hugepage, collapse | MADV_COLLAPSE of whole blocks of which enough is in memory |
//! | nohugepage | idle huge pages are split and their pages of zeros given back ([`huge_page`]) |
//! | migrate_hot, migrate_cold | move_pages(2) |
//! | stat | counted only |
//!
//! Limits: between the two reads the target runs on, so a page may come back before it is counted.
//! A page that stays for no reason that can be seen is [`Refusal::Kept`].

mod batch;
mod beside;
mod by_block;
mod filter;
mod foreseen;
mod huge_page;
mod incompressible;
mod migrate;
mod physical;
mod reclaim;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::scheme::huge::BlockUse;
use isotherm_engine::scheme::{Action, Effect};
use isotherm_engine::table::BlockFacts;
use isotherm_engine::{
    Actuator, AddressRange, BLOCK_SIZE, Nanos, Operation, Outcome, PAGE_SIZE, Refusal, TargetId,
};

use crate::areas::MappedArea;
use crate::cgroup::GroupNumbers;
use crate::host;
use crate::node;
use crate::probe::{PageTableProbe, ProbeError};
use crate::process::{Advised, Process, ProcessError};
use crate::swap::{self, SwapFacts};
use batch::Block;
use by_block::ByBlock;
use foreseen::LeftAlone;
use incompressible::Incompressible;

pub(crate) use huge_page::MADV_COLLAPSE;
pub use huge_page::split_gives_back;
pub use physical::PhysicalActuator;

/// Most bytes in one batch, so that a target's memory lock is held, and a stop is not heeded, for a
/// short time only.
pub const BATCH_BYTES: u64 = 64 << 20;
/// Most operations in one batch.
const BATCH_OPERATIONS: usize = 1024;

/// What a target maps is read again after so long: a step's portions share one reading. What changed
/// in between, the kernel refuses ([`Refusal::Unmapped`]), and an exec ends the reading of tables.
const AREAS_LAST: Duration = Duration::from_millis(100);

/// How actions are carried out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActOptions {
    /// Spare pages whose accessed bit is set. Right where the monitor has cleared the bits of all
    /// that it calls idle; wrong where it samples, as other bits are old there.
    pub spare_accessed: bool,
    /// Part of a block that must be in memory for it to become a huge page, 0 to 1.
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

/// Carries out operations on processes.
pub struct ProcessActuator {
    probe: PageTableProbe,
    options: ActOptions,
    swap: SwapFacts,
    /// What the targets of the operations at hand map; who has ended maps nothing.
    areas: BTreeMap<TargetId, (Instant, Vec<MappedArea>)>,
    advised: Vec<Advised>,
    incompressible: Incompressible,
    by_block: ByBlock,
    groups: GroupNumbers,
    interrupted: BTreeMap<TargetId, Nanos>,
    paged_out: Vec<(TargetId, u64, Bitmap)>,
    left_alone: LeftAlone,
    /// Only pages on these frames are acted on, if there is such a limit.
    frames: Option<Vec<Range<u64>>>,
}

impl ProcessActuator {
    /// An actuator without targets.
    pub fn new(options: ActOptions) -> Result<Self, ProbeError> {
        Ok(Self {
            probe: PageTableProbe::new()?,
            options,
            swap: SwapFacts::default(),
            areas: BTreeMap::new(),
            advised: Vec::new(),
            incompressible: Incompressible::default(),
            by_block: ByBlock::new(),
            groups: GroupNumbers::default(),
            interrupted: BTreeMap::new(),
            paged_out: Vec::new(),
            left_alone: LeftAlone::default(),
            frames: None,
        })
    }

    /// The same, for pages in these ranges of physical memory only: whole pages, in address order.
    #[must_use]
    pub fn within(mut self, ram: &[AddressRange]) -> Self {
        let frames = ram.iter().map(|r| r.start / PAGE_SIZE..r.end / PAGE_SIZE);
        self.frames = Some(frames.collect());
        self
    }

    fn keep_frames(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<(), ProbeError> {
        let Some(frames) = &self.frames else {
            return Ok(());
        };
        filter::keep_frames(&mut self.probe, target, frames, blocks)
    }

    /// From now on `process` is `target`.
    pub fn add(&mut self, target: TargetId, process: Process) -> Result<(), ProbeError> {
        self.probe.add(target, process)
    }

    /// Forgets `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.probe.remove(target);
        self.areas.remove(&target);
        self.incompressible.forget(target);
        self.by_block.forget(target);
        self.interrupted.remove(&target);
        self.paged_out.retain(|(of, ..)| *of != target);
        self.left_alone.forget(target);
    }

    /// For how long single pages of each target were paged out since this was asked the last time: so long the
    /// kernel went on interrupting the processors that run it.
    pub fn take_interrupted(&mut self) -> BTreeMap<TargetId, Nanos> {
        std::mem::take(&mut self.interrupted)
    }

    /// The pages paged out since the last call: target, address of their block, the pages.
    pub fn take_paged_out(&mut self) -> Vec<(TargetId, u64, Bitmap)> {
        std::mem::take(&mut self.paged_out)
    }

    /// Reads the page tables of `blocks`. `false` if the target has ended.
    pub fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        see: impl FnMut(BlockFacts),
    ) -> Result<bool, ProbeError> {
        self.probe.read_blocks(target, blocks, see)
    }

    /// How many pages of each of `blocks` are in memory; of a target that has ended, none is told.
    pub fn present(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut see: impl FnMut(u64, u32),
    ) -> Result<(), ProbeError> {
        self.probe.read_blocks(target, blocks, |facts| {
            see(facts.address, bits::count(&facts.present));
        })?;
        Ok(())
    }

    /// What each of `blocks` is like; with what of the huge ones is unused, if they are to be read. Of a
    /// target that has ended, none is told.
    pub fn block_uses(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        is_read: bool,
        mut look: impl FnMut(BlockUse),
    ) -> Result<(), ProbeError> {
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

    /// Carries out operations of one target and action.
    fn act_on(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>, ProbeError> {
        let started = Instant::now();
        let target = operations[0].target;
        let Some(mut blocks) = self.blocks(target, operations)? else {
            return Ok(operations.iter().map(exited).collect());
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
            self.give_second_chance(target, &mut blocks)?;
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
        Ok(outcomes)
    }

    /// Spares pages whose accessed bit is set, and clears it: either the page was touched just now, or
    /// nobody has looked at it yet. If it is still idle the next time, its bit says so.
    fn give_second_chance(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
    ) -> Result<(), ProbeError> {
        let mut touched: Vec<Block> = blocks
            .iter()
            .filter(|block| !bits::is_empty(&bits::and(&block.wanted, &block.accessed)))
            .cloned()
            .collect();
        for block in &mut touched {
            block.wanted = bits::and(&block.wanted, &block.accessed);
        }
        self.make_old(target, &mut touched)?;
        for block in blocks {
            let accessed = block.accessed;
            block.refuse(&accessed, Refusal::Kept);
        }
        Ok(())
    }

    /// Clears the accessed bits of what is wanted.
    fn make_old(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<(), ProbeError> {
        let ranges = self.wanted(target, blocks);
        self.advise(target, &ranges, libc::MADV_COLD, blocks)
    }

    /// The blocks in which the operations' ranges have pages; `None` if the target is gone.
    fn blocks(
        &mut self,
        target: TargetId,
        operations: &[Operation],
    ) -> Result<Option<Vec<Block>>, ProbeError> {
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

    /// What the tables of `blocks` say now. A block that could not be read is left out.
    fn look_again(
        &mut self,
        target: TargetId,
        blocks: &[Block],
        mut see: impl FnMut(usize, &BlockFacts),
    ) -> Result<(), ProbeError> {
        let addresses: Vec<u64> = blocks.iter().map(|block| block.address).collect();
        self.probe.read_blocks(target, &addresses, |facts| {
            if let Ok(i) = addresses.binary_search(&facts.address) {
                see(i, &facts);
            }
        })?;
        Ok(())
    }

    /// The ranges of `target`'s wanted pages.
    fn wanted(&self, target: TargetId, blocks: &[Block]) -> Vec<AddressRange> {
        let areas = areas_of(&self.areas, target);
        batch::wanted(blocks, areas)
    }

    /// Gives `advice` about `ranges`, and refuses the pages of those that the kernel refused.
    fn advise(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
        advice: i32,
        blocks: &mut [Block],
    ) -> Result<(), ProbeError> {
        let Some(process) = self.probe.process(target) else {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        match process.advise(ranges, advice, &mut self.advised) {
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

/// Why `action` cannot be done on this machine, if it cannot: known before anything is loaded.
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

    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ProbeError> {
        outcomes.clear();
        self.swap = swap::facts();
        self.incompressible.begin();
        self.read_areas(operations)?;
        outcomes.resize(operations.len(), Outcome::default());
        let kind = |operation: &Operation| (operation.target, operation.scheme, operation.action);
        for places in batch::gather(operations, kind, BATCH_OPERATIONS, BATCH_BYTES) {
            let batch = batch::pick(operations, &places);
            let done = if !self.areas.contains_key(&batch[0].target) {
                batch.iter().map(exited).collect()
            } else if batch[0].idle_only && self.probe.hides_accesses(batch[0].target) {
                batch
                    .iter()
                    .map(|o| refused(o, Refusal::Unobservable))
                    .collect()
            } else if self.cannot_advise(batch[0].target, batch[0].action) {
                batch
                    .iter()
                    .map(|o| refused(o, Refusal::Unsupported))
                    .collect()
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
    /// Reads what the targets of `operations` map.
    fn read_areas(&mut self, operations: &[Operation]) -> Result<(), ProbeError> {
        let targets: BTreeSet<TargetId> = operations.iter().map(|o| o.target).collect();
        self.areas
            .retain(|_, (read, _)| read.elapsed() < AREAS_LAST);
        for target in targets {
            if self.areas.contains_key(&target) {
                continue;
            }
            // It may have called exec, or mapped and unmapped since.
            let alive = self.probe.refresh(target)?;
            if let Some(Ok(areas)) = self.probe.mappings(target)
                && alive
            {
                self.areas.insert(target, (Instant::now(), areas));
            }
        }
        Ok(())
    }

    /// One operation that is too large for a batch.
    fn act_in_parts(&mut self, operation: &Operation) -> Result<Outcome, ProbeError> {
        let mut whole = Outcome::default();
        let mut start = operation.range.start;
        while start < operation.range.end {
            let end = (start + BATCH_BYTES) & !(BLOCK_SIZE - 1);
            let part = operation.part(AddressRange::new(start, end.min(operation.range.end)));
            start = part.range.end;
            for outcome in self.act_on(std::slice::from_ref(&part))? {
                add(&mut whole, outcome);
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
    let first = areas.partition_point(|area| area.range.end <= range.start);
    for area in areas[first..]
        .iter()
        .take_while(|area| area.range.start < range.end)
        .filter(|area| !area.is_file())
    {
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
        block.refuse(&[u64::MAX; 8], why);
    }
}

fn exited(operation: &Operation) -> Outcome {
    refused(operation, Refusal::Exited)
}

fn refused(operation: &Operation, why: Refusal) -> Outcome {
    Outcome {
        refused: BTreeMap::from([(why, operation.extent())]),
        ..Outcome::default()
    }
}

/// What an errno of `process_madvise` means for the range.
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

/// A batch is timed as a whole; each operation gets its part by bytes.
fn share_time(operations: &[Operation], outcomes: &mut [Outcome], took: Nanos) {
    let total: u64 = operations.iter().map(|o| o.range.len()).sum();
    for (operation, outcome) in operations.iter().zip(outcomes) {
        let share =
            u128::from(took.0) * u128::from(operation.range.len()) / u128::from(total.max(1));
        outcome.took = Nanos(share as u64);
    }
}

fn add(whole: &mut Outcome, part: Outcome) {
    whole.applied += part.applied;
    whole.filter_passed += part.filter_passed;
    whole.took = whole.took + part.took;
    whole.moved.merge(&part.moved);
    for (why, bytes) in part.refused {
        *whole.refused.entry(why).or_default() += bytes;
    }
}
