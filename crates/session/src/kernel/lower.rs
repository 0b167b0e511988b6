//! Translates a context of a [`SessionSpec`](isotherm_config::SessionSpec) to one of the kernel's DAMON.

use anyhow::{Context as _, bail};
use isotherm_config::{ContextSpec, MonitorSpec, TargetSpec};
use isotherm_damon::{DamonContext, DamonTarget, Operations};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Intervals};
use isotherm_policy::scheme::{Action, Bounds, Scheme};

/// Returns the context with these processes, or with this RAM if it is of physical memory.
pub(super) fn context(
    spec: &ContextSpec,
    pids: &[u32],
    ram: &[AddressRange],
) -> anyhow::Result<DamonContext> {
    let MonitorSpec::Regions(attributes) = &spec.monitor else {
        bail!(
            "kernel DAMON samples regions; it cannot watch by {}",
            spec.monitor.name()
        );
    };
    let operations = match (&spec.targets, spec.ranges.is_empty()) {
        (TargetSpec::Physical { .. }, _) => Operations::Paddr,
        (_, true) => Operations::Vaddr,
        (_, false) => Operations::Fvaddr,
    };
    let targets = if operations == Operations::Paddr {
        vec![DamonTarget {
            regions: ram.to_vec(),
            ..DamonTarget::default()
        }]
    } else {
        pids.iter().map(|pid| target(*pid, &spec.ranges)).collect()
    };
    Ok(DamonContext {
        operations,
        targets,
        intervals: Intervals {
            sample: attributes.sample_interval,
            aggregation: attributes.aggregation_interval,
            update: attributes.update_interval,
        },
        intervals_goal: attributes.intervals_goal,
        nr_regions: Bounds::new(attributes.min_nr_regions, attributes.max_nr_regions),
        settings: spec.kernel.clone(),
        is_paused: spec.acting.as_ref().is_some_and(|acting| acting.is_paused),
        schemes: spec.schemes().to_vec(),
    })
}

pub(super) fn target(pid: u32, ranges: &[AddressRange]) -> DamonTarget {
    DamonTarget {
        pid: Some(pid),
        regions: ranges.to_vec(),
        is_obsolete: false,
    }
}

/// Returns schemes that only count the memory that these would be tried on.
pub(crate) fn held(schemes: &[Scheme]) -> Vec<Scheme> {
    let held = schemes.iter().map(|scheme| Scheme {
        action: Action::Stat,
        destinations: Vec::new(),
        ..scheme.clone()
    });
    held.collect()
}

/// Splits ranges into at least `nr` pieces of about the same size. Linux 6.12 begins with the ranges that it is given,
/// however large, and needs an aggregation for each doubling of their number.
pub(super) fn in_pieces(ranges: &[AddressRange], nr: u32) -> Vec<AddressRange> {
    let total: u64 = ranges.iter().map(|range| range.len()).sum();
    let piece = (total / u64::from(nr.max(1)))
        .max(1)
        .next_multiple_of(BLOCK_SIZE);
    let pieces = ranges.iter().flat_map(|range| {
        let starts = (range.start..range.end).step_by(piece as usize);
        starts.map(|start| AddressRange::new(start, range.end.min(start.saturating_add(piece))))
    });
    pieces.collect()
}

/// Returns the id of this boot, which distinguishes a note on this boot's tree from one on an earlier boot's.
pub(super) fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_cut_into_pieces_without_losing_any() {
        let mib = |n: u64| n << 20;
        let ranges = [
            AddressRange::new(4096, mib(1)),
            AddressRange::new(mib(2), mib(102)),
        ];
        let bytes = |ranges: &[AddressRange]| ranges.iter().map(|r| r.len()).sum::<u64>();
        for nr in [0, 1, 2, 10, 1000] {
            let pieces = in_pieces(&ranges, nr);
            assert_eq!(bytes(&pieces), bytes(&ranges), "{nr}");
            assert!(pieces.is_sorted_by(|a, b| a.end <= b.start), "{nr}");
        }
        assert_eq!(in_pieces(&ranges, 1), ranges);
        assert_eq!(in_pieces(&ranges, 10).len(), 10);
    }
}
