//! Judges whether a running process should have huge pages: what they would gain, what they would waste, what prevents
//! or causes them now, and what to set.
//!
//! Approach: page walks of a sample of blocks are measured without hardware counters
//! ([`ProcessActuator::page_walks`]). Multiplied by the longest time that a walk takes on this machine
//! ([`ProcessActuator::longest_walk`]), they bound the gain. On request the gain is measured: some blocks become huge and are
//! split again, in turns. The walks of other blocks, which stay small, are a clock of the program's speed (see
//! `isotherm_policy`, `apply/trial.rs`).
//!
//! Limits: memory of files and shared memory is not judged. The gain of all blocks is extrapolated from the tried ones.
//! A program whose speed changes by itself needs more turns.

mod causes;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use isotherm_engine::monitor::bits;
use isotherm_engine::statistics::mean_and_error;
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::process::Process;
use isotherm_policy::scheme::huge::{BlockUse, MAX_WASTE};
use serde::Serialize;

pub use causes::{Cause, causes};

const TARGET: TargetId = TargetId(0);
/// Blocks whose page walks are measured.
const SAMPLE: usize = 64;
/// Measurements of the sample, and the time between two.
const MEASURED: usize = 20;
const BETWEEN: Duration = Duration::from_millis(45);
/// Number of huge pages that are read to estimate the part that was never written.
const READ: usize = 128;
/// Divisor of the number of blocks that a trial makes huge, and the greatest number.
const TRIED_PART: usize = 2;
const TRIED_MAX: usize = 512;
/// Numbers of pairs of turns after which a clear result ends the trial, each with Student's t: 95 % for all
/// three together (Bonferroni).
const PAIRS: [(usize, f64); 3] = [(5, 3.96), (10, 2.93), (15, 2.72)];
/// Gain from which huge pages are worth setting.
const WORTHWHILE: f64 = 0.01;

/// Result of a trial: turns with small pages, and with huge ones.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThpTrial {
    /// Bytes that were huge in the second turn of each pair.
    pub huge_bytes: u64,
    /// Speed with huge pages relative to small ones, for each pair of turns.
    pub speeds: Vec<f64>,
    /// Gain by these huge pages: lower bound, mean and upper bound (95 %), as shares of the speed.
    pub gain: [f64; 3],
    /// Predicted gain if all blocks that are half in memory were huge.
    pub gain_of_all: [f64; 3],
    /// Whether the huge pages were split again.
    pub is_undone: bool,
}

/// Answer to the question whether huge pages should be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ThpVerdict {
    /// Nearly all memory that can be huge is so already.
    HasThem,
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
    /// It ended before it had a result: by the caller, or as no page became huge.
    Ended,
}

impl NotTried {
    /// Returns the reason in words.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotAsked => "--try was not given",
            Self::Disabled => "huge pages are disabled for this process",
            Self::NoWalks => "no page walks were seen; is the process idle?",
            Self::Ended => "it was stopped, or the kernel made no huge page; all is as before",
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
    let causes = causes(pid);
    let mut actuator = ProcessActuator::new(ActOptions::default())?;
    actuator.add(TARGET, process)?;
    let all = actuator.private_blocks(TARGET)?;
    let (huge, small): (Vec<BlockUse>, Vec<BlockUse>) =
        all.into_iter().partition(|block| block.is_huge);
    let resident = |blocks: &[BlockUse]| {
        let pages = blocks
            .iter()
            .map(|block| u64::from(bits::count(&block.present)));
        pages.sum::<u64>() * PAGE_SIZE
    };
    // As in schemes: only blocks that are half in memory become huge.
    let dense = |block: &&BlockUse| block.missing() <= PAGES_PER_BLOCK as u32 / 2;
    let candidates: Vec<u64> = small
        .iter()
        .filter(dense)
        .map(|block| block.block)
        .collect();
    let mut report = ThpReport {
        pid,
        name,
        small_bytes: resident(&small),
        huge_bytes: resident(&huge),
        waste_bytes: small
            .iter()
            .map(|block| u64::from(block.missing()))
            .sum::<u64>()
            * PAGE_SIZE,
        never_written_bytes: never_written(&mut actuator, &huge)?,
        page_walks_per_s: None,
        walk_ns_max: None,
        saved_share_max: None,
        trial: None,
        not_tried: Some(NotTried::NotAsked).filter(|_| !is_tried),
        causes,
        verdict: ThpVerdict::Unclear,
    };
    let sample = spread(&candidates, SAMPLE);
    let is_possible = report.causes.iter().all(|cause| !cause.prevents_all);
    if !sample.is_empty() && goes_on(0.0) {
        let walks = speed(&mut actuator, &sample)?;
        report.page_walks_per_s = walks.map(|walks| walks * candidates.len() as f64);
        let bytes = candidates.len() as u64 * BLOCK_SIZE;
        let longest = ProcessActuator::longest_walk(bytes);
        report.walk_ns_max = longest.map(|seconds| seconds * 1e9);
        let saved = report.page_walks_per_s.zip(longest);
        report.saved_share_max = saved.map(|(walks, seconds)| walks * seconds);
        if is_tried {
            report.trial = if !is_possible {
                report.not_tried = Some(NotTried::Disabled);
                None
            } else if walks.is_none_or(|walks| walks <= 0.0) {
                report.not_tried = Some(NotTried::NoWalks);
                None
            } else {
                trial(&mut actuator, &candidates, goes_on)?
            };
        }
    }
    if report.trial.is_none() {
        report.not_tried = report.not_tried.or(Some(NotTried::Ended));
    }
    report.verdict = verdict(&report);
    Ok(report)
}

fn verdict(report: &ThpReport) -> ThpVerdict {
    let all = report.small_bytes + report.huge_bytes;
    let set = || {
        if report.waste_bytes as f64 > MAX_WASTE * all as f64 {
            ThpVerdict::SetSome
        } else {
            ThpVerdict::Set
        }
    };
    if all == 0 {
        return ThpVerdict::NoMemory;
    } else if report.small_bytes * 10 <= all {
        return ThpVerdict::HasThem;
    }
    // A walk takes longer if its entries are in no cache.
    let estimate = report.saved_share_max.map(|saved| 3.0 * saved);
    let low = report.trial.as_ref().map(|trial| trial.gain_of_all[0]);
    let high = report.trial.as_ref().map(|trial| trial.gain_of_all[2]);
    if low.is_some_and(|low| low >= WORTHWHILE) {
        set()
    } else if high.or(estimate).is_some_and(|high| high < WORTHWHILE) {
        ThpVerdict::Leave
    } else {
        ThpVerdict::Unclear
    }
}

/// Returns at most `nr` of `blocks`, spread evenly.
fn spread(blocks: &[u64], nr: usize) -> Vec<u64> {
    let step = blocks.len().div_ceil(nr.max(1)).max(1);
    blocks.iter().copied().step_by(step).collect()
}

fn never_written(actuator: &mut ProcessActuator, huge: &[BlockUse]) -> anyhow::Result<Option<u64>> {
    let blocks: Vec<u64> = huge.iter().map(|block| block.block).collect();
    let (mut unused, mut nr) = (0, 0);
    actuator.block_uses(TARGET, &spread(&blocks, READ), true, |block| {
        unused += u64::from(block.unused.unwrap_or(0));
        nr += 1;
    })?;
    Ok((nr > 0).then(|| unused * PAGE_SIZE * blocks.len() as u64 / nr))
}

/// Returns the mean page walks a second of one of `blocks`, over about a second; `None` if most cannot be
/// measured.
fn speed(actuator: &mut ProcessActuator, blocks: &[u64]) -> anyhow::Result<Option<f64>> {
    let (mut walks, mut nr) = (0.0, 0_u32);
    for _ in 0..MEASURED {
        actuator.page_walks(TARGET, blocks, |_, of_block| {
            walks += of_block;
            nr += 1;
        })?;
        thread::sleep(BETWEEN);
    }
    let is_known = 2 * nr as usize > MEASURED * blocks.len();
    Ok(is_known.then(|| walks / f64::from(nr)))
}

/// Makes some of the candidates huge and splits them again, in turns.
fn trial(
    actuator: &mut ProcessActuator,
    candidates: &[u64],
    goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<Option<ThpTrial>> {
    let controls = spread(candidates, SAMPLE.min(candidates.len() / 4));
    let known: BTreeSet<u64> = controls.iter().copied().collect();
    let others: Vec<u64> = { candidates.iter().copied() }
        .filter(|block| !known.contains(block))
        .collect();
    let tried = spread(&others, (candidates.len() / TRIED_PART).clamp(1, TRIED_MAX));
    let result = turns(actuator, (candidates, &controls, &tried), goes_on);
    // However it ended, nothing stays huge.
    let nr_left = actuator.set_huge(TARGET, &tried, false)?;
    let mut result = result?;
    if let Some(trial) = &mut result {
        trial.is_undone = nr_left == 0;
    }
    Ok(result)
}

fn turns(
    actuator: &mut ProcessActuator,
    (candidates, controls, tried): (&[u64], &[u64], &[u64]),
    mut goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<Option<ThpTrial>> {
    let most = PAIRS[PAIRS.len() - 1].0;
    let (mut speeds, mut result) = (Vec::new(), None::<ThpTrial>);
    let Some(mut before) = speed(actuator, controls)? else {
        return Ok(None);
    };
    for (pairs, t) in PAIRS {
        let mut nr_huge = 0;
        while speeds.len() < pairs {
            if !goes_on(speeds.len() as f64 / most as f64) {
                return Ok(result);
            }
            nr_huge = actuator.set_huge(TARGET, tried, true)?;
            let huge = speed(actuator, controls)?;
            actuator.set_huge(TARGET, tried, false)?;
            let (Some(huge), Some(after)) = (huge, speed(actuator, controls)?) else {
                return Ok(result);
            };
            // Between two turns of small pages, so that a steady change of the load does not count.
            let small = (before * after).sqrt();
            if nr_huge == 0 || small <= 0.0 {
                return Ok(result);
            }
            speeds.push(huge / small);
            before = after;
        }
        let gain = bounds(&speeds, t);
        let ratio = candidates.len() as f64 / nr_huge as f64;
        let of_all = gain.map(|gain| extrapolated(gain, ratio));
        result = Some(ThpTrial {
            huge_bytes: nr_huge as u64 * BLOCK_SIZE,
            speeds: speeds.clone(),
            gain,
            gain_of_all: of_all,
            is_undone: false,
        });
        if of_all[0] >= WORTHWHILE || of_all[2] < WORTHWHILE {
            break;
        }
    }
    Ok(result)
}

/// Returns the gain by `ratio` times as many huge pages: each saves the same time.
fn extrapolated(gain: f64, ratio: f64) -> f64 {
    let saved = (1.0 - 1.0 / (1.0 + gain).max(0.1)) * ratio;
    1.0 / (1.0 - saved.min(0.9)) - 1.0
}

/// Returns the mean gain by the geometric mean of speeds, between its bounds.
fn bounds(speeds: &[f64], t: f64) -> [f64; 3] {
    let logs: Vec<f64> = speeds.iter().map(|speed| speed.max(1e-3).ln()).collect();
    let (mean, error) = mean_and_error(&logs).unwrap_or_default();
    let error = t * error;
    [mean - error, mean, mean + error].map(|log| log.exp() - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_have_bounds_and_grow_with_the_memory() {
        let [low, mean, high] = bounds(&[1.1, 1.12, 1.08, 1.11, 1.09], 2.78);
        assert!(low > 0.07 && high < 0.13 && (mean - 0.1).abs() < 0.002);
        // A tenth of the time is saved by a quarter of the memory: four tenths by all of it.
        assert!((extrapolated(1.0 / 0.9 - 1.0, 4.0) - (1.0 / 0.6 - 1.0)).abs() < 1e-9);
        assert!(extrapolated(-0.1, 4.0) < -0.1);
        assert!(extrapolated(3.0, 4.0).is_finite());
    }
}
