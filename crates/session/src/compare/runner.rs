//! Runs worlds in turns, between exact scans.

use std::collections::BTreeMap;

use anyhow::ensure;
use isotherm_config::{ActingSpec, ContextSpec, MonitorSpec, PageAttributes, SessionSpec, World};
use isotherm_engine::{Nanos, Snapshot, TargetId};
use isotherm_record::Item;

use super::score::{Claims, about};
use super::simulated::Trace;
use super::truth::{Scans, Truth};
use super::watched::Watched;
use super::{
    ComparedWorld, Comparison, ComparisonProgress, ComparisonSpec, SCAN_INTERVAL, SchemeTurn, Turn,
    WorldReport,
};
use crate::session::{Session, Step};

/// Runs the turns of each world. `tell` is called with each step before it begins. A world that fails has its error in
/// the report.
///
/// # Errors
/// Fails if exact scans fail, if there is no world, or if a session does not have exactly one context. An interruption
/// before the end of the first turn is an error, too.
pub fn compare(
    spec: &ComparisonSpec,
    tell: &mut dyn FnMut(ComparisonProgress),
) -> anyhow::Result<Comparison> {
    ensure!(!spec.worlds.is_empty(), "no world to compare");
    for (_, session) in &spec.worlds {
        ensure!(
            session.contexts.len() == 1,
            "worlds are compared by one context; the configuration holds {}",
            session.contexts.len()
        );
    }
    let idle_for = spec.idle_for();
    let worlds = spec.worlds.iter().map(|(world, _)| WorldReport {
        world: *world,
        error: None,
        turns: Vec::new(),
    });
    let report = Comparison {
        processes: BTreeMap::new(),
        window_seconds: spec.window.as_secs_f64(),
        idle_seconds: idle_for.as_secs_f64(),
        worlds: worlds.collect(),
        notes: Vec::new(),
    };
    let mut runner = Runner {
        spec,
        idle_for,
        report,
    };
    runner.run(tell)?;
    Ok(runner.report)
}

/// A signal asked for the end of the comparison.
#[derive(Debug, thiserror::Error)]
#[error("it was interrupted")]
struct Interrupted;

const LEAST_BUDGET: f64 = 0.001;

struct Runner<'a> {
    spec: &'a ComparisonSpec,
    idle_for: Nanos,
    report: Comparison,
}

impl Runner<'_> {
    fn run(&mut self, tell: &mut dyn FnMut(ComparisonProgress)) -> anyhow::Result<()> {
        let spec = self.spec;
        let live: Vec<usize> = (0..spec.worlds.len())
            .filter(|at| spec.worlds[*at].0 != ComparedWorld::Simulated)
            .collect();
        tell(ComparisonProgress::Scanning);
        let mut trace = spec.is_simulated().then(Trace::default);
        let first_for = if trace.is_some() {
            spec.window
        } else {
            spec.scan_for()
        };
        let before = self.scan(first_for, trace.as_mut())?;
        let turns = self.take_turns(&live, before, tell);
        let has_any = self
            .report
            .worlds
            .iter()
            .any(|world| !world.turns.is_empty());
        match turns {
            Err(error) if error.is::<Interrupted>() && has_any => {
                note(
                    &mut self.report.notes,
                    "interrupted",
                    "this is what was compared until then",
                );
            }
            turns => turns?,
        }
        if let Some(trace) = trace {
            self.simulate(&trace, tell);
        }
        Ok(())
    }

    fn take_turns(
        &mut self,
        live: &[usize],
        mut before: Scans,
        tell: &mut dyn FnMut(ComparisonProgress),
    ) -> anyhow::Result<()> {
        let spec = self.spec;
        for turn in 1..=spec.turns {
            // Every other turn reverses the order, so that drift over time does not favour one world.
            let mut order: Vec<usize> = match turn % 2 {
                1 => live.to_vec(),
                _ => live.iter().rev().copied().collect(),
            };
            if spec.is_cpu_equal && turn == 1 {
                order.sort_by_key(|at| spec.worlds[*at].0 != ComparedWorld::Kernel);
            }
            for at in order {
                let world = spec.worlds[at].0;
                tell(ComparisonProgress::Watching {
                    world,
                    turn,
                    turns: spec.turns,
                });
                let watched = match self.watch(world, &self.equal(at)) {
                    Err(error) if error.is::<Interrupted>() => return Err(error),
                    watched => watched,
                };
                tell(ComparisonProgress::Scanning);
                let after = self.scan(spec.scan_for(), None)?;
                let truth = Truth::between(&before, &after);
                let judged = watched.and_then(|watched| self.judge(at, &watched, &truth));
                self.report.worlds[at].take(judged);
                before = after;
            }
        }
        Ok(())
    }

    /// Returns the session of the world at this place, with a CPU budget equal to the kernel's cost if that is asked
    /// for.
    fn equal(&self, at: usize) -> SessionSpec {
        let (world, spec) = &self.spec.worlds[at];
        let mut spec = spec.clone();
        if !self.spec.is_cpu_equal || *world != ComparedWorld::Linux {
            return spec;
        }
        let mut worlds = self.report.worlds.iter();
        let kernel = worlds.find(|report| report.world == ComparedWorld::Kernel);
        let share = kernel.and_then(|report| report.median(|turn| Some(turn.cpu_share)));
        if let (Some(share), MonitorSpec::Tables(attributes)) =
            (share, &mut spec.contexts[0].monitor)
        {
            attributes.cpu_budget = share.max(LEAST_BUDGET);
        }
        spec
    }

    fn scan(&mut self, how_long: Nanos, mut trace: Option<&mut Trace>) -> anyhow::Result<Scans> {
        let spec = scanning(&self.spec.worlds[0].1, self.spec.max_stall);
        let mut scans = Scans::default();
        let report = &mut self.report;
        watch(&spec, how_long, &mut |pid, item| {
            if let Some(trace) = &mut trace {
                trace.take(item);
            }
            match item {
                Item::TargetStart(start) => {
                    report.processes.insert(start.pid, start.name.clone());
                }
                Item::Note { text, .. } => note(&mut report.notes, "exact scans", text),
                Item::Pages(pages) => scans.take(pid, pages),
                _ => {}
            }
        })
        .map_err(|error| match error.downcast::<Interrupted>() {
            Ok(interrupted) => interrupted.into(),
            Err(error) => error.context("exact scans, against which worlds are held, failed"),
        })?;
        ensure!(
            scans.nr > 0,
            "no process was there long enough for an exact scan"
        );
        Ok(scans)
    }

    fn watch(&mut self, world: ComparedWorld, spec: &SessionSpec) -> anyhow::Result<Watched> {
        let mut watched = Watched::of_turn(self.spec.window);
        let notes = &mut self.report.notes;
        let spec = only_watching(spec);
        let ended = watch(&spec, self.spec.window, &mut |pid, item| match item {
            Item::Snapshot(snapshot) => watched.add(pid, snapshot.clone()),
            Item::Note { text, .. } => note(notes, world.name(), text),
            _ => {}
        })?;
        let seconds = ended.elapsed.as_secs_f64().max(1e-9);
        watched.cpu_share = ended.cpu.as_secs_f64() / seconds;
        watched.kdamond_cpu_share = ended.kdamond.map(|cpu| cpu.as_secs_f64() / seconds);
        Ok(watched)
    }

    fn judge(&self, at: usize, watched: &Watched, truth: &Truth) -> anyhow::Result<Turn> {
        ensure!(!watched.snapshots.is_empty(), "it has taken no snapshot");
        let mut claims = Claims::default();
        let mut last: BTreeMap<u32, &Snapshot> = BTreeMap::new();
        for (pid, snapshot) in &watched.snapshots {
            claims.add(snapshot, *pid, self.idle_for, truth);
            last.insert(*pid, snapshot);
        }
        let last: Vec<(u32, Snapshot)> = { last.into_iter() }
            .map(|(pid, snapshot)| (pid, snapshot.clone()))
            .collect();
        let schemes = self.spec.worlds[at].1.contexts[0].schemes();
        let about = about(schemes, &last, truth)?;
        let schemes = schemes.iter().zip(about);
        let schemes = schemes.map(|(scheme, about)| SchemeTurn {
            action: scheme.action,
            bytes: about.accessed + about.idle,
            accessed_bytes: about.accessed,
        });
        let regions = last
            .iter()
            .map(|(_, snapshot)| snapshot.regions.len() as u64);
        Ok(Turn {
            snapshots: watched.nr,
            regions: regions.sum(),
            cpu_share: watched.cpu_share,
            kdamond_cpu_share: watched.kdamond_cpu_share,
            truth: truth.bytes,
            accessed_precision: claims.accessed.precision(),
            accessed_recall: claims.accessed.recall(),
            idle_precision: claims.idle.precision(),
            idle_recall: claims.idle.recall(),
            unknown_share: claims.unknown_share(),
            schemes: schemes.collect(),
        })
    }

    /// Runs the simulated world for one turn: each turn would be the same.
    fn simulate(&mut self, trace: &Trace, tell: &mut dyn FnMut(ComparisonProgress)) {
        let all = self.spec.worlds.iter().enumerate();
        let simulated = all.filter(|(_, (world, _))| *world == ComparedWorld::Simulated);
        for (at, (world, spec)) in simulated {
            tell(ComparisonProgress::Watching {
                world: *world,
                turn: 1,
                turns: 1,
            });
            let truth = trace.truth(self.idle_for);
            let judged = trace
                .watch(&only_watching(spec), self.spec.window)
                .and_then(|watched| self.judge(at, &watched, &truth));
            self.report.worlds[at].take(judged);
        }
    }
}

/// Adds a note about `who` once; text in brackets, which changes from moment to moment, is cut.
fn note(notes: &mut Vec<String>, who: &str, text: &str) {
    let text = text.split(" (").next().unwrap_or(text);
    let said = format!("{who}: {text}");
    if !notes.contains(&said) {
        notes.push(said);
    }
}

/// Returns a session that scans every page of the same targets.
fn scanning(spec: &SessionSpec, max_stall: Nanos) -> SessionSpec {
    let of = &spec.contexts[0];
    SessionSpec {
        contexts: vec![ContextSpec {
            monitor: MonitorSpec::Pages(PageAttributes {
                interval: SCAN_INTERVAL,
                max_stall,
                ..PageAttributes::default()
            }),
            acting: None,
            ..of.clone()
        }],
        seed: spec.seed,
        world: World::Linux,
        stacks: None,
    }
}

/// Returns the same session with all schemes in dry run.
fn only_watching(spec: &SessionSpec) -> SessionSpec {
    let mut spec = spec.clone();
    for context in &mut spec.contexts {
        context.acting = Some(ActingSpec {
            is_dry_run: true,
            ..context.acting.clone().unwrap_or_default()
        });
    }
    spec
}

/// Duration and CPU time of a session that has ended.
struct Ended {
    elapsed: Nanos,
    cpu: Nanos,
    kdamond: Option<Nanos>,
}

/// Runs a session for the time `how_long`; `take` receives each item, with the id of its process.
fn watch(
    spec: &SessionSpec,
    how_long: Nanos,
    take: &mut dyn FnMut(u32, &Item),
) -> anyhow::Result<Ended> {
    let mut session = Session::start(spec, Vec::new())?;
    let started = session.now();
    let ends_at = started + how_long;
    let mut pids: BTreeMap<u32, u32> = BTreeMap::new();
    let mut items = Vec::new();
    loop {
        let step = session.step(ends_at, &mut items)?;
        for item in items.drain(..) {
            let target = match &item {
                Item::TargetStart(start) => {
                    pids.insert(start.target.0, start.pid);
                    start.target
                }
                Item::Snapshot(snapshot) => snapshot.target,
                Item::Pages(pages) => pages.target,
                _ => TargetId(0),
            };
            let pid = pids.get(&target.0).copied().unwrap_or(0);
            take(pid, &item);
        }
        match step {
            Step::Stopped => return Err(Interrupted.into()),
            Step::Ended => anyhow::bail!("the processes have ended"),
            Step::Going if session.now() >= ends_at => break,
            Step::Going => {}
        }
    }
    let kdamond = session
        .monitor
        .kdamond(0)
        .map(|kdamond| kdamond.watching_cpu());
    Ok(Ended {
        elapsed: session.now().since(started),
        cpu: session.cost().0.monitor_cpu,
        kdamond,
    })
}
