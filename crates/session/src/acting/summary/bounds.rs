//! Time for which each limit bound the schemes of a context.

use std::collections::BTreeMap;

use isotherm_engine::Nanos;
use isotherm_engine::units::format_share;
use isotherm_policy::BoundBy;

/// Time for which a limit bound the schemes.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoundTime {
    /// The limit.
    pub by: BoundBy,
    /// Seconds since the start.
    pub seconds: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct BoundTimes {
    last: Option<(Nanos, BoundBy)>,
    times: BTreeMap<BoundBy, Nanos>,
}

impl BoundTimes {
    pub(crate) fn note(&mut self, now: Nanos, by: BoundBy) {
        if let Some((since, last)) = self.last.replace((now, by)) {
            let time = self.times.entry(last).or_default();
            *time = *time + now.since(since);
        }
    }

    /// Returns the limits, those that bound for longest first.
    pub(crate) fn list(&self) -> Vec<BoundTime> {
        sorted(
            self.times
                .iter()
                .map(|(by, time)| (*by, time.as_secs_f64())),
        )
    }
}

/// Sums up times by limit, and sorts them, the longest first.
pub(super) fn sorted(times: impl Iterator<Item = (BoundBy, f64)>) -> Vec<BoundTime> {
    let mut sums: BTreeMap<BoundBy, f64> = BTreeMap::new();
    for (by, seconds) in times {
        *sums.entry(by).or_default() += seconds;
    }
    let sums = sums.into_iter().filter(|(_, seconds)| *seconds > 0.0);
    let mut list: Vec<BoundTime> = sums
        .map(|(by, seconds)| BoundTime { by, seconds })
        .collect();
    list.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    list
}

/// Returns the limits with their shares of the time, for people.
pub(super) fn text(times: &[BoundTime]) -> String {
    let all: f64 = times.iter().map(|of| of.seconds).sum();
    let parts = times.iter().map(|of| {
        let share = format_share(of.seconds / all.max(1e-9));
        format!("{} {share}", words(of.by))
    });
    parts.collect::<Vec<_>>().join(", ")
}

pub(crate) const fn words(by: BoundBy) -> &'static str {
    match by {
        BoundBy::Paused => "paused",
        BoundBy::Watermarks => "watermarks",
        BoundBy::Goal => "goal reached",
        BoundBy::Guard => "stopped by the guard",
        BoundBy::Rate => "rate of the guard",
        BoundBy::CpuBudget => "CPU budget",
        BoundBy::AllowedLoss => "allowed loss of the targets",
        BoundBy::Speed => "speed of acting",
        BoundBy::Quota => "quota",
        BoundBy::Returns => "memory that would be read back too soon",
        BoundBy::Memory => "no further memory matches",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_bound_for_longest_comes_first() {
        let mut times = BoundTimes::default();
        for (second, by) in [
            (0, BoundBy::Rate),
            (1, BoundBy::Memory),
            (4, BoundBy::Rate),
            (5, BoundBy::Goal),
        ] {
            times.note(Nanos::from_millis(second * 1000), by);
        }
        let list = times.list();
        assert_eq!(list.len(), 2, "the last has just begun: {list:?}");
        let wanted = "no further memory matches 60 %, rate of the guard 40 %";
        assert_eq!(text(&list), wanted);
    }
}
