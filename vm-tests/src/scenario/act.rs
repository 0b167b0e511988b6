//! Every action on a process, on each kernel, checked by the state of its pages afterwards.

use super::Report;
use super::acting::{self, COLD, Deed, HOT, STILL, TABLES, about, deed, done, intact, mib, pages};
use super::workload::SLOW;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::pages::Pages;
use crate::vm::VmOutput;

/// Shell that starts a workload on huge pages. The workload writes a quarter of them, every fourth page, and then uses
/// other memory.
const SPARSE: &str = "printf 'heap, 16MiB\\nother, 64KiB\\n\\nfill\\n1000\\nheap, 0, 16384, 1, rw\\n\\n\
     serve\\n600000\\nother, 1, 64, 1, rw\\n' >/sparse.cfg\n\
     taskset 1 isotherm workload --quiet --repeat 0 --sparse --hugepages always /sparse.cfg &\n\
     target=$!\n\
     wait_for 0.5 120 anon_at_least 17000 || die the sparse workload does not start\n\
     sleep 2; anon >/out/anon-before.txt\n";
/// Bytes of these huge pages that are not written.
const SPARSE_UNUSED: u64 = 12 << 20;
/// Shell that collapses huge pages of 32 MiB, of which this memory holds at least three.
const LARGER: &str = "printf 'heap, 128MiB, /tmp/data\n\nserve\n600000\nheap, 1, 64, 1, ro\n' >/larger.cfg\n\
     taskset 1 isotherm workload --quiet --repeat 0 --truth /out/truth.jsonl /larger.cfg &\n\
     target=$!\n\
     wait_for 0.5 240 grep -qs start /out/truth.jsonl || die the larger workload does not start\n\
     look small --sum\n\
     act_until collapse 'huge_at_least 96' --cpu-budget 20% --no-guard --scheme 'min max min max min max collapse' --pid $target\n\
     look all-huge --sum\n\
     kill $target\n";
/// Tolerance in bytes: pages may be on their way when they are counted, and the monitor makes mistakes.
const SLACK: u64 = 1 << 20;

pub(super) fn actions(kernel: Kernel, report: &mut Report) -> Result<()> {
    // Only the schemes may make huge pages here.
    let mut script = format!(
        "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled\n\
         isotherm swap zram --size 128M || exit 1\n\
         {small}look start --sum\n\
         act_until pageout cold_is_out {TABLES} --no-guard --scheme '4K max 0 0 3s max pageout' --pid $target\n\
         look paged-out --sum\n\
         look before-cold\n\
         act_until cold 'referenced_at_most {hot_only}' {SLOW} --no-guard --scheme '4K max 0 0 3s max cold' --pid $target\n\
         look cooled\n\
         act stat {TABLES} --no-guard --scheme 'min max min max min max stat' --duration 12s --pid $target\n\
         look counted --sum\n\
         kill $target; rm /out/truth.jsonl\n",
        hot_only = HOT + 2 * SLACK,
        small = STILL.start(1),
    );
    // Huge pages of 32 MiB are larger than the memory of the other programs.
    let is_larger = kernel == Kernel::Debian612Arm64Pages16K;
    if is_larger {
        script += LARGER;
    } else {
        let huge = format!(
            "{default}look small --sum\n\
             act_until hugepage 'huge {HOT}' {TABLES} --no-guard --scheme '2M max 25 100 0 max hugepage' --pid $target\n\
             look hot-huge --sum\n\
             act_until collapse 'huge {all}' {TABLES} --no-guard --scheme 'min max min max min max collapse' --pid $target\n\
             look all-huge --sum\n\
             act written {TABLES} --no-guard --scheme '2M max 0 0 3s max nohugepage' --duration 10s --pid $target\n\
             look kept --sum\n\
             kill $target\n\
             {SPARSE}\
             act_until nohugepage 'anon_at_most 6000' {TABLES} --no-guard --scheme '2M max 0 0 3s max nohugepage' --pid $target\n\
             anon >/out/anon-after.txt\n\
             kill $target\n",
            all = HOT + COLD,
            default = STILL.start_with(1, "default"),
        );
        script += &huge;
    }
    script += "isotherm swap off\n";
    let output = acting::vm(&STILL, kernel, &script)?.run_ok()?;
    reclaim(report, &output)?;
    if is_larger {
        larger(report, &output)
    } else {
        huge_pages(report, &output, kernel.is_arm64())
    }
}

fn reclaim(report: &mut Report, output: &VmOutput) -> Result<()> {
    let start = pages(output, "start")?;
    let (pageout, after) = done(report, output, "pageout", "paged-out")?;
    about(&out_of_memory(&after, COLD))?;
    says(&pageout, COLD)?;
    intact(&start, &after, "when it was paged out")?;

    let before = pages(output, "before-cold")?;
    let (cold, after) = done(report, output, "cold", "cooled")?;
    let present = after.cold.present;
    about(&[
        ("referenced before", before.referenced, HOT + COLD, SLACK),
        ("referenced after", after.referenced, HOT, 2 * SLACK),
        ("in memory after", present, COLD, 0),
    ])?;
    says(&cold, COLD)?;

    let (stat, after) = done(report, output, "stat", "counted")?;
    let present = after.cold.present;
    about(&[("in memory after counting", present, COLD, 0)])?;
    let counts_all = stat.applied == 0 && stat.tried >= HOT + COLD;
    ensure!(counts_all, "stat tried {}", mib(stat.tried));
    intact(&start, &after, "when it was cooled and counted")
}

/// Returns for [`about`] that so much cold memory is in swap, and all hot memory in memory.
fn out_of_memory(after: &Pages, swapped: u64) -> [(&'static str, u64, u64, u64); 2] {
    [
        ("cold memory in swap", after.cold.swapped, swapped, SLACK),
        ("hot memory in memory", after.hot.present, HOT, SLACK),
    ]
}

fn huge_pages(report: &mut Report, output: &VmOutput, is_static: bool) -> Result<()> {
    let start = pages(output, "small")?;
    about(&[("huge at first", start.anon_huge, 0, 0)])?;
    for (did, looked, wanted, huge) in [
        ("hugepage", "hot-huge", HOT, HOT),
        ("collapse", "all-huge", COLD, HOT + COLD),
        // Data is kept huge.
        ("written", "kept", 0, HOT + COLD),
    ] {
        let (deed, after) = done(report, output, did, looked)?;
        about(&[(looked, after.anon_huge, huge, 0)])?;
        // A static program has code and data of its own in huge pages.
        if did == "hugepage" || !is_static {
            about(&[(did, deed.applied, wanted, 0)])?;
        }
        intact(&start, &after, &format!("by {}", deed.action))?;
    }
    unused(report, output)
}

fn larger(report: &mut Report, output: &VmOutput) -> Result<()> {
    let start = pages(output, "small")?;
    let (deed, after) = done(report, output, "collapse", "all-huge")?;
    let (before, huge, applied) = (start.anon_huge, after.anon_huge, deed.applied);
    // A huge page that the ranges of several operations share counts where the first of them covers it.
    let is_applied = (huge / 2..=huge).contains(&applied);
    let is_right = before == 0 && huge >= 96 << 20 && huge % (32 << 20) == 0 && is_applied;
    let [huge, applied] = [huge, applied].map(mib);
    ensure!(is_right, "{huge} in huge pages, {applied} said");
    intact(&start, &after, "by collapse")
}

/// Checks that nohugepage frees the part of huge pages that was never written.
fn unused(report: &mut Report, output: &VmOutput) -> Result<()> {
    let before = output.number("anon-before")? << 10;
    let after = output.number("anon-after")? << 10;
    let nohugepage = deed(output, "nohugepage")?;
    report.say(format!(
        "nohugepage   gave {} back, refused: {}; anonymous memory {}, then {}",
        mib(nohugepage.applied),
        nohugepage.reasons(),
        mib(before),
        mib(after)
    ));
    let given_back = ("given back", nohugepage.applied, SPARSE_UNUSED, 0);
    let less = ("less memory", before - after, SPARSE_UNUSED, SLACK);
    about(&[given_back, less])
}

/// Fails unless the product reports at least `bytes` as applied. Its target has other memory, too.
fn says(deed: &Deed, bytes: u64) -> Result<()> {
    let (action, is_all) = (&deed.action, deed.applied >= bytes - SLACK);
    ensure!(is_all, "{action} says less than it did");
    Ok(())
}

/// Pages out incompressible memory, three times the size of the swap.
pub(super) fn more_than_swap(kernel: Kernel, report: &mut Report) -> Result<()> {
    let swap = 8 << 20;
    let script = format!(
        "isotherm swap zram --size 8M || exit 1\n\
         {start}look start --sum\n\
         act_until pageout 'swap_is_full {left_kb}' {TABLES} --no-guard --scheme '4K max 0 0 3s max pageout' --pid $target\n\
         grep Swap /proc/meminfo >/out/meminfo\n\
         look paged-out --sum\n\
         act cold {TABLES} --no-guard --scheme 'min max min max min max cold' --duration 6s --pid $target\n",
        start = STILL.start(1),
        // The eighth that is kept for the system, and a remainder that is too small for the next pages.
        left_kb = (swap / 8 + (SLACK / 4)) >> 10,
    );
    let output = acting::vm(&STILL, kernel, &script)?.run_ok()?;
    let start = pages(&output, "start")?;
    let (pageout, after) = done(report, &output, "pageout", "paged-out")?;
    for line in output.text("meminfo")?.lines() {
        report.say(line);
    }
    // An eighth is kept for the system, and another one holds other memory of the target.
    about(&out_of_memory(&after, swap / 8 * 6))?;
    let is_counted = pageout.refused("swap_full") >= COLD - swap - SLACK;
    ensure!(is_counted, "what did not fit is not counted as that");
    let cold = deed(&output, "cold")?;
    ensure!(cold.refused("swap_full") == 0, "cold needs no swap");
    intact(&start, &after, "when swap was full")
}
