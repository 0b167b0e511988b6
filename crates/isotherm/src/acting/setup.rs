//! What is to be done: schemes from a file, from the command line or by name, and what a file says of
//! targets and monitoring besides.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use isotherm_config::{Configuration, ContextConfig, Format, Method, Operations, PRESETS, Problem};
use isotherm_engine::Strategy;
use isotherm_engine::guard::GuardLimits;
use isotherm_engine::scheme::{Action, GoalMetric, Scheme};
use isotherm_linux::{act, swap};

use super::GuardArgs;
use crate::recorder::{Improvement, MonitorArgs, TargetArgs};

/// What to do.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "What to do")]
pub(crate) struct SchemeArgs {
    /// A configuration: damo's or HMSDK's kdamonds (JSON or YAML), or a .damos file of one-line
    /// schemes
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// A scheme in a line: least and most size, access frequency and age, and the action, e.g.
    /// '4K max 0 0 5s max pageout'
    #[arg(long, value_name = "LINE")]
    pub(crate) scheme: Vec<String>,

    /// Schemes by name: ethp, prcl, pprcl, damon_reclaim, lru_sort
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,

    /// Do nothing; say and record what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Everything an acting session needs to know beyond what is watched and how.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) schemes: Vec<Scheme>,
    pub(crate) physical: bool,
    pub(crate) dry_run: bool,
    pub(crate) limits: GuardLimits,
    pub(crate) progress_cmd: Option<String>,
    pub(crate) cgroup: Option<PathBuf>,
}

impl SchemeArgs {
    /// Reads what was asked for, completes `targets` and `how` by what a file says where the command
    /// line does not, and refuses what this machine cannot do.
    pub(crate) fn resolve(
        &self,
        guard: &GuardArgs,
        targets: &mut TargetArgs,
        how: &mut MonitorArgs,
    ) -> anyhow::Result<Setup> {
        let configuration = self.config.as_deref().map(load).transpose()?;
        self.resolve_with(configuration, guard, targets, how)
    }

    /// The same with a configuration that has been read already.
    pub(crate) fn resolve_with(
        &self,
        configuration: Option<Configuration>,
        guard: &GuardArgs,
        targets: &mut TargetArgs,
        how: &mut MonitorArgs,
    ) -> anyhow::Result<Setup> {
        let mut schemes = Vec::new();
        let mut configured = GuardLimits::default();
        if let Some(configuration) = configuration {
            let context = only_context(configuration)?;
            apply(&context, targets, how)?;
            configured = GuardLimits {
                max_slowdown: context.own.guard.max_slowdown,
                max_refaults_per_s: context.own.guard.max_refaults_per_s,
                max_psi: context.own.guard.max_psi,
            };
            schemes.extend(context.schemes);
        }
        for line in &self.scheme {
            let scheme = isotherm_config::scheme_line(line)
                .map_err(|problem| anyhow::anyhow!("--scheme '{line}': {problem}"))?;
            schemes.push(scheme);
        }
        for name in &self.preset {
            let preset = isotherm_config::preset(name).with_context(|| no_preset(name))?;
            if preset.operations == Operations::Paddr && !names_processes(targets) {
                targets.physical = true;
            }
            schemes.extend(preset.schemes);
        }
        ensure!(
            !schemes.is_empty(),
            "nothing to do; name a --preset, a --scheme or a configuration (-c)"
        );
        let problems = lacking(&schemes, targets.physical);
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        ensure!(
            !how.pages,
            "--pages only records, so far; leave it out to act by the default monitor"
        );
        Ok(Setup {
            schemes,
            physical: targets.physical,
            dry_run: self.dry_run,
            limits: guard.limits(configured),
            progress_cmd: guard.progress_cmd.clone(),
            cgroup: targets.cgroup.clone(),
        })
    }
}

fn names_processes(targets: &TargetArgs) -> bool {
    !targets.pid.is_empty() || targets.cgroup.is_some() || !targets.command.is_empty()
}

fn no_preset(name: &str) -> String {
    let known: Vec<String> = PRESETS
        .iter()
        .map(|(name, what)| format!("  {name:<14} {what}"))
        .collect();
    format!(
        "there is no preset '{name}'; there are\n{}",
        known.join("\n")
    )
}

/// Reads a configuration file; warnings go to standard error.
pub(crate) fn load(path: &Path) -> anyhow::Result<Configuration> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text = isotherm_config::text_of(&bytes).map_err(|problem| located(path, &problem))?;
    let configuration = parse(&name.to_string(), text)?;
    for warning in &configuration.warnings {
        eprintln!("isotherm: {name}: warning: {warning}");
    }
    Ok(configuration)
}

/// Reads a configuration's text, which is `name`'s.
pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Configuration> {
    isotherm_config::load(text, Format::Detect).map_err(|problems| {
        let problems: Vec<String> = problems
            .iter()
            .map(|problem| format!("  {problem}"))
            .collect();
        anyhow::anyhow!("{name} cannot be used:\n{}", problems.join("\n"))
    })
}

fn located(path: &Path, problem: &Problem) -> anyhow::Error {
    anyhow::anyhow!("{}: {problem}", path.display())
}

fn only_context(configuration: Configuration) -> anyhow::Result<ContextConfig> {
    let nr = configuration.contexts.len();
    let mut contexts = configuration.contexts.into_iter();
    match (contexts.next(), nr) {
        (Some(context), 1) => Ok(context),
        (None, _) => bail!("the configuration holds no context"),
        (Some(_), nr) => bail!(
            "the configuration holds {nr} contexts; run each in an isotherm of its own, so far (split \
             the file by kdamond)"
        ),
    }
}

/// Fills in what the command line leaves open.
fn apply(
    context: &ContextConfig,
    targets: &mut TargetArgs,
    how: &mut MonitorArgs,
) -> anyhow::Result<()> {
    ensure!(
        !context.paused,
        "the configuration says `pause`, which is for a running context; take it out to run it"
    );
    if !names_processes(targets) && !targets.physical {
        targets.physical = context.operations == Operations::Paddr;
        targets.pid = context.targets.iter().filter_map(|t| t.pid).collect();
    }
    if targets.range.is_empty() {
        targets.range = context
            .targets
            .iter()
            .flat_map(|target| target.regions.iter().copied())
            .collect();
    }
    let by_hand = how.sample_interval.is_some()
        || how.aggregation_interval.is_some()
        || how.faithful
        || how.cpu_budget.is_some()
        || how.access_goal.is_some()
        || !how.strategy.is_empty();
    if by_hand {
        return Ok(());
    }
    how.cpu_budget = context.own.cpu_budget;
    match context.own.method {
        Some(Method::Pages) => bail!("`method: pages` only records, so far"),
        Some(Method::Regions(strategy)) if strategy == Strategy::faithful() => how.faithful = true,
        Some(Method::Regions(strategy)) => how.strategy = improvements(strategy),
        // A file of damo's says how to watch, so that is how.
        None if context.own.cpu_budget.is_none() => {
            if let Some(intervals) = context.intervals {
                how.faithful = true;
                how.sample_interval = Some(intervals.sample);
                how.aggregation_interval = Some(intervals.aggregation);
                how.update_interval = Some(intervals.update);
            }
            how.access_goal = context
                .intervals_goal
                .map(|goal| f64::from(goal.access_bp) / 10_000.0);
        }
        Some(Method::Tables) | None => {}
    }
    if how.regions.is_none() {
        how.regions = context
            .nr_regions
            .map(|bounds| (bounds.min, bounds.max))
            .or(context.own.max_nr_regions.map(|max| (10.min(max), max)));
    }
    Ok(())
}

fn improvements(strategy: Strategy) -> Vec<Improvement> {
    let mut chosen = Vec::new();
    if strategy.cluster_pages > 1 {
        chosen.push(Improvement::Clusters);
    }
    if strategy.populated_only {
        chosen.push(Improvement::Populated);
    }
    if strategy.weighted_samples {
        chosen.push(Improvement::Weighted);
    }
    if strategy.aligned_splits {
        chosen.push(Improvement::Aligned);
    }
    if chosen.is_empty() {
        chosen.push(Improvement::None);
    }
    chosen
}

/// What this machine cannot do of it, each with the reason and what would help.
pub(crate) fn lacking(schemes: &[Scheme], physical: bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (i, scheme) in schemes.iter().enumerate() {
        let mut lacks = |why: String| {
            problems.push(format!(
                "scheme {i} ({}) cannot be run here: {why}",
                scheme.action
            ));
        };
        if let Some(why) = act::lacks(scheme.action) {
            lacks(why);
        }
        if scheme.action == Action::Pageout && swap::facts().total == 0 {
            eprintln!(
                "isotherm: there is no swap, so anonymous memory cannot be paged out (files can); \
                 `isotherm swap zram --size 4G` sets some up"
            );
        }
        let eligible = |goal: &isotherm_engine::scheme::Goal| {
            matches!(goal.metric, GoalMetric::NodeEligibleMemBp { .. })
        };
        if scheme.quota.goals.iter().any(eligible) {
            lacks("the goal node_eligible_mem_bp is not measured yet".into());
        }
        if physical && scheme.action == Action::Willneed {
            lacks("what is not in memory has no physical address".into());
        }
    }
    problems
}
