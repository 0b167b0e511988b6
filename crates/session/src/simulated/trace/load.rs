//! Load of a traced program and its machine.

use isotherm_engine::{Nanos, TargetId};
use isotherm_record::UsageSample;

use super::Seen;

/// Shortest interval that is used: the kernel counts in hundredths of a second.
const SHORTEST_S: f64 = 0.5;

/// Returns the CPUs that a process kept busy, from each time after its `start` on. The samples of memory use come about
/// once a second. Empty if the record holds no CPU times.
pub(super) fn of_target(
    usage: &[UsageSample],
    target: TargetId,
    start: Nanos,
) -> Vec<(Nanos, f64)> {
    let intervals = intervals(usage).filter_map(|interval| {
        let used = interval.used_by(target)?;
        Some((interval.before.time.since(start), interval.share(used)))
    });
    intervals.collect()
}

/// Returns the CPUs that all other processes but the recorder kept busy, from each time after `start` on. `cpus` is the
/// number of the machine's CPUs, or 0 if unknown.
pub(super) fn of_others(seen: &Seen, cpus: u32, start: Nanos) -> Vec<(Nanos, f64)> {
    let recorder = |time| seen.recorder.get(&time).copied().unwrap_or_default();
    let intervals = intervals(&seen.usage).filter_map(|interval| {
        let Interval { before, after, .. } = interval;
        let idle = after.system_idle?.since(before.system_idle?);
        let recorder = recorder(after.time).since(recorder(before.time));
        let targets = { seen.targets.keys() }.filter_map(|target| interval.used_by(*target));
        let known: f64 = [idle, recorder]
            .into_iter()
            .chain(targets)
            .map(|time| interval.share(time))
            .sum();
        let busy = (f64::from(cpus) - known).max(0.0);
        (cpus > 0).then_some((before.time.since(start), busy))
    });
    intervals.collect()
}

#[derive(Clone, Copy)]
struct Interval<'a> {
    before: &'a UsageSample,
    after: &'a UsageSample,
    seconds: f64,
}

fn intervals(usage: &[UsageSample]) -> impl Iterator<Item = Interval<'_>> {
    let intervals = usage.windows(2).map(|two| Interval {
        before: &two[0],
        after: &two[1],
        seconds: two[1].time.since(two[0].time).as_secs_f64(),
    });
    intervals.filter(|interval| interval.seconds >= SHORTEST_S)
}

impl Interval<'_> {
    fn used_by(&self, target: TargetId) -> Option<Nanos> {
        let then = self.before.cpu.get(&target.0)?;
        Some(self.after.cpu.get(&target.0)?.since(*then))
    }

    fn share(&self, time: Nanos) -> f64 {
        time.as_secs_f64() / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Traced;
    use super::*;

    #[test]
    fn what_is_not_the_programs_nor_the_recorders_is_others() {
        let second = |n: u64| Nanos(n * 1_000_000_000);
        let usage = |n: u64, cpu_ms: u64, idle_ms: u64| UsageSample {
            time: second(n),
            cpu: BTreeMap::from([(3, Nanos::from_millis(cpu_ms))]),
            system_idle: Some(Nanos::from_millis(idle_ms)),
            ..UsageSample::default()
        };
        let seen = Seen {
            targets: BTreeMap::from([(TargetId(3), Traced::default())]),
            usage: vec![usage(10, 0, 0), usage(11, 500, 400), usage(12, 1500, 400)],
            recorder: (10..13)
                .map(|n| (second(n), Nanos(n * 100_000_000)))
                .collect(),
            ..Seen::default()
        };
        let of_target = of_target(&seen.usage, TargetId(3), second(10));
        assert_eq!(of_target, [(second(0), 0.5), (second(1), 1.0)]);
        let others: Vec<u32> = of_others(&seen, 2, second(10))
            .iter()
            .map(|(_, cpus)| (cpus * 100.0).round() as u32)
            .collect();
        assert_eq!(others, [100, 90], "of two, 0.4 and 0 idle, 0.1 recorder");
        assert!(of_others(&seen, 0, second(10)).is_empty(), "not known");
    }
}
