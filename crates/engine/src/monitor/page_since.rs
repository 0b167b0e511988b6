//! Idle times of single pages in a block with other pages in use.
//!
//! kstaled and kidled (LWN 461461) count a page's idle scans in a byte. Here two bytes hold the time since which a page
//! is idle. Idle pages therefore need no counting, and an age is exact to half a second for any interval.

use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::{self, Bitmap, and_not, has};

/// Ages are counted in ticks of 1/64 s from the start of monitoring: 776 days fit.
const TICK: u64 = 1_000_000_000 / 64;

pub(in crate::monitor) fn ticks(time: Nanos) -> u32 {
    u32::try_from(time.0 / TICK).unwrap_or(u32::MAX)
}

pub(in crate::monitor) fn nanos_of(ticks: u32) -> Nanos {
    Nanos(u64::from(ticks) * TICK)
}

/// Time since which each page has been seen untouched.
#[derive(Clone, Debug)]
pub(in crate::monitor) struct PageSince {
    /// Units after `base`, rounded up; valid for untouched pages.
    since: [u16; PAGES_PER_BLOCK],
    base: u32,
    untouched: Bitmap,
    updated: u32,
}

/// Half a second, in ticks: the stored time may be up to one unit later than the true one.
pub(in crate::monitor) const UNIT: u32 = 32;
/// Units that remain after the base moves: ages up to 4.5 hours are kept, and older ones are reported as about that
/// old.
const KEPT: u16 = 1 << 15;

impl PageSince {
    /// Creates the times of the `untouched` pages; `since` returns each page's time in ticks.
    pub(in crate::monitor) fn new(
        now: u32,
        untouched: &Bitmap,
        since: impl Fn(usize) -> u32,
    ) -> Self {
        let mut new = Self {
            since: [0; PAGES_PER_BLOCK],
            base: now.saturating_sub(u32::from(KEPT) * UNIT),
            untouched: *untouched,
            updated: now,
        };
        for page in bits::each(untouched) {
            new.since[page] = new.units(since(page));
        }
        new
    }

    /// Takes in an interval in which the `untouched` pages were not touched. A page that was not known as untouched
    /// before gets the start of the interval if it was `watched` from then on, and otherwise `now`.
    pub(in crate::monitor) fn update(&mut self, now: u32, untouched: &Bitmap, watched: &Bitmap) {
        if (now - self.base) / UNIT >= u32::from(u16::MAX) {
            self.base += u32::from(KEPT) * UNIT;
            let later = |since: &mut u16| *since = since.saturating_sub(KEPT);
            self.since.iter_mut().for_each(later);
        }
        let (began, ended) = (self.units(self.updated), self.units(now));
        for page in bits::each(&and_not(untouched, &self.untouched)) {
            self.since[page] = if has(watched, page) { began } else { ended };
        }
        self.untouched = *untouched;
        self.updated = now;
    }

    /// Restarts the age of `pages` at `now`.
    pub(in crate::monitor) fn reset(&mut self, pages: &Bitmap, now: u32) {
        let units = self.units(now);
        bits::each(pages).for_each(|page| self.since[page] = units);
    }

    /// Returns the tick since which `page` has not been touched; `now` if it is not known to be untouched.
    pub(in crate::monitor) fn of(&self, page: usize, now: u32) -> u32 {
        if has(&self.untouched, page) {
            self.ticks(page).min(now)
        } else {
            now
        }
    }

    /// Returns the sum of these ticks over `pages`, all of which must be untouched.
    pub(in crate::monitor) fn sum(&self, pages: &Bitmap) -> f64 {
        let (mut units, mut nr) = (0u64, 0u64);
        for page in bits::each(pages) {
            units += u64::from(self.since[page]);
            nr += 1;
        }
        (nr * u64::from(self.base) + units * u64::from(UNIT)) as f64
    }

    fn ticks(&self, page: usize) -> u32 {
        self.base + u32::from(self.since[page]) * UNIT
    }

    fn units(&self, ticks: u32) -> u16 {
        let units = ticks.saturating_sub(self.base).div_ceil(UNIT);
        u16::try_from(units).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::{ALL, NONE, mask_of};

    const SECOND: u32 = 64;

    #[test]
    fn a_page_is_as_old_as_it_is_known_to_be() {
        let granules = |page: usize| if page < 16 { 2 * SECOND } else { 10 * SECOND };
        let mut since = PageSince::new(10 * SECOND, &mask_of(0..32), granules);
        assert_eq!((since.of(3, 640), since.of(20, 640)), (128, 640));
        assert_eq!(since.of(40, 10 * SECOND), 10 * SECOND, "touched");
        // One of two new pages was watched since the interval began.
        since.update(14 * SECOND, &mask_of(0..42), &mask_of(0..41));
        let now = 20 * SECOND;
        assert_eq!((since.of(40, now), since.of(41, now)), (640, 14 * SECOND));
        // Touched, and untouched again.
        since.update(16 * SECOND, &mask_of(8..42), &ALL);
        since.update(18 * SECOND, &mask_of(0..42), &ALL);
        assert_eq!((since.of(3, now), since.of(9, now)), (16 * 64, 128));
        assert!((since.sum(&mask_of(7..9)) - f64::from(16 * 64 + 128)).abs() < 1.0);
        since.reset(&mask_of(9..10), 19 * SECOND);
        assert_eq!((since.of(8, now), since.of(9, now)), (128, 19 * SECOND));
    }

    #[test]
    fn after_hours_an_age_is_no_longer_exact_and_never_too_long() {
        let mut since = PageSince::new(0, &ALL, |_| 0);
        let hour = 3600 * SECOND;
        for now in (0..40).map(|n| n * hour) {
            since.update(now, &mask_of(1..512), &ALL);
            let (age, most) = ((now - since.of(7, now)) / hour, now / hour);
            assert!((most.min(4)..=most).contains(&age), "{now} {age}");
            assert_eq!(since.of(0, now), now);
        }
        since.update(40 * hour, &NONE, &ALL);
        since.update(41 * hour, &ALL, &ALL);
        assert_eq!(since.of(5, 41 * hour), 40 * hour);
    }
}
