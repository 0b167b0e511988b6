//! What things take, and from where that is known: the only place with such numbers.
//!
//! *Calibrated* numbers are chosen so that a published result comes out, and named with that result;
//! it is then no prediction. *Assumed* ones are of the usual size on servers of that time.

use isotherm_engine::Nanos;

/// What compaction and huge pages take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionCosts {
    /// A huge page that is there is taken. Published: median 4 us with proactive compaction; no
    /// compaction is in it, so it is measured, not predicted.
    pub take: Nanos,
    /// A page is unmapped, copied and mapped again. Assumed; kernels of that time move some 0.8
    /// million base pages a second on a CPU.
    pub migrate_page: Nanos,
    /// A scanner looks through a pageblock. Assumed: 512 times 4 ns, two cache lines a time.
    pub scan_block: Nanos,
    /// A scanner passes a pageblock that holds nothing for it.
    pub pass_block: Nanos,
    /// What a direct compactor's pass takes besides moving pages (draining lists, a round of reclaim
    /// that finds nothing). Calibrated on p5 of the kernel driver without proactive compaction.
    pub pass: Nanos,
    /// A direct compactor's pass goes through the zone from its start: for each pageblock there.
    /// Calibrated on p95 of the same.
    pub pass_per_block: Nanos,
    /// How many passes an allocation makes that may reclaim and retry (GFP_KERNEL), where the fault of a
    /// huge page makes one. Calibrated: the driver's mean latency by what a fault of the Java heap
    /// takes, both without proactive compaction.
    pub passes_kernel: u32,
    /// The fault of a huge page that is there: clearing it, remote nodes and the accounts included.
    /// Calibrated on the Java heap at high proactiveness ("around 3:15", 700 GiB).
    pub huge_fault: Nanos,
}

/// The costs of the machine of the published experiments: 80 CPUs, 1 TiB, kernel 5.6.
pub const PUBLISHED_MACHINE: CompactionCosts = CompactionCosts {
    take: Nanos(3_500),
    migrate_page: Nanos(1_200),
    scan_block: Nanos(2_000),
    pass_block: Nanos(20),
    pass: Nanos(1_257_000),
    pass_per_block: Nanos(29),
    passes_kernel: 5,
    huge_fault: Nanos(540_000),
};

/// What watching and moving pages between tiers takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierCosts {
    /// A frame is looked up, and what it is. Assumed: a cache miss.
    pub look_at_frame: Nanos,
    /// A page's accessed bit is read and cleared by the reverse map. Assumed: two more.
    pub look_at_bit: Nanos,
    /// A page is unmapped, copied and mapped again; as [`CompactionCosts::migrate_page`].
    pub migrate_page: Nanos,
}

/// The costs of the machine of the published tiering experiments: 64 CPUs, 512 GB and 96 GB.
pub const PUBLISHED_TIERS: TierCosts = TierCosts {
    look_at_frame: Nanos(60),
    look_at_bit: Nanos(150),
    migrate_page: Nanos(1_200),
};
