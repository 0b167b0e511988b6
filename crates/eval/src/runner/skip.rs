//! Workloads and configurations of an experiment that cannot run here, with the reasons.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use isotherm_engine::units::format_bytes;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::node;

use super::{cgroup, settings};
use crate::experiment::FLOOR_BYTES;
use crate::{Experiment, RunConfiguration, Workload};

/// Returns the workloads and configurations of the experiment that cannot run here, by name, with the reasons.
pub fn skips(experiment: &Experiment) -> Vec<(String, String)> {
    let nodes = too_few_nodes(experiment.nodes);
    let available = Meminfo::read().get("MemAvailable");
    let workloads = experiment.workloads.iter().filter_map(|workload| {
        let why = missing(workload)
            .or_else(|| nodes.clone())
            .or_else(|| too_little_memory(experiment, workload, available))
            .or_else(|| workload.cgroup.then(cgroup::lacks).flatten())?;
        Some((workload.name.clone(), why))
    });
    let record = std::cell::LazyCell::new(isotherm_linux::host::can_record);
    let configurations = experiment.configurations.iter();
    let configurations = configurations.filter_map(|configuration| {
        let why = attaches(configuration)
            .then(|| record.as_ref().err().cloned())
            .flatten()
            .or_else(|| settings::lacks(&configuration.all_settings()))?;
        Some((configuration.name.clone(), why))
    });
    workloads.chain(configurations).collect()
}

fn missing(workload: &Workload) -> Option<String> {
    let programs = workload.requires.iter().map(String::as_str);
    let missing: Vec<&str> = programs.filter(|program| !is_installed(program)).collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
}

fn too_few_nodes(wanted: u32) -> Option<String> {
    let there = node::count();
    (there < wanted as usize).then(|| {
        format!(
            "it moves memory between nodes and needs {wanted} with memory; this machine has {there} \
             (`isotherm reproduce tiering` simulates such a machine)"
        )
    })
}

fn too_little_memory(
    experiment: &Experiment,
    workload: &Workload,
    available: Option<u64>,
) -> Option<String> {
    let wanted = match workload.memory_bytes(&experiment.parameters) {
        Ok(0) => return None,
        Ok(wanted) => wanted,
        Err(why) => return Some(why),
    };
    let available = available?;
    let is_enough = available.saturating_sub(FLOOR_BYTES) >= wanted;
    let by = workload.memory.as_deref().unwrap_or_default();
    let hint = if by.contains('$') {
        let names = experiment.parameters.keys();
        let names = names.map(|name| format!("--set {name}=..."));
        format!("; less may do: {}", names.collect::<Vec<_>>().join(" "))
    } else {
        String::new()
    };
    (!is_enough).then(|| {
        format!(
            "it takes {}, and {} stay free in any case, but {} are available{hint}",
            format_bytes(wanted),
            format_bytes(FLOOR_BYTES),
            format_bytes(available)
        )
    })
}

fn attaches(configuration: &RunConfiguration) -> bool {
    let arguments = configuration.isotherm.as_deref();
    configuration.tune.is_some()
        || arguments.is_some_and(|arguments| !arguments.trim_start().starts_with("compact"))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps PostgreSQL's server out of the PATH, and some daemons in folders that only root's PATH has.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|folder| {
        let file = fs::metadata(folder.join(program));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}
