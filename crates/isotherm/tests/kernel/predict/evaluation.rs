//! `isotherm eval` on this kernel: its settings and groups are removed at every end, and it refuses a journal that does
//! not fit.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{Running, isotherm, owning_swap, run, scratch, shared, until_so, with_swap};

/// A harmless setting: the proactiveness of compaction for huge pages.
const SETTING: &str = "/proc/sys/vm/compaction_proactiveness";

fn setting() -> String {
    let value = fs::read_to_string(SETTING).expect("Linux 5.9");
    value.trim().to_owned()
}

fn experiment(run: &str) -> String {
    format!(
        "name = \"set\"\n[parameters]\nTIME = \"1\"\nNEED = \"1MiB\"\n\
         [[workload]]\nname = \"w\"\ncgroup = true\nmemory = \"$NEED\"\n\
         serve = '''sleep 1000 & setsid sleep 1000 & wait'''\nrun = '''{run}'''\n\
         [[workload.measure]]\nname = \"value\"\nunit = \"of 100\"\noutput = 'value ([0-9]+)'\n\
         [[configuration]]\nname = \"as-it-is\"\n\
         [[configuration]]\nname = \"set\"\nsettings = {{ \"vm.compaction_proactiveness\" = \"7\" }}\n\
         variables = {{ MODE = \"on\" }}\n"
    )
}

fn groups() -> Vec<String> {
    let folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].into_iter();
    let entries = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ours = names.filter(|name| name.starts_with("isotherm-eval-"));
    ours.collect()
}

#[test]
fn settings_and_control_groups_are_undone_at_every_end() {
    // Other evaluations own swap, so that none runs meanwhile.
    let Some(_turn) = with_swap() else { return };
    let before = setting();
    let folder = scratch();
    let file = folder.path().join("x.toml");
    let eval = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("a folder of ours");
        let mut command = isotherm(["eval", "x.toml", "-o", "out", "--force"]);
        command.args(more).current_dir(folder.path());
        command
    };
    let says = format!(
        "sleep \"$TIME\"; echo value $(cat {SETTING}) \"$MODE\"; wc -l <\"$CGROUP/cgroup.procs\""
    );
    let done = run(&mut eval(&experiment(&says), &[]));
    assert_eq!(done.code(), 0, "{done:?}");
    for (name, value) in [("as-it-is", &*before), ("set", "7")] {
        let words = ["w", "value,", "of", "100", name, value];
        let is_row = |line: &str| line.split_whitespace().take(6).eq(words);
        assert!(done.stdout.lines().any(is_row), "{done:?}");
    }
    assert_eq!((setting(), groups()), (before.clone(), Vec::new()));

    let fails = run(&mut eval(&experiment("sleep 1; exit 3"), &[]));
    assert_eq!(fails.code(), 1, "{fails:?}");
    assert_eq!((setting(), groups()), (before.clone(), Vec::new()));

    // A kill leaves both; the next evaluation restores them.
    let only = ["--configuration", "set", "--set", "TIME=1000"];
    let pause = "[ -z \"$MODE\" ] || sleep \"$TIME\"; sleep 1;";
    let waits = experiment(&says.replace("sleep \"$TIME\";", pause));
    let killed = Running::start(&mut eval(&waits, &only));
    until_so("the setting and the control group", || {
        setting() == "7" && !groups().is_empty()
    });
    killed.signal(Signal::SIGKILL);
    killed.finish();
    assert_eq!(setting(), "7");
    let once = ["--configuration", "as-it-is", "--set", "TIME=1.1"];
    let next = run(&mut eval(&experiment(&says), &once));
    assert_eq!(next.code(), 0, "{next:?}");
    next.warns("undoing what an evaluation that was killed has left");
    assert_eq!((setting(), groups()), (before, Vec::new()));
}

#[test]
fn what_does_not_fit_the_machine_is_refused_before_it_begins() {
    let Some(_turn) = shared() else { return };
    let folder = scratch();
    fs::write(folder.path().join("x.toml"), experiment("true")).expect("a folder of ours");
    let check = |set: &str, code: i32, words: &str| {
        let mut command = isotherm(["eval", "x.toml", "--dry-run", "--set", set]);
        let done = run(command.current_dir(folder.path()));
        let said = format!("{}{}", done.stdout, done.stderr);
        assert_eq!(done.code(), code, "{done:?}");
        assert!(said.contains(words), "{words}: {said}");
    };
    let too_much = "SKIP w: it takes 900 TiB, and 2 GiB stay free in any case";
    check("NEED=900TiB", 0, too_much);
    check("NEED=much", 2, "workload 'w': `memory`:");
    check("NEDE=1", 2, "no parameter 'NEDE'; it has NEED, TIME");
    check("NEED", 2, "give NAME=VALUE");
}

/// A tenth of the memory is hot, the rest is idle.
const IDLES: &str = "heap, 64MiB\n\nserve\n5000\nheap, 1, 64, 1, rw, hot=10% piece=2MiB seed=1\n";

const TUNED: &str = "name = \"tuned\"\nzram = \"256M\"\n\
    [[workload]]\nname = \"small/idles\"\n\
    run = '''exec \"$ISOTHERM\" exercise --json \"$EXPERIMENT/idles.cfg\"'''\n\
    progress = '\"operations_per_second\":([0-9.]+)'\n\
    [[configuration]]\nname = \"orig\"\n\
    [[configuration]]\nname = \"tuned\"\n[configuration.tune]\npreset = \"prcl\"\n\
    param = [\"age=1s,2s\", \"size=4K..16M\"]\nmax_slowdown = \"50%\"\n";

/// Returns the numbers of recordings, searches and runs in a journal.
fn journal(folder: &Path) -> (u32, u32, u32) {
    let text = fs::read_to_string(folder.join("out/results.jsonl")).unwrap_or_default();
    let mut nr = (0, 0, 0);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        match (line["entry"].as_str(), line["repeat"].as_u64()) {
            (Some("run"), Some(0)) => nr.0 += 1,
            (Some("tuned"), _) => nr.1 += 1,
            (Some("run"), _) => nr.2 += 1,
            _ => {}
        }
    }
    nr
}

#[test]
fn a_workload_is_recorded_and_tuned_once_whatever_interrupts() {
    let Some(_turn) = owning_swap() else { return };
    let folder = scratch();
    fs::write(folder.path().join("idles.cfg"), IDLES).expect("a folder of ours");
    fs::write(folder.path().join("x.toml"), TUNED).expect("a folder of ours");
    let eval = || {
        let mut command = isotherm(["eval", "x.toml", "-o", "out"]);
        command.current_dir(folder.path());
        command
    };
    let path = |name: &str| folder.path().join("out").join(name);
    let read = |name: &str| fs::read_to_string(path(name));
    let nr = || journal(folder.path());
    let interrupted = |signal: Signal, when: (u32, u32, u32), code: i32| {
        let running = Running::start(&mut eval());
        until_so(&format!("{when:?} in the journal"), || nr() == when);
        running.signal(signal);
        let done = running.finish();
        assert_eq!((done.code(), nr()), (code, when), "{done:?}");
    };
    // The search outlives it, and is waited for.
    interrupted(Signal::SIGKILL, (1, 0, 1), 137);
    let trace = fs::read(path("tuned/small/idles.isotherm")).expect("a trace");
    interrupted(Signal::SIGINT, (1, 1, 1), 130);
    let schemes = read("tuned/small/idles.yaml").expect("a setting");
    let json = read("tuned/small/idles.json").expect("what tune says");
    assert!(schemes.contains("pageout"), "{schemes}");
    assert!(json.contains("\"recommended\": {"), "{json}");
    // The journal holds all that runs need.
    fs::remove_file(path("tuned/small/idles.yaml")).expect("it is there");
    let done = run(&mut eval());
    assert_eq!((done.code(), nr()), (0, (1, 1, 2)), "{done:?}");
    assert_eq!(read("tuned/small/idles.yaml").ok(), Some(schemes));
    let now = fs::read(path("tuned/small/idles.isotherm"));
    assert_eq!(now.ok(), Some(trace));
    let title = "Predictions of tuning beside live runs";
    for name in ["tables.txt", "report.md", "report.html"] {
        assert!(read(name).expect("a report").contains(title), "{name}");
    }
    // Nine tenths of 64 MiB are idle for most of 5 s.
    let csv = read("tuned.csv").expect("a report");
    assert!(csv.contains("small/idles,tuned,\"age "), "{csv}");
    let row: Vec<&str> = csv.lines().nth(1).expect("a row").split(',').collect();
    let number = |column: usize| row[column].parse::<f64>().expect("a number");
    // The setting contains a comma.
    assert!(number(7) > 5.0 && number(10) > 5.0, "{csv}");
    let again = run(&mut eval());
    assert_eq!((again.code(), nr()), (0, (1, 1, 2)), "{again:?}");
}
