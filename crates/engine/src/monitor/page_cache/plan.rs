//! Selects the marks to clear first if not all of them can be cleared.

use super::CachedFolio;
use crate::address::Nanos;

/// Cost of opening a file and mapping a part of it.
const FILE: f64 = 25_000.0;
/// Cost of each folio: it gets into our page tables, and is read again.
const FOLIO: f64 = 2_500.0;
/// Cost of each of its pages, up to the number that the kernel maps together.
const PAGE: f64 = 60.0;
/// Pages that the kernel maps together.
const AROUND: u64 = 16;

/// The cost of clearing: estimates in nanoseconds, corrected by the measured cost.
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
    /// Takes in that clears estimated at `estimate` took `spent`.
    pub fn learn(&mut self, estimate: Nanos, spent: Nanos) {
        let ratio = spent.0 as f64 / (estimate.0 as f64).max(1.0);
        self.scale = (self.scale * (0.75 + 0.25 * ratio.clamp(0.1, 10.0))).clamp(0.05, 50.0);
    }

    /// Returns the estimated cost of clearing these folios; those of a file must follow each other.
    pub fn of(self, folios: &[CachedFolio]) -> Nanos {
        let files = folios.chunk_by(|a, b| a.file == b.file);
        Nanos(files.map(|folios| self.of_file(folios)).sum::<f64>() as u64)
    }

    fn of_file(self, folios: &[CachedFolio]) -> f64 {
        let pages: u64 = { folios.iter() }.map(|f| f.nr_pages().min(AROUND)).sum();
        self.scale * (FILE + FOLIO * folios.len() as f64 + PAGE * pages as f64)
    }
}

/// Orders folios whose marks are set file by file, and by their place in the file. Files in which a clear covers the
/// most memory for its cost come first.
pub fn order_clears(mut wanted: Vec<CachedFolio>, cost: ClearCost) -> Vec<CachedFolio> {
    wanted.sort_unstable_by_key(|folio| (folio.file, folio.index));
    let files = wanted.chunk_by(|a, b| a.file == b.file);
    let mut files: Vec<(f64, &[CachedFolio])> = files
        .map(|folios| {
            let pages: u64 = folios.iter().map(CachedFolio::nr_pages).sum();
            (cost.of_file(folios) / pages as f64, folios)
        })
        .collect();
    files.sort_by(|a, b| a.0.total_cmp(&b.0));
    let files: Vec<&[CachedFolio]> = files.into_iter().map(|(_, folios)| folios).collect();
    files.concat()
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

    #[test]
    fn large_folios_come_before_many_small_files() {
        let mut wanted: Vec<_> = (0..100).map(|file| folio(100 + file, 0, 0)).collect();
        wanted.extend([folio(7, 512, 9), folio(7, 0, 9)]);
        let ordered = order_clears(wanted, ClearCost::default());
        let places: Vec<_> = ordered.iter().map(|f| (f.file, f.index)).collect();
        assert_eq!(places[..2], [(7, 0), (7, 512)]);
        assert_eq!(places.len(), 102);
    }

    #[test]
    fn estimates_follow_what_it_took() {
        let mut cost = ClearCost::default();
        for _ in 0..20 {
            let estimate = cost.of(&[folio(1, 0, 0)]);
            cost.learn(estimate, Nanos(100_000));
        }
        let estimate = cost.of(&[folio(1, 0, 0)]).0;
        assert!((80_000..120_000).contains(&estimate), "{estimate}");
        let twice = cost.of(&[folio(1, 0, 0), folio(2, 0, 0)]).0;
        assert!(twice.abs_diff(2 * estimate) <= 1, "{twice}");
    }
}
