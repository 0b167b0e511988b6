//! The guard in scripted seconds: what it allows after which signals.

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
            guard.charge(Action::Pageout, if used { allowed + 1 } else { 0 });
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
    guard.charge(Action::Pageout, GIB / 10);
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

fn slowed(waited_ms: u64) -> GuardSignals {
    let waited = Nanos::from_millis(waited_ms);
    GuardSignals {
        slowdown: Some(0.0),
        waited: Some(waited),
        ..GuardSignals::default()
    }
}

fn by_slowdown(share: f64) -> Guard {
    Guard::new(GuardLimits {
        max_slowdown: Some(share),
        ..GuardLimits::default()
    })
}

#[test]
fn a_signal_that_is_missing_is_no_room() {
    let mut guard = guard(100.0);
    for n in 0..10 {
        guard.observe(second(n), GuardSignals::default(), GIB);
        assert_eq!(guard.allowance(), Some(GIB / 20), "it does not grow");
        guard.charge(Action::Pageout, GIB / 20);
    }
    assert!(guard.status().is_blind);
    guard.observe(second(10), refaults(0.0), GIB);
    assert!(!guard.status().is_blind);
}

#[test]
fn a_burst_is_a_debt_that_must_be_paid_back() {
    let mut guard = by_slowdown(0.01);
    for n in 0..10 {
        guard.observe(second(n), slowed(0), GIB);
    }
    // 0.1 s were allowed in 10 s, 0.6 s are lost: 50 s to pay.
    guard.observe(second(10), slowed(600), GIB);
    let status = guard.status();
    assert!(status.is_in_debt && !status.is_open);
    assert_eq!(
        (status.nr_stops, status.exceeded),
        (1, Some(Limit::Slowdown))
    );
    let until = status.until.expect("foreseen").as_secs_f64();
    assert!((59.0..62.0).contains(&until), "{until}");
    for n in 11..59 {
        guard.observe(second(n), slowed(0), GIB);
        assert_eq!(guard.allowance(), Some(0), "second {n}");
    }
    guard.observe(second(59), slowed(0), GIB);
    guard.observe(second(60), slowed(0), GIB);
    assert!(guard.status().is_open);
}

#[test]
fn loss_stays_within_what_is_allowed_whatever_the_period_of_bursts() {
    const SECONDS: u64 = 3600;
    for period in [6, 15, 30, 60, 120] {
        let (mut guard, mut out, mut lost) = (by_slowdown(0.01), 0_u64, 0);
        for n in 0..SECONDS {
            // A burst brings 200 MiB back, at 15 us a page.
            let waited = if n % period == 0 {
                std::mem::take(&mut out)
            } else {
                0
            };
            lost += waited * 15 / 4096 / 1000;
            guard.observe(second(n), slowed(waited * 15 / 4096 / 1000), GIB);
            let more = guard.allowance().expect("limited").min((200 << 20) - out);
            guard.charge(Action::Pageout, more);
            out += more;
        }
        // And what one burst overdraws.
        let allowed = 0.01 * SECONDS as f64 + 0.9;
        assert!((lost as f64) / 1e3 < allowed, "every {period} s: {lost} ms");
    }
}

#[test]
fn taken_cpu_is_a_loss_and_leaves_less_room() {
    let mut guard = by_slowdown(0.01);
    guard.observe(second(0), slowed(0), GIB);
    guard.observe(second(1), slowed(0), GIB);
    assert!((guard.loss_room_ns().expect("limited") - 20e6).abs() < 1e3);
    guard.taken(second(1), Nanos::from_millis(15));
    assert!((guard.loss_room_ns().expect("limited") - 5e6).abs() < 1e3);
    assert_eq!(guard_without().loss_room_ns(), None);
}

fn guard_without() -> Guard {
    Guard::new(GuardLimits::default())
}

#[test]
fn a_wait_that_is_too_long_stops_at_once() {
    let mut guard = Guard::new(GuardLimits {
        max_refault_wait: Some(Nanos::from_millis(50)),
        ..GuardLimits::default()
    });
    guard.observe(second(0), slowed(49), GIB);
    assert!(guard.status().is_open);
    guard.observe(second(1), slowed(51), GIB);
    let status = guard.status();
    assert_eq!(
        (status.is_open, status.exceeded),
        (false, Some(Limit::RefaultWait))
    );
}
