//! The guard: how fast schemes may act, so that what they act on is not slowed.
//!
//! Problem: what a scheme costs its target shows only after it has acted (refaults, pressure, lost
//! speed), and a scheme that is right for most memory may be wrong for some, or from now on.
//!
//! Approach: a rate of bytes per second that schemes may act on, ruled by the *strain*, the largest
//! of signal / limit over the limits that the user set. Below the limit the law is TMO's (Weiner et
//! al., *TMO: Transparent Memory Offloading in Datacenters*, ASPLOS 2022, and its senpai): the more
//! strain, the less is asked for. Senpai asks for a fixed share times `1 - strain`; here the share
//! itself is found, by growing while there is room (as in congestion control, additive increase and
//! multiplicative decrease: Chiu and Jain, 1989):
//!
//! ```text
//! start            5 % of the targets' memory per second
//! strain < 1       rate grows by up to a half each second, times (1 - strain), while it is used up
//! strain >= 1      stop at once; rate / 4; nothing for the hold-off: 5 s, doubled each time up to
//!                  5 min; it halves again for every hold-off that passes quietly
//! least            0.0083 % per second: senpai's pace (0.05 % every 6 s)
//! ```
//!
//! Limits: signals are of all targets together. Memory that was reclaimed before the stop stays
//! reclaimed until it is touched. Without limits nothing is slowed and nothing stopped.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

/// Share of the targets' memory that may be acted on in the first second.
const START_PER_S: f64 = 0.05;
/// The least that it comes down to.
const LEAST_PER_S: f64 = 0.000_083;
/// All of it in a second: no limit worth the name.
const MOST_PER_S: f64 = 1.0;
const GROWTH: f64 = 0.5;
const HOLD_OFF_MIN: Nanos = Nanos::from_millis(5_000);
const HOLD_OFF_MAX: Nanos = Nanos::from_millis(300_000);

/// A target that runs less than this in a second is not slowed by a few refaults.
const LEAST_CPU_PER_S: f64 = 0.02;

/// The share of their time that targets lose to `faults` in so many seconds, in which they ran for
/// `cpu_s` seconds.
pub fn waited_share(faults: u64, cost: Nanos, cpu_s: f64, seconds: f64) -> f64 {
    faults as f64 * cost.as_secs_f64() / cpu_s.max(LEAST_CPU_PER_S * seconds)
}

/// What must not be exceeded. `None`: no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardLimits {
    /// Share of their time that targets may lose, 0 to 1.
    pub max_slowdown: Option<f64>,
    /// Refaults (major faults) per second, all targets together.
    pub max_refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory, 0 to 1.
    pub max_psi: Option<f64>,
}

impl GuardLimits {
    /// Whether there is any.
    pub fn is_limited(&self) -> bool {
        self.max_slowdown.is_some() || self.max_refaults_per_s.is_some() || self.max_psi.is_some()
    }
}

/// What was measured over the last second. `None`: not known, which is no strain but no room either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardSignals {
    /// Share of their time that targets lose.
    pub slowdown: Option<f64>,
    /// Refaults per second.
    pub refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory.
    pub psi: Option<f64>,
}

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// [`GuardLimits::max_slowdown`].
    Slowdown,
    /// [`GuardLimits::max_refaults_per_s`].
    Refaults,
    /// [`GuardLimits::max_psi`].
    Psi,
}

/// How the guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// Whether schemes may act at all now.
    pub is_open: bool,
    /// Bytes per second that they may act on; `None` without limits.
    pub bytes_per_s: Option<u64>,
    /// The largest of signal / limit; `None` where no limited signal is known.
    pub strain: Option<f64>,
    /// The last limit that was exceeded.
    pub exceeded: Option<Limit>,
    /// How often one was.
    pub nr_stops: u64,
    /// When schemes may act again, while they may not.
    pub until: Option<Nanos>,
    /// What was measured last.
    pub signals: GuardSignals,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: GuardLimits,
    /// Share of the targets' memory per second.
    share_per_s: f64,
    resident: u64,
    /// Bytes that may be acted on before the next observation.
    allowance: f64,
    was_used_up: bool,
    hold_off: Nanos,
    closed_until: Option<Nanos>,
    quiet_since: Nanos,
    last: Option<Nanos>,
    strain: Option<f64>,
    exceeded: Option<Limit>,
    nr_stops: u64,
    signals: GuardSignals,
}

impl Guard {
    /// A guard that has observed nothing yet, and so allows nothing yet, if it has limits.
    pub fn new(limits: GuardLimits) -> Self {
        Self {
            limits,
            share_per_s: START_PER_S,
            resident: 0,
            allowance: 0.0,
            was_used_up: false,
            hold_off: HOLD_OFF_MIN,
            closed_until: None,
            quiet_since: Nanos(0),
            last: None,
            strain: None,
            exceeded: None,
            nr_stops: 0,
            signals: GuardSignals::default(),
        }
    }

    /// Changes the limits while running.
    pub fn set_limits(&mut self, limits: GuardLimits) {
        self.limits = limits;
    }

    /// Takes in what was measured since the last time, about a second ago, and how many bytes the
    /// targets have in memory. Says whether this opened or closed the guard.
    pub fn observe(&mut self, now: Nanos, signals: GuardSignals, resident: u64) -> bool {
        let was_open = self.is_open();
        let elapsed = self.last.map_or(1.0, |last| now.since(last).as_secs_f64());
        self.last = Some(now);
        self.signals = signals;
        self.resident = resident;
        let (strain, limit) = self.strongest(signals);
        self.strain = strain;
        if strain.is_some_and(|strain| strain >= 1.0) {
            self.stop(now, limit);
        } else {
            self.go_on(now, strain.unwrap_or(0.0));
        }
        self.was_used_up = false;
        // What was not used is not saved up; what was taken too much is paid off.
        let debt = self.allowance.min(0.0);
        self.allowance = debt + self.share_per_s * resident as f64 * elapsed.clamp(0.0, 5.0);
        was_open != self.is_open()
    }

    /// Bytes that may be acted on now; `None`: as many as schemes want.
    pub fn allowance(&self) -> Option<u64> {
        if !self.limits.is_limited() {
            return None;
        }
        Some(if self.is_open() {
            self.allowance.max(0.0) as u64
        } else {
            0
        })
    }

    /// `bytes` were acted on.
    pub fn charge(&mut self, bytes: u64) {
        self.allowance -= bytes as f64;
        self.was_used_up |= self.allowance <= 0.0;
    }

    /// How it stands.
    pub fn status(&self) -> GuardStatus {
        GuardStatus {
            is_open: !self.limits.is_limited() || self.is_open(),
            bytes_per_s: self
                .limits
                .is_limited()
                .then_some((self.share_per_s * self.resident as f64) as u64),
            strain: self.strain,
            exceeded: self.exceeded,
            nr_stops: self.nr_stops,
            until: self.closed_until,
            signals: self.signals,
        }
    }

    fn is_open(&self) -> bool {
        self.last.is_some() && self.closed_until.is_none()
    }

    fn strongest(&self, signals: GuardSignals) -> (Option<f64>, Option<Limit>) {
        let all = [
            (signals.slowdown, self.limits.max_slowdown, Limit::Slowdown),
            (
                signals.refaults_per_s,
                self.limits.max_refaults_per_s,
                Limit::Refaults,
            ),
            (signals.psi, self.limits.max_psi, Limit::Psi),
        ];
        all.into_iter()
            .filter_map(|(signal, limit, which)| Some((signal? / limit?.max(1e-9), which)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or((None, None), |(strain, which)| (Some(strain), Some(which)))
    }

    fn stop(&mut self, now: Nanos, limit: Option<Limit>) {
        self.exceeded = limit;
        self.quiet_since = now;
        // While it is closed the strain is what the last stop was for.
        if self.closed_until.is_none() {
            self.nr_stops += 1;
            self.share_per_s = (self.share_per_s / 4.0).max(LEAST_PER_S);
            self.closed_until = Some(now + self.hold_off);
            self.hold_off = Nanos(self.hold_off.0 * 2).min(HOLD_OFF_MAX);
        }
    }

    fn go_on(&mut self, now: Nanos, strain: f64) {
        if let Some(until) = self.closed_until {
            if now >= until {
                self.closed_until = None;
                self.quiet_since = now;
            }
            return;
        }
        if self.was_used_up {
            let growth = 1.0 + GROWTH * (1.0 - strain);
            self.share_per_s = (self.share_per_s * growth).min(MOST_PER_S);
        }
        if now.since(self.quiet_since) >= self.hold_off && self.hold_off > HOLD_OFF_MIN {
            self.hold_off = Nanos(self.hold_off.0 / 2).max(HOLD_OFF_MIN);
            self.quiet_since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn guard(max_refaults_per_s: f64) -> Guard {
        Guard::new(GuardLimits {
            max_refaults_per_s: Some(max_refaults_per_s),
            ..GuardLimits::default()
        })
    }

    fn refaults(per_s: f64) -> GuardSignals {
        GuardSignals {
            refaults_per_s: Some(per_s),
            ..GuardSignals::default()
        }
    }

    fn second(n: u64) -> Nanos {
        Nanos(1_000_000_000 * (n + 1))
    }

    #[test]
    fn without_limits_nothing_is_limited() {
        let mut guard = Guard::new(GuardLimits::default());
        assert_eq!(guard.allowance(), None);
        guard.observe(second(0), refaults(1e9), GIB);
        assert_eq!(guard.allowance(), None);
        assert!(guard.status().is_open);
    }

    #[test]
    fn nothing_is_allowed_before_anything_was_observed() {
        let mut guard = guard(100.0);
        assert_eq!(guard.allowance(), Some(0));
        assert!(guard.observe(second(0), GuardSignals::default(), GIB));
        assert_eq!(guard.allowance(), Some(GIB / 20));
    }

    #[test]
    fn the_rate_grows_while_it_is_used_up_and_the_slower_the_more_strain_there_is() {
        let allowed_after = |strain: f64, used: bool| {
            let mut guard = guard(100.0);
            for n in 0..4 {
                guard.observe(second(n), refaults(100.0 * strain), GIB);
                let allowed = guard.allowance().expect("limited");
                guard.charge(if used { allowed + 1 } else { 0 });
            }
            guard.observe(second(4), refaults(100.0 * strain), GIB);
            guard.allowance().expect("limited") as f64 / GIB as f64
        };
        assert!((allowed_after(0.0, true) - 0.05 * 1.5f64.powi(4)).abs() < 1e-3);
        assert!((allowed_after(0.5, true) - 0.05 * 1.25f64.powi(4)).abs() < 1e-3);
        assert!((allowed_after(0.0, false) - 0.05).abs() < 1e-3);
    }

    #[test]
    fn what_was_taken_too_much_is_paid_off() {
        let mut guard = guard(100.0);
        guard.observe(second(0), GuardSignals::default(), GIB);
        guard.charge(GIB / 10);
        guard.observe(second(1), refaults(50.0), GIB);
        let allowed = guard.allowance().expect("limited") as f64 / GIB as f64;
        assert!((allowed - (0.05 * 1.25 - 0.05)).abs() < 1e-3, "{allowed}");
    }

    #[test]
    fn over_the_limit_it_stops_at_once_and_comes_back_slowly() {
        let mut guard = guard(100.0);
        guard.observe(second(0), refaults(0.0), GIB);
        assert!(guard.observe(second(1), refaults(100.0), GIB));
        assert_eq!(guard.allowance(), Some(0));
        let status = guard.status();
        assert_eq!(
            (status.is_open, status.exceeded, status.nr_stops),
            (false, Some(Limit::Refaults), 1)
        );
        for n in 2..6 {
            assert!(!guard.observe(second(n), refaults(0.0), GIB), "second {n}");
        }
        assert!(guard.observe(second(6), refaults(0.0), GIB));
        assert_eq!(guard.allowance(), Some(GIB / 80));
        // The next stop is twice as long.
        guard.observe(second(7), refaults(500.0), GIB);
        assert_eq!(guard.status().until, Some(second(17)));
    }

    #[test]
    fn hold_offs_shorten_again_in_quiet_times_and_the_rate_has_a_floor() {
        let mut guard = guard(1.0);
        let mut n = 0;
        for _ in 0..12 {
            guard.observe(second(n), refaults(2.0), GIB);
            n = guard.status().until.expect("closed").0 / 1_000_000_000;
            guard.observe(second(n), refaults(0.0), GIB);
            n += 1;
        }
        let least = guard.status().bytes_per_s.expect("limited") as f64 / GIB as f64;
        assert!((least - LEAST_PER_S).abs() < 1e-6, "{least}");
        assert_eq!(guard.hold_off, HOLD_OFF_MAX);
        for quiet in 0..700 {
            guard.observe(second(n + quiet), refaults(0.0), GIB);
        }
        assert_eq!(guard.hold_off, HOLD_OFF_MIN);
    }
}
