//! Tests of the guard in scripted seconds: the available bytes after given signals.

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

/// Observes a process of 1 GiB in second `n`; returns whether the guard opened or closed.
fn see(guard: &mut Guard, n: u64, signals: GuardSignals) -> bool {
    guard.observe(second(n), signals, Pools::processes(GIB))
}

fn available(guard: &Guard) -> u64 {
    guard.available(Pool::Processes).expect("limited")
}

/// Checks that the guard has stopped, once and for this limit.
#[track_caller]
fn check_stop(guard: &Guard, limit: Limit) {
    let status = guard.status();
    let reported = (status.is_open, status.exceeded, status.nr_stops);
    assert_eq!(reported, (false, Some(limit), 1));
}

fn page_out(guard: &mut Guard, bytes: u64) {
    guard.charge(Pool::Processes, Action::Pageout, bytes);
}

#[test]
fn without_limits_nothing_is_limited() {
    let mut guard = Guard::default();
    assert_eq!(guard.available(Pool::Processes), None);
    see(&mut guard, 0, refaults(1e9));
    assert_eq!(guard.available(Pool::Processes), None);
    assert!(guard.status().is_open);
}

#[test]
fn nothing_is_allowed_before_anything_was_observed() {
    let mut guard = guard(100.0);
    assert_eq!(available(&guard), 0);
    assert!(see(&mut guard, 0, GuardSignals::default()));
    assert_eq!(available(&guard), GIB / 20);
}

#[test]
fn the_rate_grows_while_it_is_used_up_and_the_slower_the_more_strain_there_is() {
    let allowed_after = |limit_ratio: f64, used: bool| {
        let mut guard = guard(100.0);
        for n in 0..4 {
            see(&mut guard, n, refaults(100.0 * limit_ratio));
            let allowed = available(&guard);
            page_out(&mut guard, if used { allowed + 1 } else { 0 });
        }
        see(&mut guard, 4, refaults(100.0 * limit_ratio));
        available(&guard) as f64 / GIB as f64
    };
    assert!((allowed_after(0.0, true) - 0.05 * 1.5f64.powi(4)).abs() < 1e-3);
    assert!((allowed_after(0.5, true) - 0.05 * 1.25f64.powi(4)).abs() < 1e-3);
    assert!((allowed_after(0.0, false) - 0.05).abs() < 1e-3);
}

#[test]
fn what_was_taken_too_much_is_paid_off() {
    let mut guard = guard(100.0);
    see(&mut guard, 0, GuardSignals::default());
    page_out(&mut guard, GIB / 10);
    see(&mut guard, 1, refaults(50.0));
    let allowed = available(&guard) as f64 / GIB as f64;
    assert!((allowed - (0.05 * 1.25 - 0.05)).abs() < 1e-3, "{allowed}");
}

#[test]
fn over_the_limit_it_stops_at_once_and_comes_back_slowly() {
    let mut guard = guard(100.0);
    see(&mut guard, 0, refaults(0.0));
    assert!(see(&mut guard, 1, refaults(100.0)));
    assert_eq!(available(&guard), 0);
    check_stop(&guard, Limit::Refaults);
    for n in 2..6 {
        assert!(!see(&mut guard, n, refaults(0.0)), "second {n}");
    }
    assert!(see(&mut guard, 6, refaults(0.0)));
    assert_eq!(available(&guard), GIB / 80);
    // The next stop is twice as long.
    see(&mut guard, 7, refaults(500.0));
    assert_eq!(guard.status().until, Some(second(17)));
}

#[test]
fn hold_offs_shorten_again_in_quiet_times_and_the_rate_has_a_floor() {
    let mut guard = guard(1.0);
    let mut n = 0;
    for _ in 0..12 {
        see(&mut guard, n, refaults(2.0));
        n = guard.status().until.expect("closed").0 / 1_000_000_000;
        see(&mut guard, n, refaults(0.0));
        n += 1;
    }
    let least = guard.status().bytes_per_s.expect("limited") as f64 / GIB as f64;
    assert!((least - rate::LEAST_PER_S).abs() < 1e-6, "{least}");
    assert_eq!(guard.rate(Pool::Processes).hold_off, rate::HOLD_OFF_MAX);
    for quiet in 0..700 {
        see(&mut guard, n + quiet, refaults(0.0));
    }
    assert_eq!(guard.rate(Pool::Processes).hold_off, rate::HOLD_OFF_MIN);
}

fn slowed(waited_ms: u64) -> GuardSignals {
    GuardSignals {
        slowdown: Some(0.0),
        waited: Some(Nanos::from_millis(waited_ms)),
        ..GuardSignals::default()
    }
}

fn by_slowdown(share: f64) -> Guard {
    Guard::new(GuardLimits::of_slowdown(share))
}

#[test]
fn a_signal_that_is_missing_is_no_room() {
    let mut guard = guard(100.0);
    for n in 0..10 {
        see(&mut guard, n, GuardSignals::default());
        assert_eq!(available(&guard), GIB / 20, "it does not grow");
        page_out(&mut guard, GIB / 20);
    }
    assert!(guard.status().is_blind);
    see(&mut guard, 10, refaults(0.0));
    assert!(!guard.status().is_blind);
}

#[test]
fn a_burst_is_a_debt_that_must_be_paid_back() {
    let mut guard = by_slowdown(0.01);
    for n in 0..10 {
        see(&mut guard, n, slowed(0));
    }
    // 0.1 s were allowed in 10 s, 0.6 s are lost: 50 s to pay.
    see(&mut guard, 10, slowed(600));
    let status = guard.status();
    assert!(status.is_in_debt);
    check_stop(&guard, Limit::Slowdown);
    let until = status.until.expect("foreseen").as_secs_f64();
    assert!((59.0..62.0).contains(&until), "{until}");
    for n in 11..59 {
        see(&mut guard, n, slowed(0));
        assert_eq!(available(&guard), 0, "second {n}");
    }
    see(&mut guard, 59, slowed(0));
    see(&mut guard, 60, slowed(0));
    assert!(guard.status().is_open);
}

#[test]
fn loss_stays_within_what_is_allowed_whatever_the_period_of_bursts() {
    const SECONDS: u64 = 3600;
    for period in [6, 15, 30, 60, 120] {
        let (mut guard, mut out, mut lost) = (by_slowdown(0.01), 0_u64, 0);
        for n in 0..SECONDS {
            // A burst brings 200 MiB back, at 15 us a page.
            let bursts = n % period == 0;
            let back = if bursts { std::mem::take(&mut out) } else { 0 };
            let waited_ms = back * 15 / 4096 / 1000;
            lost += waited_ms;
            see(&mut guard, n, slowed(waited_ms));
            let more = available(&guard).min((200 << 20) - out);
            page_out(&mut guard, more);
            out += more;
        }
        // The last addend is the overdraft of one burst.
        let allowed = 0.01 * SECONDS as f64 + 0.9;
        assert!((lost as f64) / 1e3 < allowed, "every {period} s: {lost} ms");
    }
}

#[test]
fn taken_cpu_is_a_loss_and_leaves_less_room() {
    let mut guard = by_slowdown(0.01);
    see(&mut guard, 0, slowed(0));
    see(&mut guard, 1, slowed(0));
    assert!((guard.available_loss_ns().expect("limited") - 20e6).abs() < 1e3);
    guard.charge_loss(second(1), Nanos::from_millis(15));
    assert!((guard.available_loss_ns().expect("limited") - 5e6).abs() < 1e3);
    assert_eq!(Guard::default().available_loss_ns(), None);
}

#[test]
fn a_wait_that_is_too_long_stops_at_once() {
    let mut guard = Guard::new(GuardLimits {
        max_refault_wait: Some(Nanos::from_millis(50)),
        ..GuardLimits::default()
    });
    see(&mut guard, 0, slowed(49));
    assert!(guard.status().is_open);
    see(&mut guard, 1, slowed(51));
    check_stop(&guard, Limit::RefaultWait);
}

#[test]
fn what_one_pool_costs_does_not_hold_up_the_other() {
    let pools = |cache_share| Pools {
        page_cache: Some(GIB),
        cache_share,
        ..Pools::processes(GIB)
    };
    let open_after = |per_s: f64, cache_share| {
        let mut guard = guard(100.0);
        guard.observe(second(0), refaults(0.0), pools(Some(0.0)));
        guard.observe(second(1), refaults(per_s), pools(cache_share));
        let status = guard.status();
        let page_cache = status.page_cache.expect("it is acted on");
        (status.is_open, page_cache.is_open, status.nr_stops)
    };
    assert_eq!(open_after(99.0, Some(0.5)), (true, true, 0));
    assert_eq!(open_after(120.0, Some(0.9)), (true, false, 1));
    assert_eq!(open_after(120.0, Some(0.1)), (false, true, 1));
    // The cause is unknown, or each exceeds the limit alone.
    assert_eq!(open_after(120.0, None), (false, false, 1));
    assert_eq!(open_after(500.0, Some(0.7)), (false, false, 1));
}

#[test]
fn a_debt_closes_both_pools() {
    let mut guard = by_slowdown(0.01);
    let mut pools = Pools::processes(GIB);
    pools.page_cache = Some(GIB);
    pools.cache_share = Some(1.0);
    guard.observe(second(0), slowed(0), pools);
    guard.observe(second(1), slowed(600), pools);
    assert!(guard.is_resting());
    let status = guard.status();
    assert!(status.is_in_debt && !status.is_open);
    assert_eq!(status.page_cache.expect("acted on").until, status.until);
}
