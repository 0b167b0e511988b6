//! Kernel settings that configurations change, and their values before.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, bail};

use crate::experiment::{THP, setting_path};

/// Changed settings, by file, with the value before.
#[derive(Debug, Default)]
pub(super) struct Settings {
    before: BTreeMap<String, String>,
}

impl Settings {
    pub(super) fn of_note<'a>(text: &'a str) -> Self {
        let pair = |line: &'a str| {
            // Earlier versions wrote `thp WORD`.
            let thp = line.strip_prefix("thp ").map(|word| (THP, word));
            thp.or_else(|| line.strip_prefix("setting ")?.split_once(' '))
        };
        let pairs = text.lines().filter_map(pair);
        // The note may have been written by another program.
        let ours = pairs.filter(|(path, _)| setting_path(path).is_some());
        Self {
            before: ours
                .map(|(path, value)| (path.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.before.is_empty()
    }

    pub(super) fn note(&self) -> String {
        let lines = self.before.iter();
        let lines = lines.map(|(path, value)| ["setting ", path, " ", value, "\n"].concat());
        lines.collect()
    }

    /// Remembers the settings that `wanted` will change. Returns whether one of them is new.
    pub(super) fn remember(&mut self, wanted: &BTreeMap<String, String>) -> anyhow::Result<bool> {
        let mut is_new = false;
        for (name, value) in wanted {
            let path = path_of(name)?;
            let now = read(&path)?;
            if now != *value && !self.before.contains_key(&path) {
                self.before.insert(path, now);
                is_new = true;
            }
        }
        Ok(is_new)
    }

    /// Sets the `wanted` settings, and all others to their values before. That of huge pages comes first: it makes the
    /// kernel raise `vm.min_free_kbytes`.
    pub(super) fn apply(&self, wanted: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let mut values = self.before.clone();
        for (name, value) in wanted {
            values.insert(path_of(name)?, value.clone());
        }
        let mut values: Vec<_> = values.iter().collect();
        values.sort_by_key(|(path, _)| *path != THP);
        for (path, value) in values {
            write(path, value)?;
        }
        Ok(())
    }

    pub(super) fn undo(&self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        let mut before: Vec<_> = self.before.iter().collect();
        before.sort_by_key(|(path, _)| *path != THP);
        for (path, value) in before {
            // A failure must not prevent the others.
            outcome = outcome.and(write(path, value));
        }
        outcome
    }
}

/// Returns the reason why a setting cannot be changed here, if there is one.
pub(super) fn lacks(wanted: &BTreeMap<String, String>) -> Option<String> {
    wanted.iter().find_map(|(name, value)| {
        let path = match path_of(name) {
            Ok(path) => path,
            Err(error) => return Some(format!("{error:#}")),
        };
        match read(&path) {
            Ok(now) if now == *value => None,
            Ok(_) => {
                let file = fs::OpenOptions::new().write(true).open(&path);
                let error = file.err()?;
                Some(format!("cannot write {path}: {error}; are you root?"))
            }
            Err(_) => Some(format!("this kernel has no {path}")),
        }
    })
}

fn path_of(name: &str) -> anyhow::Result<String> {
    match setting_path(name) {
        Some(path) => Ok(path),
        None => bail!("'{name}' is no setting that may be changed"),
    }
}

/// Reads a value; of `always [madvise] never`, the word in brackets.
fn read(path: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let rest = text.split('[').nth(1);
    let word = rest.and_then(|rest| rest.split(']').next());
    let words: Vec<&str> = word.unwrap_or(&text).split_whitespace().collect();
    Ok(words.join(" "))
}

fn write(path: &str, value: &str) -> anyhow::Result<()> {
    if read(path)? == value {
        return Ok(());
    }
    fs::write(path, value)
        .with_context(|| format!("cannot write '{value}' to {path}; are you root?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_what_was_before() {
        let text = "pid 3\nsetting /proc/sys/vm/swappiness 60\nsetting /etc/passwd x\n\
                    setting /proc/sys/kernel/sched 1 2\n";
        let settings = Settings::of_note(text);
        let expected = "setting /proc/sys/kernel/sched 1 2\nsetting /proc/sys/vm/swappiness 60\n";
        assert_eq!(settings.note(), expected);
        assert!(!settings.is_empty() && Settings::of_note("pid 3\n").is_empty());
    }

    #[test]
    fn only_settings_of_the_kernel_are_changed() {
        let check = |name: &str, path: Option<&str>| {
            assert_eq!(setting_path(name).as_deref(), path, "{name}");
        };
        check("vm.swappiness", Some("/proc/sys/vm/swappiness"));
        check("/sys/kernel/mm/ksm/run", Some("/sys/kernel/mm/ksm/run"));
        check("/sys/kernel/mm/damon/admin", None);
        check("/sys/kernel/mm/../../x", None);
        check("/etc/passwd", None);
        check("vm", None);
        check("vm..x", None);
        check("vm.a b", None);
    }
}
