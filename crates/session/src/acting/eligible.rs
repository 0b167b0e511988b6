//! The goal metric `node_eligible_mem_bp`: of the memory that has a scheme's access pattern, the share that is on a
//! node.
//!
//! As in the kernel (`damos_calc_eligible_bytes` of the development tree's `mm/damon/core.c`), the scheme's filters and
//! quota do not count. Pages that are not in memory do not count, either. Where the kernel refuses the metric for
//! processes, it is measured here for them as well.
//!
//! Limits: some pages are sampled, spread evenly ([`Tally`]). Where no memory has the pattern the share is unknown,
//! which raises no quota; the kernel takes it for 0.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, Snapshot, TargetId};
use isotherm_linux::node::Tally;
use isotherm_policy::scheme::{Metric, SchemeEngine};

use crate::session::Session;

/// Returns the `wanted` shares in basis points, by scheme and node.
pub(super) fn shares(
    wanted: &[Metric],
    schemes: &SchemeEngine,
    snapshots: &[Snapshot],
    session: &Session,
    is_physical: bool,
) -> BTreeMap<(usize, u32), u64> {
    let mut tallies: BTreeMap<usize, Option<Tally>> = BTreeMap::new();
    let mut shares = BTreeMap::new();
    for metric in wanted {
        let Metric::Eligible(scheme, node) = metric else {
            continue;
        };
        let tally = tallies.entry(*scheme).or_insert_with(|| {
            let matching = schemes.matching(*scheme, snapshots);
            if is_physical {
                frames(&matching.map(|(_, range)| range).collect::<Vec<_>>())
            } else {
                Some(pages(matching, session))
            }
        });
        let share = tally.as_ref().and_then(|tally| tally.share_bp(*node));
        shares.extend(share.map(|share| ((*scheme, *node), share)));
    }
    shares
}

fn frames(ranges: &[AddressRange]) -> Option<Tally> {
    let mut tally = Tally::of(ranges.iter().map(|range| range.len()).sum());
    tally.add_frames(ranges).ok()?;
    Some(tally)
}

fn pages(matching: impl Iterator<Item = (TargetId, AddressRange)>, session: &Session) -> Tally {
    let mut by_target: BTreeMap<TargetId, Vec<AddressRange>> = BTreeMap::new();
    for (target, range) in matching {
        by_target.entry(target).or_default().push(range);
    }
    let live = session.live();
    let mapped: Vec<_> = live
        .iter()
        .filter_map(|(target, process)| {
            let ranges = by_target.get(target)?;
            // Regions reach over unmapped addresses, which would take up most of the samples.
            let areas = process.mappings().ok()?;
            Some((process, within(ranges, areas.iter().map(|area| area.range))))
        })
        .collect();
    let ranges = mapped.iter().flat_map(|(_, ranges)| ranges);
    let mut tally = Tally::of(ranges.map(|range| range.len()).sum());
    for (process, ranges) in &mapped {
        // A process that has just ended has no memory.
        tally.add_process(process, ranges).ok();
    }
    tally
}

/// Returns the parts of `ranges` within `areas`; both are in address order.
fn within(ranges: &[AddressRange], areas: impl Iterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut parts = Vec::new();
    for area in areas {
        let first = ranges.partition_point(|range| range.end <= area.start);
        let inside = ranges[first..].iter().take_while(|r| r.start < area.end);
        parts.extend(inside.filter_map(|range| range.intersection(area)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_is_asked_for() {
        let range = |(a, b)| AddressRange::new(a, b);
        let ranges = [(0, 10), (20, 30), (40, 90)].map(range);
        let areas = [(5, 25), (50, 60), (70, 80)].map(range);
        let wanted = [(5, 10), (20, 25), (50, 60), (70, 80)].map(range);
        assert_eq!(within(&ranges, areas.into_iter()), wanted);
    }
}
