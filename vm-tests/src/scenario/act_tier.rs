//! Memory moved between nodes, and physical memory acted on through the reverse map.

use serde_json::{Value, json};

use super::Report;
use super::acting::{
    self, COLD, HOT, STILL, TABLES, about, demote, done, intact, mib, pages, promote,
};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::pages::{Pages, Part};
use crate::vm::VmOutput;

/// Tolerance in bytes. The table monitor finds idle memory page by page; a few pages may be elsewhere for other
/// reasons.
const SLACK: u64 = 1 << 20;
/// Least share of cold memory that must go. Samples find regions of physical memory, and the runs are too short for all
/// of it.
const LEAST_COLD: f64 = 0.4;
/// Least share of hot memory that must stay.
const LEAST_HOT: f64 = 0.9;

/// Returns a configuration in damo's format, with one scheme.
fn configuration(scheme: Value) -> String {
    acting::configuration("vaddr", ["100 ms", "1 s"], ["100", "10,000"], &[scheme])
}

/// Returns a scheme that moves cold memory to node 1, with a quota of 2 MiB a second, so that a kill can hit the middle
/// of it.
fn demote_slowly() -> Value {
    let mut scheme = demote("3 s");
    scheme["quotas"] = json!({
        "time_ms": 0,
        "sz_bytes": "2 MiB",
        "reset_interval_ms": "1 s",
        "weights": {"sz_permil": 0, "nr_accesses_permil": 0, "age_permil": 1},
    });
    scheme
}

/// Shell that plans tiers with HMSDK's options, as a user would, into /tmp/tier.yaml. It shortens times that would take
/// minutes here: memory is cold if it was idle for 4 s, counted each second.
const PLAN: &str = "\
    isotherm tier plan -m 0 1 -g -o /tmp/tier.yaml || exit 1\n\
    isotherm check /tmp/tier.yaml || exit 1\n\
    sed -i 's/min: 30 s/min: 4 s/; s/aggr_us: 2 s/aggr_us: 1 s/' /tmp/tier.yaml\n";

/// Shell that fails unless two nodes are refused: a missing node, and the node that memory is on already.
const REFUSED: &str = "\
    refuses() {\n\
        what=$1; shift\n\
        isotherm run --duration 2s --no-guard \"$@\" 2>/tmp/why && die not refused: $what\n\
        grep -q \"$what\" /tmp/why || die \"$(cat /tmp/why)\"\n\
    }\n\
    refuses 'there is no NUMA node 7' --pid $target --scheme '4K max 0 0 3s max DEMOTE 7'\n\
    refuses 'on node 1 already' --physical --node 1 --scheme '4K max 0 0 3s max DEMOTE 1'\n";

pub(super) fn between_nodes(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "{on_0}look start --sum\n\
         {REFUSED}\
         act_until cold 'cold_is_on 1' {TABLES} --no-guard --scheme '4K max 0 0 3s max DEMOTE 1' --pid $target\n\
         look demoted --sum\n\
         kill $target; rm /out/truth.jsonl\n\
         # From here on the kernel moves nothing by itself.\n\
         echo 0 >/proc/sys/kernel/numa_balancing\n\
         {on_1}look on-1\n\
         taskset -p 1 $target >/dev/null || exit 1\n\
         act_until hot 'is_on_node hot 0 {most_hot}' {TABLES} --no-guard -c /hot.json --pid $target\n\
         look promoted --sum\n\
         kill $target; rm /out/truth.jsonl\n\
         {on_0}look victim --sum\n\
         # In the middle of it, as soon as anything has moved.\n\
         taskset $other_cpu isotherm run {TABLES} --no-guard -c /slow.json --pid $target >/dev/null & mover=$!\n\
         wait_for 0.2 200 some_cold_is_on 1\n\
         kill -9 $mover; wait $mover\n\
         look killed --sum\n\
         kill $target; rm /out/truth.jsonl\n\
         {on_0}look again --sum\n\
         {PLAN}\
         act_until physical 'is_on_node cold 1 {half_cold}' --no-guard -c /tmp/tier.yaml\n\
         look by-frames --sum\n",
        on_0 = STILL.start(1),
        on_1 = STILL.start(2),
        most_hot = HOT - SLACK / 2,
        half_cold = COLD / 2,
    );
    let output = acting::vm(&STILL, kernel, &script)?
        .numa_nodes(2)
        .text("/slow.json", &configuration(demote_slowly()))
        .text("/hot.json", &configuration(promote("25 %", "0 s")))
        .run_ok()?;
    of_a_process(report, &output, kernel.is_arm64())?;

    let (start, after) = (pages(&output, "victim")?, pages(&output, "killed")?);
    report.say(format!(
        "killed in the middle of migrate_cold, with {} moved",
        mib(after.cold.on(1))
    ));
    let is_in_the_middle = (1..COLD).contains(&after.cold.on(1));
    ensure!(is_in_the_middle, "it was not killed in the middle");
    intact(&start, &after, "when what moved it was killed")?;

    let start = pages(&output, "again")?;
    let (_, after) = done(report, &output, "physical", "by-frames")?;
    placed("started on node 0", &start, [HOT + COLD, 0])?;
    mostly(after.cold.on(1), after.hot.on(0), &after)?;
    intact(&start, &after, "when it was demoted by frames")
}

/// Checks that memory of a process moves to another node and back, page by page.
fn of_a_process(report: &mut Report, output: &VmOutput, is_static: bool) -> Result<()> {
    let start = pages(output, "start")?;
    placed("at first", &start, [HOT + COLD, 0])?;
    let (cold, after) = done(report, output, "cold", "demoted")?;
    placed("demoted", &after, [HOT, COLD])?;
    about(&[
        ("cold memory on node 1", after.cold.on(1), COLD, SLACK),
        ("hot memory on node 0", after.hot.on(0), HOT, SLACK),
        ("from node 0 to 1", cold.moved(0, 1), cold.applied, 0),
    ])?;
    intact(&start, &after, "when it was demoted")?;

    let on_1 = pages(output, "on-1")?;
    placed("started on node 1", &on_1, [0, HOT + COLD])?;
    let (hot, after) = done(report, output, "hot", "promoted")?;
    placed("promoted", &after, [HOT, COLD])?;
    about(&[
        ("hot memory on node 0", after.hot.on(0), HOT, SLACK),
        ("cold memory on node 1", after.cold.on(1), COLD, SLACK),
        ("from node 1 to 0", hot.moved(1, 0), hot.applied, 0),
    ])?;
    // The target has a little more memory; a static one has code of its own.
    if !is_static {
        about(&[
            ("migrate_cold", cold.applied, COLD, 3 * SLACK),
            ("migrate_hot", hot.applied, HOT, 2 * SLACK),
        ])?;
    }
    intact(&start, &after, "when it was promoted")
}

/// Fails unless the mappings hold about this much on each node according to numa_maps.
fn placed(when: &str, pages: &Pages, want: [u64; 2]) -> Result<()> {
    for (node, want) in (0..).zip(want) {
        let what = format!("{when}, on node {node} by numa_maps");
        let bytes = pages.numa_maps.get(&node).copied().unwrap_or(0);
        about(&[(what.as_str(), bytes, want, SLACK)])?;
    }
    Ok(())
}

/// Fails unless most of the cold memory went and almost all of the hot memory stayed.
fn mostly(went: u64, stayed: u64, pages: &Pages) -> Result<()> {
    let bytes = |part: &Part| part.present + part.swapped;
    let cold = went as f64 / bytes(&pages.cold) as f64;
    let hot = stayed as f64 / bytes(&pages.hot) as f64;
    ensure!(
        cold >= LEAST_COLD && hot >= LEAST_HOT,
        "{cold:.2} of the cold memory went, {hot:.2} of the hot memory stayed"
    );
    Ok(())
}

pub(super) fn whole_machine(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "isotherm swap zram --size 256M || exit 1\n\
         {start}look start --sum\n\
         act physical --cpu-budget 20% --no-guard --preset pprcl --duration {seconds}s\n\
         look paged-out --sum\n",
        start = STILL.start(1),
        // The static command for arm64 is larger, and idles as well.
        seconds = if kernel.is_arm64() { 60 } else { 24 },
    );
    let output = acting::vm(&STILL, kernel, &script)?.run_ok()?;
    let start = pages(&output, "start")?;
    let (_, after) = done(report, &output, "physical", "paged-out")?;
    mostly(after.cold.swapped, after.hot.present, &after)?;
    intact(&start, &after, "when what idles was paged out")
}
