//! Who accesses which page how often, and the accessed bits that come of it.
//!
//! Problem: a machine of a terabyte makes billions of accesses a second, of which a monitor sees only
//! whether there was any between two looks.
//!
//! Approach: accesses to a page are a Poisson process of a known rate, so whether there was one since
//! the bit was cleared is drawn when somebody looks: `1 - exp(-rate x time)`. A bit that was found set
//! stays set until it is cleared; one that was found clear is drawn anew from then on, as such a process
//! has no memory. A page takes a bit, and eight bytes more where it is ever accessed.
//!
//! Limits: rates do not change between two looks at a page but by [`Accesses::set_rates`].

use std::ops::Range;
use std::sync::Arc;

use isotherm_engine::Nanos;
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use crate::memory::Page;

/// Accesses per second to each page of a range.
#[derive(Clone, Debug)]
pub enum Rates {
    /// None at all.
    Never,
    /// The same for all.
    Even(f32),
    /// One for each.
    Each(Arc<Vec<f32>>),
}

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Anonymous memory.
    Anon,
    /// Pages of files.
    File,
}

/// Some pages with the same purpose.
#[derive(Clone, Debug)]
struct Group {
    pages: Range<Page>,
    purpose: Use,
    /// Nothing where none is ever accessed.
    pages_accessed: Vec<PageAccess>,
}

/// Of a page: side by side, as both are needed.
#[derive(Clone, Copy, Debug)]
struct PageAccess {
    /// Accesses per second.
    rate: f32,
    /// When its bit was last known to be clear, in ms.
    clear_since: u32,
}

/// Accessed bits of all pages.
#[derive(Clone, Debug)]
pub struct Accesses {
    /// In the order of their pages.
    groups: Vec<Group>,
    /// Where each group ends.
    ends: Vec<Page>,
    /// 64 pages a word: whether the bit was found set since it was cleared.
    set: Vec<u64>,
    nr_pages: u64,
    cleared: u64,
    /// How often it was said who accesses what.
    changes: u64,
    random: Pcg64Mcg,
}

impl Accesses {
    /// No pages yet.
    pub fn new(seed: u64) -> Self {
        Self {
            groups: Vec::new(),
            ends: Vec::new(),
            set: Vec::new(),
            nr_pages: 0,
            cleared: 0,
            changes: 0,
            random: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
        }
    }

    /// From now on `pages`, the next ones of the memory's table, are in use. Their bits are set, as who
    /// fills a page accesses it. Yields the group's number.
    pub fn add(&mut self, pages: Range<Page>, purpose: Use, rates: Rates) -> usize {
        assert_eq!(u64::from(pages.start), self.nr_pages, "one after the other");
        self.changes += 1;
        self.nr_pages = u64::from(pages.end);
        // Beyond the last page bits are set as well, for the next group.
        self.set
            .resize(self.nr_pages.div_ceil(64) as usize, u64::MAX);
        self.ends.push(pages.end);
        let mut group = Group {
            pages,
            purpose,
            pages_accessed: Vec::new(),
        };
        group.access_at(rates, 0);
        self.groups.push(group);
        self.groups.len() - 1
    }

    /// From `now` on a group's pages are accessed at other rates.
    pub fn set_rates(&mut self, group: usize, rates: Rates, now: Nanos) {
        self.changes += 1;
        // Those that are never accessed are clear as long as they will be.
        if !self.groups[group].pages_accessed.is_empty() {
            for page in self.groups[group].pages.clone() {
                self.is_accessed(page, now);
            }
        }
        self.groups[group].access_at(rates, milliseconds(now));
    }

    /// What a page is used for.
    pub fn purpose(&self, page: Page) -> Use {
        self.group(page).purpose
    }

    /// Accesses per second to a page.
    pub fn rate(&self, page: Page) -> f32 {
        let group = self.group(page);
        let i = (page - group.pages.start) as usize;
        group.pages_accessed.get(i).map_or(0.0, |page| page.rate)
    }

    /// Whether a page was accessed since its bit was cleared.
    pub fn is_accessed(&mut self, page: Page, now: Nanos) -> bool {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if self.set[word] & bit != 0 {
            return true;
        }
        let at = self.place(page);
        let group = &mut self.groups[at];
        let i = (page - group.pages.start) as usize;
        let Some(PageAccess { rate, clear_since }) = group.pages_accessed.get_mut(i) else {
            return false;
        };
        let elapsed_s = f64::from(milliseconds(now).saturating_sub(*clear_since)) / 1e3;
        let expected = f64::from(*rate) * elapsed_s;
        // The chance is less than what is expected, which spares most exponentials.
        let is_set = expected > 0.0 && {
            let drawn = draw(&mut self.random);
            drawn < expected && drawn < 1.0 - (-expected).exp()
        };
        if is_set {
            self.set[word] |= bit;
        } else {
            *clear_since = milliseconds(now);
        }
        is_set
    }

    /// Clears a page's bit. Whether it may be set again, as the page is accessed.
    pub fn clear(&mut self, page: Page, now: Nanos) -> bool {
        self.set[page as usize / 64] &= !(1 << (page % 64));
        let at = self.place(page);
        let group = &mut self.groups[at];
        let i = (page - group.pages.start) as usize;
        let accessed = group.pages_accessed.get_mut(i);
        let is_accessed = accessed.is_some();
        if let Some(page) = accessed {
            page.clear_since = milliseconds(now);
            self.cleared += 1;
        }
        is_accessed
    }

    /// How often it was said who accesses what.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Where the pages end, from `page` on, that [`Accesses::take_accessed`] looks at together.
    pub(crate) fn word_end(&self, page: Page) -> Page {
        (page / 64 * 64 + 64).min(self.group(page).pages.end)
    }

    /// Which of up to 64 pages were accessed, as [`Accesses::is_accessed`] says; their bits are cleared.
    /// The pages are those from `first` on, which lie together up to [`Accesses::word_end`], of which
    /// `pages` has the bit: the lowest is that of `first`.
    pub(crate) fn take_accessed(&mut self, first: Page, pages: u64, now: Nanos) -> u64 {
        if self.group(first).pages_accessed.is_empty() {
            // Nobody has set a bit since it was cleared.
            let (word, shift) = (first as usize / 64, first % 64);
            let found = self.set[word] >> shift & pages;
            self.set[word] &= !(found << shift);
            return found;
        }
        let mut found = 0;
        for i in ones(pages) {
            if self.is_accessed(first + i, now) {
                self.clear(first + i, now);
                found |= 1 << i;
            }
        }
        found
    }

    /// Bits of pages that are accessed, cleared so far: at most so many had to be set again.
    pub fn cleared(&self) -> u64 {
        self.cleared
    }

    fn group(&self, page: Page) -> &Group {
        &self.groups[self.place(page)]
    }

    fn place(&self, page: Page) -> usize {
        // There are a few, and whose page comes next cannot be foreseen: no branches.
        self.ends.iter().map(|end| usize::from(*end <= page)).sum()
    }
}

impl Group {
    /// Pages are accessed at `rates` from now on.
    fn access_at(&mut self, rates: Rates, now_ms: u32) {
        let len = (self.pages.end - self.pages.start) as usize;
        let old = std::mem::take(&mut self.pages_accessed);
        let clear_since = |i: usize| old.get(i).map_or(now_ms, |page| page.clear_since);
        let page = |i, rate| PageAccess {
            rate,
            clear_since: clear_since(i),
        };
        self.pages_accessed = match rates {
            Rates::Never => Vec::new(),
            Rates::Even(rate) => (0..len).map(|i| page(i, rate)).collect(),
            Rates::Each(rates) => {
                assert_eq!(rates.len(), len, "a rate for each page");
                let rates = rates.iter().enumerate();
                rates.map(|(i, rate)| page(i, *rate)).collect()
            }
        };
    }
}

/// The places of a word's bits that are set.
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        lowest
    })
}

/// A number from 0 up to 1.
fn draw(random: &mut Pcg64Mcg) -> f64 {
    f64::from(random.next_u32()) / (f64::from(u32::MAX) + 1.0)
}

fn milliseconds(now: Nanos) -> u32 {
    (now.0 / 1_000_000).min(u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of 20,000 pages that is found accessed after `ms` at `rate`.
    fn share(rate: f32, ms: u64) -> f64 {
        let mut accesses = Accesses::new(1);
        accesses.add(0..20_000, Use::Anon, Rates::Even(rate));
        let start = Nanos::from_millis(1_000);
        for page in 0..20_000 {
            accesses.clear(page, start);
        }
        let later = start + Nanos::from_millis(ms);
        let found = (0..20_000).filter(|page| accesses.is_accessed(*page, later));
        found.count() as f64 / 20_000.0
    }

    #[test]
    fn bits_are_set_as_often_as_the_rate_says() {
        assert!((share(1.0, 1_000) - (1.0 - (-1.0_f64).exp())).abs() < 0.01);
        assert!((share(10.0, 10) - (1.0 - (-0.1_f64).exp())).abs() < 0.01);
        assert!(share(0.0, 1_000_000).abs() < 1e-9);
    }

    #[test]
    fn looking_twice_changes_nothing() {
        let mut accesses = Accesses::new(7);
        accesses.add(0..5_000, Use::File, Rates::Even(0.5));
        let at = |ms| Nanos::from_millis(ms);
        for page in 0..5_000 {
            accesses.clear(page, at(0));
        }
        let mut found = 0;
        for ms in [250, 500, 750, 1_000] {
            for page in 0..5_000 {
                accesses.is_accessed(page, at(ms));
            }
        }
        for page in 0..5_000 {
            found += u32::from(accesses.is_accessed(page, at(1_000)));
        }
        // As if it had been looked at once.
        let expected = 1.0 - (-0.5_f64).exp();
        assert!((f64::from(found) / 5_000.0 - expected).abs() < 0.02);
    }

    #[test]
    fn a_word_is_taken_as_page_by_page() {
        let mut accesses = Accesses::new(3);
        accesses.add(0..100, Use::Anon, Rates::Never);
        accesses.add(100..300, Use::Anon, Rates::Even(0.5));
        for page in (0..300).step_by(3) {
            accesses.clear(page, Nanos(0));
        }
        let mut slowly = accesses.clone();
        let now = Nanos::from_millis(1_000);
        let mut first = 5;
        while first < 300 {
            let end = accesses.word_end(first);
            let pages = 0x5555_7777_3333_ffff & u64::MAX >> (64 - (end - first));
            let found = accesses.take_accessed(first, pages, now);
            for i in 0..end - first {
                let is_meant = pages >> i & 1 == 1;
                let was_accessed = is_meant && slowly.is_accessed(first + i, now);
                if was_accessed {
                    slowly.clear(first + i, now);
                }
                assert_eq!(found >> i & 1 == 1, was_accessed, "page {}", first + i);
            }
            first = end;
        }
        assert_eq!(accesses.set, slowly.set);
        assert_eq!(accesses.cleared(), slowly.cleared());
    }
}
