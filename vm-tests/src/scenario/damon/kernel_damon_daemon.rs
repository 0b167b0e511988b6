//! The kernel's DAMON under a daemon: tuned by commits, paused, resumed, ended; and under a guard.
//!
//! The schemes in force are read from the tree itself.

use serde_json::{Value, json};

use crate::error::Result;
use crate::kernel::Kernel;
use crate::scenario::Report;
use crate::scenario::acting::{self, COLD, STILL, about, mib, pages, pattern};
use crate::scenario::kernel_damon::{DOES_NOTHING, FUNCTIONS, says};
use crate::scenario::workload::{SCATTERED, SLOW};
use crate::vm::VmOutput;

/// Bytes of cold memory that may still be in memory.
const LEFT: u64 = 2 << 20;

/// Returns a configuration in damo's format, with one scheme.
fn configuration(action: &str) -> String {
    let cold = pattern(["0 %", "0 %"], ["5 s", "max"]);
    let scheme = json!({"action": action, "access_pattern": cold});
    acting::configuration("vaddr", ["100 ms", "1 s"], ["10", "1,000"], &[scheme])
}

/// Shell functions; `action`, `in_force` and `becomes` read the action in force from the tree.
const IN_FORCE: &str = "\
action() { cat $tree/0/contexts/0/schemes/0/action; }\n\
in_force() { [ \"$(action)\" = $1 ]; }\n\
becomes() { wait_for 0.5 60 in_force $1 || die \"in force is $(action), not $1; $(isotherm status)\"; }\n\
has_stopped() {\n\
    isotherm report actions --json /out/guarded.isotherm 2>/dev/null | grep -q '\"stops\": [1-9]'\n\
}\n\
daemon() { isotherm \"$@\" || die \"$1 failed: $(cat /run/isotherm/*.log)\"; }\n";

fn script() -> String {
    [
        FUNCTIONS,
        IN_FORCE,
        &STILL.start(1),
        "isotherm swap zram --size 128M || exit 1\ntaskset 1 vm-guest wake &\nlook before --sum\n",
        &format!(
            "daemon start --world kernel {SLOW} --no-guard --scheme '4K max 0 0 5s max stat' --pid $target --detach\n"
        ),
        "becomes stat\nsleep 6\n\
         refused lacks tune -c /lacks.json\n\
         in_force stat || die a tuning that failed is in force\n\
         look untouched\n\
         daemon tune -c /pageout.json\n\
         becomes pageout\n\
         wait_for 1 60 cold_is_out\n\
         look out\n\
         daemon pause\nbecomes stat\n\
         isotherm status --json >/out/paused.json || exit 1\n\
         isotherm status >/out/paused.txt\n\
         daemon resume\nbecomes pageout\n\
         daemon stop\nis_empty daemon\n\
         look after --sum\n",
        // Cold memory is read again and again, which brings it back.
        &format!(
            "( while true; do vm-guest pages --pid $target --truth /out/truth.jsonl --sum >/dev/null; sleep 4; done ) & toucher=$!\n\
             act_until guarded has_stopped --world kernel {SLOW} --max-refaults 100/s --scheme '4K max 0 0 3s max pageout' --pid $target -o /out/guarded.isotherm\n\
             kill $toucher\nis_empty guarded\n"
        ),
    ]
    .concat()
}

pub(crate) fn compare(kernel: Kernel, report: &mut Report) -> Result<()> {
    let worlds = ["linux", "faithful", "kernel", "simulated"];
    let script = [
        FUNCTIONS,
        &SCATTERED.start(1),
        "taskset 1 vm-guest wake &\n",
        &format!(
            "taskset $other_cpu isotherm compare {SLOW} --worlds {} --scheme '4K max 0 0 4s max pageout' --pid $target --turns 1 --window 15s --scan-stall 2s \
             -o /out/compare.html --json >/out/compare.json || die \"$(cat /out/compare.json)\"\n\
             is_empty compare\n",
            worlds.join(",")
        ),
    ]
    .concat();
    let vm = SCATTERED.vm(kernel, &script)?.instruction_ns_log2(3);
    let output = vm.run_ok()?;
    let compared: Value = output.json("compare")?;
    for (at, world) in worlds.iter().enumerate() {
        let turn = &compared["worlds"][at]["turns"][0];
        let number = |name: &str| turn[name].as_f64();
        report.say(format!(
            "{world:<10} in use {:.2} / {:.2}, idle for 4 s {:.2} / {:.2} (precision / recall), {} regions, pageout is about {}, {} of it in use",
            number("accessed_precision").unwrap_or(f64::NAN),
            number("accessed_recall").unwrap_or(f64::NAN),
            number("idle_precision").unwrap_or(f64::NAN),
            number("idle_recall").unwrap_or(f64::NAN),
            turn["regions"],
            mib(turn["schemes"][0]["bytes"].as_u64().unwrap_or(0)),
            mib(turn["schemes"][0]["accessed_bytes"].as_u64().unwrap_or(0)),
        ));
        let shares = ["accessed_recall", "idle_precision"].map(number);
        let is_good = shares.iter().all(|share| *share >= Some(LEAST_COMPARED));
        ensure!(is_good, "{world} is not as it was");
    }
    let page = output.text("compare.html")?;
    let is_whole = page.contains("Worlds compared") && page.contains("faithful");
    ensure!(is_whole, "the page lacks what it is about");
    Ok(())
}

/// Least recall of accessed memory, and least precision of idle memory. Memory reported as idle that is in use, and
/// memory in use that is not seen, are both rare; a region's border lies anywhere.
const LEAST_COMPARED: f64 = 0.7;

pub(crate) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let output = acting::vm(&STILL, kernel, &script())?
        .text("/pageout.json", &configuration("pageout"))
        .text("/lacks.json", &configuration("lru_prio"))
        .run_ok()?;
    daemon(report, &output)?;
    guarded(report, &output)
}

fn daemon(report: &mut Report, output: &VmOutput) -> Result<()> {
    says(report, output, "lacks", DOES_NOTHING)?;
    let (before, untouched) = (pages(output, "before")?, pages(output, "untouched")?);
    let (out, after) = (pages(output, "out")?, pages(output, "after")?);
    report.say(format!(
        "cold memory present: {} before, {} by `stat`, {} once tuned to `pageout`",
        mib(before.cold.present),
        mib(untouched.cold.present),
        mib(out.cold.present),
    ));
    about(&[
        ("cold, by `stat`", untouched.cold.present, COLD, LEFT),
        ("cold, by `pageout`", out.cold.present, 0, LEFT),
    ])?;
    acting::intact(&before, &after, "under the daemon")?;
    let status: Value = output.json("paused")?;
    let context = &status["contexts"][0];
    let applied = context["schemes"][0]["stats"]["sz_applied"].as_u64();
    let is_paused = status["paused"] == true && context["kdamond"].is_u64();
    let is_so = is_paused && applied >= Some(COLD - LEFT);
    ensure!(is_so, "what the status says is not so: {status:#}");
    let text = output.text("paused.txt")?;
    let line = text.lines().find(|line| line.contains("scheme 0"));
    report.say(line.unwrap_or_default());
    Ok(())
}

fn guarded(report: &mut Report, output: &VmOutput) -> Result<()> {
    let deed = acting::deed(output, "guarded")?;
    let summary: Value = output.json("guarded")?;
    let out = summary["paged_out_bytes"].as_u64().unwrap_or(0);
    report.say(format!(
        "guarded: {} went out of memory (the kernel says {} of {}), {} stops",
        mib(out),
        mib(deed.applied),
        mib(deed.tried),
        deed.guard_stops
    ));
    let has_stopped = out > 0 && deed.guard_stops > 0;
    ensure!(has_stopped, "memory came back, and nothing stopped");
    Ok(())
}
