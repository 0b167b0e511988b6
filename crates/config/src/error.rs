//! Reasons why a request cannot be fulfilled.

use isotherm_engine::AttributesError;
use thiserror::Error;

use crate::problem::Problem;

/// Limit of the contexts in one process. More come from a mistake, or need another division of the memory: each has a
/// probe, a map and an actuator of its own.
pub(crate) const CONTEXTS_MAX: usize = 64;

/// Reasons why a request cannot be fulfilled.
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
    #[error(
        "a CPU budget rules the intervals: leave --cpu-budget out, or --faithful, --simulated, and intervals and goals \
         by hand"
    )]
    BudgetOrIntervals,
    #[error(
        "kernel DAMON has no CPU budget: its intervals rule what it costs; leave --cpu-budget out (--access-goal \
         tunes them), or watch by `--world linux`"
    )]
    KernelHasNoBudget,
    #[error(
        "kernel DAMON samples regions in its own way: leave --pages out, or watch by `--world linux`"
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
    #[error(
        "`{key}` is of the kernel's DAMON: run the file by `--world kernel`, or leave the key out. Filters by `anon`, \
         `memcg` or `hugepage_size` work here as well"
    )]
    OnlyKernelHas { key: &'static str },
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
