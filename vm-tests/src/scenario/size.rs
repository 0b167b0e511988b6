//! Sizes of a control group of version 2, which not every machine has: trials by `memory.high`, parking with a freeze.

use serde_json::Value;

use super::Report;
use super::acting::mib;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::vm::Vm;

const HOT: u64 = 16 << 20;
const ALL: u64 = 64 << 20;
/// Memory of the program and of its kernel side, beside the workload's.
const REST: u64 = 24 << 20;

/// The workload writes all of its memory, and then uses a quarter.
const WORKLOAD: &str = "hot, 16MiB\\ncold, 48MiB\\n\\n\
     fill\\n2000\\nhot, 1, 4096, 1, wo\\ncold, 1, 4096, 1, wo\\n\\n\
     serve\\n600000\\nhot, 1, 4096, 1, rw\\n";

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "echo +memory >/sys/fs/cgroup/cgroup.subtree_control\n\
         group=/sys/fs/cgroup/sized\n\
         mkdir $group && isotherm swap zram --size 192M || exit 1\n\
         printf '{WORKLOAD}' >/tmp/sized.cfg\n\
         sh -c \"echo \\$\\$ >$group/cgroup.procs; exec isotherm workload --quiet --repeat 0 /tmp/sized.cfg\" &\n\
         sleep 8\n\
         isotherm size --cgroup sized --duration 6s --verify --json >/out/size.json || exit 1\n\
         cat $group/memory.high >/out/after.txt\n\
         isotherm park --cgroup sized --freeze --json >/out/park.json || exit 1\n\
         cat $group/cgroup.events >/out/parked.txt\n\
         isotherm wake --cgroup sized --watch 2s --json >/out/wake.json || exit 1\n\
         cat $group/cgroup.events >/out/woken.txt\n\
         isotherm park --cgroup sized --freeze --json >/out/park-again.json || exit 1\n\
         isotherm wake --cgroup sized --watch 100ms --json >/out/wake-again.json || exit 1\n\
         kill -9 $(cat $group/cgroup.procs)\n\
         exit 0\n"
    );
    let vm = Vm::new(kernel).product()?.zram().script(&script);
    let output = vm.run_ok()?;
    let size: Value = output.json("size")?;
    let is_hot = |bytes: &u64| (HOT..HOT + REST).contains(bytes);
    let number = |of: &Value| of.as_u64().unwrap_or(0);
    let [request, least] = [
        number(&size["with_swap"]["request"]["bytes"]),
        number(&size["verified"]["least_bytes"]),
    ];
    report.say(format!("request {}, enough {}", mib(request), mib(least)));
    for trial in size["verified"]["trials"].as_array().into_iter().flatten() {
        report.say(format!("tried: {trial}"));
    }
    let are_hot = [request, least].iter().all(is_hot);
    ensure!(are_hot, "neither is the hot part: {size}");
    let high = output.text("after.txt")?;
    ensure!(high.trim() == "max", "memory.high is left at {high}");

    let (park, wake): (Value, Value) = (output.json("park")?, output.json("wake")?);
    let again: Value = output.json("wake-again")?;
    report.say(format!("park {park}, wake {wake}, and again {again}"));
    let left = number(&park["processes"][0]["resident_after_bytes"]);
    // Other processes map the same executable.
    ensure!(left < ALL / 5, "{} are left in memory", mib(left));
    for (file, wanted) in [("parked.txt", "frozen 1"), ("woken.txt", "frozen 0")] {
        let events = output.text(file)?;
        let is_so = events.lines().any(|line| line == wanted);
        ensure!(is_so, "not {wanted}: {events}");
    }
    let [first, second] = [&wake, &again].map(|of| number(&of["prefetched_bytes"]));
    let is_known = first == 0 && is_hot(&second);
    ensure!(is_known, "the second wake does not know the first's order");
    Ok(())
}
