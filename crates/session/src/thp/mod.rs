//! Judges whether a running process should have huge pages: what they would gain, what they would waste, what prevents
//! or causes them now, and what to set.
//!
//! Approach: page walks of a sample of blocks are measured without hardware counters
//! ([`ProcessActuator::page_walks`]). Multiplied by the longest time that a walk takes on this machine
//! ([`ProcessActuator::longest_walk`]), they bound the gain. On request the gain is measured by a trial ([`trial`]): of
//! huge pages where memory is small, of small pages where it is huge. Huge pages are looked into then ([`sizes`]).
//!
//! Limits: memory of files and shared memory is not judged. The gain of all blocks is extrapolated from the tried ones.
//! A program whose speed changes by itself needs more turns.

mod causes;
mod sizes;
mod trial;

use isotherm_engine::monitor::bits;
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::process::Process;
use isotherm_policy::scheme::huge::{BlockUse, MAX_WASTE};
use serde::Serialize;

use trial::{SAMPLE, speed, trial};

pub use causes::Cause;
pub use sizes::{ThpPageSize, ThpSplit};
pub use trial::ThpTrial;

const TARGET: TargetId = TargetId(0);
/// Number of huge pages that are read to estimate the part that was never written.
const READ: usize = 128;
/// Gain from which huge pages are worth setting.
const WORTHWHILE: f64 = 0.01;

/// Answer to the question whether huge pages should be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ThpVerdict {
    /// Nearly all memory that can be huge is so already. What that gains is unclear, or was not measured.
    HasThem,
    /// Nearly all memory that can be huge is so already, and that gains 1 % or more.
    Keep,
    /// Nearly all memory that can be huge is so already, and that gains less than 1 %.
    Fewer,
    /// The gain is 1 % or more, and memory grows by a tenth at most.
    Set,
    /// The gain is 1 % or more, and memory grows by more: only some blocks should be huge.
    SetSome,
    /// The gain is below 1 %.
    Leave,
    /// The interval of the gain includes 1 %, or the gain was not measured.
    Unclear,
    /// The process has no private anonymous memory in blocks of 2 MiB.
    NoMemory,
}

/// Reason why no trial was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotTried {
    /// It was not asked for.
    NotAsked,
    /// The process has huge pages disabled.
    Disabled,
    /// No page walks were seen.
    NoWalks,
    /// It ended before it had a result: by the caller, without page walks, or as no page became huge.
    Ended,
}

impl NotTried {
    /// Returns the reason in words.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotAsked => "--try was not given",
            Self::Disabled => "huge pages are disabled for this process",
            Self::NoWalks => "no page walks were seen; is the process idle?",
            Self::Ended => {
                "it was stopped, no page walks were seen, or the kernel made no huge page; all is as before"
            }
        }
    }
}

/// Result of [`judge`].
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThpReport {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// Private anonymous memory in small pages, in blocks of 2 MiB that could be huge.
    pub small_bytes: u64,
    /// Memory in huge pages of 2 MiB.
    pub huge_bytes: u64,
    /// Memory that is added if all blocks become huge.
    pub waste_bytes: u64,
    /// Memory in huge pages that was never written, estimated from a sample; `null` if there are none.
    pub never_written_bytes: Option<u64>,
    /// Page walks a second of the small pages, estimated from a sample; `null` if they cannot be measured.
    pub page_walks_per_s: Option<f64>,
    /// Time of a page walk of dependent accesses, timed on this machine, in nanoseconds; `null` if it was not timed.
    pub walk_ns_max: Option<f64>,
    /// Estimate of the CPU time that huge pages save at most, as a share of one CPU.
    pub saved_share_max: Option<f64>,
    /// Cost of each page size that the kernel offers, the smallest first.
    pub page_sizes: Vec<ThpPageSize>,
    /// Sample of the huge pages that was split for a while; `null` if there was none.
    pub split: Option<ThpSplit>,
    /// Result of the trial, if one was made.
    pub trial: Option<ThpTrial>,
    /// Reason why none was made.
    pub not_tried: Option<NotTried>,
    /// Causes of huge pages, or of their absence.
    pub causes: Vec<Cause>,
    /// Verdict: whether to set huge pages.
    pub verdict: ThpVerdict,
}

/// Judges the process `pid`. With `is_tried`, huge pages are made and split again, in turns. `goes_on` receives the share
/// that is done; if it returns `false`, the trial is undone and ends.
///
/// # Errors
/// Fails if the process cannot be opened, or its page tables cannot be read.
pub fn judge(
    pid: u32,
    is_tried: bool,
    mut goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<ThpReport> {
    let process = Process::open(pid)?;
    let name = process.name();
    let policies = sizes::policies();
    let mut actuator = ProcessActuator::new(ActOptions::default())?;
    actuator.add(TARGET, process)?;
    let all = actuator.private_blocks(TARGET)?;
    let (huge, small): (Vec<BlockUse>, Vec<BlockUse>) =
        all.into_iter().partition(|block| block.is_huge);
    let addresses: Vec<u64> = huge.iter().map(|block| block.block).collect();
    let causes = causes::causes(pid, policies.clone());
    let mut inside = None;
    // Where no huge page is possible, what is split would stay so.
    if is_tried && causes.iter().all(|cause| !cause.prevents_all) {
        // The first tenth of the progress.
        inside = sizes::inside(&mut actuator, &addresses, |done| goes_on(done / 10.0))?;
    }
    let used = inside.as_ref().map(|(_, used)| used.as_slice());
    let page_sizes = sizes::page_sizes(&policies, &small, used);
    let mut report = ThpReport {
        pid,
        name,
        small_bytes: resident(&small),
        huge_bytes: resident(&huge),
        waste_bytes: page_sizes.last().map_or(0, |size| size.added_bytes),
        never_written_bytes: never_written(&mut actuator, &addresses)?,
        page_walks_per_s: None,
        walk_ns_max: None,
        saved_share_max: None,
        page_sizes,
        split: inside.map(|(split, _)| split),
        trial: None,
        not_tried: Some(NotTried::NotAsked).filter(|_| !is_tried),
        causes,
        verdict: ThpVerdict::Unclear,
    };
    // As in schemes: only blocks that are half in memory become huge.
    let dense = |block: &&BlockUse| block.missing() <= PAGES_PER_BLOCK as u32 / 2;
    let dense = small.iter().filter(dense).map(|block| block.block);
    let candidates = if report.is_huge() {
        addresses
    } else {
        dense.collect()
    };
    let goes_on = |done: f64| goes_on(0.1 + 0.9 * done);
    measure(&mut actuator, &mut report, &candidates, goes_on)?;
    report.verdict = verdict(&report);
    Ok(report)
}

/// Enters the page walks of the candidates, and the result of a trial if none is excluded so far.
fn measure(
    actuator: &mut ProcessActuator,
    report: &mut ThpReport,
    candidates: &[u64],
    mut goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<()> {
    if !candidates.is_empty() && goes_on(0.0) {
        if !report.is_huge() {
            let walks = speed(actuator, &spread(candidates, SAMPLE))?;
            report.page_walks_per_s = walks.map(|walks| walks * candidates.len() as f64);
            let bytes = candidates.len() as u64 * BLOCK_SIZE;
            let longest = ProcessActuator::longest_walk(bytes);
            report.walk_ns_max = longest.map(|seconds| seconds * 1e9);
            let saved = report.page_walks_per_s.zip(longest);
            report.saved_share_max = saved.map(|(walks, seconds)| walks * seconds);
        }
        let has_walks = report.page_walks_per_s.is_some_and(|walks| walks > 0.0);
        if report.not_tried.is_some() {
            return Ok(());
        } else if report.causes.iter().any(|cause| cause.prevents_all) {
            report.not_tried = Some(NotTried::Disabled);
        } else if !report.is_huge() && !has_walks {
            report.not_tried = Some(NotTried::NoWalks);
        } else {
            report.trial = trial(actuator, candidates, report.is_huge(), goes_on)?;
        }
    }
    if report.trial.is_none() {
        report.not_tried = report.not_tried.or(Some(NotTried::Ended));
    }
    Ok(())
}

impl ThpReport {
    /// Returns whether nearly all memory that can be huge is so already.
    fn is_huge(&self) -> bool {
        self.small_bytes * 10 <= self.small_bytes + self.huge_bytes
    }

    /// Returns the largest page size below 2 MiB that adds no more memory than schemes may waste.
    pub fn smaller_size(&self) -> Option<&ThpPageSize> {
        let most = MAX_WASTE * (self.small_bytes + self.huge_bytes) as f64;
        let mut sizes = self.page_sizes.iter().rev();
        sizes.find(|size| {
            (PAGE_SIZE + 1..BLOCK_SIZE).contains(&size.page_bytes)
                && size.added_bytes as f64 <= most
        })
    }
}

fn resident(blocks: &[BlockUse]) -> u64 {
    let pages = blocks
        .iter()
        .map(|block| u64::from(bits::count(&block.present)));
    pages.sum::<u64>() * PAGE_SIZE
}

fn verdict(report: &ThpReport) -> ThpVerdict {
    let all = report.small_bytes + report.huge_bytes;
    let low = report.trial.as_ref().map(|trial| trial.gain_of_all[0]);
    let high = report.trial.as_ref().map(|trial| trial.gain_of_all[2]);
    // A walk takes longer if its entries are in no cache.
    let estimate = report.saved_share_max.map(|saved| 3.0 * saved);
    let gains = low.is_some_and(|low| low >= WORTHWHILE);
    let gains_not = high.or(estimate).is_some_and(|high| high < WORTHWHILE);
    let grows = report.waste_bytes as f64 > MAX_WASTE * all as f64;
    match (report.is_huge(), gains, gains_not) {
        _ if all == 0 => ThpVerdict::NoMemory,
        (true, true, _) => ThpVerdict::Keep,
        (true, _, true) => ThpVerdict::Fewer,
        (true, ..) => ThpVerdict::HasThem,
        (_, true, _) if grows => ThpVerdict::SetSome,
        (_, true, _) => ThpVerdict::Set,
        (_, _, true) => ThpVerdict::Leave,
        _ => ThpVerdict::Unclear,
    }
}

/// Returns at most `nr` of `blocks`, spread evenly.
fn spread(blocks: &[u64], nr: usize) -> Vec<u64> {
    let step = blocks.len().div_ceil(nr.max(1)).max(1);
    blocks.iter().copied().step_by(step).collect()
}

fn never_written(actuator: &mut ProcessActuator, huge: &[u64]) -> anyhow::Result<Option<u64>> {
    let (mut unused, mut nr) = (0, 0);
    actuator.block_uses(TARGET, &spread(huge, READ), true, |block| {
        unused += u64::from(block.unused.unwrap_or(0));
        nr += 1;
    })?;
    Ok((nr > 0).then(|| unused * PAGE_SIZE * huge.len() as u64 / nr))
}
