//! Runs the examples of help texts and documents, in a directory that holds small files of the names that they use.
//! [`NOT_RUN`] gives the reason for those that are not run; `src/examples.rs` checks that all of them parse.

#[path = "../examples/extract.rs"]
mod extract;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use extract::{Line, documents, of_document, of_help};
use tempfile::TempDir;

use crate::common::{Ended, run, text};
use crate::records::{machine_record, page_record, stacks_record};

/// Beginnings of examples that are only parsed, each with the reason.
const NOT_RUN: &str = "\
recommend | asks a cluster: crates/fleet/tests
record | watches a process of that number: tests/kernel
run | acts on one: tests/kernel
start | the same, as a daemon: tests/kernel/cli/daemon.rs
compare | watches a process for a while: tests/kernel/predict/compare.rs
status | asks a daemon: tests/kernel/cli/daemon.rs
tune -c | tells a daemon: tests/kernel/cli/daemon.rs
tune --preset prcl --budget | tells a daemon: tests/kernel/cli/daemon.rs
tune --live | acts on a program: tests/kernel/predict/tune.rs
pause | tells a daemon: tests/kernel/cli/daemon.rs
resume | tells a daemon: tests/kernel/cli/daemon.rs
stop | tells a daemon: tests/kernel/cli/daemon.rs
restore | reads a process's memory back: tests/kernel/watch/foreign.rs
thp | judges a process: tests/kernel/act/huge.rs
size --cgroup | watches a group: tests/kernel/watch/size.rs
size --pid | watches a process: tests/kernel/watch/size.rs
size -- | starts a command: tests/kernel/watch/size.rs
park | pages a group out: tests/kernel/act/parking.rs
wake | reads it back: tests/kernel/act/parking.rs
swap | sets up swap: tests/kernel/act/safety.rs
top | needs a terminal: tests/it/top.rs
web | serves until it is stopped: tests/it/web.rs, tests/page
compact --proact | compacts memory: tests/kernel
compact --daemon | compacts memory: tests/kernel
damo --run | reads a record of damo's: tests/interop
damon record | listens to kdamonds: vm-tests
damon --export | prints the kernel's DAMON configuration: vm-tests, tests/interop
workload | takes minutes, a gigabyte: tests/it/workload.rs
calibrate | needs root, and a process: tests/kernel/predict/calibrate.rs
simulate --trace app.isotherm --costs | what calibrate wrote: tests/kernel/predict/calibrate.rs
reproduce | takes minutes: cmd/reproduce.rs
report access --max-rate 0% --min-age 30s --pages | needs a process's record: tests/it/report.rs
eval mine.toml | reads results: tests/it/eval.rs
eval experiments | takes minutes, as root: tests/it/eval.rs
";

/// Commands whose exit code may mean that this machine cannot do it.
const MAY_SAY_NO: &[&str] = &["doctor", "check", "damon"];

const CONFIGURATION: &str = "\
kdamonds:
- contexts:
  - ops: vaddr
    targets: []
    schemes: [{action: pageout, access_pattern: {sz_bytes: {min: 4 KiB, max: max},
      nr_accesses: {min: 0 %, max: 0 %}, age: {min: 5 s, max: max}}}]
";

/// A machine of four nodes, for plans that name nodes which this machine may lack.
const FOUR_NODES: &str = "nodes: [{id: 0, size: 64 GiB}, {id: 1, size: 64 GiB}, \
                          {id: 2, size: 64 GiB}, {id: 3, size: 64 GiB}]\n";

const TRACE: &str = "\
kdamond.0  4452 [000] 100.100000: damon:damon_aggregated: target_id=0 nr_regions=2 4096-8192: 0 3
kdamond.0  4452 [000] 100.100007: damon:damon_aggregated: target_id=0 nr_regions=2 8192-12288: 7 4
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn help(command: &str) -> String {
    let line = format!("{command} --help");
    let words: Vec<&str> = line.split_whitespace().collect();
    text(&run(Path::new("/"), &words).success().stdout)
}

/// Returns the names of a command's subcommands.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

fn of_commands(command: &str, lines: &mut Vec<Line>) {
    let help = help(command);
    if !command.is_empty() {
        let examples = help.split_once("Example").map(|(_, examples)| examples);
        let has_one = |examples: &str| examples.contains(&format!("isotherm {command}"));
        assert!(examples.is_some_and(has_one), "no example of {command}");
    }
    lines.extend(of_help(&format!("isotherm {command} --help"), &help));
    for name in subcommands(&help) {
        of_commands(format!("{command} {name}").trim(), lines);
    }
}

/// Returns a directory with every file that an example reads.
fn directory() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let at = directory.path();
    let write = |name: &str, text: &str| fs::write(at.join(name), text).expect("written");
    for name in ["crates", "experiments"] {
        symlink(root().join(name), at.join(name)).expect("a link");
    }
    for name in ["kdamonds.yaml", "kdamonds.json", "gentler.yaml", "new.json"] {
        write(name, CONFIGURATION);
    }
    let scenario = block_under(&help("simulate"), "A scenario");
    write("scenario.yaml", &scenario);
    let topology = block_under(&help("tier plan"), "A topology's file");
    write("machine.yaml", &topology);
    write("four_nodes.yaml", FOUR_NODES);
    write("trace.txt", TRACE);
    for name in ["app.isotherm", "pages.isotherm"] {
        page_record(&at.join(name), 12, true);
    }
    machine_record(&at.join("machine.isotherm"));
    for line in [
        "tier plan -m 0 1 -g --topology four_nodes.yaml -o tier.yaml",
        "simulate scenario.yaml --duration 24s --preset prcl -o rec.isotherm",
        "simulate experiments/scenarios/fragmented.yaml --duration 2s -o compact.isotherm",
        "convert rec.isotherm damon.data",
    ] {
        run(at, &line.split(' ').collect::<Vec<_>>()).success();
    }
    let record = fs::read(at.join("rec.isotherm")).expect("a record");
    for name in "redis run live sim first pg small large".split(' ') {
        fs::write(at.join(format!("{name}.isotherm")), &record).expect("written");
    }
    let with_stacks = "service before after in redis-stacks pg-stacks jvm-stacks duck-stacks";
    for name in with_stacks.split(' ') {
        stacks_record(&at.join(format!("{name}.isotherm")));
    }
    fs::copy(at.join("app.isotherm"), at.join("redis-pages.isotherm")).expect("a copy");
    fs::copy(at.join("compact.isotherm"), at.join("c.isotherm")).expect("a copy");
    fs::write(at.join("damaged.isotherm"), &record[..record.len() - 100]).expect("written");
    // Reports use this record if no file is named.
    fs::write(at.join("newest.isotherm"), &record).expect("written");
    directory
}

/// Returns the text under the line of a help text that begins with `heading`, without its indentation.
fn block_under(help: &str, heading: &str) -> String {
    let lines = help.lines().skip_while(|line| !line.starts_with(heading));
    let block = lines.skip(1).map_while(|line| line.strip_prefix("  "));
    block.map(|line| line.to_owned() + "\n").collect()
}

/// Adapts an example to this machine: a shorter run, and a machine that has the named nodes.
fn for_here(mut words: Vec<String>) -> Vec<String> {
    let line = words.join(" ");
    if line.starts_with("simulate") && !line.contains("--duration") {
        words.extend(["--duration", "6s"].map(str::to_owned));
    }
    if line.starts_with("tune") && !line.contains("--budget") {
        words.extend(["--budget", "8"].map(str::to_owned));
    }
    let describes_machine = line.contains("--topology") || line.contains("--node");
    if line.starts_with("tier plan") && !describes_machine {
        words.extend(["--topology", "four_nodes.yaml"].map(str::to_owned));
    }
    let by_page = "reclaim-curve redis.isotherm|size redis.isotherm|ethp-curve grid.isotherm";
    if by_page.split('|').any(|start| line.starts_with(start)) {
        "redis-pages.isotherm".clone_into(&mut words[1]);
    }
    words
}

/// Runs each of `lines` once, at least this many. All must work.
fn run_all(lines: &[Line], least: usize) {
    let directory = directory();
    let (mut ran, mut wrong) = (Vec::new(), Vec::new());
    for line in lines {
        let is_ours = |program: &Vec<String>| {
            let name = program.first().map(String::as_str);
            matches!(name, Some("isotherm" | "target/release/isotherm"))
        };
        for program in line.programs().into_iter().filter(is_ours) {
            let words = for_here(program[1..].to_vec());
            let text = words.join(" ");
            let mut not_run = NOT_RUN.lines().filter_map(|line| line.split_once(" | "));
            if not_run.any(|(start, _)| text.starts_with(start)) || ran.contains(&text) {
                continue;
            }
            let output = run(directory.path(), &words);
            let may_say_no = MAY_SAY_NO.contains(&words[0].as_str());
            let is_well = output.status.success() || may_say_no && output.status.code() == Some(1);
            if !is_well {
                let said = output.errors();
                wrong.push(format!("{}: isotherm {text}: {said}", line.place));
            }
            ran.push(text);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran.len() >= least, "only {} were run", ran.len());
}

#[test]
fn every_command_has_an_example_and_those_of_help_texts_work() {
    let mut lines = Vec::new();
    of_commands("", &mut lines);
    run_all(&lines, 30);
}

#[test]
fn the_examples_of_documents_work() {
    let mut lines = Vec::new();
    let readme = root().join("README.md");
    for path in documents(&root().join("docs")).into_iter().chain([readme]) {
        let text = fs::read_to_string(&path).expect("text");
        lines.extend(of_document(&path.to_string_lossy(), &text));
    }
    run_all(&lines, 10);
}
