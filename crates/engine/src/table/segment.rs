//! A segment: neighbouring pages of one block and one mapping, and what is known of their accesses.

use super::bits::{Bitmap, and, and_not, count, has, mask_of, or};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use crate::port::Touch;
use crate::snapshot::TargetId;

/// Pages that one sample watches: they share one range to clear, and so one TLB flush.
pub(super) const CLUSTER_PAGES: u32 = 16;

/// Touched pages of an armed segment are cleared again after this, at first, and at last.
const STALE_MIN: Nanos = Nanos::from_millis(1_500);
const STALE_MAX: Nanos = Nanos::from_millis(12_000);
/// Idle for so long, a segment is not looked at every time.
const QUIET: Nanos = Nanos::from_millis(4_000);
/// From this rate on an idle sample is a surprise, and says that much has changed.
const BUSY_RATE: f32 = 0.5;
/// Longest time between two samples of a segment whose rate is steady.
const SAMPLE_INTERVAL_MAX: Nanos = Nanos::from_millis(3_200);

/// What the tables of one 2 MiB block say at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Where the block starts; a multiple of 2 MiB.
    pub address: u64,
    /// One 2 MiB leaf maps it: all its pages share one accessed bit.
    pub huge: bool,
    /// Bit `i`: page `i` is there.
    pub present: [u64; 8],
    /// Bit `i`: page `i`'s accessed bit is set.
    pub accessed: [u64; 8],
}

/// How a segment is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// Nothing is known yet.
    Fresh,
    /// Clusters of pages are sampled now and then: the segment is in use, or about to be armed.
    Sampled,
    /// Every page's bit was cleared, so that reading the tables tells exactly which were touched
    /// since. Costs nothing while the segment stays idle.
    Armed,
}

/// What one look at an armed segment calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Keep it as it is.
    Keep,
    /// Some pages were touched a while ago: only clearing them again tells whether they still are.
    Stale,
    /// So many pages were touched that it should be looked at in parts or sampled.
    Spent,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each with its own name"
)]
pub(super) struct Segment {
    pub(super) target: TargetId,
    pub(super) range: AddressRange,
    /// Which mapping it belongs to: segments of two mappings are not reported as one region.
    pub(super) mapping: u64,
    pub(super) watch: Watch,
    /// Share of sampling windows in which a page is touched; meaningful unless `Fresh`.
    pub(super) rate: f32,
    pub(super) nr_samples: u32,
    /// Idle samples in a row.
    pub(super) nr_idle: u32,
    /// Samples in a row that found what was expected.
    pub(super) nr_steady: u32,
    /// The rate before the idle samples.
    pub(super) rate_before_idle: f32,
    /// Samples in a row about which nothing could be known.
    pub(super) nr_unknown: u32,
    /// When it is worth sampling again.
    pub(super) sample_not_before: Nanos,
    /// Under which time it stands in the queue of segments to sample; other entries are outdated.
    pub(super) queued_for: Nanos,
    /// Samples found both idle and busy pages: the segment has parts.
    pub(super) mixed: bool,
    pub(super) huge: bool,
    pub(super) present: Bitmap,
    pub(super) accessed: Bitmap,
    /// Pages whose bit was clear at the last look, while `Armed`.
    pub(super) armed: Bitmap,
    /// How many pages were armed in the beginning.
    pub(super) nr_armed: u32,
    /// All present pages were armed, not only those that a sample had cleared.
    pub(super) whole: bool,
    pub(super) armed_at: Nanos,
    pub(super) looked_at: Nanos,
    /// Arming is asked for, or not to be tried before this time.
    pub(super) arm_queued: bool,
    pub(super) arm_not_before: Nanos,
    /// How long touched pages are left alone before they are cleared again.
    pub(super) stale_after: Nanos,
    /// Until then it is looked at every time, however quiet it has been.
    pub(super) alert_until: Nanos,
    /// Since when, and around which value, the rate has been about the same.
    pub(super) age_from: Nanos,
    pub(super) age_rate: f32,
}

impl Segment {
    pub(super) fn new(target: TargetId, range: AddressRange, mapping: u64, now: Nanos) -> Self {
        assert_eq!(
            block_of(range.start),
            block_of(range.end - 1),
            "a segment lies in one block"
        );
        Self {
            target,
            range,
            mapping,
            watch: Watch::Fresh,
            rate: 0.0,
            nr_samples: 0,
            nr_idle: 0,
            nr_steady: 0,
            rate_before_idle: 0.0,
            nr_unknown: 0,
            sample_not_before: Nanos(0),
            queued_for: Nanos(0),
            mixed: false,
            huge: false,
            present: [0; 8],
            accessed: [0; 8],
            armed: [0; 8],
            nr_armed: 0,
            whole: false,
            armed_at: now,
            looked_at: now,
            arm_queued: false,
            arm_not_before: Nanos(0),
            stale_after: STALE_MIN,
            alert_until: Nanos(0),
            age_from: now,
            age_rate: 0.0,
        }
    }

    /// Pages, as indexes in the block.
    fn pages(&self) -> std::ops::Range<usize> {
        let first = (self.range.start % BLOCK_SIZE / PAGE_SIZE) as usize;
        first..first + (self.range.len() / PAGE_SIZE) as usize
    }

    /// The bits that are the segment's own.
    pub(super) fn mask(&self) -> Bitmap {
        mask_of(self.pages())
    }

    pub(super) fn block(&self) -> u64 {
        block_of(self.range.start)
    }

    /// A sample's outcome: `busy` of the observed pages were touched in one window.
    pub(super) fn sampled(&mut self, touch: Touch, now: Nanos, aggregation: Nanos) {
        let Touch::Seen { observed, accessed } = touch else {
            // What cannot be known now will hardly be known in a moment: ask ever less often.
            self.nr_unknown += 1;
            let wait = 1_000_000_000 << self.nr_unknown.min(6);
            self.sample_not_before = now + Nanos(wait);
            return;
        };
        if std::mem::take(&mut self.nr_unknown) >= 3 {
            // It was unknown: how long it has been like this is not known either.
            self.age_from = now;
        }
        let busy = accessed as f32 / observed as f32;
        let as_expected = self.nr_samples > 0
            && (busy > 0.0) == (self.rate > 0.0)
            && (busy - self.rate).abs() <= 0.25;
        self.nr_steady = if as_expected { self.nr_steady + 1 } else { 0 };
        // Four samples of 16 pages in an interval tell a rate well enough; ever fewer, while each
        // finds what is known already.
        let wait = Nanos((aggregation.0 / 4) << self.nr_steady.min(8));
        let wait = wait.min(SAMPLE_INTERVAL_MAX.max(aggregation));
        self.sample_not_before = now + Nanos(wait.0 - wait.0 * self.dither() / 512);
        if self.watch == Watch::Fresh {
            self.watch = Watch::Sampled;
        }
        if self.nr_samples > 0 && (accessed == 0) != (self.nr_idle > 0) && self.nr_samples < 1 << 20
        {
            self.mixed = true;
        }
        if accessed == 0 && self.nr_idle == 0 {
            self.rate_before_idle = if self.nr_samples > 1 { self.rate } else { 0.0 };
            if self.rate_before_idle >= BUSY_RATE {
                // Make sure soon.
                self.sample_not_before = now;
            }
        }
        self.nr_idle = if accessed == 0 { self.nr_idle + 1 } else { 0 };
        self.nr_samples += 1;
        // A mean over the first samples, then over about the last four.
        let weight = 1.0 / self.nr_samples.min(4) as f32;
        self.rate += (busy - self.rate) * weight;
        // Where all was busy, two idle places are no chance.
        if self.nr_idle >= 3 || (self.nr_idle == 2 && self.rate_before_idle >= BUSY_RATE) {
            self.rate = 0.0;
        }
    }

    /// 0 to 255, at each sample another: segments that began together are not to be sampled together
    /// ever after, so that when all of them change one notices soon.
    fn dither(&self) -> u64 {
        let place = (self.range.start >> 12).wrapping_add(u64::from(self.nr_samples) << 32);
        place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56
    }

    /// Whether the last sample was idle where all was busy before.
    pub(super) fn is_surprise(&self) -> bool {
        self.nr_idle == 1 && self.rate_before_idle >= BUSY_RATE
    }

    /// Whether it has been idle for so long that it need not be looked at every time.
    pub(super) fn is_quiet(&self, now: Nanos) -> bool {
        self.watch == Watch::Armed
            && self.rate <= 0.0
            && now >= self.alert_until
            && now.since(self.age_from) > QUIET
    }

    /// Takes in what the tables say. For an armed segment, that is exact knowledge: returns whether
    /// it is used up.
    pub(super) fn look(&mut self, facts: &BlockFacts, now: Nanos, window: Nanos) -> Verdict {
        let mask = self.mask();
        let before = self.present;
        self.huge = facts.huge;
        self.present = and(&facts.present, &mask);
        self.accessed = and(&facts.accessed, &mask);
        let elapsed = now.since(self.looked_at);
        self.looked_at = now;
        if self.watch == Watch::Sampled && self.nr_idle > 0 && self.accessed_share() < 1.0 {
            // What the idle sample cleared keeps watch from now on, until the whole is armed.
            self.arm_clear_pages(now, false);
            return Verdict::Keep;
        }
        if self.watch != Watch::Armed || elapsed.0 == 0 {
            return Verdict::Keep;
        }
        let watched = or(&self.armed, &and_not(&self.present, &before));
        // A page that appears between two looks was accessed.
        let touched = or(
            &and(&self.armed, &self.accessed),
            &and_not(&self.present, &before),
        );
        let (nr_watched, nr_touched) = (count(&watched), count(&touched));
        // Pages that went away, to swap for instance, were not touched, and watch no more.
        self.nr_armed -= count(&and_not(&self.armed, &self.present)).min(self.nr_armed);
        self.armed = and_not(&self.armed, &self.accessed);
        self.armed = and(&self.armed, &self.present);
        let spent = self.nr_armed.saturating_sub(count(&self.armed));
        // Pages that were touched keep no watch: that the others are idle now does not say that
        // these are. Until they are cleared again, they count with what is known of them.
        let since_armed = now.since(self.armed_at);
        let lately = rate_of(nr_touched, nr_watched, elapsed, window);
        let on_average = rate_of(spent, self.nr_armed, since_armed, window);
        self.rate = lately.max(on_average);
        if self.present == [0; 8] {
            // Nothing is there to be touched; what comes is seen to come.
            Verdict::Keep
        } else if spent * 8 > self.nr_armed || self.nr_armed == 0 {
            Verdict::Spent
        } else if spent > 0 && since_armed >= self.stale_after {
            Verdict::Stale
        } else {
            Verdict::Keep
        }
    }

    /// After its pages were cleared and read again: from now on touches are seen exactly. `false`
    /// if too few pages came clear: they are in constant use, or cannot be cleared.
    pub(super) fn arm(&mut self, facts: &BlockFacts, now: Nanos) -> bool {
        let mask = self.mask();
        self.huge = facts.huge;
        self.present = and(&facts.present, &mask);
        self.accessed = and(&facts.accessed, &mask);
        let armed = and_not(&self.present, &self.accessed);
        self.arm_queued = false;
        if count(&armed) * 2 < count(&self.present) {
            return false;
        }
        let was_touched = self.watch == Watch::Armed && count(&self.armed) < self.nr_armed;
        self.stale_after = if was_touched {
            Nanos(self.stale_after.0 * 2).min(STALE_MAX)
        } else {
            STALE_MIN
        };
        self.arm_clear_pages(now, true);
        true
    }

    /// From now on, whatever of its pages is clear keeps watch.
    fn arm_clear_pages(&mut self, now: Nanos, whole: bool) {
        self.watch = Watch::Armed;
        self.armed = and_not(&self.present, &self.accessed);
        self.nr_armed = count(&self.armed);
        self.whole = whole;
        self.armed_at = now;
        self.looked_at = now;
        self.mixed = false;
    }

    fn accessed_share(&self) -> f32 {
        count(&and(&self.present, &self.accessed)) as f32 / count(&self.present).max(1) as f32
    }

    /// Whether reading its tables can tell anything: it keeps watch, or may from now on.
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.watch == Watch::Armed || self.nr_idle > 0 || self.arm_queued
    }

    /// Whether anything is known about it at present.
    pub(super) fn is_known(&self) -> bool {
        self.watch == Watch::Armed || (self.nr_samples > 0 && self.nr_unknown < 3)
    }

    /// The pages to clear for arming: from the first to the last whose bit is set.
    pub(super) fn range_to_clear(&self) -> Option<AddressRange> {
        if self.present == [0; 8] {
            // Its tables were not read yet.
            return Some(self.range);
        }
        if self.huge {
            let any = count(&self.accessed) > 0;
            return any.then(|| AddressRange::new(self.block(), self.block() + BLOCK_SIZE));
        }
        let bits = (0..512).filter(|&i| has(&self.accessed, i));
        let (first, last) = bits.fold((None, 0), |(first, _), i| (first.or(Some(i)), i));
        let first = first?;
        let at = |page: usize| self.block() + page as u64 * PAGE_SIZE;
        Some(AddressRange::new(at(first), at(last + 1)))
    }

    /// Cuts an armed segment where touched and untouched stretches meet; `None` if there are no
    /// clear stretches (touches are scattered, or everywhere).
    pub(super) fn parts(&self) -> Option<Vec<(AddressRange, bool)>> {
        if self.huge {
            return None;
        }
        let granule = CLUSTER_PAGES as usize;
        let mut parts: Vec<(std::ops::Range<usize>, bool)> = Vec::new();
        let pages = self.pages();
        for start in (pages.start / granule * granule..pages.end).step_by(granule) {
            let piece = start.max(pages.start)..(start + granule).min(pages.end);
            let mask = mask_of(piece.clone());
            // A page that could not even be armed was touched again at once, or cannot be cleared:
            // sampling will tell.
            let there = count(&and(&self.present, &mask));
            let idle = count(&and(&self.armed, &mask));
            let busy = idle * 2 < there;
            match parts.last_mut() {
                Some((last, same)) if *same == busy => last.end = piece.end,
                _ => parts.push((piece, busy)),
            }
        }
        self.sharpen(&mut parts);
        if parts.len() < 2 || parts.len() > 6 {
            return None;
        }
        let at = |page: usize| self.block() + page as u64 * PAGE_SIZE;
        Some(
            parts
                .into_iter()
                .map(|(p, busy)| (AddressRange::new(at(p.start), at(p.end)), busy))
                .collect(),
        )
    }

    /// Moves each boundary between parts to the exact page, which the bitmap shows.
    fn sharpen(&self, parts: &mut [(std::ops::Range<usize>, bool)]) {
        for i in 1..parts.len() {
            let busy_after = parts[i].1;
            let idle = |page: usize| has(&self.armed, page);
            let mut edge = parts[i].0.start;
            if busy_after {
                while edge > parts[i - 1].0.start + 1 && !idle(edge - 1) {
                    edge -= 1;
                }
                while edge + 1 < parts[i].0.end && idle(edge) {
                    edge += 1;
                }
            } else {
                while edge > parts[i - 1].0.start + 1 && idle(edge - 1) {
                    edge -= 1;
                }
                while edge + 1 < parts[i].0.end && !idle(edge) {
                    edge += 1;
                }
            }
            parts[i - 1].0.end = edge;
            parts[i].0.start = edge;
        }
    }

    /// The segment limited to `range`, a part of its own.
    pub(super) fn part(&self, range: AddressRange) -> Self {
        let mut part = self.clone();
        part.range = range;
        let mask = part.mask();
        part.nr_armed = count(&and(&part.armed, &mask));
        for bits in [&mut part.present, &mut part.accessed, &mut part.armed] {
            *bits = and(bits, &mask);
        }
        part
    }

    /// Whether `next`, which follows, has been like this one for so long that the boundary between
    /// them has lost its meaning.
    pub(super) fn can_join(&self, next: &Self, now: Nanos) -> bool {
        const SETTLED: Nanos = Nanos(4 * 1_000_000_000);
        let settled = |s: &Self| now.since(s.age_from) > SETTLED && !s.arm_queued;
        let alike = match (self.watch, next.watch) {
            (Watch::Armed, Watch::Armed) => {
                self.rate <= 0.0 && next.rate <= 0.0 && self.whole && next.whole
            }
            (Watch::Sampled, Watch::Sampled) => {
                self.nr_samples >= 4 && next.nr_samples >= 4 && (self.rate - next.rate).abs() < 0.1
            }
            _ => false,
        };
        alike
            && self.range.end == next.range.start
            && self.block() == next.block()
            && self.mapping == next.mapping
            && settled(self)
            && settled(next)
    }

    /// Takes `next`, which follows, in.
    pub(super) fn join(&mut self, next: &Self) {
        let (mine, other) = (self.range.len() as f32, next.range.len() as f32);
        self.rate = (self.rate * mine + next.rate * other) / (mine + other);
        self.range = AddressRange::new(self.range.start, next.range.end);
        self.nr_armed += next.nr_armed;
        self.nr_samples = self.nr_samples.max(next.nr_samples);
        self.nr_idle = self.nr_idle.min(next.nr_idle);
        self.age_from = self.age_from.max(next.age_from);
        self.armed_at = self.armed_at.min(next.armed_at);
        self.present = or(&self.present, &next.present);
        self.accessed = or(&self.accessed, &next.accessed);
        self.armed = or(&self.armed, &next.armed);
    }

    /// Keeps the time since when the rate has been about the same. `threshold` is the difference
    /// that counts, as in DAMON: a tenth of the highest rate.
    pub(super) fn keep_age(&mut self, now: Nanos, threshold: f32) {
        let crossed_zero = (self.rate > 0.0) != (self.age_rate > 0.0);
        if crossed_zero || (self.rate - self.age_rate).abs() > threshold {
            self.age_from = now;
            self.age_rate = self.rate;
        }
    }
}

/// Accesses to a page come at some mean rate r; of the pages watched for a time t, the share
/// 1 - exp(-r t) is touched. From that, the share touched in one window.
fn rate_of(touched: u32, watched: u32, time: Nanos, window: Nanos) -> f32 {
    if watched == 0 {
        return 0.0;
    }
    let share = (touched as f32 / watched as f32).min(0.999);
    let windows = (time.0 as f64 / window.0 as f64).max(1.0) as f32;
    1.0 - (1.0 - share).powf(1.0 / windows)
}

pub(super) const fn block_of(address: u64) -> u64 {
    address & !(BLOCK_SIZE - 1)
}

#[cfg(test)]
mod tests;
