//! Which marks to clear first, where not all of them can be.

use super::CachedFolio;
use crate::address::Nanos;

/// Opening a file and mapping a part of it.
const FILE: f64 = 25_000.0;
/// Each folio: it gets into our page tables, and is looked at again.
const FOLIO: f64 = 400.0;
/// Each of its pages, so far as the kernel maps them together.
const PAGE: f64 = 60.0;
/// Pages that the kernel maps together.
const AROUND: u64 = 16;

/// What clearing takes: estimates, corrected by what it took.
#[derive(Clone, Copy, Debug)]
pub struct ClearCost {
    scale: f64,
}

impl Default for ClearCost {
    fn default() -> Self {
        Self { scale: 1.0 }
    }
}

impl ClearCost {
    /// What was estimated at `estimate` took `spent`.
    pub fn learn(&mut self, estimate: Nanos, spent: Nanos) {
        let ratio = spent.0 as f64 / (estimate.0 as f64).max(1.0);
        self.scale = (self.scale * (0.75 + 0.25 * ratio.clamp(0.1, 10.0))).clamp(0.05, 50.0);
    }

    fn of(self, folios: &[CachedFolio]) -> f64 {
        let pages: u64 = { folios.iter() }.map(|f| f.nr_pages().min(AROUND)).sum();
        self.scale * (FILE + FOLIO * folios.len() as f64 + PAGE * pages as f64)
    }
}

/// Of folios whose marks are set, those to clear within `budget`, file by file and in the order of their places
/// there: those files first of which a clear tells the most memory for its cost. And what it is estimated to
/// take.
pub fn plan_clears(
    mut wanted: Vec<CachedFolio>,
    cost: ClearCost,
    budget: Nanos,
) -> (Vec<CachedFolio>, Nanos) {
    wanted.sort_unstable_by_key(|folio| (folio.file, folio.index));
    let files = wanted.chunk_by(|a, b| a.file == b.file);
    let mut files: Vec<(f64, f64, &[CachedFolio])> = files
        .map(|folios| {
            let pages: u64 = folios.iter().map(CachedFolio::nr_pages).sum();
            let cost = cost.of(folios);
            (cost / pages as f64, cost, folios)
        })
        .collect();
    files.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut left = budget.0 as f64;
    let mut planned = Vec::new();
    for (_, cost, folios) in files {
        // A file is cleared in part rather than never.
        let nr = if cost <= left {
            folios.len()
        } else {
            (folios.len() as f64 * left / cost) as usize
        };
        if nr == 0 {
            break;
        }
        planned.extend_from_slice(&folios[..nr]);
        left -= cost.min(left);
    }
    (planned, Nanos((budget.0 as f64 - left) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::FolioState;

    fn folio(file: u64, index: u64, order: u8) -> CachedFolio {
        CachedFolio {
            frame: 0,
            order,
            state: FolioState(FolioState::REFERENCED),
            file,
            index,
            group: 0,
        }
    }

    fn planned(wanted: &[CachedFolio], budget_us: u64) -> Vec<(u64, u64)> {
        let (planned, estimate) = plan_clears(
            wanted.to_vec(),
            ClearCost::default(),
            Nanos(budget_us * 1000),
        );
        assert!(estimate.0 <= budget_us * 1000, "{estimate:?}");
        planned.iter().map(|f| (f.file, f.index)).collect()
    }

    #[test]
    fn large_folios_come_before_many_small_files_and_the_budget_holds() {
        let mut wanted: Vec<_> = (0..100).map(|file| folio(100 + file, 0, 0)).collect();
        wanted.extend([folio(7, 512, 9), folio(7, 0, 9)]);
        assert_eq!(planned(&wanted, 30), [(7, 0), (7, 512)]);
        assert_eq!(planned(&wanted, 10_000).len(), 102);
        assert_eq!(planned(&wanted, 0), []);
        let single: Vec<_> = (0..1000).map(|index| folio(7, index, 0)).collect();
        let part = planned(&single, 200).len();
        assert!((100..900).contains(&part), "{part}");
    }

    #[test]
    fn estimates_follow_what_it_took() {
        let mut cost = ClearCost::default();
        for _ in 0..20 {
            let estimate = cost.of(&[folio(1, 0, 0)]);
            cost.learn(Nanos(estimate as u64), Nanos(100_000));
        }
        let estimate = cost.of(&[folio(1, 0, 0)]);
        assert!((80_000.0..120_000.0).contains(&estimate), "{estimate}");
    }
}
