//! What somebody asks for: a command line, or a daemon's client, with or without a configuration file.
//!
//! A request says parts of a [`SessionSpec`]; what it does not say comes from the file, and what that
//! does not say from the defaults. Nothing here reads a file or looks at the machine.

use isotherm_engine::attributes::CPU_BUDGET;
use isotherm_engine::guard::{ACT_BUDGET, GuardLimits, MAX_SLOWDOWN};
use isotherm_engine::scheme::huge::MAX_WASTE;
use isotherm_engine::scheme::{Action, Scheme};
use isotherm_engine::{AddressRange, AttributesError};
use thiserror::Error;

use crate::model::{ContextConfig, Operations};
use crate::monitoring::Monitoring;
use crate::preset::{PRESETS, preset};
use crate::problem::Problem;
use crate::scheme_line;
use crate::spec::{
    ActingSpec, ContextSpec, MemoryGoal, ProcessSpec, SessionSpec, StacksSpec, TargetSpec, World,
};

/// More contexts than this in one process come from a mistake, or want another division of the
/// memory: each has a probe, a map and an actuator of its own.
const CONTEXTS_MAX: usize = 64;

/// Why nothing comes of a request.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RequestError {
    #[error(
        "nothing to watch; name --pid PID, --cgroup PATH, --all, --physical, --node N, or -- COMMAND"
    )]
    NoTarget,
    #[error(
        "--save and --keep-free say how much is paged out, and there is a scheme that does something else; run \
         that one without them"
    )]
    GoalIsForPageout,
    #[error("nothing to do; name a --preset, a --scheme or a configuration (-c)")]
    NoScheme,
    #[error(
        "the configuration holds {nr} contexts, and {CONTEXTS_MAX} at most run together; each can \
         watch several ranges or processes"
    )]
    TooManyContexts { nr: usize },
    #[error(
        "the configuration holds several contexts, and {flag} does not say for which it is; say it \
         in the file, or run that context alone"
    )]
    ForWhichContext { flag: &'static str },
    #[error("--scheme '{line}': {problem}")]
    Scheme { line: String, problem: Box<Problem> },
    #[error("there is no preset '{name}'; there are\n{known}")]
    Preset { name: String, known: String },
    #[error("--pages has no budget: leave --cpu-budget out, or --pages")]
    PagesHaveNoBudget,
    #[error("--pages reads page tables, and a simulated process has none here; leave it out")]
    PagesAreReal,
    #[error("a CPU budget rules the intervals: give --cpu-budget, or intervals and goals by hand")]
    BudgetOrIntervals,
    #[error(
        "kernel DAMON has no CPU budget: its intervals rule what it costs; leave --cpu-budget out (--access-goal \
         tunes them), or watch by `--world linux`"
    )]
    KernelHasNoBudget,
    #[error(
        "kernel DAMON samples regions in its own way: leave --pages and --strategy out, or watch by `--world linux`"
    )]
    KernelSamplesRegions,
    #[error(
        "kernel DAMON watches all of a machine by physical address: --physical instead of --all"
    )]
    KernelWatchesAllByFrame,
    #[error(
        "kernel DAMON leaves no process out of physical memory: leave --exclude out and put a filter of a control \
         group (`memcg`) into the file, or act by `--world linux`"
    )]
    KernelExcludesNobody,
    #[error("a simulated process is watched here, not by the kernel: leave --world out")]
    KernelIsReal,
    #[error(
        "kernel DAMON goes by quota goals of its own: leave {flag} out and put a goal into the file, or act by \
         `--world linux`"
    )]
    KernelHasOtherGoals { flag: &'static str },
    #[error(
        "--stacks are of page faults of real processes, and a simulated one has none; leave it out"
    )]
    StacksAreReal,
    #[error(
        "--stacks tell whose code touched which virtual address, and --physical and --node tell physical ones: leave one \
         out, or record --all"
    )]
    StacksAreVirtual,
    #[error("these monitoring attributes do not fit together: {0}")]
    Attributes(#[from] AttributesError),
    #[error("{name} cannot be run: {error}")]
    InContext {
        name: String,
        error: Box<RequestError>,
    },
}

/// What is asked for. `None` and empty: nothing is said of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Whose memory.
    pub targets: Option<TargetSpec>,
    /// But not these processes, where all of the machine's are watched as nothing else is named.
    pub exclude: Vec<ProcessSpec>,
    /// Only these addresses.
    pub ranges: Vec<AddressRange>,
    /// Processes that descend from the targets, too.
    pub children: bool,
    /// How it is watched.
    pub monitoring: Monitoring,
    /// Seed of every random choice.
    pub seed: u64,
    /// What is done, if anything.
    pub acting: ActingRequest,
    /// Who watches and acts.
    pub world: World,
    /// Whose code touches memory first.
    pub stacks: Option<StacksSpec>,
}

/// What is said of acting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActingRequest {
    /// Schemes in a line each.
    pub scheme_lines: Vec<String>,
    /// Schemes by name.
    pub presets: Vec<String>,
    /// Do nothing; say what would be done.
    pub is_dry_run: bool,
    /// Act whatever it costs the targets.
    pub no_guard: bool,
    /// What targets may lose.
    pub limits: GuardLimits,
    /// Share of one CPU that acting may take from busy ones.
    pub act_budget: Option<f64>,
    /// Share of the targets' memory that huge pages of schemes may waste.
    pub max_waste: Option<f64>,
    /// A command that prints how far the targets have got.
    pub progress_command: Option<String>,
    /// Until when schemes page out.
    pub goal: Option<MemoryGoal>,
}

impl ActingRequest {
    /// The limits, on top of those of a file.
    fn limits(&self, configured: GuardLimits) -> GuardLimits {
        if self.no_guard {
            return GuardLimits::default();
        }
        let limits = self.limits.or(configured);
        if limits.is_limited() {
            return limits;
        }
        GuardLimits {
            max_slowdown: Some(MAX_SLOWDOWN),
            ..limits
        }
    }

    /// Share of one CPU that acting may take, on top of that of a file.
    fn act_budget(&self, configured: Option<f64>) -> Option<f64> {
        let by_default = (!self.no_guard).then_some(ACT_BUDGET);
        self.act_budget.or(configured).or(by_default)
    }

    /// Share of memory that huge pages may waste, on top of that of a file. Without a guard schemes do what they
    /// say.
    fn max_waste(&self, configured: Option<f64>) -> Option<f64> {
        let by_default = (!self.no_guard).then_some(MAX_WASTE);
        self.max_waste.or(configured).or(by_default)
    }

    /// Schemes by line and by name, and whether these are about physical memory.
    ///
    /// # Errors
    /// A line that is no scheme, a name of none.
    pub fn schemes(&self) -> Result<(Vec<Scheme>, bool), RequestError> {
        let mut schemes = Vec::new();
        for line in &self.scheme_lines {
            let scheme = scheme_line(line).map_err(|problem| RequestError::Scheme {
                line: line.clone(),
                problem: Box::new(problem),
            })?;
            schemes.push(scheme);
        }
        let mut is_physical = false;
        for name in &self.presets {
            let preset = preset(name).ok_or_else(|| no_preset(name))?;
            is_physical |= preset.operations == Operations::Paddr;
            schemes.extend(preset.schemes);
        }
        Ok((schemes, is_physical))
    }
}

fn no_preset(name: &str) -> RequestError {
    let known = PRESETS
        .iter()
        .map(|(name, what)| format!("  {name:<14} {what}"));
    RequestError::Preset {
        name: name.to_owned(),
        known: known.collect::<Vec<_>>().join("\n"),
    }
}

impl Request {
    /// A session that only watches, as asked for.
    ///
    /// # Errors
    /// What does not fit together, or that nothing is named to be watched.
    pub fn watch(&self) -> Result<SessionSpec, RequestError> {
        let targets = self.targets.clone().ok_or(RequestError::NoTarget)?;
        let targets = self.with_children(targets);
        self.ensure_that_stacks_fit(&targets)?;
        let monitor = self.monitoring.spec(self.seed, &targets, self.world)?;
        Ok(SessionSpec {
            contexts: vec![ContextSpec {
                name: None,
                targets,
                ranges: self.ranges.clone(),
                monitor,
                acting: None,
            }],
            seed: self.seed,
            world: self.world,
            stacks: self.stacks,
        })
    }

    /// A session that acts, as asked for here and by a file's `contexts`; with none, by this alone.
    /// `or_targets` are those where neither names any.
    ///
    /// # Errors
    /// What does not fit together; that there is nothing to watch or to do.
    pub fn act(
        &self,
        contexts: &[ContextConfig],
        or_targets: Option<TargetSpec>,
    ) -> Result<SessionSpec, RequestError> {
        let spec = self.act_or_watch(contexts, or_targets)?;
        if spec
            .contexts
            .iter()
            .all(|context| context.schemes().is_empty())
        {
            return Err(RequestError::NoScheme);
        }
        Ok(spec)
    }

    /// The same, where it may be that nothing is done.
    ///
    /// # Errors
    /// What does not fit together; that there is nothing to watch.
    pub fn act_or_watch(
        &self,
        contexts: &[ContextConfig],
        or_targets: Option<TargetSpec>,
    ) -> Result<SessionSpec, RequestError> {
        let nr = contexts.len();
        if nr > CONTEXTS_MAX {
            return Err(RequestError::TooManyContexts { nr });
        }
        let contexts = if nr > 1 {
            self.ensure_that_contexts_say_all()?;
            self.several(contexts, or_targets.as_ref())?
        } else {
            vec![self.one(contexts.first(), self.monitoring, or_targets)?]
        };
        for context in &contexts {
            self.ensure_that_stacks_fit(&context.targets)?;
        }
        Ok(SessionSpec {
            contexts,
            seed: self.seed,
            world: self.world,
            stacks: self.stacks,
        })
    }

    /// Whether stacks say anything of these targets, if they are asked for.
    fn ensure_that_stacks_fit(&self, targets: &TargetSpec) -> Result<(), RequestError> {
        match targets {
            _ if self.stacks.is_none() => Ok(()),
            TargetSpec::Simulated => Err(RequestError::StacksAreReal),
            TargetSpec::Physical { .. } => Err(RequestError::StacksAreVirtual),
            _ => Ok(()),
        }
    }

    fn with_children(&self, mut targets: TargetSpec) -> TargetSpec {
        if let TargetSpec::Processes { children, .. } | TargetSpec::Command { children, .. } =
            &mut targets
        {
            *children |= self.children;
        }
        targets
    }

    fn several(
        &self,
        contexts: &[ContextConfig],
        or_targets: Option<&TargetSpec>,
    ) -> Result<Vec<ContextSpec>, RequestError> {
        let nr = contexts.len();
        let sharing = contexts.iter().filter(|c| self.shares_budget(c)).count();
        let of_all = self.monitoring.cpu_budget.unwrap_or(CPU_BUDGET);
        let mut specs = Vec::new();
        for (name, context) in names(contexts).into_iter().zip(contexts) {
            let mut monitoring = self.monitoring;
            let mut context = context.clone();
            // One budget is for all contexts that none is configured for.
            if sharing > 1 && self.shares_budget(&context) {
                let its_part = Some(of_all / sharing as f64);
                if monitoring.cpu_budget.is_some() {
                    monitoring.cpu_budget = its_part;
                } else {
                    context.own.cpu_budget = its_part;
                }
            }
            let spec = self.one(Some(&context), monitoring, or_targets.cloned());
            let mut spec = spec.map_err(|error| RequestError::InContext {
                name: name.clone(),
                error: Box::new(error),
            })?;
            spec.name = Some(name);
            if let Some(acting) = &mut spec.acting {
                acting.act_budget = acting.act_budget.map(|budget| budget / nr as f64);
            }
            specs.push(spec);
        }
        Ok(specs)
    }

    /// Whether a context has a part of a budget that is said once for all.
    fn shares_budget(&self, context: &ContextConfig) -> bool {
        let how = self.monitoring.or_as_in(context);
        let is_own = context.own.cpu_budget.is_some() && self.monitoring.cpu_budget.is_none();
        self.world == World::Linux && how.has_budget() && !is_own
    }

    /// What one context comes to, or this alone.
    fn one(
        &self,
        configured: Option<&ContextConfig>,
        mut monitoring: Monitoring,
        or_targets: Option<TargetSpec>,
    ) -> Result<ContextSpec, RequestError> {
        let (more, is_physical) = self.acting.schemes()?;
        let mut ranges = self.ranges.clone();
        let mut schemes = Vec::new();
        let (mut limits, mut act_budget, mut max_waste) = (GuardLimits::default(), None, None);
        if let Some(context) = configured {
            monitoring = monitoring.or_as_in(context);
            limits = context.own.guard;
            act_budget = context.own.act_budget;
            max_waste = context.own.max_waste;
            schemes.clone_from(&context.schemes);
            if ranges.is_empty() {
                let all = context.targets.iter();
                ranges = all.flat_map(|target| target.regions.clone()).collect();
            }
        }
        schemes.extend(more);
        ensure_that_goal_fits(self.acting.goal, &schemes)?;
        if let (World::Kernel, Some(goal)) = (self.world, self.acting.goal) {
            let flag = goal_flag(goal);
            return Err(RequestError::KernelHasOtherGoals { flag });
        }
        let of_file = || configured.and_then(targets_of);
        let of_preset = is_physical.then(TargetSpec::all_physical);
        let targets = self.targets.clone().or_else(of_file);
        // Physical memory is what such a preset is about, unless processes are named.
        let targets = targets.or(of_preset).or(or_targets);
        let mut targets = self.with_children(targets.ok_or(RequestError::NoTarget)?);
        if let TargetSpec::Physical { exclude, .. } | TargetSpec::All { exclude } = &mut targets {
            exclude.clone_from(&self.exclude);
        }
        let monitor = monitoring.spec(self.seed, &targets, self.world)?;
        Ok(ContextSpec {
            name: None,
            targets,
            ranges,
            monitor,
            acting: Some(ActingSpec {
                schemes,
                is_dry_run: self.acting.is_dry_run,
                is_paused: configured.is_some_and(|context| context.paused),
                limits: self.acting.limits(limits),
                act_budget: self.acting.act_budget(act_budget),
                max_waste: self.acting.max_waste(max_waste),
                progress_command: self.acting.progress_command.clone(),
                goal: self.acting.goal,
            }),
        })
    }

    /// With several contexts, what is said of one would be anybody's.
    fn ensure_that_contexts_say_all(&self) -> Result<(), RequestError> {
        let target_flag = self.targets.as_ref().map(|targets| match targets {
            TargetSpec::Processes { .. } => "--pid",
            TargetSpec::Command { .. } => "-- COMMAND",
            TargetSpec::Cgroup(_) => "--cgroup",
            TargetSpec::All { .. } => "--all",
            TargetSpec::Physical { node: None, .. } => "--physical",
            TargetSpec::Physical { node: Some(_), .. } => "--node",
            TargetSpec::Simulated => "--simulated",
        });
        let acting = &self.acting;
        let flags = [
            target_flag,
            (!self.ranges.is_empty()).then_some("--range"),
            (!acting.scheme_lines.is_empty()).then_some("--scheme"),
            (!acting.presets.is_empty()).then_some("--preset"),
            acting.progress_command.as_ref().map(|_| "--progress-cmd"),
            acting.goal.map(goal_flag),
        ];
        match flags.into_iter().flatten().next() {
            Some(flag) => Err(RequestError::ForWhichContext { flag }),
            None => Ok(()),
        }
    }
}

impl ActingSpec {
    /// A copy with other schemes.
    ///
    /// # Errors
    /// One of the schemes does not page out, and there is a goal for paging out.
    pub fn with_schemes(&self, schemes: Vec<Scheme>) -> Result<Self, RequestError> {
        ensure_that_goal_fits(self.goal, &schemes)?;
        Ok(Self {
            schemes,
            ..self.clone()
        })
    }
}

fn ensure_that_goal_fits(goal: Option<MemoryGoal>, schemes: &[Scheme]) -> Result<(), RequestError> {
    let is_pageout = |scheme: &Scheme| matches!(scheme.action, Action::Pageout | Action::Stat);
    if goal.is_some() && !schemes.iter().all(is_pageout) {
        return Err(RequestError::GoalIsForPageout);
    }
    Ok(())
}

/// The flag by which a goal is said.
const fn goal_flag(goal: MemoryGoal) -> &'static str {
    match goal {
        MemoryGoal::Save(_) => "--save",
        MemoryGoal::KeepFree(_) => "--keep-free",
    }
}

/// Whose memory a file names, if it names any.
fn targets_of(context: &ContextConfig) -> Option<TargetSpec> {
    if context.operations == Operations::Paddr {
        return Some(TargetSpec::all_physical());
    }
    let pids = context.targets.iter().filter_map(|target| target.pid);
    let processes: Vec<ProcessSpec> = pids.map(ProcessSpec::Pid).collect();
    (!processes.is_empty()).then_some(TargetSpec::Processes {
        processes,
        children: false,
    })
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
