//! Tries limits on a running control group: does it lose no more than is allowed?
//!
//! Approach: the group is limited to the estimate, and its loss is measured for some seconds, once it has settled. If
//! it loses too much, the limit rises, first by a twentieth, until it fits. Then the limit falls, until it does not fit.
//! Limits between the two follow, until they differ by a twentieth. A trial ends early once it has lost what it may lose
//! in all of its time.
//!
//! On the way up the group may still read back what an earlier limit took. Limits that did not fit then are tried again
//! on the way down.
//!
//! A limit far below the usage is reached in steps: the kernel takes time to tell memory in use from idle memory, and
//! would take both at once. After a limit that does not fit, the group gets its own limit until it has read back what it
//! uses. Else these reads would count against the next limit.
//!
//! A group that does much less than while it was watched shows nothing. Its trial lasts longer, and the limit does not
//! fit if that does not help. Some programs stop at an error that memory is short.
//!
//! Limits: a trial of seconds does not show what happens once a minute.

use std::time::Duration;

use isotherm_engine::{Nanos, PAGE_SIZE};

use crate::report::{SizeEstimate, SizeReport, TrialsEnd, TriedLimit, Verified};

/// Number of looks after a change of the limit that are not measured: the kernel reclaims.
const SETTLE_LOOKS: u32 = 4;
/// Share of that time whose loss ends the trial.
const SETTLE_LOSS: f64 = 0.1;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of looks in a row without loss that end a recovery.
const RECOVERED_LOOKS: u32 = 2;
/// Most looks of a recovery.
const RECOVERY_LOOKS: u32 = 20;
/// Share of the allowed loss up to which a recovery counts it as none.
const RECOVERED: f64 = 0.25;
/// Factor between the limits that are found: one that fits, one that does not.
const STEP: f64 = 1.05;
/// Tolerance of that: limits are whole pages.
const SLACK: f64 = 1.005;
/// Factor on the limit up to which memory in use has reached it: the kernel counts pages in batches.
const REACHED: f64 = 1.02;
/// Most such factors between two trials.
const REACH_MAX: i32 = 8;
/// Factor between limits on the way down to the one that is tried.
const STEP_DOWN: f64 = 1.25;
/// Share of the watch's CPU time below which a trial shows nothing.
const ACTIVE: f64 = 0.5;
/// Most factors on the time of a trial whose group does too little.
const LONGER: u32 = 4;
/// Most trials.
const TRIALS: usize = 20;

/// State of a control group's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupState {
    /// Time that its threads have lost so far by waiting for memory, as a mean over those that ran.
    pub lost: Nanos,
    /// CPU time so far, of processes that were there at two looks.
    pub cpu: Nanos,
    /// Major faults so far.
    pub major_faults: u64,
    /// Charged bytes.
    pub used_bytes: u64,
    /// Whether any process is left.
    pub is_alive: bool,
}

/// A control group whose memory can be limited.
pub trait LimitedGroup {
    /// Limits the group's memory.
    fn limit(&mut self, bytes: u64) -> anyhow::Result<()>;
    /// Sets the limit that the group had before the trials.
    fn free(&mut self) -> anyhow::Result<()>;
    /// Returns the state of its processes.
    fn look(&mut self) -> anyhow::Result<GroupState>;
    /// Waits; returns `false` if the user ends the trials.
    fn wait(&mut self, time: Duration) -> bool;
}

/// Returns the least limit that fits.
fn least(trials: &[TriedLimit]) -> Option<u64> {
    let fits = trials.iter().filter(|trial| trial.fits);
    fits.map(|trial| trial.limit_bytes).min()
}

/// Tries limits from the estimate `start` on, each for `nr_looks` looks, which are a second apart. The caller sets the limit that stays.
pub fn verify(
    report: &SizeReport,
    start: SizeEstimate,
    nr_looks: u32,
    group: &mut impl LimitedGroup,
) -> anyhow::Result<Verified> {
    let peak = report.memory.peak_bytes.max(PAGE_SIZE);
    let mut limit = start.bytes.clamp(PAGE_SIZE, peak);
    let mut trials: Vec<TriedLimit> = Vec::new();
    let (mut reach, mut nr_way_up) = (1, 0);
    let end = loop {
        let (trial, end) = tried(report, limit, nr_looks, group)?;
        if trial.fits && least(&trials).is_none() {
            (reach, nr_way_up) = (1, trials.len());
        }
        trials.push(trial);
        if let Some(end) = end {
            break end;
        }
        let failed = { trials.iter().skip(nr_way_up) }.filter(|trial| !trial.fits);
        let failed = failed.map(|trial| trial.limit_bytes).max();
        let next = match (least(&trials), failed) {
            (Some(fits), Some(fails)) if fits as f64 <= fails as f64 * STEP * SLACK => {
                break TrialsEnd::Found;
            }
            (Some(fits), Some(fails)) => (fits as f64 * fails as f64).sqrt(),
            (None, Some(fails)) if fails >= peak => break TrialsEnd::NeverFits,
            (None, Some(fails)) => fails as f64 * STEP.powi(reach),
            (Some(fits), None) => fits as f64 / STEP.powi(reach),
            (None, None) => break TrialsEnd::Ended,
        };
        if trials.len() == TRIALS {
            break TrialsEnd::Enough;
        }
        reach = REACH_MAX.min(2 * reach);
        let next = (next as u64).clamp(PAGE_SIZE, peak) / PAGE_SIZE * PAGE_SIZE;
        if next > limit
            && let Some(end) = recovered(report, !only_idled(report, &trial), group)?
        {
            break end;
        }
        limit = next;
    };
    Ok(Verified {
        least_bytes: least(&trials),
        trials,
        end,
        applied_bytes: None,
    })
}

/// Whether the group lost no more than it may, but did too little to show something.
fn only_idled(report: &SizeReport, trial: &TriedLimit) -> bool {
    trial.slowdown <= report.max_slowdown && trial.nr_running < ACTIVE * report.nr_running
}

/// Waits until the group has read back what it uses, and does something, for 20 s at most. Returns the end of all
/// trials, if they end meanwhile.
fn recovered(
    report: &SizeReport,
    mut goes_on: bool,
    group: &mut impl LimitedGroup,
) -> anyhow::Result<Option<TrialsEnd>> {
    group.free()?;
    let most_s = RECOVERED * report.max_slowdown * LOOK_EVERY.as_secs_f64();
    let least_cpu_s = ACTIVE * report.nr_running * LOOK_EVERY.as_secs_f64();
    let (mut last, mut in_a_row) = (group.look()?, 0);
    for _ in 0..RECOVERY_LOOKS {
        if goes_on && in_a_row >= RECOVERED_LOOKS {
            break;
        }
        if !group.wait(LOOK_EVERY) {
            return Ok(Some(TrialsEnd::Stopped));
        }
        let now = group.look()?;
        let is_back = now.lost.since(last.lost).as_secs_f64() <= most_s;
        in_a_row = if is_back { in_a_row + 1 } else { 0 };
        goes_on |= now.cpu.since(last.cpu).as_secs_f64() >= least_cpu_s;
        last = now;
        if !last.is_alive {
            break;
        }
    }
    Ok(match (last.is_alive, goes_on) {
        (false, _) => Some(TrialsEnd::Ended),
        (true, false) => Some(TrialsEnd::Idle),
        (true, true) => None,
    })
}

/// Lowers the limit from the present usage towards `limit_bytes`. Returns whether the trials go on.
fn step_down(limit_bytes: u64, group: &mut impl LimitedGroup) -> anyhow::Result<bool> {
    let mut state = group.look()?;
    let mut above = state.used_bytes as f64 / STEP_DOWN;
    while above > limit_bytes as f64 && state.is_alive {
        group.limit(above as u64 / PAGE_SIZE * PAGE_SIZE)?;
        if !group.wait(LOOK_EVERY) {
            return Ok(false);
        }
        state = group.look()?;
        above /= STEP_DOWN;
    }
    Ok(true)
}

/// Tries one limit. Returns the end of all trials, if this one ends them.
fn tried(
    report: &SizeReport,
    limit_bytes: u64,
    nr_looks: u32,
    group: &mut impl LimitedGroup,
) -> anyhow::Result<(TriedLimit, Option<TrialsEnd>)> {
    let (allowed, look_s) = (report.max_slowdown, LOOK_EVERY.as_secs_f64());
    let least_cpu_s = ACTIVE * report.nr_running * f64::from(nr_looks) * look_s;
    let mut goes_on = step_down(limit_bytes, group)?;
    group.limit(limit_bytes)?;
    let mut last = group.look()?;
    let (mut is_settled, mut seconds) = (false, 0.0);
    // While the limit settles, pages that were just reclaimed may return. Only a loss above a tenth of the time counts.
    let mut first = last;
    for look in 0..SETTLE_LOOKS + nr_looks * LONGER {
        let is_whole = look >= SETTLE_LOOKS + nr_looks
            && last.cpu.since(first.cpu).as_secs_f64() >= least_cpu_s;
        if !goes_on || !last.is_alive || is_whole {
            break;
        }
        goes_on = group.wait(LOOK_EVERY);
        last = group.look()?;
        let is_settling = look < SETTLE_LOOKS;
        let bound_s = if is_settling {
            f64::from(SETTLE_LOOKS) * look_s * allowed.max(SETTLE_LOSS)
        } else {
            allowed * f64::from(nr_looks.max(look + 1 - SETTLE_LOOKS)) * look_s
        };
        let lost_s = last.lost.since(first.lost).as_secs_f64();
        seconds += look_s;
        if lost_s > bound_s {
            break;
        }
        if look + 1 == SETTLE_LOOKS {
            (first, seconds) = (last, 0.0);
            is_settled = true;
        }
    }
    let seconds_or_one = if seconds > 0.0 { seconds } else { 1.0 };
    let slowdown = (last.lost.since(first.lost).as_secs_f64() / seconds_or_one).min(1.0);
    let end = match (goes_on, last.is_alive) {
        (_, false) => Some(TrialsEnd::Ended),
        (false, true) => Some(TrialsEnd::Stopped),
        (true, true) => None,
    };
    let faults = last.major_faults.saturating_sub(first.major_faults);
    let trial = TriedLimit {
        limit_bytes,
        used_bytes: last.used_bytes,
        slowdown,
        major_faults_per_s: faults as f64 / seconds_or_one,
        nr_running: last.cpu.since(first.cpu).as_secs_f64() / seconds_or_one,
        seconds,
        fits: false,
    };
    // A limit that the kernel cannot reach takes nothing away.
    let is_reached = last.used_bytes as f64 <= limit_bytes as f64 * REACHED;
    let has_shown = end.is_none() && is_settled && is_reached && !only_idled(report, &trial);
    let fits = has_shown && slowdown <= allowed;
    Ok((TriedLimit { fits, ..trial }, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SizeOptions;
    use crate::tests::{items, size};

    const MIB: u64 = 1 << 20;

    /// A group that loses a tenth of its time below a limit, nothing above, and ends after some looks. What a limit
    /// evicts of its needs is read back once it may be, a MiB a second, and each costs a tenth of it. At a limit below
    /// `stops_below` it does nothing; if it `stops_for_good`, it never does again. After a limit below its needs it
    /// loses for `hangover` looks at any limit.
    struct Fake {
        needs: u64,
        limit: u64,
        resident: u64,
        used: u64,
        state: GroupState,
        looks_left: u32,
        stops_below: u64,
        stops_for_good: bool,
        hangover: u32,
        hangover_left: u32,
    }

    impl LimitedGroup for Fake {
        fn limit(&mut self, bytes: u64) -> anyhow::Result<()> {
            let falls_by = self.used as f64 / bytes as f64;
            assert!(falls_by <= STEP_DOWN * 1.001, "{} to {bytes}", self.used);
            self.limit = bytes;
            self.used = self.used.min(bytes);
            Ok(())
        }

        fn free(&mut self) -> anyhow::Result<()> {
            self.limit(1 << 60)
        }

        fn look(&mut self) -> anyhow::Result<GroupState> {
            self.looks_left = self.looks_left.saturating_sub(1);
            self.state.is_alive = self.looks_left > 0;
            self.state.used_bytes = self.used;
            Ok(self.state)
        }

        fn wait(&mut self, time: Duration) -> bool {
            self.resident = self.resident.min(self.limit);
            if self.limit < self.stops_below {
                self.stops_below = if self.stops_for_good {
                    u64::MAX
                } else {
                    self.stops_below
                };
                return true;
            }
            self.state.cpu = self.state.cpu + Nanos(time.as_nanos() as u64);
            let is_limited = self.limit < 1 << 60;
            if self.limit < self.needs {
                self.hangover_left = self.hangover;
            } else if is_limited {
                self.hangover_left = self.hangover_left.saturating_sub(1);
            }
            if self.resident < self.needs || is_limited && self.hangover_left > 0 {
                self.resident = (self.resident + MIB).min(self.limit);
                let lost = time.as_nanos() as u64 / 10;
                self.state.lost = self.state.lost + Nanos(lost);
            }
            true
        }
    }

    fn tried_on(needs: u64, looks_left: u32) -> Verified {
        tried_from(110 * MIB, needs, looks_left)
    }

    fn tried_from(used: u64, needs: u64, looks_left: u32) -> Verified {
        verified(fake(used, needs, looks_left))
    }

    fn fake(used: u64, needs: u64, looks_left: u32) -> Fake {
        Fake {
            needs,
            limit: 0,
            resident: needs,
            used,
            state: GroupState::default(),
            looks_left,
            stops_below: 0,
            stops_for_good: false,
            hangover: 0,
            hangover_left: 0,
        }
    }

    fn verified(mut fake: Fake) -> Verified {
        let mut report = size(&items("", |_| 0..0), SizeOptions::default());
        report.memory.peak_bytes = 200 * MIB;
        report.nr_running = 1.0;
        let start = SizeEstimate::exactly(100 * MIB);
        verify(&report, start, 15, &mut fake).expect("no error")
    }

    #[test]
    fn the_least_limit_that_fits_is_found_from_below_and_from_above() {
        for needs in [70 * MIB, 99 * MIB, 101 * MIB, 150 * MIB] {
            let found = tried_on(needs, 1000);
            assert_eq!(found.end, TrialsEnd::Found, "{found:?}");
            let least = found.least_bytes.expect("one fits");
            assert!(
                (needs..needs * 106 / 100).contains(&least),
                "{needs}: {least}"
            );
        }
    }

    /// Node.js was still reading back at two to three times what it needs.
    #[test]
    fn what_failed_on_the_way_up_is_tried_again_on_the_way_down() {
        let found = verified(Fake {
            hangover: 6,
            ..fake(110 * MIB, 101 * MIB, 1000)
        });
        assert_eq!(found.end, TrialsEnd::Found, "{found:?}");
        let least = found.least_bytes.expect("one fits");
        assert!((101 * MIB..107 * MIB).contains(&least), "{found:?}");
    }

    /// No limit is lower than the usage by more than a step.
    #[test]
    fn a_limit_far_below_the_usage_is_reached_in_steps() {
        let found = tried_from(1000 * MIB, 70 * MIB, 1000);
        assert_eq!(found.end, TrialsEnd::Found, "{found:?}");
        assert_eq!(found.least_bytes, tried_on(70 * MIB, 1000).least_bytes);
    }

    #[test]
    fn a_group_that_ends_while_it_recovers_ends_the_trials() {
        // The first trial ends after its second look.
        let found = tried_on(110 * MIB, 4);
        assert_eq!(found.end, TrialsEnd::Ended, "{found:?}");
        assert_eq!(found.trials.len(), 1);
    }

    /// PostgreSQL's clients stop at an error below what version 1 can reclaim, and its server waits for them.
    #[test]
    fn a_group_that_does_nothing_shows_nothing() {
        let stopping = |stops_for_good| Fake {
            stops_below: 60 * MIB,
            stops_for_good,
            ..fake(110 * MIB, 10 * MIB, 1000)
        };
        let found = verified(stopping(false));
        assert_eq!(found.end, TrialsEnd::Found, "{found:?}");
        let least = found.least_bytes.expect("one fits");
        assert!((60 * MIB..64 * MIB).contains(&least), "{least}");
        let stopped = verified(stopping(true));
        assert_eq!(stopped.end, TrialsEnd::Idle, "{stopped:?}");
        assert!(stopped.least_bytes >= Some(60 * MIB), "{stopped:?}");
        let idle = stopped.trials.last().expect("one");
        assert!(!idle.fits && idle.seconds > 59.0, "{idle:?}");
    }

    #[test]
    fn a_trial_that_loses_much_is_short_and_ends_with_the_processes() {
        let found = tried_on(110 * MIB, 1000);
        assert!(found.trials[0].seconds <= 2.0, "{found:?}");
        assert_eq!(tried_on(500 * MIB, 5000).end, TrialsEnd::NeverFits);
        let ended = tried_on(70 * MIB, 10);
        assert_eq!((ended.end, ended.least_bytes), (TrialsEnd::Ended, None));
    }
}
