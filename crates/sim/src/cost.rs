//! What things take, and from where that is known: the only place with such numbers.
//!
//! *Calibrated* numbers are chosen so that a published result comes out, and named with that result;
//! it is then no prediction. *Assumed* ones are of the usual size on servers of that time.

use isotherm_engine::Nanos;

/// A page of 4 KiB is unmapped, copied and mapped again by one CPU: 1.72 GB/s, measured on an EPYC of
/// the third generation between its two sockets, Linux 6.14 (Shivank Garg, *Enhancements to Page
/// Migration with Batch Offloading via DMA*, linux-mm, 2025, first table).
pub const MIGRATE_PAGE: Nanos = Nanos(2_400);

/// What compaction and huge pages take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionCosts {
    /// A huge page that is there is taken. Published: median 4 us with proactive compaction; no
    /// compaction is in it, so it is measured, not predicted.
    pub take: Nanos,
    /// A page is unmapped, copied and mapped again. [`MIGRATE_PAGE`].
    pub migrate_page: Nanos,
    /// A scanner looks through a pageblock. Assumed: 512 times 4 ns, two cache lines a time.
    pub scan_block: Nanos,
    /// A scanner passes a pageblock that holds nothing for it.
    pub pass_block: Nanos,
    /// Asynchronous direct compaction passes a pageblock of another migrate type than is asked for.
    /// Calibrated on p5 of the kernel driver without proactive compaction.
    pub unsuitable_block: Nanos,
    /// Synchronous direct compaction passes a pageblock that was compacted before: a skip mark, or
    /// 512 frames where kswapd has removed the marks. Calibrated on p95 of the same.
    pub compacted_block: Nanos,
    /// Between the two: the per-CPU lists of 80 CPUs are drained, reclaim finds nothing. Assumed.
    pub drain: Nanos,
    /// What the direct compaction of a fault takes besides moving pages. Calibrated on the Java heap
    /// without proactive compaction (1658 s): what it is, the publication does not tell.
    pub fault_pass: Nanos,
    /// The fault of a huge page that is there: clearing it, remote nodes and the accounts included.
    /// Calibrated on the Java heap at high proactiveness ("around 3:15", 700 GiB).
    pub huge_fault: Nanos,
}

/// The costs of the machine of the published experiments: 80 CPUs, 1 TiB, kernel 5.6.
pub const PUBLISHED_MACHINE: CompactionCosts = CompactionCosts {
    take: Nanos(3_500),
    migrate_page: MIGRATE_PAGE,
    scan_block: Nanos(2_000),
    pass_block: Nanos(20),
    unsuitable_block: Nanos(28),
    compacted_block: Nanos(145),
    drain: Nanos(300_000),
    fault_pass: Nanos(3_940_000),
    huge_fault: Nanos(540_000),
};

/// What watching and moving pages between tiers takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierCosts {
    /// A frame is looked up, and what it is. Assumed: a cache miss.
    pub look_at_frame: Nanos,
    /// A page's accessed bit is read and cleared by the reverse map. Assumed: two more.
    pub look_at_bit: Nanos,
    /// A page is unmapped, copied and mapped again: [`MIGRATE_PAGE`].
    pub migrate_page: Nanos,
}

/// The costs of the machine of the published tiering experiments: 64 CPUs, 512 GB and 96 GB.
pub const PUBLISHED_TIERS: TierCosts = TierCosts {
    look_at_frame: Nanos(60),
    look_at_bit: Nanos(150),
    migrate_page: MIGRATE_PAGE,
};
