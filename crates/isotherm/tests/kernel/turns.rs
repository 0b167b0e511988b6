//! Turns: the tests that run beside each other, and their order.
//!
//! The harness starts a thread for every test. Each test first takes a turn of one of these kinds, and holds it to its
//! end.
//!
//! | kind | runs beside |
//! |---|---|
//! | [`with_swap`] | shared tests and others of this kind; all of these use one zram |
//! | [`owning_swap`] | shared tests and those that watch; no other test has swap meanwhile |
//! | [`shared`] | the two above and other shared tests, as many as there are places |
//! | [`acting_on_all`] | tests that watch; it may act on any process, so no other test acts |
//! | [`watching`] | others that watch all processes, one that owns swap, one that acts on all |
//! | [`measuring`] | another of this kind for each processor |
//! | [`alone`] | nothing |
//!
//! Kinds begin in this order. Each begins when no test of an earlier kind waits that may not run beside it. So the
//! machine is drained once or twice, and not for each test. Within a kind the tests of [`LONG`] start first.
//!
//! A turn ends with a line `TOOK <test>: <seconds> s, waited <seconds> s` on standard error.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{isotherm, run, skip, test_name};
use crate::swap::{Swap, there_is_swap};

/// Shared tests for each processor: they sleep most of the time.
const PLACES_PER_CPU: usize = 3;
/// The last four kinds wait until none has arrived for this long, since the harness starts threads one by one.
const ARRIVAL: Duration = Duration::from_millis(500);
/// Tests that take longest, longest first.
const LONG: &[&str] = &[
    "a_target_that_ends_ends_the_recording",
    "worlds_are_compared_between_exact_scans",
    "metrics_say_whose_memory_is_how_old",
    "idle_memory_of_a_kvm_guest_is_unknown",
    "a_hundred_children_come_and_go",
    "the_machines_memory_is_told_by_who_uses_it",
    "a_target_that_becomes_another_program_is_followed",
];

/// Kinds of turns, in the order in which they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    WithSwap,
    OwningSwap,
    Shared,
    ActingOnAll,
    Watching,
    Measuring,
    Alone,
}

/// Returns whether tests of two kinds may run at the same time.
fn may_run_beside(one: Kind, other: Kind) -> bool {
    use Kind::{ActingOnAll, Measuring, OwningSwap, Shared, Watching, WithSwap};
    match one.min(other) {
        WithSwap => matches!(one.max(other), WithSwap | Shared),
        OwningSwap => matches!(one.max(other), Shared | Watching),
        ActingOnAll => one.max(other) == Watching,
        Shared | Watching | Measuring => one == other,
        Kind::Alone => false,
    }
}

/// Order of waiting tests: kind, place in [`LONG`], arrival.
type Rank = (Kind, usize, u64);

struct Board {
    waiting: BTreeSet<Rank>,
    running: Vec<Kind>,
    arrived: u64,
    last_arrival: Option<Instant>,
}

static BOARD: Mutex<Board> = Mutex::new(Board {
    waiting: BTreeSet::new(),
    running: Vec::new(),
    arrived: 0,
    last_arrival: None,
});
static CHANGED: Condvar = Condvar::new();

fn board() -> MutexGuard<'static, Board> {
    // A test that failed meanwhile poisons the lock, but the board stays valid.
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn arrive(&mut self, kind: Kind, test: &str) -> Rank {
        let long = LONG.iter().position(|name| *name == test);
        let rank = (kind, long.unwrap_or(LONG.len()), self.arrived);
        self.arrived += 1;
        self.last_arrival = Some(Instant::now());
        self.waiting.insert(rank);
        rank
    }

    fn nr_running(&self, kind: Kind) -> usize {
        self.running.iter().filter(|of| **of == kind).count()
    }

    /// Returns whether a test of this kind may begin beside those that run now.
    fn may_begin(&self, kind: Kind) -> bool {
        let mut running = self.running.iter();
        if !running.all(|other| may_run_beside(kind, *other)) {
            return false;
        }
        let mut earlier = self.waiting.iter().filter(|rank| rank.0 < kind);
        if earlier.any(|rank| !may_run_beside(kind, rank.0)) {
            return false;
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let has_arrived = || { self.last_arrival }.is_none_or(|last| last.elapsed() >= ARRIVAL);
        match kind {
            Kind::Shared | Kind::WithSwap | Kind::OwningSwap => {
                self.running.len() < PLACES_PER_CPU * cpus
            }
            Kind::Watching | Kind::Measuring => has_arrived() && self.nr_running(kind) < cpus,
            Kind::ActingOnAll | Kind::Alone => has_arrived(),
        }
    }

    /// Returns whether the test of this rank is next: the first of all that may begin.
    fn is_next(&self, rank: Rank) -> bool {
        let mut ranks = self.waiting.iter();
        ranks.find(|other| self.may_begin(other.0)) == Some(&rank)
    }
}

/// Held by a test while it runs. Fields are dropped in order: swap is gone before others begin, and the place is given
/// up even if `swap off` fails.
pub(crate) struct Turn {
    swap: Option<SharedSwap>,
    _place: Place,
}

/// A place on the board.
struct Place {
    test: String,
    kind: Kind,
    waited: Duration,
    since: Instant,
}

impl Turn {
    /// Waits for the running test's turn; prints a skip and returns `None` if it cannot run here.
    fn take(kind: Kind) -> Option<Self> {
        if !can_record() {
            return None;
        }
        let (test, arrived) = (test_name(), Instant::now());
        let mut board = board();
        let rank = board.arrive(kind, &test);
        while !board.is_next(rank) {
            let wait = CHANGED.wait_timeout(board, ARRIVAL);
            board = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        board.waiting.remove(&rank);
        board.running.push(kind);
        drop(board);
        // There may be a place for the next one, too.
        CHANGED.notify_all();
        Some(Self {
            swap: None,
            _place: Place {
                test,
                kind,
                waited: arrived.elapsed(),
                since: Instant::now(),
            },
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (took, waited) = (self.since.elapsed(), self.waited);
        let (took, waited) = (took.as_secs_f64(), waited.as_secs_f64());
        eprintln!("TOOK {}: {took:.1} s, waited {waited:.1} s", self.test);
        let mut board = board();
        if let Some(at) = board.running.iter().position(|kind| *kind == self.kind) {
            board.running.swap_remove(at);
        }
        drop(board);
        CHANGED.notify_all();
    }
}

/// Takes a turn for a test that may run beside others; prints a skip and returns `None` if it cannot run here.
pub(crate) fn shared() -> Option<Turn> {
    Turn::take(Kind::Shared)
}

/// Takes a turn, as [`shared`] does, for a test that shares some swap with others. It may assert only its own
/// processes' swap.
pub(crate) fn with_swap() -> Option<Turn> {
    let mut turn = Turn::take(Kind::WithSwap)?;
    turn.swap = Some(SharedSwap::join()?);
    Some(turn)
}

/// Takes a turn for a test that sets up swap itself, needs a machine without swap, or reads the machine's counters of
/// swap.
pub(crate) fn owning_swap() -> Option<Turn> {
    Turn::take(Kind::OwningSwap)
}

/// Takes a turn for a test about a machine without swap.
pub(crate) fn without_swap() -> Option<Turn> {
    let turn = owning_swap()?;
    if there_is_swap() {
        skip("this machine has swap of its own");
        return None;
    }
    Some(turn)
}

/// Takes a turn for a test that watches all processes, of which there should be few.
pub(crate) fn watching() -> Option<Turn> {
    Turn::take(Kind::Watching)
}

/// Takes a turn for a test that may act on any process, so that no other test may act.
pub(crate) fn acting_on_all() -> Option<Turn> {
    Turn::take(Kind::ActingOnAll)
}

/// Takes a turn for a test that asserts accuracy or cost, and needs only a processor of its own.
pub(crate) fn measuring() -> Option<Turn> {
    Turn::take(Kind::Measuring)
}

/// Takes a turn for a test that must not run beside others: it asserts a speed, or is about all of the machine.
pub(crate) fn alone() -> Option<Turn> {
    Turn::take(Kind::Alone)
}

/// The zram that tests share, and the number of its users: the first sets it up, the last removes it.
static SHARED_SWAP: Mutex<(usize, Option<Swap>)> = Mutex::new((0, None));

/// A share in the zram that several tests use.
struct SharedSwap;

impl SharedSwap {
    fn join() -> Option<Self> {
        let mut shared = SHARED_SWAP.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.1.is_none() {
            shared.1 = Some(Swap::set_up()?);
        }
        shared.0 += 1;
        Some(Self)
    }
}

impl Drop for SharedSwap {
    fn drop(&mut self) {
        let mut shared = SHARED_SWAP.lock().unwrap_or_else(PoisonError::into_inner);
        shared.0 -= 1;
        if shared.0 == 0 {
            shared.1 = None;
        }
    }
}

fn can_record() -> bool {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let reason = REASON.get_or_init(why_not);
    if let Some(reason) = reason {
        skip(reason);
    }
    reason.is_none()
}

fn why_not() -> Option<String> {
    let done = run(&mut isotherm(["doctor", "--json"]));
    let report = done.json();
    let (works, why_not) = (
        &report["abilities"][0]["works"],
        &report["abilities"][0]["why_not"],
    );
    if *works != true {
        return Some(format!("recording is not possible here: {why_not}"));
    }
    let python = std::process::Command::new("python3").arg("-V").output();
    python.is_err().then(|| "there is no python3".to_owned())
}
