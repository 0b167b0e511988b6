//! The second machine of *HMSDK v2.0 Performance Results*: "A similar evaluation was done in another machine that has
//! 256GB of local DRAM and 96GB of CXL memory while the size of cold memory changed from about 190 GB to 240 GB. The
//! performance slowdown is reduced from 20 ~ 24% for "default" to 5 ~ 7% for HMSDK 2.0."
//!
//! That is all that was published of it. The inputs are therefore:
//! - its two sizes, and both ends of the cold block's;
//! - redis, its snapshot and clients as on the first machine (with zipfian reads);
//! - the memory of the system itself, as on the first but for the memory map, which follows the machine's size;
//! - the slowdown of redis on CXL memory alone. The greatest slowdown by default stands for it, when hardly anything of
//!   redis is in DRAM.

use super::tiering::reads_of;
use super::{PublishedComparison, Role};
use crate::experiment::tiering::{KeyDistribution, Placement, TieringOutcome, TieringSetting, run};
use isotherm_sim::simulation::SimContextSpec;

/// Both ends of the cold block's size, in GB as published.
pub const COLD_GIB: [u64; 2] = [190, 240];
const FAST_MIB: u64 = 256 << 10;
const SLOW_MIB: u64 = 96 << 10;
/// The published slowdowns in percent: the least and the greatest, by default and with HMSDK 2.0.
const DEFAULT_PERCENT: [f64; 2] = [20.0, 24.0];
const TIERED_PERCENT: [f64; 2] = [5.0, 7.0];
/// Pages of memory for each page of the kernel's memory map (`struct page`, 64 bytes each).
const MAP_SHARE: u64 = 4096 / 64;

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondRun {
    /// Placement of memory.
    pub placement: Placement,
    /// Size of the cold block.
    pub cold_gib: u64,
}

/// All cells, the longest first.
pub fn runs() -> Vec<SecondRun> {
    let of = |placement| {
        COLD_GIB.map(|cold_gib| SecondRun {
            placement,
            cold_gib,
        })
    };
    [of(Placement::Tiered), of(Placement::Default)].concat()
}

/// Returns the setting of the second machine, as far as it was published.
pub fn setting(cold_gib: u64) -> TieringSetting {
    let first = TieringSetting::published(cold_gib);
    let map = |setting: &TieringSetting| (setting.fast_mib + setting.slow_mib) / MAP_SHARE;
    let second = TieringSetting {
        fast_mib: FAST_MIB,
        slow_mib: SLOW_MIB,
        all_slow: DEFAULT_PERCENT[1] / 100.0,
        ..first
    };
    TieringSetting {
        system_mib: first.system_mib - map(&first) + map(&second),
        ..second
    }
}

impl SecondRun {
    /// A short title of the run.
    pub fn title(&self) -> String {
        let how = self.placement.name();
        format!("redis on 256 GB, {how}, {} GB cold", self.cold_gib)
    }

    /// Runs it; where memory is tiered, the contexts `tiered` monitor the nodes and migrate.
    pub fn make(&self, tiered: &[SimContextSpec]) -> TieringOutcome {
        let contexts = self.placement.contexts(tiered);
        let reads = reads_of(KeyDistribution::Zipfian);
        run(&setting(self.cold_gib), contexts, reads)
    }
}

/// Compares the outcomes of runs with the published ones.
pub fn comparisons(runs: &[(SecondRun, TieringOutcome)]) -> Vec<PublishedComparison> {
    let mut all = Vec::new();
    for (placement, name, published) in [
        (Placement::Default, "default", DEFAULT_PERCENT),
        (Placement::Tiered, "HMSDK 2.0", TIERED_PERCENT),
    ] {
        for (cold_gib, published) in COLD_GIB.into_iter().zip(published) {
            let is_it = |run: &SecondRun| run.placement == placement && run.cold_gib == cold_gib;
            let Some((run, outcome)) = runs.iter().find(|(run, _)| is_it(run)) else {
                continue;
            };
            let all_slow = setting(run.cold_gib).all_slow;
            // The slowdown of redis on CXL memory alone was taken from this cell.
            let is_input = placement == Placement::Default && cold_gib == COLD_GIB[1];
            all.push(PublishedComparison {
                experiment: "HMSDK v2.0, 256 GB",
                configuration: name,
                case: format!("zipfian, {cold_gib} GB"),
                metric: "slowdown".into(),
                unit: "% of DRAM-only",
                simulated: Some(100.0 * all_slow * outcome.slow_share),
                published: Some(published),
                role: if is_input {
                    Role::Calibrated
                } else {
                    Role::Predicted
                },
            });
        }
    }
    all
}

/// Returns the note that a reader must know before the numbers.
pub fn note() -> String {
    let setting = setting(COLD_GIB[0]);
    format!(
        "Inputs of the second machine (256 GB), of which only the ranges of four numbers were published: redis, its \
         snapshot and its reads are the first machine's (zipfian); {:.1} GiB for the system itself; {:.0} % for redis on \
         CXL memory alone, its greatest published slowdown by default. That the least slowdown belongs to the least cold \
         block is an assumption.",
        setting.system_mib as f64 / 1024.0,
        100.0 * setting.all_slow
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_needs_as_much_but_for_its_memory_map() {
        let (first, second) = (TieringSetting::published(0), setting(190));
        assert_eq!(first.system_mib - second.system_mib, 256 * 1024 / 64);
        assert_eq!(second.node_bytes()[1], first.node_bytes()[1]);
    }

    #[test]
    fn every_published_number_stands_beside_a_cell() {
        let outcome = TieringOutcome {
            slow_share: 1.0,
            slow_gib: 0.0,
            demoted: 0,
            promoted: 0,
            dropped: 0,
        };
        let made: Vec<_> = runs().into_iter().map(|run| (run, outcome)).collect();
        let reported = comparisons(&made);
        let published: Vec<_> = reported.iter().filter_map(|row| row.published).collect();
        assert_eq!(published, [20.0, 24.0, 5.0, 7.0]);
        let is_all_slow =
            |row: &PublishedComparison| row.simulated.is_some_and(|n| (n - 24.0).abs() < 1e-9);
        assert!(reported.iter().all(is_all_slow));
    }
}
