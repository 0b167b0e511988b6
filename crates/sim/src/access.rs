//! Who accesses which page how often, and the accessed bits that come of it.
//!
//! Problem: a machine of a terabyte makes billions of accesses a second, of which a monitor sees only
//! whether there was any between two looks.
//!
//! Approach: accesses to a page are a Poisson process of a known rate, so whether there was one since
//! the bit was cleared is drawn when somebody looks: `1 - exp(-rate x time)`. A bit that was found set
//! stays set until it is cleared; one that was found clear is drawn anew from then on, as such a process
//! has no memory. A page takes four bytes.
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
    rates: Rates,
    purpose: Use,
}

/// Accessed bits of all pages.
#[derive(Clone, Debug)]
pub struct Accesses {
    /// In the order of their pages.
    groups: Vec<Group>,
    /// When each page's bit was last known to be clear, in ms; [`SET`] if it is set.
    clear_since: Vec<u32>,
    random: Pcg64Mcg,
}

const SET: u32 = u32::MAX;

impl Accesses {
    /// No pages yet.
    pub fn new(seed: u64) -> Self {
        Self {
            groups: Vec::new(),
            clear_since: Vec::new(),
            random: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
        }
    }

    /// From now on `pages`, the next ones of the memory's table, are in use. Their bits are set, as who
    /// fills a page accesses it. Yields the group's number.
    pub fn add(&mut self, pages: Range<Page>, purpose: Use, rates: Rates) -> usize {
        assert_eq!(
            pages.start as usize,
            self.clear_since.len(),
            "one after the other"
        );
        self.clear_since.resize(pages.end as usize, SET);
        self.groups.push(Group {
            pages,
            rates,
            purpose,
        });
        self.groups.len() - 1
    }

    /// From `now` on a group's pages are accessed at other rates.
    pub fn set_rates(&mut self, group: usize, rates: Rates, now: Nanos) {
        let pages = self.groups[group].pages.clone();
        for page in pages {
            self.is_accessed(page, now);
        }
        self.groups[group].rates = rates;
    }

    /// What a page is used for.
    pub fn purpose(&self, page: Page) -> Use {
        self.group(page).purpose
    }

    /// Accesses per second to a page.
    pub fn rate(&self, page: Page) -> f32 {
        let group = self.group(page);
        match &group.rates {
            Rates::Never => 0.0,
            Rates::Even(rate) => *rate,
            Rates::Each(rates) => rates[(page - group.pages.start) as usize],
        }
    }

    /// Whether a page was accessed since its bit was cleared.
    pub fn is_accessed(&mut self, page: Page, now: Nanos) -> bool {
        let since = self.clear_since[page as usize];
        if since == SET {
            return true;
        }
        let elapsed_s = f64::from(milliseconds(now).saturating_sub(since)) / 1e3;
        let rate = f64::from(self.rate(page));
        let chance = 1.0 - (-rate * elapsed_s).exp();
        let is_set = chance > 0.0 && self.draw() < chance;
        self.clear_since[page as usize] = if is_set { SET } else { milliseconds(now) };
        is_set
    }

    /// Clears a page's bit.
    pub fn clear(&mut self, page: Page, now: Nanos) {
        self.clear_since[page as usize] = milliseconds(now);
    }

    fn group(&self, page: Page) -> &Group {
        let at = self.groups.partition_point(|group| group.pages.end <= page);
        &self.groups[at]
    }

    /// A number from 0 up to 1.
    fn draw(&mut self) -> f64 {
        f64::from(self.random.next_u32()) / (f64::from(u32::MAX) + 1.0)
    }
}

fn milliseconds(now: Nanos) -> u32 {
    ((now.0 / 1_000_000) as u32).min(SET - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of 20,000 pages that is found accessed after `ms` at `rate`.
    fn share(rate: f32, ms: u64) -> f64 {
        let mut accesses = Accesses::new(1);
        accesses.add(0..20_000, Use::Anon, Rates::Even(rate));
        let start = Nanos::from_millis(1_000);
        (0..20_000).for_each(|page| accesses.clear(page, start));
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
        (0..5_000).for_each(|page| accesses.clear(page, at(0)));
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
}
