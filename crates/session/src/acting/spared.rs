//! Who is watched, but not acted on, where all of the machine is: the processes that this one was started
//! from. Were the user's shell paged out, the answer to ctrl-C would wait for swap.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::TargetId;
use isotherm_linux::process;
use isotherm_record::{Item, TargetStart};

/// The processes that are watched and not acted on.
#[derive(Debug, Default)]
pub(super) struct Spared {
    pids: BTreeSet<u32>,
    /// Those that are targets, with their names.
    targets: BTreeMap<TargetId, String>,
    is_told: bool,
}

impl Spared {
    /// The terminal, the shell and what else is between the first process and us.
    pub(super) fn who_started_us() -> Self {
        Self {
            pids: process::ancestors().into_iter().collect(),
            ..Self::default()
        }
    }

    /// Whether a process that appears among the targets is one of them.
    pub(super) fn takes(&mut self, start: &TargetStart) -> bool {
        let takes = self.pids.contains(&start.pid);
        if takes {
            let name = format!("{} ({})", start.name, start.pid);
            self.targets.insert(start.target, name);
        }
        takes
    }

    /// Whether a target is one of them.
    pub(super) fn has(&self, target: TargetId) -> bool {
        self.targets.contains_key(&target)
    }

    /// `target` is no more.
    pub(super) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// What is acted on, said once.
    pub(super) fn note(&mut self, start: &TargetStart) -> Option<Item> {
        if std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        Some(Item::Note {
            time: start.time,
            text: self.text(),
        })
    }

    fn text(&self) -> String {
        let names: Vec<&str> = self.targets.values().map(String::as_str).collect();
        let but = if names.is_empty() {
            "isotherm itself".to_owned()
        } else {
            format!("isotherm itself and who started it: {}", names.join(", "))
        };
        format!(
            "all processes of the machine are acted on, those that come as well, but kernel threads, {but}; \
             --exclude leaves out more"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_started_us_is_spared_and_named() {
        let mut spared = Spared::who_started_us();
        let parent = std::os::unix::process::parent_id();
        let start = |target, pid| TargetStart {
            target: TargetId(target),
            pid,
            name: "sh".to_owned(),
            ..TargetStart::default()
        };
        assert!(spared.takes(&start(3, parent)));
        assert!(
            !spared.takes(&start(4, std::process::id())),
            "no target at all"
        );
        assert!(spared.has(TargetId(3)) && !spared.has(TargetId(4)));
        assert!(spared.text().contains(&format!("sh ({parent})")));
        spared.forget(TargetId(3));
        assert!(!spared.has(TargetId(3)));
    }
}
