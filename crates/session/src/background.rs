//! A session on a thread of its own, within a program that has other work.
//!
//! Problem: a session's loop has a fixed rhythm, while the caller may take long over each snapshot. Signals,
//! capabilities and CPU time belong to the program, not to the session.
//!
//! Approach: the thread watches and acts; snapshots wait in a queue for the caller. The thread never waits for its
//! caller: when the queue is full, the oldest snapshot is dropped and counted. The thread counts its own CPU time
//! alone, drops its own capabilities alone, and leaves signals alone.
//!
//! Limits: the queue holds [`SNAPSHOTS_MAX`] snapshots and [`REGIONS_MAX`] regions, some 80 MB. The monitor's memory is
//! reported as that of the whole program.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use isotherm_config::{RequestError, SessionSpec, TargetSpec};
use isotherm_engine::{Nanos, Snapshot, TargetId};
use isotherm_linux::clock;
use isotherm_record::{Header, Item, PageAges, TargetStart};

use crate::acting::{is_dry_run, lacking, warnings};
use crate::session::{Session, Step};
use crate::signals::{Signals, Stopper};
use crate::{begin, finish, step};

const SNAPSHOTS_MAX: usize = 1024;
const REGIONS_MAX: usize = 1 << 20;
const NOTES_MAX: usize = 256;

/// A session on a thread of its own.
pub struct Background {
    shared: Arc<Shared>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

/// Result of a wait for a session's next snapshot.
#[derive(Debug)]
pub enum Next {
    /// Snapshot of one target in one interval; page scans appear as regions.
    Snapshot(Snapshot),
    /// There is no snapshot yet.
    Nothing,
    /// The session has ended, and all snapshots are taken.
    Ended,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    header: Option<Header>,
    snapshots: VecDeque<Snapshot>,
    nr_regions: usize,
    nr_lost: u64,
    targets: BTreeMap<TargetId, TargetStart>,
    notes: VecDeque<String>,
    end: Option<anyhow::Result<()>>,
}

impl Background {
    /// Starts the session of `spec`, for `duration` or until the targets end. `command_line` goes into the record's
    /// header. [`Background::begun`] reports whether the session could begin.
    ///
    /// # Errors
    /// Fails if no target is named, or if the thread or its pipe cannot be made.
    pub fn start(
        spec: SessionSpec,
        command_line: Vec<String>,
        duration: Option<Nanos>,
    ) -> anyhow::Result<Self> {
        let names_nobody = |targets: &TargetSpec| matches!(targets, TargetSpec::Processes { processes, .. } if processes.is_empty());
        if spec.contexts.iter().any(|c| names_nobody(&c.targets)) {
            return Err(RequestError::NoTarget.into());
        }
        let (signals, stopper) = Signals::of_another()?;
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("isotherm".to_owned())
            .spawn(move || {
                let run = || run(&spec, command_line, duration, signals, &for_thread);
                let end = catch_unwind(AssertUnwindSafe(run));
                let end = end.unwrap_or_else(|_| Err(anyhow!("the session has panicked: a bug")));
                for_thread.change(|state| state.end = Some(end));
            })
            .context("cannot start a thread for the session")?;
        Ok(Self {
            shared,
            stopper,
            thread: Some(thread),
        })
    }

    /// Returns the header of the session's record after the first step; waits for it until the `timeout`.
    ///
    /// # Errors
    /// Fails if this machine refuses the session; the error names a remedy.
    pub fn begun(&self, timeout: Duration) -> anyhow::Result<Option<Header>> {
        let mut state = self.shared.wait(timeout, |state| state.header.is_some());
        match &state.header {
            Some(header) => Ok(Some(header.clone())),
            None => take_end(&mut state).map(|_| None),
        }
    }

    /// Takes the oldest snapshot; waits for one until the `timeout`.
    ///
    /// # Errors
    /// Fails, once, if the session has ended with an error.
    pub fn next(&self, timeout: Duration) -> anyhow::Result<Next> {
        let mut state = self
            .shared
            .wait(timeout, |state| !state.snapshots.is_empty());
        if let Some(snapshot) = state.snapshots.pop_front() {
            state.nr_regions -= snapshot.regions.len();
            return Ok(Next::Snapshot(snapshot));
        }
        let has_ended = take_end(&mut state)?;
        Ok(if has_ended {
            Next::Ended
        } else {
            Next::Nothing
        })
    }

    /// Process of a target, if known.
    pub fn target(&self, target: TargetId) -> Option<TargetStart> {
        self.shared.lock().targets.get(&target).cloned()
    }

    /// Number of snapshots that were dropped because the caller did not take them.
    pub fn nr_lost(&self) -> u64 {
        self.shared.lock().nr_lost
    }

    /// Takes the notes for the user since the last call, a sentence each.
    pub fn take_notes(&self) -> Vec<String> {
        self.shared.lock().notes.drain(..).collect()
    }

    /// Whether the session has ended, for whatever reason.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    /// Ends the session and waits for its end. Queued snapshots can still be taken.
    pub fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A panic is reported as the session's end.
            let _ = thread.join();
        }
    }

    /// Forgets the thread, which this process does not have after a fork.
    pub fn forget_thread(&mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// Whether the session has ended; its error is returned once.
fn take_end(state: &mut State) -> anyhow::Result<bool> {
    match &mut state.end {
        None => Ok(false),
        Some(end) => std::mem::replace(end, Ok(())).map(|()| true),
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete: a panic elsewhere leaves no partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn take_in(&self, items: &mut Vec<Item>, ages: &mut PageAges) -> anyhow::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        self.change(|state| {
            for item in items.drain(..) {
                if result.is_ok() {
                    result = state.take_in(item, ages);
                }
            }
        });
        result
    }

    /// Waits until `is_there`, the end of the session or the timeout.
    fn wait(&self, timeout: Duration, is_there: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        while !is_there(&state) && state.end.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

impl State {
    fn take_in(&mut self, item: Item, ages: &mut PageAges) -> anyhow::Result<()> {
        let snapshot = match item {
            Item::Snapshot(snapshot) => snapshot.by_page(),
            Item::Pages(pages) => ages.snapshot(&pages)?,
            Item::TargetStart(start) => {
                self.targets.insert(start.target, start);
                return Ok(());
            }
            Item::Note { text, .. } => {
                self.note(text);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.nr_regions += snapshot.regions.len();
        self.snapshots.push_back(snapshot);
        while self.snapshots.len() > SNAPSHOTS_MAX
            || (self.nr_regions > REGIONS_MAX && self.snapshots.len() > 1)
        {
            let dropped = self.snapshots.pop_front();
            self.nr_regions -= dropped.map_or(0, |snapshot| snapshot.regions.len());
            self.nr_lost += 1;
        }
        Ok(())
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(text);
        }
    }
}

fn run(
    spec: &SessionSpec,
    command_line: Vec<String>,
    duration: Option<Nanos>,
    signals: Signals,
    shared: &Shared,
) -> anyhow::Result<()> {
    clock::count_thread_alone();
    let (mut ages, mut items) = (PageAges::default(), Vec::new());
    let problems = lacking(spec);
    let can_be_run = problems.is_empty() || spec.acts() && is_dry_run(spec);
    ensure!(can_be_run, "{}", problems.join("\n"));
    let mut session = Session::start_within(spec, command_line, signals)?;
    let started = session.now();
    let ends_at = duration.map_or(Nanos(u64::MAX), |duration| started + duration);
    let mut acting = begin(&mut session, spec, &mut items)?;
    let of_guard = acting.iter().flat_map(|acting| acting.warnings());
    let notes: Vec<String> = warnings(spec)
        .into_iter()
        .chain(problems)
        .chain(of_guard)
        .collect();
    shared.change(|state| {
        for text in notes {
            state.note(text);
        }
        state.header = Some(session.header().clone());
    });
    let mut result = Ok(());
    loop {
        shared.take_in(&mut items, &mut ages)?;
        match step(&mut session, acting.as_mut(), ends_at, &mut items) {
            Ok(Step::Going) if session.now() < ends_at => {}
            Ok(_) => break,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    finish(&mut session, acting.as_mut(), &mut items);
    // The method's remark is meant for records.
    let remark = session.summary();
    items.retain(|item| !matches!(item, Item::Note { text, .. } if Some(text) == remark.as_ref()));
    result.and(shared.take_in(&mut items, &mut ages))
}

#[cfg(test)]
mod tests {
    use isotherm_config::Request;

    use super::*;

    fn simulated() -> SessionSpec {
        let request = Request {
            targets: Some(TargetSpec::Simulated),
            ..Request::default()
        };
        request.watch().expect("a session that only watches")
    }

    fn next(background: &Background) -> Next {
        background.next(Duration::from_secs(20)).expect("no error")
    }

    #[test]
    fn snapshots_come_until_it_is_stopped_and_what_came_before_can_be_taken() {
        let mut session = Background::start(simulated(), Vec::new(), None).expect("a thread");
        let header = session.begun(Duration::from_secs(20)).expect("it begins");
        assert_eq!(header.expect("in time").operations, "vaddr");
        let Next::Snapshot(snapshot) = next(&session) else {
            panic!("a snapshot")
        };
        assert!(!snapshot.regions.is_empty());
        assert!(session.target(snapshot.target).is_some());
        session.stop();
        assert!(session.has_ended());
        while let Next::Snapshot(_) = next(&session) {}
        assert!(matches!(next(&session), Next::Ended));
    }

    #[test]
    fn it_ends_when_its_time_is_up() {
        let duration = Some(Nanos::from_millis(300));
        let session = Background::start(simulated(), Vec::new(), duration).expect("a thread");
        while let Next::Snapshot(_) = next(&session) {}
        assert!(session.has_ended());
    }

    #[test]
    fn nobody_is_no_target() {
        let mut spec = simulated();
        spec.contexts[0].targets = TargetSpec::named(Vec::new());
        let error = Background::start(spec, Vec::new(), None).err();
        assert!(error.is_some_and(|error| error.is::<RequestError>()));
    }

    #[test]
    fn what_nobody_takes_is_dropped_from_its_old_end_and_counted() {
        let mut state = State::default();
        let mut ages = PageAges::default();
        for number in 0..SNAPSHOTS_MAX as u64 + 3 {
            let snapshot = Snapshot {
                start: Nanos(number),
                ..Snapshot::default()
            };
            let taken = state.take_in(Item::Snapshot(snapshot), &mut ages);
            taken.expect("regions need no ages");
        }
        assert_eq!((state.snapshots.len(), state.nr_lost), (SNAPSHOTS_MAX, 3));
        assert_eq!(state.snapshots[0].start, Nanos(3));
    }
}
