//! A goal for memory: schemes page out until it is reached, and resume when it is missed again.

use anyhow::{Context as _, ensure};
use isotherm_config::{ContextSpec, MemoryGoal, TargetSpec};
use isotherm_linux::cgroup;
use isotherm_linux::meminfo::Meminfo;

use std::path::PathBuf;

#[derive(Debug)]
pub(super) enum GoalMeter {
    Save(u64),
    KeepFree(f64, Place),
}

#[derive(Debug)]
pub(super) enum Place {
    Machine,
    Node(u32),
    /// A control group, up to its limit.
    Group(PathBuf),
}

impl GoalMeter {
    pub(super) fn new(context: &ContextSpec) -> anyhow::Result<Option<Self>> {
        let goal = context.acting.as_ref().and_then(|acting| acting.goal);
        Ok(match goal {
            None => None,
            Some(MemoryGoal::Save(bytes)) => Some(Self::Save(bytes)),
            Some(MemoryGoal::KeepFree(share)) => {
                Some(Self::KeepFree(share, place(&context.targets)?))
            }
        })
    }

    /// Returns the bytes left to page out, if `out` bytes were paged out and not read back; `None` if not known.
    pub(super) fn room(&self, out: u64) -> Option<u64> {
        match self {
            Self::Save(bytes) => Some(bytes.saturating_sub(out)),
            Self::KeepFree(share, place) => {
                let (total, free) = place.memory()?;
                let wanted = (total as f64 * share) as u64;
                Some(wanted.saturating_sub(free))
            }
        }
    }
}

impl Place {
    fn memory(&self) -> Option<(u64, u64)> {
        let of = |memory: Meminfo| Some((memory.get("MemTotal")?, memory.get("MemFree")?));
        match self {
            Self::Machine => of(Meminfo::read()),
            Self::Node(node) => of(Meminfo::of_node(*node)),
            Self::Group(group) => {
                let (limit, used) = cgroup::memory(group)?;
                Some((limit, limit.saturating_sub(used)))
            }
        }
    }
}

fn place(targets: &TargetSpec) -> anyhow::Result<Place> {
    Ok(match targets {
        TargetSpec::Cgroup(path) => {
            let group = cgroup::find(path)?;
            ensure!(
                cgroup::memory(&group).is_some(),
                "--keep-free: control group {} has no memory limit, nor has one above it, so nothing says what \
                 is free of it; set one (memory.max), or say how much is to be saved (--save)",
                path.display()
            );
            Place::Group(group)
        }
        TargetSpec::Physical {
            node: Some(node), ..
        } => {
            let memory = Place::Node(*node).memory();
            memory
                .with_context(|| format!("--keep-free: cannot read what is free on node {node}"))?;
            Place::Node(*node)
        }
        _ => Place::Machine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_to_be_paged_out() {
        let save = GoalMeter::Save(100);
        let room = [0, 60, 100, 500].map(|out| save.room(out));
        assert_eq!(room, [100, 40, 0, 0].map(Some));
        let nothing = GoalMeter::KeepFree(0.0, Place::Machine);
        assert_eq!(nothing.room(0), Some(0));
        let all = GoalMeter::KeepFree(1.0, Place::Machine).room(0);
        assert!(all > Some(0), "something is in use: {all:?}");
        let nowhere = GoalMeter::KeepFree(0.5, Place::Node(u32::MAX));
        assert_eq!(nowhere.room(0), None);
    }
}
