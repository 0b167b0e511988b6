//! Since when each page of a block has not been touched, where others of it have been.
//!
//! kstaled and kidled (LWN 461461) count a page's idle scans in a byte; here two bytes say since when,
//! so that nothing needs to be counted up for pages that stay idle, and an age is exact to half a
//! second whatever the intervals are.

use crate::address::PAGES_PER_BLOCK;
use crate::monitor::bits::{self, Bitmap, and_not, has};

/// Since when each page has been seen untouched.
#[derive(Clone, Debug)]
pub(in crate::monitor) struct PageSince {
    /// In units after `base`, rounded up; of untouched pages.
    since: [u16; PAGES_PER_BLOCK],
    base: u32,
    untouched: Bitmap,
    updated: u32,
}

/// Half a second, in ticks: since when a page is idle is told up to so much later than it was.
pub(in crate::monitor) const UNIT: u32 = 32;
/// Ages of at least so many units are kept, 4.5 hours; what is older is told as about as old.
const KEPT: u16 = 1 << 15;

impl PageSince {
    /// Of the `untouched` pages, `since` says since when they have been, in ticks.
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

    /// An interval ended in which the `untouched` pages were not touched. Those of them that it was not
    /// known of before were not since it began if they were `watched` from its beginning on, else since
    /// `now`.
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

    /// `pages` count anew from `now`.
    pub(in crate::monitor) fn reset(&mut self, pages: &Bitmap, now: u32) {
        let units = self.units(now);
        bits::each(pages).for_each(|page| self.since[page] = units);
    }

    /// Since when `page` has not been touched; `now` if it is not known to be untouched.
    pub(in crate::monitor) fn of(&self, page: usize, now: u32) -> u32 {
        if has(&self.untouched, page) {
            self.ticks(page).min(now)
        } else {
            now
        }
    }

    /// The sum over `pages`, all of them untouched, of since when they are.
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
        // Of two that are new, one was watched since the interval began.
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
            let age = (now - since.of(7, now)) / hour;
            assert!(
                age <= now / hour && age >= (now / hour).min(4),
                "{now} {age}"
            );
            assert_eq!(since.of(0, now), now);
        }
        since.update(40 * hour, &NONE, &ALL);
        since.update(41 * hour, &ALL, &ALL);
        assert_eq!(since.of(5, 41 * hour), 40 * hour);
    }
}
