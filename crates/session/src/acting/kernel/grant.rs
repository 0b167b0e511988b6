//! The work that is granted to the kernel's schemes, and the schemes that result from the user's.

use isotherm_damon::KernelStats;
use isotherm_engine::Nanos;
use isotherm_policy::guard::GuardStatus;
use isotherm_policy::scheme::{Action, Age, Scheme, Weights};

/// A grant that differs by less than this factor is not worth a commit.
const WORTH: f64 = 1.5;
/// Window of a quota for which the user has set none.
const WINDOW: Nanos = Nanos::from_millis(1_000);

/// Work that the kernel may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Grant {
    /// Schemes count the memory that they would be tried on.
    Nothing,
    /// Schemes act within these limits.
    Some(Limits),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Bytes a second; `None`: any.
    pub(super) bytes_per_s: Option<u64>,
    /// CPU time a second; `None`: any.
    pub(super) time_per_s: Option<Nanos>,
    /// Back-off: factor by which the minimum age of schemes is multiplied.
    pub(super) backoff: u32,
}

impl Limits {
    fn rates(self) -> [Option<u64>; 2] {
        [self.bytes_per_s, self.time_per_s.map(|time| time.0)]
    }
}

impl Grant {
    /// Returns the grant for this state of the guard. The rates are the bytes that may be charged and the CPU time that
    /// acting may take, each a second.
    pub(super) fn of(
        status: &GuardStatus,
        bytes_per_s: Option<u64>,
        time_per_s: Option<Nanos>,
    ) -> Self {
        let has_none = bytes_per_s == Some(0) || time_per_s == Some(Nanos(0));
        if !status.is_open || has_none {
            return Self::Nothing;
        }
        Self::Some(Limits {
            bytes_per_s,
            time_per_s,
            backoff: status.backoff.max(1),
        })
    }

    /// Whether this grant differs enough from `former` to be worth a commit.
    pub(super) fn differs(self, former: Self) -> bool {
        let (Self::Some(now), Self::Some(before)) = (self, former) else {
            return self != former;
        };
        let is_far = |(now, before): (Option<u64>, Option<u64>)| match (now, before) {
            (None, None) => false,
            (Some(now), Some(before)) => {
                let ratio = now as f64 / (before as f64).max(1.0);
                !(1.0 / WORTH..=WORTH).contains(&ratio)
            }
            _ => true,
        };
        now.backoff != before.backoff || now.rates().into_iter().zip(before.rates()).any(is_far)
    }

    /// Whether this grant must not wait for the next regular commit: it allows less than `former`, or one of the two
    /// grants nothing. While nothing is granted, no scheme acts that an early commit would delay.
    pub(super) fn is_less_than(self, former: Self) -> bool {
        let (Self::Some(now), Self::Some(before)) = (self, former) else {
            return self != former;
        };
        let is_less = |(now, before): (Option<u64>, Option<u64>)| {
            now.unwrap_or(u64::MAX) < before.unwrap_or(u64::MAX)
        };
        now.backoff > before.backoff || now.rates().into_iter().zip(before.rates()).any(is_less)
    }

    /// Returns the user's schemes, limited by this grant. Where there is a guard (`is_guarded`) and nothing is granted,
    /// each scheme gets a quota of one byte a second.
    pub(super) fn limit(self, schemes: &[Scheme], is_guarded: bool) -> Vec<Scheme> {
        let limits = match self {
            Self::Nothing if !is_guarded => return schemes.to_vec(),
            Self::Nothing => Limits {
                bytes_per_s: Some(1),
                time_per_s: None,
                backoff: 1,
            },
            Self::Some(limits) => {
                let acting = { schemes.iter() }.filter(|scheme| scheme.action != Action::Stat);
                // The schemes share the grant.
                let nr = (acting.count() as u64).max(1);
                Limits {
                    bytes_per_s: limits.bytes_per_s.map(|bytes| (bytes / nr).max(1)),
                    time_per_s: limits.time_per_s.map(|time| Nanos(time.0 / nr)),
                    ..limits
                }
            }
        };
        let limited = schemes.iter();
        limited.map(|of| limited_scheme(of, limits)).collect()
    }
}

/// Whether all quotas of the schemes are in force. Those of a kernel that does not report this count as in force.
pub(super) fn are_in_force(schemes: &[Scheme], stats: &[KernelStats]) -> bool {
    let limited = schemes.iter().zip(stats);
    limited
        .filter(|(scheme, _)| scheme.action != Action::Stat && scheme.quota.is_limited())
        .all(|(_, stats)| stats.effective_bytes != Some(0))
}

/// Returns the longest time until quotas are in force: four windows. A quota that rounds to nothing never appears to be
/// in force.
pub(super) fn longest_window(schemes: &[Scheme]) -> Nanos {
    let windows = schemes.iter().map(|scheme| scheme.quota.reset_interval);
    let longest = windows.max().unwrap_or_default().max(WINDOW);
    Nanos(longest.0.saturating_mul(4))
}

fn limited_scheme(scheme: &Scheme, limits: Limits) -> Scheme {
    let mut scheme = scheme.clone();
    let ([bytes_per_s, time_per_s], backoff) = (limits.rates(), limits.backoff);
    let is_limited = bytes_per_s.is_some() || time_per_s.is_some() || backoff > 1;
    if scheme.action == Action::Stat || !is_limited {
        return scheme;
    }
    let quota = &mut scheme.quota;
    if quota.reset_interval == Nanos(0) || quota.bytes == 0 && quota.time == Nanos(0) {
        quota.reset_interval = WINDOW;
    }
    let windows_per_s = 1e9 / quota.reset_interval.0 as f64;
    let lesser = |own: u64, granted: Option<u64>| {
        let granted = granted.map(|of_second| ((of_second as f64 / windows_per_s) as u64).max(1));
        match (own, granted) {
            (0, granted) => granted.unwrap_or(0),
            (own, None) => own,
            (own, Some(granted)) => own.min(granted),
        }
    };
    let has_own = quota.bytes > 0 || quota.time > Nanos(0);
    quota.bytes = lesser(quota.bytes, bytes_per_s);
    // The kernel counts in milliseconds, and 0 means no limit.
    let least = Nanos::from_millis(1);
    quota.time = match Nanos(lesser(quota.time.0, time_per_s)) {
        Nanos(0) => Nanos(0),
        time => time.max(least),
    };
    if !has_own && quota.weights == Weights::default() {
        quota.weights.age_permil = 1;
    }
    if scheme.action == Action::Pageout && backoff > 1 {
        scheme.pattern.age.min = match scheme.pattern.age.min {
            Age::Intervals(count) => Age::Intervals(count.saturating_mul(backoff)),
            Age::Time(time) => Age::Time(Nanos(time.0.saturating_mul(backoff.into()))),
        };
    }
    scheme
}

/// Ratio of the bytes that DAMOS charges to those acted on: it charges all addresses that it tries, even if they hold
/// no memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeRatio {
    tried: u64,
    applied: u64,
    charged_per_byte: f64,
}

impl ChargeRatio {
    /// The ratio grows by at most this factor a second, and falls at once: addresses that do hold memory are all acted
    /// on.
    const GROWTH: f64 = 4.0;
    const MAX: f64 = 10_000.0;

    pub(super) fn new() -> Self {
        Self {
            tried: 0,
            applied: 0,
            charged_per_byte: 1.0,
        }
    }

    /// Adds bytes that were tried, and the part of them that was acted on.
    pub(super) fn note(&mut self, tried: u64, applied: u64) {
        self.tried += tried;
        self.applied += applied;
    }

    /// Updates the ratio at the end of a second.
    pub(super) fn learn(&mut self) {
        let (tried, applied) = (self.tried as f64, self.applied as f64);
        if self.tried > 0 {
            let most = (self.charged_per_byte * Self::GROWTH).min(Self::MAX);
            self.charged_per_byte = (tried / applied).clamp(1.0, most);
        }
        (self.tried, self.applied) = (0, 0);
    }

    /// Returns the bytes that may be charged where `bytes` may be acted on.
    pub(super) fn charge(self, bytes: u64) -> u64 {
        (bytes as f64 * self.charged_per_byte) as u64
    }
}

#[cfg(test)]
mod tests {
    use isotherm_policy::scheme::{AccessPattern, Bounds, Quota};

    use super::*;

    fn pageout(quota: Quota) -> Scheme {
        let [min, max] = [Nanos::from_millis(5000), Nanos(u64::MAX)].map(Age::Time);
        let pattern = AccessPattern {
            age: Bounds::new(min, max),
            ..AccessPattern::ANY
        };
        Scheme {
            quota,
            ..Scheme::new(pattern, Action::Pageout)
        }
    }

    fn some(bytes_per_s: Option<u64>, time_ms: Option<u64>, backoff: u32) -> Grant {
        Grant::Some(Limits {
            bytes_per_s,
            time_per_s: time_ms.map(Nanos::from_millis),
            backoff,
        })
    }

    /// Checks the quota of a scheme under a grant: bytes, milliseconds, and the window in milliseconds.
    fn check(grant: Grant, quota: (u64, u64, u64), wanted: (u64, u64, u64)) {
        let ms = Nanos::from_millis;
        let own = Quota {
            bytes: quota.0,
            time: ms(quota.1),
            reset_interval: ms(quota.2),
            ..Quota::default()
        };
        let schemes = [pageout(own), Scheme::new(AccessPattern::ANY, Action::Stat)];
        let limited = grant.limit(&schemes, true);
        let quota = &limited[0].quota;
        let found = (quota.bytes, quota.time, quota.reset_interval);
        let wanted = (wanted.0, ms(wanted.1), ms(wanted.2));
        assert_eq!(found, wanted, "{grant:?}");
        let counting = &limited[1].quota;
        assert_eq!(*counting, Quota::default(), "who counts needs no quota");
    }

    #[test]
    fn the_lesser_of_the_users_quota_and_the_grant_is_in_force() {
        check(some(None, None, 1), (0, 0, 0), (0, 0, 0));
        check(some(Some(500), Some(20), 1), (0, 0, 0), (500, 20, 1000));
        check(some(Some(500), None, 1), (300, 0, 1000), (300, 0, 1000));
        check(some(Some(500), None, 1), (3000, 7, 2000), (1000, 7, 2000));
        check(some(None, Some(20), 1), (3000, 70, 500), (3000, 10, 500));
        // The kernel counts in milliseconds, and takes 0 for no limit.
        check(some(Some(0), None, 1), (0, 0, 0), (1, 0, 1000));
        let little = Grant::Some(Limits {
            bytes_per_s: None,
            time_per_s: Some(Nanos(1)),
            backoff: 1,
        });
        check(little, (0, 0, 0), (0, 1, 1000));
    }

    #[test]
    fn nothing_is_granted_by_counting_and_back_off_by_age() {
        let schemes = [pageout(Quota::default())];
        assert_eq!(Grant::Nothing.limit(&schemes, false), schemes);
        assert_eq!(Grant::Nothing.limit(&schemes, true)[0].quota.bytes, 1);
        let patient = some(None, None, 4).limit(&schemes, true);
        let four_times = Age::Time(Nanos::from_millis(20_000));
        assert_eq!(patient[0].pattern.age.min, four_times);
    }

    #[test]
    fn quotas_are_waited_for_where_the_kernel_tells() {
        let limited = some(Some(1000), None, 1).limit(&[pageout(Quota::default())], true);
        let check = |effective_bytes, wanted| {
            let stats = [KernelStats {
                effective_bytes,
                ..KernelStats::default()
            }];
            assert_eq!(are_in_force(&limited, &stats), wanted);
        };
        check(Some(0), false);
        check(Some(1000), true);
        // Kernels before 6.9 do not report it.
        check(None, true);
        assert!(are_in_force(&[pageout(Quota::default())], &[]));
    }

    #[test]
    fn only_what_makes_a_difference_is_worth_a_commit() {
        let check = |a: Grant, b: Grant, wanted| assert_eq!(a.differs(b), wanted, "{a:?} {b:?}");
        check(Grant::Nothing, Grant::Nothing, false);
        check(Grant::Nothing, some(None, None, 1), true);
        check(some(Some(100), None, 1), some(Some(120), None, 1), false);
        check(some(Some(100), None, 1), some(Some(200), None, 1), true);
        check(some(Some(100), None, 1), some(None, None, 1), true);
        check(some(None, Some(5), 1), some(None, Some(9), 1), true);
        check(some(None, None, 2), some(None, None, 1), true);
        let less =
            |a: Grant, b: Grant, wanted| assert_eq!(a.is_less_than(b), wanted, "{a:?} {b:?}");
        less(Grant::Nothing, some(None, None, 1), true);
        less(some(None, None, 1), Grant::Nothing, true);
        less(Grant::Nothing, Grant::Nothing, false);
        less(some(Some(200), None, 1), some(Some(100), None, 1), false);
        less(some(Some(50), None, 1), some(Some(100), None, 1), true);
        less(some(Some(50), None, 1), some(None, None, 1), true);
        less(some(None, Some(9), 1), some(None, Some(5), 1), false);
    }

    #[test]
    fn what_is_charged_for_addresses_without_memory_is_made_up_for() {
        let mut charged = ChargeRatio::new();
        let mut second = |tried, applied| {
            charged.note(tried, applied);
            charged.learn();
            charged.charge(1000)
        };
        assert_eq!(second(1000, 0), 4000);
        assert_eq!(second(4000, 400), 10_000);
        assert_eq!(second(0, 0), 10_000, "nothing was learnt");
        assert_eq!(second(10_000, 10_000), 1000);
    }
}
