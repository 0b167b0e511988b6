//! Metrics of the status for Prometheus, in the OpenMetrics text format.
//!
//! Names are `isotherm_*` with the unit, counters end in `_total`. To keep the number of series bounded, processes are
//! listed one by one only up to [`TARGETS_MAX`]; sums are over all of them.

mod otlp;
mod page;
mod pods;

use std::collections::BTreeMap;

use isotherm_engine::frames::{AgeBytes, MappedClass, NR_AGES};
use isotherm_engine::{Cost, Nanos};
use isotherm_linux::pods::Pod;
use isotherm_policy::BoundBy;
use isotherm_policy::scheme::SchemeStatus;
use prometheus_client::metrics::MetricType;

pub use otlp::{OtlpTimes, otlp_refusal};
use page::Page;

use super::machine::Owner;
use super::{LiveState, RATES, Target};
use crate::{ActingStatus, ContextStatus};

/// Limit of the processes that have series of their own.
const TARGETS_MAX: usize = 100;

type Labels<const N: usize> = [(&'static str, String); N];

fn borrowed<const N: usize>(labels: &Labels<N>) -> [(&str, &str); N] {
    labels
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()))
}

/// Adds metrics of one kind, each declared by its name, its help and its value: one, or an optional one of each of a
/// list with labels.
macro_rules! metrics {
    ($page:ident: $($kind:ident $name:literal, $help:literal => $value:expr;)*) => {
        $($page.single($name, MetricType::$kind, $help, $value);)*
    };
    ($page:ident, $kind:ident of $all:expr, $of:ident: $($name:literal, $help:literal => $value:expr;)*) => {$(
        $page.family($name, MetricType::$kind, $help);
        for (labels, $of) in $all {
            if let Some(value) = $value {
                $page.sample(&borrowed(labels), value);
            }
        }
    )*};
}

fn labels_of(target: &Target) -> Labels<2> {
    [
        ("pid", target.pid.to_string()),
        ("name", target.name.clone()),
    ]
}

/// Returns contexts with their names; a context without a name gets its index, so a single one is `0`.
fn with_names<'a>(
    contexts: &'a [ContextStatus<'a>],
) -> impl Iterator<Item = (String, &'a ContextStatus<'a>)> {
    let contexts = contexts.iter().enumerate();
    contexts.map(|(i, c)| (c.name.map_or_else(|| i.to_string(), str::to_owned), c))
}

/// Labels of the classes of idle memory.
const AGES: [&str; NR_AGES] = [
    "0s-1s", "1s-5s", "5s-30s", "30s-2m", "2m-10m", "10m-1h", "1h-",
];

/// Returns a control group's label in printable form: processes may name their groups freely.
fn label(owner: Owner<'_>) -> std::borrow::Cow<'_, str> {
    match owner {
        Owner::Group(_) => isotherm_record::printable(owner.name()),
        _ => owner.name().into(),
    }
}

fn by_age(ages: &AgeBytes) -> impl Iterator<Item = (&'static str, u64)> {
    let idle = AGES.into_iter().zip(ages.idle);
    let others = [("accessed", ages.touched), ("unknown", ages.unknown)];
    idle.chain(others)
}

/// Source of a daemon's metrics.
pub struct Metrics<'a> {
    /// Version of the daemon.
    pub version: &'static str,
    /// Present time.
    pub now: Nanos,
    /// Observations of the daemon.
    pub live: &'a LiveState,
    /// State of schemes and guards.
    pub acting: ActingStatus<'a>,
    /// Cost of watching.
    pub cost: Cost,
    /// CPU budget of watching in all contexts, as a share of one CPU; `None` without a budget.
    pub cpu_budget: Option<f64>,
    /// Pods of this machine by uid; empty without a kubelet, or if pods are not requested.
    pub pods: &'a BTreeMap<String, Pod>,
}

impl Metrics<'_> {
    /// Returns the text exposition.
    pub fn text(&self) -> String {
        self.page().text()
    }

    /// Returns the body of an OTLP request.
    pub fn otlp(&self, times: OtlpTimes) -> Vec<u8> {
        let host = isotherm_linux::host::hostname();
        let resource = [
            ("service.name", "isotherm"),
            ("service.version", self.version),
            ("host.name", &host),
        ];
        otlp::request(self.page(), self.version, &resource, times)
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        self.memory(&mut page);
        self.processes(&mut page);
        self.groups(&mut page);
        self.huge_pages(&mut page);
        self.page_cache(&mut page);
        self.needed(&mut page);
        self.pods(&mut page);
        self.pod_policies(&mut page);
        self.blame(&mut page);
        self.nodes(&mut page);
        self.schemes(&mut page);
        self.moves(&mut page);
        self.contexts(&mut page);
        self.bounds(&mut page);
        self.monitor(&mut page);
        page
    }

    /// Adds idle memory by function, where stacks are sampled. Series are few, as functions come and go.
    fn blame(&self, page: &mut Page) {
        let Some(blame) = &self.live.blame else {
            return;
        };
        page.family(
            "isotherm_blamed_idle_bytes",
            MetricType::Gauge,
            "Memory idle for a minute or more by the function that touched it first: those with most of it; `other` and \
             `unknown` are the rest.",
        );
        let mut other = blame.idle_bytes.saturating_sub(blame.unknown_bytes);
        for of in &blame.functions {
            page.sample(&[("function", &of.function)], of.bytes);
            other = other.saturating_sub(of.bytes);
        }
        page.sample(&[("function", "other")], other);
        page.sample(&[("function", "unknown")], blame.unknown_bytes);
    }

    fn memory(&self, page: &mut Page) {
        let total = self.live.total();
        page.family(
            "isotherm_accessed_bytes",
            MetricType::Gauge,
            "Watched memory by access rate in the last interval: the share of checks that found it \
             accessed, as `over-upto`; 0 is idle memory.",
        );
        page.sample(&[("rate", "0")], total.idle_bytes);
        for (i, bytes) in total.bytes_by_rate.iter().enumerate() {
            let step = |i: usize| i as f64 / RATES as f64;
            let rate = format!("{:.1}-{:.1}", step(i), step(i + 1));
            page.sample(&[("rate", &rate)], *bytes);
        }
        page.sample(&[("rate", "unknown")], total.unknown_bytes);
        metrics! {
            page:
            Gauge "isotherm_working_set_bytes", "Memory accessed in the last interval." => total.hot_bytes;
            Gauge "isotherm_idle_bytes", "Memory not accessed in the last interval." => total.idle_bytes;
            Gauge "isotherm_watched_resident_bytes",
                "Watched memory that is in RAM: working set, idle and unknown together." => total.resident_bytes;
            Gauge "isotherm_watched_swapped_bytes", "Watched memory that is swapped out." => total.swapped_bytes;
            Gauge "isotherm_regions", "Regions in the last snapshots." => total.regions as u64;
            Gauge "isotherm_targets", "Targets watched." => self.live.targets.len() as u64;
        }
    }

    fn processes(&self, page: &mut Page) {
        let listed = self.live.targets.values().take(TARGETS_MAX);
        let listed: Vec<_> = listed.map(|target| (labels_of(target), target)).collect();
        metrics! {
            page, Gauge of &listed, target:
            "isotherm_target_resident_bytes", "Memory of a target that is in RAM." => target.rss_bytes;
            "isotherm_target_swap_bytes", "Memory of a target that is in swap." => target.swap_bytes;
        }
    }

    fn groups(&self, page: &mut Page) {
        let sums = self.live.machine.by_owner();
        if sums.is_empty() {
            return;
        }
        page.family(
            "isotherm_machine_mapped_bytes",
            MetricType::Gauge,
            "With --all: memory that processes map, each page once, by control group (or `several`, \
             `others`, `unknown`), class and age: the time since its last access as `from-to`.",
        );
        for ((owner, class), ages) in &sums {
            let class = match class {
                MappedClass::Anonymous => "anonymous",
                MappedClass::File => "file",
                MappedClass::Shared => "shared",
            };
            let group = label(*owner);
            for (age, bytes) in by_age(ages) {
                page.sample(&[("cgroup", &group), ("class", class), ("age", age)], bytes);
            }
        }
    }

    fn page_cache(&self, page: &mut Page) {
        let sums = self.live.machine.page_cache_by_owner();
        if sums.is_empty() {
            return;
        }
        page.family(
            "isotherm_machine_page_cache_bytes",
            MetricType::Gauge,
            "With --all: pages of files that no process maps, by control group (or `others`, `unknown`) and age: \
             the time since its last access as `from-to`.",
        );
        for (owner, ages) in &sums {
            let group = label(*owner);
            for (age, bytes) in by_age(ages) {
                page.sample(&[("cgroup", &group), ("age", age)], bytes);
            }
        }
    }

    fn nodes(&self, page: &mut Page) {
        let nodes = self.live.machine.nodes();
        if nodes.is_empty() {
            return;
        }
        page.family(
            "isotherm_machine_node_bytes",
            MetricType::Gauge,
            "With --all: a node's memory by what the kernel uses it for. Mapped files and shared memory \
             are part of `files` and `shared`.",
        );
        for of in nodes {
            let node = of.node.to_string();
            for (kind, bytes) in [
                ("total", of.total),
                ("free", of.free),
                ("anonymous", of.anonymous),
                ("shared", of.shared),
                ("files", of.files),
                ("slab", of.slab),
                ("page_tables", of.page_tables),
                ("kernel_stacks", of.kernel_stacks),
                ("compressed_swap", of.compressed_swap),
                ("hugetlb", of.hugetlb),
            ] {
                page.sample(&[("node", &node), ("kind", kind)], bytes);
            }
        }
    }

    fn labelled_schemes(&self) -> Vec<(Labels<3>, &SchemeStatus<'_>)> {
        let mut schemes = Vec::new();
        for (context, of_context) in with_names(&self.acting.contexts) {
            schemes.extend(of_context.schemes.iter().enumerate().map(|(i, scheme)| {
                let labels = [
                    ("context", context.clone()),
                    ("scheme", i.to_string()),
                    ("action", scheme.action.name().to_owned()),
                ];
                (labels, scheme)
            }));
        }
        schemes
    }

    fn huge_pages(&self, page: &mut Page) {
        let all = self.live.machine.huge();
        if all.is_empty() {
            return;
        }
        let listed = all.into_iter().take(TARGETS_MAX).filter_map(|huge| {
            let target = self.live.targets.get(&huge.target.0)?;
            Some((labels_of(target), huge))
        });
        let listed: Vec<_> = listed.collect();
        metrics! {
            page, Gauge of &listed, huge:
            "isotherm_target_huge_bytes", "With --all: private anonymous memory of a target that is in huge pages."
                => Some(huge.bytes);
            "isotherm_target_huge_waste_bytes",
                "With --all: what of it was never written, by what of it was read so far." => huge.estimate();
        }
    }

    /// Adds moves between nodes: by schemes, and by the kernel.
    fn moves(&self, page: &mut Page) {
        page.family(
            "isotherm_scheme_moved_bytes",
            MetricType::Counter,
            "Bytes that a scheme moved from one node to another.",
        );
        for (labels, scheme) in &self.labelled_schemes() {
            for way in &scheme.stats.moved {
                let (from, to) = (way.from.to_string(), way.to.to_string());
                let mut labels = borrowed(labels).to_vec();
                labels.extend([("from", from.as_str()), ("to", to.as_str())]);
                page.sample(&labels, way.bytes);
            }
        }
        let migrations = &self.live.migrations;
        if migrations.is_empty() {
            return;
        }
        page.family(
            "isotherm_kernel_migrated_pages",
            MetricType::Counter,
            "The kernel's own counters of migration since boot, by its names; of node `all` for the machine. \
             None of promotion and demotion counts what Isotherm moves.",
        );
        let nodes = migrations
            .nodes
            .iter()
            .map(|(node, of)| (node.to_string(), of));
        for (node, counters) in
            std::iter::once(("all".to_owned(), &migrations.machine)).chain(nodes)
        {
            for (counter, pages) in counters {
                page.sample(&[("node", &node), ("counter", counter)], *pages);
            }
        }
    }

    fn schemes(&self, page: &mut Page) {
        let schemes = self.labelled_schemes();
        metrics! {
            page, Counter of &schemes, scheme:
            "isotherm_scheme_tried_bytes", "Bytes that a scheme tried to act on." => Some(scheme.stats.sz_tried);
            "isotherm_scheme_applied_bytes", "Bytes that a scheme acted on (in a dry run: would have)."
                => Some(scheme.stats.sz_applied);
            "isotherm_scheme_quota_exceeded", "Quota windows that ended with the quota used up."
                => Some(scheme.stats.qt_exceeds);
        }
        page.family(
            "isotherm_scheme_refused_bytes",
            MetricType::Counter,
            "Bytes that were not acted on, by reason.",
        );
        for (labels, scheme) in &schemes {
            for (why, bytes) in &scheme.stats.refused {
                let why = serde_json::to_value(why).unwrap_or_default();
                let mut labels = borrowed(labels).to_vec();
                labels.push(("reason", why.as_str().unwrap_or("other")));
                page.sample(&labels, *bytes);
            }
        }
        metrics! {
            page, Gauge of &schemes, scheme:
            "isotherm_scheme_quota_effective_bytes",
                "Bytes that a scheme's quota window allows; absent without a quota." => scheme.quota.effective;
            "isotherm_scheme_active", "Whether a scheme's watermarks let it work." => Some(scheme.is_active);
        }
    }

    fn contexts(&self, page: &mut Page) {
        let contexts = with_names(&self.acting.contexts);
        let contexts: Vec<_> = contexts
            .map(|(name, of)| ([("context", name)], of))
            .collect();
        metrics! {
            page, Gauge of &contexts, context:
            "isotherm_paused", "Whether acting is paused." => Some(context.paused);
            "isotherm_guard_open", "Whether the guard lets schemes act on processes' memory."
                => Some(context.guard.is_open);
            "isotherm_guard_page_cache_open",
                "Whether the guard lets schemes drop page cache; absent where they are not about it."
                => context.guard.page_cache.map(|guard| guard.is_open);
            "isotherm_guard_limit_ratio",
                "The largest of measured cost to limit; absent where nothing limited is known."
                => context.guard.limit_ratio;
            "isotherm_guard_allowed_bytes_per_second",
                "How fast the guard lets schemes act; absent where nothing limits them." => context.guard.bytes_per_s;
            "isotherm_guard_backoff_ratio",
                "Factor on the schemes' minimum age for processes' memory, while pages refault; 1: none."
                => Some(u64::from(context.guard.backoff));
        }
        metrics! {
            page, Counter of &contexts, context:
            "isotherm_guard_stops", "How often the guard has stopped the schemes." => Some(context.guard.nr_stops);
            "isotherm_kernel_paged_out_bytes",
                "Where the kernel's DAMON pages out: what went out of memory, by the machine's counters."
                => context.paged_out_bytes;
        }
    }

    fn bounds(&self, page: &mut Page) {
        page.family(
            "isotherm_bound_by",
            MetricType::Gauge,
            "Whether this limit binds the schemes now: why they do not act on more, or faster.",
        );
        for (context, of_context) in with_names(&self.acting.contexts) {
            let Some(binding) = of_context.bound_by else {
                continue;
            };
            for by in BoundBy::ALL.iter().copied() {
                let labels = [("context", context.as_str()), ("by", by.name())];
                page.sample(&labels, u64::from(by == binding));
            }
        }
    }

    fn monitor(&self, page: &mut Page) {
        page.family("isotherm_build", MetricType::Info, "What this isotherm is.");
        page.sample(&[("version", self.version)], 1);
        metrics! {
            page:
            Gauge "isotherm_dry_run", "Whether nothing is done, and schemes' bytes are what would have been acted on."
                => self.acting.dry_run;
            Counter "isotherm_monitor_cpu_seconds", "CPU time of the monitor itself."
                => self.cost.monitor_cpu.as_secs_f64();
        }
        if let Some(budget) = self.cpu_budget {
            metrics! {
                page:
                Gauge "isotherm_monitor_cpu_budget_ratio",
                    "CPU time that the monitor may take, as a share of one CPU; absent without a budget." => budget;
            }
        }
        metrics! {
            page:
            Counter "isotherm_monitor_induced_cpu_seconds",
                "CPU time that watching is estimated to have taken from the targets."
                => self.cost.induced_cpu.as_secs_f64();
            Gauge "isotherm_monitor_resident_bytes", "Memory of the monitor itself." => self.live.monitor_rss;
            Counter "isotherm_snapshots", "Snapshots taken." => self.live.nr_snapshots;
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::frames::AGE_BOUNDS;
    use isotherm_engine::units::format_time;

    use super::*;

    #[test]
    fn labels_say_the_bounds_of_ages() {
        for (at, bound) in AGE_BOUNDS.iter().enumerate() {
            let bound = format_time(*bound).replace(' ', "").replace("min", "m");
            assert!(AGES[at].ends_with(&bound), "{bound}");
            assert!(AGES[at + 1].starts_with(&bound), "{bound}");
        }
    }

    #[test]
    fn samples_are_escaped_and_families_explained() {
        let mut page = Page::default();
        page.family("a_bytes", MetricType::Gauge, "A.");
        page.sample(&[("name", "q\"\\\n"), ("pid", "1")], (1 << 60) + 1);
        page.single("b_seconds", MetricType::Counter, "B.", 0.5);
        page.single("c", MetricType::Counter, "C.", 3);
        page.family("d", MetricType::Info, "D.");
        page.sample(&[("version", "1")], 1);
        let expected = "# HELP a_bytes A.\n# TYPE a_bytes gauge\n\
                        a_bytes{name=\"q\\\"\\\\\\n\",pid=\"1\"} 1152921504606846977\n\
                        # HELP b_seconds B.\n# TYPE b_seconds counter\nb_seconds_total 0.5\n\
                        # HELP c C.\n# TYPE c counter\nc_total 3\n\
                        # HELP d D.\n# TYPE d info\nd_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(page.text(), expected);
    }
}
