//! The kernel's own reclaim: in the background (kswapd) below the low watermark, directly if an allocation finds no
//! frame.
//!
//! Approach: the clock (Corbató, 1968), an approximation of LRU. Linux's lists with their second chance amount to it. A
//! hand goes round a node's frames: pages whose accessed bit is set lose it and stay, others are evicted. If swap is
//! full, only pages of files are scanned, which are stored by node ([`super::nodes`]). Background reclaim ends when a
//! zone of the node is above its high watermark (`pgdat_balanced`).
//!
//! Limits: anonymous pages and files are not weighed against each other (swappiness).

use isotherm_engine::Nanos;

use super::SimMachine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// No allocation waits for it.
    Background,
    /// An allocation that found no frame waits for it.
    Direct,
}

/// Maximum number of frames that one call scans in the background.
const BATCH: u64 = 1 << 15;
/// Number of rounds without any success after which kswapd leaves a node alone (the kernel's MAX_RECLAIM_RETRIES),
/// until memory is freed otherwise.
const FAILURES_MAX: u32 = 16;
const DIRECT_PAGES: u64 = 64;

impl SimMachine {
    /// Runs kswapd on the nodes where it was woken, until a zone of the node is above its high watermark.
    pub(super) fn balance(&mut self) {
        for node in 0..self.spec.nodes.len() {
            if !self.is_kswapd_awake[node] {
                continue;
            }
            let is_balanced = self.shortage(node) == 0;
            if is_balanced {
                self.failures[node] = 0;
            }
            if is_balanced || self.failures[node] >= FAILURES_MAX {
                self.is_kswapd_awake[node] = false;
            } else {
                self.reclaim(node, Urgency::Background);
            }
        }
    }

    /// Returns the pages that a node lacks until one of its zones is above its high watermark.
    fn shortage(&self, node: usize) -> u64 {
        let lacking = |zone: usize| {
            let free = self.memory.zones()[zone].free_pages;
            self.marks[zone].high.saturating_sub(free)
        };
        self.zones_of(node).map(lacking).min().unwrap_or(0)
    }

    pub(super) fn reclaim(&mut self, node: usize, urgency: Urgency) {
        let swap = self.swap.as_ref();
        let has_swap = swap.is_some_and(|s| s.stored() < s.capacity());
        let (took, got) = if has_swap && !self.is_swap_full() {
            self.reclaim_any(node, urgency)
        } else {
            self.reclaim_files(node, urgency)
        };
        self.stats.reclaimed_pages += got;
        self.failures[node] = if got > 0 { 0 } else { self.failures[node] + 1 };
        self.stats.reclaim_cpu = self.stats.reclaim_cpu + took;
    }

    /// Reclaims pages of files only. If swap is full, no other pages can go, and the kernel scans no others.
    fn reclaim_files(&mut self, node: usize, urgency: Urgency) -> (Nanos, u64) {
        let (wanted, most) = match urgency {
            Urgency::Background => (self.shortage(node), BATCH),
            Urgency::Direct => (DIRECT_PAGES, 2 * self.files.on(node)),
        };
        let (mut took, mut got) = (Nanos(0), 0);
        for _ in 0..most {
            if got >= wanted {
                break;
            }
            let Some(page) = self.files.next(node) else {
                break;
            };
            took = took + self.spec.costs.scan_page;
            if self.is_accessed(page) {
                self.clear(page);
            } else if let Ok(cost) = self.evict(page) {
                took = took + cost;
                got += 1;
            }
        }
        (took, got)
    }

    fn reclaim_any(&mut self, node: usize, urgency: Urgency) -> (Nanos, u64) {
        let frames = self.memory.frames_of(node as u32);
        let (start, end) = (frames.start, frames.end);
        let (wanted, most) = match urgency {
            Urgency::Background => (self.shortage(node), BATCH),
            // The scan goes round twice: the first round may only clear bits.
            Urgency::Direct => (DIRECT_PAGES, 2 * (end - start)),
        };
        let mut took = Nanos(0);
        let mut got = 0;
        for _ in 0..most {
            if got >= wanted {
                break;
            }
            let frame = self.clock_hands[node];
            self.clock_hands[node] = if frame + 1 == end { start } else { frame + 1 };
            let Some(page) = self.page_of(frame) else {
                continue;
            };
            took = took + self.spec.costs.scan_page;
            let was_accessed = self.is_accessed(page);
            if self.is_huge(page) {
                let unit = self.unit(page);
                // A huge page is scanned once, at its first frame.
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
            // With swap full, only files go.
            if let Ok(cost) = self.evict(page) {
                took = took + cost;
                got += 1;
            }
        }
        (took, got)
    }
}
