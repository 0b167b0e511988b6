//! Metrics of runs: those of DAMON's evaluation under its names, and the costs of Isotherm.

use crate::journal::RunMeasurements;

/// A metric of runs.
#[derive(Clone, Copy, Debug)]
pub struct RunMetric {
    /// Name in tables.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// Returns the value of one run.
    pub of: fn(&RunMeasurements) -> Option<f64>,
}

impl RunMetric {
    /// Whether a sum over workloads is meaningful: sums of rates and shares are not.
    pub fn sums(&self) -> bool {
        !self.unit.starts_with("per") && !self.name.starts_with("monitor")
    }

    /// Returns the unit for people, its divisor, and the number of significant decimals.
    pub fn shown(&self) -> (&'static str, f64, usize) {
        match self.unit {
            "KiB" => ("MiB", 1024.0, 1),
            "seconds" => ("seconds", 1.0, 2),
            "per second" => ("per second", 1.0, 1),
            unit if unit.starts_with("percent") => (unit, 1.0, 2),
            unit => (unit, 1.0, 0),
        }
    }

    /// Returns a value as text in the unit of [`RunMetric::shown`].
    pub fn text(&self, value: f64) -> String {
        let (_, divisor, digits) = self.shown();
        format!("{:.digits$}", value / divisor)
    }
}

/// All metrics, those of DAMON's evaluation first. For a workload that reports its throughput, [`crate::Suite`]
/// replaces the runtime and the CPU time by those for the same work.
pub const METRICS: [RunMetric; 26] = [
    metric("runtime", "seconds", |m| Some(m.runtime_s)),
    metric("memused.avg", "KiB", |m| Some(m.memused_kib)),
    metric("rss.avg", "KiB", |m| Some(m.rss_kib)),
    metric("pgmajfaults", "faults", |m| Some(m.pgmajfaults as f64)),
    metric("psi_mem_some_us", "us", |m| count(m.psi_mem_some_us)),
    metric("psi_mem_full_us", "us", |m| count(m.psi_mem_full_us)),
    metric("pswpin", "pages", |m| Some(m.pswpin as f64)),
    metric("pswpout", "pages", |m| Some(m.pswpout as f64)),
    metric("thp_fault_alloc", "huge pages", |m| {
        count(m.thp_fault_alloc)
    }),
    metric("thp_collapse_alloc", "huge pages", |m| {
        count(m.thp_collapse_alloc)
    }),
    metric("thp_split_page", "huge pages", |m| count(m.thp_split_page)),
    metric("cputime", "seconds", |m| m.cpu_s),
    metric("throughput", "per second", |m| m.throughput),
    metric("monitor_cpu", "percent of a CPU", |m| m.monitor_cpu_percent),
    metric("induced_cpu", "percent of a CPU", |m| m.induced_cpu_percent),
    metric("monitor_rss", "KiB", |m| m.monitor_rss_kib),
    metric("rss+pool.avg", "KiB", |m| Some(m.rss_kib + m.pool_kib?)),
    metric("rss.end", "KiB", |m| m.rss_end_kib),
    metric("majflt", "faults", |m| count(m.majflt)),
    metric("minflt", "faults", |m| count(m.minflt)),
    metric("refault_anon", "pages", |m| count(m.refault_anon)),
    metric("swap_cache_hits", "pages", |m| count(m.swap_cache_hits)),
    metric("acting_cpu", "seconds", |m| m.acting_cpu_s),
    metric("guard_stops", "stops", |m| count(m.guard_stops)),
    metric("memused.end", "KiB", |m| m.memused_end_kib),
    metric("guard_lost", "seconds", |m| m.guard_lost_s),
];

/// Index of the runtime in [`METRICS`].
pub const RUNTIME: usize = 0;
/// Index of the system's used memory.
pub const MEMUSED: usize = 1;
/// Index of the workload's resident memory.
pub const RSS: usize = 2;
/// Index of the workload's CPU time. On a busy machine it says more than the runtime, which includes the time of other
/// programs.
pub const CPUTIME: usize = 11;

/// Index of the monitor's CPU time.
pub const MONITOR_CPU: usize = 13;
/// Index of the workload's resident memory with the pool of compressed swap. The saving of paging out is the difference
/// of this, not of [`RSS`]. The pool is the whole machine's, so this counts too much if a scheme acts on all memory.
pub const RSS_AND_POOL: usize = 16;
/// Index of the workload's resident memory at its end.
pub const RSS_END: usize = 17;
/// Index of the workload's major faults.
pub const MAJFLT: usize = 18;
/// Index of the system's anonymous refaults.
pub const REFAULTS: usize = 20;
/// Index of the CPU time of acting.
pub const ACTING_CPU: usize = 22;
/// Index of the guard's stops.
pub const GUARD_STOPS: usize = 23;
/// Index of the system's used memory at the end.
pub const MEMUSED_END: usize = 24;

const fn metric(
    name: &'static str,
    unit: &'static str,
    of: fn(&RunMeasurements) -> Option<f64>,
) -> RunMetric {
    RunMetric { name, unit, of }
}

fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_units_that_people_read() {
        let check = |metric: usize, value: f64, expected: &str| {
            assert_eq!(METRICS[metric].text(value), expected);
        };
        check(RSS, 9_725_620.0, "9497.7");
        check(RUNTIME, 12.3456, "12.35");
        check(MAJFLT, 50.0, "50");
    }

    #[test]
    fn places_and_names_agree() {
        assert_eq!(METRICS[RUNTIME].name, "runtime");
        assert_eq!(METRICS[MEMUSED].name, "memused.avg");
        assert_eq!(METRICS[RSS].name, "rss.avg");
        assert_eq!(METRICS[CPUTIME].name, "cputime");
        assert_eq!(METRICS[MONITOR_CPU].name, "monitor_cpu");
        assert_eq!(METRICS[RSS_AND_POOL].name, "rss+pool.avg");
        assert_eq!(METRICS[RSS_END].name, "rss.end");
        assert_eq!(METRICS[MAJFLT].name, "majflt");
        assert_eq!(METRICS[REFAULTS].name, "refault_anon");
        assert_eq!(METRICS[ACTING_CPU].name, "acting_cpu");
        assert_eq!(METRICS[GUARD_STOPS].name, "guard_stops");
        assert_eq!(METRICS[MEMUSED_END].name, "memused.end");
    }
}
