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
//! strain unknown   the rate stays as it is: a signal that is missing is no room
//! strain >= 1      stop at once; rate / 4; nothing for the hold-off: 5 s, doubled each time up to
//!                  5 min; it halves again for every hold-off that passes quietly
//! least            0.0083 % per second: senpai's pace (0.05 % every 6 s)
//! ```
//!
//! **Debt.** A limit on the slowdown also limits what is lost in all ([`Ledger`]): `max_slowdown` of
//! the time since the start, and of the last ten minutes. A loss is
//!
//! - the time that a target's threads waited for memory that schemes took (of several targets the one
//!   that waited longest: each has its own time to lose), at most the time that passed;
//! - the CPU time that acting took from a machine that had none to spare, by the targets' part of the
//!   CPU time that was used. It is not divided by the number of CPUs: a thread that is held up may
//!   hold a lock that all others wait for, and does in programs that share one.
//!
//! What is overdrawn by more than a step closes the guard until it is paid back. CPU time alone does
//! not get that far: a step is no longer than what is left of the ledger ([`Guard::loss_room_ns`]).
//!
//! **Patience.** Where waits for processes' memory that came back take most of what may be lost, memory must be idle
//! twice, four times, ... as long as schemes ask before it is paged out ([`Guard::patience`]).
//!
//! **Pools.** Memory of processes and the page cache each have a rate and a hold-off of their own
//! ([`Pool`]), so that files that are read again do not hold up idle memory that nobody touches. Where a
//! limit is exceeded, that pool stops which most of what was waited is due to, and each that exceeds it
//! alone; both where nobody knows. The ledger is common.
//!
//! Limits: loss shows only after it has occurred, so a first burst after a long quiet may overdraw by
//! all that it reads back; that is paid back later, not undone. Memory that was reclaimed before the
//! stop stays reclaimed until it is touched. Without limits nothing is slowed and nothing stopped.

mod act_meter;
mod budget;
mod flows;
mod ledger;
mod patience;
mod rate;
mod refaults;

use serde::{Deserialize, Serialize};

use patience::Patience;

use crate::address::Nanos;
use crate::monitor::idle_pages::PageAges;
use crate::scheme::Action;

use rate::Rate;

pub use act_meter::ActMeter;
pub use budget::{ActBudget, ActBudgetStatus, STEP, room_of};
pub use flows::Flows;
pub use ledger::{Account, Ledger};
pub use rate::{Pool, PoolStatus};
pub use refaults::RefaultHistory;

/// Share of their time that targets may lose unless the user says otherwise.
pub const MAX_SLOWDOWN: f64 = 0.01;
/// Share of one CPU that acting may take from busy ones unless the user says otherwise.
pub const ACT_BUDGET: f64 = 0.05;

/// A target that runs less than this in a second is not slowed by a few refaults.
const LEAST_CPU_PER_S: f64 = 0.02;

/// The share of their time that targets lose to `faults` in so many seconds, in which they ran for
/// `cpu_s` seconds.
pub fn waited_share(faults: u64, cost: Nanos, cpu_s: f64, seconds: f64) -> f64 {
    faults as f64 * cost.as_secs_f64() / cpu_s.max(LEAST_CPU_PER_S * seconds)
}

/// What must not be exceeded. `None`: no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardLimits {
    /// Share of their time that targets may lose, 0 to 1.
    pub max_slowdown: Option<f64>,
    /// Refaults (major faults) per second, all targets together.
    pub max_refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory, 0 to 1.
    pub max_psi: Option<f64>,
    /// Time that one target may wait for memory within a second.
    #[serde(default)]
    pub max_refault_wait: Option<Nanos>,
}

impl GuardLimits {
    /// These, and those of `general` where there is none.
    #[must_use]
    pub fn or(self, general: Self) -> Self {
        Self {
            max_slowdown: self.max_slowdown.or(general.max_slowdown),
            max_refaults_per_s: self.max_refaults_per_s.or(general.max_refaults_per_s),
            max_psi: self.max_psi.or(general.max_psi),
            max_refault_wait: self.max_refault_wait.or(general.max_refault_wait),
        }
    }

    /// Which ages of single pages schemes see: without a guard they do what they say, as DAMON's do.
    pub fn page_ages(&self) -> PageAges {
        if self.is_limited() {
            PageAges::LessByReturns
        } else {
            PageAges::Idle
        }
    }

    /// Whether there is any.
    pub fn is_limited(&self) -> bool {
        self.max_slowdown.is_some()
            || self.max_refaults_per_s.is_some()
            || self.max_psi.is_some()
            || self.max_refault_wait.is_some()
    }
}

/// What was measured over the last second. `None`: not known, which is no strain but no room either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardSignals {
    /// Share of their time that targets lose.
    pub slowdown: Option<f64>,
    /// Refaults per second.
    pub refaults_per_s: Option<f64>,
    /// Share of time in which some task waited for memory.
    pub psi: Option<f64>,
    /// Time that the target which waited longest has waited for memory since the last observation.
    #[serde(default)]
    pub waited: Option<Nanos>,
    /// By what that was measured.
    #[serde(default)]
    pub waited_by: Option<WaitSource>,
}

/// By what it is measured how long targets wait for memory; the worst of what there is counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// The kernel's delay accounting (`swapin` and `thrashing`).
    Delays,
    /// Pressure (PSI) of the targets' control group.
    Pressure,
    /// Refaults, times what one costs here.
    Refaults,
    /// Pages of files that came back, times what reading one takes here.
    Files,
    /// The progress command: speed that was lost.
    Progress,
}

/// Which limit was exceeded.
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

/// How the guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardStatus {
    /// Whether schemes may act on processes' memory at all now.
    pub is_open: bool,
    /// Bytes per second of it that they may act on; `None` without limits.
    pub bytes_per_s: Option<u64>,
    /// The largest of signal / limit; `None` where no limited signal is known.
    pub strain: Option<f64>,
    /// The last limit that was exceeded.
    pub exceeded: Option<Limit>,
    /// How often one was.
    pub nr_stops: u64,
    /// When schemes may act on processes' memory again, while they may not.
    pub until: Option<Nanos>,
    /// What was measured last.
    pub signals: GuardSignals,
    /// A limited signal is not known, so the rate does not grow.
    #[serde(default)]
    pub is_blind: bool,
    /// Closed until a debt is paid back.
    #[serde(default)]
    pub is_in_debt: bool,
    /// What targets have lost since the start.
    #[serde(default)]
    pub since_start: Account,
    /// And in the last ten minutes.
    #[serde(default)]
    pub recent: Account,
    /// How the budget of acting stands.
    #[serde(default)]
    pub budget: ActBudgetStatus,
    /// How it stands with the page cache, where schemes act on that as well.
    #[serde(default)]
    pub page_cache: Option<PoolStatus>,
    /// Processes' memory must be idle so many times as long as schemes ask; 1, and 0 in older records: as they ask.
    #[serde(default)]
    pub patience: u32,
}

/// What there is of each pool, and how far the page cache is what was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pools {
    /// Bytes that processes have in memory.
    pub resident: u64,
    /// Bytes of page cache, where schemes act on that as well.
    pub page_cache: Option<u64>,
    /// The part of what was waited that is due to the page cache, 0 to 1; `None`: nobody knows.
    pub cache_share: Option<f64>,
}

impl Pools {
    /// Whether a strain of all together is too much for `pool`: what it does alone, or most of it.
    fn are_strained_by(self, pool: Pool, strain: f64) -> bool {
        let share = self.cache_share.map_or(1.0, |share| match pool {
            Pool::Processes => 1.0 - share,
            Pool::PageCache => share,
        });
        strain >= 1.0 && (share >= 0.5 || share * strain >= 1.0)
    }

    /// Processes' memory alone.
    pub fn processes(resident: u64) -> Self {
        Self {
            resident,
            page_cache: None,
            cache_share: Some(0.0),
        }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: GuardLimits,
    processes: Rate,
    page_cache: Rate,
    /// Whether the page cache is acted on as well.
    has_page_cache: bool,
    last: Option<Nanos>,
    strain: Option<f64>,
    exceeded: Option<Limit>,
    nr_stops: u64,
    signals: GuardSignals,
    is_blind: bool,
    ledger: Ledger,
    patience: Patience,
    is_in_debt: bool,
    goal_room: Option<u64>,
}

impl Guard {
    /// A guard that has observed nothing yet, and so allows nothing yet, if it has limits.
    pub fn new(limits: GuardLimits) -> Self {
        Self {
            limits,
            processes: Rate::new(),
            page_cache: Rate::new(),
            has_page_cache: false,
            last: None,
            strain: None,
            exceeded: None,
            nr_stops: 0,
            signals: GuardSignals::default(),
            is_blind: false,
            ledger: Ledger::default(),
            patience: Patience::default(),
            is_in_debt: false,
            goal_room: None,
        }
    }

    /// So many bytes are to be paged out until a goal is reached; `None`: there is no goal.
    pub fn set_goal_room(&mut self, bytes: Option<u64>) {
        self.goal_room = bytes;
    }

    /// What it keeps to.
    pub fn limits(&self) -> GuardLimits {
        self.limits
    }

    /// Changes the limits while running.
    pub fn set_limits(&mut self, limits: GuardLimits) {
        self.limits = limits;
    }

    /// Takes in what was measured since the last time, about a second ago, and how much memory there is.
    /// Says whether this opened or closed the guard for any of it.
    pub fn observe(&mut self, now: Nanos, signals: GuardSignals, pools: Pools) -> bool {
        let were_open = Pool::ALL.map(|pool| self.is_open(pool));
        let elapsed = self.last.map_or(1.0, |last| now.since(last).as_secs_f64());
        self.last = Some(now);
        self.signals = signals;
        self.has_page_cache = pools.page_cache.is_some();
        let (strain, limit) = self.strongest(signals);
        self.strain = strain;
        self.is_blind = strain.is_none() || self.lacks_any(signals);
        let known = strain.filter(|_| !self.is_blind);
        let mut has_stopped = false;
        for pool in Pool::ALL {
            if strain.is_some_and(|strain| pools.are_strained_by(pool, strain)) {
                self.exceeded = limit;
                has_stopped |= self.rate_mut(pool).stop(now);
            } else {
                self.rate_mut(pool).go_on(now, known);
            }
        }
        self.nr_stops += u64::from(has_stopped);
        self.update_debt(now, elapsed, signals.waited, pools);
        self.processes.refill(elapsed, pools.resident);
        self.page_cache
            .refill(elapsed, pools.page_cache.unwrap_or(0));
        were_open != Pool::ALL.map(|pool| self.is_open(pool))
    }

    /// Acting took so much time of the targets' (CPU that nobody had to spare).
    pub fn taken(&mut self, now: Nanos, lost: Nanos) {
        if self.limits.max_slowdown.is_some() {
            self.ledger.add(now, Nanos(0), lost);
        }
    }

    /// What targets may still lose, in nanoseconds; `None`: anything.
    pub fn loss_room_ns(&self) -> Option<f64> {
        self.limits.max_slowdown.map(|_| self.ledger.room_ns())
    }

    /// Bytes of `pool` that may be acted on now; `None`: as many as schemes want.
    pub fn allowance(&self, pool: Pool) -> Option<u64> {
        if !self.limits.is_limited() {
            return None;
        }
        Some(if self.is_open(pool) {
            self.rate(pool).allowance()
        } else {
            0
        })
    }

    /// How many times as long as schemes ask processes' memory must be idle before it is paged out.
    pub fn patience(&self) -> u32 {
        self.patience.factor()
    }

    /// Whether nothing may be acted on now.
    pub fn is_resting(&self) -> bool {
        Pool::ALL.map(|pool| self.allowance(pool)) == [Some(0); 2]
    }

    /// Whether as much was paged out as is to be.
    pub fn has_reached_goal(&self) -> bool {
        self.goal_room == Some(0)
    }

    /// Bytes of `pool` that `action` may be applied to now; `None`: to as many as schemes want.
    pub fn allowance_of(&self, pool: Pool, action: Action) -> Option<u64> {
        let goal = self.goal_room.filter(|_| action == Action::Pageout);
        match (self.allowance(pool), goal) {
            (Some(allowed), Some(goal)) => Some(allowed.min(goal)),
            (allowed, goal) => allowed.or(goal),
        }
    }

    /// `action` was applied to `bytes` of `pool`.
    pub fn charge(&mut self, pool: Pool, action: Action, bytes: u64) {
        if let Some(room) = self
            .goal_room
            .as_mut()
            .filter(|_| action == Action::Pageout)
        {
            *room = room.saturating_sub(bytes);
        }
        self.rate_mut(pool).charge(bytes);
    }

    /// How it stands.
    pub fn status(&self) -> GuardStatus {
        let is_limited = self.limits.is_limited();
        let page_cache = self.has_page_cache && is_limited;
        GuardStatus {
            is_open: !is_limited || self.is_open(Pool::Processes),
            bytes_per_s: is_limited.then(|| self.processes.status().bytes_per_s),
            strain: self.strain,
            exceeded: self.exceeded,
            nr_stops: self.nr_stops,
            until: self.until(Pool::Processes),
            signals: self.signals,
            is_blind: is_limited && self.is_blind,
            is_in_debt: self.is_in_debt,
            since_start: self.ledger.since_start(),
            recent: self.ledger.recent(),
            budget: ActBudgetStatus::default(),
            patience: self.patience(),
            page_cache: page_cache.then(|| PoolStatus {
                is_open: self.is_open(Pool::PageCache),
                until: self.until(Pool::PageCache),
                ..self.page_cache.status()
            }),
        }
    }

    fn rate(&self, pool: Pool) -> &Rate {
        match pool {
            Pool::Processes => &self.processes,
            Pool::PageCache => &self.page_cache,
        }
    }

    fn rate_mut(&mut self, pool: Pool) -> &mut Rate {
        match pool {
            Pool::Processes => &mut self.processes,
            Pool::PageCache => &mut self.page_cache,
        }
    }

    fn is_open(&self, pool: Pool) -> bool {
        self.last.is_some() && !self.rate(pool).is_held() && !self.is_in_debt
    }

    /// When it opens again, as far as can be foreseen.
    fn until(&self, pool: Pool) -> Option<Nanos> {
        let paid = self.last.zip(self.limits.max_slowdown);
        let paid = paid.filter(|_| self.is_in_debt).map(|(last, share)| {
            let debt = (-self.ledger.room_ns()).max(0.0);
            last + Nanos((debt / share.max(1e-9)) as u64)
        });
        self.rate(pool).status().until.max(paid)
    }

    /// Enters a second in the ledger.
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
        self.patience.observe(now, elapsed, allowed, lost);
        let room = self.ledger.room_ns();
        if self.is_in_debt {
            self.is_in_debt = room < 0.0;
        } else if room < -(STEP.0 as f64) {
            self.is_in_debt = true;
            if !self.processes.is_held() || self.has_page_cache && !self.page_cache.is_held() {
                self.nr_stops += 1;
                self.exceeded = Some(Limit::Slowdown);
            }
        }
    }

    /// Whether a signal is missing that is limited.
    fn lacks_any(&self, signals: GuardSignals) -> bool {
        let limits = &self.limits;
        (limits.max_slowdown.is_some() && signals.slowdown.is_none())
            || (limits.max_refaults_per_s.is_some() && signals.refaults_per_s.is_none())
            || (limits.max_psi.is_some() && signals.psi.is_none())
            || (limits.max_refault_wait.is_some() && signals.waited.is_none())
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
            (
                signals.waited.map(Nanos::as_secs_f64),
                self.limits.max_refault_wait.map(Nanos::as_secs_f64),
                Limit::RefaultWait,
            ),
        ];
        all.into_iter()
            .filter_map(|(signal, limit, which)| Some((signal? / limit?.max(1e-9), which)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or((None, None), |(strain, which)| (Some(strain), Some(which)))
    }
}

#[cfg(test)]
mod tests;
