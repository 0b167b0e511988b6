//! Acting on all of the machine, and until enough is saved.

use isotherm_record::Item;

use crate::acting::Swap;
use crate::common::{
    Record, Running, alone, isotherm, proc_bytes, python, run, scratch, shared, with_swap,
};

const MIB: u64 = 1 << 20;

/// 192 MiB that are touched once.
const IDLE: &str = "\
memory = bytearray(192 << 20)
for at in range(0, len(memory), 4096): memory[at:at + 8] = at.to_bytes(8, 'little')
print('ready', flush=True)
import time; time.sleep(600)";

fn idle() -> Running {
    let mut process = Running::start(&mut python(IDLE));
    process.line("ready");
    process
}

/// Bytes of an idle process in swap once prcl has run on it for so long with a goal.
fn swapped_by(goal: [&str; 2], duration: &str) -> u64 {
    let process = idle();
    let mut command = isotherm(["run", "--preset", "prcl", "--no-guard"]);
    command.args(goal).args(["--duration", duration, "--pid"]);
    run(command.arg(process.pid().to_string())).success();
    proc_bytes(process.pid(), "status", "VmSwap:")
}

#[test]
fn paging_out_ends_when_enough_is_saved() {
    let test = "paging_out_ends_when_enough_is_saved";
    let Some(_turn) = with_swap(test) else { return };
    let Some(_swap) = Swap::set_up(test) else {
        return;
    };
    let swapped = swapped_by(["--save", "64M"], "12s");
    assert!(
        (60 * MIB..72 * MIB).contains(&swapped),
        "{} MiB",
        swapped / MIB
    );
}

/// What is free is enough already.
#[test]
fn nothing_is_paged_out_where_enough_is_free() {
    let test = "nothing_is_paged_out_where_enough_is_free";
    let Some(_turn) = with_swap(test) else { return };
    let Some(_swap) = Swap::set_up(test) else {
        return;
    };
    let swapped = swapped_by(["--keep-free", "0.01%"], "8s");
    assert!(swapped < MIB, "{} MiB", swapped / MIB);
}

#[test]
fn goals_that_cannot_be_say_why() {
    let test = "goals_that_cannot_be_say_why";
    let Some(_turn) = shared(test) else { return };
    let us = std::process::id().to_string();
    for (flags, code, said) in [
        (
            &["--preset", "prcl", "--save", "0"][..],
            2,
            "nothing to save",
        ),
        (
            &["--preset", "prcl", "--keep-free", "100%"],
            2,
            "between 0 and 100 %",
        ),
        (
            &["--preset", "ethp", "--save", "1G"],
            2,
            "does something else",
        ),
        (
            &["--preset", "prcl", "--save", "1G", "--keep-free", "5%"],
            2,
            "cannot be used with",
        ),
    ] {
        let done = run(isotherm(["run", "--pid", &us]).args(flags));
        assert_eq!(done.code(), code, "{flags:?}: {done:?}");
        assert!(done.stderr.contains(said), "{flags:?}: {done:?}");
    }
}

/// All but one process are left out, so that no other test's memory is touched.
#[test]
fn pprcl_pages_out_what_is_idle_whoever_has_it() {
    let test = "pprcl_pages_out_what_is_idle_whoever_has_it";
    let Some(_turn) = alone(test) else { return };
    let Some(_swap) = Swap::set_up(test) else {
        return;
    };
    let process = idle();
    let others = std::fs::read_dir("/proc").expect("processes").flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others: Vec<String> = others
        .filter(|pid| *pid != process.pid())
        .map(|pid| pid.to_string())
        .collect();
    let directory = scratch();
    let path = directory.path().join("record");
    let flags = [
        "run",
        "--preset",
        "pprcl",
        "--no-guard",
        "--cpu-budget",
        "10%",
        "--duration",
        "12s",
        "--exclude",
    ];
    let mut command = isotherm(flags);
    run(command.arg(others.join(",")).arg("-o").arg(&path)).success();
    let swapped = proc_bytes(process.pid(), "status", "VmSwap:");
    assert!(swapped > 150 * MIB, "{} MiB", swapped / MIB);
    let record = Record::whole(&path);
    let starts = record.starts();
    let start = starts.iter().find(|start| start.pid == process.pid());
    let target = start.expect("it was found").target;
    let applied = record.items.iter().filter_map(|item| match item {
        Item::Action(sample) => Some(sample),
        _ => None,
    });
    let applied: u64 = { applied.flat_map(|sample| &sample.targets) }
        .filter(|of| of.target == target)
        .map(|of| of.sz_applied)
        .sum();
    assert!(applied > 150 * MIB, "{} MiB", applied / MIB);
}
