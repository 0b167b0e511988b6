//! Agreement of a monitor's results in one window with the exact scans before and after it.
//!
//! The touches of a real program in an interval can only be observed, and two observers at once would clear each
//! other's bits. So windows take turns, and only stable pages are compared. Hot pages are touched in at least three of
//! four intervals of both scans, cold pages in at most one of four of both. Pages between count neither way. A page
//! counts as reported touched if it is so in at least half of the monitor's snapshots.

use std::collections::BTreeMap;

use isotherm_engine::statistics::median;
use isotherm_engine::{PAGE_SIZE, RegionSnapshot, Snapshot};
use isotherm_workload::score::{AccuracyScore, share};
use serde::Serialize;

const HOT: f32 = 0.75;
const COLD: f32 = 0.25;
const SAID: f32 = 0.5;

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    touched: f32,
    unknown: f32,
}

type Pages = BTreeMap<u64, Page>;

/// A window of exact scans.
#[derive(Debug)]
pub(super) struct Exact {
    /// The pages that were present.
    pages: Pages,
    working_sets: Vec<f64>,
}

impl Exact {
    pub(super) fn of(snapshots: &[Snapshot]) -> Self {
        let mut pages = Pages::new();
        for region in snapshots.iter().flat_map(|snapshot| &snapshot.regions) {
            for address in (region.range.start..region.range.end).step_by(PAGE_SIZE as usize) {
                let page = pages.entry(address).or_default();
                match region.nr_accesses {
                    None => page.unknown += 1.0,
                    Some(n) if n > 0.0 => page.touched += 1.0,
                    Some(_) => {}
                }
            }
        }
        Self {
            pages,
            working_sets: snapshots.iter().map(working_set).collect(),
        }
    }

    /// Returns the share of the snapshots in which a page was touched; `None` if that is not known.
    fn touched_share(&self, address: u64) -> Option<f32> {
        let page = self.pages.get(&address).copied().unwrap_or_default();
        let all = self.working_sets.len().max(1) as f32;
        (page.unknown < all / 2.0).then(|| page.touched / all)
    }
}

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
pub(super) fn agree<'a>(
    before: &Exact,
    said: impl IntoIterator<Item = &'a Snapshot>,
    after: &Exact,
) -> Agreement {
    let present = before.pages.keys().chain(after.pages.keys());
    let mut claims: Pages = present.map(|page| (*page, Page::default())).collect();
    let (mut working_sets, mut beside) = (Vec::new(), 0.0);
    for snapshot in said {
        working_sets.push(working_set(snapshot));
        for region in &snapshot.regions {
            beside += spread(&mut claims, region);
        }
    }
    let count = working_sets.len().max(1) as f32;
    let mut score = AccuracyScore::default();
    let (mut undecided, mut unknown) = (0.0, 0.0);
    for (address, page) in &claims {
        if page.unknown > count / 2.0 {
            unknown += 1.0;
            continue;
        }
        let claimed = f64::from(u8::from(page.touched / count >= SAID));
        match (
            before.touched_share(*address),
            after.touched_share(*address),
        ) {
            (Some(a), Some(b)) if a.min(b) >= HOT => {
                score.truth += 1.0;
                score.claim(claimed, 0.0);
            }
            (Some(a), Some(b)) if a.max(b) <= COLD => score.claim(0.0, claimed),
            _ => undecided += 1.0,
        }
    }
    // What is said of holes is wrong.
    score.claim(0.0, beside / f64::from(count) / PAGE_SIZE as f64);
    let exact = before.working_sets.iter().chain(&after.working_sets);
    let exact_bytes = median(exact.copied().collect());
    let said_bytes = median(working_sets);
    let present = claims.len() as f64;
    Agreement {
        precision: score.precision(),
        recall: score.recall(),
        working_set: exact_bytes
            .zip(said_bytes)
            .and_then(|(exact, said)| (exact > 0.0).then(|| said / exact)),
        exact_bytes,
        said_bytes,
        undecided: share(undecided, present),
        unknown: share(unknown, present),
    }
}

/// Spreads a region's counts over the pages that are present; returns the touched bytes without a page.
fn spread(claims: &mut Pages, region: &RegionSnapshot) -> f64 {
    let resident = region.resident().max(1) as f64;
    let touched = region.touched() as f64;
    let chance = (touched / resident).min(1.0) as f32;
    let unknown = (region.unknown() as f64 / resident).min(1.0) as f32;
    if chance <= 0.0 && unknown <= 0.0 {
        return 0.0;
    }
    let mut found = 0.0;
    for (_, page) in claims.range_mut(region.range.start..region.range.end) {
        page.touched += chance;
        page.unknown += unknown;
        found += f64::from(chance) * PAGE_SIZE as f64;
    }
    (touched - found).max(0.0)
}

fn working_set(snapshot: &Snapshot) -> f64 {
    snapshot.totals().touched as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::{AddressRange, RegionMemory};

    const BASE: u64 = 0x7f00_0000_0000;

    fn region(first: u64, last: u64, nr_accesses: Option<f32>) -> RegionSnapshot {
        let range = AddressRange::new(BASE + first * PAGE_SIZE, BASE + last * PAGE_SIZE);
        RegionSnapshot::new(range, nr_accesses)
    }

    fn window(regions: &[RegionSnapshot]) -> Vec<Snapshot> {
        let one = Snapshot {
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
        let both = [(0, 100), (1000, 1100)].map(|(a, b)| region(a, b, Some(1.0)));
        check(&both, Some(0.5), Some(1.0));
    }

    #[test]
    fn a_region_that_says_what_is_touched_of_it_counts_in_proportion() {
        let memory = RegionMemory {
            resident: 400 * PAGE_SIZE,
            touched: 100 * PAGE_SIZE,
            ..RegionMemory::default()
        };
        let mixed = region(0, 400, Some(1.0)).holding(memory);
        let agreement = agree(&exact(), &window(&[mixed]), &exact());
        let recall = agreement.recall;
        assert_eq!(recall, Some(0.0), "no page is touched more than not");
        let working_set = agreement.working_set.expect("known");
        assert!((working_set - 1.0).abs() < 1e-6);
    }
}
