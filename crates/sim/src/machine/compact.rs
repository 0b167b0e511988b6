//! Compaction: the nodes' compaction threads, and direct compaction where a huge page is needed and none is free.
//!
//! Both use the scanners of [`crate::compaction`], and share them. Direct compaction works on the nearest node only, as
//! the kernel does for huge pages (`__GFP_THISNODE` in `alloc_pages_mpol`). It ends when there is a block, or at the
//! end of a round. If it fails, it is deferred in that zone for twice the attempts of the last time, up to 64
//! (`defer_compaction`).

use isotherm_engine::Nanos;
use isotherm_policy::compaction::{CompactionAttributes, CompactionStatus, NodeFacts};
use serde::Deserialize;

use super::SimMachine;
use crate::compaction::Scanners;
use crate::kcompactd::{Kcompactd, Round, node_facts};
use crate::memory::{BLOCK_ORDER, Memory, Page, Pfn};

/// Faults that compact memory if they find no huge page: `/sys/kernel/mm/transparent_hugepage/defrag`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Defrag {
    /// All such faults.
    Always,
    /// Faults of memory for which huge pages were asked.
    #[default]
    Madvise,
    /// No faults.
    Never,
}

/// `COMPACT_MAX_DEFER_SHIFT`.
const DEFER_SHIFT_MAX: u32 = 6;

#[derive(Clone, Copy, Debug, Default)]
struct Deferral {
    shift: u32,
    attempts: u64,
}

impl Deferral {
    fn is_deferred(&mut self) -> bool {
        if self.shift == 0 {
            return false;
        }
        self.attempts += 1;
        self.attempts < 1 << self.shift
    }

    fn note(&mut self, has_succeeded: bool) {
        self.attempts = 0;
        self.shift = if has_succeeded {
            0
        } else {
            (self.shift + 1).min(DEFER_SHIFT_MAX)
        };
    }
}

#[derive(Clone, Debug)]
pub(super) struct Compaction {
    scanners: Vec<Scanners>,
    deferrals: Vec<Deferral>,
    threads: Kcompactd,
    attributes: CompactionAttributes,
}

impl Compaction {
    pub(super) fn new(memory: &Memory, proactiveness: u32) -> Self {
        let attributes = CompactionAttributes {
            proactiveness,
            ..CompactionAttributes::default()
        };
        let zones = 0..memory.zones().len();
        let scanners: Vec<Scanners> = zones.map(|zone| Scanners::new(memory, zone)).collect();
        Self {
            deferrals: vec![Deferral::default(); scanners.len()],
            scanners,
            threads: Kcompactd::new(memory, attributes),
            attributes,
        }
    }
}

impl SimMachine {
    pub(super) fn run_kcompactd(&mut self, to: Nanos) {
        let Compaction {
            threads, scanners, ..
        } = &mut self.compaction;
        for (node, is_awake) in self.is_kswapd_awake.iter().enumerate() {
            threads.note_kswapd(node as u32, *is_awake);
        }
        threads.run(to, &mut self.memory, scanners, &self.spec.compaction_costs);
        if threads.is_at_rest() {
            for scanner in scanners {
                scanner.release(&mut self.memory);
            }
        }
        self.stats.kcompactd_cpu = threads.busy();
    }

    /// Returns the compaction attributes, the fragmentation of a node, and the status of its compaction thread.
    pub fn fragmentation(&self, node: u32) -> (CompactionAttributes, NodeFacts, CompactionStatus) {
        let facts = node_facts(&self.memory, node);
        let status = self.compaction.threads.status(node);
        (self.compaction.attributes, facts, status)
    }

    /// Returns the rounds of the compaction threads that have ended since the last call.
    pub fn take_rounds(&mut self) -> Vec<Round> {
        self.compaction.threads.take_rounds()
    }

    /// Allocates a huge page's frames for the pages from `first` on, by direct compaction if that is allowed. Returns
    /// the first frame and the time that compaction took.
    pub(super) fn place_huge(&mut self, first: Page, may_compact: bool) -> (Option<Pfn>, Nanos) {
        if let Some(frame) = self.place_block(first, BLOCK_ORDER) {
            return (Some(frame), Nanos(0));
        }
        if !may_compact || self.is_node_full(0) {
            return (None, Nanos(0));
        }
        let mut took = Nanos(0);
        for zone in self.zones_of(0).rev() {
            if self.compaction.deferrals[zone].is_deferred() {
                continue;
            }
            took = took + self.compact_directly(zone);
            let frame = self.memory.allocate_pages(zone, BLOCK_ORDER, first);
            self.compaction.deferrals[zone].note(frame.is_some());
            if frame.is_some() {
                self.stats.compaction_successes += 1;
                return (frame, took);
            }
        }
        self.stats.compaction_failures += u64::from(took > Nanos(0));
        (None, took)
    }

    /// Compacts a zone until it has a block, or the scanners have met after a whole round. Returns the time that this
    /// took.
    fn compact_directly(&mut self, zone: usize) -> Nanos {
        let scanners = &mut self.compaction.scanners[zone];
        let (mut took, mut ends) = (self.spec.compaction_costs.fault_pass, 0);
        while ends < 2 && !self.memory.zones()[zone].has_block(BLOCK_ORDER) {
            let step = scanners.step(&mut self.memory, &self.spec.compaction_costs);
            took = took + step.took;
            ends += u32::from(step.round_ended.is_some());
            if step.round_ended == Some(false) {
                break;
            }
        }
        scanners.release(&mut self.memory);
        self.stats.compaction_stall = self.stats.compaction_stall + took;
        took
    }
}
