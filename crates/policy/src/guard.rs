//! The guard limits how fast schemes may act, so that their targets are not slowed.
//!
//! Problem: the cost of a scheme shows only after it has acted (refaults, pressure, lost speed). A scheme that suits
//! most memory may be wrong for some of it, or become wrong later.
//!
//! Approach: a rate limits the bytes per second that schemes may act on. The *limit ratio* rules it: the largest of
//! signal / limit over the limits that the user set. Below the limit the law is that of TMO (Weiner et al., *TMO:
//! Transparent Memory Offloading in Datacenters*, ASPLOS 2022) and its senpai: the higher the ratio, the lower the rate.
//! Senpai uses a fixed share times `1 - ratio`. Here the share itself is found: it grows while the ratio is below 1, as
//! in congestion control (additive increase and multiplicative decrease: Chiu and Jain, 1989):
//!
//! ```text
//! start            5 % of the targets' memory per second
//! ratio < 1        rate grows by up to a half each second, times (1 - ratio), while it is used up
//! ratio unknown    the rate stays as it is: a signal that is missing is no room
//! ratio >= 1       stop at once; rate / 4; nothing for the hold-off: 5 s, doubled each time up to
//!                  5 min; it halves again for every hold-off that passes quietly
//! least            0.0083 % per second: senpai's pace (0.05 % every 6 s)
//! ```
//!
//! **Debt.** A limit on the slowdown also limits the total loss ([`Ledger`]): to `max_slowdown` of the time since the
//! start, and of the last ten minutes ([`GuardLimits::slowdown_over`]). A loss is
//!
//! - the time that a target's threads waited for memory that schemes took, at most the time that passed; of several
//!   targets the one that waited longest counts, as each has its own time to lose;
//! - the CPU time that acting took from a machine without idle CPUs, times the targets' part of the CPU time in use. It
//!   is not divided by the number of CPUs: a delayed thread may hold a lock that all others wait for, which happens in
//!   programs that share one.
//!
//! Targets may lose the balance of the accounts within a minute (by predicted refaults within five), up to [`BURST`]
//! times the limit in each second. Acting is an investment: it costs at once and pays for as long as the memory stays
//! away. The time for which targets ran before counts as well ([`Guard::grant`]), so that a service that runs for days
//! is served at once, and a command that begins now with care.
//!
//! Acting that pays back may be done on a loan ([`loan`]): huge pages, where page walks are measured.
//!
//! A debt above one step closes the guard until it is paid back. CPU time alone does not cause such a debt: a step is
//! no longer than the ledger's balance ([`Guard::available_loss_ns`]).
//!
//! **What stays away.** Where the monitor knows single pages, it shows the age from which on memory stays away, before
//! any refault ([`Guard::least_age`]). Elsewhere waits for processes' memory that is read back may take most of the
//! allowed loss: memory must then be idle twice, four times, ... as long as schemes ask ([`Guard::backoff`]).
//!
//! **Pools.** Memory of processes and the page cache each have their own rate and hold-off ([`Pool`]). Files that are
//! read again thus do not delay the reclaim of idle process memory. If a limit is exceeded, the pool that caused most
//! of the wait stops, and so does each pool that exceeds the limit alone. Both stop if the cause is unknown. They share
//! the ledger.
//!
//! Limits: a loss shows only after it has occurred, so a first burst after a long quiet may overdraw by all that it
//! reads back. That is paid back later, not undone. Memory that was reclaimed before the stop stays reclaimed until it
//! is touched. Without limits nothing is slowed or stopped.

mod act_meter;
mod backoff;
mod ledger;
mod loan;
mod rate;
mod refaults;
mod returns;

use serde::{Deserialize, Serialize};

use backoff::Backoff;
use loan::Loan;

use crate::scheme::Action;
use isotherm_engine::address::{Nanos, PAGE_SIZE};
use isotherm_engine::monitor::idle_pages::PageAgeRule;
use isotherm_engine::snapshot::{Snapshot, TargetId};

use rate::Rate;

pub use act_meter::{ActBudgetStatus, ActMeter, OnLoan, STEP, StepTime};
pub use ledger::{Account, Ledger};
pub use rate::{Pool, PoolStatus, Pools};
pub use refaults::RefaultHistory;
pub use returns::Returns;

/// Default share of their time that targets may lose.
pub const MAX_SLOWDOWN: f64 = 0.01;
/// Default period of [`GuardLimits::max_slowdown`]. 1 % of it, 6 s of CPU time, pages out a gigabyte. No target waits for
/// these 6 s at once: [`BURST`] bounds the loss of each second.
pub const SLOWDOWN_OVER: Nanos = Nanos::from_millis(600_000);
/// Default share of one CPU that acting may take from busy CPUs.
pub const ACT_BUDGET: f64 = 0.05;

/// Most that targets may lose in a second while the accounts allow it, in multiples of the limit.
const BURST: f64 = 5.0;
/// Seconds in which the rest of the accounts may be lost.
const SPENT_IN_S: f64 = 60.0;
/// The same for predicted refaults: memory that is out returns for minutes, also when less may be lost.
const RETURNS_IN_S: f64 = 300.0;

/// Seconds and pages that the cost of acting on a page begins with, and returns to: a few pages that took long must not
/// end all acting.
const ACTING_PRIOR: (f64, f64) = (0.02, 4096.0);
/// Half-life of the cost of acting on a page, in seconds.
const ACTING_HALVES_IN_S: f64 = 60.0;

/// Least CPU time per second that refaults are related to: a few refaults do not slow a target that runs less.
const LEAST_CPU_PER_S: f64 = 0.02;

/// Returns the share of their time that targets lose to `faults` in `seconds`, during which they ran for `cpu_s`
/// seconds.
pub fn waited_share(faults: u64, cost: Nanos, cpu_s: f64, seconds: f64) -> f64 {
    faults as f64 * cost.as_secs_f64() / cpu_s.max(LEAST_CPU_PER_S * seconds)
}

/// Limits that the guard keeps. `None`: no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardLimits {
    /// Share of their time that targets may lose, 0 to 1.
    pub max_slowdown: Option<f64>,
    /// Period in which no more than this share may be lost; `None`: [`SLOWDOWN_OVER`].
    #[serde(default)]
    pub slowdown_over: Option<Nanos>,
    /// Refaults (major faults) per second, all targets together.
    pub max_refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory, 0 to 1.
    pub max_psi: Option<f64>,
    /// Time that one target may wait for memory within a second.
    #[serde(default)]
    pub max_refault_wait: Option<Nanos>,
}

impl GuardLimits {
    /// Returns a limit of the slowdown only.
    pub fn of_slowdown(max_slowdown: impl Into<Option<f64>>) -> Self {
        Self {
            max_slowdown: max_slowdown.into(),
            ..Self::default()
        }
    }

    /// Returns these limits, completed by those of `general`.
    #[must_use]
    pub fn or(self, general: Self) -> Self {
        Self {
            max_slowdown: self.max_slowdown.or(general.max_slowdown),
            slowdown_over: self.slowdown_over.or(general.slowdown_over),
            max_refaults_per_s: self.max_refaults_per_s.or(general.max_refaults_per_s),
            max_psi: self.max_psi.or(general.max_psi),
            max_refault_wait: self.max_refault_wait.or(general.max_refault_wait),
        }
    }

    /// Returns the ages of single pages that schemes see. Without a guard schemes act exactly as configured, as in
    /// DAMON.
    pub fn page_ages(&self) -> PageAgeRule {
        if self.is_limited() {
            PageAgeRule::ByEnds
        } else {
            PageAgeRule::Idle
        }
    }

    /// Returns the period of the limit on the slowdown.
    fn period(&self) -> Nanos {
        self.slowdown_over.unwrap_or(SLOWDOWN_OVER)
    }

    /// Returns whether any limit is set.
    pub fn is_limited(&self) -> bool {
        let no_limit = Self {
            slowdown_over: self.slowdown_over,
            ..Self::default()
        };
        *self != no_limit
    }
}

/// Signals of the last second. `None`: unknown, which neither stops the guard nor lets its rate grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardSignals {
    /// Share of their time that targets lose.
    pub slowdown: Option<f64>,
    /// Refaults per second.
    pub refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory.
    pub psi: Option<f64>,
    /// Time that the longest-waiting target has waited for memory since the last observation.
    #[serde(default)]
    pub waited: Option<Nanos>,
    /// Source of that time.
    #[serde(default)]
    pub waited_by: Option<WaitSource>,
    /// Time that one refault takes from the targets.
    #[serde(default)]
    pub refault_cost: Option<Nanos>,
}

/// Source of the targets' waits for memory; the source with the longest wait counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// The kernel's delay accounting (`swapin` and `thrashing`).
    Delays,
    /// Pressure (PSI) of the targets' control group.
    Pressure,
    /// Refaults, times the measured cost of one on this machine.
    Refaults,
    /// Pages of files that were read back, times the measured time of one read on this machine.
    Files,
    /// The progress command: lost speed.
    Progress,
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// [`GuardLimits::max_slowdown`].
    Slowdown,
    /// [`GuardLimits::max_refaults_per_s`].
    Refaults,
    /// [`GuardLimits::max_psi`].
    Psi,
    /// [`GuardLimits::max_refault_wait`].
    RefaultWait,
}

/// State of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardStatus {
    /// Whether schemes may now act on processes' memory at all.
    pub is_open: bool,
    /// Bytes per second of processes' memory that schemes may act on; `None` without limits.
    pub bytes_per_s: Option<u64>,
    /// The largest of signal / limit; `None` where no limited signal is known.
    #[serde(alias = "strain")]
    pub limit_ratio: Option<f64>,
    /// The last limit that was exceeded.
    pub exceeded: Option<Limit>,
    /// Times that a limit was exceeded.
    pub nr_stops: u64,
    /// Time at which schemes may act on processes' memory again; `None` while they may.
    pub until: Option<Nanos>,
    /// Signals of the last observation.
    pub signals: GuardSignals,
    /// Whether a limited signal is unknown, so that the rate does not grow.
    #[serde(default)]
    pub is_blind: bool,
    /// Whether the guard is closed until a debt is paid back.
    #[serde(default)]
    pub is_in_debt: bool,
    /// Losses of the targets since the start.
    #[serde(default)]
    pub since_start: Account,
    /// Losses of the targets in the last ten minutes, or the period of the limit.
    #[serde(default)]
    pub recent: Account,
    /// State of the budget of acting.
    #[serde(default)]
    pub budget: ActBudgetStatus,
    /// State of the page cache's pool, if schemes act on the page cache as well.
    #[serde(default)]
    pub page_cache: Option<PoolStatus>,
    /// Factor on the idle time that schemes ask of processes' memory. 1, and 0 in older records, means as long as they
    /// ask.
    #[serde(default, alias = "patience")]
    pub backoff: u32,
}

/// Controller that limits how fast schemes act.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    limits: GuardLimits,
    /// Rates by the number of the pool.
    rates: [Rate; Pool::ALL.len()],
    has_page_cache: bool,
    last: Option<Nanos>,
    limit_ratio: Option<f64>,
    exceeded: Option<Limit>,
    nr_stops: u64,
    signals: GuardSignals,
    is_blind: bool,
    ledger: Ledger,
    backoff: Backoff,
    returns: Returns,
    /// Time that targets lost to acting lately, and the pages acted on.
    acting: (f64, f64),
    loan: Loan,
    /// Run time of the targets at the first observation, and its time.
    lived: (Nanos, Nanos),
    is_in_debt: bool,
    goal_available: Option<u64>,
}

impl Guard {
    /// Returns a guard without observations. If it has limits, it allows nothing before the first one.
    pub fn new(limits: GuardLimits) -> Self {
        Self {
            limits,
            ledger: Ledger::over(limits.period()),
            ..Self::default()
        }
    }

    /// Sets how many bytes may be paged out until a goal is reached; `None`: there is no goal.
    pub fn set_goal_limit(&mut self, bytes: Option<u64>) {
        self.goal_available = bytes;
    }

    /// Returns the limits.
    pub fn limits(&self) -> GuardLimits {
        self.limits
    }

    /// Changes the limits while running.
    pub fn set_limits(&mut self, limits: GuardLimits) {
        self.limits = limits;
        self.ledger.set_period(limits.period());
    }

    /// Takes in the signals since the last call, about a second ago, and the size of the pools. Returns whether that
    /// opened or closed any pool.
    pub fn observe(&mut self, now: Nanos, signals: GuardSignals, pools: Pools) -> bool {
        let were_open = Pool::ALL.map(|pool| self.is_open(pool));
        let elapsed = self.last.map_or(1.0, |last| now.since(last).as_secs_f64());
        self.last = Some(now);
        self.signals = signals;
        self.has_page_cache = pools.page_cache.is_some();
        let (limit_ratio, limit) = self.strongest(signals);
        self.limit_ratio = limit_ratio;
        self.is_blind = limit_ratio.is_none() || self.lacks_any(signals);
        let known = limit_ratio.filter(|_| !self.is_blind);
        let mut has_stopped = false;
        for pool in Pool::ALL {
            if limit_ratio.is_some_and(|limit_ratio| pools.is_over_limit_by(pool, limit_ratio)) {
                self.exceeded = limit;
                has_stopped |= self.rates[pool as usize].stop(now);
            } else {
                self.rates[pool as usize].go_on(now, known);
            }
        }
        self.nr_stops += u64::from(has_stopped);
        let weight = libm::pow(0.5, elapsed / ACTING_HALVES_IN_S);
        self.acting = (self.acting.0 * weight, self.acting.1 * weight);
        self.update_debt(now, elapsed, signals.waited, pools);
        let bytes = [pools.resident, pools.page_cache.unwrap_or(0)];
        for (rate, bytes) in self.rates.iter_mut().zip(bytes) {
            rate.refill(elapsed, bytes);
        }
        were_open != Pool::ALL.map(|pool| self.is_open(pool))
    }

    /// Grants what targets were allowed to lose in the time `lived` before `now`, of which one period counts.
    pub fn grant(&mut self, now: Nanos, lived: Nanos) {
        self.lived = (lived, now);
        if let Some(share) = self.limits.max_slowdown {
            self.ledger.grant(now, lived, share);
        }
    }

    /// Returns the share of their time that targets may lose now; `None`: no limit.
    fn max_slowdown_now(&self) -> Option<f64> {
        self.max_slowdown_if_spent_in(SPENT_IN_S)
    }

    fn max_slowdown_if_spent_in(&self, seconds: f64) -> Option<f64> {
        self.limits.max_slowdown.map(|share| {
            let left = self.ledger.available_ns().max(0.0) / 1e9 / seconds;
            (share + left).min(share * BURST)
        })
    }

    /// Charges CPU time that acting took from the targets (on busy CPUs).
    pub fn charge_loss(&mut self, now: Nanos, lost: Nanos) {
        if self.limits.max_slowdown.is_some() {
            self.ledger.add(now, Nanos(0), lost);
            self.acting.0 += lost.as_secs_f64();
        }
    }

    /// Returns the time that targets may still lose, in nanoseconds; `None`: no limit.
    pub fn available_loss_ns(&self) -> Option<f64> {
        self.limits.max_slowdown.map(|_| self.ledger.available_ns())
    }

    /// Returns whether nothing of `pool` may be acted on, as a limit was exceeded or a debt is being paid back.
    pub fn has_stopped(&self, pool: Pool) -> bool {
        self.limits.is_limited() && !self.is_open(pool)
    }

    /// Returns the bytes of `pool` that may be acted on now; `None`: no limit.
    pub fn available(&self, pool: Pool) -> Option<u64> {
        if !self.limits.is_limited() {
            return None;
        }
        Some(if self.is_open(pool) {
            self.rate(pool).available()
        } else {
            0
        })
    }

    /// Returns the factor on the idle time that schemes ask of processes' memory before it is paged out. It is 1 where
    /// refaults are predicted.
    pub fn backoff(&self) -> u32 {
        let is_predicted = self.returns.nr_targets() > 0;
        if is_predicted && self.returns_per_s().is_some() {
            1
        } else {
            self.backoff.factor()
        }
    }

    /// Takes in the idle times that ended in the interval of a snapshot.
    pub fn look(&mut self, snapshot: &Snapshot) {
        if let Some(ends) = &snapshot.age_ends {
            self.returns.observe(snapshot, ends);
        }
    }

    /// Forgets a target that exited.
    pub fn forget(&mut self, target: TargetId) {
        self.returns.forget(target);
    }

    /// Returns the time for which memory of `target` must be idle before it is paged out, by what it has shown so far:
    /// younger memory would be read back at too high a rate. Returns `None` if the cost of a refault is not known.
    pub fn least_age(&self, target: TargetId) -> Option<Nanos> {
        let pages_per_s = self.returns_per_s();
        let least = |pages| self.returns.least_age([target], pages);
        pages_per_s.map(|pages| least(pages).unwrap_or(Nanos(0)))
    }

    /// Returns how many pages of a target may be read back in a second; `None` if the cost of a refault is not known.
    fn returns_per_s(&self) -> Option<f64> {
        // A page that returns was paged out before, and will be again.
        let (lost, pages) = self.acting;
        let cost = self.signals.refault_cost;
        let acting = (lost + ACTING_PRIOR.0) / (pages + ACTING_PRIOR.1);
        let cost = cost.map(|cost| cost.as_secs_f64() + acting);
        let share = self.max_slowdown_if_spent_in(RETURNS_IN_S);
        let by_slowdown = share.zip(cost.filter(|cost| *cost > 0.0));
        let by_slowdown =
            by_slowdown.map(|(share, cost)| share * self.backoff.for_returns() / cost);
        let nr_targets = self.returns.nr_targets().max(1) as f64;
        let by_number = self.limits.max_refaults_per_s;
        let by_number = by_number.map(|limit| limit / 2.0 / nr_targets);
        by_slowdown.into_iter().chain(by_number).reduce(f64::min)
    }

    /// Returns whether nothing may be acted on now.
    pub fn is_resting(&self) -> bool {
        Pool::ALL.map(|pool| self.available(pool)) == [Some(0); 2]
    }

    /// Returns whether the goal is reached: no bytes are left to page out.
    pub fn has_reached_goal(&self) -> bool {
        self.goal_available == Some(0)
    }

    /// Returns the bytes of `pool` that `action` may be applied to now; `None`: no limit.
    pub fn available_for(&self, pool: Pool, action: Action) -> Option<u64> {
        let goal = self.goal_available.filter(|_| action == Action::Pageout);
        match (self.available(pool), goal) {
            (Some(allowed), Some(goal)) => Some(allowed.min(goal)),
            (allowed, goal) => allowed.or(goal),
        }
    }

    /// Charges `bytes` of `pool` that `action` was applied to.
    pub fn charge(&mut self, pool: Pool, action: Action, bytes: u64) {
        if action == Action::Pageout
            && let Some(available) = &mut self.goal_available
        {
            *available = available.saturating_sub(bytes);
        }
        self.rates[pool as usize].charge(bytes);
        if pool == Pool::Processes {
            self.acting.1 += (bytes / PAGE_SIZE) as f64;
        }
    }

    /// Returns the guard's state.
    pub fn status(&self) -> GuardStatus {
        let is_limited = self.limits.is_limited();
        let page_cache = self.has_page_cache && is_limited;
        GuardStatus {
            is_open: !is_limited || self.is_open(Pool::Processes),
            bytes_per_s: is_limited.then(|| self.rate(Pool::Processes).status().bytes_per_s),
            limit_ratio: self.limit_ratio,
            exceeded: self.exceeded,
            nr_stops: self.nr_stops,
            until: self.until(Pool::Processes),
            signals: self.signals,
            is_blind: is_limited && self.is_blind,
            is_in_debt: self.is_in_debt,
            since_start: self.ledger.since_start(),
            recent: self.ledger.recent(),
            budget: ActBudgetStatus::default(),
            backoff: self.backoff(),
            page_cache: page_cache.then(|| PoolStatus {
                is_open: self.is_open(Pool::PageCache),
                until: self.until(Pool::PageCache),
                ..self.rate(Pool::PageCache).status()
            }),
        }
    }

    fn rate(&self, pool: Pool) -> &Rate {
        &self.rates[pool as usize]
    }

    fn is_open(&self, pool: Pool) -> bool {
        self.last.is_some() && !self.rate(pool).is_held() && !self.is_in_debt
    }

    /// Returns the predicted time at which `pool` opens again.
    fn until(&self, pool: Pool) -> Option<Nanos> {
        let paid = self.last.zip(self.limits.max_slowdown);
        let paid = paid.filter(|_| self.is_in_debt).map(|(last, share)| {
            let debt = (-self.ledger.available_ns()).max(0.0);
            last + Nanos((debt / share.max(1e-9)) as u64)
        });
        self.rate(pool).status().until.max(paid)
    }

    /// Enters the time since the last observation in the ledger.
    fn update_debt(&mut self, now: Nanos, elapsed: f64, waited: Option<Nanos>, pools: Pools) {
        let Some(share) = self.limits.max_slowdown else {
            self.is_in_debt = false;
            return;
        };
        let passed = Nanos((elapsed * 1e9) as u64);
        let allowed = Nanos((share * elapsed * 1e9) as u64);
        let lost = waited.unwrap_or_default().min(passed);
        self.ledger.add(now, allowed, lost);
        let of_processes = 1.0 - pools.cache_share.unwrap_or(0.0);
        let lost = Nanos((lost.0 as f64 * of_processes) as u64);
        let allowed_now = self.max_slowdown_now().unwrap_or(share);
        let allowed_now = Nanos((allowed_now * elapsed * 1e9) as u64);
        self.backoff.observe(now, elapsed, allowed_now, lost);
        self.loan.refill(elapsed, share);
        let available = self.ledger.available_ns();
        if self.is_in_debt {
            self.is_in_debt = available < 0.0;
        } else if available < -(STEP.0 as f64) {
            self.is_in_debt = true;
            let [processes, page_cache] = Pool::ALL.map(|pool| !self.rate(pool).is_held());
            if processes || self.has_page_cache && page_cache {
                self.nr_stops += 1;
                self.exceeded = Some(Limit::Slowdown);
            }
        }
    }

    fn lacks_any(&self, signals: GuardSignals) -> bool {
        let mut all = self.limited(signals).into_iter();
        all.any(|(signal, limit, _)| limit.is_some() && signal.is_none())
    }

    /// Returns the largest of signal / limit, and its limit.
    fn strongest(&self, signals: GuardSignals) -> (Option<f64>, Option<Limit>) {
        let all = self.limited(signals).into_iter();
        all.filter_map(|(signal, limit, which)| Some((signal? / limit?.max(1e-9), which)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unzip()
    }

    /// Returns each signal with its limit.
    fn limited(&self, signals: GuardSignals) -> [(Option<f64>, Option<f64>, Limit); 4] {
        let limits = &self.limits;
        let seconds = |time: Option<Nanos>| time.map(Nanos::as_secs_f64);
        let (waited, wait_max) = (seconds(signals.waited), seconds(limits.max_refault_wait));
        let (refaults, refaults_max) = (signals.refaults_per_s, limits.max_refaults_per_s);
        [
            (signals.slowdown, self.max_slowdown_now(), Limit::Slowdown),
            (refaults, refaults_max, Limit::Refaults),
            (signals.psi, limits.max_psi, Limit::Psi),
            (waited, wait_max, Limit::RefaultWait),
        ]
    }
}

#[cfg(test)]
mod tests;
