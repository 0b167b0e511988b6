//! The status as Prometheus reads it: the text exposition format, version 0.0.4.
//!
//! Names are `isotherm_*` with the unit, counters end in `_total`. To keep the number of series
//! bounded, processes are listed one by one only up to [`TARGETS_MAX`]; sums are over all of them.

use std::fmt::{Display, Write};

use isotherm_engine::Cost;
use isotherm_engine::scheme::SchemeStatus;

use super::{LiveState, RATES};
use crate::{ActingStatus, ContextStatus};

/// Processes with series of their own.
const TARGETS_MAX: usize = 100;

/// A text in the making.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"{}\"", escape(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// A process's name may hold anything.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What tells a scheme's series from others'.
type Labels = [(&'static str, String); 3];

fn borrowed(labels: &Labels) -> [(&str, &str); 3] {
    labels
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()))
}

/// Contexts with their names: `0` is one that is alone and has none.
fn with_names<'a>(
    contexts: &'a [ContextStatus<'a>],
) -> impl Iterator<Item = (String, &'a ContextStatus<'a>)> {
    let contexts = contexts.iter().enumerate();
    contexts.map(|(i, c)| (c.name.map_or_else(|| i.to_string(), str::to_owned), c))
}

/// What a daemon tells Prometheus.
pub struct Metrics<'a> {
    /// The daemon's.
    pub version: &'static str,
    /// What it saw.
    pub live: &'a LiveState,
    /// What it does.
    pub acting: ActingStatus<'a>,
    /// What watching has cost.
    pub cost: Cost,
}

impl Metrics<'_> {
    /// The text exposition.
    pub fn text(&self) -> String {
        let mut page = Page::default();
        self.memory(&mut page);
        self.processes(&mut page);
        self.schemes(&mut page);
        self.contexts(&mut page);
        self.monitor(&mut page);
        page.text
    }

    fn memory(&self, page: &mut Page) {
        let total = self.live.total();
        let name = "isotherm_accessed_bytes";
        page.family(
            name,
            "gauge",
            "Watched memory by access rate in the last interval: the share of checks that found it \
             accessed, as `over-upto`; 0 is idle memory.",
        );
        page.sample(name, &[("rate", "0")], total.idle_bytes);
        for (i, bytes) in total.bytes_by_rate.iter().enumerate() {
            let step = |i: usize| i as f64 / RATES as f64;
            let rate = format!("{:.1}-{:.1}", step(i), step(i + 1));
            page.sample(name, &[("rate", &rate)], bytes);
        }
        page.sample(name, &[("rate", "unknown")], total.unknown_bytes);
        for (name, help, value) in [
            (
                "isotherm_working_set_bytes",
                "Memory accessed in the last interval.",
                total.hot_bytes,
            ),
            (
                "isotherm_idle_bytes",
                "Memory not accessed in the last interval.",
                total.idle_bytes,
            ),
            (
                "isotherm_watched_resident_bytes",
                "Watched memory that is in RAM: working set, idle and unknown together.",
                total.resident_bytes,
            ),
            (
                "isotherm_watched_swapped_bytes",
                "Watched memory that is swapped out.",
                total.swapped_bytes,
            ),
            (
                "isotherm_regions",
                "Regions in the last snapshots.",
                total.regions as u64,
            ),
            (
                "isotherm_targets",
                "Targets watched.",
                self.live.targets.len() as u64,
            ),
        ] {
            page.single(name, "gauge", help, value);
        }
    }

    fn processes(&self, page: &mut Page) {
        let targets = || {
            let listed = self.live.targets.values().take(TARGETS_MAX);
            listed.map(|target| (target, target.pid.to_string()))
        };
        let name = "isotherm_target_resident_bytes";
        page.family(name, "gauge", "Memory of a target that is in RAM.");
        for (target, pid) in targets() {
            if let Some(rss) = target.rss_bytes {
                page.sample(name, &[("pid", &pid), ("name", &target.name)], rss);
            }
        }
        let name = "isotherm_target_swap_bytes";
        page.family(name, "gauge", "Memory of a target that is in swap.");
        for (target, pid) in targets() {
            if let Some(swap) = target.swap_bytes {
                page.sample(name, &[("pid", &pid), ("name", &target.name)], swap);
            }
        }
    }

    fn schemes(&self, page: &mut Page) {
        let mut schemes: Vec<(Labels, &SchemeStatus<'_>)> = Vec::new();
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
        for (name, help, value) in [
            (
                "isotherm_scheme_tried_bytes_total",
                "Bytes that a scheme tried to act on.",
                (|stats| stats.sz_tried) as fn(&isotherm_engine::scheme::Stats) -> u64,
            ),
            (
                "isotherm_scheme_applied_bytes_total",
                "Bytes that a scheme acted on (in a dry run: would have).",
                |stats| stats.sz_applied,
            ),
            (
                "isotherm_scheme_quota_exceeded_total",
                "Quota windows that ended with the quota used up.",
                |stats| stats.qt_exceeds,
            ),
        ] {
            page.family(name, "counter", help);
            for (labels, scheme) in &schemes {
                page.sample(name, &borrowed(labels), value(scheme.stats));
            }
        }
        let name = "isotherm_scheme_refused_bytes_total";
        page.family(name, "counter", "Bytes that were not acted on, by reason.");
        for (labels, scheme) in &schemes {
            for (why, bytes) in &scheme.stats.refused {
                let why = serde_json::to_value(why).unwrap_or_default();
                let mut labels = borrowed(labels).to_vec();
                labels.push(("reason", why.as_str().unwrap_or("other")));
                page.sample(name, &labels, bytes);
            }
        }
        let name = "isotherm_scheme_quota_effective_bytes";
        page.family(
            name,
            "gauge",
            "Bytes that a scheme's quota window allows; absent without a quota.",
        );
        for (labels, scheme) in &schemes {
            if let Some(bytes) = scheme.quota.effective {
                page.sample(name, &borrowed(labels), bytes);
            }
        }
        let name = "isotherm_scheme_active";
        page.family(name, "gauge", "Whether a scheme's watermarks let it work.");
        for (labels, scheme) in &schemes {
            page.sample(name, &borrowed(labels), u8::from(scheme.is_active));
        }
    }

    /// Pause and guard of each context.
    fn contexts(&self, page: &mut Page) {
        for (name, kind, help, value) in [
            (
                "isotherm_paused",
                "gauge",
                "Whether acting is paused.",
                (|context| Some(f64::from(u8::from(context.paused))))
                    as fn(&ContextStatus<'_>) -> Option<f64>,
            ),
            (
                "isotherm_guard_open",
                "gauge",
                "Whether the guard lets schemes act.",
                |context| Some(f64::from(u8::from(context.guard.is_open))),
            ),
            (
                "isotherm_guard_strain_ratio",
                "gauge",
                "The largest of measured cost to limit; absent where nothing limited is known.",
                |context| context.guard.strain,
            ),
            (
                "isotherm_guard_allowed_bytes_per_second",
                "gauge",
                "How fast the guard lets schemes act; absent where nothing limits them.",
                |context| context.guard.bytes_per_s.map(|rate| rate as f64),
            ),
            (
                "isotherm_guard_stops_total",
                "counter",
                "How often the guard has stopped the schemes.",
                |context| Some(context.guard.nr_stops as f64),
            ),
        ] {
            page.family(name, kind, help);
            for (context, of_context) in with_names(&self.acting.contexts) {
                if let Some(value) = value(of_context) {
                    page.sample(name, &[("context", &context)], value);
                }
            }
        }
    }

    fn monitor(&self, page: &mut Page) {
        let name = "isotherm_build_info";
        page.family(name, "gauge", "1; what this isotherm is.");
        page.sample(name, &[("version", self.version)], 1);
        page.single(
            "isotherm_dry_run",
            "gauge",
            "Whether nothing is done, and schemes' bytes are what would have been acted on.",
            u8::from(self.acting.dry_run),
        );
        page.single(
            "isotherm_monitor_cpu_seconds_total",
            "counter",
            "CPU time of the monitor itself.",
            self.cost.monitor_cpu.as_secs_f64(),
        );
        page.single(
            "isotherm_monitor_induced_cpu_seconds_total",
            "counter",
            "CPU time that watching is estimated to have taken from the targets.",
            self.cost.induced_cpu.as_secs_f64(),
        );
        page.single(
            "isotherm_monitor_resident_bytes",
            "gauge",
            "Memory of the monitor itself.",
            self.live.monitor_rss,
        );
        page.single(
            "isotherm_snapshots_total",
            "counter",
            "Snapshots taken.",
            self.live.nr_snapshots,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_escaped_and_families_explained() {
        let mut page = Page::default();
        page.family("a_bytes", "gauge", "A.");
        page.sample("a_bytes", &[("name", "q\"\\\n"), ("pid", "1")], 3);
        page.single("b_total", "counter", "B.", 0.5);
        let expected = "# HELP a_bytes A.\n# TYPE a_bytes gauge\n\
                        a_bytes{name=\"q\\\"\\\\\\n\",pid=\"1\"} 3\n\
                        # HELP b_total B.\n# TYPE b_total counter\nb_total 0.5\n";
        assert_eq!(page.text, expected);
    }
}
