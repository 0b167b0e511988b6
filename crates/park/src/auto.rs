//! Parks the groups below a control group while they are idle, and wakes them when they run again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use isotherm_engine::Nanos;
use isotherm_linux::cgroup;
use isotherm_linux::pressure;
use isotherm_linux::process::Process;
use serde::Serialize;

use crate::park::{ParkReport, park};
use crate::wake::{WakeReport, WakeSpec, wake};

/// Shortest time between two looks at all groups.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A look may take this part of the time: 1 % of a CPU.
const LOOK_SHARE: u32 = 100;
/// Time over which the use of CPUs is compared; the kernel counts it in steps of 10 ms.
const WINDOW: Nanos = Nanos::from_millis(1000);

static PARKS: Mutex<()> = Mutex::new(());

/// When a group counts as idle.
#[derive(Clone, Copy, Debug)]
pub struct IdleRule {
    /// Time without use after which a group is parked.
    pub idle: Nanos,
    /// Share of one CPU up to which a group is not in use: timers, heartbeats.
    pub cpu_share: f64,
}

/// Something that was done to a group, or was tried.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ParkEvent {
    /// Directory of the group.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub group: PathBuf,
    /// The deed, and its result.
    pub done: ParkDone,
}

/// A deed, with its result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ParkDone {
    /// It was idle, and was parked.
    Parked(ParkReport),
    /// It ran again, and was woken.
    Woken(WakeReport),
    /// It could not be parked or woken, for this reason. It is tried again after the same idle time.
    Failed(String),
}

/// Parks the groups with processes at a group and below it while they idle, and wakes them when they run. Parked groups
/// stay parked at its end; their memory comes back as they touch it.
pub struct IdleParker {
    below: PathBuf,
    started: Instant,
    rule: IdleRule,
    watch: Duration,
    stop: Arc<AtomicBool>,
    groups: BTreeMap<PathBuf, Use>,
    ended: (Sender<ParkEvent>, Receiver<ParkEvent>),
}

impl IdleParker {
    /// Parks by `rule`. After a wake, returning pages are noted for `watch`. What is under way ends when `stop` is set.
    pub fn new(below: PathBuf, rule: IdleRule, watch: Duration, stop: Arc<AtomicBool>) -> Self {
        Self {
            below,
            started: Instant::now(),
            rule,
            watch,
            stop,
            groups: BTreeMap::new(),
            ended: channel(),
        }
    }

    /// Looks at all groups, and starts what is to be done. Returns what has ended, and the time until the next look.
    pub fn look(&mut self) -> (Vec<ParkEvent>, Duration) {
        let began = self.started.elapsed();
        let now = Nanos(began.as_nanos() as u64);
        let mut known = std::mem::take(&mut self.groups);
        let mut last: Option<PathBuf> = None;
        for group in cgroup::occupied(&self.below) {
            // What is done to a group is done to those below it.
            if last.as_ref().is_some_and(|above| group.starts_with(above)) {
                continue;
            }
            last = Some(group.clone());
            let cpu = cpu_of(&group);
            let mut of = known.remove(&group).unwrap_or(Use::new(now, cpu));
            match of.update(now, cpu, self.rule) {
                Some(Turn::Park) => self.start(group.clone(), |group, _, stop| {
                    // One after the other: each looks whether enough swap is free.
                    let _turn = PARKS.lock().unwrap_or_else(PoisonError::into_inner);
                    park(group, false, |_, _| !stop.load(Ordering::Relaxed)).map(ParkDone::Parked)
                }),
                Some(Turn::Wake) => self.start(group.clone(), |group, spec, stop| {
                    wake(group, spec, || !stop.load(Ordering::Relaxed)).map(ParkDone::Woken)
                }),
                None => {}
            }
            self.groups.insert(group, of);
        }
        let ended: Vec<ParkEvent> = self.ended.1.try_iter().collect();
        for event in &ended {
            if let Some(of) = self.groups.get_mut(&event.group) {
                of.ended(&event.done, now, cpu_of(&event.group));
            }
        }
        let took = self.started.elapsed().saturating_sub(began);
        (ended, LOOK_EVERY.max(took * LOOK_SHARE))
    }

    /// Parks or wakes a group on a thread of its own: others do not wait for it.
    fn start(
        &self,
        group: PathBuf,
        work: impl FnOnce(&Path, WakeSpec, &AtomicBool) -> anyhow::Result<ParkDone> + Send + 'static,
    ) {
        let spec = WakeSpec {
            learns_anew: false,
            watch: self.watch,
        };
        let (sender, stop) = (self.ended.0.clone(), Arc::clone(&self.stop));
        thread::spawn(move || {
            let done = work(&group, spec, &stop);
            let done = done.unwrap_or_else(|error| ParkDone::Failed(format!("{error:#}")));
            // Fails after the end.
            let _ = sender.send(ParkEvent { group, done });
        });
    }
}

/// Returns the CPU time of the group: in version 1 that of its processes, which falls if one of them ends.
fn cpu_of(group: &Path) -> Nanos {
    if let Some(cpu) = cgroup::cpu(group) {
        return cpu;
    }
    let pids = cgroup::processes(group);
    let processes = pids.iter().filter_map(|pid| Process::open(*pid).ok());
    let cpu = processes.filter_map(|process| Some(pressure::progress(&process)?.cpu.0));
    Nanos(cpu.sum())
}

enum Turn {
    Park,
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    Parked,
    /// It is being parked or woken.
    Changes,
}

/// Use of a group.
#[derive(Clone, Copy, Debug)]
struct Use {
    stage: Stage,
    /// Start of the window, and the CPU time then.
    since: Nanos,
    cpu: Nanos,
    /// Last time that it was in use.
    used: Nanos,
}

impl Use {
    fn new(now: Nanos, cpu: Nanos) -> Self {
        Self {
            stage: Stage::Runs,
            since: now,
            cpu,
            used: now,
        }
    }

    /// Notes the CPU time of now, and returns what is to be done.
    fn update(&mut self, now: Nanos, cpu: Nanos, rule: IdleRule) -> Option<Turn> {
        let elapsed = now.since(self.since);
        let allowed = elapsed.max(WINDOW).0 as f64 * rule.cpu_share;
        let is_used = cpu.since(self.cpu).0 as f64 > allowed;
        if is_used {
            self.used = now;
        }
        if is_used || elapsed >= WINDOW {
            (self.since, self.cpu) = (now, cpu);
        }
        let turn = match self.stage {
            Stage::Runs if now.since(self.used) >= rule.idle => Turn::Park,
            Stage::Parked if is_used => Turn::Wake,
            _ => return None,
        };
        self.stage = Stage::Changes;
        Some(turn)
    }

    /// Notes that the work at the group has ended.
    fn ended(&mut self, done: &ParkDone, now: Nanos, cpu: Nanos) {
        let is_parked = matches!(done, ParkDone::Parked(_));
        *self = Self::new(now, cpu);
        if is_parked {
            self.stage = Stage::Parked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: IdleRule = IdleRule {
        idle: Nanos::from_millis(60_000),
        cpu_share: 0.01,
    };

    /// Calls update every 250 ms with this CPU time a second, and returns the time of the first turn.
    fn first_turn(of: &mut Use, from_ms: u64, cpu_ms_each_second: u64) -> Option<u64> {
        let cpu = of.cpu;
        (from_ms..from_ms + 120_000).step_by(250).find(|at| {
            let used = (at - from_ms) * cpu_ms_each_second / 1000;
            // The kernel's steps.
            let cpu = cpu + Nanos::from_millis(used / 10 * 10);
            of.update(Nanos::from_millis(*at), cpu, RULE).is_some()
        })
    }

    #[test]
    fn what_runs_is_not_parked_and_timers_are_no_use() {
        let new = Use::new(Nanos(0), Nanos(0));
        assert_eq!(first_turn(&mut { new }, 0, 30), None);
        assert_eq!(first_turn(&mut { new }, 0, 5), Some(60_000));
        let mut idle = new;
        assert_eq!(first_turn(&mut idle, 0, 0), Some(60_000));
        assert_eq!(idle.stage, Stage::Changes);
        let parked = ParkReport {
            processes: Vec::new(),
            seconds: 0.1,
            is_frozen: false,
            was_stopped: false,
        };
        idle.ended(
            &ParkDone::Parked(parked),
            Nanos::from_millis(60_250),
            Nanos(0),
        );
        assert_eq!(first_turn(&mut { idle }, 60_250, 5), None);
        let woken = first_turn(&mut idle, 60_250, 100);
        assert!(woken.is_some_and(|at| at <= 60_750), "{woken:?}");
        idle.ended(
            &ParkDone::Failed("no swap".to_owned()),
            Nanos::from_millis(70_000),
            Nanos(0),
        );
        assert_eq!(first_turn(&mut idle, 70_000, 0), Some(130_000));
    }
}
