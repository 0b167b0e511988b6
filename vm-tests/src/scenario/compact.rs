//! `isotherm compact` on memory that is fragmented as by `frag`: about every fourth page stays in use.
//!
//! The pages that stay are drawn at random. If exactly every fourth page stays, the kernel may compact nothing. Its
//! scanner for free pages looks at every 32nd page of a block (`stride` in `isolate_freepages`) until it finds a free
//! one. If page 0 of every 4 is in use, it never finds one (seen on 6.12).
//!
//! The kernel's own proactive compaction is off, so that all compaction comes from Isotherm.

use serde_json::Value;

use super::Report;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{Vm, VmOutput};

/// Makes Isotherm compact above 50, down to 40.
const PROACTIVENESS: &str = "60";
const LOW: f64 = 40.0;
/// Largest distance below the low threshold: under emulation compaction goes on between two samples and until the
/// kernel heeds the signal.
const OVERSHOOT: f64 = 20.0;

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "echo 0 >/proc/sys/vm/compaction_proactiveness\n\
         mkdir /frag && mount -t tmpfs -o size=95% tmpfs /frag\n\
         free=$(awk '/MemFree/ {{ print $2 }}' /proc/meminfo)\n\
         # One to five pages of one file and one of another, by turns; then the first file goes.\n\
         awk -v n=$(( (free - 61440) / 16 )) 'BEGIN {{ p = \"x\"; while (length(p) < 4096) p = p p\n\
         for (i = 1; i < 6; i++) q[i] = q[i - 1] p\n\
         srand(1); for (i = 0; i < n; i++) {{ printf \"%s\", q[1 + int(rand() * 5)] >\"/frag/a\"; printf \"%s\", p >\"/frag/b\" }} }}'\n\
         rm /frag/a\n\
         md5sum /frag/b >/tmp/sum\n\
         isotherm compact --node 1 --proactiveness {PROACTIVENESS} --json -o /out/one.isotherm >/out/one.json || exit 1\n\
         isotherm compact --dry-run --json >/out/between.json || exit 1\n\
         isotherm compact --daemon --duration 6s --proactiveness {PROACTIVENESS} --json >/out/daemon.jsonl || exit 1\n\
         isotherm report fragmentation /out/one.isotherm --format json >/out/report.json || exit 1\n\
         md5sum -c /tmp/sum && cat /proc/sys/vm/compaction_proactiveness\n\
         pidof isotherm && exit 1\n\
         exit 0\n"
    );
    let output = Vm::new(kernel)
        .memory_mib(768)
        .numa_nodes(2)
        .product()?
        .script(&script)
        .run_ok()?;
    let before = one_node(&output, report)?;
    other_node(&output, report, before)?;
    let said = &output.stdout;
    let is_kept = said.contains("/frag/b: OK\n0\n");
    ensure!(is_kept, "memory or a setting changed: {said}");
    Ok(())
}

/// Checks the round of node 1. Returns the later score of node 0.
fn one_node(output: &VmOutput, report: &mut Report) -> Result<f64> {
    let one: Value = output.json("one")?;
    let round = &one["nodes"][0]["round"];
    report.say(format!("node 1: {round}"));
    let before = number(round, "score_before")?;
    let after = number(round, "score_after")?;
    ensure!(before > LOW + 10.0, "the node was not fragmented: {before}");
    let is_low = stopped(round, before, after);
    ensure!(is_low, "it did not stop at the low threshold: {round}");
    let record: Value = output.json("report")?;
    let ended = round["ended"].as_str().unwrap_or_default();
    let is_told = record["nodes"][0]["rounds"]["ended"][ended] == 1;
    ensure!(is_told, "the report tells of no such round: {record}");
    let between: Value = output.json("between")?;
    let untouched = number(&between["nodes"][0]["before"], "score")?;
    let is_untouched = untouched > LOW + 10.0;
    ensure!(is_untouched, "node 0 was compacted as well: {untouched}");
    Ok(untouched)
}

/// Checks that the daemon compacted node 0, and did nothing to node 1.
fn other_node(output: &VmOutput, report: &mut Report, before: f64) -> Result<()> {
    let text = output.text("daemon.jsonl")?;
    let events: Result<Vec<Value>, serde_json::Error> =
        text.lines().map(serde_json::from_str).collect();
    let events = events.map_err(|error| VmError::Wrong(format!("{error}: {text}")))?;
    let end = events.last().unwrap_or(&Value::Null);
    let (elapsed, own_cpu) = (number(end, "elapsed_ns")?, number(end, "own_cpu_ns")?);
    report.say(format!(
        "looking took {:.1} ms of CPU time in {:.1} s",
        own_cpu / 1e6,
        elapsed / 1e9
    ));
    let sleeps = own_cpu < elapsed / 4.0;
    ensure!(sleeps, "the daemon does not sleep between looks: {end}");
    let rounds = events.iter().filter(|event| event["event"] == "round");
    let rounds: Vec<&Value> = rounds.collect();
    let is_of_0 = !rounds.is_empty() && rounds.iter().all(|round| round["node"] == 0);
    ensure!(is_of_0, "it compacted another node, or none:\n{text}");
    for round in &rounds {
        report.say(format!("daemon: {round}"));
    }
    let last = rounds[rounds.len() - 1];
    let after = number(last, "score_after")?;
    let is_low = stopped(last, before, after);
    ensure!(is_low, "node 0 is at {after} after {before}: {last}");
    Ok(())
}

/// Whether a round stopped at the low threshold, or at the end of the node with a better score than before. The place
/// where the kernel's two scanners meet depends on the layout of memory. On a busy host it also depends on the lists
/// that pages were still on.
fn stopped(round: &Value, before: f64, after: f64) -> bool {
    match round["ended"].as_str() {
        Some("at_low") => (LOW - OVERSHOOT..=LOW).contains(&after),
        Some("to_the_end") => (LOW..before - 10.0).contains(&after),
        _ => false,
    }
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name]
        .as_f64()
        .ok_or_else(|| VmError::Wrong(format!("no {name} in {value}")))
}
