//! Idle time of each folio of the page cache.
//!
//! Four bytes and two bits for each frame, in blocks that take memory only if something is cached there.

use super::{CachedFolio, FolioState, Lru};
use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::frames::PageAge;
use crate::monitor::bits::{self, Bitmap};

/// The unit of ages: half a second.
const UNIT: u64 = 500_000_000;
/// Units that remain after the base moves: ages up to 4.5 hours are kept, and older ones are reported as about that
/// old.
const KEPT: u16 = 1 << 15;

/// The folio is in the page cache.
const PRESENT: u8 = 1;
/// `since` is the time since which the folio has not been accessed.
const KNOWN: u8 = 1 << 1;
/// State of the folio at the last scan.
const REFERENCED: u8 = 1 << 2;
const ACTIVE: u8 = 1 << 3;
const WORKINGSET: u8 = 1 << 4;
/// Parity of the round in which the folio was seen last.
const ROUND: u8 = 1 << 5;
/// Number of scans in which it had been accessed, up to three.
const USES_SHIFT: u32 = 6;
const USES_MAX: u8 = 3;

/// Record of the folio that begins at a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Time in units after the base.
    since: u16,
    state: u8,
    /// Hash of the file and the place in it: distinguishes the folio from earlier contents of the frame.
    hash: u8,
}

#[derive(Debug)]
struct Block {
    entries: [Entry; PAGES_PER_BLOCK],
    /// Frames that belong to a folio with an earlier first frame.
    tails: Bitmap,
    /// First frames of folios that had been accessed at the last scan.
    touched: Bitmap,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            entries: [Entry::default(); PAGES_PER_BLOCK],
            tails: Bitmap::default(),
            touched: Bitmap::default(),
        }
    }
}

impl Block {
    /// Records the frames of the folio that begins at `first`. No folio is larger than a block, and all lie at
    /// multiples of their size.
    fn set_tails(&mut self, first: usize, order: u8) {
        let end = (first + (1 << order)).min(PAGES_PER_BLOCK);
        let tails = &mut self.tails;
        bits::put(tails, first, false);
        if end - first > 1 {
            *tails = bits::or(tails, &bits::mask_of(first + 1..end));
        }
        // Tails right behind the folio belonged to a folio that is gone.
        let gone = (end..PAGES_PER_BLOCK).take_while(|page| bits::has(tails, *page));
        let gone = gone.count();
        if gone > 0 {
            *tails = bits::and_not(tails, &bits::mask_of(end..end + gone));
        }
    }
}

/// The result of a scan for one folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenFolio {
    /// Time of the last access.
    pub age: PageAge,
    /// Number of scans since it was first seen in which it had been accessed, up to three.
    pub nr_uses: u8,
    /// Whether the next access would leave no trace until the kernel's mark is cleared.
    pub hides_next: bool,
}

/// The ages of all folios that were seen.
#[derive(Debug, Default)]
pub struct FolioAges {
    blocks: Vec<Option<Box<Block>>>,
    /// Start of the count in `since`.
    base: Nanos,
    /// LRU for the comparison of the last scan with this one, and the present LRU.
    lru: Lru,
    lru_now: Lru,
    nr_rounds: u32,
    /// Start of this round, and of the one before.
    began: [Nanos; 2],
}

impl FolioAges {
    /// Begins a round, in which all frames are scanned. `lru`: the kernel's present LRU.
    pub fn begin_round(&mut self, now: Nanos, lru: Lru) {
        let before = std::mem::replace(&mut self.lru_now, lru);
        self.lru = lru.max(before);
        if self.nr_rounds == 0 {
            (self.lru, self.base) = (lru, now);
        }
        while now.since(self.base).0 / UNIT >= u64::from(u16::MAX) {
            self.base = self.base + Nanos(u64::from(KEPT) * UNIT);
            let blocks = self.blocks.iter_mut().flatten();
            for entry in blocks.flat_map(|block| block.entries.iter_mut()) {
                entry.since = entry.since.saturating_sub(KEPT);
            }
        }
        self.nr_rounds += 1;
        self.began = [now, self.began[0]];
    }

    /// Returns the number of rounds that were begun.
    pub fn nr_rounds(&self) -> u32 {
        self.nr_rounds
    }

    /// Takes in the state of a folio.
    pub fn look(&mut self, folio: &CachedFolio, now: Nanos) -> SeenFolio {
        let (units, round, lru) = (self.units(now), self.round(), self.lru);
        let is_first = self.nr_rounds <= 1;
        let (page, block) = (page_of(folio.frame), self.block_mut(folio.frame));
        block.set_tails(page, folio.order);
        let entry = &mut block.entries[page];
        let hash = hash(folio);
        let is_known = entry.state & PRESENT != 0 && entry.hash == hash;
        let kept = if is_known { entry.state } else { 0 };
        let is_accessed = if is_known {
            is_accessed(kept, folio.state)
        } else {
            // The folio was read into memory since the last round: that was an access.
            !is_first
        };
        let new = new_uses(is_known, is_first, kept, folio.state);
        let uses = (kept >> USES_SHIFT).saturating_add(new).min(USES_MAX);
        let hides_next = folio.state.hides_next(lru);
        let mut state = PRESENT | round | uses << USES_SHIFT | kept & KNOWN;
        if is_accessed {
            entry.since = units;
            state |= KNOWN;
        } else if hides_next {
            // The mark was set before and was not cleared: later accesses cannot be seen.
            state &= !KNOWN;
        } else if kept & KNOWN == 0 || was_blind(kept, folio.state, lru) {
            // The kernel has cleared the mark meanwhile, or the folio is seen for the first time.
            entry.since = units;
            state |= KNOWN;
        }
        entry.state = state | flags(folio.state);
        entry.hash = hash;
        let since = entry.since;
        bits::put(&mut block.touched, page, is_accessed);
        let is_told = is_known || !is_first;
        let age = match (is_accessed, state & KNOWN != 0 && is_told) {
            (true, _) => PageAge::Touched,
            (false, false) => PageAge::Unknown,
            (false, true) => idle_for(units.saturating_sub(since)),
        };
        SeenFolio {
            age,
            nr_uses: uses,
            hides_next,
        }
    }

    /// Takes in that a folio's mark was cleared, and is clear: it has not been accessed since. Accesses between the
    /// last scan and the clear are not known.
    pub fn cleared(&mut self, folio: &CachedFolio, now: Nanos) {
        let units = self.units(now);
        let entry = &mut self.block_mut(folio.frame).entries[page_of(folio.frame)];
        if entry.state & PRESENT != 0 && entry.hash == hash(folio) {
            entry.since = units;
            entry.state = entry.state & !REFERENCED | KNOWN;
        }
    }

    /// Returns the idle time of a folio, by its state at the last scan and its present state.
    pub fn idle(&self, folio: &CachedFolio, now: Nanos) -> Option<Nanos> {
        let block = self.blocks.get(block_of(folio.frame))?.as_ref()?;
        let entry = block.entries[page_of(folio.frame)];
        let is_it = entry.state & (PRESENT | KNOWN) == PRESENT | KNOWN && entry.hash == hash(folio);
        if !is_it || folio.state.hides_next(self.lru) {
            return None;
        }
        if is_accessed(entry.state, folio.state) {
            return Some(Nanos(0));
        }
        if was_blind(entry.state, folio.state, self.lru) {
            return None;
        }
        let units = u64::from(self.units(now).saturating_sub(entry.since));
        Some(Nanos(units.saturating_sub(1) * UNIT))
    }

    /// Ends the scan of these frames: folios that were not seen are removed.
    pub fn end_frames(&mut self, frames: &std::ops::Range<u64>) {
        let round = self.round();
        let end = frames.end.div_ceil(PAGES_PER_BLOCK as u64) as usize;
        let blocks = block_of(frames.start).min(self.blocks.len())..end.min(self.blocks.len());
        for slot in &mut self.blocks[blocks] {
            let Some(block) = slot else { continue };
            let mut is_used = false;
            for entry in &mut block.entries {
                if entry.state & ROUND != round {
                    *entry = Entry::default();
                }
                is_used |= entry.state != 0;
            }
            if !is_used {
                *slot = None;
            }
        }
    }

    /// Returns the bytes that this takes.
    pub fn memory(&self) -> usize {
        let used = self.blocks.iter().flatten().count();
        self.blocks.capacity() * size_of::<Option<Box<Block>>>() + used * size_of::<Block>()
    }

    fn round(&self) -> u8 {
        if self.nr_rounds.is_multiple_of(2) {
            ROUND
        } else {
            0
        }
    }

    /// Calls `tell` for each frame of all folios, with its age at the last scan. For a folio without a known access in
    /// that round, the age is its idle time at the start of the round.
    pub fn each_frame(&self, mut tell: impl FnMut(u64, PageAge)) {
        let (base, round) = (self.base, self.round());
        let began = self.began.map(|began| began.since(base).0 / UNIT);
        for (number, block) in self.blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            let mut age = None;
            for (page, entry) in block.entries.iter().enumerate() {
                let is_tail = bits::has(&block.tails, page);
                if entry.state & PRESENT != 0 {
                    let began = began[usize::from(entry.state & ROUND != round)];
                    let idle = began.saturating_sub(u64::from(entry.since));
                    age = Some(if bits::has(&block.touched, page) {
                        PageAge::Touched
                    } else if entry.state & KNOWN == 0 || idle == 0 {
                        PageAge::Unknown
                    } else {
                        idle_for(u16::try_from(idle).unwrap_or(u16::MAX))
                    });
                } else if !is_tail {
                    age = None;
                }
                if let Some(age) = age {
                    tell((number * PAGES_PER_BLOCK + page) as u64, age);
                }
            }
        }
    }

    fn block_mut(&mut self, frame: u64) -> &mut Block {
        let block = block_of(frame);
        if block >= self.blocks.len() {
            self.blocks.resize_with(block + 1, || None);
        }
        self.blocks[block].get_or_insert_with(Box::default)
    }

    fn units(&self, now: Nanos) -> u16 {
        u16::try_from(now.since(self.base).0.div_ceil(UNIT)).unwrap_or(u16::MAX)
    }
}

fn block_of(frame: u64) -> usize {
    (frame / PAGES_PER_BLOCK as u64) as usize
}

fn page_of(frame: u64) -> usize {
    (frame % PAGES_PER_BLOCK as u64) as usize
}

/// Returns the age for a number of units, of which the first and the last may be partial.
fn idle_for(units: u16) -> PageAge {
    PageAge::idle_for(Nanos(u64::from(units) * UNIT))
}

fn hash(folio: &CachedFolio) -> u8 {
    // Fibonacci hashing.
    let mixed = (folio.file ^ folio.index.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn flags(state: FolioState) -> u8 {
    let bit = |is: u16, bit| if state.has(is) { bit } else { 0 };
    bit(FolioState::REFERENCED, REFERENCED)
        | bit(FolioState::ACTIVE, ACTIVE)
        | bit(FolioState::WORKINGSET, WORKINGSET)
}

/// Returns whether a folio was accessed between the two states (folio_mark_accessed() in mm/swap.c). An access marks
/// it, and a second one makes it active. Reclaim may have undone the latter, which leaves a trace; but it also
/// deactivates folios that have been active for long.
fn is_accessed(before: u8, now: FolioState) -> bool {
    let gained = |is: u16, bit: u8| now.has(is) && before & bit == 0;
    gained(FolioState::REFERENCED, REFERENCED)
        || gained(FolioState::ACTIVE, ACTIVE)
        || gained(FolioState::WORKINGSET, WORKINGSET) && before & ACTIVE == 0
}

/// Returns whether a folio may have been accessed between the two states although [`is_accessed`] returns false. Either
/// the access would have left no trace, or the mark is gone. Reclaim clears marks, and so does a second access that
/// waits to make the folio active (folio_activate() in mm/swap.c).
fn was_blind(before: u8, now: FolioState, lru: Lru) -> bool {
    let is_lost = !now.has(FolioState::REFERENCED);
    before & REFERENCED != 0 && (is_lost || before & ACTIVE != 0 || lru == Lru::MultiGen)
}

/// Returns the distinguishable accesses that this scan adds.
fn new_uses(is_known: bool, is_first: bool, before: u8, now: FolioState) -> u8 {
    let marked = u8::from(now.has(FolioState::REFERENCED) && before & REFERENCED == 0);
    // A folio becomes active by two accesses.
    let active = if now.has(FolioState::ACTIVE) && before & ACTIVE == 0 {
        2
    } else {
        0
    };
    match (is_known, is_first) {
        (true, _) => marked.max(active).max(u8::from(is_accessed(before, now))),
        (false, true) => 0,
        (false, false) => marked + active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REF: u16 = FolioState::REFERENCED;
    const ACT: u16 = FolioState::ACTIVE;
    const WS: u16 = FolioState::WORKINGSET;
    const UNEVICTABLE_REF: u16 = FolioState::UNEVICTABLE | REF;

    fn folio(index: u64, state: u16) -> CachedFolio {
        CachedFolio {
            frame: 1000,
            order: 0,
            state: FolioState(state),
            file: 0xffff_8880_0123_4560,
            index,
            group: 0,
        }
    }

    fn by_class(age: PageAge) -> PageAge {
        match age {
            PageAge::Idle(step) => PageAge::Idle(PageAge::class(step) as u8),
            age => age,
        }
    }

    /// Scans one folio every ten seconds: its states, and whether its mark is cleared after each.
    fn check(lru: Lru, states: &[(u16, bool)], wanted: &[PageAge], nr_uses: u8) {
        let mut ages = FolioAges::default();
        let mut now = Nanos(0);
        let mut seen = Vec::new();
        let mut uses = 0;
        for (state, is_cleared) in states {
            ages.begin_round(now, lru);
            let reported = ages.look(&folio(0, *state), now);
            seen.push(by_class(reported.age));
            uses = reported.nr_uses;
            if *is_cleared {
                ages.cleared(&folio(0, state & !REF), now);
            }
            ages.end_frames(&(0..4096));
            now = now + Nanos::from_millis(10_000);
        }
        assert_eq!(seen, wanted, "{states:?}");
        assert_eq!(uses, nr_uses, "uses in {states:?}");
    }

    use Lru::{Classic, MultiGen};
    use PageAge::{Idle, Touched, Unknown};

    #[test]
    fn accesses_are_told_from_what_the_kernel_marks() {
        for lru in [Classic, MultiGen] {
            let check = |states: &[(u16, bool)], wanted: &[PageAge], nr_uses| {
                check(lru, states, wanted, nr_uses);
            };
            let (active, marked) = ((ACT, false), (ACT | REF, false));
            let cleared = (ACT | REF, true);
            // Unmarked: idle since the first scan.
            let idle = [Unknown, Idle(2), Idle(2), Idle(3)];
            check(&[(0, false); 4], &idle, 0);
            // Cleared: idle since.
            check(&[cleared, active, active], &idle[..3], 0);
            // Read again after that.
            let read = [Unknown, Touched, Idle(2), Idle(2)];
            check(&[cleared, cleared, active, active], &read, 1);
            // Read twice: active. The next access is hidden while the mark is not cleared.
            let hidden = [Unknown, Touched, Touched, Unknown];
            check(&[(0, false), active, marked, marked], &hidden, 3);
            // If reclaim makes an active page inactive, that is no access; if the page was not seen active, it was
            // accessed.
            check(&[active, (WS, false), (WS, false)], &idle[..3], 0);
            check(&[(0, false), (WS, false)], &[Unknown, Touched], 1);
        }
    }

    #[test]
    fn of_a_page_that_was_read_once_the_next_time_is_seen() {
        let idle = [Unknown, Idle(2), Idle(2), Touched, Idle(2)];
        let states = [REF, REF, REF, ACT, ACT].map(|state| (state, false));
        check(Classic, &states, &idle, 2);
        // The page is not made active here, so accesses are unknown.
        check(MultiGen, &states[..3], &[Unknown; 3], 0);
        // The mark is gone: by reclaim, or by a second access that is not complete.
        let states = [REF, REF, 0, 0].map(|state| (state, false));
        check(Classic, &states, &[Unknown, Idle(2), Idle(0), Idle(2)], 0);
        // Accesses were hidden while it was active and marked; reclaim made it inactive.
        let states = [ACT | REF, ACT | REF, WS | REF, WS | REF].map(|state| (state, false));
        check(Classic, &states, &[Unknown, Unknown, Idle(0), Idle(2)], 0);
        check(Classic, &[(UNEVICTABLE_REF, false); 2], &[Unknown; 2], 0);
    }

    #[test]
    fn what_was_marked_by_the_other_way_is_not_trusted() {
        let mut ages = FolioAges::default();
        let mut seen = Vec::new();
        for (round, lru) in [MultiGen, Classic, Classic].into_iter().enumerate() {
            let now = Nanos::from_millis(10_000 * round as u64);
            ages.begin_round(now, lru);
            seen.push(by_class(ages.look(&folio(0, REF), now).age));
            ages.end_frames(&(0..4096));
        }
        assert_eq!(seen, [Unknown, Unknown, Idle(0)]);
    }

    #[test]
    fn what_comes_into_memory_was_accessed_then() {
        let mut ages = FolioAges::default();
        ages.begin_round(Nanos(0), Lru::Classic);
        ages.end_frames(&(0..4096));
        let second = |s: u64| Nanos::from_millis(s * 1000);
        ages.begin_round(second(10), Lru::Classic);
        let look = |ages: &mut FolioAges, index, state, s| {
            let seen = ages.look(&folio(index, state), second(s));
            (by_class(seen.age), seen.nr_uses)
        };
        let read_ahead = look(&mut ages, 3, 0, 10);
        assert_eq!(read_ahead, (PageAge::Touched, 0));
        ages.end_frames(&(0..4096));
        ages.begin_round(second(50), Lru::Classic);
        assert_eq!(look(&mut ages, 3, 0, 50), (PageAge::Idle(3), 0));
        assert_eq!(ages.idle(&folio(3, 0), second(50)), Some(Nanos(79 * UNIT)));
        assert_eq!(ages.idle(&folio(3, UNEVICTABLE_REF), second(50)), None);
        assert_eq!(ages.idle(&folio(3, ACT), second(50)), Some(Nanos(0)));
        assert_eq!(ages.idle(&folio(4, 0), second(50)), None, "another page");
        // Another page in the same frame.
        assert_eq!(look(&mut ages, 4, REF, 60), (PageAge::Touched, 1));
        ages.end_frames(&(0..4096));
        // It goes, and another round later it is back.
        ages.begin_round(second(70), Lru::Classic);
        ages.end_frames(&(0..4096));
        assert_eq!(ages.memory(), ages.blocks.capacity() * 8);
        ages.begin_round(second(80), Lru::Classic);
        assert_eq!(look(&mut ages, 4, 0, 80), (PageAge::Touched, 0));
    }

    #[test]
    fn each_frame_is_as_its_folio_was_when_that_was_looked_at() {
        let second = |s: u64| Nanos::from_millis(s * 1000);
        let of = |frame, order, state| CachedFolio {
            frame,
            order,
            ..folio(frame, state)
        };
        let reported = |ages: &FolioAges| {
            let mut frames = Vec::new();
            ages.each_frame(|frame, age| frames.push((frame, by_class(age))));
            frames
        };
        let mut ages = FolioAges::default();
        let round = |ages: &mut FolioAges, s, folios: &[CachedFolio]| {
            ages.begin_round(second(s), Lru::Classic);
            for folio in folios {
                ages.look(folio, second(s + 1));
            }
            ages.end_frames(&(0..4096));
        };
        round(&mut ages, 0, &[of(8, 2, 0), of(12, 0, REF)]);
        let unknown: Vec<_> = (8..13).map(|frame| (frame, PageAge::Unknown)).collect();
        assert_eq!(reported(&ages), unknown, "nothing is known after one round");
        round(&mut ages, 40, &[of(8, 2, 0), of(12, 0, 0), of(600, 0, 0)]);
        let idle = |frame| (frame, PageAge::Idle(3));
        let mut wanted = vec![idle(8), idle(9), idle(10), idle(11)];
        wanted.extend([(12, PageAge::Unknown), (600, PageAge::Touched)]);
        assert_eq!(reported(&ages), wanted);
        // The large one goes, and a small one is where it began.
        round(&mut ages, 80, &[of(8, 0, ACT), of(12, 0, 0)]);
        assert_eq!(reported(&ages), [(8, PageAge::Touched), idle(12)]);
    }

    #[test]
    fn ages_go_on_for_hours() {
        let mut ages = FolioAges::default();
        for hour in 0..40 {
            let now = Nanos::from_millis(hour * 3_600_000);
            ages.begin_round(now, Lru::Classic);
            let seen = ages.look(&folio(0, 0), now);
            if hour > 1 {
                assert_eq!(by_class(seen.age), PageAge::Idle(6), "{hour}");
            }
            ages.end_frames(&(0..4096));
        }
    }
}
