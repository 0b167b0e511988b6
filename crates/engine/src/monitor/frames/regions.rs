//! Physical memory by address: snapshots of frames, like those of any other address space.
//!
//! Approach: each block of 2 MiB with known memory becomes a region. It holds the bytes that are resident, touched and
//! unknown; similar neighbours are joined. If there are too many regions, the tolerance for joining grows until their
//! number fits. Blocks of regions with touched and untouched frames get bitmaps as well, up to a limit
//! ([`BlockPages`]).
//!
//! Limits: neighbouring frames belong to different processes. Regions only give the number of touched frames, and
//! bitmaps the frames themselves. Frames without an entry are holes: free, the kernel's, or mapped only by processes
//! that are not watched.

use std::ops::Range;

use super::{FrameBlock, FrameMap, PageAge};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK};
use crate::monitor::bits;
use crate::monitor::block_pages::BlockPages;
use crate::monitor::by_page::is_mixed;
use crate::monitor::page_scans::{PageBlock, State};
use crate::snapshot::{RegionMemory, RegionSnapshot, Snapshot, TargetId};

/// Share of touched pages from which on a region is busy; the same as for regions of virtual memory.
const LEAST_BUSY_SHARE: f64 = 0.1;
/// Largest difference in the shares of touched, or of unknown, pages of similar neighbours.
const SHARE_DIFFERENCE: f64 = 0.1;
/// Largest difference in the idle ages of similar neighbours, as a share of the younger one; a second is added.
const AGE_FACTOR: f64 = 0.3;
/// Largest tolerance: here all memory is in one region.
const WIDEST: f64 = 1e9;

/// The scope of a snapshot of physical memory.
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    /// Target that represents physical memory.
    pub target: TargetId,
    /// Start of the interval; later accesses count as touched.
    pub start: Nanos,
    /// End of the interval.
    pub end: Nanos,
    /// Existing frames, in ascending order.
    pub ranges: &'a [Range<u64>],
    /// Most regions.
    pub max_nr_regions: usize,
    /// Most blocks with bitmaps; if more would be needed, there are none.
    pub max_nr_blocks: usize,
}

/// The last reported state of a block, and its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedState {
    state: Option<State>,
    since: Nanos,
}

/// A region while it grows; in pages.
#[derive(Clone, Copy, Debug)]
struct Draft {
    range: AddressRange,
    resident: f64,
    touched: f64,
    unknown: f64,
    /// Sum of the idle times of its idle pages, in seconds.
    idle_s: f64,
    /// Sum over its pages of the time that they have been in their state, in seconds.
    state_s: f64,
}

impl FrameMap {
    /// Returns the snapshot of physical memory, by address.
    pub fn snapshot(&mut self, view: &FrameView<'_>) -> Snapshot {
        let mut drafts = self.drafts(view);
        let mut width = 1.0;
        loop {
            coarsen(&mut drafts, width);
            if drafts.len() <= view.max_nr_regions.max(1) || width > WIDEST {
                break;
            }
            width *= 2.0;
        }
        let interval = view.end.since(view.start);
        let regions: Vec<RegionSnapshot> = drafts.iter().map(|d| d.finish(interval)).collect();
        let blocks = self.mixed_blocks(&regions, view.max_nr_blocks);
        Snapshot {
            blocks,
            ..Snapshot::new(view.target, (view.start, view.end), 1, regions)
        }
    }

    /// Returns the state of each frame, block by block; frames with an entry are present.
    pub fn pages(&self) -> impl Iterator<Item = PageBlock> {
        self.blocks().filter_map(|(first, block)| {
            let pages = block.pages();
            let is_used = !bits::is_empty(&pages.resident);
            is_used.then_some(PageBlock {
                block: first * PAGE_SIZE,
                huge: false,
                present: pages.resident,
                accessed: pages.touched,
                unknown: pages.unknown,
            })
        })
    }

    fn drafts(&mut self, view: &FrameView<'_>) -> Vec<Draft> {
        let mut drafts: Vec<Draft> = Vec::new();
        for (first, block) in self.blocks_mut() {
            let Some(range) = within(first, view.ranges) else {
                continue;
            };
            let Some(mut draft) = block.draft(range) else {
                block.reported = ReportedState::default();
                continue;
            };
            let state = Some(draft.state());
            if block.reported.state != state {
                let since = view.start;
                block.reported = ReportedState { state, since };
            }
            draft.state_s = view.end.since(block.reported.since).as_secs_f64() * draft.resident;
            match drafts.last_mut() {
                Some(last) if are_alike(last, &draft, 1.0) => last.absorb(&draft),
                _ => drafts.push(draft),
            }
        }
        drafts
    }

    fn mixed_blocks(&self, regions: &[RegionSnapshot], most: usize) -> Vec<BlockPages> {
        let mut mixed = regions.iter().filter(|region| is_mixed(region)).peekable();
        let mut blocks = Vec::new();
        for (first, block) in self.blocks() {
            let address = first * PAGE_SIZE;
            let is_before = |region: &&RegionSnapshot| region.range.end <= address;
            while mixed.next_if(is_before).is_some() {}
            let is_in = |region: &&RegionSnapshot| region.range.start < address + BLOCK_SIZE;
            if !mixed.peek().is_some_and(is_in) {
                continue;
            }
            let pages = block.pages();
            if bits::is_empty(&pages.resident) {
                continue;
            }
            if blocks.len() == most {
                return Vec::new();
            }
            blocks.push(BlockPages {
                block: address,
                ..pages
            });
        }
        blocks
    }

    fn blocks_mut(&mut self) -> impl Iterator<Item = (u64, &mut FrameBlock)> {
        let gigabytes = self.gigabytes.iter_mut().enumerate();
        let gigabytes = gigabytes.filter_map(|(at, blocks)| Some((at, blocks.as_mut()?)));
        gigabytes.flat_map(|(gigabyte, blocks)| {
            let blocks = blocks.iter_mut().enumerate();
            blocks.filter_map(move |(at, block)| {
                let number = gigabyte * super::BLOCKS + at;
                let first = number as u64 * PAGES_PER_BLOCK as u64;
                Some((first, &mut **block.as_mut()?))
            })
        })
    }
}

/// Returns the addresses of the block at frame `first` from the first to the last frame in `ranges`.
fn within(first: u64, ranges: &[Range<u64>]) -> Option<AddressRange> {
    let end = first + PAGES_PER_BLOCK as u64;
    let at = ranges.partition_point(|range| range.end <= first);
    let its = &ranges[at..];
    let nr = its.partition_point(|range| range.start < end);
    let (from, to) = (its[..nr].first()?.start, its[..nr].last()?.end);
    let (from, to) = (from.max(first), to.min(end));
    AddressRange::checked(from * PAGE_SIZE, to * PAGE_SIZE)
}

impl FrameBlock {
    fn ages(&self) -> impl Iterator<Item = (usize, PageAge)> + '_ {
        { self.known() }.map(|(page, [state, ..])| (page, PageAge::from_bits(state)))
    }

    fn draft(&self, range: AddressRange) -> Option<Draft> {
        let mut draft = Draft {
            range,
            resident: 0.0,
            touched: 0.0,
            unknown: 0.0,
            idle_s: 0.0,
            state_s: 0.0,
        };
        for (_, age) in self.ages() {
            draft.resident += 1.0;
            match age {
                PageAge::Touched => draft.touched += 1.0,
                PageAge::Unknown => draft.unknown += 1.0,
                PageAge::Idle(_) => draft.idle_s += age.least().as_secs_f64(),
            }
        }
        (draft.resident > 0.0).then_some(draft)
    }

    fn pages(&self) -> BlockPages {
        let mut pages = BlockPages::default();
        let (mut idle, mut nr_idle) = (0u64, 0u64);
        for (page, age) in self.ages() {
            bits::set(&mut pages.resident, page);
            match age {
                PageAge::Touched => bits::set(&mut pages.touched, page),
                PageAge::Unknown => bits::set(&mut pages.unknown, page),
                PageAge::Idle(_) => (idle, nr_idle) = (idle + age.least().0 / 512, nr_idle + 1),
            }
        }
        pages.untouched_for = Nanos((idle / nr_idle.max(1)).saturating_mul(512));
        pages
    }
}

impl Draft {
    fn known(&self) -> f64 {
        self.resident - self.unknown
    }

    fn share(&self) -> f64 {
        self.touched / self.known().max(1.0)
    }

    fn state(&self) -> State {
        if self.known() <= 0.0 {
            State::Unknown
        } else if self.share() >= LEAST_BUSY_SHARE {
            State::Accessed
        } else {
            State::Idle
        }
    }

    fn idle_for(&self) -> f64 {
        self.idle_s / (self.known() - self.touched).max(1.0)
    }

    fn absorb(&mut self, next: &Self) {
        self.range.end = next.range.end;
        self.resident += next.resident;
        self.touched += next.touched;
        self.unknown += next.unknown;
        self.idle_s += next.idle_s;
        self.state_s += next.state_s;
    }

    fn finish(&self, interval: Nanos) -> RegionSnapshot {
        let bytes = |pages: f64| pages as u64 * PAGE_SIZE;
        let state = self.state();
        let age_s = match state {
            State::Idle => self.idle_for(),
            State::Accessed | State::Unknown => self.state_s / self.resident.max(1.0),
        };
        let age_ns = Nanos((age_s * 1e9) as u64);
        let age = age_ns.0.checked_div(interval.0).unwrap_or(0);
        RegionSnapshot {
            range: self.range,
            nr_accesses: match state {
                State::Unknown => None,
                State::Idle => Some(0.0),
                State::Accessed => Some(self.share() as f32),
            },
            age: u32::try_from(age).unwrap_or(u32::MAX),
            age_ns,
            memory: Some(RegionMemory {
                resident: bytes(self.resident),
                touched: bytes(self.touched),
                unknown: bytes(self.unknown),
                swapped: 0,
            }),
        }
    }
}

/// Joins neighbours that are similar within `width`.
fn coarsen(drafts: &mut Vec<Draft>, width: f64) {
    drafts.dedup_by(|next, last| {
        let is_alike = are_alike(last, next, width);
        if is_alike {
            last.absorb(next);
        }
        is_alike
    });
}

/// Returns whether neighbours are similar, with `width` times the normal tolerances.
fn are_alike(a: &Draft, b: &Draft, width: f64) -> bool {
    let gap = b.range.start - a.range.end;
    if gap as f64 > (width - 1.0) * BLOCK_SIZE as f64 {
        return false;
    }
    // At this width all memory is joined, and unknown memory is counted as unknown.
    if width > 256.0 {
        return true;
    }
    let (state, other) = (a.state(), b.state());
    let unknown = |draft: &Draft| draft.unknown / draft.resident.max(1.0);
    let difference = SHARE_DIFFERENCE * width;
    if state != other && width < 16.0 || (unknown(a) - unknown(b)).abs() > difference {
        return false;
    }
    let young = a.idle_for().min(b.idle_for());
    let old = a.idle_for().max(b.idle_for());
    let is_as_old = old <= young * (1.0 + AGE_FACTOR * width) + width;
    match state {
        State::Unknown => true,
        State::Accessed => (a.share() - b.share()).abs() <= difference,
        State::Idle => is_as_old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::frames::MappedClass;
    use crate::test_pictures::second;

    const FRAMES: u64 = PAGES_PER_BLOCK as u64;

    fn view(ranges: &[Range<u64>], max_nr_regions: usize) -> FrameView<'_> {
        FrameView {
            target: TargetId(0),
            start: second(100),
            end: second(110),
            ranges,
            max_nr_regions,
            max_nr_blocks: 16,
        }
    }

    fn fill(map: &mut FrameMap, frames: Range<u64>, age: PageAge) {
        frames.for_each(|frame| map.add(0, MappedClass::Anonymous, frame, age));
    }

    /// Returns the start, the end, and the resident, touched and unknown frames of each region.
    fn reported(snapshot: &Snapshot) -> Vec<[u64; 5]> {
        let of = |r: &RegionSnapshot| {
            let AddressRange { start, end } = r.range;
            let bytes = [start, end, r.resident(), r.touched(), r.unknown()];
            bytes.map(|bytes| bytes / PAGE_SIZE)
        };
        snapshot.regions.iter().map(of).collect()
    }

    #[test]
    fn blocks_that_are_alike_are_one_region_and_holes_none() {
        let mut map = FrameMap::default();
        let idle = PageAge::idle_for(second(60));
        fill(&mut map, 512..2048, idle);
        fill(&mut map, 2048..2100, PageAge::Touched);
        fill(&mut map, 4096..4196, PageAge::Unknown);
        let all = 0..1 << 20;
        let snapshot = map.snapshot(&view(&[all], 100));
        let wanted = [
            [512, 2048, 1536, 0, 0],
            [2048, 2560, 52, 52, 0],
            [4096, 4608, 100, 0, 100],
        ];
        assert_eq!(reported(&snapshot), wanted);
        let [a, b, c] = &snapshot.regions[..] else {
            panic!("{snapshot:?}")
        };
        assert_eq!((a.nr_accesses, a.age_ns), (Some(0.0), second(60)));
        assert_eq!((b.nr_accesses, b.age_ns), (Some(1.0), second(10)));
        assert_eq!(c.nr_accesses, None);
        assert!(snapshot.blocks.is_empty(), "nothing is mixed");
    }

    #[test]
    fn mixed_blocks_are_told_by_page() {
        let mut map = FrameMap::default();
        fill(&mut map, 512..1024, PageAge::idle_for(second(60)));
        fill(&mut map, 600..603, PageAge::Touched);
        fill(&mut map, 700..701, PageAge::Unknown);
        let all = 0..1 << 20;
        let snapshot = map.snapshot(&view(std::slice::from_ref(&all), 100));
        assert_eq!(reported(&snapshot), [[512, 1024, 512, 3, 1]]);
        assert_eq!(snapshot.regions[0].nr_accesses, Some(0.0));
        assert_eq!(snapshot.blocks.len(), 1);
        assert_eq!(snapshot.blocks[0].check(), Ok(()));
        let by_page = snapshot.clone().by_page();
        let is_told = reported(&by_page).contains(&[600, 603, 3, 3, 0]);
        assert!(is_told, "{by_page:?}");
        assert_eq!(by_page.totals().touched, snapshot.totals().touched);
        let mut none = view(std::slice::from_ref(&all), 100);
        none.max_nr_blocks = 0;
        assert!(map.snapshot(&none).blocks.is_empty());
        let pages: Vec<PageBlock> = map.pages().collect();
        assert_eq!(bits::count(&pages[0].accessed), 3);
        assert_eq!(bits::count(&pages[0].unknown), 1);
    }

    #[test]
    fn however_many_blocks_there_are_regions_are_few_and_sums_stay() {
        let mut map = FrameMap::default();
        let mut random = 1u64;
        for block in 0..4096 {
            random = random.wrapping_mul(6_364_136_223_846_793_005);
            random = random.wrapping_add(1);
            let first = block * 2 * FRAMES;
            let nr = random >> 60;
            fill(&mut map, first..first + nr, PageAge::Touched);
            let idle = PageAge::idle_for(second(random >> 53));
            fill(&mut map, first + 20..first + 40, idle);
            fill(&mut map, first + 50..first + 50 + nr / 4, PageAge::Unknown);
        }
        let all = 0..u64::MAX / PAGE_SIZE;
        let all = std::slice::from_ref(&all);
        let exact = map.snapshot(&view(all, usize::MAX)).totals();
        for most in [1000, 100, 10, 1] {
            let snapshot = map.snapshot(&view(all, most));
            assert!(snapshot.regions.len() <= most, "{most}");
            let totals = snapshot.totals();
            assert_eq!(totals.resident, exact.resident);
            assert_eq!(totals.touched, exact.touched);
            assert_eq!(totals.unknown, exact.unknown);
        }
    }

    #[test]
    fn only_what_is_asked_for_is_told() {
        let mut map = FrameMap::default();
        fill(&mut map, 0..4096, PageAge::Touched);
        let ranges = [100..200, 300..400, 1024..1100];
        let snapshot = map.snapshot(&view(&ranges, 100));
        let ranges: Vec<_> = reported(&snapshot).iter().map(|t| (t[0], t[1])).collect();
        assert_eq!(ranges, [(100, 400), (1024, 1100)]);
    }

    #[test]
    fn a_state_has_an_age() {
        let mut map = FrameMap::default();
        let all = 0..4096;
        let all = std::slice::from_ref(&all);
        for round in 0..3 {
            map.clear();
            fill(&mut map, 0..512, PageAge::Touched);
            let now = second(110 + 10 * round);
            let mut later = view(all, 100);
            later.start = second(100 + 10 * round);
            later.end = now;
            let region = map.snapshot(&later).regions[0];
            assert_eq!(region.age_ns, second(10 + 10 * round));
        }
    }
}
