//! Derives from the checks the commands that work here, and the remedies for others.

use std::fs;
use std::io;
use std::path::Path;

use isotherm_policy::Refusal;

use super::{Ability, Check, CheckOutcome, kernel_release};
use crate::node;
use crate::privileges;
use crate::swap;

pub(super) fn abilities(checks: &[Check]) -> Vec<Ability> {
    let lacking = |needed: &[&str]| {
        let lacking: Vec<&str> = checks
            .iter()
            .filter(|check| check.outcome == CheckOutcome::Missing && needed.contains(&check.name))
            .map(|check| check.name)
            .collect();
        // The checks above already state the details of each.
        (!lacking.is_empty()).then(|| format!("missing: {}", lacking.join(", ")))
    };
    let watching = ["architecture", "page tables by BPF", "process_madvise"];
    let physical = [&watching[..], &["physical memory map"]].concat();
    let watches = || lacking(&watching);
    [
        ("record, top (processes, control groups)", watches()),
        ("record --pages", watches()),
        ("record --physical", lacking(&physical)),
        ("run, start", watches()),
        (
            "run, start: paging out anonymous memory",
            watches().or_else(swap_lacks),
        ),
        ("swap", zram_lacks()),
        ("compact", compaction_lacks()),
        (
            "tier plan (of this machine), run: moving memory between nodes",
            lacking(&physical).or_else(nodes_lack),
        ),
        (
            "report, convert, workload, simulate, reproduce, compact --dry-run, top --replay",
            None,
        ),
    ]
    .into_iter()
    .map(|(name, why_not)| Ability {
        name,
        works: why_not.is_none(),
        why_not,
    })
    .collect()
}

fn swap_lacks() -> Option<String> {
    let why = match swap::facts().refusal()? {
        Refusal::NoSwap => "there is no swap; `isotherm swap zram --size 4G` makes some in memory",
        _ => "swap is full but for what is kept for the system; make more",
    };
    Some(why.into())
}

fn zram_lacks() -> Option<String> {
    if !privileges::may_swap() {
        return Some("root (CAP_SYS_ADMIN) is needed to swap on".into());
    }
    let may_come = || Path::new("/sys/class/zram-control").exists() || is_module("zram.ko");
    (!may_come()).then(|| "this kernel has no zram (CONFIG_ZRAM)".into())
}

/// Whether the running kernel has a loadable module, or has it built in.
fn is_module(file: &str) -> bool {
    let directory = Path::new("/lib/modules").join(kernel_release());
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        let list = fs::read_to_string(directory.join(list)).unwrap_or_default();
        list.lines().any(|line| line.contains(&format!("/{file}")))
    })
}

fn compaction_lacks() -> Option<String> {
    let file = "/sys/devices/system/node/node0/compact";
    let error = may_write(file).err()?;
    Some(match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "{file} is not there: a kernel with CONFIG_COMPACTION and CONFIG_NUMA is needed"
            )
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{file} is read-only here; run it outside of the container")
        }
        _ => format!("{file} cannot be written ({error}); run as root"),
    })
}

fn nodes_lack() -> Option<String> {
    (node::count() < 2).then(|| {
        "this machine has one memory node; `tier plan --topology` plans for another machine".into()
    })
}

/// Checks the permission without opening the file: opening some files for writing has an effect already.
fn may_write(path: &str) -> io::Result<()> {
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
}

#[cfg(test)]
mod tests {
    use super::super::missing;
    use super::*;

    #[test]
    fn why_something_does_not_work_is_told_by_name_only() {
        let checks = [missing("page tables by BPF", "a page of text", "root")];
        let abilities = abilities(&checks);
        let of = |name| abilities.iter().find(|a| a.name == name).expect("there");
        let why_not = of("run, start").why_not.as_deref();
        assert_eq!(why_not, Some("missing: page tables by BPF"));
        for command in ["run", "swap", "compact", "tier"] {
            let is_told = abilities.iter().any(|a| a.name.starts_with(command));
            assert!(is_told, "{command}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_from_what_may_not_be_written() {
        let of = |path| may_write(path).map_err(|error| error.kind());
        assert_eq!(of("/proc/self/comm"), Ok(()));
        assert_eq!(of("/proc/no-such-file"), Err(io::ErrorKind::NotFound));
    }
}
