//! How busy a traced program and its machine were.

use isotherm_engine::Nanos;

use super::Seen;

/// Shorter intervals tell little: the kernel counts in hundredths of a second.
const SHORTEST_S: f64 = 0.5;

/// CPUs that were kept busy, from each moment of the trace on.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// By the program.
    pub(super) target: Vec<(Nanos, f64)>,
    /// By all others but the recorder.
    pub(super) others: Vec<(Nanos, f64)>,
}

impl Load {
    /// By the samples of memory use, about one a second, on a machine of so many CPUs (0: not known). Nothing where
    /// records tell no CPU times.
    pub(super) fn of(seen: &Seen, cpus: u32, start: Nanos) -> Self {
        let mut load = Self::default();
        let Some(target) = seen.target else {
            return load;
        };
        for two in seen.usage.windows(2) {
            let (before, after) = (&two[0], &two[1]);
            let seconds = after.time.since(before.time).as_secs_f64();
            let cpu = before.cpu.get(&target.0).zip(after.cpu.get(&target.0));
            let Some((then, now)) = cpu.filter(|_| seconds >= SHORTEST_S) else {
                continue;
            };
            let share = |time: Nanos| time.as_secs_f64() / seconds;
            let from = before.time.since(start);
            let of_target = share(now.since(*then));
            load.target.push((from, of_target));
            let idle = before.system_idle.zip(after.system_idle);
            if let Some((then, now)) = idle.filter(|_| cpus > 0) {
                let recorder = |time| seen.recorder.get(&time).copied().unwrap_or_default();
                let recorder = share(recorder(after.time).since(recorder(before.time)));
                let busy = f64::from(cpus) - share(now.since(then)) - of_target - recorder;
                load.others.push((from, busy.max(0.0)));
            }
        }
        load
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use isotherm_engine::TargetId;
    use isotherm_record::UsageSample;

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
            target: Some(TargetId(3)),
            usage: vec![usage(10, 0, 0), usage(11, 500, 400), usage(12, 1500, 400)],
            recorder: (10..13)
                .map(|n| (second(n), Nanos(n * 100_000_000)))
                .collect(),
            ..Seen::default()
        };
        let load = Load::of(&seen, 2, second(10));
        assert_eq!(load.target, [(second(0), 0.5), (second(1), 1.0)]);
        let others: Vec<u32> = load
            .others
            .iter()
            .map(|(_, cpus)| (cpus * 100.0).round() as u32)
            .collect();
        assert_eq!(others, [100, 90], "of two, 0.4 and 0 idle, 0.1 recorder");
        assert!(
            Load::of(&seen, 0, second(10)).others.is_empty(),
            "not known"
        );
    }
}
