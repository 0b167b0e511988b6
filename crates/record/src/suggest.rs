//! Options that select the targets of a record in another command.
//!
//! The record's command line names the targets as its user did. After a process has ended, its id is free or belongs to
//! another process: then a placeholder replaces it.

use crate::item::Header;
use crate::printable::printable;

/// Options of targets with a value.
const WITH_VALUE: [&str; 4] = ["--cgroup", "--node", "--exclude", "--range"];
/// Options that name targets without a value.
const FLAGS: [&str; 2] = ["--all", "--physical"];
/// The placeholder of a process id.
const PID: &str = "PID";

impl Header {
    /// Returns options that name the record's targets. `live` are processes that had not ended before the record did.
    pub fn target_options(&self, live: &[u32]) -> String {
        let options = self
            .writer
            .starts_with("isotherm")
            .then(|| self.named(live));
        options.flatten().unwrap_or_else(|| match live {
            _ if self.operations == "paddr" => "--physical".to_owned(),
            [pid] if *pid > 0 => format!("--pid {pid}"),
            _ => format!("--pid {PID}"),
        })
    }

    /// Returns the options of the command line, if it names a target.
    fn named(&self, live: &[u32]) -> Option<String> {
        let end = self.command.iter().position(|word| word == "--");
        let (options, command) = self.command.split_at(end.unwrap_or(self.command.len()));
        let (mut words, mut processes) = (Vec::new(), Vec::new());
        let mut has_target = command.len() > 1;
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let (name, value) = split(option);
            let mut value = || value.or_else(|| options.next().map(String::as_str));
            if FLAGS.contains(&name) || name == "--children" {
                has_target |= name != "--children";
                words.push(name.to_owned());
            } else if WITH_VALUE.contains(&name) {
                has_target |= matches!(name, "--cgroup" | "--node");
                words.push(format!("{name} {}", quoted(value()?)));
            } else if name == "--pid" {
                // An escaped comma is part of a name.
                let list = value()?.replace("\\,", "\0");
                let list = list.split(',').map(|process| process.replace('\0', "\\,"));
                processes.extend(list);
            }
        }
        if !processes.is_empty() {
            has_target = true;
            words.insert(
                0,
                format!("--pid {}", quoted(&still_there(&processes, live))),
            );
        }
        words.extend(command.iter().map(|word| quoted(word)));
        has_target.then(|| words.join(" "))
    }
}

/// Splits an option into its long name, and its value if that is in the same word.
fn split(option: &str) -> (&str, Option<&str>) {
    if let Some(value) = option.strip_prefix("-p") {
        return ("--pid", Some(value).filter(|value| !value.is_empty()));
    }
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

/// Lists the processes without the ids that are not `live`.
fn still_there(processes: &[String], live: &[u32]) -> String {
    let pid = |process: &str| process.parse::<u32>().ok();
    let is_there = |process: &&str| pid(process).is_none_or(|pid| live.contains(&pid));
    let there = processes.iter().map(String::as_str).filter(is_there);
    let there: Vec<&str> = there.collect();
    if there.is_empty() {
        return PID.to_owned();
    }
    there.join(",")
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", printable(&word.replace('\'', "'\\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_as_the_record_named_them() {
        let check = |command: &[&str], live: &[u32], wanted: &str| {
            let header = Header {
                writer: "isotherm 1".to_owned(),
                command: command.iter().map(ToString::to_string).collect(),
                ..Header::default()
            };
            assert_eq!(header.target_options(live), wanted, "{command:?}");
        };
        let record = "isotherm";
        let named = [record, "record", "--pid", "7,redis", "-p8"];
        check(&named, &[7], "--pid 7,redis");
        let children = [record, "record", "--pid=7", "--children"];
        check(&children, &[9], "--pid PID --children");
        check(&[record, "record", "-p", r"a b\,7"], &[], r"--pid 'a b\,7'");
        let all = [record, "run", "--no-guard", "--all", "--exclude", "sshd"];
        check(&all, &[7], "--all --exclude sshd");
        let group = [record, "record", "--cgroup", "a b"];
        check(&group, &[7, 8], "--cgroup 'a b'");
        let quoted = [record, "record", "--children", "--", "./it's", "--all"];
        check(&quoted, &[7], r"--children -- './it'\''s' --all");
        check(&[record, "run", "-c", "file.yaml"], &[7], "--pid 7");
        check(&[record, "run", "-c", "file.yaml"], &[7, 8], "--pid PID");
        check(&[record, "run", "-c"], &[], "--pid PID");
    }
}
