//! The third world: the kernel's DAMON watches and acts, set up through sysfs. Snapshots come from its tracepoints and
//! the work of schemes from their counters, as the same items as in the other worlds.
//!
//! As in the kernel, there is one kdamond for each context. Each is a [`Monitor`] of its own; all kdamonds share the
//! tree of files and the events ([`SharedDamon`]).
//!
//! `attached.rs` only reads the events of kdamonds that other programs run ([`World::Attached`]).
//!
//! Schemes begin held (`stat`), until [`crate::Acting`] releases them.
//!
//! Limits: the kernel does not report which of a region's addresses hold memory, nor why something was not acted on.
//! Where a kernel has no readable tracepoint, snapshots come from the regions of a `stat` scheme instead: once a
//! second, and only for a context with one target.

mod assemble;
mod attached;
mod inventory;
mod lower;
mod monitor;
mod schemes;
mod shared_damon;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use anyhow::Context as _;
use isotherm_config::{ContextSpec, MonitorSpec, ProcessSpec, SessionSpec, TargetSpec, World};
use isotherm_damon::{
    Claim, DamonContext, DamonError, DirectoryTree, MODULES_ROOT, Module, SYSFS_ROOT,
};
use isotherm_engine::{AddressRange, Nanos};
use isotherm_linux::damon_trace::DamonTrace;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::raise_file_limit;
use isotherm_linux::{host, state};
use isotherm_record::Item;

use crate::monitor::{Contexts, Monitor};
use crate::start::parts::{Started, group_of, ram, wanted};
use crate::targets::TargetSet;
pub use inventory::{KdamondReport, KernelDamonReport, ModuleReport};

pub(crate) use lower::held;
use monitor::{KernelMonitor, Watched, watcher};
use shared_damon::SharedDamon;

/// Largest number of attempts to start while processes come and go.
const TRIES: u32 = 5;

/// Claims DAMON, starts the command if there is one, and turns a kdamond on for each context.
pub(crate) fn start(spec: &SessionSpec, now: Nanos) -> anyhow::Result<Started> {
    if spec.world == World::Attached {
        return attached::start(spec);
    }
    let tree = DirectoryTree::of_kernel().ok_or_else(|| DamonError::Absent {
        root: SYSFS_ROOT.into(),
    })?;
    let modules = Module::all(Path::new(MODULES_ROOT));
    let directory = state::directory()?;
    let mut claim = Claim::take(tree, &directory, &lower::boot_id()?, modules)?;
    let mut notes: Vec<String> = claim.recovered().map(str::to_owned).into_iter().collect();
    let trace = match DamonTrace::attach() {
        Ok(trace) => Some(trace),
        Err(error) => {
            notes.push(format!(
                "{error}; what is seen comes by a `stat` scheme instead, once a second"
            ));
            None
        }
    };
    // Everything that can be refused is refused before a command starts: the trial names this process as the target.
    let us = [std::process::id()];
    let trial = spec.contexts.iter().map(|of| live_context(of, &us));
    claim.check(&trial.collect::<anyhow::Result<Vec<DamonContext>>>()?)?;

    let mut child = None;
    let mut begun = Vec::new();
    let files = raise_file_limit() / spec.contexts.len().max(1) as u64;
    for context in &spec.contexts {
        let watched = watched(context, files, &mut child, &mut notes)?;
        begun.push((context, watched, Vec::new()));
    }
    let contexts = turn_on(&mut claim, &mut begun, now, trace.is_some())?;
    let hub = Rc::new(RefCell::new(SharedDamon::new(
        claim,
        trace,
        contexts.len(),
    )?));
    let mut monitors: Vec<(String, Box<dyn Monitor>)> = Vec::new();
    for (at, ((context, watched, first), lowered)) in begun.into_iter().zip(contexts).enumerate() {
        let monitor = KernelMonitor::new(Rc::clone(&hub), at, context, lowered, watched, first);
        monitors.push((context.name_or(at), Box::new(monitor)));
    }
    let monitor: Box<dyn Monitor> = match monitors.len() {
        1 => monitors.remove(0).1,
        _ => Box::new(Contexts::new(monitors)),
    };
    Ok(Started {
        monitor,
        child,
        notes,
    })
}

/// Returns a context to run by: one that begins paused watches, as in the other worlds.
fn live_context(context: &ContextSpec, pids: &[u32]) -> anyhow::Result<DamonContext> {
    Ok(DamonContext {
        is_paused: false,
        ..lower::context(context, pids, &ram_of(context)?)?
    })
}

/// Turns a kdamond on for each context, of the live processes, with its schemes held: `Acting` releases them if they
/// act. A process that ends meanwhile makes the whole start fail, which is then repeated.
fn turn_on(
    claim: &mut Claim<DirectoryTree>,
    begun: &mut [(&ContextSpec, Watched, Vec<Item>)],
    now: Nanos,
    has_trace: bool,
) -> anyhow::Result<Vec<DamonContext>> {
    let mut nr_tries = 0;
    loop {
        let mut contexts = Vec::new();
        for (context, watched, items) in &mut *begun {
            let pids = watched.update(now, items)?;
            let mut lowered = live_context(context, &pids)?;
            lowered.schemes = held(&lowered.schemes);
            if !has_trace {
                lowered.schemes.push(watcher());
            }
            contexts.push(lowered);
        }
        nr_tries += 1;
        match claim.start(&contexts) {
            Ok(()) => return Ok(contexts),
            Err(DamonError::Refused { .. }) if nr_tries < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the files that a session would write in DAMON's tree, with their texts and in order, on a kernel that has
/// everything. Nothing is read or written. Processes that are given by name are left out, and physical memory has no
/// ranges but given ones.
///
/// # Errors
/// Fails if the session asks for something that the kernel's DAMON cannot do.
pub fn kernel_plan(spec: &SessionSpec) -> anyhow::Result<Vec<(String, String)>> {
    let contexts = spec.contexts.iter().map(|context| {
        let pids = context.targets.processes().iter();
        let pids: Vec<u32> = pids
            .filter_map(|process| match process {
                ProcessSpec::Pid(pid) => Some(*pid),
                ProcessSpec::Name(_) => None,
            })
            .collect();
        lower::context(context, &pids, &context.ranges)
    });
    let contexts: Vec<DamonContext> = contexts.collect::<anyhow::Result<_>>()?;
    let writes = isotherm_damon::plan(&contexts).into_iter();
    Ok(writes
        .map(|write| (write.path.to_string(), write.value))
        .collect())
}

fn ram_of(context: &ContextSpec) -> anyhow::Result<Vec<AddressRange>> {
    match &context.targets {
        TargetSpec::Physical { node, .. } => {
            let ram = ram(*node, &context.ranges)?;
            let is_whole = context.ranges.is_empty();
            Ok(match &context.monitor {
                MonitorSpec::Regions(attributes) if is_whole => {
                    lower::in_pieces(&ram, attributes.min_nr_regions)
                }
                _ => ram,
            })
        }
        _ => Ok(Vec::new()),
    }
}

fn watched(
    context: &ContextSpec,
    files: u64,
    child: &mut Option<std::process::Child>,
    notes: &mut Vec<String>,
) -> anyhow::Result<Watched> {
    if context.targets.is_physical() {
        return Ok(Watched::Physical { is_told: false });
    }
    let group = group_of(&context.targets)?;
    let probe = PageTableProbe::new()
        .map_err(host::explain)
        .context("cannot follow processes")?;
    let wanted = wanted(&context.targets, group, child, notes)?;
    let mut set = TargetSet::new(wanted, context.ranges.clone(), files);
    set.samples_addresses = true;
    Ok(Watched::Processes {
        probe: Box::new(probe),
        set: Box::new(set),
    })
}
