//! `isotherm eval` on this kernel: what it sets and makes is gone at every end, and what does not fit is refused.

use std::fs;
use std::path::Path;

use crate::common::{isotherm, run, scratch, shared, until, with_swap};

/// A setting that changes nothing for anybody: how eagerly huge pages are compacted for ahead of demand.
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
    let folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(Path::new);
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.starts_with("isotherm-eval-"))
        .collect()
}

#[test]
fn settings_and_control_groups_are_undone_at_every_end() {
    // Nobody else changes settings meanwhile.
    let Some(_turn) = with_swap("settings_and_control_groups_are_undone_at_every_end") else {
        return;
    };
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
    let row = |name: &str, value: &str| {
        let mut lines = done.stdout.lines();
        let words: Vec<&str> = ["w", "value,", "of", "100", name, value].into();
        lines.any(|line| line.split_whitespace().take(6).eq(words.iter().copied()))
    };
    assert!(
        row("as-it-is", &before) && row("set", "7"),
        "{}",
        done.stdout
    );
    assert_eq!((setting(), groups()), (before.clone(), Vec::new()));

    let fails = run(&mut eval(&experiment("sleep 1; exit 3"), &[]));
    assert_eq!(fails.code(), 1, "{fails:?}");
    assert_eq!((setting(), groups()), (before.clone(), Vec::new()));

    // Killed, it leaves both; the next one undoes them.
    let only = ["--configuration", "set", "--set", "TIME=1000"];
    let mut killed = eval(
        &experiment(&says.replace(
            "sleep \"$TIME\";",
            "[ -z \"$MODE\" ] || sleep \"$TIME\"; sleep 1;",
        )),
        &only,
    )
    .spawn()
    .expect("it starts");
    until("the setting and the control group", || {
        (setting() == "7" && !groups().is_empty()).then_some(())
    });
    killed.kill().expect("it is ours");
    killed.wait().expect("it is ours");
    assert_eq!(setting(), "7");
    let next = run(&mut eval(
        &experiment(&says),
        &["--configuration", "as-it-is", "--set", "TIME=1.1"],
    ));
    assert_eq!(next.code(), 0, "{next:?}");
    assert!(
        next.stderr
            .contains("undoing what an evaluation that was killed has left"),
        "{next:?}"
    );
    assert_eq!((setting(), groups()), (before, Vec::new()));
}

#[test]
fn what_does_not_fit_the_machine_is_refused_before_it_begins() {
    let Some(_turn) = shared("what_does_not_fit_the_machine_is_refused_before_it_begins") else {
        return;
    };
    let folder = scratch();
    fs::write(folder.path().join("x.toml"), experiment("true")).expect("a folder of ours");
    let check = |set: &[&str], code: i32, words: &str| {
        let mut command = isotherm(["eval", "x.toml", "--dry-run"]);
        let done = run(command.args(set).current_dir(folder.path()));
        let said = format!("{}{}", done.stdout, done.stderr);
        assert_eq!(done.code(), code, "{done:?}");
        assert!(said.contains(words), "{words}: {said}");
    };
    check(
        &["--set", "NEED=900TiB"],
        0,
        "SKIP w: it takes 900 TiB, and 2 GiB stay free in any case",
    );
    check(&["--set", "NEED=much"], 2, "workload 'w': `memory`:");
    check(
        &["--set", "NEDE=1"],
        2,
        "no parameter 'NEDE'; it has NEED, TIME",
    );
    check(&["--set", "NEED"], 2, "give NAME=VALUE");
}
