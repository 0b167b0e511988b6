//! Page-granular snapshots, and their replay as regions.
//!
//! Problem: a page scan knows the accessed bit of every single page, so its snapshots are bitmaps. Every report wants
//! regions with an access frequency and an age.
//!
//! Approach: a record of page scans keeps, for each 2 MiB block and scan, three bitmaps of 512 bits (present, accessed,
//! unknown). [`PageAges`] remembers for each page the scan since which it has been in its state. It merges neighbouring
//! pages of the same state and age into one region that was checked once (`nr_samples` 1). A page that is not present
//! belongs to no region; an unknown page belongs to a region without a frequency. As with DAMON, the age counts the
//! scans since the state changed, so it is 0 in the scan that saw the change.
//!
//! Limits: randomly touched pages cannot be merged, so in the worst case a region is a page. A block whose pages are
//! all in the same state costs 32 bytes, any other 2 KiB. Replay stops with an error rather than keep more than
//! [`MAX_PAGE_AGES`] single ages.

use std::collections::HashMap;

use isotherm_engine::monitor::bits;
pub use isotherm_engine::monitor::page_scans::PageBlock;
use isotherm_engine::{
    AddressRange, BLOCK_SIZE, MemoryTotals, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, RegionMemory,
    RegionSnapshot, Snapshot, TargetId,
};
use serde::{Deserialize, Serialize};

use crate::error::RecordError;

/// The largest number of single page ages that a replay keeps: 256 MiB of them, 256 GiB of memory.
pub const MAX_PAGE_AGES: u64 = 64 << 20;

/// The largest number of blocks that a replay remembers: 8 TiB.
const MAX_BLOCKS: usize = 4 << 20;

/// Name of the [`Header`](crate::Header) setting with the kind of a record's rows.
pub const GRANULARITY: &str = "granularity";
/// Value of [`GRANULARITY`] for a record of page scans.
pub const GRANULARITY_PAGE: &str = "page";

/// One bit for each page of a block; bit `i % 64` of word `i / 64` is page `i`.
pub type PageBits = bits::Bitmap;

/// One scan of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PageSnapshot {
    /// The target.
    pub target: TargetId,
    /// Start of the scan's interval (the scan before).
    pub start: Nanos,
    /// End of the scan's interval.
    pub end: Nanos,
    /// Blocks with mapped pages, in address order, each once.
    pub blocks: Vec<PageBlock>,
}

impl PageSnapshot {
    /// Returns a scan of these blocks from one time to another.
    pub fn new(target: TargetId, (start, end): (Nanos, Nanos), blocks: Vec<PageBlock>) -> Self {
        Self {
            target,
            start,
            end,
            blocks,
        }
    }

    /// Returns the totals of the scan: all present pages are memory.
    pub fn totals(&self) -> MemoryTotals {
        let bytes = |of: fn(&PageBlock) -> &PageBits| {
            let each = self.blocks.iter().map(|block| bits::bytes(of(block)));
            each.sum::<u64>()
        };
        let resident = bytes(|block| &block.present);
        let touched = bytes(|block| &block.accessed);
        let unknown = bytes(|block| &block.unknown);
        MemoryTotals {
            addresses: resident,
            resident,
            touched,
            unknown,
            untouched: resident.saturating_sub(touched + unknown),
            ..MemoryTotals::default()
        }
    }
}

/// Checks the blocks of a snapshot, and returns a description of the first fault.
pub(crate) fn check_blocks(blocks: &[PageBlock]) -> Result<(), String> {
    check_addresses(blocks.iter().map(|block| block.block))
}

/// Checks the addresses of any blocks, and returns a description of the first fault.
pub(crate) fn check_addresses(blocks: impl Iterator<Item = u64>) -> Result<(), String> {
    let mut last = None;
    for address in blocks {
        if address % BLOCK_SIZE != 0 || address > u64::MAX - BLOCK_SIZE {
            return Err(format!(
                "the block {address:#x} is not where a block can be"
            ));
        }
        if last.is_some_and(|last| last >= address) {
            return Err(format!("the block {address:#x} is out of order"));
        }
        last = Some(address);
    }
    Ok(())
}

/// Turns page snapshots, in their order, into region snapshots.
#[derive(Clone, Debug, Default)]
pub struct PageAges {
    targets: HashMap<TargetId, TargetAges>,
    single_ages: u64,
    nr_blocks: usize,
}

#[derive(Clone, Debug, Default)]
struct TargetAges {
    /// End of each scan; an age is an index into this list.
    ends: Vec<Nanos>,
    blocks: HashMap<u64, BlockAges>,
}

#[derive(Clone, Debug)]
struct BlockAges {
    last_scan: u32,
    pages: Pages,
}

/// The state of a page, and the scan that first saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageState(u32);

#[derive(Clone, Debug)]
enum Pages {
    Same(PageState),
    Each(Box<[PageState; PAGES_PER_BLOCK]>),
}

const ABSENT: u32 = 0;
const IDLE: u32 = 1;
const ACCESSED: u32 = 2;
const UNKNOWN: u32 = 3;

impl PageState {
    fn new(kind: u32, since: u32) -> Self {
        Self(since << 2 | kind)
    }

    fn kind(self) -> u32 {
        self.0 & 3
    }

    fn since(self) -> u32 {
        self.0 >> 2
    }
}

impl PageAges {
    /// Returns the regions of the next scan.
    pub fn snapshot(&mut self, scan: &PageSnapshot) -> Result<Snapshot, RecordError> {
        let ages = self.targets.entry(scan.target).or_default();
        let nr_blocks = ages.blocks.len();
        let now = ages.ends.len() as u32;
        assert!(now < 1 << 30, "scans are far rarer than this");
        ages.ends.push(scan.end);
        let mut runs = Runs::new(&ages.ends);
        for block in &scan.blocks {
            let state = ages.blocks.entry(block.block).or_insert(BlockAges {
                last_scan: now,
                pages: Pages::Same(PageState::new(ABSENT, now)),
            });
            let held = state.pages.single_ages();
            state.last_scan = now;
            state.pages.update(block, now);
            self.single_ages = self.single_ages + state.pages.single_ages() - held;
            runs.block(block.block, &state.pages);
            let nr_blocks = self.nr_blocks + ages.blocks.len() - nr_blocks;
            if self.single_ages > MAX_PAGE_AGES || nr_blocks > MAX_BLOCKS {
                return Err(RecordError::TooManyPages {
                    limit: MAX_PAGE_AGES,
                });
            }
        }
        let regions = runs.finish();
        let single_ages = &mut self.single_ages;
        ages.blocks.retain(|_, block| {
            if block.last_scan != now {
                *single_ages -= block.pages.single_ages();
            }
            block.last_scan == now
        });
        self.nr_blocks = self.nr_blocks + ages.blocks.len() - nr_blocks;
        let times = (scan.start, scan.end);
        Ok(Snapshot::new(scan.target, times, 1, regions))
    }
}

impl Pages {
    fn single_ages(&self) -> u64 {
        match self {
            Self::Same(_) => 0,
            Self::Each(_) => PAGES_PER_BLOCK as u64,
        }
    }

    fn update(&mut self, block: &PageBlock, now: u32) {
        let next = |old: PageState, kind: u32| {
            if old.kind() == kind {
                old
            } else {
                PageState::new(kind, now)
            }
        };
        if let (Self::Same(old), Some(kind)) = (&*self, uniform_kind(block)) {
            *self = Self::Same(next(*old, kind));
            return;
        }
        let mut each = match std::mem::replace(self, Self::Same(PageState(0))) {
            Self::Same(state) => Box::new([state; PAGES_PER_BLOCK]),
            Self::Each(each) => each,
        };
        for (page, state) in each.iter_mut().enumerate() {
            *state = next(*state, page_kind(block, page));
        }
        *self = if each.iter().all(|state| *state == each[0]) {
            Self::Same(each[0])
        } else {
            Self::Each(each)
        };
    }
}

fn page_kind(block: &PageBlock, page: usize) -> u32 {
    let bit = |pages: &PageBits| bits::has(pages, page);
    if bit(&block.unknown) {
        UNKNOWN
    } else if bit(&block.accessed) {
        ACCESSED
    } else if bit(&block.present) {
        IDLE
    } else {
        ABSENT
    }
}

/// Returns the kind of all pages, if they have only one: a huge page, or wholly idle memory.
fn uniform_kind(block: &PageBlock) -> Option<u32> {
    let flat = |bits: &PageBits| {
        bits.iter()
            .all(|word| *word == bits[0] && (*word == 0 || *word == u64::MAX))
    };
    (flat(&block.present) && flat(&block.accessed) && flat(&block.unknown))
        .then(|| page_kind(block, 0))
}

/// Joins pages of equal state, across blocks too.
struct Runs<'a> {
    ends: &'a [Nanos],
    open: Option<(u64, u64, PageState)>,
    regions: Vec<RegionSnapshot>,
}

impl<'a> Runs<'a> {
    fn new(ends: &'a [Nanos]) -> Self {
        Self {
            ends,
            open: None,
            regions: Vec::new(),
        }
    }

    fn block(&mut self, address: u64, pages: &Pages) {
        match pages {
            Pages::Same(state) => self.add(address, address + BLOCK_SIZE, *state),
            Pages::Each(each) => {
                for (page, state) in each.iter().enumerate() {
                    let start = address + page as u64 * PAGE_SIZE;
                    self.add(start, start + PAGE_SIZE, *state);
                }
            }
        }
    }

    fn add(&mut self, start: u64, end: u64, state: PageState) {
        match &mut self.open {
            Some((_, open_end, open_state)) if *open_end == start && *open_state == state => {
                *open_end = end;
            }
            _ => {
                self.close();
                self.open = Some((start, end, state));
            }
        }
    }

    fn close(&mut self) {
        let Some((start, end, state)) = self.open.take() else {
            return;
        };
        let nr_accesses = match state.kind() {
            ABSENT => return,
            IDLE => Some(0.0),
            ACCESSED => Some(1.0),
            _ => None,
        };
        let now = self.ends.len() - 1;
        let bytes = end - start;
        let of_kind = |kind| if state.kind() == kind { bytes } else { 0 };
        let memory = RegionMemory {
            touched: of_kind(ACCESSED),
            unknown: if nr_accesses.is_none() { bytes } else { 0 },
            ..RegionMemory::resident(bytes)
        };
        let age_ns = self.ends[now].since(self.ends[state.since() as usize]);
        let region = RegionSnapshot::new(AddressRange::new(start, end), nr_accesses);
        let region = region.aged(now as u32 - state.since(), age_ns);
        self.regions.push(region.holding(memory));
    }

    fn finish(mut self) -> Vec<RegionSnapshot> {
        self.close();
        self.regions
    }
}

pub(crate) fn push_bits(bytes: &mut Vec<u8>, bits: &PageBits) {
    for word in bits {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

pub(crate) fn bits(bytes: &[u8]) -> PageBits {
    let mut bits = PageBits::default();
    for (word, bytes) in bits.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    bits
}
