//! Acting until a goal of saved memory.

use crate::common::{
    MIB, Running, isotherm, pause, proc_bytes, python, run, shared, until_so, with_swap,
};

/// Maps 192 MiB and touches them once.
const IDLE: &str = "\
memory = bytearray(192 << 20)
for at in range(0, len(memory), 4096): memory[at:at + 8] = at.to_bytes(8, 'little')
print('ready', flush=True)
import time; time.sleep(600)";

fn idle() -> Running {
    Running::ready(&mut python(IDLE))
}

/// Starts prcl with a goal on a process.
fn reclaim(goal: [&str; 2], process: &Running) -> Running {
    let mut command = isotherm(["run", "--preset", "prcl", "--no-guard", "--pid"]);
    Running::start(command.arg(process.pid().to_string()).args(goal))
}

fn swapped(process: &Running) -> u64 {
    proc_bytes(process.pid(), "status", "VmSwap:")
}

#[test]
fn paging_out_ends_when_enough_is_saved() {
    let Some(_turn) = with_swap() else { return };
    let process = idle();
    let runner = reclaim(["--save", "64M"], &process);
    until_so("60 MiB in swap", || swapped(&process) >= 60 * MIB);
    // All of the process is old enough by now: without the goal, the rest would follow at once.
    pause(3.0);
    runner.interrupt();
    let swapped = swapped(&process) / MIB;
    assert!((60..72).contains(&swapped), "{swapped} MiB");
}

/// Enough memory is free already.
#[test]
fn nothing_is_paged_out_where_enough_is_free() {
    let Some(_turn) = with_swap() else { return };
    let process = idle();
    let runner = reclaim(["--keep-free", "0.01%"], &process);
    // prcl pages out memory that is idle for 5 s.
    pause(8.0);
    runner.interrupt();
    assert!(swapped(&process) < MIB, "{}", swapped(&process));
}

#[test]
fn goals_that_cannot_be_say_why() {
    let Some(_turn) = shared() else { return };
    let us = std::process::id().to_string();
    for (flags, said) in [
        (&["prcl", "--save", "0"][..], "nothing to save"),
        (&["prcl", "--keep-free", "100%"], "between 0 and 100 %"),
        (&["ethp", "--save", "1G"], "does something else"),
        (
            &["prcl", "--save", "1G", "--keep-free", "5%"],
            "cannot be used with",
        ),
    ] {
        run(isotherm(["run", "--pid", &us, "--preset"]).args(flags)).refused(said);
    }
}
