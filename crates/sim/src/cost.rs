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

/// What a machine takes for what its processes and Isotherm do: one core of the machines that Isotherm
/// is developed on (guests with nested virtualisation, where an inter-processor interrupt is dear).
/// Measured there unless said otherwise: DESIGN.md, "The measured facts", and docs/benchmarks.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineCosts {
    /// A page's first fault. Assumed: zeroing 4 KiB, page table, accounts.
    pub minor_fault: Nanos,
    /// The fault of a huge page that is there ("zeroing 2 MiB alone is about 90 us").
    pub huge_fault: Nanos,
    /// A page comes back from zram: fault and decompression (2.2 to 3.5 us).
    pub refault_zram: Nanos,
    /// The fault of a page that a disk is read for, without the disk. Assumed.
    pub refault_disk: Nanos,
    /// A page of a file comes back from its file. Assumed: an SSD.
    pub refault_file: Nanos,
    /// A page is compressed and put into zram (0.6 to 0.9 GB/s).
    pub compress: Nanos,
    /// A page is put aside without compression: dropped, or written by a disk that takes its own time.
    /// Assumed.
    pub drop_page: Nanos,
    /// A page's accessed bit is looked at by reclaim, through the reverse map. Assumed: three cache
    /// misses.
    pub scan_page: Nanos,
    /// A page is unmapped, copied and mapped again; as [`CompactionCosts::migrate_page`].
    pub migrate_page: Nanos,
    /// A block becomes a huge page, from outside of its process (1.3 ms).
    pub collapse: Nanos,
    /// A huge page is split (53 us).
    pub split: Nanos,
    /// One accessed bit is read out of a list of addresses (40 ns).
    pub read_bit: Nanos,
    /// A 2 MiB block's page table is read in bulk (0.5 to 0.9 ns a page).
    pub read_block: Nanos,
    /// A range is cleared while its process runs: the flush (5.9 us).
    pub clear_range: Nanos,
    /// And each page of the range besides (16 pages take 7.1 us, one 5.9).
    pub clear_page: Nanos,
    /// A page that is old already is cleared, which needs no flush (0.11 us).
    pub clear_old: Nanos,
    /// What clearing a range takes from the process besides ("about 3 us more").
    pub clear_stolen: Nanos,
    /// A page walk that finds its tables in the caches at best. Assumed: two dependent cache accesses.
    pub tlb_miss: Nanos,
    /// Translations that a core keeps, of either size. Assumed: the usual second-level TLB.
    pub tlb_entries: u32,
}

/// The machines that Isotherm is developed on.
pub const THIS_MACHINE: MachineCosts = MachineCosts {
    minor_fault: Nanos(700),
    huge_fault: Nanos(90_000),
    refault_zram: Nanos(2_800),
    refault_disk: Nanos(2_000),
    refault_file: Nanos(90_000),
    compress: Nanos(5_400),
    drop_page: Nanos(500),
    scan_page: Nanos(150),
    migrate_page: Nanos(1_200),
    collapse: Nanos(1_300_000),
    split: Nanos(53_000),
    read_bit: Nanos(40),
    read_block: Nanos(360),
    clear_range: Nanos(5_900),
    clear_page: Nanos(80),
    clear_old: Nanos(110),
    clear_stolen: Nanos(3_000),
    tlb_miss: Nanos(30),
    tlb_entries: 1536,
};
