//! Turns a specification into monitors on this machine. Everything that can be refused is refused before a command
//! starts.

pub(crate) mod parts;

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{ContextSpec, MonitorSpec, SessionSpec, TargetSpec, World};
use isotherm_engine::drive::MonitorLoop;
use isotherm_engine::{AddressRange, BudgetShares, Intervals, Nanos};
use isotherm_linux::host;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::raise_file_limit;
use isotherm_record::Header;
use isotherm_record::stacks::STACKS_SETTING;

use crate::messages::operations;
use crate::monitor::{
    ByFrame, CacheView, Contexts, FIRST_PROCESS, GroupCache, MachineView, Pages, Physical,
    Simulated, VirtualMemory,
};
use crate::targets::TargetSet;
use parts::{Started, group_of, ram, wanted};

/// Starts the monitors of all contexts, combined into one.
pub(crate) fn start(spec: &SessionSpec, now: Nanos) -> anyhow::Result<Started> {
    if spec.world != World::Linux {
        return crate::kernel::start(spec, now);
    }
    if let [context] = &spec.contexts[..] {
        return monitor(context, 1, now);
    }
    ensure!(!spec.contexts.is_empty(), "a session without a context");
    let (mut monitors, mut notes) = (Vec::new(), Vec::new());
    for (at, context) in spec.contexts.iter().enumerate() {
        let name = context.name_or(at);
        ensure!(
            !matches!(context.targets, TargetSpec::Command { .. }),
            "{name}: a command is its session's only target"
        );
        let started = monitor(context, spec.contexts.len(), now);
        let started = started.with_context(|| format!("{name} cannot be started"))?;
        notes.extend(started.notes);
        monitors.push((name, started.monitor));
    }
    Ok(Started {
        monitor: Box::new(Contexts::new(monitors)),
        child: None,
        notes,
    })
}

/// Starts the monitor of one of `nr` contexts.
fn monitor(context: &ContextSpec, nr: usize, now: Nanos) -> anyhow::Result<Started> {
    match (&context.targets, &context.monitor) {
        (TargetSpec::Simulated, MonitorSpec::Regions(attributes)) => {
            let monitor = Simulated::new(*attributes)?;
            Ok(Started::of(Box::new(monitor)))
        }
        (TargetSpec::Physical { node, .. }, MonitorSpec::Regions(attributes)) => {
            let ram = ram(*node, &context.ranges)?;
            let monitor = Physical::new(ram, *attributes, nr)?;
            Ok(Started::of(Box::new(monitor)))
        }
        (TargetSpec::Simulated, how) => {
            bail!(
                "a simulated process is watched by regions, not by {}",
                how.name()
            )
        }
        _ => virtual_memory(context, nr, now),
    }
}

fn virtual_memory(context: &ContextSpec, nr: usize, now: Nanos) -> anyhow::Result<Started> {
    let memory = match &context.targets {
        TargetSpec::Physical { node, .. } => Some(ram(*node, &context.ranges)?),
        _ => None,
    };
    let group = group_of(&context.targets)?;
    let probe = PageTableProbe::new().map_err(host::explain)?;
    let (mut child, mut notes) = (None, Vec::new());
    let wanted = wanted(&context.targets, group.clone(), &mut child, &mut notes)?;
    // The limit is raised after the start of the command, which must keep its own.
    let files = raise_file_limit() / nr.max(1) as u64;
    let mut set = TargetSet::new(wanted, context.ranges.clone(), files);
    if memory.is_some() {
        // The ranges are of RAM.
        set.limits.clear();
        set.next = FIRST_PROCESS;
    }
    match &context.monitor {
        MonitorSpec::Regions(_) => set.samples_addresses = true,
        MonitorSpec::Tables(attributes) => set.admit_within(attributes.cpu_budget),
        MonitorSpec::Pages(_) => {}
    }
    let acts = context.acting.is_some();
    let mut monitor = match context.monitor {
        MonitorSpec::Tables(mut attributes) => {
            if memory.is_some() && !acts {
                // The record holds no regions of processes.
                attributes.max_nr_regions = 1;
            }
            MonitorLoop::tables(attributes, shares(&context.targets), now)
        }
        MonitorSpec::Regions(attributes) => MonitorLoop::regions(attributes)?,
        MonitorSpec::Pages(attributes) => {
            let group = group.filter(|_| attributes.counts_once);
            let cache = group.and_then(|group| group_cache(&group, now, &mut notes));
            let mut monitor = Pages::new(probe, set, attributes).with_group_cache(cache);
            monitor.is_machine = context.targets.is_machine();
            if let Some(ram) = &memory {
                monitor = monitor.told_by_frame(ByFrame::new(ram, usize::MAX, now), acts);
            }
            return Ok(Started {
                monitor: Box::new(monitor),
                child,
                notes,
            });
        }
    };
    if let Some(acting) = &context.acting {
        monitor.tell_idle_pages(acting.limits.page_ages());
    }
    let machine = if context.targets.is_machine() {
        machine_view(context, memory.as_deref(), now, &mut notes)?
    } else if matches!(context.monitor, MonitorSpec::Tables(_)) {
        let view = frames_once(&context.targets, now, &mut notes);
        view.map(|view| view.of_group(group, nr > 1))
    } else {
        None
    };
    let monitor = VirtualMemory {
        probe,
        targets: set,
        monitor,
        machine,
        unrecorded: acts.then(Vec::new),
    };
    Ok(Started {
        monitor: Box::new(monitor),
        child,
        notes,
    })
}

fn shares(targets: &TargetSpec) -> BudgetShares {
    match targets {
        TargetSpec::Physical { .. } => BudgetShares::FRAMES,
        TargetSpec::All { .. } => BudgetShares::MACHINE,
        targets if may_share(targets) => BudgetShares::GROUP,
        _ => BudgetShares::PROCESSES,
    }
}

/// Whether several processes are watched, which may map the same memory.
fn may_share(targets: &TargetSpec) -> bool {
    targets.follows_children() || targets.processes().len() > 1
}

/// Returns a view that counts each frame of the targets once; `None` if frames cannot be read.
fn frames_once(targets: &TargetSpec, now: Nanos, notes: &mut Vec<String>) -> Option<MachineView> {
    match MachineView::new(now) {
        Ok(view) => Some(view),
        Err(error) if may_share(targets) => {
            notes.push(format!(
                "memory that several processes map counts for each: {error:#}"
            ));
            None
        }
        Err(_) => None,
    }
}

/// Returns the view of a group's page cache; `None` if this kernel does not let it be read.
fn group_cache(group: &Path, now: Nanos, notes: &mut Vec<String>) -> Option<GroupCache> {
    let cache = GroupCache::new(now, group);
    if let Err(error) = &cache {
        notes.push(format!("the page cache's ages are not known: {error:#}"));
    }
    cache.ok()
}

/// Returns the view of the machine's memory if all of it is watched by tables. The page cache is included where this
/// kernel lets it be read; `memory` is the part that is recorded by frame.
fn machine_view(
    context: &ContextSpec,
    memory: Option<&[AddressRange]>,
    now: Nanos,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<MachineView>> {
    let MonitorSpec::Tables(attributes) = &context.monitor else {
        return Ok(None);
    };
    let mut view = MachineView::new(now)?;
    match CacheView::new(now) {
        Ok(page_cache) => view.page_cache = Some(page_cache),
        Err(error) => notes.push(format!("the page cache's ages are not known: {error}")),
    }
    let Some(ram) = memory else {
        return Ok(Some(view));
    };
    let by_frame = ByFrame::new(ram, attributes.max_nr_regions as usize, now);
    let is_part = !context.ranges.is_empty();
    Ok(Some(view.told_by_frame(ram, by_frame, is_part)))
}

pub(crate) fn header(
    spec: &SessionSpec,
    command_line: Vec<String>,
    intervals: Intervals,
    now: Nanos,
) -> Header {
    let mut settings = std::collections::BTreeMap::new();
    for context in &spec.contexts {
        // A single context is not named, so that its records look as they always did.
        let name = context.name.as_ref();
        let prefix = name.map_or_else(String::new, |name| format!("{name}: "));
        let of_it = settings_of(context, spec);
        settings.extend(of_it.map(|(key, value)| (prefix.clone() + key, value)));
    }
    let is_by_page = |context: &ContextSpec| matches!(context.monitor, MonitorSpec::Pages(_));
    if spec.contexts.iter().any(is_by_page) {
        settings.insert("granularity".to_owned(), "page".to_owned());
    }
    if let Some(stacks) = &spec.stacks {
        settings.insert(STACKS_SETTING.to_owned(), stacks.cpu_budget.to_string());
    }
    Header {
        writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
        host: host::hostname(),
        kernel: host::kernel_release(),
        command: command_line,
        started: now,
        operations: operations(spec),
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        update_interval: intervals.update,
        settings,
    }
}

fn settings_of(
    context: &ContextSpec,
    spec: &SessionSpec,
) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let method = match context.targets {
        TargetSpec::Simulated => "simulated",
        _ if spec.world == World::Kernel => "kernel DAMON",
        _ if spec.world == World::Attached => "kernel DAMON of others",
        _ => context.monitor.name(),
    };
    let budget = context.monitor.cpu_budget();
    let budget = budget.map(|share| ("cpu_budget", share.to_string()));
    [
        ("method", method.to_owned()),
        ("seed", spec.seed.to_string()),
    ]
    .into_iter()
    .chain(budget)
}
