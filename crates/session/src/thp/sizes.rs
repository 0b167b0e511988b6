//! Page sizes from 4 KiB to 2 MiB (mTHP, Linux 6.8): how much memory each would add, and how much of huge pages it would
//! keep.
//!
//! Problem: a huge page has one accessed bit. It does not show which of its 4 KiB pages are used.
//!
//! Approach: a sample of huge pages is split, its accessed bits are cleared, and read after some seconds. Then the pages
//! become huge again. Small memory would grow by the missing pages of every part that has a page in memory.
//!
//! Limits: the gain of sizes between 4 KiB and 2 MiB is not measured. The kernel makes them at first faults only, so
//! that memory that exists cannot try them. Pages that are used less often than the sample is watched count as unused.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst, "Hugepage sizes".

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK};
use isotherm_linux::act::ProcessActuator;
use isotherm_policy::scheme::huge::BlockUse;
use serde::Serialize;

use super::{TARGET, spread};

pub(super) const SYSTEM: &str = "/sys/kernel/mm/transparent_hugepage";
/// Number of huge pages that are split to see inside.
const SAMPLE: usize = 32;
/// Time for which they are watched.
const WATCHED: Duration = Duration::from_secs(5);

/// Cost of a page size.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThpPageSize {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Policy of the system for this size: always, inherit, madvise, never; `null` for 4 KiB.
    pub policy: Option<String>,
    /// Memory that is added if all small memory is of pages of this size.
    pub added_bytes: u64,
    /// Share of the split huge pages in pages of this size that were used; `null` if none were split.
    pub used_share: Option<f64>,
}

/// Sample of huge pages that were split for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThpSplit {
    /// Bytes of the huge pages.
    pub bytes: u64,
    /// Seconds for which their pages were watched.
    pub watched_s: f64,
    /// Whether all of them are huge again.
    pub is_undone: bool,
}

/// Returns the system's policy of each page size above 4 KiB, in KiB; smaller ones than 2 MiB since Linux 6.8.
pub(super) fn policies() -> Vec<(u64, String)> {
    let entries = fs::read_dir(SYSTEM).into_iter().flatten().flatten();
    let mut sizes: Vec<(u64, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let policy = fs::read_to_string(entry.path().join("enabled")).ok()?;
            Some((size.parse().ok()?, policy))
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// Returns the policy in brackets.
pub(super) fn chosen(policy: &str) -> &str {
    let from = policy.split_once('[').map_or("", |(_, rest)| rest);
    from.split_once(']').map_or("", |(chosen, _)| chosen)
}

/// Returns the cost of each page size that the kernel offers. `used` are the touched pages of each split block.
pub(super) fn page_sizes(
    policies: &[(u64, String)],
    small: &[BlockUse],
    used: Option<&[Bitmap]>,
) -> Vec<ThpPageSize> {
    let mut sizes: Vec<(u64, Option<String>)> = vec![(PAGE_SIZE, None)];
    let above = policies.iter().filter(|(size, _)| size << 10 < BLOCK_SIZE);
    sizes.extend(above.map(|(size, policy)| (size << 10, Some(chosen(policy).to_owned()))));
    let of_block = policies.iter().find(|(size, _)| size << 10 == BLOCK_SIZE);
    let general = || fs::read_to_string(format!("{SYSTEM}/enabled")).ok();
    let policy = of_block.map(|(_, policy)| policy.clone()).or_else(general);
    sizes.push((BLOCK_SIZE, policy.map(|policy| chosen(&policy).to_owned())));
    let size = |(page_bytes, policy)| {
        let pages = (page_bytes / PAGE_SIZE) as usize;
        let added = small.iter().map(|block| {
            let whole = bits::count(&bits::in_parts_of(&block.present, pages));
            u64::from(whole - bits::count(&block.present))
        });
        let share = |used: &[Bitmap]| {
            let whole = used
                .iter()
                .map(|used| bits::count(&bits::in_parts_of(used, pages)));
            f64::from(whole.sum::<u32>()) / (used.len() * PAGES_PER_BLOCK) as f64
        };
        ThpPageSize {
            page_bytes,
            policy,
            added_bytes: added.sum::<u64>() * PAGE_SIZE,
            used_share: used.filter(|used| !used.is_empty()).map(share),
        }
    };
    sizes.into_iter().map(size).collect()
}

/// Splits a sample of `huge` blocks, and returns the pages of each that the program used while they were watched. They
/// become huge again, also if `goes_on` returns `false` or the process ends. Returns `None` if there are none, or the
/// kernel splits none.
pub(super) fn inside(
    actuator: &mut ProcessActuator,
    huge: &[u64],
    goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<Option<(ThpSplit, Vec<Bitmap>)>> {
    let sample = spread(huge, SAMPLE);
    if sample.is_empty() {
        return Ok(None);
    }
    let split = actuator.set_huge(TARGET, &sample, false);
    let seen = split.map_err(anyhow::Error::from);
    let seen = seen.and_then(|_| watch(actuator, &sample, goes_on));
    // However it ended, all become huge again.
    let nr_huge = actuator.set_huge(TARGET, &sample, true)?;
    let (watched_s, used) = seen?;
    let split = ThpSplit {
        bytes: used.len() as u64 * BLOCK_SIZE,
        watched_s,
        is_undone: nr_huge == sample.len(),
    };
    Ok((!used.is_empty()).then_some((split, used)))
}

/// Returns the pages of `blocks` that are used while they are watched, and for how long, in seconds.
fn watch(
    actuator: &mut ProcessActuator,
    blocks: &[u64],
    mut goes_on: impl FnMut(f64) -> bool,
) -> anyhow::Result<(f64, Vec<Bitmap>)> {
    let blocks = actuator.clear_accessed(TARGET, blocks)?;
    let started = Instant::now();
    while started.elapsed() < WATCHED
        && goes_on(started.elapsed().as_secs_f64() / WATCHED.as_secs_f64())
    {
        thread::sleep(Duration::from_millis(100));
    }
    let mut used = Vec::new();
    actuator.read_blocks(TARGET, &blocks, |facts| {
        if !facts.huge {
            used.push(facts.accessed);
        }
    })?;
    Ok((started.elapsed().as_secs_f64(), used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_add_more_and_keep_more() {
        let policies = [
            (16, "always inherit madvise [never]".to_owned()),
            (64, "[always]".to_owned()),
            (2048, "always [inherit]".to_owned()),
        ];
        // Two of the 128 parts of 16 KiB have pages in memory.
        let mut present = bits::mask_of(0..3);
        bits::set(&mut present, 100);
        let small = [BlockUse {
            block: 0,
            is_huge: false,
            present,
            unused: None,
        }];
        let sizes = page_sizes(&policies, &small, Some(&[bits::mask_of(8..16)]));
        let page_bytes = sizes.iter().map(|size| size.page_bytes >> 10);
        assert!(page_bytes.eq([4, 16, 64, 2048]));
        let added = sizes.iter().map(|size| size.added_bytes >> 12);
        assert!(added.eq([0, 4, 28, 508]));
        let shares = sizes.iter().map(|size| size.used_share.expect("split"));
        let shares = shares.map(|share| share * 512.0);
        assert!(shares.eq([8.0, 8.0, 16.0, 512.0]));
        let chosen = sizes.iter().map(|size| size.policy.as_deref());
        assert!(chosen.eq([None, Some("never"), Some("always"), Some("inherit")]));
    }
}
