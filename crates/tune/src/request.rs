//! Requests of a search, by the command's flags or Python's keywords; and the whole way from a trace to the result.
//!
//! [`TuneRequest`] holds the input; [`Tuning`] is the search of one trace, with every default filled in. Nothing is
//! replayed before [`Tuning::run`]: wrong input is refused at once, and a journal can be opened.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use isotherm_config::{ActingRequest, ContextConfig, Method, Monitoring, Request, RequestError};
use isotherm_policy::guard::{GuardLimits, MAX_SLOWDOWN};
use isotherm_session::simulated::Replay;

use super::depth::{BOUNDS, Depth, SETTINGS};
use super::{
    Coarse, Fingerprint, Journal, Live, LiveEnd, MemoryLimit, Objective, PlannedReplays,
    Prediction, Prices, PublishedMethod, Replays, Search, SearchCompletion, SearchEvent, Space,
    Stage, Subject, TraceTimes, Tuned, TuningPlan, run, run_published, settle, trace_facts,
};

/// Aim of a search, without its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeks {
    /// Least memory within a maximum slowdown.
    Memory,
    /// Least slowdown within a maximum memory.
    Slowdown,
    /// DAMOOS' score.
    Damoos,
    /// Least cost within a maximum slowdown.
    Cost,
    /// Most memory in huge pages within a maximum memory.
    Huge,
}

/// The objectives by name, each with a description.
pub const OBJECTIVES: &[(&str, &str, Seeks)] = &[
    (
        "memory",
        "Least memory within --max-slowdown",
        Seeks::Memory,
    ),
    (
        "slowdown",
        "Least slowdown within --max-memory",
        Seeks::Slowdown,
    ),
    (
        "damoos",
        "DAMOOS' score: -0.5 x runtime % - 0.5 x RSS %, and -1000 above 20 % of runtime",
        Seeks::Damoos,
    ),
    (
        "cost",
        "Least cost by --price within --max-slowdown",
        Seeks::Cost,
    ),
    (
        "huge",
        "Most memory in huge pages within --max-memory [default there: 110%]",
        Seeks::Huge,
    ),
];

/// The methods that choose the settings to try, by name: the search, or a published method. Each has a description.
pub const METHODS: &[(&str, &str, Option<PublishedMethod>)] = &[
    (
        "search",
        "Try all settings of a small space; of a large one, settings near the best and in gaps of the front",
        None,
    ),
    (
        "damoos-grid",
        "DAMOOS' grid: 4 ages, then 5 sizes",
        Some(PublishedMethod::DamoosGrid),
    ),
    (
        "damoos-polyfit",
        "DAMOOS' polynomial: 20 runs for each number",
        Some(PublishedMethod::DamoosPolyfit),
    ),
    (
        "swarm",
        "A particle swarm: 8 particles, 10 rounds",
        Some(PublishedMethod::Swarm),
    ),
];

/// Default memory limit of huge pages: this share of the memory without schemes.
const HUGE_MEMORY: MemoryLimit = MemoryLimit::Share(1.1);

/// Input of a search: the schemes and the objective.
#[derive(Clone, Debug, Default)]
pub struct TuneRequest {
    /// Contexts of a configuration.
    pub contexts: Vec<ContextConfig>,
    /// Schemes by name.
    pub presets: Vec<String>,
    /// Schemes in a line each.
    pub scheme_lines: Vec<String>,
    /// The texts of `--param`.
    pub params: Vec<String>,
    /// Monitor by DAMON's rules.
    pub is_faithful: bool,
    /// Replay without a guard.
    pub no_guard: bool,
    /// Aim of the search; by default it follows from the limits and the schemes.
    pub seeks: Option<Seeks>,
    /// Maximum slowdown, as a share of the program's time.
    pub max_slowdown: Option<f64>,
    /// Maximum resident memory on average.
    pub max_memory: Option<MemoryLimit>,
    /// Prices of memory and CPUs.
    pub prices: Option<Prices>,
    /// Seed of every random choice.
    pub seed: u64,
}

impl TuneRequest {
    /// Returns the objective. Fails if a limit does not belong to the objective, or if one is missing.
    pub fn objective(&self) -> anyhow::Result<Objective> {
        let max_slowdown = self.max_slowdown.unwrap_or(MAX_SLOWDOWN);
        let seeks = self.seeks();
        let is_used = |flag: bool, by: &[Seeks], name_of: &str| {
            ensure!(
                !flag || by.contains(&seeks),
                "{name_of} is no part of this objective; leave it out, or choose another --objective"
            );
            Ok(())
        };
        is_used(self.prices.is_some(), &[Seeks::Cost], "--price")?;
        let by_memory = [Seeks::Slowdown, Seeks::Huge];
        is_used(self.max_memory.is_some(), &by_memory, "--max-memory")?;
        Ok(match seeks {
            Seeks::Memory => Objective::Memory { max_slowdown },
            Seeks::Slowdown => Objective::Slowdown {
                max_memory: self
                    .max_memory
                    .context("how much memory may there be? Name --max-memory, e.g. 600M or 60%")?,
            },
            Seeks::Damoos => Objective::Damoos,
            Seeks::Cost => Objective::Cost {
                prices: self
                    .prices
                    .context("what does memory cost? Name --price, e.g. dram=3.5,cpu=20")?,
                max_slowdown,
            },
            Seeks::Huge => Objective::Huge {
                max_memory: self.max_memory.unwrap_or(HUGE_MEMORY),
            },
        })
    }

    fn seeks(&self) -> Seeks {
        let makes_huge_only =
            self.contexts.is_empty() && self.presets == ["ethp"] && self.scheme_lines.is_empty();
        self.seeks.unwrap_or(if self.prices.is_some() {
            Seeks::Cost
        } else if self.max_memory.is_some() {
            Seeks::Slowdown
        } else if makes_huge_only {
            Seeks::Huge
        } else {
            Seeks::Memory
        })
    }

    /// Returns the plan of the schemes. It has a guard only if something limits the slowdown: `max_slowdown` (from the
    /// objective), or the request. Otherwise the guard would keep the search from its objective. Fails if a preset or
    /// scheme is unknown, or if there is nothing to tune.
    pub fn plan(&self, max_slowdown: Option<f64>) -> anyhow::Result<TuningPlan> {
        let limit = max_slowdown.or(self.max_slowdown);
        let request = Request {
            monitoring: Monitoring {
                method: self.is_faithful.then_some(Method::Faithful),
                ..Monitoring::default()
            },
            seed: self.seed,
            acting: ActingRequest {
                scheme_lines: self.scheme_lines.clone(),
                presets: self.presets.clone(),
                no_guard: self.no_guard || limit.is_none(),
                limits: GuardLimits::of_slowdown(self.max_slowdown),
                ..ActingRequest::default()
            },
            ..Request::default()
        };
        TuningPlan::new(self.contexts.clone(), request, limit).map_err(|error| match error {
            RequestError::NoScheme => anyhow::anyhow!(
                "nothing to tune; name a --preset (prcl, ethp, pprcl), a --scheme or a configuration (-c)"
            ),
            error => error.into(),
        })
    }

    /// Returns the search of a trace. Fails if an option is wrong.
    pub fn of_trace(&self, replay: Replay) -> anyhow::Result<Tuning> {
        let (times, digest) = trace_facts(&replay)?;
        let objective = self.objective()?;
        let plan = self.plan(objective.max_slowdown())?;
        let space = Space::new(&self.params, plan.contexts(), times)?;
        let memory_bound = replay.largest().map_or(0.0, |process| process.memory_bound);
        let machine = format!("{:?} {memory_bound}", replay.machine);
        Ok(Tuning {
            fingerprint: Fingerprint::new(digest, &(plan.fingerprint() + &machine)),
            program: replay.program(),
            seed: self.seed,
            replay,
            times,
            plan,
            objective,
            space,
        })
    }
}

/// Number of replays, jobs, and the method of choosing settings.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Maximum number of points to replay in full; `None`: the number that takes about a minute.
    pub budget: Option<usize>,
    /// Evaluations at a time; by default one for each CPU. The number does not change the result.
    pub jobs: Option<usize>,
    /// A published method instead of the search.
    pub method: Option<PublishedMethod>,
}

impl Effort {
    fn jobs(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.jobs.unwrap_or_else(cpus)
    }
}

/// The search of one trace, before any replay.
#[derive(Debug)]
pub struct Tuning {
    replay: Replay,
    program: String,
    times: TraceTimes,
    plan: TuningPlan,
    objective: Objective,
    space: Space,
    seed: u64,
    fingerprint: Fingerprint,
}

/// Makes live runs of the found settings, and corrects the predictions by them: [`run_live`](super::run_live).
pub type Confirm<'a> =
    dyn FnMut(&mut Search, Objective, Option<&mut Journal>) -> anyhow::Result<Live> + 'a;

impl Tuning {
    /// Adds the options of live runs to what predictions depend on.
    #[must_use]
    pub fn beside(mut self, live: &str) -> Self {
        self.fingerprint = self.fingerprint.beside(live);
        self
    }

    /// Returns the fingerprint of everything that predictions depend on.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Searches, and confirms the result by live runs if `confirm` is given. Returns the result and the plan that its
    /// settings belong to; `None` if the search was stopped before its first result. Fails if the trace cannot be
    /// replayed, or the program cannot be run.
    pub fn run(
        self,
        effort: &Effort,
        mut journal: Option<&mut Journal>,
        stop: &Arc<AtomicBool>,
        on_event: &mut dyn FnMut(SearchEvent<'_>),
        confirm: Option<&mut Confirm<'_>>,
    ) -> anyhow::Result<Option<(Tuned, TuningPlan)>> {
        let depth = self.depth(effort);
        let jobs = effort.jobs();
        let first = match depth.one_in {
            1 => None,
            _ => match self.search_sample(depth, jobs, stop, on_event)? {
                Some(sampled) if sampled.completion == SearchCompletion::Finished => Some(sampled),
                Some(sampled) => return Ok(Some(self.result_of_sample(&sampled))),
                None => return Ok(None),
            },
        };
        let began = Instant::now();
        let watching = self.plan.watching()?;
        let replays = Replays::new(&watching, self.replay.clone(), Arc::clone(stop))?;
        let Some(replays) = replays else {
            return Ok(first.map(|sampled| self.result_of_sample(&sampled)));
        };
        let (plan, seed) = (self.plan, self.seed);
        let replay_s = began.elapsed().as_secs_f64();
        let base = replays.base();
        let contexts = plan.contexts();
        let mut search = match &first {
            Some(first) => first.search.refined(depth.nr_full, contexts),
            None => Search::new(self.space, self.objective, depth.nr_full, seed, contexts),
        };
        on_event(SearchEvent::Begins(Stage {
            one_in: 1,
            nr_most: search.nr_most(),
            expected_s: replay_s * (search.nr_most() + BOUNDS) as f64 / jobs as f64,
        }));
        let planned = PlannedReplays {
            replays: &replays,
            plan: &plan,
        };
        let (how, known) = ((effort, seed), journal.as_deref_mut());
        let mut completion = search_whole(how, &mut search, &planned, known, stop, on_event)?;
        let confirm = confirm.filter(|_| completion == SearchCompletion::Finished);
        let live = match confirm {
            Some(confirm) => Some(confirm(&mut search, self.objective, journal)?),
            None => None,
        };
        if live
            .as_ref()
            .is_some_and(|live| live.end == LiveEnd::Stopped)
        {
            completion = SearchCompletion::Stopped;
        }
        let subject = Subject {
            program: &self.program,
            times: self.times,
            plan: &plan,
            objective: self.objective,
            base: &base,
            coarse: first.map(|first| first.facts()),
            live: live.as_ref(),
        };
        let tuned = Tuned::of(&subject, &search, completion);
        Ok(Some((tuned, plan)))
    }

    /// Returns the depth of the search: the budget of `effort` in full, or without one a search of about a minute.
    fn depth(&self, effort: &Effort) -> Depth {
        match (effort.budget, effort.method) {
            (Some(budget), _) => Depth::full(budget),
            // The published methods have their own number of runs.
            (None, Some(_)) => Depth::full(SETTINGS),
            (None, None) => Depth::of(&self.replay, self.times, self.space.len()),
        }
    }

    /// Replays settings on a sample of the blocks; `None` if it was stopped before the first result.
    pub(super) fn search_sample(
        &self,
        depth: Depth,
        jobs: usize,
        stop: &Arc<AtomicBool>,
        on_event: &mut dyn FnMut(SearchEvent<'_>),
    ) -> anyhow::Result<Option<Sampled>> {
        let plan = &self.plan;
        let (watching, one_in) = (plan.watching()?, depth.one_in);
        let began = Instant::now();
        let replays = Replays::coarse(&watching, &self.replay, one_in, Arc::clone(stop))?;
        let Some(replays) = replays else {
            return Ok(None);
        };
        let replay_s = began.elapsed().as_secs_f64() * f64::from(one_in);
        let space = self.space.clone();
        let (nr_first, contexts) = (depth.nr_first, plan.contexts());
        let mut search = Search::new(space, self.objective, nr_first, self.seed, contexts);
        on_event(SearchEvent::Begins(Stage {
            one_in,
            nr_most: search.nr_most(),
            expected_s: replay_s * depth.nr_replays(self.space.len()) / jobs as f64,
        }));
        let planned = PlannedReplays {
            replays: &replays,
            plan,
        };
        let completion = run(&mut search, &planned, None, jobs, stop, on_event)?;
        let sampled = Sampled {
            base: replays.base(),
            search,
            one_in,
            completion,
        };
        Ok((!sampled.search.observed().is_empty()).then_some(sampled))
    }

    /// Returns the result of a search that was stopped before a setting was replayed on the whole trace.
    pub(super) fn result_of_sample(self, sampled: &Sampled) -> (Tuned, TuningPlan) {
        let subject = Subject {
            program: &self.program,
            times: self.times,
            plan: &self.plan,
            objective: self.objective,
            base: &sampled.base,
            coarse: Some(sampled.facts()),
            live: None,
        };
        let tuned = Tuned {
            nr_tried: 0,
            ..Tuned::of(&subject, &sampled.search, SearchCompletion::Stopped)
        };
        (tuned, self.plan)
    }
}

/// A search on a sample of the blocks.
pub(super) struct Sampled {
    base: Prediction,
    search: Search,
    one_in: u32,
    pub(super) completion: SearchCompletion,
}

impl Sampled {
    fn facts(&self) -> Coarse {
        Coarse {
            one_in: self.one_in,
            nr_tried: self.search.observed().len(),
        }
    }
}

/// Tries settings on the whole trace, and adds the bounds of the best.
fn search_whole(
    (effort, seed): (&Effort, u64),
    search: &mut Search,
    planned: &PlannedReplays<'_>,
    journal: Option<&mut Journal>,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(SearchEvent<'_>),
) -> anyhow::Result<SearchCompletion> {
    let completion = if let Some(method) = effort.method {
        let (space, contexts) = (search.space(), planned.plan.contexts());
        let start = space.point_of(contexts).unwrap_or_else(|| space.point(0));
        run_published((method, seed), search, planned, journal, start, on_event)?
    } else {
        run(search, planned, journal, effort.jobs(), stop, on_event)?
    };
    if completion == SearchCompletion::Stopped {
        return Ok(completion);
    }
    on_event(SearchEvent::Settles);
    settle(search, planned)
}
