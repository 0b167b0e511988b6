//! A session on a thread of its own, within a program that has other work.
//!
//! Problem: a session's loop has a rhythm, and whoever wants its snapshots may take long over each; signals,
//! capabilities and CPU time are the program's, not the session's.
//!
//! Approach: the thread watches and acts; snapshots wait in a queue until they are asked for. The thread never waits
//! for its caller: once the queue is full the oldest snapshot is dropped and counted. It counts its own CPU time
//! alone, gives up its own capabilities alone, and leaves signals alone.
//!
//! Limits: the queue holds [`SNAPSHOTS_MAX`] snapshots and [`REGIONS_MAX`] regions, some 80 MB. The monitor's memory
//! is told as the whole program's.

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

use crate::acting::{lacking, warnings};
use crate::session::{Session, Step};
use crate::signals::{Signals, Stopper};
use crate::{begin, finish, step};

/// Most snapshots that wait to be taken.
const SNAPSHOTS_MAX: usize = 1024;
/// Most regions of all these together.
const REGIONS_MAX: usize = 1 << 20;
/// Most notes that wait to be taken.
const NOTES_MAX: usize = 256;

/// A session that goes on by itself.
pub struct Background {
    shared: Arc<Shared>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

/// What a session has for its caller.
#[derive(Debug)]
pub enum Next {
    /// What was seen of one target in one interval; page scans as regions.
    Snapshot(Snapshot),
    /// Nothing yet.
    Nothing,
    /// There is nothing more to come.
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
    /// Regions of these.
    nr_regions: usize,
    nr_lost: u64,
    targets: BTreeMap<TargetId, TargetStart>,
    notes: VecDeque<String>,
    end: Option<anyhow::Result<()>>,
}

impl Background {
    /// Begins what `spec` asks for, for `duration` or until the targets end. `command_line` is what the record's
    /// header says made it. Whether it could be begun, [`Background::begun`] tells.
    ///
    /// # Errors
    /// That nothing is named to be watched; no thread, no pipe.
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

    /// What a record of it begins with, once the first look was taken; waits for that until the `timeout`.
    ///
    /// # Errors
    /// What this machine refuses, and what would help.
    pub fn begun(&self, timeout: Duration) -> anyhow::Result<Option<Header>> {
        let mut state = self.shared.wait(timeout, |state| state.header.is_some());
        match &state.header {
            Some(header) => Ok(Some(header.clone())),
            None => take_end(&mut state).map(|_| None),
        }
    }

    /// The oldest snapshot that was not taken, waiting for one until the `timeout`.
    ///
    /// # Errors
    /// Why the session has ended before its time, once.
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

    /// Who a target is, as far as that is known.
    pub fn target(&self, target: TargetId) -> Option<TargetStart> {
        self.shared.lock().targets.get(&target).cloned()
    }

    /// Snapshots that were dropped as nobody took them.
    pub fn nr_lost(&self) -> u64 {
        self.shared.lock().nr_lost
    }

    /// What the user should know, a sentence each, since this was last asked.
    pub fn take_notes(&self) -> Vec<String> {
        self.shared.lock().notes.drain(..).collect()
    }

    /// Whether it has ended, for whatever reason.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    /// Asks for the end, and waits for it. What waits to be taken can still be taken.
    pub fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // What it panicked with is told as its end.
            let _ = thread.join();
        }
    }

    /// Forgets the thread, which this process does not have: it is the child of a fork.
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

/// Whether the session has ended; its error is given out once.
fn take_end(state: &mut State) -> anyhow::Result<bool> {
    match &mut state.end {
        None => Ok(false),
        Some(end) => std::mem::replace(end, Ok(())).map(|()| true),
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `is_there`, or the session has ended, or the time is up.
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
    let acting = spec.contexts.iter().filter_map(|c| c.acting.as_ref());
    let is_dry_run = acting.clone().count() > 0 && acting.clone().all(|acting| acting.is_dry_run);
    ensure!(problems.is_empty() || is_dry_run, "{}", problems.join("\n"));
    let mut session = Session::start_within(spec, command_line, signals)?;
    let started = session.now();
    let ends_at = duration.map_or(Nanos(u64::MAX), |duration| started + duration);
    let mut acting = begin(&mut session, spec, &mut items)?;
    let of_guard = acting.iter().flat_map(crate::Acting::warnings);
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
    // The method's own remark is for records.
    let remark = session.summary();
    items.retain(|item| !matches!(item, Item::Note { text, .. } if Some(text) == remark.as_ref()));
    result.and(shared.take_in(&mut items, &mut ages))
}

impl Shared {
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
        spec.contexts[0].targets = TargetSpec::Processes {
            processes: Vec::new(),
            children: false,
        };
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
