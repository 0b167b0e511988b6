//! Checks that the commands accept every command line of every help text and document.
//!
//! Those that need no privilege and end soon are also run: `tests/it/examples.rs`.

#[path = "../tests/examples/extract.rs"]
mod extract;

use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};
use extract::Line;

use crate::Cli;

/// Other programs that examples may start: the test that runs each, or the reason why none does.
const OTHERS: &[(&str, &str)] = &[
    ("make", "its targets are looked for in the Makefile, below"),
    ("scripts/install-deps", "installs packages"),
    ("scripts/run-tests", "is what runs this"),
    ("cargo", "builds, and runs the benchmarks"),
    ("pip", "tests/python/run.sh --long installs by it"),
    ("apt-get", "tests/dist installs the package by dpkg"),
    ("tar", "tests/dist unpacks by it"),
    ("sed", "is not ours"),
    ("xargs", "is not ours"),
    ("sha256sum", "tests/dist checks by it"),
    ("perf", "is not ours"),
    ("damo", "tests/interop reads what we write with it"),
    ("jq", "is not ours"),
    ("issues", "is not ours"),
    (
        "UPDATE_PICTURES=1",
        "takes the pictures that tests/page looks at",
    ),
    ("curl", "is not ours: tests/observe asks a daemon the same"),
    ("grep", "is not ours"),
    ("cc", "is not ours"),
];

/// Programs that chapters start; tests/kernel/cli/docs_walkthroughs.rs runs these chapters with them.
const OF_CHAPTERS: &str = "install java javac jcmd kill pgbench printf psql python3 \
    redis-benchmark redis-cli redis-server runuser sleep";

fn of_command(command: &clap::Command, name: &str, lines: &mut Vec<Line>) {
    let help = [command.get_after_help(), command.get_after_long_help()];
    for help in help.into_iter().flatten() {
        let found = extract::of_help(&format!("{name} --help"), &help.to_string());
        lines.extend(found);
    }
    for subcommand in command.get_subcommands() {
        let name = format!("{name} {}", subcommand.get_name());
        of_command(subcommand, &name, lines);
    }
}

fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = extract::documents(&root.join("docs"));
    paths.extend([root.join("README.md"), root.join("CONTRIBUTING.md")]);
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy();
        (name.into_owned(), fs::read_to_string(path).expect("text"))
    };
    paths.iter().map(read).collect()
}

/// Returns the faults of the command lines of `lines`.
fn wrong(lines: &[Line]) -> Vec<String> {
    let mut wrong = Vec::new();
    for line in lines {
        for program in line.programs() {
            let name = program.first().map_or("", String::as_str);
            if name.ends_with("isotherm") {
                if let Err(error) = Cli::try_parse_from(&program) {
                    wrong.push(format!("{}: {}: {error}", line.place, line.text));
                }
            } else if OTHERS.iter().all(|(other, _)| *other != name)
                && OF_CHAPTERS.split(' ').all(|other| other != name)
            {
                wrong.push(format!("{}: no command: {}", line.place, line.text));
            }
        }
    }
    wrong
}

#[test]
fn the_examples_of_every_help_text_parse() {
    let mut lines = Vec::new();
    of_command(&Cli::command(), "isotherm", &mut lines);
    assert!(lines.len() > 60, "only {} found", lines.len());
    let wrong = wrong(&lines);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let long: Vec<&Line> = lines.iter().filter(|line| line.width > WIDTH_MAX).collect();
    assert!(long.is_empty(), "too long, so broken in two: {long:#?}");
}

/// Columns of a help text's line: clap breaks longer lines in two if the output is no terminal, or one of that width.
const WIDTH_MAX: usize = 100;

/// Beginnings of the first line of blocks that hold no commands.
const NO_COMMANDS: &[&str] = &[
    // Python, run by tests/interop/readers.py,
    "polars.",
    "pyarrow.",
    // by python/tests,
    "isotherm.simulate",
    "isotherm.sweep",
    "study",
    "tune.Tuner",
    // and by hand.
    "python python/bench",
    // SQL, run by tests/interop/flat.py.
    "select ",
    "from ",
    // Requests to the daemon: tests/kernel/cli/daemon.rs sends them.
    "{\"do\":",
    // Commands of clusters, which do not exist here: docs/how-to/daemonset.md explains that.
    "podman ",
    "kubectl ",
    // Rust, of which scenarios in vm-tests are made.
    "let ",
    "facts ",
    "engine ",
    "crates/",
];

#[test]
fn the_commands_of_every_document_parse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let makefile = fs::read_to_string(root.join("Makefile")).expect("the Makefile");
    let mut nr_commands = 0;
    let mut all_wrong = Vec::new();
    for (name, text) in documents() {
        let mut lines = extract::of_document(&name, &text);
        lines.retain(|line| {
            let is_other = NO_COMMANDS.iter().any(|start| line.text.starts_with(start));
            let is_code = line.text.starts_with('.');
            !is_other && !is_code
        });
        nr_commands += lines.len();
        all_wrong.extend(wrong(&lines));
        for target in lines.iter().filter_map(|l| l.text.strip_prefix("make ")) {
            if !makefile.contains(&format!("\n{target}:")) {
                all_wrong.push(format!("{name}: `make {target}` is no target"));
            }
        }
    }
    assert!(nr_commands > 60, "only {nr_commands} found");
    assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
}

/// Values that options of damo's take, by the beginning of the option and of the value's name in the table.
const DAMO_VALUES: &str = "--nr_ctxs N 1
--nr_ N 0
--damos_nr_ N 0
--damos_quota_goal WORD user_input 1 1
--damos_quota_goal_tuner NAME consist
--damos_quotas WORD 1s 1G
--damos_filter WORD allow anon
--damos_wmarks METRIC free_mem_rate
--damos_action ACTION stat
--probe_filter WORD allow anon
--probe_prep ACTION set_pgidle
--sample_primitives NAME page_fault
--ops NAME vaddr
--style NAME hot
--sort_regions_by KEY age
--regions RANGES 0-4096
--monitoring_intervals_goal MIN 5ms
--monitoring_intervals_goal MAX 10s
--format NAME json
 FILE damon.json
 JSON damon.json
 START 0
 STOP 101
 STEP 25
 END 4096
 TARGET 1
 TIME 1s
 SAMPLE 5ms
 AGGR 100ms
 UPDATE 1s
 FLAG Y
 LIST 0-3
 KEY time
 BP 4%
 NAME x
 WORD x
 WHAT x";

fn damo_values(option: &str, value: &str) -> Vec<String> {
    let found = DAMO_VALUES.lines().find_map(|line| {
        let mut words = line.split(' ');
        let is_it = option.starts_with(words.next()?) && value == words.next()?;
        is_it.then(|| words.map(str::to_owned).collect())
    });
    found.unwrap_or_else(|| vec!["1".to_owned()])
}

#[test]
fn every_option_of_damo_becomes_a_command_that_parses_or_is_refused() {
    let mut wrong = Vec::new();
    for of in isotherm_config::damo::damo_options() {
        let mut words: Vec<String> = of.command.split(' ').map(str::to_owned).collect();
        let name = of.names.first().cloned().unwrap_or_default();
        let is_of_schemes = name.starts_with("--damos_") && of.command != "report damon";
        if is_of_schemes && name != "--damos_action" {
            words.extend(["--damos_action", "stat"].map(str::to_owned));
        }
        words.extend(of.names.first().cloned());
        let values = of.values.iter().filter(|value| *value != "...");
        words.extend(values.flat_map(|value| damo_values(&name, value)));
        let line = words.join(" ");
        let translated = isotherm_config::damo::translate(&words, false);
        match (translated, of.is_refused) {
            (Err(_), true) => {}
            (Ok(_), true) => wrong.push(format!("{line}: not refused")),
            (Err(error), false) => wrong.push(format!("{line}: {error}")),
            (Ok(translation), false) => {
                let command = translation.command.join(" ");
                let parsed =
                    Cli::try_parse_from(["isotherm".to_owned()].iter().chain(&translation.command));
                // Help ends parsing, too, and is no error.
                let error = parsed.err().filter(|error| error.exit_code() != 0);
                wrong.extend(error.map(|error| format!("{line}: {command}: {error}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
