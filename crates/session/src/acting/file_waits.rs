//! How long is waited for pages of files that were dropped, and are read back.
//!
//! Pages that come back are counted where they were dropped ([`CacheView`]); those that the kernel itself had
//! reclaimed and reads back it counts (`workingset_refault_file`), as memory may have become short by what
//! schemes do otherwise: no more than it has reclaimed for that reason since the start, as others reclaim, too
//! (control groups at their limits, a service's DAMON). Each costs what this machine's disks took for a page of late: the time of all their
//! reads by what they read, as `/proc/diskstats` has it.
//!
//! Limits: reading ahead makes a program wait for less; many that read at once wait for the same time. Disks
//! that are a part of others count twice, in both. So it is at most what was waited for.

use isotherm_engine::Nanos;
use isotherm_linux::pressure::{DiskReads, FileReclaim};

use crate::monitor::CacheView;

/// Pages read within which what one costs is a mean.
const COST_OF: f64 = 256.0;

/// What there was since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FilesRead {
    /// Pages that have come back.
    pub(super) returned: u64,
    /// How long was waited for them.
    pub(super) waited: Option<Nanos>,
    /// Bytes of page cache that there are.
    pub(super) cached: u64,
}

/// The account.
#[derive(Debug, Default)]
pub(super) struct FileWaits {
    reads: Option<DiskReads>,
    /// Nanoseconds a page.
    cost: Option<f64>,
    kernel: KernelRefaults,
}

/// Refaults of what the kernel reclaimed as memory was short.
#[derive(Debug, Default)]
struct KernelRefaults {
    before: Option<FileReclaim>,
    /// Pages that it has reclaimed, and not read back.
    out: u64,
}

impl KernelRefaults {
    /// New ones.
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
    /// What has come back since the last look.
    pub(super) fn look(&mut self, now: Nanos, page_cache: &mut CacheView) -> FilesRead {
        let by_kernel = self.kernel.count(FileReclaim::now());
        let returned = page_cache.look_for_returned(now).unwrap_or(0);
        if let Some(reads) = DiskReads::now() {
            // The first time it is the mean since the system started.
            let before = self.reads.replace(reads);
            let new = reads.since(before.unwrap_or_default());
            self.cost = Some(cost(self.cost, new)).flatten();
        }
        let pages = by_kernel + returned;
        let waited = |cost: f64| Nanos((pages as f64 * cost) as u64);
        FilesRead {
            returned: pages,
            waited: self.cost.map(waited),
            cached: page_cache.bytes(),
        }
    }
}

/// What a page costs, after these reads more.
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
        let told = |reclaimed, refaulted| {
            Some(FileReclaim {
                reclaimed,
                refaulted,
            })
        };
        let mut kernel = KernelRefaults::default();
        assert_eq!(kernel.count(told(1000, 500)), 0);
        assert_eq!(
            kernel.count(told(1000, 900)),
            0,
            "before we began, or others"
        );
        assert_eq!(kernel.count(told(1100, 930)), 30);
        assert_eq!(kernel.count(told(1100, 1500)), 70);
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
