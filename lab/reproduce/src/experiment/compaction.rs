//! The experiments of *Proactive Compaction for the Linux kernel* (Nitin Gupta, 2020): how long huge pages take to be
//! had on a fragmented machine of 1 TiB, 2 nodes and 80 CPUs.
//!
//! Memory is fragmented as by `frag`: it takes nearly all of it, and of each aligned 2 MiB gives the first three
//! quarters back. Three experiments follow:
//! - a driver in the kernel takes huge pages until there is none ([`driver`]);
//! - a Java process touches a heap of huge pages ([`java`]);
//! - the kernel itself holds the last quarters, and nothing can be compacted ([`unmovable`]).
//!
//! The node's compaction threads work beside. A huge page that is not available is made by *direct compaction*. For the
//! kernel it has two passes (`__alloc_pages_slowpath`, Linux 5.6).
//! - The asynchronous pass scans only pageblocks of the kernel's own type (Vlastimil Babka, *mm, compaction: restrict
//!   async compaction to pageblocks of same migratetype*, Linux 4.12). It finds none, and has passed all that lies
//!   between the scanners.
//! - The synchronous pass moves pages. It runs only if the threads have made no huge page meanwhile.
//!
//! So a wait grows shorter as the threads' scanners approach each other.
//!
//! Limits: kswapd is not simulated: reclaim finds nothing here.

use isotherm_engine::Nanos;
use isotherm_policy::compaction::CompactionAttributes;

use isotherm_sim::compaction::Scanners;
use isotherm_sim::cost::CompactionCosts;
use isotherm_sim::kcompactd::{Kcompactd, ScoreSample, ThreadSummary};
use isotherm_sim::memory::{BLOCK_ORDER, BLOCK_PAGES, Memory, NodeSize};
use isotherm_sim::statistics::Distribution;

const MIB_PAGES: u64 = 1 << 8;

/// The machine and what fragments it, in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionSetting {
    /// Memory of both nodes for use: 1 TiB less what the kernel's memory map takes.
    pub memory_mib: u64,
    /// Memory that `frag` takes at first; it keeps a quarter of it.
    pub frag_mib: u64,
    /// Time between the fragmentation and the test.
    pub idle_time: Nanos,
    /// `vm.compaction_proactiveness`.
    pub proactiveness: u32,
    /// Costs of operations.
    pub costs: CompactionCosts,
}

impl CompactionSetting {
    /// The published machine: 762 GiB were free of 1007, 245 were held.
    pub fn published(proactiveness: u32) -> Self {
        Self {
            memory_mib: 1008 << 10,
            frag_mib: 980 << 10,
            idle_time: Nanos::from_millis(120_000),
            proactiveness,
            costs: isotherm_sim::cost::PUBLISHED_MACHINE,
        }
    }

    fn attributes(&self) -> CompactionAttributes {
        CompactionAttributes {
            proactiveness: self.proactiveness,
            ..CompactionAttributes::default()
        }
    }
}

/// Outcome of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionOutcome {
    /// The setting's proactiveness.
    pub proactiveness: u32,
    /// Time to get each huge page, in us.
    pub latency_us: Distribution,
    /// Free memory at the start, in huge pages.
    pub free_before: u64,
    /// Huge pages that were made by direct compaction.
    pub direct: u64,
    /// Time from the first allocation to the last.
    pub elapsed: Nanos,
    /// Latency over time, thinned: pairs of seconds and us.
    pub latencies: Vec<(f64, f64)>,
    /// Scores over time.
    pub scores: Vec<ScoreSample>,
    /// The compaction threads.
    pub threads: Vec<ThreadSummary>,
}

struct World {
    memory: Memory,
    scanners: Vec<Scanners>,
    kcompactd: Kcompactd,
    costs: CompactionCosts,
    now: Nanos,
    /// Whether direct compaction found nothing to do, for each zone.
    is_exhausted: Vec<bool>,
    direct: u64,
    /// Whether memory is small enough for tests to check each frame after each event.
    #[cfg(test)]
    is_small: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// An allocation of the kernel: from any node that has one, else by compaction, as often as it takes.
    Kernel,
    /// A fault: from its own node first, by compaction if need be.
    Fault,
}

impl World {
    fn new(setting: &CompactionSetting, fragment: impl FnOnce(&mut Memory)) -> Self {
        let node = setting.memory_mib / 2 * MIB_PAGES;
        let dma32 = (2048 * MIB_PAGES).min(node / 4);
        let mut memory = Memory::new(&[
            NodeSize {
                zones: vec![("DMA32", dma32), ("Normal", node - dma32)],
            },
            NodeSize {
                zones: vec![("Normal", node)],
            },
        ]);
        fragment(&mut memory);
        let zones = 0..memory.zones().len();
        let scanners: Vec<Scanners> = zones.map(|zone| Scanners::new(&memory, zone)).collect();
        let mut world = Self {
            kcompactd: Kcompactd::new(&memory, setting.attributes()),
            is_exhausted: vec![false; scanners.len()],
            memory,
            scanners,
            costs: setting.costs,
            now: Nanos(0),
            direct: 0,
            #[cfg(test)]
            is_small: setting.memory_mib <= 64,
        };
        world.pass_time(setting.idle_time);
        world
    }

    fn pass_time(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.kcompactd
            .run(self.now, &mut self.memory, &mut self.scanners, &self.costs);
        #[cfg(test)]
        if self.is_small {
            self.memory.check().expect("every frame is in one place");
        }
    }

    /// Zones in the order in which node 0 allocates from them: its own, the highest first.
    const ZONES: [usize; 3] = [1, 0, 2];

    /// Allocates a huge page. Returns false if there is none.
    fn get(&mut self, asker: Asker) -> bool {
        match asker {
            Asker::Kernel => self.take(asker) || self.compact_for_kernel(),
            // A madvised area is served from its own node, by compaction if need be; then from any.
            Asker::Fault => {
                self.take_from(asker, 1)
                    || self.compact_for_fault(&[1])
                    || self.take(asker)
                    || self.compact_for_fault(&Self::ZONES)
            }
        }
    }

    fn take(&mut self, asker: Asker) -> bool {
        Self::ZONES.iter().any(|&zone| self.take_from(asker, zone))
    }

    fn take_from(&mut self, asker: Asker, zone: usize) -> bool {
        let taken = match asker {
            Asker::Kernel => self.memory.allocate_kernel(zone, BLOCK_ORDER),
            Asker::Fault if !self.memory.zones()[zone].has_block(BLOCK_ORDER) => None,
            Asker::Fault => {
                let pages = self.memory.add_pages(BLOCK_PAGES);
                self.memory.allocate_pages(zone, BLOCK_ORDER, pages.start)
            }
        };
        if taken.is_some() {
            self.pass_time(self.costs.take);
        }
        taken.is_some()
    }

    /// Direct compaction for the kernel (`__alloc_pages_slowpath`, Linux 5.6): asynchronous, draining
    /// and reclaim, synchronous.
    fn compact_for_kernel(&mut self) -> bool {
        self.compact_in_vain();
        if self.take(Asker::Kernel) {
            return true;
        }
        self.pass_time(self.costs.drain);
        if self.take(Asker::Kernel) {
            return true;
        }
        for zone in Self::ZONES {
            while !self.is_exhausted[zone] {
                // The asynchronous pass has met the end, so all begins at the zone's start.
                let done = self.scanners[zone].position();
                self.pass_time(Nanos(self.costs.compacted_block.0 * done));
                if self.compact_zone(Asker::Kernel, zone) {
                    return true;
                }
            }
        }
        false
    }

    /// Asynchronous direct compaction moves pages only out of pageblocks of the requested type
    /// (`suitable_migration_source`), and all here are movable. For the kernel's own type it scans every pageblock
    /// between the two scanners, in all zones, and finds none.
    fn compact_in_vain(&mut self) {
        for zone in Self::ZONES {
            if !self.is_exhausted[zone] {
                let blocks = self.scanners[zone].distance();
                self.pass_time(Nanos(self.costs.unsuitable_block.0 * blocks));
            }
        }
    }

    /// Direct compaction for a fault, of the first of `zones` that still holds something to compact.
    fn compact_for_fault(&mut self, zones: &[usize]) -> bool {
        for &zone in zones {
            while !self.is_exhausted[zone] {
                self.pass_time(self.costs.fault_pass);
                if self.compact_zone(Asker::Fault, zone) {
                    return true;
                }
            }
        }
        false
    }

    fn compact_zone(&mut self, asker: Asker, zone: usize) -> bool {
        self.is_exhausted[zone] = !self.compact_until_free(zone);
        let is_taken = self.take_from(asker, zone);
        self.direct += u64::from(is_taken);
        is_taken
    }

    /// Compacts until a block is free, for a whole round at most. Returns whether one is.
    fn compact_until_free(&mut self, zone: usize) -> bool {
        let mut ends = 0;
        loop {
            if self.memory.zones()[zone].has_block(BLOCK_ORDER) {
                return true;
            }
            let step = self.scanners[zone].step(&mut self.memory, &self.costs);
            self.pass_time(step.took);
            ends += u32::from(step.round_ended.is_some());
            if ends == 2 || step.round_ended == Some(false) {
                return self.memory.zones()[zone].has_block(BLOCK_ORDER);
            }
        }
    }

    /// Allocates huge pages until there is none, or `most`; each is used for `each` before the next.
    fn run(
        mut self,
        setting: &CompactionSetting,
        asker: Asker,
        most: u64,
        each: Nanos,
    ) -> CompactionOutcome {
        let free_before = self.memory.free_pages() / BLOCK_PAGES;
        let start = self.now;
        let mut latencies = Vec::new();
        let mut times = Vec::new();
        while (latencies.len() as u64) < most {
            let before = self.now;
            if !self.get(asker) {
                break;
            }
            let latency = self.now.since(before).0 as f64 / 1e3;
            times.push((before.since(start).as_secs_f64(), latency));
            latencies.push(latency);
            self.pass_time(each);
        }
        let thin = (times.len() / 2000).max(1);
        CompactionOutcome {
            proactiveness: setting.proactiveness,
            latency_us: Distribution::of(latencies),
            free_before,
            direct: self.direct,
            elapsed: self.now.since(start),
            latencies: times.into_iter().step_by(thin).collect(),
            scores: self.kcompactd.scores.clone(),
            threads: self.kcompactd.summary(),
        }
    }
}

/// Fragments memory as `frag` does: a process keeps the last quarter of each 2 MiB.
fn fragment(memory: &mut Memory, frag_mib: u64) {
    let mut rest = frag_mib * MIB_PAGES / BLOCK_PAGES;
    for zone in World::ZONES {
        while rest > 0 && memory.zones()[zone].has_block(BLOCK_ORDER) {
            let pages = memory.add_pages(BLOCK_PAGES);
            if memory
                .allocate_pages(zone, BLOCK_ORDER, pages.start)
                .is_none()
            {
                break;
            }
            memory.free_run(pages.start, (BLOCK_PAGES * 3 / 4) as u32);
            rest -= 1;
        }
    }
}

/// Runs the kernel driver, which takes huge pages until it fails.
pub fn driver(setting: &CompactionSetting) -> CompactionOutcome {
    let world = World::new(setting, |memory| fragment(memory, setting.frag_mib));
    world.run(setting, Asker::Kernel, u64::MAX, Nanos(0))
}

/// Runs a Java process that touches a heap of `heap_gib` in huge pages.
pub fn java(setting: &CompactionSetting, heap_gib: u64) -> CompactionOutcome {
    let world = World::new(setting, |memory| fragment(memory, setting.frag_mib));
    let pages = heap_gib * 1024 * MIB_PAGES / BLOCK_PAGES;
    world.run(setting, Asker::Fault, pages, setting.costs.huge_fault)
}

/// Runs the threads for `time` where the kernel holds the last quarter of each huge page.
pub fn unmovable(setting: &CompactionSetting, time: Nanos) -> CompactionOutcome {
    let mut world = World::new(
        &CompactionSetting {
            idle_time: Nanos(0),
            ..*setting
        },
        |memory| {
            for zone in World::ZONES {
                while let Some(frame) = memory.allocate_kernel(zone, BLOCK_ORDER) {
                    for (start, order) in [(0, BLOCK_ORDER - 1), (BLOCK_PAGES / 2, BLOCK_ORDER - 2)]
                    {
                        memory.free_kernel(frame + start, order);
                    }
                    // Its frames are not allocated again: blocks of that order are gone.
                }
            }
        },
    );
    world.pass_time(time);
    world.run(setting, Asker::Kernel, 0, Nanos(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting small enough to check every frame after every event.
    fn tiny(proactiveness: u32) -> CompactionSetting {
        CompactionSetting {
            memory_mib: 64,
            frag_mib: 60,
            idle_time: Nanos::from_millis(3_000),
            ..CompactionSetting::published(proactiveness)
        }
    }

    #[test]
    fn every_frame_is_in_one_place_after_every_event() {
        for proactiveness in [0, 20, 100] {
            let outcome = driver(&tiny(proactiveness));
            assert!(outcome.latency_us.count >= 20, "{outcome:?}");
        }
        let heap = World::new(&tiny(20), |memory| fragment(memory, 60));
        let outcome = heap.run(&tiny(20), Asker::Fault, 16, Nanos(540_000));
        assert_eq!(outcome.latency_us.count, 16);
        unmovable(&tiny(40), Nanos::from_millis(100_000));
    }
}
