//! `isotherm tune --live` on this kernel: runs of a program, and windows of a service that continues.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{
    Running, isotherm, owning_swap, proc_bytes, python, python_path, run, scratch, until_so,
    with_swap,
};
use crate::swap::Swap;

/// Maps 48 MiB of small pages, an eighth of them in use; counts its rounds, up to the number in its argument.
const PROGRAM: &str = r"
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
memory = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(48 << 8):
    memory[page << 12:(page << 12) + 8] = page.to_bytes(8, 'big')
print('ready', flush=True)
rounds, count = int(sys.argv[1]), open(sys.argv[2], 'w')
for number in range(rounds):
    for page in range(6 << 8):
        memory[page << 12] = 1
    time.sleep(0.01)
    count.seek(0); count.write(str(number)); count.flush()
";

/// Returns a search among two ages with a live run.
fn tune(flags: &[&str]) -> Command {
    let mut command = isotherm(["tune", "--json", "--runs", "1", "--preset", "prcl"]);
    command.args(["--param", "age=500ms,1s", "--no-guard"]);
    command.args(["--max-slowdown", "50%"]).args(flags);
    command
}

/// Returns the share that a live run under the recommended setting saved.
fn saved_live(report: &Value) -> f64 {
    let settings = &report["recommended"]["settings"];
    let compared = report["live"]["compared"].as_array().expect("runs");
    let of = compared.iter().find(|one| one["settings"] == *settings);
    let saved = &of.expect("only what was run is recommended")["saved_share"];
    saved.as_f64().expect("a share")
}

#[test]
fn a_program_is_run_again_and_an_interruption_loses_nothing() {
    let Some(_turn) = owning_swap() else { return };
    let folder = scratch();
    fs::write(folder.path().join("it's a program.py"), PROGRAM).expect("ours");
    let tune = |folder: &Path| {
        let mut tune = tune(&["--live", "-o", "tuned.yaml", "--"]);
        tune.args([&python_path(), "it's a program.py", "350", "count"]);
        tune.current_dir(folder);
        tune
    };
    let lacks = run(&mut tune(folder.path()));
    if lacks.code() == 2 {
        lacks.warns("there is no swap");
    }
    let Some(_swap) = Swap::set_up() else { return };
    let first = Running::start(&mut tune(folder.path()));
    until_so("a live run under schemes", || {
        first.stderr().contains("live run 1 of at most 1")
    });
    first.signal(Signal::SIGINT);
    let first = first.finish();
    assert_eq!(first.code(), 130, "{first:?}");
    assert!(first.json()["was_stopped"] == true);
    let second = run(&mut tune(folder.path())).success();
    second.warns("and 1 live runs made");
    let is_kept = !second.stderr.contains("is recorded");
    assert!(is_kept, "the trace: {second:?}");
    let reported = second.json();
    assert_eq!(reported["live"]["nr_bases"], 2);
    assert_eq!(reported["live"]["end"], "all_made");
    assert!(saved_live(&reported) > 0.05, "{reported}");
    let predicted = &reported["recommended"]["prediction"]["saved_share"];
    let [low, value, high] =
        ["low", "value", "high"].map(|name| predicted[name].as_f64().expect("bounds"));
    assert!((low..high).contains(&value), "{reported}");
    let written = fs::read_to_string(folder.path().join("tuned.yaml")).expect("written");
    assert!(written.contains("pageout"), "{written}");
    assert!(!folder.path().join("tuned.yaml.journal").exists());
}

#[test]
fn a_service_is_tuned_while_it_goes_on_and_gets_its_memory_back() {
    let Some(_turn) = with_swap() else { return };
    let folder = scratch();
    let count = folder.path().join("count");
    let mut service = Running::ready(python(PROGRAM).arg("1000000").arg(&count));
    let pid = service.pid().to_string();
    let rss = proc_bytes(service.pid(), "status", "VmRSS:");
    let tune = |progress: &str, pid: &str| {
        let mut tune = tune(&["--live", "--window", "3s", "--pid", pid]);
        run(tune.args(["--progress-cmd", progress]))
    };
    let done = tune(&format!("cat {}", count.display()), &pid).success();
    let reported = done.json();
    assert!(saved_live(&reported) > 0.05, "{reported}");
    assert!(service.is_running());
    assert_eq!(proc_bytes(service.pid(), "status", "VmSwap:"), 0);
    assert!(proc_bytes(service.pid(), "status", "VmRSS:") > rss / 10 * 9);
    tune("echo 5", &pid).refused("did not grow");
    tune("echo 5", "4194303").refused("does not exist");
}

#[test]
fn a_workload_of_an_experiment_is_run_with_its_swap() {
    let Some(_turn) = owning_swap() else { return };
    let folder = scratch();
    fs::write(folder.path().join("program.py"), PROGRAM).expect("ours");
    let experiment = format!(
        "name = \"x\"\nzram = \"256MiB\"\n[[configuration]]\nname = \"orig\"\n\
         [[workload]]\nname = \"other\"\nrun = \"true\"\nrequires = [\"no-such-program\"]\n\
         [[workload]]\nname = \"w\"\nrun = \"exec {} $EXPERIMENT/program.py 350 count\"\n",
        python_path()
    );
    fs::write(folder.path().join("x.toml"), experiment).expect("ours");
    let tune = |more: &[&str]| {
        let mut tune = tune(&["--live", "trace", "--eval", "x.toml"]);
        run(tune.args(more).current_dir(folder.path()))
    };
    tune(&[]).refused("choose one by --workload: other, w");
    let not_here = "cannot run here: not installed: no-such-program";
    tune(&["--workload", "other"]).refused(not_here);
    tune(&["--workload", "none"]).refused("no such workload");
    let swaps = || fs::read_to_string("/proc/swaps").expect("Linux");
    let before = swaps();
    let done = tune(&["--workload", "w"]).success();
    assert!(saved_live(&done.json()) > 0.05, "{done:?}");
    assert_eq!(swaps(), before, "undone");
    assert!(folder.path().join("trace").exists(), "it was made");
}
