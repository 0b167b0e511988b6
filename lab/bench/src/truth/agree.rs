//! Agreement of a monitor's results in one window with the exact scans before and after it.
//!
//! The touches of a real program in an interval can only be observed, and two observers at once would clear each
//! other's bits. So windows take turns, and only stable pages are compared. Hot pages are touched in at least three of
//! four intervals of both scans, cold pages in at most one of four of both. Pages between count neither way. A page
//! counts as reported touched if it is so in at least half of the monitor's snapshots.

use std::collections::BTreeMap;

use isotherm_engine::statistics::median;
use isotherm_engine::{
    AddressRange, BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK, RegionSnapshot, Snapshot,
};
use serde::Serialize;

const HOT: f32 = 0.75;
const COLD: f32 = 0.25;
const SAID: f32 = 0.5;

type Block = Box<[Page; PAGES_PER_BLOCK]>;

/// Counts of a page, summed over the snapshots of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Snapshots in which it was present.
    present: f32,
    touched: f32,
    unknown: f32,
}

/// A window of exact scans.
#[derive(Debug, Default)]
pub(super) struct Exact {
    blocks: BTreeMap<u64, Block>,
    snapshots: usize,
    pub(super) working_sets: Vec<f64>,
}

impl Exact {
    pub(super) fn of(snapshots: &[Snapshot]) -> Self {
        let mut exact = Self::default();
        for snapshot in snapshots {
            exact.snapshots += 1;
            exact.working_sets.push(working_set(snapshot));
            for region in &snapshot.regions {
                for address in (region.range.start..region.range.end).step_by(PAGE_SIZE as usize) {
                    let block = exact.blocks.entry(address / BLOCK_SIZE * BLOCK_SIZE);
                    let block =
                        block.or_insert_with(|| Box::new([Page::default(); PAGES_PER_BLOCK]));
                    let page = &mut block[(address % BLOCK_SIZE / PAGE_SIZE) as usize];
                    page.present += 1.0;
                    match region.nr_accesses {
                        None => page.unknown += 1.0,
                        Some(n) if n > 0.0 => page.touched += 1.0,
                        Some(_) => {}
                    }
                }
            }
        }
        exact
    }

    fn page(&self, block: u64, index: usize) -> Page {
        self.blocks
            .get(&block)
            .map_or(Page::default(), |pages| pages[index])
    }

    /// Returns the share of the snapshots in which the page was touched; `None` if that is not known.
    fn share(&self, page: Page) -> Option<f32> {
        let all = self.snapshots.max(1) as f32;
        (page.unknown < all / 2.0).then(|| page.touched / all)
    }
}

/// The agreement of a monitor with exact scans.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Agreement {
    pub(super) precision: Option<f64>,
    pub(super) recall: Option<f64>,
    /// The monitor's working set in an interval as a ratio of the exact one, by their medians.
    pub(super) working_set: Option<f64>,
    pub(super) exact_bytes: Option<f64>,
    pub(super) said_bytes: Option<f64>,
    /// Share of the present pages that are neither hot nor cold, or not known.
    pub(super) undecided: Option<f64>,
    /// Share of the present pages that the monitor does not know.
    pub(super) unknown: Option<f64>,
}

/// Compares the snapshots of a monitor with the scans before and after them.
pub(super) fn agree(before: &Exact, said: &[Snapshot], after: &Exact) -> Agreement {
    let mut claims: BTreeMap<u64, Block> = before
        .blocks
        .keys()
        .chain(after.blocks.keys())
        .map(|block| (*block, Box::new([Page::default(); PAGES_PER_BLOCK])))
        .collect();
    for (block, pages) in &mut claims {
        for (index, page) in pages.iter_mut().enumerate() {
            let there = before.page(*block, index).present + after.page(*block, index).present;
            page.present = there;
        }
    }
    let mut beside = 0.0;
    for snapshot in said {
        for region in &snapshot.regions {
            beside += spread(&mut claims, region);
        }
    }
    let count = said.len().max(1) as f32;
    let holes = beside / f64::from(count) / PAGE_SIZE as f64;
    let (mut hot, mut hit, mut wrong, mut undecided, mut unknown, mut there) =
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for (block, pages) in &claims {
        for (index, page) in pages.iter().enumerate().filter(|(_, p)| p.present > 0.0) {
            there += 1.0;
            let shares = (
                before.share(before.page(*block, index)),
                after.share(after.page(*block, index)),
            );
            if page.unknown > count / 2.0 {
                unknown += 1.0;
                continue;
            }
            let is_said = page.touched / count >= SAID;
            match shares {
                (Some(a), Some(b)) if a.min(b) >= HOT => {
                    hot += 1.0;
                    hit += f64::from(u8::from(is_said));
                }
                (Some(a), Some(b)) if a.max(b) <= COLD => wrong += f64::from(u8::from(is_said)),
                _ => undecided += 1.0,
            }
        }
    }
    let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let exact = before.working_sets.iter().chain(&after.working_sets);
    let exact_bytes = median(exact.copied().collect());
    let said_bytes = median(said.iter().map(working_set).collect());
    Agreement {
        precision: ratio(hit, hit + wrong + holes),
        recall: ratio(hit, hot),
        working_set: exact_bytes.zip(said_bytes).and_then(|(e, s)| ratio(s, e)),
        exact_bytes,
        said_bytes,
        undecided: ratio(undecided, there),
        unknown: ratio(unknown, there),
    }
}

/// Spreads a region's counts over the pages that are present; returns the touched bytes without a page.
fn spread(claims: &mut BTreeMap<u64, Block>, region: &RegionSnapshot) -> f64 {
    let resident = region.resident().max(1) as f64;
    let touched = region.touched() as f64;
    let (chance, unknown) = (
        (touched / resident).min(1.0) as f32,
        (region.unknown() as f64 / resident).min(1.0) as f32,
    );
    if chance <= 0.0 && unknown <= 0.0 {
        return 0.0;
    }
    let mut found = 0.0;
    let range = region.range;
    let first = range.start / BLOCK_SIZE * BLOCK_SIZE;
    for (block, pages) in claims.range_mut(first..range.end) {
        let whole = AddressRange::new(*block, block + BLOCK_SIZE);
        let Some(part) = whole.intersection(range) else {
            continue;
        };
        let index = |address: u64| ((address - block) / PAGE_SIZE) as usize;
        for page in &mut pages[index(part.start)..index(part.end)] {
            if page.present > 0.0 {
                page.touched += chance;
                page.unknown += unknown;
                found += f64::from(chance) * PAGE_SIZE as f64;
            }
        }
    }
    (touched - found).max(0.0)
}

fn working_set(snapshot: &Snapshot) -> f64 {
    snapshot.totals().touched as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::{Nanos, RegionMemory, TargetId};

    const BASE: u64 = 0x7f00_0000_0000;

    fn region(first: u64, last: u64, nr_accesses: Option<f32>) -> RegionSnapshot {
        RegionSnapshot {
            range: AddressRange::new(BASE + first * PAGE_SIZE, BASE + last * PAGE_SIZE),
            nr_accesses,
            age: 0,
            age_ns: Nanos(0),
            memory: None,
        }
    }

    fn window(regions: &[RegionSnapshot]) -> Vec<Snapshot> {
        let one = Snapshot {
            target: TargetId(0),
            nr_samples: 1,
            regions: regions.to_vec(),
            ..Snapshot::default()
        };
        vec![one; 4]
    }

    fn exact() -> Exact {
        Exact::of(&window(&[
            region(0, 100, Some(1.0)),
            region(100, 400, Some(0.0)),
        ]))
    }

    fn check(said: &[RegionSnapshot], precision: Option<f64>, recall: Option<f64>) {
        let agreement = agree(&exact(), &window(said), &exact());
        assert_eq!(agreement.precision, precision, "{said:?}");
        assert_eq!(agreement.recall, recall, "{said:?}");
    }

    #[test]
    fn a_monitor_is_held_against_the_scans_around_it() {
        check(&[region(0, 100, Some(1.0))], Some(1.0), Some(1.0));
        check(&[region(0, 50, Some(1.0))], Some(1.0), Some(0.5));
        check(&[region(0, 200, Some(1.0))], Some(0.5), Some(1.0));
        check(&[region(0, 400, Some(0.0))], None, Some(0.0));
    }

    #[test]
    fn holes_that_are_said_to_be_touched_are_wrong() {
        check(
            &[region(0, 100, Some(1.0)), region(1000, 1100, Some(1.0))],
            Some(0.5),
            Some(1.0),
        );
    }

    #[test]
    fn a_region_that_says_what_is_touched_of_it_counts_in_proportion() {
        let memory = RegionMemory {
            resident: 400 * PAGE_SIZE,
            touched: 100 * PAGE_SIZE,
            ..RegionMemory::default()
        };
        let mixed = RegionSnapshot {
            memory: Some(memory),
            ..region(0, 400, Some(1.0))
        };
        let agreement = agree(&exact(), &window(&[mixed]), &exact());
        assert_eq!(
            agreement.recall,
            Some(0.0),
            "no page is touched more than not"
        );
        assert!(
            agreement
                .working_set
                .is_some_and(|r| (r - 1.0).abs() < 1e-6)
        );
    }
}
