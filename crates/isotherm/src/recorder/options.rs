//! What to watch and how: the flags that `record` and `top` share, and what they come to.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use isotherm_engine::table::TableAttributes;
use isotherm_engine::{
    AddressRange, Attributes, CpuBudget, IntervalsGoal, Nanos, PAGE_SIZE, Strategy,
};

use crate::units::{parse_bytes, parse_duration, parse_share};

/// Where the output of a command goes that is run to be watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CommandOutput {
    /// To where ours goes.
    #[default]
    Inherited,
    /// Nowhere, and it has no input: for who draws on the terminal.
    Discarded,
}

/// The share of one CPU that watching may take unless the user says otherwise.
pub(crate) const CPU_BUDGET: f64 = 0.01;

/// One of the contexts of a session: what it watches, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Context {
    /// What tells it from the session's other contexts; `None` where it is the only one.
    pub(crate) name: Option<String>,
    pub(crate) targets: TargetArgs,
    pub(crate) how: MonitorArgs,
}

impl Context {
    /// The only context of a session.
    pub(crate) fn only(targets: &TargetArgs, how: &MonitorArgs) -> Self {
        Self {
            name: None,
            targets: targets.clone(),
            how: how.clone(),
        }
    }
}

/// What to watch.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "What to watch")]
pub(crate) struct TargetArgs {
    /// Running processes, by id or name; several with commas or by repeating the flag
    #[arg(short, long, value_name = "PID|NAME", value_delimiter = ',')]
    pub(crate) pid: Vec<ProcessArg>,

    /// Every process of this control group (v1 or v2) and of those below it, as they come and go
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "physical", "command"])]
    pub(crate) cgroup: Option<PathBuf>,

    /// The machine's physical memory
    #[arg(long, conflicts_with_all = ["pid", "command"])]
    pub(crate) physical: bool,

    /// A simulated process of 1 GiB, where real ones cannot be watched
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "physical", "command"])]
    pub(crate) simulated: bool,

    /// With --physical: only the memory of this NUMA node
    #[arg(long, value_name = "N", requires = "physical", conflicts_with_all = ["pid", "cgroup", "command"])]
    pub(crate) node: Option<u32>,

    /// Only these addresses (DAMON's initial regions), e.g. 0x7f0000000000-0x7f4000000000
    #[arg(long, value_name = "A-B", value_parser = parse_range, value_delimiter = ',')]
    pub(crate) range: Vec<AddressRange>,

    /// Watch the processes that descend from the targets, too (of a running process, not those whose
    /// parent has ended before)
    #[arg(long)]
    pub(crate) children: bool,

    /// A command to run and watch
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub(crate) command: Vec<OsString>,

    /// Where the command's output goes.
    #[arg(skip)]
    pub(crate) command_output: CommandOutput,
}

/// A process as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessArg {
    /// By its id.
    Pid(u32),
    /// All that have this command name.
    Named(String),
}

impl std::fmt::Display for ProcessArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pid(pid) => pid.fmt(f),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl std::str::FromStr for ProcessArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("no process has the id 0".into()),
            Ok(pid) => Ok(Self::Pid(pid)),
            Err(_) if text.is_empty() || text.bytes().all(|c| c.is_ascii_digit() || c == b'-') => {
                Err(format!("'{text}' is neither a process id nor a name"))
            }
            Err(_) => Ok(Self::Named(text.to_owned())),
        }
    }
}

impl TargetArgs {
    /// The ids of the processes that are named, each once. Several of one name are said.
    pub(crate) fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for process in &self.pid {
            match process {
                ProcessArg::Pid(pid) => pids.push(*pid),
                ProcessArg::Named(name) => {
                    let found = isotherm_linux::process::named(name);
                    ensure!(
                        !found.is_empty(),
                        "no process is named '{name}'; `ps -eo pid,comm` lists names"
                    );
                    if found.len() > 1 {
                        let list: Vec<String> = found.iter().map(u32::to_string).collect();
                        eprintln!(
                            "isotherm: '{name}' is {} processes: {}",
                            list.len(),
                            list.join(", ")
                        );
                    }
                    pids.extend(found);
                }
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        pids.retain(|pid| seen.insert(*pid));
        Ok(pids)
    }

    /// Refuses a call that names nothing to watch.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let named = !self.pid.is_empty()
            || self.cgroup.is_some()
            || self.physical
            || self.simulated
            || !self.command.is_empty();
        ensure!(
            named,
            "nothing to watch; name --pid PID, --cgroup PATH, --physical, or -- COMMAND"
        );
        Ok(())
    }
}

/// How to watch.
#[derive(clap::Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "How to watch")]
pub(crate) struct MonitorArgs {
    /// Most CPU time for watching, with what it takes from the targets, as a share of one CPU
    /// [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = parse_budget)]
    pub(crate) cpu_budget: Option<f64>,

    /// By DAMON's rules: 5 ms / 100 ms / 1 s, 10 to 1000 regions, one page of each at a time
    #[arg(long, conflicts_with_all = ["pages", "cpu_budget"])]
    pub(crate) faithful: bool,

    /// Read every page's accessed bit at every look: exact, and no budget
    #[arg(long)]
    pub(crate) pages: bool,

    /// Time between two checks; intervals given by hand switch the budget off
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) sample_interval: Option<Nanos>,

    /// Time over which checks are counted; with --pages, the time between two looks [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) aggregation_interval: Option<Nanos>,

    /// Time between two looks at mappings and processes
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) update_interval: Option<Nanos>,

    /// Least and most regions, e.g. 10-1000
    #[arg(long, value_name = "MIN-MAX", value_parser = parse_counts)]
    pub(crate) regions: Option<(u32, u32)>,

    /// Tune the intervals until this share of the possible accesses is seen, e.g. 4%
    /// (DAMON's intervals goal: 3 aggregations, 5 ms to 10 s)
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "cpu_budget")]
    pub(crate) access_goal: Option<f64>,

    /// Sample regions as DAMON does, within the budget, but with these improvements on it:
    /// clusters, populated, weighted, aligned, all or none
    #[arg(long, value_name = "WHICH", value_delimiter = ',', conflicts_with_all = ["faithful", "pages"])]
    pub(crate) strategy: Vec<Improvement>,

    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// With --pages: longest time that one look may hold the target up
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10ms", requires = "pages")]
    pub(crate) max_stall: Nanos,

    /// With --pages: how bits are cleared
    #[arg(long, value_enum, default_value_t = ClearBy::Auto, requires = "pages")]
    pub(crate) clear_by: ClearBy,
}

/// How `--pages` clears accessed bits.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearBy {
    /// Whichever costs less, of those that stay within --max-stall
    Auto,
    /// process_madvise(MADV_COLD), in chunks: the target goes on meanwhile
    Madvise,
    /// /proc/PID/clear_refs: cheap, but holds the target's faults up; pages in the TLB may look idle
    ClearRefs,
}

/// One of the region sampler's improvements on DAMON.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Improvement {
    /// Watch 16 neighbouring pages at once
    Clusters,
    /// Sample only memory that has page tables
    Populated,
    /// More samples where they tell most
    Weighted,
    /// Split at page-table and mapping boundaries
    Aligned,
    /// All of them
    All,
    /// None of them: DAMON's sampling within the budget
    None,
}

/// How a session watches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// The table monitor.
    Tables(TableAttributes),
    /// The region engine.
    Regions(Attributes),
    /// The page-granular scanner, every so often.
    Pages { interval: Nanos },
}

impl MonitorArgs {
    /// Whether a CPU budget rules how often is looked.
    pub(crate) fn has_budget(&self) -> bool {
        !self.pages
            && !self.faithful
            && self.access_goal.is_none()
            && self.sample_interval.is_none()
            && self.aggregation_interval.is_none()
    }

    /// What the flags come to for processes.
    pub(crate) fn method(&self) -> anyhow::Result<Method> {
        if self.pages {
            ensure!(
                self.cpu_budget.is_none(),
                "--pages has no budget: leave --cpu-budget out, or --pages"
            );
            let interval = self
                .aggregation_interval
                .unwrap_or(Nanos::from_millis(1000));
            return Ok(Method::Pages { interval });
        }
        let by_hand = self.sample_interval.is_some() || self.aggregation_interval.is_some();
        if self.faithful || by_hand || self.access_goal.is_some() || !self.strategy.is_empty() {
            return Ok(Method::Regions(self.attributes()?));
        }
        let defaults = TableAttributes::default();
        Ok(Method::Tables(TableAttributes {
            cpu_share: self.cpu_budget.unwrap_or(defaults.cpu_share),
            max_nr_regions: self.regions.map_or(defaults.max_nr_regions, |(_, max)| max),
            ..defaults
        }))
    }

    /// The region engine's attributes.
    pub(crate) fn attributes(&self) -> anyhow::Result<Attributes> {
        let by_hand = self.sample_interval.is_some() || self.aggregation_interval.is_some();
        let mut attributes = if self.faithful {
            Attributes::faithful()
        } else {
            Attributes::default()
        };
        if by_hand || self.access_goal.is_some() {
            ensure!(
                self.cpu_budget.is_none(),
                "a CPU budget rules the intervals: give --cpu-budget, or intervals and goals by hand"
            );
            attributes.budget = None;
        }
        if let Some(share) = self.cpu_budget {
            attributes.budget = Some(CpuBudget::new(share));
        }
        if let Some(sample) = self.sample_interval {
            attributes.sample_interval = sample;
            attributes.aggregation_interval = Nanos(sample.0.saturating_mul(20));
        }
        if let Some(aggregation) = self.aggregation_interval {
            attributes.aggregation_interval = aggregation;
            if self.sample_interval.is_none() {
                attributes.sample_interval = Nanos((aggregation.0 / 20).max(1));
            }
        }
        let update = attributes
            .update_interval
            .max(attributes.aggregation_interval);
        attributes.update_interval = self.update_interval.unwrap_or(update);
        if let Some((min, max)) = self.regions {
            (attributes.min_nr_regions, attributes.max_nr_regions) = (min, max);
        }
        if let Some(share) = self.access_goal {
            let access_bp = (share * 10_000.0).round() as u32;
            attributes.intervals_goal = Some(IntervalsGoal {
                access_bp,
                ..IntervalsGoal::default()
            });
        }
        if !self.strategy.is_empty() {
            attributes.strategy = strategy(&self.strategy);
        }
        attributes.seed = self.seed;
        attributes
            .validate()
            .context("these monitoring attributes do not fit together")?;
        Ok(attributes)
    }
}

fn strategy(chosen: &[Improvement]) -> Strategy {
    let has = |which| chosen.contains(&Improvement::All) || chosen.contains(&which);
    let faithful = Strategy::faithful();
    Strategy {
        cluster_pages: if has(Improvement::Clusters) {
            16
        } else {
            faithful.cluster_pages
        },
        populated_only: has(Improvement::Populated),
        weighted_samples: has(Improvement::Weighted),
        aligned_splits: has(Improvement::Aligned),
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

/// `A-B`, each a number (0x for hexadecimal, underscores and commas allowed) or a size like 4G.
fn parse_range(text: &str) -> anyhow::Result<AddressRange> {
    let Some((start, end)) = text.split_once('-') else {
        bail!("'{text}' is not of the form START-END, e.g. 0x100000000-0x200000000 or 4G-8G");
    };
    let range = AddressRange::checked(parse_address(start)?, parse_address(end)?);
    let range = range.with_context(|| format!("'{text}' ends before it starts"))?;
    let aligned = range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
    ensure!(
        aligned,
        "'{text}' does not begin and end at page boundaries (multiples of {PAGE_SIZE})"
    );
    Ok(range)
}

fn parse_address(text: &str) -> anyhow::Result<u64> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x") {
        let digits = digits.replace(['_', ','], "");
        return u64::from_str_radix(&digits, 16)
            .with_context(|| format!("'{text}' is not an address"));
    }
    parse_bytes(text).with_context(|| format!("'{text}' is not an address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        monitor: MonitorArgs,
    }

    fn method(line: &str) -> anyhow::Result<Method> {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))?
            .monitor
            .method()
    }

    #[test]
    fn the_budget_is_the_default_and_intervals_by_hand_switch_it_off() {
        assert!(matches!(method(""), Ok(Method::Tables(a)) if (a.cpu_share - 0.01).abs() < 1e-9));
        assert!(
            matches!(method("--cpu-budget 2%"), Ok(Method::Tables(a)) if (a.cpu_share - 0.02).abs() < 1e-9)
        );
        assert!(
            matches!(method("--faithful"), Ok(Method::Regions(a)) if a == Attributes::faithful())
        );
        let by_hand = method("--sample-interval 10ms").expect("fine");
        assert!(
            matches!(by_hand, Method::Regions(a) if a.budget.is_none() && a.aggregation_interval == Nanos::from_millis(200))
        );
        assert!(method("--sample-interval 10ms --cpu-budget 1%").is_err());
        assert!(method("--pages --cpu-budget 1%").is_err());
        assert!(method("--cpu-budget 0%").is_err());
        assert!(method("--regions 10").is_err());
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!(
            parse_range("0x1000-0x3000").ok(),
            Some(AddressRange::new(0x1000, 0x3000))
        );
        assert_eq!(
            parse_range("4G-8G").ok(),
            Some(AddressRange::new(4 << 30, 8 << 30))
        );
        for bad in ["", "1", "0x2000-0x1000", "0x1001-0x2000", "a-b"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
