//! The metrics of goals and watermarks, read from this machine.

use std::fs;

use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::{cgroup, pressure};
use isotherm_policy::scheme::{LruMemory, Metric, NodeUsage, SystemFacts};

/// Returns the metrics in `wanted`, and no more. A metric that cannot be read stays unknown.
pub(super) fn facts(wanted: &[Metric]) -> SystemFacts {
    let mut facts = SystemFacts::default();
    for metric in wanted {
        match metric {
            Metric::FreeMem => {
                let memory = Meminfo::read();
                facts.free_mem_permil = memory
                    .get("MemTotal")
                    .zip(memory.get("MemFree"))
                    .filter(|(total, _)| *total > 0)
                    .map(|(total, free)| (free * 1000 / total) as u32);
            }
            Metric::SomeMemPsi => {
                facts.some_mem_psi_total_us = pressure::some_memory_us(None);
            }
            Metric::Node(node) => {
                let memory = Meminfo::of_node(*node);
                if let (Some(total), Some(free)) = (memory.get("MemTotal"), memory.get("MemFree")) {
                    facts.nodes.insert(*node, NodeUsage { total, free });
                }
            }
            Metric::NodeMemcg(node, path) => {
                if let Some(bytes) = memcg_on_node(path, *node) {
                    facts.node_memcg_used.insert((*node, path.clone()), bytes);
                }
            }
            Metric::Lru => {
                let memory = Meminfo::read();
                facts.lru = memory
                    .get("Active")
                    .zip(memory.get("Inactive"))
                    .map(|(active, inactive)| LruMemory { active, inactive });
            }
            // This metric is of the snapshots, not of the machine: see `eligible`.
            Metric::Eligible(..) => {}
        }
    }
    facts
}

/// Returns the memory of a control group on a node: anonymous and file memory of `memory.numa_stat`.
fn memcg_on_node(path: &str, node: u32) -> Option<u64> {
    let group = cgroup::find(path.as_ref()).ok()?;
    let text = fs::read_to_string(group.join("memory.numa_stat")).ok()?;
    let of = |kind: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(kind))?;
        let field = line
            .split(' ')
            .find_map(|word| word.strip_prefix(&format!("N{node}=")))?;
        field.parse::<u64>().ok()
    };
    Some(of("anon")? + of("file")?)
}
