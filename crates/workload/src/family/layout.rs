//! Populated, hot and paged-out pages of a case. They are a function of the case alone, so that the program and its
//! scorer need not communicate.

use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::case::{Case, Populated, TouchOrder};
use crate::layout::{below, unit};

const PER_BLOCK: u64 = PAGES_PER_BLOCK as u64;

/// The pages of a case's memory, by their index in it.
#[derive(Clone, Debug)]
pub struct CaseLayout {
    case: Case,
    span: u64,
}

impl CaseLayout {
    /// Creates the layout of `case`.
    pub fn new(case: Case) -> Self {
        let blocks = (case.total / PAGE_SIZE).div_ceil(populated_in_block(case.populated));
        Self {
            case,
            span: blocks * PER_BLOCK,
        }
    }

    /// Length of the address range in pages, holes included; whole blocks.
    pub fn span(&self) -> usize {
        self.span as usize
    }

    /// Length of the address range in bytes, holes included.
    pub fn bytes(&self) -> u64 {
        self.span * PAGE_SIZE
    }

    /// Whether the page is ever populated.
    pub fn is_populated(&self, page: u64) -> bool {
        match self.case.populated {
            Populated::All => true,
            Populated::Every(k) => (page % PER_BLOCK).is_multiple_of(k),
            Populated::Half => page % PER_BLOCK < PER_BLOCK / 2,
        }
    }

    /// Returns the pages that are hot in a phase, in order.
    pub fn hot(&self, phase: u32) -> Vec<u32> {
        let mut random = self.random(u64::from(phase) + 1);
        let populated = self.span / PER_BLOCK * populated_in_block(self.case.populated);
        let wanted = ((populated as f64 * self.case.hot) as usize).max(1);
        let mut hot = Vec::with_capacity(wanted);
        match self.case.piece {
            None => {
                let start = below(&mut random, self.span);
                let pages = (start..self.span).chain(0..start);
                hot.extend(self.populated(pages).take(wanted));
            }
            Some(bytes) => {
                let len = bytes / PAGE_SIZE;
                let mut pieces: Vec<u64> = (0..self.span.div_ceil(len)).collect();
                shuffle(&mut pieces, &mut random);
                let pages = |piece: u64| piece * len..((piece + 1) * len).min(self.span);
                let pages = pieces.into_iter().flat_map(pages);
                hot.extend(self.populated(pages).take(wanted));
            }
        }
        hot.sort_unstable();
        hot
    }

    /// Returns the pages that are paged out before the first phase: the cold ones of randomly drawn runs of 64 KiB.
    pub fn paged_out(&self) -> Vec<u32> {
        if self.case.paged_out <= 0.0 {
            return Vec::new();
        }
        let hot = self.hot(0);
        let mut random = self.random(0);
        let run = (64 << 10) / PAGE_SIZE;
        let mut out = Vec::new();
        for start in (0..self.span).step_by(run as usize) {
            if unit(&mut random) < self.case.paged_out {
                let cold = self.populated(start..start + run);
                out.extend(cold.filter(|page| hot.binary_search(page).is_err()));
            }
        }
        out
    }

    /// Returns the index of the hot page that is touched at a position of the sequence.
    pub fn at(&self, position: u64, hot: usize) -> usize {
        match self.case.order {
            TouchOrder::Sweep | TouchOrder::Spread => (position % hot as u64) as usize,
            TouchOrder::Random => {
                // SplitMix64 computes any position independently of the others.
                let mut z = (position ^ self.case.seed.rotate_left(32))
                    .wrapping_add(1)
                    .wrapping_mul(0x9E37_79B9_7F4A_7C15);
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((u128::from(z ^ (z >> 31)) * hot as u128) >> 64) as usize
            }
        }
    }

    fn populated(&self, pages: impl Iterator<Item = u64>) -> impl Iterator<Item = u32> {
        pages
            .filter(|page| self.is_populated(*page))
            .map(|page| page as u32)
    }

    fn random(&self, stream: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(
            self.case.seed.wrapping_mul(0xD134_2543_DE82_EF95)
                ^ (self.case.index << 32)
                ^ (stream << 16),
        )
    }
}

fn populated_in_block(populated: Populated) -> u64 {
    match populated {
        Populated::All => PER_BLOCK,
        Populated::Every(k) => PER_BLOCK.div_ceil(k),
        Populated::Half => PER_BLOCK / 2,
    }
}

fn shuffle(items: &mut [u64], random: &mut Pcg64Mcg) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(random, i as u64 + 1) as usize);
    }
}

const _: () = assert!(BLOCK_SIZE == PER_BLOCK * PAGE_SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_pages_are_populated_distinct_and_as_many_as_the_case_says() {
        for index in 0..100 {
            let case = Case::draw(11, index).within(200 << 20);
            let layout = CaseLayout::new(case);
            let populated = (0..layout.span).filter(|p| layout.is_populated(*p));
            let populated = populated.count() as u64;
            assert!(populated * PAGE_SIZE >= case.total, "{case:?}");
            for phase in 0..2 {
                let hot = layout.hot(phase);
                let share = hot.len() as f64 / populated as f64;
                assert!((share - case.hot).abs() < 0.001, "{case:?}: {share}");
                assert!(hot.is_sorted_by(|a, b| a < b), "{case:?}");
                assert!(hot.iter().all(|p| layout.is_populated(u64::from(*p))));
            }
        }
    }

    #[test]
    fn phases_differ_and_what_is_paged_out_is_cold_at_first() {
        let mut case = Case::draw(1, 1).within(128 << 20);
        case.paged_out = 0.5;
        case.piece = Some(64 << 10);
        let layout = CaseLayout::new(case);
        assert_ne!(layout.hot(0), layout.hot(1));
        let hot = layout.hot(0);
        let out = layout.paged_out();
        assert!(!out.is_empty());
        assert!(out.iter().all(|page| hot.binary_search(page).is_err()));
    }

    #[test]
    fn random_touches_come_to_all_pages_alike() {
        let mut case = Case::draw(1, 0);
        case.order = TouchOrder::Random;
        let layout = CaseLayout::new(case);
        let mut counts = [0u32; 100];
        (0..100_000).for_each(|p| counts[layout.at(p, 100)] += 1);
        assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    }
}
