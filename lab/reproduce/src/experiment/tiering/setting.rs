//! Sizes and times of a tiering experiment.

use isotherm_engine::Nanos;

use isotherm_sim::memory::BLOCK_PAGES;

/// Distribution of the records that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDistribution {
    /// A few are read much more often than the others, wherever they lie (YCSB's scrambled zipfian).
    Zipfian,
    /// The last loaded are read most often (YCSB's latest).
    Latest,
}

impl KeyDistribution {
    /// All distributions, in the order of tables.
    pub const ALL: [Self; 2] = [Self::Zipfian, Self::Latest];

    /// Returns its name in titles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
        }
    }
}

/// Sizes and times of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieringSetting {
    /// Memory of the fast node, in MiB as all sizes.
    pub fast_mib: u64,
    /// Memory of the slow node.
    pub slow_mib: u64,
    /// DRAM that the system itself needs. Calibrated on the CXL use by default at 440 GB: the memory
    /// map of both nodes takes 9.5 of it.
    pub system_mib: u64,
    /// The cold block.
    pub cold_mib: u64,
    /// redis' anonymous memory in MiB.
    pub anon_mib: u64,
    /// Its snapshot in the page cache.
    pub file_mib: u64,
    /// Records in redis.
    pub records: u64,
    /// Reads per second.
    pub reads_per_s: f64,
    /// Time to fill the cold block.
    pub fill: Nanos,
    /// Time to load redis after that.
    pub load: Nanos,
    /// Time for which clients read.
    pub run: Nanos,
    /// Additional time of redis with all of its memory on the slow node, as a share: 0.2 is a fifth.
    pub all_slow: f64,
    /// Seed of every draw.
    pub seed: u64,
}

impl TieringSetting {
    /// Returns the published setting: YCSB with 30 M records, 5 M operations a minute.
    pub fn published(cold_gib: u64) -> Self {
        Self {
            fast_mib: 512 << 10,
            slow_mib: 96 << 10,
            system_mib: 17_920,
            cold_mib: cold_gib << 10,
            anon_mib: 53_862,
            file_mib: 33 * 1024,
            records: 30_000_000,
            reads_per_s: 5_000_000.0 / 60.0,
            fill: Nanos::from_millis(120_000),
            load: Nanos::from_millis(180_000),
            run: Nanos::from_millis(3_000_000),
            all_slow: 0.2,
            seed: 1,
        }
    }

    /// redis' anonymous memory in pages, in whole huge pages.
    pub(crate) fn anon_pages(&self) -> u64 {
        blocks(self.anon_mib) * BLOCK_PAGES
    }
}

pub(super) fn blocks(mib: u64) -> u64 {
    mib / 2
}
