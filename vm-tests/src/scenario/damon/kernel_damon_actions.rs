//! Effects of each action of the kernel's DAMON on memory, as pages, mappings and nodes show them.
//!
//! As in `kernel_damon`, something wakes on the workload's processor, so that the emulated TLB hides no access. Nothing
//! here relies on Isotherm's reports about the kernel: the kernel's counters are read from sysfs while Isotherm runs.

use serde_json::{Value, json};

use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::pages::{Pages, Part};
use crate::scenario::Report;
use crate::scenario::acting::{
    self, COLD, HOT, STILL, STILL_IN_ONE, about, demote, intact, mib, pages, pattern, promote,
};
use crate::scenario::kernel_damon::{DOES_NOTHING, FUNCTIONS, says};
use crate::vm::VmOutput;

/// Options for short intervals. DAMON begins with one region for each range of RAM, and splits each in two or three at
/// each aggregation. After about ten aggregations a region is as small as a piece of the workload. All memory is cold
/// until then, so schemes wait for [`SETTLED`], and aggregations are short.
const INTERVALS: &str = "--sample-interval 50ms --aggregation-interval 500ms --update-interval 10s";
/// [`INTERVALS`] with small regions.
const FAST: &str =
    "--sample-interval 50ms --aggregation-interval 500ms --update-interval 10s --regions 200-2000";
/// The least age of cold memory in schemes on physical memory.
const SETTLED: &str = "6 s";

/// Returns a configuration in damo's format, with the intervals of [`FAST`].
pub(crate) fn configuration(operations: &str, schemes: &[Value]) -> String {
    acting::configuration(operations, ["50 ms", "500 ms"], ["200", "2,000"], schemes)
}

/// The kernel's counters of one scheme at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Seconds since boot.
    pub(crate) seconds: f64,
    pub(crate) tried: u64,
    pub(crate) applied: u64,
    pub(crate) exceeds: u64,
    pub(crate) effective: u64,
}

/// Reads the counters of a scheme that `kernel_until NAME` noted, in order of time.
pub(crate) fn counters(output: &VmOutput, name: &str, scheme: u64) -> Result<Vec<Counters>> {
    let text = output.text(&format!("{name}.txt"))?;
    let wrong = |line: &str| VmError::Wrong(format!("{name}.txt: {line}"));
    let mut all = Vec::new();
    for line in text.lines() {
        let (seconds, rest) = line.split_once(' ').ok_or_else(|| wrong(line))?;
        let numbers: Result<Vec<u64>, _> = rest.split(' ').map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong(line))?;
        let [of, _, tried, _, applied, exceeds, effective] = numbers[..] else {
            return Err(wrong(line));
        };
        // A commit creates the tree anew, with zero counters, until the kernel is asked to update them.
        let is_torn = all.last().is_some_and(|last: &Counters| tried < last.tried);
        if of == scheme && !is_torn {
            all.push(Counters {
                seconds: seconds.parse().map_err(|_| wrong(line))?,
                tried,
                applied,
                exceeds,
                effective,
            });
        }
    }
    ensure!(!all.is_empty(), "{name}: no counters were read");
    Ok(all)
}

/// Returns the last counters of scheme 0, and adds them to the report.
fn counted(report: &mut Report, output: &VmOutput, name: &str) -> Result<Counters> {
    let all = counters(output, name, 0)?;
    let last = all[all.len() - 1];
    let seconds = last.seconds - all[0].seconds;
    report.say(format!(
        "{name}: by the kernel's counters applied to {} of {} tried, in {seconds:.0} s",
        mib(last.applied),
        mib(last.tried)
    ));
    Ok(last)
}

fn at_least(what: &str, bytes: u64, least: u64) -> Result<()> {
    let (is, wanted) = (mib(bytes), mib(least));
    ensure!(bytes >= least, "{what}: {is}, not {wanted} or more");
    Ok(())
}

fn at_most(what: &str, bytes: u64, most: u64) -> Result<()> {
    about(&[(what, bytes, 0, most)])
}

/// Bytes of cold and of hot memory that a scheme must find at least among all frames of a machine.
const MOST_COLD: u64 = COLD * 3 / 4;
const MOST_HOT: u64 = HOT * 3 / 4;
/// Bytes of the other temperature that may lie in the same regions.
const STRAY: u64 = 2 << 20;

fn interleave() -> Value {
    json!({
        "action": "migrate_cold",
        "dests": [{"id": 0, "weight": 1}, {"id": 1, "weight": 1}],
        "access_pattern": pattern(["0 %", "0 %"], ["3 s", "max"]),
    })
}

pub(crate) fn between_nodes(kernel: Kernel, report: &mut Report) -> Result<()> {
    let has_dests = kernel != Kernel::Debian612;
    let of_a_process = if has_dests {
        format!(
            "kill $target; rm /out/truth.jsonl\n\
             {}taskset 1 vm-guest wake & look one-node --sum\n\
             kernel_until both 'some_on cold 1 {}' -c /both.json --pid $target\n\
             look both --sum\n",
            STILL.start(1),
            COLD / 2 - STRAY / 2,
        )
    } else {
        "refused dests run --world kernel -c /both.json --pid $target --duration 1s\n\
         refused virtual run --world kernel --scheme '4K max 0 0 3s max DEMOTE 1' --pid $target --duration 1s\n\
         is_empty refused\n"
            .to_owned()
    };
    let script = format!(
        "{FUNCTIONS}echo 0 >/proc/sys/kernel/numa_balancing\n\
         {on_0}taskset 1 vm-guest wake &\n\
         look start --sum\n\
         kernel_until cold 'some_on cold 1 {MOST_COLD}' -c /cold.json --physical\n\
         look demoted --sum\n\
         kill $target; rm /out/truth.jsonl\n\
         {on_1}look on-1 --sum\n\
         taskset -p 1 $target >/dev/null || exit 1\n\
         kernel_until hot 'some_on hot 0 {MOST_HOT}' -c /hot.json --physical\n\
         look promoted --sum\n\
         {of_a_process}",
        on_0 = STILL.start(1),
        on_1 = STILL.start(2),
    );
    let hot = configuration("paddr", &[promote("50 %", "2 s")]);
    let output = acting::vm(&STILL, kernel, &script)?
        .instruction_ns_log2(3)
        .numa_nodes(2)
        .text("/cold.json", &configuration("paddr", &[demote(SETTLED)]))
        .text("/hot.json", &hot)
        .text("/both.json", &configuration("vaddr", &[interleave()]))
        .run_ok()?;
    by_frames(report, &output)?;
    if has_dests {
        to_both(report, &output)?;
    } else {
        says(report, &output, "dests", "it has no schemes/N/dests")?;
        says(report, &output, "virtual", DOES_NOTHING)?;
    }
    Ok(())
}

fn on_nodes(pages: &Pages) -> String {
    let part = |part: &Part| format!("{} on 0 and {} on 1", mib(part.on(0)), mib(part.on(1)));
    format!("hot {}, cold {}", part(&pages.hot), part(&pages.cold))
}

/// Reads where memory was before and after the kernel did something, and the kernel's last counters. Adds them to the
/// report.
fn moved(
    report: &mut Report,
    output: &VmOutput,
    did: &str,
    [before, after]: [&str; 2],
) -> Result<(Pages, Pages, Counters)> {
    let (start, after) = (pages(output, before)?, pages(output, after)?);
    let counters = counted(report, output, did)?;
    report.say(format!("    before: {}", on_nodes(&start)));
    report.say(format!("    then:   {}", on_nodes(&after)));
    Ok((start, after, counters))
}

fn by_frames(report: &mut Report, output: &VmOutput) -> Result<()> {
    let (start, after, cold) = moved(report, output, "cold", ["start", "demoted"])?;
    about(&[("at first on node 0", start.cold.on(0), COLD, STRAY)])?;
    at_least("cold on node 1", after.cold.on(1), MOST_COLD)?;
    at_least("hot on node 0", after.hot.on(0), HOT - STRAY)?;
    at_least("applied", cold.applied, MOST_COLD - STRAY)?;
    intact(&start, &after, "when it was demoted")?;

    let (start, after, hot) = moved(report, output, "hot", ["on-1", "promoted"])?;
    about(&[("at first on node 1", start.hot.on(1), HOT, STRAY)])?;
    at_least("hot on node 0", after.hot.on(0), MOST_HOT)?;
    at_least("cold on node 1", after.cold.on(1), COLD - 2 * STRAY)?;
    at_least("applied", hot.applied, MOST_HOT - STRAY)?;
    intact(&start, &after, "when it was promoted")
}

fn to_both(report: &mut Report, output: &VmOutput) -> Result<()> {
    let (start, after, _) = moved(report, output, "both", ["one-node", "both"])?;
    about(&[
        ("cold on node 1", after.cold.on(1), COLD / 2, STRAY),
        ("cold on node 0", after.cold.on(0), COLD / 2, STRAY),
    ])?;
    at_least("hot on node 0", after.hot.on(0), HOT - STRAY)?;
    intact(&start, &after, "when it went to both nodes")
}

pub(crate) fn lists(kernel: Kernel, report: &mut Report) -> Result<()> {
    let of_frames = format!("{FAST} --physical");
    let script = format!(
        "{FUNCTIONS}echo n >/sys/kernel/mm/lru_gen/enabled\n\
         none_active() {{ at_most hot active {few} && at_most cold active {few}; }}\n\
         swap_cached() {{ sed -n 's/SwapCached: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; }}\n\
         is_cached() {{ [ $(swap_cached) -ge {in_cache} ]; }}\n\
         # Who reads a process's memory twice has its pages activated.\n\
         activated() {{ look $1-sum --sum; look $1-sum --sum; look $1 --active; }}\n\
         isotherm swap zram --size 128M || exit 1\n\
         {start}taskset 1 vm-guest wake &\n\
         activated all\n\
         kernel_until deprio 'at_most cold active {left}' {of_frames} --scheme '4K max 0 0 6s max lru_deprio'\n\
         look deprio --active\n\
         kernel_until none none_active {of_frames} --scheme 'min max min max min max lru_deprio'\n\
         look none --active\n\
         kernel_until prio 'at_least hot active {MOST_HOT}' {of_frames} --scheme '4K max 50 100 2s max lru_prio'\n\
         look prio --active\n\
         activated again\n\
         kernel_until cold 'at_most cold active {STRAY}' {FAST} --pid $target --scheme '4K max 0 0 3s max cold'\n\
         look cold --active\n\
         kernel_until out cold_is_out {FAST} --pid $target --scheme '4K max 0 0 0 max pageout'\n\
         look out\n\
         swap_cached >/out/swap-cached-before.txt\n\
         kernel_until willneed is_cached {FAST} --pid $target --scheme '4K max 0 0 1s max willneed'\n\
         swap_cached >/out/swap-cached-after.txt\n\
         look summed --sum\n",
        start = STILL.start(1),
        left = COLD - MOST_COLD,
        few = STRAY / 2,
        in_cache = MOST_COLD >> 11,
    );
    let output = acting::vm(&STILL, kernel, &script)?.run_ok()?;
    on_lists(report, &output)?;
    brought_back(report, &output)
}

fn on_lists(report: &mut Report, output: &VmOutput) -> Result<()> {
    for (looked, hot_range, cold_range) in [
        ("all", HOT - STRAY..=HOT, COLD - STRAY..=COLD),
        // More may be active when it is counted than when the condition held: 7.1 MiB in one of four runs.
        ("deprio", MOST_HOT..=HOT, 0..=COLD - MOST_COLD + STRAY),
        ("none", 0..=STRAY, 0..=STRAY),
        ("prio", MOST_HOT..=HOT, 0..=2 * STRAY),
        ("again", HOT - STRAY..=HOT, COLD - STRAY..=COLD),
        ("cold", HOT - STRAY..=HOT, 0..=STRAY),
    ] {
        if matches!(looked, "all" | "again") {
            report.say("all of it read twice");
        } else {
            counted(report, output, looked)?;
        }
        let pages = pages(output, looked)?;
        let (hot, cold) = (pages.hot.active()?, pages.cold.active()?);
        let (hot_mib, cold_mib) = (mib(hot), mib(cold));
        report.say(format!("    then active: {hot_mib} hot, {cold_mib} cold"));
        let is_right = hot_range.contains(&hot) && cold_range.contains(&cold);
        ensure!(is_right, "{looked}: not {hot_range:?} and {cold_range:?}");
    }
    Ok(())
}

/// Checks that willneed reads pages from swap into the swap cache.
fn brought_back(report: &mut Report, output: &VmOutput) -> Result<()> {
    counted(report, output, "out")?;
    let out = pages(output, "out")?;
    at_least("cold in swap", out.cold.swapped, COLD - STRAY)?;
    counted(report, output, "willneed")?;
    let before = output.number("swap-cached-before")? << 10;
    let after = output.number("swap-cached-after")? << 10;
    let [was, is] = [before, after].map(mib);
    report.say(format!("    swap cache: {was} before, {is} after"));
    let cached = after.saturating_sub(before);
    at_least("read from swap", cached, MOST_COLD / 2)?;
    let (start, summed) = (pages(output, "all-sum")?, pages(output, "summed")?);
    intact(&start, &summed, "on its way to swap and back")
}

/// Least bytes in huge pages after hugepage. khugepaged has other criteria as well, so a part of the advised memory is
/// enough.
const HUGE_PAGE: u64 = 2 << 20;

/// Least bytes in huge pages after collapse. A block in which a region ends is not collapsed, and regions end anywhere.
const MOST_HUGE: u64 = (HOT + COLD) / 4 * 3;

pub(crate) fn huge_pages(kernel: Kernel, report: &mut Report) -> Result<()> {
    let collapses = kernel != Kernel::Debian612;
    let collapse = if collapses {
        format!(
            "kernel_until collapse 'huge_at_least {MOST_HUGE}' {INTERVALS} --regions 10-100 --pid $target \
             --scheme 'min max min max min max collapse'\n\
             look collapse --sum\n",
        )
    } else {
        format!(
            "refused collapse run --world kernel {FAST} --scheme 'min max min max min max collapse' --pid $target \
             --duration 1s\n\
             is_empty collapse\n"
        )
    };
    let script = format!(
        "{FUNCTIONS}thp=/sys/kernel/mm/transparent_hugepage\n\
         echo madvise >$thp/enabled; echo 100 >$thp/khugepaged/scan_sleep_millisecs\n\
         echo 65536 >$thp/khugepaged/pages_to_scan\n\
         is_advised() {{ at_least hot advised_huge {MOST_HOT} && huge_at_least {HUGE_PAGE}; }}\n\
         huge_at_least() {{ [ \"0$(said '\"anon_huge\":')\" -ge $1 ]; }}\n\
         {start}taskset 1 vm-guest wake &\n\
         look start --sum\n\
         kernel_until hugepage is_advised {FAST} --pid $target --scheme '4K max 50 100 3s max hugepage'\n\
         look hugepage --sum\n\
         kernel_until nohugepage 'at_least cold advised_small {cold}' {FAST} --pid $target \
         --scheme '4K max 0 0 3s max nohugepage'\n\
         look nohugepage --sum\n\
         kill $target; rm /out/truth.jsonl\n\
         {start}taskset 1 vm-guest wake &\n\
         look again --sum\n\
         {collapse}",
        start = STILL_IN_ONE.start_with(1, "default"),
        cold = COLD - STRAY,
    );
    let output = acting::vm(&STILL_IN_ONE, kernel, &script)?.run_ok()?;
    advised(report, &output)?;
    if collapses {
        let (start, after) = (pages(&output, "again")?, pages(&output, "collapse")?);
        counted(report, &output, "collapse")?;
        let [was, is] = [start.anon_huge, after.anon_huge].map(mib);
        report.say(format!("    huge pages: {was} before, {is} after"));
        about(&[("huge at first", start.anon_huge, 0, 0)])?;
        at_least("collapsed", after.anon_huge, MOST_HUGE)?;
        intact(&start, &after, "when it was collapsed")?;
    } else {
        says(report, &output, "collapse", "does not take 'collapse'")?;
    }
    Ok(())
}

/// Checks the advice that hugepage and nohugepage gave, and its effect.
fn advised(report: &mut Report, output: &VmOutput) -> Result<()> {
    let say = |report: &mut Report, pages: &Pages| {
        report.say(format!(
            "    then advised huge: {} hot, {} cold; advised small: {} hot, {} cold; huge: {}",
            mib(pages.hot.advised_huge),
            mib(pages.cold.advised_huge),
            mib(pages.hot.advised_small),
            mib(pages.cold.advised_small),
            mib(pages.anon_huge),
        ));
    };
    let start = pages(output, "start")?;
    let none = start.hot.advised_huge + start.cold.advised_huge + start.anon_huge;
    about(&[("advised or huge at first", none, 0, 0)])?;
    counted(report, output, "hugepage")?;
    let after = pages(output, "hugepage")?;
    say(report, &after);
    let (hot, cold) = (after.hot.advised_huge, after.cold.advised_huge);
    at_least("hot advised huge", hot, MOST_HOT)?;
    at_most("cold advised huge", cold, COLD / 4)?;
    at_least("huge", after.anon_huge, HUGE_PAGE)?;
    intact(&start, &after, "when khugepaged was advised")?;

    counted(report, output, "nohugepage")?;
    let after = pages(output, "nohugepage")?;
    say(report, &after);
    let (hot, cold) = (after.hot.advised_small, after.cold.advised_small);
    at_least("cold advised small", cold, COLD - STRAY)?;
    at_most("hot advised small", hot, STRAY)?;
    intact(&start, &after, "when it was advised against huge pages")
}
