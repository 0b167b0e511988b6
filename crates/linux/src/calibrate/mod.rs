//! Measures what schemes' operations cost on this machine.
//!
//! Approach: a program of our own ([`subject`]) holds 32 MiB of the content in question, as costs depend on the
//! content. A page that compresses to a tenth takes a third of the time of one that does not compress. The actuator for
//! other programs also acts on the subject, so that the measured costs are the real ones. They include reading page
//! tables before and after, making huge pages of whole blocks, and moving to the program's processor. A thread of the
//! subject counts its rounds, which shows the program's loss.
//!
//! Limits: some seconds of one moment; a machine that is busy then is measured busy. Costs per page are for adjacent
//! pages; scattered memory costs more for reading tables. The thread works on 1 MiB: a program that works on more loses
//! more, as paging out evicts its caches.

mod content;
mod kinds_of_swap;
mod nodes;
pub mod subject;

use std::process::Command;
use std::time::Instant;

use isotherm_engine::calibration::{Calibration, Measured};
use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_policy::scheme::Action;
use isotherm_policy::{Actuator as _, Operation, Outcome};

use crate::act::{ActOptions, ProcessActuator};
use crate::clock::process_cpu;
use crate::load::CpuTimes;
use crate::probe::ProbeError;
use crate::process::{Advised, Process, ProcessError};
use crate::swap::SwapError;
use crate::{host, swap};

pub use content::{PAGES, content_of, made_up_content};
pub use kinds_of_swap::compare_swap;
pub use nodes::measure_nodes;
use subject::Subject;

/// Bytes that the subject holds, and that are paged out.
const HELD: u64 = 32 << 20;
const ROUNDS: usize = 3;
/// Blocks that are collapsed separately.
const COLLAPSED: u64 = 8;
/// Minimum number of idle CPUs beside the thread, so that the acting thread does not take its CPU.
const IDLE_MIN: f64 = 0.7;
const TARGET: TargetId = TargetId(0);

type Result<T, E = CalibrationError> = std::result::Result<T, E>;

/// Reason why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("cannot start the program that costs are measured on")]
    Subject(#[source] std::io::Error),
    #[error("the program that costs are measured on said `{0}`")]
    Answer(String),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Swap(#[from] SwapError),
    #[error("there is no content to measure with: {0} bytes are not a page")]
    Content(usize),
    #[error("cannot see which memory of process {0} is there (/proc/{0}/pagemap)")]
    Unseen(u32),
    #[error("no page of process {0} could be copied; is it still running, and may you trace it?")]
    NotCopied(u32),
}

/// Measures on the program that `subject` starts, with `content`: whole pages of the memory that shall be paged out.
/// CPU time is that of this process: nothing else may work in it meanwhile. Reports the completed fraction, 0 to 1, to
/// `tell` after each round. Fails if measuring is impossible. Without swap the other costs are measured.
pub fn calibrate(
    content: &[u8],
    is_made_up: bool,
    subject: Command,
    mut tell: impl FnMut(f64),
) -> Result<Calibration> {
    let pages = content.len() as u64 / PAGE_SIZE;
    if pages == 0 || !(content.len() as u64).is_multiple_of(PAGE_SIZE) {
        return Err(CalibrationError::Content(content.len()));
    }
    let began = Instant::now();
    let mut bench = Bench::start(content, subject)?;
    let mut result = Calibration {
        cpus: CpuTimes::read().map_or(1, |times| times.nr),
        kernel: host::kernel_release(),
        swap: swap::facts().refusal().is_none().then(swap::describe),
        content_pages: if is_made_up { 0 } else { pages },
        ..Calibration::default()
    };
    let mut sums = Sums::default();
    for round in 0..ROUNDS {
        bench.faults(&mut sums)?;
        bench.clears(&mut sums)?;
        bench.collapses(&mut sums)?;
        if result.swap.is_some() {
            let ratio = bench.page_out_whole(&mut sums)?;
            result.compression_ratio = ratio.or(result.compression_ratio);
            bench.page_out_alone(&mut sums)?;
        }
        tell((round + 1) as f64 / ROUNDS as f64);
    }
    result.page_out_whole_ns = Measured::of(&sums.whole);
    result.page_out_whole_lost = Measured::of(&sums.whole_lost);
    result.page_out_alone_ns = Measured::of(&sums.alone);
    result.page_out_running_ns = Measured::of(&sums.running);
    result.page_out_running_lost = Measured::of(&sums.running_lost);
    result.refault_ns = Measured::of(&sums.refault);
    result.minor_fault_ns = Measured::of(&sums.minor_fault);
    result.huge_fault_ns = Measured::of(&sums.huge_fault);
    result.collapse_ns = Measured::of(&sums.collapse);
    result.clear_range_ns = Measured::of(&sums.clear_range);
    result.clear_page_ns = Measured::of(&sums.clear_page);
    result.set_again_ns = Measured::of(&sums.set_again);
    result.took_seconds = began.elapsed().as_secs_f64();
    Ok(result)
}

#[derive(Default)]
struct Sums {
    whole: Vec<f64>,
    whole_lost: Vec<f64>,
    alone: Vec<f64>,
    running: Vec<f64>,
    running_lost: Vec<f64>,
    refault: Vec<f64>,
    minor_fault: Vec<f64>,
    huge_fault: Vec<f64>,
    collapse: Vec<f64>,
    clear_range: Vec<f64>,
    clear_page: Vec<f64>,
    set_again: Vec<f64>,
}

struct Acted {
    cpu: Nanos,
    wall_s: f64,
    applied_pages: f64,
}

impl Acted {
    /// Returns the CPU time of acting on one page; `None` if it was done to none.
    fn ns_per_page(&self) -> Option<f64> {
        (self.applied_pages > 0.0).then(|| self.cpu.0 as f64 / self.applied_pages)
    }
}

struct Bench {
    subject: Subject,
    process: Process,
    actuator: ProcessActuator,
}

impl Bench {
    fn start(content: &[u8], subject: Command) -> Result<Self> {
        let subject = Subject::start(subject, content, HELD)?;
        let mut actuator = ProcessActuator::new(ActOptions::default())?;
        actuator.add(TARGET, Process::open(subject.pid())?)?;
        Ok(Self {
            process: Process::open(subject.pid())?,
            subject,
            actuator,
        })
    }

    /// Pages out whole blocks, alone and beside a busy thread.
    fn page_out_whole(&mut self, sums: &mut Sums) -> Result<Option<f64>> {
        let operations = [operation(self.subject.memory, None)];
        self.subject.touch(false)?;
        let before = swap::held_and_taken();
        let acted = self.act(&operations)?;
        let after = swap::held_and_taken();
        sums.whole.extend(acted.ns_per_page());
        self.come_back(false, acted.applied_pages, sums)?;
        let (acted, lost) = self.beside_work(&operations)?;
        sums.whole_lost
            .extend(lost.filter(|_| acted.applied_pages > 0.0));
        self.come_back(false, acted.applied_pages, sums)?;
        Ok(ratio(before, after))
    }

    /// Pages out every second page, so that no block goes as a whole.
    fn page_out_alone(&mut self, sums: &mut Sums) -> Result<()> {
        let mut pages = bits::NONE;
        (0..512).step_by(2).for_each(|i| bits::set(&mut pages, i));
        let blocks = self.ranges(HELD / BLOCK_SIZE, BLOCK_SIZE).into_iter();
        let operations: Vec<Operation> = blocks
            .map(|block| operation(block, Some(Box::new(pages))))
            .collect();
        self.subject.touch(false)?;
        let acted = self.act(&operations)?;
        sums.alone.extend(acted.ns_per_page());
        self.come_back(true, acted.applied_pages, sums)?;
        let (acted, lost) = self.beside_work(&operations)?;
        if let Some((ns_per_page, lost)) = acted.ns_per_page().zip(lost) {
            sums.running.push(ns_per_page);
            sums.running_lost.push(lost);
        }
        self.come_back(true, acted.applied_pages, sums)
    }

    /// Makes the program touch everything again, and measures the refaults.
    fn come_back(&mut self, is_every_second: bool, pages: f64, sums: &mut Sums) -> Result<()> {
        let took = self.subject.touch(is_every_second)?;
        if pages >= took.units / 2.0 {
            sums.refault.push(took.cpu_ns / pages);
        }
        Ok(())
    }

    fn faults(&mut self, sums: &mut Sums) -> Result<()> {
        let small = self.subject.fresh(false)?;
        sums.minor_fault.push(small.cpu_ns / small.units.max(1.0));
        let huge = self.subject.fresh(true)?;
        sums.huge_fault.push(huge.cpu_ns / huge.units.max(1.0));
        Ok(())
    }

    /// Clears accessed bits of single pages and of blocks, beside a busy thread.
    fn clears(&mut self, sums: &mut Sums) -> Result<()> {
        self.subject.touch(false)?;
        self.subject.work(true)?;
        let nr = HELD / BLOCK_SIZE;
        let single = self.advise(&self.ranges(nr, PAGE_SIZE), libc::MADV_COLD)?;
        self.subject.touch(false)?;
        let whole = self.advise(&self.ranges(nr, BLOCK_SIZE), libc::MADV_COLD)?;
        self.subject.work(false)?;
        let (Some(single), Some(whole)) = (single, whole) else {
            return Ok(());
        };
        let pages = (BLOCK_SIZE / PAGE_SIZE) as f64;
        let page = ((whole - single) / (pages - 1.0)).max(0.0);
        sums.clear_page.push(page);
        sums.clear_range.push((single - page).max(0.0));
        let [set_again, warm] = [self.subject.touch(false)?, self.subject.touch(false)?]
            .map(|took| took.cpu_ns / took.units.max(1.0));
        sums.set_again.push((set_again - warm).max(0.0));
        Ok(())
    }

    fn collapses(&mut self, sums: &mut Sums) -> Result<()> {
        self.subject.touch(false)?;
        let ranges = self.ranges(COLLAPSED, BLOCK_SIZE);
        let took = self.advise(&ranges, crate::act::MADV_COLLAPSE)?;
        sums.collapse.extend(took);
        Ok(())
    }

    /// Returns the first `length` bytes of each of the first `nr` blocks.
    fn ranges(&self, nr: u64, length: u64) -> Vec<AddressRange> {
        let start = self.subject.memory.start;
        let blocks = (0..nr).map(|i| start + i * BLOCK_SIZE);
        blocks
            .map(|block| AddressRange::new(block, block + length))
            .collect()
    }

    /// Returns the CPU time of advising about one of `ranges`; `None` if any is refused.
    fn advise(&self, ranges: &[AddressRange], advice: i32) -> Result<Option<f64>> {
        let mut answers = Vec::new();
        let before = process_cpu();
        self.process.advise(ranges, advice, &mut answers)?;
        let took = process_cpu().since(before).0 as f64 / ranges.len() as f64;
        let is_done = answers.iter().all(|answer| *answer == Advised::Taken);
        Ok(is_done.then_some(took))
    }

    fn act(&mut self, operations: &[Operation]) -> Result<Acted> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        let (before, began) = (process_cpu(), Instant::now());
        self.actuator.act(operations, &mut outcomes)?;
        let cpu = process_cpu().since(before);
        let wall_s = began.elapsed().as_secs_f64();
        let applied: u64 = outcomes.iter().map(|outcome| outcome.applied).sum();
        Ok(Acted {
            cpu,
            wall_s,
            applied_pages: (applied / PAGE_SIZE) as f64,
        })
    }

    /// Acts while a thread of the program works. Also returns the fraction of acting's CPU time that the thread lost.
    /// It is `None` if all CPUs are busy: the thread then lost its CPU, and was not disturbed.
    fn beside_work(&mut self, operations: &[Operation]) -> Result<(Acted, Option<f64>)> {
        self.subject.work(true)?;
        // The undisturbed rate is measured before and after, as the load of this machine changes.
        let (idle_before, looked) = (CpuTimes::read(), Instant::now());
        let rate_before = self.rate_of_work()?;
        let (idle_after, looked) = (CpuTimes::read(), looked.elapsed().as_secs_f64());
        let (rounds, began) = (self.subject.rounds()?, Instant::now());
        let acted = self.act(operations)?;
        let done = self.subject.rounds()? - rounds;
        let elapsed = began.elapsed().as_secs_f64();
        let rate = f64::midpoint(rate_before, self.rate_of_work()?);
        self.subject.work(false)?;
        let idle = idle_after.zip(idle_before);
        let idle = idle.map(|(after, before)| after.idle.since(before.idle).as_secs_f64() / looked);
        let lost_s = elapsed - done / rate.max(1e-9);
        let cpu_s = acted.cpu.as_secs_f64().min(acted.wall_s).max(1e-9);
        let lost = (lost_s / cpu_s).clamp(0.0, 1.0);
        Ok((acted, idle.filter(|idle| *idle >= IDLE_MIN).map(|_| lost)))
    }

    fn rate_of_work(&mut self) -> Result<f64> {
        let (rounds, began) = (self.subject.rounds()?, Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(100));
        let done = self.subject.rounds()? - rounds;
        Ok(done / began.elapsed().as_secs_f64())
    }
}

/// Returns the bytes held per byte taken: both arguments are bytes held and bytes taken, before and after.
fn ratio(before: (u64, u64), after: (u64, u64)) -> Option<f64> {
    let held = after.0.checked_sub(before.0)?;
    let taken = after.1.checked_sub(before.1)?;
    (held >= HELD / 4 && taken > 0).then(|| held as f64 / taken as f64)
}

fn operation(range: AddressRange, pages: Option<Box<bits::Bitmap>>) -> Operation {
    let bytes = pages.as_ref().map(|pages| bits::bytes(pages));
    Operation {
        bytes: bytes.unwrap_or(range.len()),
        idle_only: false,
        pages,
        ..Operation::on(Action::Pageout, TARGET, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_compared_to_what_it_takes() {
        assert_eq!(ratio((0, 0), (HELD, HELD / 4)), Some(4.0));
        assert_eq!(ratio((HELD, 5), (HELD, 5)), None, "nothing was taken in");
        assert_eq!(ratio((5, 5), (0, 0)), None);
    }

    #[test]
    fn content_must_be_pages() {
        let one = calibrate(&[0; 100], true, subject::command(), |_| ());
        assert!(matches!(one, Err(CalibrationError::Content(100))));
        let content = made_up_content(2);
        assert_ne!(content[..2048], content[4096..6144]);
        assert!(content[2048..4096].iter().all(|byte| *byte == 0));
    }
}
