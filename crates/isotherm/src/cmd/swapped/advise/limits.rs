//! Limits of control groups on swap, and those that would stop a policy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use isotherm_engine::units::format_bytes;
use serde::Serialize;

/// Version 1 counts memory and swap together, so that paging out does not change its sum.
const FILES: [&str; 4] = [
    "memory.swap.max",
    "memory.zswap.max",
    "memory.zswap.writeback",
    "memory.memsw.limit_in_bytes",
];

/// A limit of a group, or of one above it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GroupSwapLimit {
    /// The limit's file.
    #[cfg_attr(test, schemars(with = "String"))]
    file: PathBuf,
    value: String,
    /// Way in which it stops the policy; `null` if it does not.
    stops: Option<String>,
}

impl GroupSwapLimit {
    pub(super) fn text(&self) -> String {
        let effect = self.stops.as_deref().unwrap_or("does not stop the policy");
        format!("{} is {}: {effect}\n", self.file.display(), self.value)
    }
}

/// Returns the limits of these groups and of those above them; `need` is the least swap that is needed.
pub(super) fn of_groups(
    groups: impl Iterator<Item = PathBuf>,
    need: Option<u64>,
) -> Vec<GroupSwapLimit> {
    let mut seen = BTreeSet::new();
    let mut limits = Vec::new();
    for group in groups {
        let is_group = |at: &&Path| at.join("cgroup.procs").is_file();
        for at in group.ancestors().take_while(is_group) {
            if seen.insert(at.to_owned()) {
                limits.extend(FILES.iter().filter_map(|name| limit(at, name, need)));
            }
        }
    }
    limits
}

fn limit(group: &Path, name: &str, need: Option<u64>) -> Option<GroupSwapLimit> {
    let file = group.join(name);
    let mut value = fs::read_to_string(&file).ok()?.trim().to_owned();
    if value.parse::<u64>().is_ok_and(|bytes| bytes >= 1 << 62) {
        // No limit, in version 1.
        "max".clone_into(&mut value);
    }
    let need = |most: u64| need.filter(|need| *need > most).map(format_bytes);
    let stops = match (name, value.parse::<u64>().ok()) {
        ("memory.swap.max", Some(0)) => Some("nothing can be paged out".to_owned()),
        ("memory.swap.max", Some(most)) => {
            need(most).map(|need| format!("at least {need} are needed"))
        }
        ("memory.zswap.max", Some(0)) => Some("zswap takes nothing: all goes to the disk".into()),
        ("memory.zswap.writeback", Some(0)) => {
            Some("zswap writes nothing to the disk: a full pool ends paging out".into())
        }
        _ => None,
    };
    Some(GroupSwapLimit { file, value, stops })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_stop_a_policy_are_named() {
        let top = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("cgroup.procs", ""),
            ("memory.swap.max", "1048576\n"),
            ("memory.zswap.max", "max\n"),
            ("memory.zswap.writeback", "0\n"),
        ] {
            fs::write(top.path().join(name), text).expect("written");
        }
        let stop = |need| {
            let found = of_groups([top.path().to_owned()].into_iter(), need);
            found
                .iter()
                .map(|of| of.stops.is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(stop(Some(4 << 20)), [true, false, true]);
        assert_eq!(stop(None), [false, false, true]);
        fs::write(top.path().join("memory.swap.max"), "0\n").expect("written");
        assert_eq!(stop(None), [true, false, true]);
    }
}
