//! The guard on memory pressure (PSI), which not every machine has.

use isotherm_engine::{Nanos, Snapshot};
use isotherm_policy::guard::Limit;
use isotherm_record::Item;
use serde_json::Value;

use super::Report;
use super::acting::{self, COLD, STILL, about, deed, intact, mib, pages};
use super::workload;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::vm::VmOutput;

const LIMITED: &str = "--preset prcl --max-psi 10% --cpu-budget 20% --pid $target";

/// Shell functions. `squeeze` keeps 48 MiB in use under a limit of 16 MiB, so that it waits for swap most of the time.
/// `paged_out` and `stopped` are conditions for `until_true SECONDS`.
const SQUEEZE: &str = "\
    squeeze() {\n\
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control\n\
    mkdir -p /sys/fs/cgroup/squeezed && echo 16M >/sys/fs/cgroup/squeezed/memory.max || exit 1\n\
    printf 'tight, 48MiB\\n\\nserve\\n600000\\ntight, 1, 64, 1, rw\\n' >/tmp/tight.cfg\n\
    sh -c 'echo $$ >/sys/fs/cgroup/squeezed/cgroup.procs; exec taskset $other_cpu isotherm workload --quiet --repeat 0 --sparse /tmp/tight.cfg' &\n\
    squeezed=$!\n\
    }\n\
    until_true() { wait_for 1 $1 $2 || die \"$2 never came: $(cat /out/daemon.log)\"; }\n\
    paged_out() { [ $(awk '/VmSwap/ { print $2 }' /proc/$target/status) -gt 20480 ]; }\n\
    stopped() { isotherm status --json >/out/status.json 2>/dev/null && grep -q '\"exceeded\": *\"psi\"' /out/status.json; }\n";

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "{SQUEEZE}\
         isotherm swap zram --size 256M || exit 1\n\
         {start}look start --sum\n\
         taskset $other_cpu isotherm run --json {LIMITED} --output /out/run.isotherm >/out/run.json &\n\
         acting=$!\n\
         until_true 90 paged_out\n\
         squeeze\n\
         sleep 4\n\
         # This brings all of it back, which then idles until it would be paged out again.\n\
         look brought-back --sum\n\
         sleep 9\n\
         look kept\n\
         kill $acting; wait $acting\n\
         # The same as a daemon, which is asked for its status.\n\
         isotherm start {LIMITED} >/out/daemon.log 2>&1 &\n\
         until_true 60 stopped\n\
         isotherm status >/out/status.txt\n\
         isotherm stop >/dev/null\n\
         kill -9 $squeezed\n\
         look end --sum\n",
        start = STILL.start(1),
    );
    let vm = acting::vm(&STILL, kernel, &script)?;
    let output = vm.cmdline_extra("psi=1").run_ok()?;
    let run = deed(&output, "run")?;
    report.say(format!(
        "{}: applied {}, the guard stopped it {} time(s)",
        run.action,
        mib(run.applied),
        run.guard_stops
    ));
    stopped(report, &workload::items(&output, "run")?)?;
    ensure!(run.guard_stops >= 1, "the summary tells of no stop");
    let kept = pages(&output, "kept")?.cold.present;
    report.say(format!(
        "idle again under pressure, and not paged out: {}",
        mib(kept)
    ));
    about(&[("resident cold memory", kept, COLD, 1 << 20)])?;
    status(report, &output)?;
    let (start, end) = (pages(&output, "start")?, pages(&output, "end")?);
    intact(&start, &end, "under pressure")?;

    let script = format!(
        "isotherm swap zram --size 256M || exit 1\n\
         {start}isotherm run {LIMITED} --duration 1s 2>/out/why && exit 1\n\
         look start\n",
        start = STILL.start(1),
    );
    let vm = acting::vm(&STILL, kernel, &script)?;
    let output = vm.cmdline_extra("psi=0").run_ok()?;
    let why = output.text("why")?;
    let last = why.trim().lines().last().unwrap_or_default();
    report.say(format!("with psi=0: {last}"));
    let is_said = why.contains("psi=1");
    ensure!(is_said, "why pressure cannot be limited is not said");
    let swapped = pages(&output, "start")?.cold.swapped;
    about(&[("paged out without a guard", swapped, 0, 0)])
}

/// Fails unless pressure stopped the schemes according to the record, and they did nothing until the guard opened
/// again.
fn stopped(report: &mut Report, items: &[Item]) -> Result<()> {
    let began = items.iter().find_map(|item| match item {
        Item::Snapshot(Snapshot { start, .. }) => Some(*start),
        _ => None,
    });
    let after = |time: Nanos| time.since(began.unwrap_or(time)).as_secs_f64();
    let (mut is_open, mut by_pressure, mut before, mut meanwhile) = (true, 0, 0, 0);
    for item in items {
        match item {
            Item::Guard(guard) => {
                is_open = guard.status.is_open;
                by_pressure += u32::from(!is_open && guard.status.exceeded == Some(Limit::Psi));
                report.say(format!(
                    "after {:.1} s the guard is {}: pressure {:.2}, exceeded {:?}",
                    after(guard.time),
                    if is_open { "open" } else { "closed" },
                    guard.status.signals.psi.unwrap_or(f64::NAN),
                    guard.status.exceeded,
                ));
            }
            Item::Action(action) if is_open => before += action.sz_applied,
            Item::Action(action) => meanwhile += action.sz_applied,
            _ => {}
        }
    }
    report.say(format!(
        "{} paged out while it was open, {} while it was closed",
        mib(before),
        mib(meanwhile)
    ));
    let has_stopped = by_pressure >= 1 && meanwhile == 0 && before >= COLD / 4;
    ensure!(has_stopped, "pressure did not stop the schemes");
    Ok(())
}

fn status(report: &mut Report, output: &VmOutput) -> Result<()> {
    let status: Value = output.json("status")?;
    let guard = &status["contexts"][0]["guard"];
    for line in output.text("status.txt")?.lines() {
        if line.contains("guard") {
            report.say(format!("status: {}", line.trim()));
        }
    }
    let is_told = guard["exceeded"] == "psi" && guard["is_open"] == false;
    ensure!(is_told, "the status does not tell of the stop: {guard}");
    Ok(())
}
