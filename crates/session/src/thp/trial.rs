//! Trial of huge pages: some blocks are huge and small in turns, and the program's speed is measured.
//!
//! The page walks of other blocks, which stay small, are a clock of the speed: the faster the program runs, the more it
//! has (see `isotherm_policy`, `apply/trial.rs`).

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use isotherm_engine::BLOCK_SIZE;
use isotherm_engine::statistics::mean_and_error;
use isotherm_linux::act::ProcessActuator;
use serde::Serialize;

use super::{TARGET, WORTHWHILE, spread};

/// Blocks whose page walks are measured.
pub(super) const SAMPLE: usize = 64;
/// Measurements of the sample, and the time between two.
const MEASURED: usize = 20;
const BETWEEN: Duration = Duration::from_millis(45);
/// Divisor of the number of blocks that a trial makes huge, and the greatest number.
const TRIED_PART: usize = 2;
const TRIED_MAX: usize = 512;
/// Numbers of pairs of turns after which a clear result ends the trial, each with Student's t: 95 % for all
/// three together (Bonferroni).
const PAIRS: [(usize, f64); 3] = [(5, 3.96), (10, 2.93), (15, 2.72)];

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
    /// Predicted gain of all blocks that are half in memory, huge against small.
    pub gain_of_all: [f64; 3],
    /// Whether all is as before: the tried blocks are small again, or huge again.
    pub is_undone: bool,
}

/// Returns the mean page walks a second of one of `blocks`, over about a second; `None` if most cannot be
/// measured.
pub(super) fn speed(actuator: &mut ProcessActuator, blocks: &[u64]) -> anyhow::Result<Option<f64>> {
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

/// Makes some of the candidates huge and small, in turns. They end as they were: huge, or small.
pub(super) fn trial(
    actuator: &mut ProcessActuator,
    candidates: &[u64],
    were_huge: bool,
    goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<Option<ThpTrial>> {
    let controls = spread(candidates, SAMPLE.min(candidates.len() / 4));
    let known: BTreeSet<u64> = controls.iter().copied().collect();
    let others: Vec<u64> = { candidates.iter().copied() }
        .filter(|block| !known.contains(block))
        .collect();
    let tried = spread(&others, (candidates.len() / TRIED_PART).clamp(1, TRIED_MAX));
    let mut changed = tried.clone();
    let mut split = Ok(0);
    if were_huge {
        // The clock's blocks are small throughout.
        changed.extend(&controls);
        split = actuator
            .set_huge(TARGET, &changed, false)
            .map_err(anyhow::Error::from);
    }
    let result = split.and_then(|_| turns(actuator, (candidates, &controls, &tried), goes_on));
    // However it ended, all becomes what it was.
    let nr_huge = actuator.set_huge(TARGET, &changed, were_huge)?;
    let mut result = result?;
    if let Some(trial) = &mut result {
        trial.is_undone = nr_huge == if were_huge { changed.len() } else { 0 };
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
