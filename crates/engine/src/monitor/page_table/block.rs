//! A block: the 512 pages of one page table, and the known accesses to them.
//!
//! A page is sampled (`sampled`) while its accessed bit is known to be clear: a later read shows exactly whether it was
//! touched since. Once touched it is unsampled (`unsampled`): its bit stays set, and shows no later access until it is
//! cleared again. Reading a block therefore gives exact values for its sampled pages, and an estimate for the unsampled
//! ones ([`AccessEstimate`]).
//!
//! Ages are kept for granules of 16 pages; they take memory only if they differ within the block.

mod idle;

use super::estimate::AccessEstimate;
use super::pages::{Counts, GRANULE_PAGES, GRANULES, Pages, Seen, Since};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use crate::monitor::bits::{self, Bitmap, NONE, and, and_not, count, is_empty, or};
use crate::monitor::block_pages::BlockPages;
use crate::monitor::page_since::{PageSince, nanos_of};
use idle::EndCounts;

/// A smaller share of touched unsampled pages counts as none: the sample behind it has only about 16 pages.
pub(super) const LEAST_SHARE: f32 = 0.1;

/// From this share of touched unsampled pages on, all of them are reported as touched.
const SURE_SHARE: f32 = 0.95;

/// Value per page of knowing each page of an unknown block, beyond knowing the touched share.
const FIRST_LOOK_VALUE: f32 = 0.6;

/// Least weight, in observed pages, of an estimate that is reported.
const LEAST_WEIGHT: f32 = 0.5;

/// The contents of one 2 MiB block's tables at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFacts {
    /// Start address of the block, a multiple of 2 MiB.
    pub address: u64,
    /// One 2 MiB leaf maps the block: all its pages share one accessed bit.
    pub huge: bool,
    /// Bit `i`: page `i` is present, and counts as resident (the shared zero page does not).
    pub present: [u64; 8],
    /// Bit `i`: page `i`'s accessed bit is set.
    pub accessed: [u64; 8],
    /// Bit `i`: page `i` is swapped out.
    pub swapped: [u64; 8],
}

/// State of a granule in the last interval that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No page is present or swapped out.
    Absent,
    Idle,
    Busy,
    Unknown,
}

/// Pages whose accessed bit cannot be cleared by range: shared, locked or special.
#[derive(Clone, Debug)]
struct Unclearable {
    pages: Bitmap,
    retry_at: Nanos,
    nr_tries: u32,
    /// Clearing the whole address space reaches them; since then their bits are evidence.
    is_reached: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) huge: bool,
    look: Look,
    pub(super) present: Bitmap,
    pub(super) sampled: Bitmap,
    /// Pages with a known result for the last interval: sampled when it began, or not present yet.
    watching: Bitmap,
    /// Pages of these that were unsampled when the interval began and were cleared then, and the touched ones among
    /// them.
    pub(super) nr_watched: u16,
    pub(super) nr_watched_touched: u16,
    /// Time at which the block was first seen, in ticks.
    pub(super) made_at: u32,
    swapped: Option<Box<Bitmap>>,
    unclearable: Option<Box<Unclearable>>,
    pub(super) access_estimate: AccessEstimate,
    /// Share of the unsampled pages that were touched in the last interval; `None`: not known.
    pub(super) estimate: Option<f32>,
    /// Two bits for each granule.
    states: u64,
    since: Since,
    /// Idle times of single pages in a block that is touched in part.
    page_since: Option<Box<PageSince>>,
    /// Idle times of single pages that ended.
    ends: Option<Box<EndCounts>>,
}

/// The last time that the block's tables were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Look {
    #[default]
    Never,
    /// The tables were read at the end of an earlier interval.
    Before,
    /// The tables were read at the end of the last interval.
    Now,
}

impl Look {
    /// Returns the value one interval later.
    const fn before(self) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Before | Self::Now => Self::Before,
        }
    }
}

const ALL_ABSENT: u64 = 0;
/// Lower bit of each granule's state.
const ONES: u64 = 0x5555_5555_5555_5555;

impl Block {
    pub(super) fn new(address: u64, now: u32) -> Self {
        Self {
            address,
            made_at: now,
            since: Since::All(now),
            ..Self::default()
        }
    }

    /// Takes in the tables' contents at the end of an interval. `is_new`: the block had no table when the interval
    /// began, so all its pages appeared in the interval. Returns the number of page table entries that were clear and
    /// are set now.
    pub(super) fn look(&mut self, facts: &BlockFacts, watched: &Bitmap, is_new: bool) -> u32 {
        let present = and(&facts.present, watched);
        let accessed = and(&facts.accessed, &present);
        let swapped = and(&facts.swapped, watched);
        self.keep_ends(&or(&present, &swapped));
        self.swapped = (!is_empty(&swapped)).then(|| Box::new(swapped));
        if self.huge != facts.huge {
            // Collapsed or split: the old bits belonged to other entries.
            self.sampled = NONE;
        }
        self.huge = facts.huge;
        let appeared = if self.look != Look::Never || is_new {
            and_not(&present, &self.present)
        } else {
            NONE
        };
        let watching = or(&self.sampled, &appeared);
        let nr_set_again = count(&and(&self.sampled, &accessed));
        self.watching = watching;
        // Includes pages that another program cleared.
        self.sampled = and_not(&present, &accessed);
        self.present = present;
        self.look = Look::Now;
        self.estimate = None;
        if let Some(unclearable) = &mut self.unclearable {
            unclearable.pages = and(&unclearable.pages, &present);
            if !unclearable.is_reached {
                // A page whose bit is clear after all is no longer unclearable.
                unclearable.pages = and(&unclearable.pages, &accessed);
            }
        }
        if self.huge {
            nr_set_again.min(1)
        } else {
            nr_set_again
        }
    }

    /// Returns whether the block was read at the end of the last interval.
    pub(super) fn is_fresh(&self) -> bool {
        self.look == Look::Now
    }

    /// Returns the pages that were seen touched in the last interval.
    pub(super) fn touched(&self) -> Bitmap {
        and_not(&and(&self.watching, &self.present), &self.sampled)
    }

    /// Returns the unsampled pages: the last interval shows nothing about them.
    pub(super) fn unsampled(&self) -> Bitmap {
        let unsampled = and_not(&self.present, &self.watching);
        match &self.unclearable {
            Some(unclearable) if !unclearable.is_reached => and_not(&unsampled, &unclearable.pages),
            _ => unsampled,
        }
    }

    /// Returns the pages without a result because their bits cannot be cleared. Other processes map them too, and they
    /// were not cleared with the whole address space.
    pub(super) fn unreached(&self) -> Bitmap {
        let unclearable = self.unclearable.as_ref().filter(|u| !u.is_reached);
        unclearable.map_or(NONE, |u| and(&u.pages, &self.present))
    }

    /// Adds `pages` that were touched right after they had been cleared.
    pub(super) fn touched_at_once(&mut self, pages: &Bitmap) {
        self.watching = or(&self.watching, pages);
    }

    /// Begins an interval, at whose end the tables have not been read yet.
    pub(super) fn begin_interval(&mut self) {
        self.look = self.look.before();
        self.nr_watched = 0;
        self.nr_watched_touched = 0;
        self.access_estimate.since_whole = self.access_estimate.since_whole.saturating_add(1);
    }

    /// Estimates the touched share of the unsampled pages for an interval in which none was watched.
    pub(super) fn estimate_unwatched(&mut self) {
        let nr_touched = count(&self.touched());
        let nr_sampled = nr_touched + count(&self.sampled);
        let is_idle = nr_sampled >= GRANULE_PAGES as u32 && nr_touched == 0;
        self.access_estimate.forget(is_idle);
        if is_empty(&self.unsampled()) || self.access_estimate.weight < LEAST_WEIGHT {
            return;
        }
        let mut share = self.access_estimate.touched;
        if share < LEAST_SHARE && nr_sampled >= GRANULE_PAGES as u32 {
            // Its sampled pages are watched nevertheless: the others are assumed to behave like them.
            share = share.max(nr_touched as f32 / nr_sampled as f32);
        }
        self.estimate = Some(share);
    }

    /// Counts pages that were touched after having been idle among the unsampled ones.
    pub(super) fn join_touched(&mut self) {
        let joined = count(&self.touched()).saturating_sub(self.nr_watched_touched.into());
        let unsampled = count(&self.not_sampled());
        self.access_estimate.join(joined, unsampled);
    }

    /// Returns the share of its pages that were touched in the interval, if that is known.
    pub(super) fn known_share(&self) -> Option<f32> {
        let present = count(&self.present);
        if present == 0 || !self.is_fresh() {
            return None;
        }
        let unsampled = count(&self.unsampled()) as f32;
        let estimate = if unsampled > 0.0 { self.estimate? } else { 0.0 };
        Some((count(&self.touched()) as f32 + unsampled * estimate) / present as f32)
    }

    /// Returns whether most of its pages had no result before this interval: they are unsampled or just watched.
    pub(super) fn is_all_unsampled(&self) -> bool {
        2 * (count(&self.unsampled()) + u32::from(self.nr_watched)) > count(&self.present)
    }

    /// Records that nothing could be read at the end of the interval.
    pub(super) fn miss(&mut self) {
        self.watching = NONE;
        self.sampled = NONE;
        self.estimate = None;
        self.look = self.look.before();
    }

    /// Takes in the tables' contents right after `pages` were cleared. Returns the pages whose bit is clear, and those
    /// whose bit is set.
    pub(super) fn cleared(&mut self, facts: &BlockFacts, pages: &Bitmap) -> (Bitmap, Bitmap) {
        let there = and(pages, &facts.present);
        let clear = and_not(&there, &facts.accessed);
        self.sampled = or(&self.sampled, &clear);
        (clear, and(&there, &facts.accessed))
    }

    /// Records that the whole address space was cleared, unclearable pages too. Returns the pages that may be watched.
    pub(super) fn reach(&mut self) -> Bitmap {
        if let Some(unclearable) = &mut self.unclearable {
            unclearable.is_reached = true;
        }
        self.not_sampled()
    }

    /// Returns the expected number of unsampled pages that are reported wrongly if none is watched.
    pub(super) fn doubt(&self) -> f32 {
        let unsampled = count(&self.not_sampled());
        self.access_estimate.value_of_sample(unsampled)
    }

    /// Returns the value of clearing all its unsampled pages, including those that cannot be cleared by range.
    pub(super) fn value_of_space(&self) -> f32 {
        let unsampled = count(&self.not_sampled());
        if unsampled == 0 {
            return 0.0;
        }
        let of = &self.access_estimate;
        let is_first = of.weight < LEAST_WEIGHT;
        let first = if is_first { FIRST_LOOK_VALUE } else { 0.0 };
        of.value_of_sample(unsampled) + of.value_of_whole(unsampled) + first * unsampled as f32
    }

    /// Marks `pages` as unclearable, and defers the next try; the wait doubles with each call, from 1 s to 64 s.
    pub(super) fn give_up(&mut self, pages: &Bitmap, now: Nanos) {
        let unclearable = self.unclearable.get_or_insert_with(|| {
            Box::new(Unclearable {
                pages: NONE,
                retry_at: now,
                nr_tries: 0,
                is_reached: false,
            })
        });
        unclearable.pages = or(&unclearable.pages, pages);
        let wait = 1_000_000_000u64 << unclearable.nr_tries.min(6);
        unclearable.nr_tries += 1;
        unclearable.retry_at = now + Nanos(wait);
    }

    /// Returns the pages that may be cleared at `now`, to be watched.
    pub(super) fn candidates(&self, now: Nanos) -> Bitmap {
        let pages = self.not_sampled();
        match &self.unclearable {
            Some(unclearable) if now < unclearable.retry_at => and_not(&pages, &unclearable.pages),
            _ => pages,
        }
    }

    pub(super) fn not_sampled(&self) -> Bitmap {
        and_not(&self.present, &self.sampled)
    }

    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(self.address, self.address + BLOCK_SIZE)
    }

    pub(super) fn addresses(&self, pages: std::ops::Range<usize>) -> AddressRange {
        let at = |page: usize| self.address + page as u64 * PAGE_SIZE;
        AddressRange::new(at(pages.start), at(pages.end))
    }

    /// Updates states and ages at the end of an interval. `hides_accesses`: an untouched page may have been accessed
    /// nevertheless.
    pub(super) fn update_states(&mut self, now: u32, hides_accesses: bool) {
        self.update_page_since(now);
        let before = self.states;
        let after = self.states_now(hides_accesses);
        self.states = after;
        if before == after {
            return;
        }
        let (changed, there) = (before ^ after, before | after);
        let is_changed = |granule: usize| changed >> (2 * granule) & 3 != 0;
        let is_there = |granule: &usize| there >> (2 * granule) & 3 != 0;
        // The age of absent granules does not matter.
        if (0..GRANULES).filter(is_there).all(is_changed) || before == ALL_ABSENT {
            self.since = Since::All(now);
            return;
        }
        let changed = (0..GRANULES).filter(|granule| is_changed(*granule));
        self.since.set(changed, now);
    }

    fn states_now(&self, hides_accesses: bool) -> u64 {
        let seen = self.seen();
        let is_alike = |pages: &Bitmap| *pages == NONE || *pages == bits::ALL;
        // A huge page, or memory that is wholly idle or wholly in use.
        if self.present == bits::ALL
            && [&seen.touched, &seen.unsampled, &self.sampled].map(is_alike) == [true; 3]
        {
            return self.state_of(0, &seen, hides_accesses) as u64 * ONES;
        }
        let mut states = ALL_ABSENT;
        for granule in 0..GRANULES {
            let word = granule * GRANULE_PAGES / 64;
            let swapped = self.swapped.as_ref().map_or(0, |swapped| swapped[word]);
            // Much of a sparse block is absent.
            if self.present[word] | swapped != 0 {
                let state = self.state_of(granule, &seen, hides_accesses);
                states |= (state as u64) << (2 * granule);
            }
        }
        states
    }

    fn state_of(&self, granule: usize, seen: &Seen, hides_accesses: bool) -> State {
        let bits = |map: &Bitmap| map[granule / 4] >> (granule % 4 * GRANULE_PAGES) & 0xFFFF;
        let present = bits(&self.present);
        let swapped = self.swapped.as_ref().map_or(0, |swapped| bits(swapped));
        if present == 0 {
            return if swapped == 0 {
                State::Absent
            } else {
                State::Idle
            };
        }
        if bits(&seen.touched) != 0 {
            return State::Busy;
        }
        let unsampled = bits(&seen.unsampled);
        let is_busy = self.estimate.is_some_and(|share| share >= LEAST_SHARE);
        if unsampled != 0 && is_busy {
            return State::Busy;
        }
        let is_estimated = self.estimate.is_some();
        let estimated = if is_estimated { unsampled } else { 0 };
        let known = bits(&self.sampled) | estimated;
        let is_told = (known & present).count_ones() * 2 >= present.count_ones();
        if !is_told || hides_accesses || !self.is_fresh() {
            State::Unknown
        } else {
            State::Idle
        }
    }

    pub(super) fn state(&self, granule: usize) -> State {
        match self.states >> (2 * granule) & 3 {
            0 => State::Absent,
            1 => State::Idle,
            2 => State::Busy,
            _ => State::Unknown,
        }
    }

    /// Returns the granules with a present or swapped-out page.
    pub(super) fn granules_there(&self) -> impl Iterator<Item = usize> {
        let mut left = (self.states | self.states >> 1) & ONES;
        std::iter::from_fn(move || {
            let at = (left != 0).then(|| left.trailing_zeros() as usize / 2);
            left &= left.wrapping_sub(1);
            at
        })
    }

    pub(super) fn since(&self, granule: usize) -> u32 {
        self.since.of(granule)
    }

    pub(super) fn has_unknown(&self) -> bool {
        self.states & self.states >> 1 & ONES != 0
    }

    /// Returns the mean time since which its granules are in their states, in ticks.
    pub(super) fn mean_since(&self) -> f64 {
        self.since.mean()
    }

    /// Returns whether all granules have one state and one age.
    pub(super) fn is_uniform(&self) -> bool {
        let is_one_state = self.states == (self.states & 3) * ONES;
        is_one_state && matches!(self.since, Since::All(_))
    }

    /// Returns the number of neighbouring granules that differ in state.
    pub(super) fn nr_state_changes(&self) -> u32 {
        let changes = self.states ^ (self.states << 2 | self.states & 3);
        ((changes | changes >> 1) & ONES).count_ones()
    }

    /// Returns the pages that are known as untouched in the last interval.
    pub(super) fn untouched(&self) -> Bitmap {
        and_not(&self.sampled, &self.busy())
    }

    pub(super) fn reset_age(&mut self, range: AddressRange, now: u32) {
        let pages = bits::mask(self.address, range);
        if pages == bits::ALL {
            self.since = Since::All(now);
            self.page_since = None;
            return;
        }
        if let Some(page_since) = &mut self.page_since {
            page_since.reset(&pages, now);
        }
        let there = and_not(&self.present, &pages);
        let of = |map: &Bitmap, g: usize| map[g / 4] >> (g % 4 * GRANULE_PAGES) & 0xFFFF;
        // A granule with present pages outside the range keeps its age.
        let is_whole = |g: &usize| of(&pages, *g) != 0 && of(&there, *g) == 0;
        self.since.set((0..GRANULES).filter(is_whole), now);
    }

    /// Returns the pages that are reported as touched in the last interval.
    pub(super) fn busy(&self) -> Bitmap {
        if self.estimate.is_some_and(|share| share >= LEAST_SHARE) {
            or(&self.touched(), &self.unsampled())
        } else {
            self.touched()
        }
    }

    /// Returns whether only the number of its touched unsampled pages is known.
    pub(super) fn is_guess(&self) -> bool {
        let is_part = |share: f32| (LEAST_SHARE..SURE_SHARE).contains(&share);
        self.estimate.is_some_and(is_part)
    }

    /// Returns the state of each page; `None` if only the number of touched pages is known.
    pub(super) fn by_page(&self, now: u32, hides_accesses: bool) -> Option<BlockPages> {
        let unsampled = self.unsampled();
        if !is_empty(&unsampled) && self.is_guess() {
            return None;
        }
        let touched = self.busy();
        let untold = and_not(&self.present, &touched);
        let mut unknown = if self.estimate.is_none() {
            unsampled
        } else {
            NONE
        };
        unknown = or(&unknown, &self.unreached());
        if hides_accesses || !self.is_fresh() {
            unknown = untold;
        }
        let since = if is_empty(&touched) {
            self.mean_since()
        } else {
            self.mean_idle_since(Pages::All, &self.untouched(), now)
        };
        let swapped = self.swapped.as_ref();
        let swapped = swapped.map_or(NONE, |swapped| and_not(swapped, &self.present));
        Some(BlockPages {
            block: self.address,
            resident: self.present,
            touched,
            unknown: and(&unknown, &untold),
            swapped,
            untouched_for: nanos_of(now.saturating_sub(since as u32)),
        })
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            touched: self.touched(),
            unsampled: self.unsampled(),
        }
    }

    /// Counts the resident, touched (as an expected value), unknown and swapped pages among `pages`.
    pub(super) fn counts(&self, pages: Pages, seen: &Seen, hides_accesses: bool) -> Counts {
        let of = |map: &Bitmap| f64::from(pages.count(map));
        let (present, unsampled) = (of(&self.present), of(&seen.unsampled));
        let estimate = self.estimate.filter(|share| *share >= LEAST_SHARE);
        let touched = of(&seen.touched) + unsampled * f64::from(estimate.unwrap_or(0.0));
        let untold = if hides_accesses || !self.is_fresh() {
            present - touched
        } else {
            let is_untold = self.estimate.is_none();
            of(&self.unreached()) + if is_untold { unsampled } else { 0.0 }
        };
        Counts {
            resident: present,
            touched,
            unknown: untold,
            swapped: self.swapped.as_ref().map_or(0.0, |swapped| of(swapped)),
        }
    }
}
