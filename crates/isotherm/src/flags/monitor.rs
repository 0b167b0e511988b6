//! Monitoring: the way to watch.

use anyhow::{Context as _, ensure};
use isotherm_config::{ClearBy, Method, Monitoring};
use isotherm_engine::units::{parse_share, parse_time};
use isotherm_engine::{IntervalsGoal, Nanos};
use isotherm_policy::scheme::Bounds;

use super::names::one_of;

/// Options of monitoring.
#[derive(clap::Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct MonitorArgs {
    /// Spend at most this share of one CPU on watching, with what it takes from the targets [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = parse_budget)]
    pub(crate) cpu_budget: Option<f64>,

    /// Watch by DAMON's rules: 5 ms / 100 ms / 1 s, 10 to 1000 regions, one page of each at a time
    #[arg(long, conflicts_with_all = ["pages", "cpu_budget"])]
    pub(crate) faithful: bool,

    /// Read every page's accessed bit at every look: exact, and no budget
    #[arg(long)]
    pub(crate) pages: bool,

    /// Check accesses this often; intervals given by hand switch the budget off [default: as the budget allows]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) sample_interval: Option<Nanos>,

    /// Count checks over this time; with --pages, look this often [default: as the budget allows; 1s with --pages]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) aggregation_interval: Option<Nanos>,

    /// Look at mappings and processes this often [default: as the budget allows]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) update_interval: Option<Nanos>,

    /// Keep the number of regions within these, e.g. 10-1000
    #[arg(long, value_name = "MIN-MAX", value_parser = parse_counts)]
    pub(crate) regions: Option<(u32, u32)>,

    /// Tune the intervals until this share of the possible accesses is seen, e.g. 4%
    /// (DAMON's intervals goal: 3 aggregations, 5 ms to 10 s)
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "cpu_budget")]
    pub(crate) access_goal: Option<f64>,

    /// Take stacks of page faults, too, for `report blame`, within this share of one CPU more [default: none; 0.5%
    /// without SHARE]
    #[arg(long, value_name = "SHARE", num_args = 0..=1, require_equals = true, default_missing_value = "0.5%", value_parser = parse_budget)]
    pub(crate) stacks: Option<f64>,

    /// Seed every random choice with this number
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Hold the target up for at most this time at one look of --pages [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "pages")]
    pub(crate) max_stall: Option<Nanos>,

    /// Clear the bits of --pages in this way [default: auto]
    #[arg(long, value_parser = one_of(CLEAR_BY), requires = "pages")]
    pub(crate) clear_by: Option<ClearBy>,

    /// With --pages: record memory that several targets map once, under the first of them
    #[arg(long, requires = "pages")]
    pub(crate) once: bool,
}

const CLEAR_BY: &[(&str, &str, ClearBy)] = &[
    (
        "auto",
        "Whichever costs less, of those that stay within --max-stall",
        ClearBy::Auto,
    ),
    (
        "madvise",
        "process_madvise(MADV_COLD), in chunks: the target goes on meanwhile",
        ClearBy::Madvise,
    ),
    (
        "clear-refs",
        "/proc/PID/clear_refs: cheap, but holds the target's faults up; pages in the TLB may look idle",
        ClearBy::ClearRefs,
    ),
];

impl MonitorArgs {
    pub(crate) fn monitoring(&self) -> Monitoring {
        let method = if self.pages {
            Some(Method::Pages)
        } else {
            self.faithful.then_some(Method::Faithful)
        };
        Monitoring {
            method,
            cpu_budget: self.cpu_budget,
            sample_interval: self.sample_interval,
            aggregation_interval: self.aggregation_interval,
            update_interval: self.update_interval,
            intervals_goal: self.access_goal.map(|share| IntervalsGoal {
                access_bp: (share * 10_000.0).round() as u32,
                ..IntervalsGoal::default()
            }),
            nr_regions: self.regions.map(|(min, max)| Bounds { min, max }),
            max_stall: self.max_stall,
            clear_by: self.clear_by,
            counts_once: self.once,
        }
    }
}

fn parse_budget(text: &str) -> anyhow::Result<f64> {
    let share = parse_share(text)?;
    ensure!(
        share > 0.0,
        "a budget of nothing allows no monitoring; try 0.5%"
    );
    Ok(share)
}

fn parse_counts(text: &str) -> anyhow::Result<(u32, u32)> {
    let count = |part: &str| part.trim().replace(',', "").parse::<u32>().ok();
    let counts = text
        .split_once('-')
        .and_then(|(min, max)| Some((count(min)?, count(max)?)));
    counts.with_context(|| format!("'{text}' is not of the form MIN-MAX, e.g. 10-1000"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use isotherm_config::{MonitorSpec, ProcessSpec, Request, TargetSpec};
    use isotherm_engine::Attributes;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        monitor: MonitorArgs,
    }

    fn monitor(line: &str) -> anyhow::Result<MonitorSpec> {
        let line = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))?;
        let request = Request {
            targets: Some(TargetSpec::named(vec![ProcessSpec::Pid(7)])),
            monitoring: line.monitor.monitoring(),
            seed: line.monitor.seed,
            ..Request::default()
        };
        Ok(request.watch()?.contexts.remove(0).monitor)
    }

    #[test]
    fn the_budget_is_the_default_and_intervals_by_hand_switch_it_off() {
        let budget = |line: &str| match monitor(line).expect("fine") {
            MonitorSpec::Tables(attributes) => attributes.cpu_budget,
            other => panic!("{other:?}"),
        };
        assert!((budget("") - 0.01).abs() < 1e-9);
        assert!((budget("--cpu-budget 2%") - 0.02).abs() < 1e-9);
        let faithful = monitor("--faithful");
        assert!(matches!(faithful, Ok(MonitorSpec::Regions(a)) if a == Attributes::default()));
        let by_hand = monitor("--sample-interval 10ms").expect("fine");
        assert!(
            matches!(by_hand, MonitorSpec::Regions(a) if a.aggregation_interval == Nanos::from_millis(200))
        );
        assert!(monitor("--sample-interval 10ms --cpu-budget 1%").is_err());
        assert!(monitor("--pages --cpu-budget 1%").is_err());
        assert!(monitor("--cpu-budget 0%").is_err());
        assert!(monitor("--regions 10").is_err());
    }
}
