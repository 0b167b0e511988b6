//! What is to be done: schemes from a file, from the command line or by name, and what a file says of
//! targets and monitoring besides.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{Configuration, ContextConfig, Format, Method, Operations, PRESETS, Problem};
use isotherm_engine::Strategy;
use isotherm_engine::guard::GuardLimits;
use isotherm_engine::scheme::{Action, GoalMetric, Scheme};
use isotherm_linux::{act, node, swap};

use super::{GuardArgs, beside};
use crate::recorder::{CPU_BUDGET, Context, Improvement, MonitorArgs, ProcessArg, TargetArgs};

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

/// Everything that is to be done in one context.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// What is watched, and how.
    pub(crate) context: Context,
    pub(crate) schemes: Vec<Scheme>,
    pub(crate) dry_run: bool,
    /// It begins paused: it watches, and does not act.
    pub(crate) is_paused: bool,
    pub(crate) limits: GuardLimits,
    /// Share of one CPU that acting may take from busy ones.
    pub(crate) act_budget: Option<f64>,
    pub(crate) progress_cmd: Option<String>,
}

/// More contexts than this in one process come from a mistake, or want another division of the
/// memory: each has a probe, a map and an actuator of its own.
const CONTEXTS_MAX: usize = 64;

impl SchemeArgs {
    /// Reads what was asked for, context by context, with what a file says of targets and monitoring
    /// where `targets` and `how` of the command line do not, and refuses what this machine cannot do.
    pub(crate) fn resolve(
        &self,
        guard: &GuardArgs,
        targets: &TargetArgs,
        how: &MonitorArgs,
    ) -> anyhow::Result<Vec<Setup>> {
        let configuration = self.config.as_deref().map(load).transpose()?;
        self.resolve_with(configuration, guard, targets, how)
    }

    /// The same with a configuration that has been read already.
    pub(crate) fn resolve_with(
        &self,
        configuration: Option<Configuration>,
        guard: &GuardArgs,
        targets: &TargetArgs,
        how: &MonitorArgs,
    ) -> anyhow::Result<Vec<Setup>> {
        ensure!(
            !how.pages,
            "--pages only records, so far; leave it out to act by the default monitor"
        );
        let (configured, mut setups) = self.contexts_of(configuration, guard, targets, how)?;
        ensure!(
            setups.iter().any(|setup| !setup.schemes.is_empty()),
            "nothing to do; name a --preset, a --scheme or a configuration (-c)"
        );
        let problems: Vec<String> = setups.iter().flat_map(Setup::lacks).collect();
        if self.dry_run {
            for problem in problems {
                eprintln!("isotherm: {problem}; as this is a dry run, it goes on");
            }
        } else {
            ensure!(problems.is_empty(), "{}", problems.join("\n"));
        }
        for warning in beside::between(&configured, &setups) {
            eprintln!("isotherm: {warning}");
        }
        share_budget(&mut setups, how.cpu_budget);
        let nr = setups.len() as f64;
        for budget in setups.iter_mut().filter_map(|s| s.act_budget.as_mut()) {
            *budget /= nr;
        }
        Ok(setups)
    }

    /// What is asked for, context by context, whatever this machine can do; and what a file says of
    /// them.
    pub(crate) fn contexts_of(
        &self,
        configuration: Option<Configuration>,
        guard: &GuardArgs,
        targets: &TargetArgs,
        how: &MonitorArgs,
    ) -> anyhow::Result<(Vec<ContextConfig>, Vec<Setup>)> {
        let configured = configuration.map_or_else(Vec::new, |c| c.contexts);
        ensure!(
            configured.len() <= CONTEXTS_MAX,
            "the configuration holds {} contexts, and {CONTEXTS_MAX} at most run together; each can \
             watch several ranges or processes",
            configured.len()
        );
        let setups = if configured.len() > 1 {
            self.ensure_that_contexts_say_all(guard, targets)?;
            let names = names(&configured);
            let named = names.into_iter().zip(&configured);
            let setups = named.map(|(name, context)| {
                let setup = self.setup(Some(context), guard, targets, how);
                let setup = setup.with_context(|| format!("{name} cannot be run"))?;
                let context = Context {
                    name: Some(name),
                    ..setup.context
                };
                Ok(Setup { context, ..setup })
            });
            setups.collect::<anyhow::Result<Vec<_>>>()?
        } else {
            vec![self.setup(configured.first(), guard, targets, how)?]
        };
        Ok((configured, setups))
    }

    /// What one context comes to, or the command line alone.
    fn setup(
        &self,
        configured: Option<&ContextConfig>,
        guard: &GuardArgs,
        targets: &TargetArgs,
        how: &MonitorArgs,
    ) -> anyhow::Result<Setup> {
        let (mut targets, mut how) = (targets.clone(), how.clone());
        let mut schemes = Vec::new();
        let (mut limits, mut act_budget) = (GuardLimits::default(), None);
        if let Some(context) = configured {
            apply(context, &mut targets, &mut how)?;
            limits = GuardLimits {
                max_slowdown: context.own.guard.max_slowdown,
                max_refaults_per_s: context.own.guard.max_refaults_per_s,
                max_psi: context.own.guard.max_psi,
                max_refault_wait: context.own.guard.max_refault_wait,
            };
            act_budget = context.own.act_budget;
            schemes.clone_from(&context.schemes);
        }
        for line in &self.scheme {
            let scheme = isotherm_config::scheme_line(line)
                .map_err(|problem| anyhow::anyhow!("--scheme '{line}': {problem}"))?;
            schemes.push(scheme);
        }
        for name in &self.preset {
            let preset = isotherm_config::preset(name).with_context(|| no_preset(name))?;
            if preset.operations == Operations::Paddr && !names_processes(&targets) {
                targets.physical = true;
            }
            schemes.extend(preset.schemes);
        }
        Ok(Setup {
            context: Context::only(&targets, &how),
            schemes,
            dry_run: self.dry_run,
            is_paused: configured.is_some_and(|context| context.paused),
            limits: guard.limits(limits),
            act_budget: guard.act_budget(act_budget),
            progress_cmd: guard.progress_cmd.clone(),
        })
    }

    /// With several contexts, what the command line says of one would be anybody's.
    fn ensure_that_contexts_say_all(
        &self,
        guard: &GuardArgs,
        targets: &TargetArgs,
    ) -> anyhow::Result<()> {
        for (flag, is_given) in [
            ("--pid", !targets.pid.is_empty()),
            ("--cgroup", targets.cgroup.is_some()),
            ("--physical", targets.physical),
            ("--simulated", targets.simulated),
            ("--node", targets.node.is_some()),
            ("--range", !targets.range.is_empty()),
            ("-- COMMAND", !targets.command.is_empty()),
            ("--scheme", !self.scheme.is_empty()),
            ("--preset", !self.preset.is_empty()),
            ("--progress-cmd", guard.progress_cmd.is_some()),
        ] {
            ensure!(
                !is_given,
                "the configuration holds several contexts, and {flag} does not say for which it is; \
                 say it in the file, or run that context alone"
            );
        }
        Ok(())
    }
}

impl Setup {
    /// Whether addresses are physical.
    pub(crate) fn is_physical(&self) -> bool {
        self.context.targets.physical
    }

    /// What this machine cannot do of it.
    fn lacks(&self) -> Vec<String> {
        let problems = lacking(&self.schemes, self.is_physical()).into_iter();
        match &self.context.name {
            Some(name) => problems
                .map(|problem| format!("{name}, {problem}"))
                .collect(),
            None => problems.collect(),
        }
    }
}

/// What tells contexts apart: kdamonds by number, as the kernel has one context in each; and its
/// number there where a file has more.
fn names(contexts: &[ContextConfig]) -> Vec<String> {
    let in_same = |i: usize| {
        let same = move |context: &&ContextConfig| context.kdamond == contexts[i].kdamond;
        (
            contexts[..i].iter().filter(same).count(),
            contexts.iter().filter(same).count(),
        )
    };
    (0..contexts.len())
        .map(|i| {
            let kdamond = contexts[i].kdamond;
            match in_same(i) {
                (_, 1) => format!("kdamond {kdamond}"),
                (at, _) => format!("kdamond {kdamond} context {at}"),
            }
        })
        .collect()
}

/// One budget is for all contexts that none is configured for: `given` by the command line, or what
/// one session has by default.
fn share_budget(setups: &mut [Setup], given: Option<f64>) {
    let mut sharing: Vec<&mut MonitorArgs> = setups
        .iter_mut()
        .map(|setup| &mut setup.context.how)
        .filter(|how| how.has_budget() && (given.is_some() || how.cpu_budget.is_none()))
        .collect();
    let nr = sharing.len();
    if nr > 1 {
        for how in &mut sharing {
            how.cpu_budget = Some(given.unwrap_or(CPU_BUDGET) / nr as f64);
        }
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

/// Fills in what the command line leaves open.
fn apply(
    context: &ContextConfig,
    targets: &mut TargetArgs,
    how: &mut MonitorArgs,
) -> anyhow::Result<()> {
    if !names_processes(targets) && !targets.physical {
        targets.physical = context.operations == Operations::Paddr;
        let pids = context.targets.iter().filter_map(|t| t.pid);
        targets.pid = pids.map(ProcessArg::Pid).collect();
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
        for goal in &scheme.quota.goals {
            if let GoalMetric::NodeEligibleMemBp { node } = goal.metric
                && let Some(why) = node::lacks(node)
            {
                lacks(format!("the goal node_eligible_mem_bp: {why}"));
            }
        }
        if physical && scheme.action == Action::Willneed {
            lacks("what is not in memory has no physical address".into());
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        schemes: SchemeArgs,
        #[command(flatten)]
        guard: GuardArgs,
        #[command(flatten)]
        targets: TargetArgs,
        #[command(flatten)]
        how: MonitorArgs,
    }

    /// Of contexts, each with a process, whether it is paused, and what else it says.
    fn resolve(contexts: &[(u32, bool, &str)], line: &str) -> anyhow::Result<Vec<Setup>> {
        let contexts = contexts.iter().map(|(pid, paused, more)| {
            format!(
                r#"{{"contexts": [{{"ops": "vaddr", "targets": [{{"pid": {pid}, "regions": []}}],
                    "pause": {paused}, "schemes": [{{"action": "stat", "access_pattern": {{
                    "sz_bytes": {{"min": "0", "max": "max"}}, "nr_accesses": {{"min": "0 %", "max":
                    "100 %"}}, "age": {{"min": "0", "max": "max"}}}}}}] {more}}}]}}"#
            )
        });
        let text = format!(
            r#"{{"kdamonds": [{}]}}"#,
            contexts.collect::<Vec<_>>().join(", ")
        );
        let configuration = parse("a file", &text)?;
        let line = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))?;
        line.schemes
            .resolve_with(Some(configuration), &line.guard, &line.targets, &line.how)
    }

    #[test]
    fn each_context_has_its_targets_and_its_own_part_of_the_budget() {
        let own = r#", "isotherm": {"cpu_budget": "3 %"}"#;
        let setups = resolve(&[(10, false, ""), (11, true, own), (12, false, "")], "");
        let setups = setups.expect("fine");
        let said: Vec<_> = setups
            .iter()
            .map(|setup| {
                let Context { name, targets, how } = &setup.context;
                (
                    name.as_deref(),
                    targets.pids().expect("by id"),
                    setup.is_paused,
                    how.cpu_budget,
                )
            })
            .collect();
        let wanted: [(_, Vec<u32>, _, _); 3] = [
            (Some("kdamond 0"), vec![10], false, Some(0.005)),
            (Some("kdamond 1"), vec![11], true, Some(0.03)),
            (Some("kdamond 2"), vec![12], false, Some(0.005)),
        ];
        assert_eq!(said, wanted);
        let given = resolve(&[(10, false, ""), (11, false, own)], "--cpu-budget 4%");
        let budgets = given.expect("fine").into_iter();
        let budgets: Vec<_> = budgets.map(|s| s.context.how.cpu_budget).collect();
        assert_eq!(budgets, [Some(0.02), Some(0.02)]);
        let one = resolve(&[(10, true, "")], "").expect("fine");
        assert!(one[0].is_paused && one[0].context.name.is_none());
        assert_eq!(one[0].context.how.cpu_budget, None);
    }

    #[test]
    fn what_could_be_meant_for_any_of_several_contexts_is_refused() {
        for line in [
            "--pid 9",
            "--physical",
            "--preset prcl",
            "--progress-cmd x",
            "-- sleep 1",
        ] {
            let error = resolve(&[(10, false, ""), (11, false, "")], line);
            let error = error.expect_err("refused").to_string();
            let flag = line.split(' ').next().expect("a flag");
            assert!(error.contains(flag), "{error}");
        }
    }
}
