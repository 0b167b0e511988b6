//! Parts of a session at its start, in every world: its monitor, the processes that it watches, RAM.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{ProcessSpec, TargetSpec, ThpPolicy};
use isotherm_engine::AddressRange;
use isotherm_linux::{cgroup, node, process, thp};

use crate::monitor::Monitor;
use crate::targets::Wanted;

pub(crate) struct Started {
    pub(crate) monitor: Box<dyn Monitor>,
    /// Process of the command, if the session starts one.
    pub(crate) child: Option<Child>,
    pub(crate) notes: Vec<String>,
}

/// Returns the RAM of a node, or of all, within `limits` if there are any.
pub(crate) fn ram(node: Option<u32>, limits: &[AddressRange]) -> anyhow::Result<Vec<AddressRange>> {
    let mut ranges = node::ram(node)?;
    if !limits.is_empty() {
        ranges = AddressRange::within(ranges, limits);
        ranges.sort_unstable();
        if ranges.is_empty() {
            bail!("there is no RAM within the ranges given; see /proc/iomem");
        }
    }
    Ok(ranges)
}

/// Returns the directory of the control group that is watched, if it is one.
pub(crate) fn group_of(targets: &TargetSpec) -> anyhow::Result<Option<PathBuf>> {
    Ok(match targets {
        TargetSpec::Cgroup(path) => Some(cgroup::find(path)?),
        _ => None,
    })
}

/// Returns the processes to watch; starts the command if there is one.
pub(crate) fn wanted(
    targets: &TargetSpec,
    group: Option<PathBuf>,
    child: &mut Option<Child>,
    notes: &mut Vec<String>,
) -> anyhow::Result<Wanted> {
    let children = targets.follows_children();
    Ok(match (targets, group) {
        (_, Some(directory)) => Wanted::Cgroup(directory),
        (
            TargetSpec::Command {
                command,
                is_silent,
                thp,
                ..
            },
            None,
        ) => {
            let started = child.insert(spawn(command, *is_silent, children, *thp)?);
            Wanted::Processes {
                pids: Vec::new(),
                command: Some(started.id()),
                children,
            }
        }
        (TargetSpec::All { exclude } | TargetSpec::Physical { exclude, .. }, None) => Wanted::All {
            exclude: exclude.clone(),
        },
        (targets, None) => Wanted::Processes {
            pids: pids(targets.processes(), notes)?,
            command: None,
            children,
        },
    })
}

impl Started {
    pub(crate) fn of(monitor: Box<dyn Monitor>) -> Self {
        Self {
            monitor,
            child: None,
            notes: Vec::new(),
        }
    }
}

fn spawn(
    command: &[OsString],
    is_silent: bool,
    children: bool,
    policy: ThpPolicy,
) -> anyhow::Result<Child> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    if is_silent {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
    }
    if children {
        // Processes whose parents end become our children, and are found by that.
        nix::sys::prctl::set_child_subreaper(true)
            .context("cannot become the parent of the command's orphans")?;
    }
    let started = thp::started_with(policy, || command.spawn())?;
    started.with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

/// Returns the ids of the named processes, each once. If several have one name, `notes` lists them.
///
/// # Errors
/// Fails if no process has one of the names.
pub fn pids(processes: &[ProcessSpec], notes: &mut Vec<String>) -> anyhow::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for process in processes {
        match process {
            ProcessSpec::Pid(pid) => pids.push(*pid),
            ProcessSpec::Name(name) => {
                let found = process::named(name);
                ensure!(
                    !found.is_empty(),
                    "no process is named '{name}'; `ps -eo pid,comm` lists names"
                );
                if found.len() > 1 {
                    let list: Vec<String> = found.iter().map(u32::to_string).collect();
                    notes.push(format!(
                        "'{name}' is {} processes: {}",
                        list.len(),
                        list.join(", ")
                    ));
                }
                pids.extend(found);
            }
        }
    }
    let mut seen = BTreeSet::new();
    pids.retain(|pid| seen.insert(*pid));
    Ok(pids)
}
