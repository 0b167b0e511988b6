//! Time that is waited for pages of files that were dropped and are read back.
//!
//! Pages that are read back are counted where they were dropped ([`CacheView`]). The kernel counts pages that it had
//! reclaimed itself and reads back (`workingset_refault_file`): the schemes' other work may have made memory short.
//! They count up to the pages that the kernel has reclaimed for that reason since the start. This limit leaves out the
//! reclaim of others (control groups at their limits, a service's DAMON). The cost of each is the recent cost of a page
//! on this machine's disks: the time of all their reads, divided by the pages read, from `/proc/diskstats`.
//!
//! Limits: with read-ahead, a program waits for less; programs that read at once wait for the same time. Disks that are
//! a part of others count twice, in both. The result is therefore an upper bound.

use isotherm_engine::Nanos;
use isotherm_linux::pressure::{DiskReads, FileReclaim};

use crate::monitor::CacheView;

/// Number of pages read over which the cost of one is averaged.
const COST_OF: f64 = 256.0;

/// Pages of files that were read back since the last scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FilesRead {
    pub(super) returned: u64,
    pub(super) waited: Option<Nanos>,
    /// Bytes in the page cache.
    pub(super) cached: u64,
}

#[derive(Debug, Default)]
pub(super) struct FileWaits {
    reads: Option<DiskReads>,
    /// Cost of a page, in nanoseconds.
    cost: Option<f64>,
    kernel: KernelRefaults,
}

/// Refaults of pages that the kernel reclaimed because memory was short.
#[derive(Debug, Default)]
struct KernelRefaults {
    before: Option<FileReclaim>,
    /// Pages that it has reclaimed, and not read back.
    out: u64,
}

impl KernelRefaults {
    fn count(&mut self, now: Option<FileReclaim>) -> u64 {
        let before = std::mem::replace(&mut self.before, now);
        let Some((now, before)) = now.zip(before) else {
            return 0;
        };
        self.out += now.reclaimed.saturating_sub(before.reclaimed);
        let refaulted = now.refaulted.saturating_sub(before.refaulted).min(self.out);
        self.out -= refaulted;
        refaulted
    }
}

impl FileWaits {
    pub(super) fn look(&mut self, now: Nanos, page_cache: &mut CacheView) -> FilesRead {
        let by_kernel = self.kernel.count(FileReclaim::now());
        let returned = page_cache.look_for_returned(now).unwrap_or(0);
        if let Some(reads) = DiskReads::now() {
            // The first cost is the mean since the system started.
            let before = self.reads.replace(reads);
            let new = reads.since(before.unwrap_or_default());
            self.cost = Some(cost(self.cost, new)).flatten();
        }
        let pages = by_kernel + returned;
        let waited = |cost: f64| Nanos((pages as f64 * cost) as u64);
        FilesRead {
            returned: pages,
            waited: self.cost.map(waited),
            cached: page_cache.bytes,
        }
    }
}

fn cost(before: Option<f64>, new: DiskReads) -> Option<f64> {
    let pages = new.pages as f64;
    if new.pages == 0 {
        return before;
    }
    let mean = new.time.0 as f64 / pages;
    let Some(before) = before else {
        return Some(mean);
    };
    let weight = (pages / COST_OF).min(1.0);
    Some(before + (mean - before) * weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_reclaim_is_not_counted() {
        let reported = |reclaimed, refaulted| {
            Some(FileReclaim {
                reclaimed,
                refaulted,
            })
        };
        let mut kernel = KernelRefaults::default();
        assert_eq!(kernel.count(reported(1000, 500)), 0);
        let others = kernel.count(reported(1000, 900));
        assert_eq!(others, 0, "before we began, or others");
        assert_eq!(kernel.count(reported(1100, 930)), 30);
        assert_eq!(kernel.count(reported(1100, 1500)), 70);
        assert_eq!(kernel.count(None), 0);
    }

    #[test]
    fn what_a_page_costs_follows_what_is_read() {
        let reads = |pages, us| DiskReads {
            pages,
            time: Nanos::from_micros(us),
        };
        let check = |before: Option<f64>, new, wanted: Option<f64>| {
            assert_eq!(cost(before, new), wanted, "{before:?} {new:?}");
        };
        check(None, reads(0, 0), None);
        check(None, reads(100, 1000), Some(10_000.0));
        check(Some(10_000.0), reads(0, 0), Some(10_000.0));
        check(Some(10_000.0), reads(1024, 20_480), Some(20_000.0));
        check(Some(10_000.0), reads(128, 2_560), Some(15_000.0));
    }
}
