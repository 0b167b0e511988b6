//! Times of operations, each with its source: the only place with such numbers.
//!
//! *Calibrated* numbers are chosen so that a published result comes out, and named with that result; it is then no
//! prediction. *Assumed* ones are of the usual size on servers of that time.

use isotherm_engine::calibration::{Bound, Calibration, Measured};
use isotherm_engine::{Nanos, PAGES_PER_BLOCK};

/// Time in which one CPU unmaps, copies and maps a page of 4 KiB: 1.72 GB/s. Measured on an EPYC of the third
/// generation between its two sockets, Linux 6.14 (Shivank Garg, *Enhancements to Page Migration with Batch Offloading
/// via DMA*, linux-mm, 2025, first table).
pub const MIGRATE_PAGE: Nanos = Nanos(2_400);

/// Costs of compaction and of huge pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionCosts {
    /// An available huge page is taken. Published: median 4 us with proactive compaction; no compaction is in it, so it
    /// is measured, not predicted.
    pub take: Nanos,
    /// A page is unmapped, copied and mapped again. [`MIGRATE_PAGE`].
    pub migrate_page: Nanos,
    /// A scanner scans a pageblock. Assumed: 512 times 4 ns, two cache lines a time.
    pub scan_block: Nanos,
    /// A scanner passes a pageblock that holds nothing for it.
    pub pass_block: Nanos,
    /// Asynchronous direct compaction passes a pageblock of another migrate type than is asked for.
    /// Calibrated on p5 of the kernel driver without proactive compaction.
    pub unsuitable_block: Nanos,
    /// Synchronous direct compaction passes a pageblock that was compacted before: a skip mark, or
    /// 512 frames where kswapd has removed the marks. Calibrated on p95 of the same.
    pub compacted_block: Nanos,
    /// Between the two, the per-CPU lists of 80 CPUs are drained and reclaim finds nothing. Assumed.
    pub drain: Nanos,
    /// Time of a fault's direct compaction besides moving pages. Calibrated on the Java heap without proactive
    /// compaction (1658 s): the publication does not say what takes this time.
    pub fault_pass: Nanos,
    /// The fault of an available huge page: clearing it, remote nodes and the accounts included. Calibrated on the Java
    /// heap at high proactiveness ("around 3:15", 700 GiB).
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

/// Compaction on the machines that Isotherm is developed on (docs/results/fragmentation.md).
pub const THIS_MACHINES_COMPACTION: CompactionCosts = CompactionCosts {
    take: Nanos(0),
    // Calibrated on the CPU time of kcompactd at proactiveness 80 (3.0 s, 2.25 with `MIGRATE_PAGE`).
    migrate_page: Nanos(3_200),
    scan_block: Nanos(2_000),
    pass_block: Nanos(20),
    unsuitable_block: Nanos(0),
    compacted_block: Nanos(0),
    drain: Nanos(0),
    // Calibrated on the median fault without proactive compaction (946 us): asynchronous compaction before it, draining
    // per-CPU lists, and anything else.
    fault_pass: Nanos(430_000),
    huge_fault: THIS_MACHINE.huge_fault,
};

/// Costs of what a machine's processes and Isotherm do, on one core of the machines that Isotherm is developed on. They
/// are guests with nested virtualisation, where an inter-processor interrupt is dear. The costs are measured there
/// unless said otherwise: docs/results/overhead.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineCosts {
    /// A page's first fault. Assumed: zeroing 4 KiB, page table, accounts.
    pub minor_fault: Nanos,
    /// The fault of an available huge page ("zeroing 2 MiB alone is about 90 us").
    pub huge_fault: Nanos,
    /// A page is read back from zram: fault and decompression (2.2 to 3.5 us).
    pub refault_zram: Nanos,
    /// The fault of a page that is read from a disk, without the disk's time. Assumed.
    pub refault_disk: Nanos,
    /// A page of a file is read back from its file. Assumed: an SSD.
    pub refault_file: Nanos,
    /// A page is compressed and put into zram (0.6 to 0.9 GB/s).
    pub compress: Nanos,
    /// A page is paged out to zram as part of a whole block of 2 MiB, which is made a huge page first. The time is a
    /// 512th of all of that (2.3 to 2.5 us, of data that compresses at once; docs/concepts/guard.md).
    pub page_out_whole: Nanos,
    /// Share of that time that a thread of the process loses if it works meanwhile (1 to 4 %).
    pub whole_lost: f64,
    /// Additional time of a page that is paged out alone while its process runs on another CPU: an interrupt. It is 3.4
    /// us more than the 3.2 us of a sleeping process, in the mean of 400 MiB of every third page; up to 6 us.
    pub interrupt: Nanos,
    /// Share of the time of paging out alone that a thread of the process loses (experiments/beside.c: 0.24 s of 0.29).
    pub alone_lost: f64,
    /// A page leaves memory without compression: dropped, or written by a disk that takes its own time. Assumed.
    pub drop_page: Nanos,
    /// Reclaim reads a page's accessed bit through the reverse map. Assumed: three cache misses.
    pub scan_page: Nanos,
    /// A frame and its state are looked up by physical address. Assumed: a cache miss.
    pub look_at_frame: Nanos,
    /// A page is unmapped, copied and mapped again; as [`CompactionCosts::migrate_page`].
    pub migrate_page: Nanos,
    /// A block becomes a huge page, from outside of its process (1.3 ms).
    pub collapse: Nanos,
    /// A huge page is split (53 us).
    pub split: Nanos,
    /// A huge page is read for pages of zeros, in the kernel (half of it zeros: 122 us).
    pub read_contents: Nanos,
    /// One accessed bit is read out of a list of addresses (40 ns).
    pub read_bit: Nanos,
    /// A 2 MiB block's page table is read in bulk (0.5 to 0.9 ns a page).
    pub read_block: Nanos,
    /// The monitor updates the age and estimate of a page in memory, in a block that is accessed as a whole or not at
    /// all. (9 to 13 ns under `run` on a JVM of 890 MiB and an idle program of 680 MiB.)
    pub judge_page: Nanos,
    /// The monitor does so for a huge page. (0.8 us, the reading of its entry and writing the record included, on 6 GiB of
    /// idle memory at 5 % of a CPU.)
    pub judge_huge: Nanos,
    /// The monitor does so for a page of a block that is accessed in part. (17 to 30 ns a page on a redis with some
    /// such blocks, 40 to 66 ns with many.)
    pub judge_mixed_page: Nanos,
    /// Additional time of a page that the monitor finds for the first time (30 to 61 ms for 300,000 to 740,000 pages).
    pub meet_page: Nanos,
    /// Additional time of the first interval at any size: kernel programs are loaded and run for the first time, memory
    /// is allocated. (11 to 15 ms under `run` on five programs of 20 to 900 MiB.)
    pub first_interval: Nanos,
    /// The monitor wakes, runs its program in the kernel and reads the clock, whatever follows. It is the CPU time at
    /// 50 and at 200 rounds a second less the clears.
    pub wake: Nanos,
    /// A batch of clears of any length: system calls, and the read that verifies them. It is the table monitor's cost
    /// of some ninety clears a second (9 ms, of which the rounds above take 5) less the clears themselves.
    pub batch: Nanos,
    /// A range is cleared while its process runs: the flush. Measured anew in November 2026: 13 to 15 us for one page
    /// by a script, of which the script itself takes one or two; docs/results/overhead.md has 5.9.
    pub clear_range: Nanos,
    /// Additional time of each page of the range (16 pages take 17 us, 512 take 48 to 55).
    pub clear_page: Nanos,
    /// A page that is old already is cleared, which needs no flush (512 take 30 to 36 us).
    pub clear_old: Nanos,
    /// Time per page of a process whose bits are all cleared at once (`clear_refs`: 7 to 8 ms a GiB).
    pub clear_space_page: Nanos,
    /// Additional time that the process itself loses to the clearing of a range ("about 3 us more").
    pub clear_stolen: Nanos,
    /// A page walk that finds its tables in the caches at best. Assumed: two dependent cache accesses.
    pub tlb_miss: Nanos,
    /// Translations that a core keeps, of either size. Assumed: the usual second-level TLB.
    pub tlb_entries: u32,
}

impl Default for MachineCosts {
    fn default() -> Self {
        THIS_MACHINE
    }
}

impl MachineCosts {
    /// Returns the costs of a machine that simulates one block in `nr`, which stands for all of them. Work on pages and
    /// blocks takes `nr` times as long; work that is done once does not.
    #[must_use]
    pub fn for_one_in(self, nr: u32) -> Self {
        let times = |time: Nanos| Nanos(time.0.saturating_mul(u64::from(nr)));
        macro_rules! with_each {
            ($($cost:ident)*) => {
                Self { $($cost: times(self.$cost),)* ..self }
            };
        }
        with_each! {
            minor_fault huge_fault refault_zram refault_disk refault_file compress page_out_whole interrupt
            drop_page scan_page look_at_frame migrate_page collapse split read_contents read_bit read_block
            judge_page judge_huge judge_mixed_page meet_page clear_range clear_page clear_old clear_space_page
            clear_stolen
        }
    }

    /// Returns these costs with the measured ones in their place; costs without a measurement stay.
    #[must_use]
    pub fn calibrated(self, measured: &Calibration, bound: Bound) -> Self {
        let at = |value: Option<Measured>| value.map(|value| value.at(bound));
        let or = |value: Option<f64>, or: Nanos| value.map_or(or, |ns| Nanos(ns.max(0.0) as u64));
        let alone = at(measured.page_out_alone_ns);
        let running = at(measured.page_out_running_ns);
        let interrupt = running.zip(alone).map(|(running, alone)| running - alone);
        // At worst memory has to be compacted for each block that is paged out whole, as for a huge page's first fault.
        let compacting = match bound {
            Bound::High => at(measured.huge_fault_ns).unwrap_or(0.0) / PAGES_PER_BLOCK as f64,
            Bound::Low | Bound::Middle => 0.0,
        };
        let whole = at(measured.page_out_whole_ns).map(|ns| ns + compacting);
        Self {
            minor_fault: or(at(measured.minor_fault_ns), self.minor_fault),
            huge_fault: or(at(measured.huge_fault_ns), self.huge_fault),
            refault_zram: or(at(measured.refault_ns), self.refault_zram),
            compress: or(alone, self.compress),
            interrupt: or(interrupt, self.interrupt),
            alone_lost: at(measured.page_out_running_lost).unwrap_or(self.alone_lost),
            page_out_whole: or(whole, self.page_out_whole),
            whole_lost: at(measured.page_out_whole_lost).unwrap_or(self.whole_lost),
            collapse: or(at(measured.collapse_ns), self.collapse),
            clear_range: or(at(measured.clear_range_ns), self.clear_range),
            clear_page: or(at(measured.clear_page_ns), self.clear_page),
            ..self
        }
    }
}

/// The machines that Isotherm is developed on.
pub const THIS_MACHINE: MachineCosts = MachineCosts {
    minor_fault: Nanos(700),
    huge_fault: Nanos(90_000),
    refault_zram: Nanos(2_800),
    refault_disk: Nanos(2_000),
    refault_file: Nanos(90_000),
    compress: Nanos(5_400),
    page_out_whole: Nanos(5_000),
    whole_lost: 0.04,
    interrupt: Nanos(3_400),
    alone_lost: 0.83,
    drop_page: Nanos(500),
    scan_page: Nanos(150),
    look_at_frame: Nanos(60),
    migrate_page: Nanos(1_200),
    collapse: Nanos(1_300_000),
    split: Nanos(53_000),
    read_contents: Nanos(240_000),
    read_bit: Nanos(40),
    read_block: Nanos(360),
    judge_page: Nanos(10),
    judge_huge: Nanos(440),
    judge_mixed_page: Nanos(50),
    meet_page: Nanos(30),
    first_interval: Nanos(13_000_000),
    wake: Nanos(100_000),
    batch: Nanos(60_000),
    clear_range: Nanos(12_000),
    clear_page: Nanos(75),
    clear_old: Nanos(65),
    clear_space_page: Nanos(30),
    clear_stolen: Nanos(3_000),
    tlb_miss: Nanos(30),
    tlb_entries: 1536,
};

/// The costs of the kernel's DAMON, which the published evaluation of its schemes used: it clears a bit where it finds
/// it, and flushes nothing.
pub const KERNEL_DAMON: MachineCosts = MachineCosts {
    // The time of a kernel thread. Assumed.
    wake: Nanos(5_000),
    batch: Nanos(0),
    judge_page: Nanos(0),
    judge_huge: Nanos(0),
    judge_mixed_page: Nanos(0),
    meet_page: Nanos(0),
    first_interval: Nanos(0),
    // The monitor is a kernel thread on one of 36 CPUs; what its interrupts took there is not known.
    interrupt: Nanos(0),
    alone_lost: 0.0,
    // The same as [`MachineCosts::scan_page`].
    clear_range: Nanos(150),
    clear_page: Nanos(0),
    clear_old: Nanos(150),
    // A translation is filled in anew, once the entry is evicted. Assumed: one page walk.
    clear_stolen: Nanos(30),
    ..THIS_MACHINE
};

/// The machine of the published tiering experiments: 64 CPUs, 512 GB and 96 GB, monitored by the kernel's DAMON.
pub const PUBLISHED_TIERS: MachineCosts = MachineCosts {
    migrate_page: MIGRATE_PAGE,
    // The time to fill memory is given, faults included.
    minor_fault: Nanos(0),
    ..KERNEL_DAMON
};
