//! The kernel's own reclaim: in the background (kswapd) below the low watermark, directly where an
//! allocation finds nothing.
//!
//! Approach: an approximation of LRU, the clock (Corbató, 1968), which Linux's lists with their second
//! chance amount to: a hand goes round a node's frames; pages whose accessed bit is set lose it and
//! stay, others go. Watermarks are the kernel's (`mm/page_alloc.c`): min from the square root of a
//! zone's size, low and high a thousandth of it above each other.
//!
//! Limits: anonymous pages and files are not weighed against each other (swappiness).

use isotherm_engine::{Nanos, PAGE_SIZE};

use super::Machine;

/// Watermarks of a zone, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) min: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

pub(super) fn marks(pages: u64) -> Marks {
    let kib = pages * PAGE_SIZE / 1024;
    let min = ((kib * 16) as f64).sqrt() as u64 * 1024 / PAGE_SIZE;
    let step = (min / 4).max(pages / 1000);
    Marks {
        min,
        low: min + step,
        high: min + 2 * step,
    }
}

/// Who needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Nobody yet.
    Background,
    /// An allocation that found nothing.
    Direct,
}

/// The most frames that one call looks at in the background.
const BATCH: u64 = 1 << 15;
/// After so many rounds without any success kswapd leaves a node alone (the kernel's
/// MAX_RECLAIM_RETRIES), until memory is freed otherwise.
const FAILURES_MAX: u32 = 16;
/// What direct reclaim wants.
const DIRECT_PAGES: u64 = 64;

impl Machine {
    /// kswapd: keeps every node above its low watermark.
    pub(super) fn balance(&mut self) {
        for node in 0..self.spec.nodes.len() {
            let zone = &self.memory.zones()[node];
            if zone.free_pages() >= marks(zone.pages()).low {
                self.failures[node] = 0;
            } else if self.failures[node] < FAILURES_MAX {
                self.reclaim(node, Urgency::Background);
            }
        }
    }

    pub(super) fn reclaim(&mut self, node: usize, urgency: Urgency) {
        let zone = &self.memory.zones()[node];
        let (start, end, free) = (zone.start(), zone.end(), zone.free_pages());
        let (wanted, most) = match urgency {
            Urgency::Background => (marks(zone.pages()).high.saturating_sub(free), BATCH),
            // Twice round: the first round may only clear bits.
            Urgency::Direct => (DIRECT_PAGES, 2 * zone.pages()),
        };
        let mut took = Nanos(0);
        let mut got = 0;
        for _ in 0..most {
            if got >= wanted {
                break;
            }
            let frame = self.hands[node];
            self.hands[node] = if frame + 1 == end { start } else { frame + 1 };
            let Some(page) = self.page_of(frame) else {
                continue;
            };
            took = took + self.spec.costs.scan_page;
            let was_accessed = self.is_accessed(page);
            if self.is_huge(page) {
                let unit = self.unit(page);
                // A block is looked at once, at its first frame.
                if self.memory.frame_of(unit.start) != Some(frame) {
                    continue;
                }
                if !was_accessed {
                    took = took + self.split(unit.start);
                }
            }
            if was_accessed {
                self.clear(page);
                continue;
            }
            // Without swap, or with swap full, only files go.
            if let Ok(cost) = self.evict(page) {
                took = took + cost;
                got += 1;
                self.stats.reclaimed_pages += 1;
            }
        }
        self.failures[node] = if got > 0 { 0 } else { self.failures[node] + 1 };
        self.stats.reclaim_cpu = self.stats.reclaim_cpu + took;
    }
}
