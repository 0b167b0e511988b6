//! Results and state of acting, in all worlds: as values and as text.

pub(crate) mod bounds;

use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_share};
use isotherm_policy::BoundBy;
use isotherm_policy::guard::{GuardLimits, GuardStatus};
use isotherm_policy::scheme::huge::WasteStatus;
use isotherm_policy::scheme::{Action, SchemeStatus, Stats};

use crate::messages::{limit_words, refused_words};
use bounds::BoundTime;

/// Results of acting: one entry for each scheme.
#[derive(serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActingSummary {
    /// Whether nothing was executed: the numbers are then those of a dry run.
    pub dry_run: bool,
    /// In a dry run: bytes that would be out of memory at the end.
    pub would_be_out_bytes: Option<u64>,
    /// One entry for each scheme of each context.
    pub schemes: Vec<SchemeSummary>,
    /// Bytes that matched a scheme at the end, and that the guard left: they would be read back too soon.
    pub withheld_bytes: u64,
    /// Number of times that a guard stopped its schemes.
    pub guard_stops: u64,
    /// Seconds that targets lost by acting, as the guards measured it.
    pub guard_lost_seconds: f64,
    /// Seconds that targets were allowed to lose; zero without a limit on the slowdown.
    pub guard_allowed_seconds: f64,
    /// Huge pages that schemes have made under a bound on their waste, of each context that has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<WasteStatus>,
    /// CPU time that acting took, compressing pages included.
    pub acting_cpu_seconds: f64,
    /// Time for which each limit bound the schemes of all contexts, the longest first.
    pub bound_times: Vec<BoundTime>,
    /// Bytes that went out of memory by the machine's counters, if the kernel's DAMON pages out: its own counters hold
    /// all addresses that its call did not refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paged_out_bytes: Option<u64>,
}

/// Results of a scheme.
#[derive(serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeSummary {
    /// Name of the scheme's context, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Place of the scheme in its context.
    pub scheme: usize,
    /// Action of the scheme.
    pub action: Action,
    /// DAMON's statistics of the scheme.
    #[serde(flatten)]
    pub stats: Stats,
}

/// State of acting.
#[derive(serde::Serialize)]
pub struct ActingStatus<'a> {
    /// Whether nothing is executed: the numbers are then those of a dry run.
    pub dry_run: bool,
    /// In a dry run: bytes that would be out of memory now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_be_out_bytes: Option<u64>,
    /// Whether every context is paused.
    pub paused: bool,
    /// The contexts, in their order.
    pub contexts: Vec<ContextStatus<'a>>,
}

impl<'a> ActingStatus<'a> {
    pub(super) fn of(
        dry_run: bool,
        would_be_out_bytes: Option<u64>,
        contexts: Vec<ContextStatus<'a>>,
    ) -> Self {
        Self {
            dry_run,
            would_be_out_bytes,
            paused: contexts.iter().all(|context| context.paused),
            contexts,
        }
    }

    pub(super) fn summary(&self, cpu: Nanos) -> ActingSummary {
        let contexts = || self.contexts.iter();
        let schemes = contexts().flat_map(|context| {
            let schemes = context.schemes.iter().enumerate();
            schemes.map(|(scheme, status)| SchemeSummary {
                context: context.name.map(str::to_owned),
                scheme,
                action: status.action,
                stats: status.stats.clone(),
            })
        });
        let accounts = || contexts().map(|context| context.guard.since_start);
        ActingSummary {
            dry_run: self.dry_run,
            would_be_out_bytes: self.would_be_out_bytes,
            schemes: schemes.collect(),
            withheld_bytes: { contexts().flat_map(|context| &context.schemes) }
                .map(|scheme| scheme.withheld_bytes)
                .sum(),
            guard_stops: contexts().map(|context| context.guard.nr_stops).sum(),
            guard_lost_seconds: accounts().map(|account| account.lost.as_secs_f64()).sum(),
            guard_allowed_seconds: accounts()
                .map(|account| account.allowed.as_secs_f64())
                .sum(),
            huge_pages: contexts()
                .filter_map(|context| context.huge_pages)
                .collect(),
            acting_cpu_seconds: cpu.as_secs_f64(),
            bound_times: {
                let times = contexts().flat_map(|context| &context.bound_times);
                bounds::sorted(times.map(|of| (of.by, of.seconds)))
            },
            paged_out_bytes: contexts()
                .filter_map(|c| c.paged_out_bytes)
                .reduce(|a, b| a + b),
        }
    }

    pub(super) fn headline(&self, cpu: Nanos) -> String {
        let guards = || self.contexts.iter().map(|context| &context.guard);
        let waited: u64 = guards().map(|g| g.since_start.lost.0).sum();
        let stops: u64 = guards().map(|g| g.nr_stops).sum();
        let why = guards().find_map(|g| g.exceeded);
        let why = why.map_or_else(String::new, |limit| format!(" ({})", limit_words(limit)));
        let limit_ratio = guards().filter_map(|g| g.limit_ratio).reduce(f64::max);
        let limit_ratio = limit_ratio.map_or_else(
            || "unknown".into(),
            |limit_ratio| format!("{limit_ratio:.2}"),
        );
        let state = if guards().any(|g| g.is_in_debt) {
            ", paying back"
        } else if guards().any(|g| !g.is_open) {
            ", stopped"
        } else if guards().any(|g| g.page_cache.is_some_and(|pool| !pool.is_open)) {
            ", page cache stopped"
        } else if guards().any(|g| g.budget.is_exhausted) {
            ", waiting for CPU"
        } else {
            ""
        };
        format!(
            "targets lost {:.2} s, {stops} stops{why}, limit ratio {limit_ratio}, acting {:.1} s of CPU{state}",
            waited as f64 / 1e9,
            cpu.as_secs_f64(),
        )
    }
}

/// State of acting in one context.
#[derive(serde::Serialize)]
pub struct ContextStatus<'a> {
    /// Name of the context; `null` if there is only one.
    pub name: Option<&'a str>,
    /// Whether the context watches, and does not act.
    pub paused: bool,
    /// The schemes, in their order.
    pub schemes: Vec<SchemeStatus<'a>>,
    /// Limits on the targets' losses.
    pub limits: GuardLimits,
    /// State of the guard: the targets' losses, and the acting that these allow.
    pub guard: GuardStatus,
    /// The limit that binds the schemes now: why they do not act on more, or faster. `null`: not known, where the
    /// kernel's DAMON acts.
    pub bound_by: Option<BoundBy>,
    /// Time for which each limit bound the schemes, the longest first.
    pub bound_times: Vec<BoundTime>,
    /// Huge pages that were made under a bound on their waste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<WasteStatus>,
    /// Process id of the kdamond, if the kernel's DAMON acts. Only the limits in force of schemes' quotas are known
    /// then, not their use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdamond: Option<u32>,
    /// Bytes that went out of memory by the machine's counters, if the kernel's DAMON pages out: its own counters hold
    /// all addresses that its call did not refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paged_out_bytes: Option<u64>,
}

impl SchemeSummary {
    /// Returns a line of text; `done` is the verb, as "were".
    fn text(&self, done: &str) -> String {
        let Stats { refused, moved, .. } = &self.stats;
        let moved = moved.iter().map(|way| {
            let bytes = format_bytes(way.bytes);
            format!("{bytes} from node {} to node {}", way.from, way.to)
        });
        let part = |head: &str, text: String| {
            if text.is_empty() {
                text
            } else {
                format!("; {head}{text}")
            }
        };
        let context = self.context.as_ref();
        format!(
            "{}scheme {}, {}: {} of {} tried {done} acted on{}{}",
            context.map_or_else(String::new, |name| format!("{name}, ")),
            self.scheme,
            self.action,
            format_bytes(self.stats.sz_applied),
            format_bytes(self.stats.sz_tried),
            part("", moved.collect::<Vec<_>>().join(", ")),
            part("not: ", refused_words(refused)),
        )
    }
}

impl ActingSummary {
    /// Returns the summary as text, with a line for each scheme.
    pub fn text(&self) -> String {
        let done = if self.dry_run { "would be" } else { "were" };
        let lines = self.schemes.iter().map(|scheme| scheme.text(done));
        let mut lines: Vec<String> = lines.collect();
        if let Some(bytes) = self.paged_out_bytes {
            lines.push(format!(
                "{} went out of memory, by the machine's counters (the kernel counts addresses, whatever is there)",
                format_bytes(bytes)
            ));
        }
        lines.push(format!(
            "acting took {:.2} s of CPU",
            self.acting_cpu_seconds
        ));
        if !self.bound_times.is_empty() {
            lines.push(format!("limited by: {}", bounds::text(&self.bound_times)));
        }
        if self.withheld_bytes > 0 {
            let withheld = format_bytes(self.withheld_bytes);
            lines.push(format!(
                "left: {withheld} that match and would be read back too soon"
            ));
        }
        for huge in &self.huge_pages {
            lines.push(format!(
                "of {} that schemes made huge, {} were never written (at most {} may be, {} of the targets' memory); {} \
                 stayed small for that",
                format_bytes(huge.huge),
                format_bytes(huge.wasted),
                format_bytes(huge.max),
                format_share(huge.max_share),
                format_bytes(huge.kept_small),
            ));
            lines.extend(huge.trial.map(|trial| trial.to_string()));
        }
        if self.guard_stops > 0 {
            lines.push(format!(
                "the guard stopped the schemes {} times",
                self.guard_stops
            ));
        }
        lines.join("\n")
    }
}
