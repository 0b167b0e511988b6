//! Accuracy of kernel DAMON, `--faithful` and the default monitor on programs of the generated family: the table of
//! docs/results/kernel-damon.md. Each snapshot is judged by the pages that the program touched in that snapshot's own
//! interval.
//!
//! The machine has one processor, and its clock counts instructions (QEMU's `-icount`). CPU time is a number of
//! instructions, the same on a busy host as on a quiet one. It differs from a processor's time: an instruction that
//! waits for memory costs as much as one that does not, and an interrupt costs only its instructions. DAMON runs at its
//! own intervals, 5 ms and 100 ms, and at tenfold ones, which are nearer to the default's. The default monitor's budget
//! is the share of the processor that kernel DAMON took at its own intervals, recorder and kdamond together.
//! `--faithful` runs at DAMON's intervals, with no budget.
//!
//! An emulated TLB keeps entries that a processor's would evict, and DAMON does not flush it. `vm-guest wake` therefore
//! runs beside it, as in `kernel_damon`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use isotherm_engine::statistics::{ValueSummary, median};
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, Snapshot};
use isotherm_workload::family::journal::Touched;
use isotherm_workload::family::pages::PageSet;
use isotherm_workload::family::verdict::{IDLE_FOR, Truth, Verdict, settled, verdict};
use isotherm_workload::family::{EDGE, Ready, TouchJournal};
use isotherm_workload::score::{AccuracyScore, share};

use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::scenario::kernel_damon::FUNCTIONS;
use crate::scenario::{Report, workload};
use crate::vm::{Vm, VmOutput};

const SEED: u64 = 1;
/// Indices of programs with and without holes; swept, spread and random; in single pages and pieces of up to 16 MiB.
const CASES: [u64; 5] = [8, 9, 17, 19, 23];
const LIMIT: u64 = 128 << 20;
const REPEATS: usize = 2;
/// Duration of each record, in seconds; the first 5 s are not judged.
const SECONDS: u32 = 15;
/// An instruction takes 2 ns.
const NS_LOG2: u32 = 1;

/// Monitors, and the options with which each records.
type Modes = [(&'static str, &'static str)];

const WITH_KERNEL_DAMON: &Modes = &[
    ("kernel DAMON, vaddr", "--world kernel --pid $target"),
    (
        "kernel DAMON, vaddr, 50 ms / 1 s",
        "--world kernel --sample-interval 50ms --aggregation-interval 1s --update-interval 10s --pid $target",
    ),
    ("kernel DAMON, paddr", "--world kernel --physical"),
    ("`--faithful`", "--faithful --pid $target"),
    ("default", "--cpu-budget $share --pid $target"),
];

/// The budget of [`super::super::record`], of 62 million instructions a second.
const ALONE: &Modes = &[("default", "--cpu-budget 20% --pid $target")];
/// Programs that the default monitor alone is judged by.
const CASES_ALONE: std::ops::Range<u64> = 0..12;
/// Precision and recall that nearly all of these must have.
const LEAST: f64 = 0.95;

fn script(case: u64, modes: &Modes) -> String {
    let mut script = format!(
        // Memory with holes is larger than the machine's.
        "{FUNCTIONS}echo 1 >/proc/sys/vm/overcommit_memory\nvm-guest truth-case --seed {SEED} --index {case} --limit {LIMIT} --ready /out/ready.json \
         --journal /tmp/journal & target=$!\n\
         wait_for 0.1 300 test -e /out/ready.json\n\
         frames() {{ vm-guest page-frames --pid $target --ready /out/ready.json --out /out/frames_$1 || exit 1; }}\n\
         vm-guest wake &\n"
    );
    for (at, (_, options)) in modes.iter().enumerate() {
        let _ = write!(
            script,
            "frames before\nisotherm record --quiet --duration {SECONDS}s -o /out/{at}.isotherm {options} || exit 1\n\
             share=$(vm-guest cpu-share /out/{at}.isotherm)\n\
             echo $share >/out/{at}.share\n"
        );
        if options.contains("--physical") {
            script += "frames after\nmv /out/frames_before /out/frames\n";
        }
        // The default monitor's budget is the CPU share of `vaddr`.
        if at == 0 {
            script += "of_kernel=$share\n";
        }
        script += "share=$of_kernel\n";
    }
    script + "sleep 1\nkill -TERM $target\nwait $target || exit 1\nmv /tmp/journal /out/journal\n"
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    precision: Option<f64>,
    recall: Option<f64>,
    idle_precision: Option<f64>,
    idle_recall: Option<f64>,
    unknown: Option<f64>,
    cpu: Option<f64>,
    interval: Option<f64>,
}

pub(crate) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    heading(report, REPEATS);
    for case in CASES {
        let machine = || Vm::new(kernel).instruction_ns_log2(NS_LOG2);
        let rows = judged(&machine, report, case, WITH_KERNEL_DAMON, REPEATS)?;
        for ((mode, _), rows) in WITH_KERNEL_DAMON.iter().zip(rows) {
            let are_judged = rows.iter().all(|row| row.interval.is_some());
            ensure!(are_judged, "{case}, {mode}: no snapshot can be judged");
        }
    }
    Ok(())
}

/// Judges the default monitor alone, on kernels without DAMON, too. The cases take turns on machines of one and two nodes,
/// and on arm64 on processors that set access flags and that leave it to the kernel. One case may fall short.
pub(crate) fn alone(kernel: Kernel, report: &mut Report) -> Result<()> {
    heading(report, 1);
    let (mut nr, mut nr_short) = (0, 0);
    for case in CASES_ALONE {
        let machine = || machine_of(kernel, case);
        let rows = judged(&machine, report, case, ALONE, 1)?;
        let scores = rows
            .iter()
            .flatten()
            .flat_map(|row| [row.precision, row.recall]);
        let known: Vec<f64> = scores.flatten().collect();
        nr += u32::from(!known.is_empty());
        nr_short += u32::from(known.iter().any(|score| *score < LEAST));
    }
    report.say(format!(
        "{nr} cases are judged; {nr_short} are below {LEAST}"
    ));
    ensure!(nr >= 8, "too few cases can be judged");
    ensure!(nr_short <= 1, "{nr_short} cases fall short");
    Ok(())
}

fn machine_of(kernel: Kernel, case: u64) -> Vm {
    let mut vm = Vm::new(kernel);
    if kernel.is_arm64() && case % 2 == 1 {
        vm = vm.cpu("cortex-a72");
    }
    if case % 4 >= 2 {
        vm = vm.numa_nodes(2);
    }
    vm
}

fn heading(report: &mut Report, repeats: usize) {
    report.say(format!(
        "seed {SEED}, at most {} MiB; {repeats} repeats of {SECONDS} s; median [least..most]",
        LIMIT >> 20
    ));
    report.say("| case | monitor | interval, s | touched: P | R | idle for 2 s: P | R | unknown % | CPU % |");
    report.say("|---|---|---|---|---|---|---|---|---|");
}

/// Returns the rows of each mode.
fn judged(
    machine: &dyn Fn() -> Vm,
    report: &mut Report,
    case: u64,
    modes: &Modes,
    repeats: usize,
) -> Result<Vec<Vec<Row>>> {
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); modes.len()];
    let mut name = String::new();
    for _ in 0..repeats {
        let output = boot(machine(), case, modes)?;
        let journal = journal(&output)?;
        name = format!(
            "{case}: {}, {}",
            journal.ready.case,
            journal.ready.case.traits()
        );
        for (at, rows) in rows.iter_mut().enumerate() {
            rows.push(judge(&output, &journal, at, modes[at].1)?);
        }
    }
    for (at, rows) in rows.iter().enumerate() {
        say(report, if at == 0 { &name } else { "" }, modes[at].0, rows);
    }
    Ok(rows)
}

fn boot(machine: Vm, case: u64, modes: &Modes) -> Result<VmOutput> {
    machine
        .product()?
        .guest_tool()?
        .script(&script(case, modes))
        .cpu_limit(Duration::from_mins(15))
        .run_ok()
}

fn journal(output: &VmOutput) -> Result<TouchJournal> {
    let ready: Ready = output.json("ready")?;
    TouchJournal::read(ready, output.bytes("journal")?)
        .map_err(|e| VmError::Wrong(format!("the journal: {e}")))
}

fn judge(output: &VmOutput, journal: &TouchJournal, at: usize, options: &str) -> Result<Row> {
    let snapshots = workload::snapshots(output, &at.to_string())?;
    let share = output.text(&format!("{at}.share"))?;
    let is_physical = options.contains("--physical");
    let mut row = if is_physical {
        judge_by(&ByFrame::new(output, journal)?, journal, &snapshots)
    } else {
        judge_by(journal, journal, &snapshots)
    };
    row.cpu = share.trim().trim_end_matches('%').parse().ok();
    Ok(row)
}

/// Scores all pages of all snapshots that are judged.
fn judge_by(truth: &impl Truth, journal: &TouchJournal, snapshots: &[Snapshot]) -> Row {
    let moves = journal.moves();
    let populated = populated(journal);
    let mut idle = AccuracyScore::default();
    let mut verdicts: Vec<Verdict> = Vec::new();
    let covered = |s: &&Snapshot| journal.covers(s.start, s.end);
    for snapshot in settled(snapshots, &moves).filter(covered) {
        let verdict = verdict(truth, snapshot);
        if verdict.is_decided() {
            verdicts.push(verdict);
        }
        add_idle(&mut idle, truth, &populated, snapshot);
    }
    let touched: AccuracyScore = verdicts.iter().map(Verdict::score).sum();
    let unknown: f64 = verdicts.iter().map(|v| v.unknown_touched).sum();
    Row {
        precision: touched.precision(),
        recall: touched.recall(),
        idle_precision: idle.precision(),
        idle_recall: idle.recall(),
        unknown: share(unknown, touched.truth + unknown).map(|share| 100.0 * share),
        cpu: None,
        interval: median(verdicts.iter().map(|v| v.interval.as_secs_f64()).collect()),
    }
}

/// Scores the populated pages that a snapshot reports as idle by those that were not touched for [`IDLE_FOR`].
fn add_idle(
    idle: &mut AccuracyScore,
    truth: &impl Truth,
    populated: &PageSet,
    snapshot: &Snapshot,
) {
    let since = Nanos(snapshot.end.0.saturating_sub(IDLE_FOR.0));
    let recent = truth.touched(since, snapshot.end).certain;
    idle.truth += populated.len() as f64 - recent.len() as f64;
    let said = snapshot.regions.iter();
    for region in said.filter(|r| r.age_ns >= IDLE_FOR && r.idle() > 0) {
        let part = (region.idle() as f64 / region.resident().max(1) as f64).min(1.0);
        for (_, pages) in truth.parts(region.range) {
            let there = populated.count(pages.clone()) as f64;
            let wrong = (recent.count(pages) as f64).min(there);
            idle.claim(part * (there - wrong), part * wrong);
        }
    }
}

fn populated(journal: &TouchJournal) -> PageSet {
    let pages = (journal.ready.memory.len() / PAGE_SIZE) as usize;
    let mut populated = PageSet::new(pages);
    for page in (0..pages).filter(|page| journal.layout.is_populated(*page as u64)) {
        populated.insert(page);
    }
    populated.index();
    populated
}

/// The truth of a program by physical address.
struct ByFrame<'a> {
    journal: &'a TouchJournal,
    pages: BTreeMap<u64, usize>,
}

impl<'a> ByFrame<'a> {
    fn new(output: &VmOutput, journal: &'a TouchJournal) -> Result<Self> {
        let (before, after) = (output.bytes("frames")?, output.bytes("frames_after")?);
        ensure!(before == after, "pages have moved to other frames");
        let (frames, _) = before.as_chunks();
        let frames = frames.iter().map(|frame| u64::from_le_bytes(*frame));
        let pages = frames.enumerate().filter(|(_, frame)| *frame != 0);
        Ok(Self {
            journal,
            pages: pages.map(|(page, frame)| (frame, page)).collect(),
        })
    }
}

impl Truth for ByFrame<'_> {
    fn touched(&self, start: Nanos, end: Nanos) -> Touched {
        self.journal.touched_by(start, end, EDGE)
    }

    fn parts(&self, range: AddressRange) -> Vec<(AddressRange, Range<usize>)> {
        let frames = range.start.div_ceil(PAGE_SIZE)..range.end / PAGE_SIZE;
        if frames.is_empty() {
            return Vec::new();
        }
        let part = |(frame, page): (&u64, &usize)| {
            let start = frame * PAGE_SIZE;
            (AddressRange::new(start, start + PAGE_SIZE), *page..page + 1)
        };
        self.pages.range(frames).map(part).collect()
    }
}

fn say(report: &mut Report, case: &str, mode: &str, rows: &[Row]) {
    let cell = |of: fn(&Row) -> Option<f64>, digits: usize| {
        let Some(all) = ValueSummary::of(rows.iter().filter_map(of)) else {
            return "-".to_owned();
        };
        let [middle, least, most] =
            [all.median, all.min, all.max].map(|value| format!("{value:.digits$}"));
        if least == most {
            middle
        } else {
            format!("{middle} [{least}..{most}]")
        }
    };
    report.say(format!(
        "| {case} | {mode} | {} | {} | {} | {} | {} | {} | {} |",
        cell(|r| r.interval, 2),
        cell(|r| r.precision, 3),
        cell(|r| r.recall, 3),
        cell(|r| r.idle_precision, 3),
        cell(|r| r.idle_recall, 3),
        cell(|r| r.unknown, 0),
        cell(|r| r.cpu, 2),
    ));
}
