//! *HMSDK v2.0 Performance Results* and *DAMON based tiered memory management for CXL memory* (both
//! 2024): all cells of both tables.

use std::sync::OnceLock;

use super::{PublishedComparison, Role, published};
use crate::experiment::redis::{Reads, reads};
use crate::experiment::tiering::{KeyDistribution, Placement, TieringOutcome, TieringSetting, run};
use isotherm_sim::simulation::SimContextSpec;

/// The two publications, which name the tiered configuration differently.
const SOURCES: [(&str, &str, &str); 2] = [
    (
        "HMSDK v2.0",
        "HMSDK 2.0",
        include_str!("../../../../experiments/published/hmsdk_v2_redis_ycsb.csv"),
    ),
    (
        "DAMON tiered v4",
        "DAMON tiered",
        include_str!("../../../../experiments/published/damon_tiered_v4_redis_ycsb.csv"),
    ),
];

/// Sizes of the cold block, in GB as published.
pub const COLD_GIB: [u64; 7] = [440, 450, 460, 470, 480, 490, 500];

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TieringRun {
    /// Distribution of the records that are read.
    pub distribution: KeyDistribution,
    /// Placement of memory.
    pub placement: Placement,
    /// Size of the cold block.
    pub cold_gib: u64,
}

/// All cells that follow from placement, the longest first. The two distributions alternate: so where two cells run at
/// the same time, neither waits for the reads that the other computes.
pub fn runs() -> Vec<TieringRun> {
    let mut runs = Vec::new();
    for placement in [Placement::Tiered, Placement::Default] {
        for cold_gib in COLD_GIB {
            runs.extend(KeyDistribution::ALL.map(|distribution| TieringRun {
                distribution,
                placement,
                cold_gib,
            }));
        }
    }
    runs
}

impl TieringRun {
    /// A short title of the run.
    pub fn title(&self) -> String {
        let (distribution, how) = (self.distribution.name(), self.placement.name());
        format!("redis, {distribution}, {how}, {} GB cold", self.cold_gib)
    }

    /// Runs it; where memory is tiered, the contexts `tiered` monitor the nodes and migrate. It takes some seconds and
    /// 2 GiB of memory.
    pub fn make(&self, tiered: &[SimContextSpec]) -> TieringOutcome {
        let setting = TieringSetting {
            all_slow: all_slow(self.distribution),
            ..TieringSetting::published(self.cold_gib)
        };
        let contexts = self.placement.contexts(tiered);
        run(&setting, contexts, reads_of(self.distribution))
    }
}

/// Returns the additional time of redis on CXL memory alone, as a share: the mean of the published ones.
fn all_slow(distribution: KeyDistribution) -> f64 {
    let row = [distribution.name(), "normalized_time", "CXL-only"];
    let times = SOURCES
        .iter()
        .filter_map(|(_, _, csv)| published(csv, &row, "cold_0G"));
    let times: Vec<f64> = times.collect();
    times.iter().sum::<f64>() / times.len() as f64 - 1.0
}

/// The published reads, which are the same in all cells, and take a second to compute.
pub(super) fn reads_of(distribution: KeyDistribution) -> &'static Reads {
    static READS: [OnceLock<Reads>; 2] = [OnceLock::new(), OnceLock::new()];
    READS[distribution as usize].get_or_init(|| reads(&TieringSetting::published(0), distribution))
}

/// Returns the notes that a reader must know before the numbers.
pub fn notes(comparisons: &[PublishedComparison]) -> Vec<String> {
    let off = comparisons.iter().filter(|row| row.metric == "CXL use");
    let off = off.filter_map(|row| Some((row.simulated? - row.published?).abs()));
    vec![
        "The default's cells are mostly arithmetic of capacity: what does not fit into DRAM is on CXL \
         memory, whatever is simulated."
            .into(),
        format!(
            "CXL use is up to {:.1} GB off the published one.",
            off.fold(0.0, f64::max)
        ),
    ]
}

/// Compares the outcomes of runs with those of each publication.
pub fn comparisons(runs: &[(TieringRun, TieringOutcome)]) -> Vec<PublishedComparison> {
    let mut all = Vec::new();
    for source in &SOURCES {
        for (run, outcome) in runs {
            all.extend(of_run(source, run, outcome));
        }
    }
    all
}

fn of_run(
    (source, tiered, csv): &(&'static str, &'static str, &str),
    run: &TieringRun,
    outcome: &TieringOutcome,
) -> [PublishedComparison; 2] {
    let configuration = match run.placement {
        Placement::Default => "default",
        Placement::Tiered => tiered,
    };
    let column = format!("cold_{}G", run.cold_gib);
    let cell = |metric, configuration, column: &str| {
        let row = [run.distribution.name(), metric, configuration];
        published(csv, &row, column)
    };
    // The time with everything on CXL memory is the publication's own.
    let all_slow = cell("normalized_time", "CXL-only", "cold_0G").unwrap_or(1.0);
    let comparison = |metric: &str, unit, simulated, published, role| PublishedComparison {
        experiment: source,
        configuration,
        case: format!("{}, {} GB", run.distribution.name(), run.cold_gib),
        metric: metric.into(),
        unit,
        simulated: Some(simulated),
        published,
        role,
    };
    let is_default = run.placement == Placement::Default;
    // Memory that does not fit into DRAM is on CXL memory: only migration decides anything.
    let role = if is_default {
        Role::Arithmetic
    } else {
        Role::Predicted
    };
    [
        comparison(
            "time",
            "of DRAM-only",
            1.0 + (all_slow - 1.0) * outcome.slow_share,
            cell("normalized_time", configuration, &column),
            role,
        ),
        comparison(
            "CXL use",
            "GB",
            outcome.slow_gib,
            cell("cxl_gb", configuration, &column),
            // The memory of the system itself was calibrated on this cell.
            if is_default && run.cold_gib == COLD_GIB[0] {
                Role::Calibrated
            } else {
                role
            },
        ),
    ]
}

/// A figure of a publication: values by the size of the cold block in GB.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The publication, the distribution and the quantity.
    pub title: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Simulated and published lines by their names.
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Builds figures of redis' slowdown and of its CXL use, for each publication and distribution.
pub fn figures(runs: &[(TieringRun, TieringOutcome)]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for source in &SOURCES {
        for distribution in KeyDistribution::ALL {
            let percent = |time: f64| 100.0 * (time - 1.0);
            let title = |what| format!("{}, {}: {what}", source.0, distribution.name());
            figures.push(Figure {
                title: title("slowdown"),
                unit: "percent slower",
                lines: lines(source, distribution, runs, 0, percent),
            });
            figures.push(Figure {
                title: title("redis on CXL memory"),
                unit: "GB",
                lines: lines(source, distribution, runs, 1, |gb| gb),
            });
        }
    }
    figures
}

/// Returns the lines of comparison number `which` of each run of a distribution.
fn lines(
    source: &(&'static str, &'static str, &str),
    distribution: KeyDistribution,
    runs: &[(TieringRun, TieringOutcome)],
    which: usize,
    value: impl Fn(f64) -> f64,
) -> Vec<(&'static str, Vec<(f64, f64)>)> {
    let names = [
        (Placement::Default, "default, published"),
        (Placement::Tiered, "tiered, published"),
    ];
    let mut lines = Vec::new();
    for (placement, published) in names {
        let is_meant =
            |run: &TieringRun| run.placement == placement && run.distribution == distribution;
        let cells = runs.iter().filter(|(run, _)| is_meant(run));
        let points: Vec<(f64, f64, Option<f64>)> = cells
            .map(|(run, outcome)| {
                let comparison = &of_run(source, run, outcome)[which];
                let simulated = value(comparison.simulated.unwrap_or_default());
                let published = comparison.published.map(&value);
                (run.cold_gib as f64, simulated, published)
            })
            .collect();
        let simulation = points.iter().map(|(x, y, _)| (*x, *y)).collect();
        let publication = points.iter().filter_map(|(x, _, y)| Some((*x, (*y)?)));
        lines.push((placement.name(), simulation));
        lines.push((published, publication.collect()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_cells_are_found() {
        let cell = |row: [&str; 3], column| published(SOURCES[0].2, &row, column);
        let time = cell(["zipfian", "normalized_time", "HMSDK 2.0"], "cold_450G");
        assert_eq!(time, Some(1.04));
        let used = |column| cell(["latest", "cxl_gb", "default"], column);
        assert_eq!((used("cold_500G"), used("cold_0G")), (Some(50.6), None));
        for (_, tiered, csv) in SOURCES {
            let row = ["zipfian", "normalized_time", tiered];
            assert!(published(csv, &row, "cold_440G").is_some());
        }
    }
}
