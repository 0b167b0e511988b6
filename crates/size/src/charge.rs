//! The charge of a control group, beside the memory that page scans see.
//!
//! A mapped page is anonymous, or it belongs to a file or to shared memory; the kernel counts both (`anon`,
//! `file_mapped`). If scans see less than that, processes ended before they were scanned. If scans see more, other groups
//! are charged for the rest: mostly libraries that another group has read first. A limit takes no such memory away.
//!
//! Limits: version 1 does not say how much kernel memory can be freed. Likely it is what belongs to unmapped page cache.

use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{GroupCharge, Nanos, PAGE_SIZE};
use isotherm_record::item::UsageSample;

use crate::distances::{Distances, Resident};
use crate::report::{RefaultCosts, SizeEstimate, SizedMemory};

/// Least memory unseen by scans that counts: charges are counted in batches.
pub(crate) const UNSEEN_MIN: u64 = 1 << 20;

/// Kernel memory of page cache, as a share of it: nodes of the tree of its pages, and on ext4 a buffer head of 104 bytes
/// for each.
const KERNEL_OF_CACHE: f64 = 0.03;

/// Time to reclaim a page of page cache, likely and at most: clean pages take 0.1 to 0.2 us, dirty ones up to 1.4
/// (`experiments/reclaim.py`).
const RECLAIM_NS: [f64; 2] = [200.0, 1500.0];

/// Time after which the kernel has written what was dirty before: `dirty_expire_centisecs` (30 s by default), a round
/// of its flusher (5 s), and one of our scans (up to 10 s).
const WRITTEN_BACK: Nanos = Nanos(45_000_000_000);

/// A charge, and what scans saw when it was read.
pub(crate) struct Charged<'a> {
    pub(crate) charge: &'a GroupCharge,
    pub(crate) time: Nanos,
    pub(crate) mapped: Resident,
    /// Time from which on scans cover all memory, once that is known.
    pub(crate) begins: Option<Nanos>,
    /// Whether all processes of the group are reported, with all of their memory.
    pub(crate) is_whole: bool,
}

/// Charges over a record. Bytes are the greatest, unless it says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges {
    /// Whether scans covered all memory at the last sample.
    has_begun: bool,
    /// Time of the last sample.
    at: Option<Nanos>,
    first: GroupCharge,
    last: GroupCharge,
    sum: u64,
    nr: u64,
    pub(crate) total: Option<u64>,
    pub(crate) kernel: Option<u64>,
    pub(crate) kernel_reclaimable: Option<u64>,
    pub(crate) unmapped: Option<u64>,
    pub(crate) swap_backed: Option<u64>,
    /// Memory of the group beyond what scans saw: of processes, and with shared memory that no process maps.
    pub(crate) unseen: Option<[u64; 2]>,
    /// Least mapped memory that other groups are charged for.
    pub(crate) foreign: Option<u64>,
    /// Swap of the machine.
    pub(crate) swap: Option<u64>,
    /// Growth of page cache, summed up: at least this much came in.
    streamed: u64,
    /// Unmapped page cache at the last scan of it.
    cached: Option<CachedBytes>,
    dirty: Dirty,
}

/// Dirty page cache over the scans of it.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    first: Option<Nanos>,
    least: u64,
    /// Sum over the scans after [`WRITTEN_BACK`], and their number.
    later: [u64; 2],
}

impl Dirty {
    fn scan(&mut self, time: Nanos, bytes: u64) {
        let is_first = self.first.is_none();
        let first = *self.first.get_or_insert(time);
        self.least = if is_first {
            bytes
        } else {
            self.least.min(bytes)
        };
        if time.since(first) >= WRITTEN_BACK {
            self.later = [self.later[0] + bytes, self.later[1] + 1];
        }
    }

    /// Returns the dirty bytes without those of writes before the watch: the mean of later scans, or the least.
    fn kept(self) -> u64 {
        let [sum, nr] = self.later;
        sum.checked_div(nr).unwrap_or(self.least)
    }
}

impl Charges {
    /// Takes in facts of the machine.
    pub(crate) fn machine(&mut self, usage: &UsageSample) {
        self.swap = usage.system_swap.or(self.swap);
        if let Some(cached) = usage.cached {
            self.cached = Some(cached);
            self.dirty.scan(usage.time, cached.dirty);
        }
    }

    pub(crate) fn take(&mut self, now: &Charged<'_>, distances: &mut Distances) {
        let charge = now.charge;
        let before = self.at.replace(now.time);
        if before.is_none() {
            self.first = *charge;
        } else if let Some((now, before)) = charge.page_cache.zip(self.last.page_cache) {
            self.streamed += now.saturating_sub(before);
        }
        self.last = *charge;
        self.sum += charge.total.unwrap_or(0);
        self.nr += 1;
        self.total = self.total.max(charge.total);
        if charge.kernel > self.kernel {
            self.kernel_reclaimable = charge.kernel_reclaimable;
        }
        self.kernel = self.kernel.max(charge.kernel);
        let has_begun = now.begins.is_some_and(|begins| now.time >= begins);
        let seen = now.mapped.pages * PAGE_SIZE;
        let charged = charge.anonymous.zip(charge.mapped);
        let foreign = charged.map(|(anonymous, mapped)| seen.saturating_sub(anonymous + mapped));
        let own_files = (now.mapped.file_pages * PAGE_SIZE).saturating_sub(foreign.unwrap_or(0));
        let unmapped = charge
            .page_cache
            .map(|files| files.saturating_sub(own_files));
        // Before, what scans have not covered yet counts as not mapped.
        let before_it_began = !std::mem::replace(&mut self.has_begun, has_begun);
        self.unmapped = if before_it_began {
            unmapped
        } else {
            self.unmapped.max(unmapped)
        };
        let swap_backed = charge
            .anonymous
            .map(|bytes| bytes + charge.shared.unwrap_or(0));
        self.swap_backed = self.swap_backed.max(swap_backed);
        if let Some(before) = before.filter(|_| has_begun && now.is_whole) {
            self.foreign = foreign.map(|bytes| bytes.min(self.foreign.unwrap_or(bytes)));
            self.see_unseen(now, before, distances);
        }
    }

    /// Takes in the anonymous and shared memory that scans did not see.
    fn see_unseen(&mut self, now: &Charged<'_>, before: Nanos, distances: &mut Distances) {
        let Some(anonymous) = now.charge.anonymous else {
            return;
        };
        let shared = now.charge.shared.unwrap_or(0);
        let seen = now.mapped.pages * PAGE_SIZE;
        let seen_swap_backed = (now.mapped.pages - now.mapped.file_pages) * PAGE_SIZE;
        // Some pages of private mappings of files are anonymous.
        let mapped = anonymous + now.charge.mapped.unwrap_or(0);
        let own = seen_swap_backed.saturating_sub(shared);
        let unseen = mapped
            .saturating_sub(seen)
            .min(anonymous.saturating_sub(own));
        if unseen >= UNSEEN_MIN {
            distances.unseen(unseen / PAGE_SIZE, before, now.time);
        }
        // Shared memory that no process maps any more may still be read and written as files.
        let most = (anonymous + shared).saturating_sub(seen_swap_backed);
        let [peak, peak_most] = self.unseen.unwrap_or_default();
        self.unseen = Some([peak.max(unseen), peak_most.max(most)]);
    }

    /// Returns the mean of all samples, in bytes.
    pub(crate) fn mean(&self) -> u64 {
        self.sum / self.nr.max(1)
    }

    /// Returns the growth that no sample has shown, only the kernel's greatest value.
    pub(crate) fn hidden_burst(&self) -> u64 {
        let has_risen = self.first.peak.is_some() && self.last.peak > self.first.peak;
        let peak = self.last.peak.filter(|_| has_risen);
        peak.unwrap_or(0).saturating_sub(self.total.unwrap_or(0))
    }

    /// Returns the likely and the greatest time that the kernel would take to reclaim what came in, at a limit below it.
    pub(crate) fn reclaim_ns(&self) -> [f64; 2] {
        RECLAIM_NS.map(|ns| ns * (self.streamed / PAGE_SIZE) as f64)
    }

    /// Returns the time that the group has spent to read back what was reclaimed, as the kernel counts it.
    pub(crate) fn lost_ns(&self, costs: &RefaultCosts) -> Option<f64> {
        let new = |of: fn(&GroupCharge) -> Option<u64>| {
            Some(of(&self.last)?.saturating_sub(of(&self.first)?) as f64)
        };
        let swap = new(|charge| charge.swap_refaults)? * costs.swap_ns.0 as f64;
        Some(swap + new(|charge| charge.file_refaults)? * costs.file_ns.0 as f64)
    }

    /// Returns the part of unmapped page cache that is needed: the pages that were used again, the same share of those of
    /// unknown age, and at least half of what the group keeps dirty: under a limit the kernel writes it earlier, so between
    /// nothing and all of it may be needed.
    pub(crate) fn needed(&self) -> Option<SizeEstimate> {
        let cached = self.cached.as_ref()?;
        let unknown = cached.ages.unknown;
        let known = cached.total().saturating_sub(unknown);
        let share = if known > 0 {
            (cached.used_again as f64 / known as f64).min(1.0)
        } else {
            1.0
        };
        let likely = cached.used_again + (unknown as f64 * share) as u64;
        let most = (cached.used_again + cached.used_once + unknown).min(cached.total());
        let dirty = self.dirty.kept();
        let needed = SizeEstimate {
            bytes: likely.min(most).max(dirty / 2),
            low_bytes: cached.used_again.min(most),
            high_bytes: most.max(cached.dirty).max(dirty),
        };
        Some(needed.map(|bytes| bytes.min(self.unmapped.unwrap_or(bytes))))
    }

    /// Returns the kernel memory and the unmapped page cache that are needed. Page scans do not cover them. Kernel memory
    /// that can be freed is mostly of files: none of it may be needed, or all.
    pub(crate) fn not_mapped(&self, memory: &SizedMemory) -> SizeEstimate {
        let kernel = self.kernel.unwrap_or(0);
        let cached = memory.unmapped_peak_bytes.unwrap_or(0) as f64;
        let of_cache = (cached * KERNEL_OF_CACHE) as u64;
        let likely = self.kernel_reclaimable.unwrap_or(of_cache);
        let kernel = SizeEstimate {
            bytes: kernel.saturating_sub(likely),
            low_bytes: kernel.saturating_sub(self.kernel_reclaimable.unwrap_or(kernel)),
            high_bytes: kernel,
        };
        let not_known = SizeEstimate {
            low_bytes: 0,
            ..SizeEstimate::exactly(memory.unmapped_peak_bytes.unwrap_or(0))
        };
        kernel.plus(memory.unmapped_needed.unwrap_or(not_known))
    }

    /// Returns the part of shared memory that no process maps which is needed: nothing, or at most all.
    pub(crate) fn unseen_shared(&self) -> SizeEstimate {
        let [processes, all] = self.unseen.unwrap_or_default();
        SizeEstimate {
            high_bytes: all.saturating_sub(processes),
            ..SizeEstimate::default()
        }
    }
}
