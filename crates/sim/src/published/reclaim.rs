//! *DAMON: data access monitor*, v24, and its physical memory patches (SeongJae Park, 2021): resident
//! memory under each configuration, for synthetic programs with the published footprints.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Comparison, Role};
use crate::experiment::reclaim::{Configuration, Profile, ReclaimOutcome, run};

const RSS: &str = include_str!("../../../../experiments/published/damon_v24_rss_kib.csv");
const PPRCL_RSS: &str = include_str!("../../../../experiments/published/pprcl_rss_kib.csv");
const RUNTIME: &str =
    include_str!("../../../../experiments/published/damon_v24_runtime_seconds.csv");
const PPRCL_RUNTIME: &str =
    include_str!("../../../../experiments/published/pprcl_runtime_seconds.csv");

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReclaimRun {
    /// Place among the published programs.
    program: usize,
    /// Place among the configurations.
    configuration: usize,
}

/// All runs of some configurations.
pub struct Evaluation {
    configurations: Vec<Configuration>,
    programs: Vec<(&'static str, Profile)>,
}

/// A column of a table, by program; the last rows, which are sums, are not programs.
fn column(csv: &'static str, name: &str) -> BTreeMap<&'static str, f64> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let at = lines
        .next()
        .and_then(|head| head.iter().position(|field| *field == name));
    let cell = |fields: Vec<&'static str>| Some((fields[0], fields.get(at?)?.parse().ok()?));
    lines
        .filter(|fields| fields[0].contains('/'))
        .filter_map(cell)
        .collect()
}

impl Evaluation {
    /// Of these configurations, `orig` among them.
    pub fn new(configurations: Vec<Configuration>) -> Self {
        let (orig, prcl, thp) = (column(RSS, "orig"), column(RSS, "prcl"), column(RSS, "thp"));
        let programs = orig.iter().filter_map(|(name, kib)| {
            let profile = Profile::new(
                (kib * 1024.0) as u64,
                1.0 - prcl.get(name)? / kib,
                thp.get(name)? / kib - 1.0,
            );
            Some((*name, profile))
        });
        Self {
            programs: programs.collect(),
            configurations,
        }
    }

    /// All runs, the largest first.
    pub fn runs(&self) -> Vec<ReclaimRun> {
        let mut programs: Vec<usize> = (0..self.programs.len()).collect();
        programs.sort_by_key(|program| std::cmp::Reverse(self.programs[*program].1.bytes));
        let runs = programs.into_iter().flat_map(|program| {
            (0..self.configurations.len()).map(move |configuration| ReclaimRun {
                program,
                configuration,
            })
        });
        runs.collect()
    }

    /// What a run is about.
    pub fn title(&self, run: &ReclaimRun) -> String {
        let (program, _) = self.programs[run.program];
        format!(
            "like {program}, {}",
            self.configurations[run.configuration].name
        )
    }

    /// Makes it.
    pub fn make(&self, at: &ReclaimRun) -> ReclaimOutcome {
        run(
            &self.programs[at.program].1,
            &self.configurations[at.configuration],
        )
    }

    /// For each configuration the mean, over the programs, of what it changed of resident memory, and
    /// the mean slowdown; and of each program what ethp and pprcl, which nothing was calibrated on,
    /// changed.
    pub fn comparisons(&self, runs: &[(ReclaimRun, ReclaimOutcome)]) -> Vec<Comparison> {
        let of = |program: usize, name: &str| {
            let found = runs.iter().find(|(run, _)| {
                run.program == program && self.configurations[run.configuration].name == name
            });
            found.map(|(_, outcome)| *outcome)
        };
        let mut all = Vec::new();
        for configuration in &self.configurations {
            let name = configuration.name;
            if name == "orig" {
                continue;
            }
            let published = |program, csv: [&'static str; 2]| {
                let [damon, physical] = csv;
                let csv = if name == "pprcl" { physical } else { damon };
                let (orig, with) = (column(csv, "orig"), column(csv, name));
                Some(100.0 * (with.get(program)? / orig.get(program)? - 1.0))
            };
            let mut rss: Vec<(f64, f64)> = Vec::new();
            let mut slowdowns: Vec<(f64, f64)> = Vec::new();
            for (at, (program, _)) in self.programs.iter().enumerate() {
                let (Some(orig), Some(with)) = (of(at, "orig"), of(at, name)) else {
                    continue;
                };
                let Some(told) = published(program, [RSS, PPRCL_RSS]) else {
                    continue;
                };
                let simulated = 100.0 * (with.rss_kib / orig.rss_kib - 1.0);
                rss.push((simulated, told));
                let told_runtime = published(program, [RUNTIME, PPRCL_RUNTIME]);
                slowdowns.push((100.0 * with.slowdown, told_runtime.unwrap_or_default()));
                if matches!(name, "ethp" | "pprcl") {
                    let role = Role::Predicted;
                    all.push(comparison(name, program, "RSS", simulated, told, role));
                }
            }
            let mean = |values: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
                values.iter().map(of).sum::<f64>() / values.len().max(1) as f64
            };
            let role = match name {
                "thp" | "prcl" => Role::Calibrated,
                _ => Role::Predicted,
            };
            let both = |values: &[(f64, f64)]| (mean(values, |v| v.0), mean(values, |v| v.1));
            let (simulated, told) = both(&rss);
            all.push(comparison(name, "mean of 24", "RSS", simulated, told, role));
            // What reclamation and huge pages do to speed is not simulated.
            if matches!(name, "rec" | "prec") {
                let (simulated, told) = both(&slowdowns);
                let role = Role::Predicted;
                all.push(comparison(
                    name,
                    "mean of 24",
                    "runtime",
                    simulated,
                    told,
                    role,
                ));
            }
        }
        all
    }
}

/// What a reader must know before the numbers: what the means hide.
pub fn notes(comparisons: &[Comparison]) -> Vec<String> {
    let of = |configuration: &str| {
        let prefix = format!("{configuration}, like ");
        let rows = comparisons
            .iter()
            .filter(|row| row.configuration.starts_with(&prefix));
        let pairs: Vec<(f64, f64)> = rows
            .filter_map(|row| Some((row.simulated, row.published?)))
            .collect();
        let errors: Vec<f64> = pairs
            .iter()
            .map(|(ours, theirs)| (ours - theirs).abs())
            .collect();
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        let worst = errors.iter().copied().fold(0.0, f64::max);
        let unchanged = pairs.iter().filter(|(ours, _)| ours.abs() < 0.005).count();
        format!(
            "{configuration}: the mean of {} programs hides a mean error of {mean:.1} points a program, \
             {worst:.1} at worst; {unchanged} of them come out as 0.00.",
            pairs.len()
        )
    };
    vec![of("pprcl"), of("ethp")]
}

fn comparison(
    configuration: &str,
    program: &str,
    metric: &str,
    simulated: f64,
    published: f64,
    role: Role,
) -> Comparison {
    let like = if program.contains('/') { "like " } else { "" };
    Comparison {
        experiment: "DAMON v24, pprcl",
        configuration: format!("{configuration}, {like}{program}"),
        metric: metric.to_owned(),
        unit: "% change",
        simulated,
        published: Some(published),
        role,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mean_hides_is_said() {
        let row = |program, simulated, published| {
            comparison(
                "pprcl",
                program,
                "RSS",
                simulated,
                published,
                Role::Predicted,
            )
        };
        let rows = [
            row("a/b", 0.0, -20.0),
            row("a/c", -30.0, -20.0),
            row("mean of 2", -15.0, -20.0),
        ];
        let notes = notes(&rows);
        assert!(
            notes[0].contains("mean of 2 programs hides a mean error of 15.0 points a program, 20.0 at worst; 1 of"),
            "{notes:?}"
        );
    }

    #[test]
    fn all_programs_have_their_published_footprint() {
        let evaluation = Evaluation::new(Vec::new());
        assert_eq!(evaluation.programs.len(), 24);
        let (name, profile) = evaluation.programs[0];
        assert_eq!((name, profile.bytes), ("parsec3/blackscholes", 601_637_683));
        assert!((0.3..0.4).contains(&profile.hot), "{profile:?}");
        let bloated = evaluation
            .programs
            .iter()
            .find(|p| p.0 == "splash2x/ocean_ncp");
        let filled = bloated.expect("it is there").1.filled;
        assert!((filled - 1.0 / 1.8155).abs() < 0.001, "{filled}");
    }
}
