//! The result of a recording, for people and as JSON.

use isotherm_engine::Nanos;

use isotherm_engine::units::format_bytes;
use isotherm_session::ActingSummary;

/// Summary of a recording. Percentages are of one CPU.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    pub(super) file: Option<String>,
    pub(super) seconds: f64,
    pub(super) snapshots: u64,
    /// Whether there was a process to watch; an empty control group has none.
    #[serde(skip)]
    pub(super) had_targets: bool,
    /// Time between the last two snapshots.
    pub(super) interval_seconds: f64,
    pub(super) regions: usize,
    /// Size of the monitored address ranges, holes included.
    pub(super) monitored_bytes: u64,
    pub(super) resident_bytes: Option<u64>,
    pub(super) swapped_bytes: Option<u64>,
    /// Mean of the accessed bytes over time; `null` where no target lived for an interval.
    pub(super) working_set_bytes: Option<u64>,
    /// Bytes accessed in the last snapshot's interval.
    pub(super) hot_bytes: u64,
    pub(super) unknown_bytes: u64,
    pub(super) rss_bytes: Option<u64>,
    /// Predicted RSS if the operations of the dry run had been executed.
    pub(super) rss_bytes_after_dry_run: Option<u64>,
    /// Descendants of targets that were seen and not watched; there may have been more.
    pub(super) children_not_watched: usize,
    pub(super) monitor_cpu_percent: f64,
    pub(super) induced_cpu_percent_estimated: f64,
    /// CPU budget of the monitor and of what it takes from targets together; `null` without a budget.
    pub(super) cpu_budget_percent: Option<f64>,
    pub(super) clears: u64,
    pub(super) checks: u64,
    pub(super) refused: u64,
    pub(super) monitor_peak_rss_bytes: u64,
    pub(super) method: Option<String>,
    #[serde(flatten)]
    pub(super) acted: Option<ActingSummary>,
}

/// Intervals of at least this length, in seconds, are printed.
const LONG_INTERVAL_S: f64 = 2.0;
/// Ratio of spent time to budget from which the closing lines mention the excess.
const EXCESS: f64 = 1.1;

impl Summary {
    pub(super) fn text(&self) -> String {
        let unknown = if self.unknown_bytes > 0 {
            format!(", {} unknown", format_bytes(self.unknown_bytes))
        } else {
            String::new()
        };
        let line = |text: Option<String>| text.map_or_else(String::new, |text| format!("\n{text}"));
        let method = line(self.method.clone());
        let acted = line(self.acted.as_ref().map(ActingSummary::text));
        let wrote = line(self.file.as_ref().map(|file| format!("wrote {file}")));
        let watched = match self.resident_bytes {
            Some(resident) => format!("{} resident", format_bytes(resident)),
            None => format!("{} watched", format_bytes(self.monitored_bytes)),
        };
        let mut notes = Vec::new();
        if let (Some(rss), Some(after)) = (self.rss_bytes, self.rss_bytes_after_dry_run) {
            let (rss, after) = (format_bytes(rss), format_bytes(after));
            notes.push(format!("\nRSS is {rss}, and would be about {after}"));
        }
        if self.interval_seconds >= LONG_INTERVAL_S && self.method.is_none() {
            notes.push(format!(
                "\na snapshot is of {:.1} s, as the CPU budget is for this much memory; \
                 --cpu-budget raises it",
                self.interval_seconds
            ));
        }
        notes.extend(self.excess());
        let of_children = match self.children_not_watched {
            0 => None,
            1 => Some("1 child process was not".to_owned()),
            nr => Some(format!("{nr} child processes were not")),
        };
        // Children that lived for less than a second were not seen.
        notes.extend(of_children.map(|nr| format!("\nat least {nr} watched; --children does")));
        let notes = notes.concat();
        if self.snapshots == 0 {
            let why = if self.had_targets {
                "the targets ended before the first was complete"
            } else {
                "the control group was empty"
            };
            return format!(
                "recorded {:.1} s, and no snapshot: {why}{notes}{wrote}",
                self.seconds
            );
        }
        format!(
            "recorded {:.1} s in {} snapshots: {watched}, {} in use on average{unknown}\n\
             watching cost {:.2} % of a CPU, and an estimated {:.2} % taken from the targets; {} clears, {} refused; {} of memory{method}{acted}{notes}{wrote}",
            self.seconds,
            self.snapshots,
            self.working_set_bytes
                .map_or_else(|| "?".into(), format_bytes),
            self.monitor_cpu_percent,
            self.induced_cpu_percent_estimated,
            self.clears,
            self.refused,
            format_bytes(self.monitor_peak_rss_bytes),
        )
    }
}

impl Summary {
    /// Returns a note if monitoring took more than its budget.
    fn excess(&self) -> Option<String> {
        let budget = self.cpu_budget_percent?;
        let took = self.monitor_cpu_percent + self.induced_cpu_percent_estimated;
        (took > budget * EXCESS).then(|| {
            format!(
                "\nthat is more than the budget of {budget} %: the first scans of processes and page tables cost \
                 more than later ones; a longer record comes closer to its budget"
            )
        })
    }
}

/// Returns CPU time in percent of one CPU.
pub(super) fn cpu_share(cpu: Nanos, elapsed: Nanos) -> f64 {
    100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
}
