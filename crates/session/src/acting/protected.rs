//! Processes that are watched but protected from acting, where the whole machine is acted on: those that this one was
//! started from. If the user's shell were paged out, the answer to Ctrl-C would wait for swap.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::TargetId;
use isotherm_linux::process;
use isotherm_record::{Item, TargetStart};

#[derive(Debug, Default)]
pub(super) struct Protected {
    pids: BTreeSet<u32>,
    targets: BTreeMap<TargetId, String>,
    is_told: bool,
}

impl Protected {
    /// Returns the terminal, the shell and the other processes between the first process and this one.
    pub(super) fn who_started_us() -> Self {
        Self {
            pids: process::ancestors().into_iter().collect(),
            ..Self::default()
        }
    }

    pub(super) fn takes(&mut self, start: &TargetStart) -> bool {
        let takes = self.pids.contains(&start.pid);
        if takes {
            let name = format!("{} ({})", start.name, start.pid);
            self.targets.insert(start.target, name);
        }
        takes
    }

    pub(super) fn has(&self, target: TargetId) -> bool {
        self.targets.contains_key(&target)
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// Returns a note on the processes that are acted on, once.
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
        let mut protected = Protected::who_started_us();
        let parent = std::os::unix::process::parent_id();
        let start = |target, pid| TargetStart {
            target: TargetId(target),
            pid,
            name: "sh".to_owned(),
            ..TargetStart::default()
        };
        assert!(protected.takes(&start(3, parent)));
        let us = start(4, std::process::id());
        assert!(!protected.takes(&us), "no target at all");
        assert!(protected.has(TargetId(3)) && !protected.has(TargetId(4)));
        assert!(protected.text().contains(&format!("sh ({parent})")));
        protected.forget(TargetId(3));
        assert!(!protected.has(TargetId(3)));
    }
}
