//! Addresses that a workload will access, and their frequencies, computed before it runs.
//!
//! Problem: a monitor can be scored only against real accesses, page by page. And patterns overlap (a hot set, and now
//! and then an access anywhere).
//!
//! Approach: each pattern covers spans of its region evenly; laid over each other they cut the region into ranges of
//! constant density (accesses per byte). A range is *hot* from [`HOT_SHARE`] of the phase's highest density on, *warm*
//! if it is accessed less than that, and else *cold*. The runner walks the same spans, so that its accesses are those
//! computed here.
//!
//! Limits: a sequential walk over more than it can pass in an interval is in truth a moving front, but is called evenly
//! accessed. The prefetches of a processor that set no accessed bit are unknown. The program's own text, stack and heap
//! are accessed too and stand in no range here.

use std::collections::BTreeSet;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::config::{AccessOrder, Config, Phase, Scatter, WorkloadPattern};

/// Density, relative to the phase's highest, from which memory is called hot.
pub const HOT_SHARE: f64 = 0.25;

/// A range that is accessed evenly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    #[serde(flatten)]
    pub range: AddressRange,
    /// Share of all the phase's accesses that fall here.
    pub probability: f64,
}

impl Heat {
    fn density(&self) -> f64 {
        self.probability / self.range.len() as f64
    }
}

/// Accesses of a phase to the memory of all regions, in address order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Ranges that are accessed much.
    pub hot: Vec<Heat>,
    /// Ranges that are accessed, but seldom.
    pub warm: Vec<Heat>,
    /// Ranges that are not accessed at all.
    pub cold: Vec<AddressRange>,
}

/// Offsets in a region that a pattern covers, half-open.
pub type Span = std::ops::Range<u64>;

/// Returns the spans that a pattern's accesses run over, before strides: its pieces, or the whole region.
///
/// Pieces never overlap; two may touch.
pub fn spans(pattern: &WorkloadPattern, region_bytes: u64) -> Vec<Span> {
    match pattern.scatter {
        None => std::iter::once(0..region_bytes).collect(),
        Some(scatter) => pieces(scatter, region_bytes),
    }
}

/// Draws pieces by Floyd's sampling (Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987). It takes one step
/// for each piece, however many slots there are.
fn pieces(scatter: Scatter, region_bytes: u64) -> Vec<Span> {
    let slots = region_bytes / scatter.piece;
    assert!(scatter.pieces <= slots, "the parser checks this");
    let mut random = Pcg64Mcg::seed_from_u64(scatter.seed);
    let mut chosen = BTreeSet::new();
    for slot in slots - scatter.pieces..slots {
        let candidate = below(&mut random, slot + 1);
        if !chosen.insert(candidate) {
            chosen.insert(slot);
        }
    }
    chosen
        .into_iter()
        .map(|slot| slot * scatter.piece..(slot + 1) * scatter.piece)
        .collect()
}

/// Returns a random number below `bound`; the bias of 2^-64 x `bound` is far below what can be measured.
pub(crate) fn below(random: &mut Pcg64Mcg, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// Returns a random number from 0 to 1.
pub(crate) fn unit(random: &mut Pcg64Mcg) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the pages within `spans` that a pattern touches: all, except for strides longer than a page.
fn touched_pages(pattern: &WorkloadPattern, spans: &[Span]) -> Vec<Span> {
    if pattern.order == AccessOrder::Random || pattern.stride <= PAGE_SIZE {
        return spans
            .iter()
            .map(|span| page_floor(span.start)..span.end.next_multiple_of(PAGE_SIZE))
            .collect();
    }
    let mut pages: Vec<Span> = Vec::new();
    for span in spans {
        for offset in span.clone().step_by(pattern.stride as usize) {
            let page = page_floor(offset);
            match pages.last_mut() {
                Some(last) if last.end >= page => last.end = page + PAGE_SIZE,
                _ => pages.push(page..page + PAGE_SIZE),
            }
        }
    }
    pages
}

const fn page_floor(offset: u64) -> u64 {
    offset / PAGE_SIZE * PAGE_SIZE
}

/// Lays the patterns of `phase` over the regions, which lie at `places`.
pub fn temperature(config: &Config, phase: &Phase, places: &[AddressRange]) -> Temperature {
    let total: f64 = phase.patterns.iter().map(|p| f64::from(p.weight)).sum();
    let mut heats = Vec::new();
    let mut cold = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let mut edges: Vec<(u64, usize)> = vec![(0, usize::MAX), (place.len(), usize::MAX)];
        let mut densities = Vec::new();
        for pattern in &phase.patterns {
            if pattern.region != index || pattern.weight == 0 {
                continue;
            }
            let covered = touched_pages(pattern, &spans(pattern, config.regions[index].size));
            let bytes: u64 = covered.iter().map(|span| span.end - span.start).sum();
            let number = densities.len();
            densities.push(f64::from(pattern.weight) / total / bytes as f64);
            edges.extend(
                covered
                    .iter()
                    .flat_map(|span| [(span.start, number), (span.end, number)]),
            );
        }
        edges.sort_unstable();
        sweep(*place, &edges, &densities, &mut heats, &mut cold);
    }
    let highest = heats.iter().map(Heat::density).fold(0.0, f64::max);
    let (hot, warm) = heats
        .into_iter()
        .partition(|heat| heat.density() >= highest * HOT_SHARE);
    Temperature { hot, warm, cold }
}

/// Walks the edges in order; each one switches its pattern on or off.
fn sweep(
    place: AddressRange,
    edges: &[(u64, usize)],
    densities: &[f64],
    heats: &mut Vec<Heat>,
    cold: &mut Vec<AddressRange>,
) {
    let mut on = vec![false; densities.len()];
    let mut at = 0;
    // Neighbours are joined where the density is the same to the bit, which holds between two pieces.
    let mut open: Option<(AddressRange, f64)> = None;
    let mut close = |open: Option<(AddressRange, f64)>| match open {
        Some((range, 0.0)) => cold.push(range),
        Some((range, density)) => heats.push(Heat {
            range,
            probability: density * range.len() as f64,
        }),
        None => {}
    };
    for &(offset, number) in edges {
        if let Some(range) = AddressRange::checked(place.start + at, place.start + offset) {
            let density: f64 = std::iter::zip(&on, densities)
                .filter(|(on, _)| **on)
                .map(|(_, density)| density)
                .sum();
            match &mut open {
                Some((last, same)) if same.to_bits() == density.to_bits() => last.end = range.end,
                _ => close(open.replace((range, density))),
            }
            at = offset;
        }
        if let Some(state) = on.get_mut(number) {
            *state = !*state;
        }
    }
    close(open);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lays out the first phase with the regions at 1 MiB, 2 MiB, ... and draws a character for each page
    /// of the first one: `#` hot, `+` warm, `.` cold.
    fn check(config: &str, picture: &str) {
        let config = Config::parse(config).expect("a valid configuration");
        let places: Vec<AddressRange> = std::iter::zip(1u64.., &config.regions)
            .map(|(n, region)| AddressRange::new(n << 20, (n << 20) + region.bytes()))
            .collect();
        let laid = temperature(&config, &config.phases[0], &places);
        let ranges = |heats: &[Heat]| heats.iter().map(|h| h.range).collect::<Vec<_>>();
        let heats = laid.hot.iter().chain(&laid.warm);
        let sum: f64 = heats.map(|h| h.probability).sum();
        assert!((sum - 1.0).abs() < 1e-9, "probabilities sum to {sum}");
        let draw = |page| {
            let within = |all: &[AddressRange]| all.iter().filter(|r| r.contains(page)).count();
            let (hot, warm) = (within(&ranges(&laid.hot)), within(&ranges(&laid.warm)));
            match (hot, warm, within(&laid.cold)) {
                (1, 0, 0) => '#',
                (0, 1, 0) => '+',
                (0, 0, 1) => '.',
                other => panic!("page {page:#x} stands in {other:?}"),
            }
        };
        let pages = (places[0].start..places[0].end).step_by(PAGE_SIZE as usize);
        let drawn: String = pages.map(draw).collect();
        assert_eq!(drawn, picture);
    }

    #[test]
    fn every_page_is_hot_warm_or_cold() {
        check("a, 16K\n\np\n10\na, 0, 64, 1\n", "####");
        check("a, 16K\nb, 4K\n\np\n10\nb, 0, 64, 1\n", "....");
        // The last page of a region that is no whole number of pages is touched as well.
        check("a, 9000\n\np\n10\na, 1, 64, 1\n", "###");
        // A seldom used background.
        let background = "a, 16K\nb, 4K\n\np\n10\na, 0, 64, 1\nb, 0, 64, 99\n";
        check(background, "++++");
    }

    #[test]
    fn long_strides_leave_pages_out() {
        check("a, 32K\n\np\n10\na, 0, 8192, 1\n", "#.#.#.#.");
        check("a, 32K\n\np\n10\na, 0, 6K, 1\n", "##.##.##");
        check("a, 32K\n\np\n10\na, 1, 8192, 1\n", "########");
    }

    #[test]
    fn patterns_without_weight_do_nothing() {
        check("a, 8K\nb, 4K\n\np\n10\na, 0, 64, 0\nb, 0, 64, 1\n", "..");
    }

    #[test]
    fn pieces_are_placed_by_seed() {
        let one = "a, 48K\n\np\n10\na, 1, 64, 90, rw, hot=25% piece=4K seed=1\na, 1, 64, 5\n";
        check(one, "+#+++#++#+++");
        check(&one.replace("seed=1", "seed=2"), "++##++#+++++");
    }

    #[test]
    fn pieces_lie_apart_and_within_the_region() {
        for seed in 0..200 {
            let scatter = Scatter {
                pieces: 7,
                piece: 8192,
                seed,
            };
            let spans = pieces(scatter, 100_000);
            assert_eq!(spans.len(), 7);
            assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(spans[6].end <= 100_000);
        }
    }
}
