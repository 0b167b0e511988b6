//! Requests from a command line or a daemon's client, with or without a configuration file.
//!
//! A request sets parts of a [`SessionSpec`]. The file sets the missing parts, and the defaults those that are still
//! missing. No function here reads a file or the state of the machine.

use isotherm_engine::attributes::CPU_BUDGET;
use isotherm_engine::{AddressRange, KernelSettings};
use isotherm_policy::guard::{ACT_BUDGET, GuardLimits, MAX_SLOWDOWN};
use isotherm_policy::scheme::huge::MAX_WASTE;
use isotherm_policy::scheme::{Action, FilterKind, Scheme};

use crate::error::{CONTEXTS_MAX, RequestError};
use crate::model::{ContextConfig, Operations, Own};
use crate::monitoring::Monitoring;
use crate::preset::{PRESETS, preset};
use crate::scheme_line;
use crate::spec::{
    ActingSpec, ContextSpec, MemoryGoal, ProcessSpec, SessionSpec, StacksSpec, TargetSpec, World,
};

/// A request for a session. `None` and empty values leave the decision to the file and the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub targets: Option<TargetSpec>,
    /// Processes to exclude if all of the machine's are watched and no other target is named.
    pub exclude: Vec<ProcessSpec>,
    /// Addresses to watch; empty for all.
    pub ranges: Vec<AddressRange>,
    /// Set to watch the targets' descendants as well.
    pub children: bool,
    pub monitoring: Monitoring,
    /// Seed of every random choice.
    pub seed: u64,
    /// Actions, if any.
    pub acting: ActingRequest,
    /// Isotherm or the kernel's DAMON.
    pub world: World,
    /// Sampling of stacks, which show the code that touches memory first.
    pub stacks: Option<StacksSpec>,
}

/// Requested actions and their limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActingRequest {
    /// Schemes, one a line.
    pub scheme_lines: Vec<String>,
    pub presets: Vec<String>,
    /// Set to report actions instead of doing them.
    pub is_dry_run: bool,
    /// Set to act without a limit on the targets' losses.
    pub no_guard: bool,
    pub limits: GuardLimits,
    /// Share of one CPU that acting may take from busy CPUs.
    pub act_budget: Option<f64>,
    /// Share of the targets' memory that huge pages of schemes may waste.
    pub max_waste: Option<f64>,
    /// Command that prints the targets' progress.
    pub progress_command: Option<String>,
    /// Amount of memory until which schemes page out.
    pub goal: Option<MemoryGoal>,
}

impl ActingRequest {
    /// Returns the limits; those of a file are the fallback.
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

    /// Returns the CPU share of acting; that of a file is the fallback.
    fn act_budget(&self, configured: Option<f64>) -> Option<f64> {
        let by_default = (!self.no_guard).then_some(ACT_BUDGET);
        self.act_budget.or(configured).or(by_default)
    }

    /// Returns the share of memory that huge pages may waste; that of a file is the fallback. Without a guard there is
    /// no default limit.
    fn max_waste(&self, configured: Option<f64>) -> Option<f64> {
        let by_default = (!self.no_guard).then_some(MAX_WASTE);
        self.max_waste.or(configured).or(by_default)
    }

    /// Returns the schemes of lines and presets, and whether the presets are for physical memory.
    ///
    /// # Errors
    /// Fails if a line is no scheme, or if a name is no preset.
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
    /// Makes a session that only watches.
    ///
    /// # Errors
    /// Fails if parts contradict each other, or if no target is named.
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
                kernel: KernelSettings::default(),
                acting: None,
            }],
            seed: self.seed,
            world: self.world,
            stacks: self.stacks,
        })
    }

    /// Makes a session that acts by this request and by a file's `contexts`; without contexts, by this request alone.
    /// `or_targets` are the targets if neither names any. Fails if parts contradict each other, or if there are no
    /// targets or no schemes.
    pub fn act(
        &self,
        contexts: &[ContextConfig],
        or_targets: Option<TargetSpec>,
    ) -> Result<SessionSpec, RequestError> {
        let spec = self.act_or_watch(contexts, or_targets)?;
        let mut schemes = spec.contexts.iter().flat_map(ContextSpec::schemes);
        if schemes.next().is_none() {
            return Err(RequestError::NoScheme);
        }
        Ok(spec)
    }

    /// Makes the session of [`Request::act`], but accepts it without schemes.
    ///
    /// # Errors
    /// Fails if parts contradict each other, or if there are no targets.
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

    /// Checks that stacks, if requested, can be sampled for these targets.
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
            // Contexts without a budget of their own share one budget.
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

    /// Whether a context takes a part of the common budget.
    fn shares_budget(&self, context: &ContextConfig) -> bool {
        let how = self.monitoring.or_as_in(context);
        let is_own = context.own.cpu_budget.is_some() && self.monitoring.cpu_budget.is_none();
        self.world == World::Linux && how.has_budget() && !is_own
    }

    /// Makes one context, from a file's or from this request alone.
    fn one(
        &self,
        configured: Option<&ContextConfig>,
        mut monitoring: Monitoring,
        or_targets: Option<TargetSpec>,
    ) -> Result<ContextSpec, RequestError> {
        let (more, is_physical) = self.acting.schemes()?;
        let mut ranges = self.ranges.clone();
        let mut schemes = Vec::new();
        let own = configured.map_or_else(Own::default, |context| context.own);
        if let Some(context) = configured {
            monitoring = monitoring.or_as_in(context);
            schemes.clone_from(&context.schemes);
            if ranges.is_empty() {
                let all = context.targets.iter();
                ranges = all.flat_map(|target| target.regions.clone()).collect();
            }
        }
        schemes.extend(more);
        ensure_that_goal_fits(self.acting.goal, &schemes)?;
        let kernel = configured.map_or_else(KernelSettings::default, |of| of.kernel.clone());
        if let (World::Linux, Some(key)) = (self.world, key_of_kernel(&kernel, &schemes)) {
            return Err(RequestError::OnlyKernelHas { key });
        }
        if let (World::Kernel, Some(goal)) = (self.world, self.acting.goal) {
            let flag = goal_flag(goal);
            return Err(RequestError::KernelHasOtherGoals { flag });
        }
        let of_file = || configured.and_then(targets_of);
        let of_preset = is_physical.then(TargetSpec::all_physical);
        let targets = self.targets.clone().or_else(of_file);
        // Such a preset is for physical memory, unless processes are named.
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
            kernel,
            acting: Some(ActingSpec {
                schemes,
                is_dry_run: self.acting.is_dry_run,
                is_paused: configured.is_some_and(|context| context.paused),
                limits: self.acting.limits(own.guard),
                act_budget: self.acting.act_budget(own.act_budget),
                max_waste: self.acting.max_waste(own.max_waste),
                progress_command: self.acting.progress_command.clone(),
                goal: self.acting.goal,
            }),
        })
    }

    /// Checks that options for a single context are not given for several.
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
    /// Makes a copy with other schemes.
    ///
    /// # Errors
    /// Fails if a scheme does not page out and there is a goal for paging out.
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

/// Returns a key of a file that only the kernel's DAMON can follow, if one is set.
fn key_of_kernel(settings: &KernelSettings, schemes: &[Scheme]) -> Option<&'static str> {
    let default = KernelSettings::default();
    let mut filters = schemes.iter().flat_map(|scheme| &scheme.filters);
    let is_of_probes = |kind: &FilterKind| matches!(kind, FilterKind::ProbeHits { .. });
    if settings.probes != default.probes {
        Some("probes")
    } else if settings.samples != default.samples {
        Some("sample_control")
    } else if filters.any(|filter| is_of_probes(&filter.kind)) {
        Some("probe_hits_wsum")
    } else {
        None
    }
}

const fn goal_flag(goal: MemoryGoal) -> &'static str {
    match goal {
        MemoryGoal::Save(_) => "--save",
        MemoryGoal::KeepFree(_) => "--keep-free",
    }
}

/// Returns the targets of a file's context, if it names any.
fn targets_of(context: &ContextConfig) -> Option<TargetSpec> {
    if context.operations == Operations::Paddr {
        return Some(TargetSpec::all_physical());
    }
    if context.own_targets.is_some() {
        return context.own_targets.clone();
    }
    let pids = context.targets.iter().filter_map(|target| target.pid);
    let processes: Vec<ProcessSpec> = pids.map(ProcessSpec::Pid).collect();
    (!processes.is_empty()).then_some(TargetSpec::named(processes))
}

/// Returns distinct names of contexts. A name has the kdamond's number, as the kernel has one context in each. If a
/// kdamond has several, it has the context's number as well.
fn names(contexts: &[ContextConfig]) -> Vec<String> {
    let nr_of = |contexts: &[ContextConfig], kdamond: usize| {
        let same = contexts.iter().filter(|context| context.kdamond == kdamond);
        same.count()
    };
    let name = |(i, context): (usize, &ContextConfig)| {
        let kdamond = context.kdamond;
        if nr_of(contexts, kdamond) == 1 {
            return format!("kdamond {kdamond}");
        }
        let at = nr_of(&contexts[..i], kdamond);
        format!("kdamond {kdamond} context {at}")
    };
    contexts.iter().enumerate().map(name).collect()
}
