//! Programs that bound their memory by a number of their own.
//!
//! Problem: a limit alone makes no such program smaller. A JVM fills its heap up to its own maximum, and is killed if
//! that does not fit.
//!
//! Approach: the program is recognised by its mappings, arguments and variables. What it may be given follows from the
//! limit of its container by the rule of its documents: Go's *A Guide to the Go Garbage Collector* (5 to 10 % of the
//! limit for all else), Node's `--max-old-space-size` (1.5 of 2 GB), the JDK's `java` page (`MaxRAMPercentage`), the
//! PostgreSQL, redis and memcached manuals.
//!
//! Limits: what a program reads from a file beside its own directory is not found.

use std::fs;

use isotherm_engine::units::format_bytes;
use isotherm_linux::process::Runtime;

use crate::report::ProgramSetting;

const MIB: u64 = 1 << 20;

/// Arguments and surroundings of a process; an unreadable part is empty.
#[derive(Clone, Debug, Default)]
struct Started {
    name: String,
    arguments: Vec<String>,
    variables: Vec<String>,
    runtime: Option<Runtime>,
    /// Its configuration, if it lies in the directory that the process works in.
    configuration: String,
}

/// Returns the setting of process `pid` for a container with this limit; `None` if no program is recognised.
pub fn setting_of(pid: u32, limit_bytes: u64) -> Option<ProgramSetting> {
    let read = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let words = |text: String| text.split('\0').map(str::to_owned).collect();
    let configuration = ["cwd/postgresql.conf", "cwd/postgresql.auto.conf"].map(read);
    found(
        pid,
        limit_bytes,
        &Started {
            name: read("comm").trim_end().to_owned(),
            arguments: words(read("cmdline")),
            variables: words(read("environ")),
            runtime: Runtime::of_process(pid),
            configuration: configuration.concat(),
        },
    )
}

fn found(pid: u32, limit: u64, of: &Started) -> Option<ProgramSetting> {
    let make = |program, setting, now: Option<String>, advice| {
        Some(ProgramSetting {
            pid,
            program,
            setting,
            now,
            advice,
        })
    };
    let share = |of_hundred: u64| limit / 100 * of_hundred / MIB;
    if of.runtime == Some(Runtime::Jvm) {
        let now = of.last_of(&["-Xmx", "-XX:MaxHeapSize=", "-XX:MaxRAMPercentage="]);
        let advice = format!(
            "-XX:MaxRAMPercentage=75, or -Xmx{}m: a quarter is for all but the heap",
            share(75)
        );
        make("JVM", "-Xmx", now, advice)
    } else if of.runtime == Some(Runtime::Go) {
        let advice = format!(
            "GOMEMLIMIT={}MiB: a tenth is for all but Go's own memory",
            share(90)
        );
        make("Go", "GOMEMLIMIT", of.last_of(&["GOMEMLIMIT="]), advice)
    } else if of.runtime == Some(Runtime::Node) {
        let advice = format!(
            "--max-old-space-size={}: a quarter is for all but old objects",
            share(75)
        );
        make(
            "Node.js",
            "--max-old-space-size",
            of.last_of(&["--max-old-space-size="]),
            advice,
        )
    } else if of.name.starts_with("redis") || of.name.starts_with("valkey") {
        let advice = evicts("keys", "maxmemory", limit);
        make("redis", "maxmemory", of.after("--maxmemory"), advice)
    } else if of.name == "memcached" {
        let now = of.after("-m").map(|mib| format!("{mib} MiB"));
        make("memcached", "-m", now, evicts("items", "-m", limit))
    } else if of.name.starts_with("postgres") {
        let of_file = { of.configuration.lines().rev() }.find_map(|line| {
            let value = line.trim().strip_prefix("shared_buffers")?.trim_start();
            let value = value.strip_prefix('=').unwrap_or(value);
            Some(
                value
                    .split('#')
                    .next()?
                    .trim()
                    .trim_matches('\'')
                    .to_owned(),
            )
        });
        let now = of.last_of(&["shared_buffers=", "--shared_buffers=", "--shared-buffers="]);
        let advice = "what of it is idle, `isotherm report idle` says: docs/how-to/postgresql.md";
        make(
            "PostgreSQL",
            "shared_buffers",
            now.or(of_file),
            advice.to_owned(),
        )
    } else {
        None
    }
}

fn evicts(what: &str, setting: &str, limit: u64) -> String {
    format!(
        "leave it: less evicts {what}. Limit and swap together must hold {setting}; the limit is {}",
        format_bytes(limit)
    )
}

impl Started {
    /// Returns the last argument or variable that begins with one of `starts`, without that; a JVM's and Node's
    /// variables hold several arguments. The number of a flag such as `-Xmx` follows at once.
    fn last_of(&self, starts: &[&str]) -> Option<String> {
        let variables = self.variables.iter().flat_map(|variable| {
            let options = ["JAVA_TOOL_OPTIONS=", "JDK_JAVA_OPTIONS=", "NODE_OPTIONS="];
            let options = options.iter().find_map(|name| variable.strip_prefix(name));
            options.unwrap_or(variable).split_whitespace()
        });
        let words = variables.chain(self.arguments.iter().map(String::as_str));
        words.rev().find_map(|word| {
            let start = starts.iter().find(|start| word.starts_with(**start))?;
            let value = &word[start.len()..];
            let is_percentage = start.contains("Percentage");
            Some(if is_percentage {
                format!("{value} % of the limit")
            } else {
                value.to_owned()
            })
        })
    }

    /// Returns the argument after `flag`.
    fn after(&self, flag: &str) -> Option<String> {
        let at = self
            .arguments
            .iter()
            .position(|argument| argument == flag)?;
        self.arguments.get(at + 1).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// Name, arguments, a variable, what is set now (`-`: nothing), and a part of the advice.
    const PROGRAMS: &str = "\
java | java -Xmx2g -jar x -Xmx3g | - | 3g | -Xmx750m
java | java | JAVA_TOOL_OPTIONS=-Da=b -XX:MaxRAMPercentage=50 | 50 % of the limit | -Xmx750m
java | java | - | - | -Xmx750m
server | server | GOMEMLIMIT=1GiB | 1GiB | GOMEMLIMIT=900MiB
node | node x.js | NODE_OPTIONS=--max-old-space-size=512 | 512 | --max-old-space-size=750
redis-server | redis-server --maxmemory 4gb | - | 4gb | less evicts keys
memcached | memcached -u nobody -m 8000 | - | 8000 MiB | less evicts items
postgres | postgres -D /x | - | 128MB | what of it is idle
";

    #[test]
    fn each_program_is_recognised_with_what_is_set_and_what_to_set() {
        for line in PROGRAMS.lines() {
            let fields: Vec<&str> = line.split(" | ").collect();
            let [name, arguments, variable, now, advice] = fields[..] else {
                panic!("{line}");
            };
            let runtime = match name {
                "java" => Some(Runtime::Jvm),
                "server" => Some(Runtime::Go),
                "node" => Some(Runtime::Node),
                _ => None,
            };
            let started = Started {
                name: name.to_owned(),
                arguments: words(arguments),
                variables: vec!["HOME=/".to_owned(), variable.to_owned()],
                runtime,
                configuration: "#shared_buffers = 1GB\nshared_buffers = '128MB' # all\n".to_owned(),
            };
            let setting = found(7, 1000 * MIB, &started).expect(name);
            assert_eq!(setting.now.as_deref().unwrap_or("-"), now, "{line}");
            assert!(setting.advice.contains(advice), "{setting:?}");
        }
        assert_eq!(found(7, MIB, &Started::default()), None);
    }
}
