//! Counters of a kdamond's schemes: as items, and as totals over restarts.
//!
//! Only the tracepoint `damos_before_apply` reports the target on which a scheme was tried. The bytes acted on are
//! divided among the targets in proportion to the bytes tried. The cost of acting is the kdamond's CPU time beyond its
//! CPU time while nothing is acted on.

use std::collections::BTreeMap;

use isotherm_damon::KernelStats;
use isotherm_engine::{Nanos, TargetId};
use isotherm_policy::Refusal;
use isotherm_policy::scheme::Scheme;
use isotherm_record::{ActionSample, TargetActions};

use crate::monitor::Force;

/// A second in which nothing is acted on moves the cost of watching by this share of the difference.
const LEARN: f64 = 0.3;

#[derive(Debug, Default)]
pub(super) struct SchemeCounters {
    /// The session's name of the context, where there are several.
    context: Option<String>,
    /// Names of the user's actions: the kernel's may differ.
    actions: Vec<&'static str>,
    force: Force,
    last: Vec<KernelStats>,
    pub(super) totals: Vec<KernelStats>,
    /// Bytes that each scheme was about to be applied to since the last reading, by the scheme's and the target's
    /// place.
    tried: BTreeMap<(u32, u32), u64>,
    /// The kdamond's CPU time at the last reading; `former_cpu` is that of the kdamonds before it.
    cpu: Nanos,
    former_cpu: Nanos,
    looked: Option<Nanos>,
    /// CPU seconds for each second of watching alone; `None` before the first measurement.
    watching: Option<f64>,
    acting_cpu: Nanos,
}

impl SchemeCounters {
    pub(super) fn new(context: Option<String>, schemes: &[Scheme], force: Force) -> Self {
        Self {
            context,
            actions: schemes.iter().map(|scheme| scheme.action.name()).collect(),
            force,
            totals: vec![KernelStats::default(); schemes.len()],
            ..Self::default()
        }
    }

    pub(super) fn nr(&self) -> usize {
        self.actions.len()
    }

    /// Returns the CPU time of all kdamonds so far, and the part of it that acting took.
    pub(super) fn cpu(&self) -> (Nanos, Nanos) {
        (self.former_cpu + self.cpu, self.acting_cpu)
    }

    /// Sets other schemes, or another force of the same ones. The totals of schemes at the same places continue.
    pub(super) fn set(&mut self, schemes: &[Scheme], force: Force) {
        self.actions = schemes.iter().map(|scheme| scheme.action.name()).collect();
        self.totals.resize(schemes.len(), KernelStats::default());
        self.force = force;
        self.tried.clear();
    }

    /// Follows a restart of the kdamond, whose schemes are held and whose counters start from zero.
    pub(super) fn restart(&mut self) {
        if self.force == Force::Acts {
            self.force = Force::Held;
        }
        self.former_cpu = self.former_cpu + self.cpu;
        self.cpu = Nanos(0);
        self.last.clear();
        self.tried.clear();
    }

    /// Adds bytes of the target at this place to which a scheme is about to be applied.
    pub(super) fn note_tried(&mut self, scheme: u32, target: u32, bytes: u64) {
        *self.tried.entry((scheme, target)).or_default() += bytes;
    }

    /// Returns the schemes' work since the last call, from the counters at `now` and the kdamond's CPU time. `order`
    /// holds the targets by their places.
    pub(super) fn take(
        &mut self,
        now: Nanos,
        stats: Vec<KernelStats>,
        cpu: Option<Nanos>,
        order: &[TargetId],
    ) -> Vec<ActionSample> {
        let grown: Vec<KernelStats> = { stats.iter().enumerate() }
            .map(|(at, stats)| stats.since(self.last.get(at)))
            .collect();
        self.last = stats;
        let tried = std::mem::take(&mut self.tried);
        let took = self.take_cpu(now, cpu, grown.iter().any(|grown| grown.sz_applied > 0));
        for (total, grown) in self.totals.iter_mut().zip(&grown) {
            total.effective_bytes = grown.effective_bytes;
        }
        if self.force == Force::Held {
            return Vec::new();
        }
        let all: u64 = { grown.iter().take(self.actions.len()) }
            .map(|grown| grown.sz_tried)
            .sum();
        let mut samples = Vec::new();
        for (at, (action, grown)) in self.actions.iter().zip(grown).enumerate() {
            let applied = match self.force {
                Force::Pretends => grown.sz_tried,
                _ => grown.sz_applied.min(grown.sz_tried),
            };
            self.totals[at].add(&KernelStats {
                sz_applied: applied,
                ..grown
            });
            if grown.sz_tried == 0 {
                continue;
            }
            let share = u128::from(took.0) * u128::from(grown.sz_tried) / u128::from(all.max(1));
            let took = Nanos(share as u64);
            samples.push(ActionSample {
                time: now,
                context: self.context.clone(),
                scheme: at as u32,
                action: (*action).to_owned(),
                dry_run: self.force == Force::Pretends,
                nr_tried: grown.nr_tried,
                sz_tried: grown.sz_tried,
                sz_applied: applied,
                refused: refused(grown.sz_tried - applied),
                took,
                cpu: took,
                quota_bytes: grown.effective_bytes.filter(|bytes| *bytes > 0),
                targets: by_target(&tried, at as u32, (grown.sz_tried, applied), order),
                ..ActionSample::default()
            });
        }
        samples
    }

    /// Takes the kdamond's CPU time so far, and returns the part since the last call that acting took.
    fn take_cpu(&mut self, now: Nanos, cpu: Option<Nanos>, has_acted: bool) -> Nanos {
        let Some(cpu) = cpu else { return Nanos(0) };
        let taken = cpu.since(self.cpu);
        self.cpu = cpu;
        let Some(looked) = self.looked.replace(now) else {
            return Nanos(0);
        };
        let seconds = now.since(looked).as_secs_f64();
        if seconds <= 0.0 {
            return Nanos(0);
        }
        if !has_acted {
            let rate = taken.as_secs_f64() / seconds;
            let former = self.watching.unwrap_or(rate);
            self.watching = Some(former + LEARN * (rate - former));
            return Nanos(0);
        }
        let watching = self.watching.unwrap_or(0.0) * seconds * 1e9;
        let acting = taken.since(Nanos(watching as u64));
        self.acting_cpu = self.acting_cpu + acting;
        acting
    }
}

fn refused(bytes: u64) -> BTreeMap<Refusal, u64> {
    if bytes == 0 {
        return BTreeMap::new();
    }
    [(Refusal::Other, bytes)].into()
}

/// Returns each target's part of the bytes that a scheme was `tried` on and `applied` to; empty if no events report the
/// targets.
fn by_target(
    reported: &BTreeMap<(u32, u32), u64>,
    scheme: u32,
    (tried, applied): (u64, u64),
    order: &[TargetId],
) -> Vec<TargetActions> {
    let of_scheme = || reported.range((scheme, 0)..=(scheme, u32::MAX));
    let all: u64 = of_scheme().map(|(_, bytes)| bytes).sum();
    let part = |bytes: u64, of: u64| (u128::from(of) * u128::from(bytes) / u128::from(all)) as u64;
    let parts = of_scheme().filter(|(_, bytes)| **bytes > 0);
    let parts = parts.filter_map(|((_, place), bytes)| {
        let target = *order.get(*place as usize)?;
        let (sz_tried, sz_applied) = (part(*bytes, tried), part(*bytes, applied));
        Some(TargetActions {
            target,
            sz_tried,
            sz_applied,
            refused: refused(sz_tried.saturating_sub(sz_applied)),
        })
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use isotherm_policy::scheme::{AccessPattern, Action};

    use super::*;

    const ORDER: [TargetId; 2] = [TargetId(7), TargetId(9)];

    fn stats(sz_tried: u64, sz_applied: u64) -> Vec<KernelStats> {
        vec![KernelStats {
            nr_tried: sz_tried / 10,
            sz_tried,
            sz_applied,
            ..KernelStats::default()
        }]
    }

    fn counters(force: Force) -> SchemeCounters {
        let schemes = [Scheme::new(AccessPattern::ANY, Action::Pageout)];
        SchemeCounters::new(None, &schemes, force)
    }

    /// Checks the samples (tried, applied, milliseconds) that counters and CPU time at successive seconds yield.
    fn check(force: Force, looks: &[(u64, u64, u64)], wanted: &[(u64, u64, u64)]) {
        let mut counters = counters(force);
        let mut found = Vec::new();
        for (second, (tried, applied, cpu_ms)) in (1..).zip(looks) {
            let now = Nanos::from_millis(1000 * second);
            let cpu = Some(Nanos::from_millis(*cpu_ms));
            let samples = counters.take(now, stats(*tried, *applied), cpu, &ORDER);
            found.extend(samples.iter().map(|sample| {
                let refused: u64 = sample.refused.values().sum();
                assert_eq!(sample.sz_applied + refused, sample.sz_tried);
                (sample.sz_tried, sample.sz_applied, sample.cpu.0 / 1_000_000)
            }));
        }
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_has_grown_is_told_and_what_watching_takes_is_not_actings() {
        let looks = [
            (0, 0, 5),
            (0, 0, 10),
            (100, 80, 65),
            (100, 80, 70),
            (400, 80, 75),
        ];
        check(Force::Acts, &looks, &[(100, 80, 50), (300, 0, 0)]);
    }

    #[test]
    fn a_dry_run_would_have_and_what_is_held_is_not_told() {
        check(Force::Pretends, &[(100, 0, 5)], &[(100, 100, 0)]);
        check(Force::Held, &[(100, 0, 5)], &[]);
    }

    #[test]
    fn totals_outlive_the_kdamond() {
        let mut counters = counters(Force::Acts);
        let take = |counters: &mut SchemeCounters, second: u64, stats| {
            counters.take(Nanos::from_millis(1000 * second), stats, None, &ORDER);
        };
        take(&mut counters, 1, stats(100, 50));
        counters.restart();
        take(&mut counters, 2, stats(5, 5));
        // The schemes stay held until they are set again.
        counters.set(
            &[Scheme::new(AccessPattern::ANY, Action::Pageout)],
            Force::Acts,
        );
        take(&mut counters, 3, stats(35, 25));
        assert_eq!(counters.totals[0].sz_applied, 70);
    }

    #[test]
    fn targets_share_what_was_acted_on_as_they_were_tried() {
        let mut counters = counters(Force::Acts);
        counters.note_tried(0, 0, 300);
        counters.note_tried(0, 1, 100);
        // This place has no target any more.
        counters.note_tried(0, 5, 0);
        let samples = counters.take(Nanos(0), stats(400, 200), None, &ORDER);
        let targets = { samples[0].targets.iter() }
            .map(|target| (target.target, target.sz_tried, target.sz_applied));
        let targets: Vec<_> = targets.collect();
        assert_eq!(targets, [(ORDER[0], 300, 150), (ORDER[1], 100, 50)]);
    }
}
