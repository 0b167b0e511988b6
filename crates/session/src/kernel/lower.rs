//! From a context of a [`SessionSpec`](isotherm_config::SessionSpec) to one of the kernel's DAMON.

use anyhow::{Context as _, bail};
use isotherm_config::{ContextSpec, MonitorSpec, TargetSpec};
use isotherm_damon::{DamonContext, DamonTarget, KernelStats, Operations};
use isotherm_engine::scheme::{AccessPattern, Action, Bounds, Scheme};
use isotherm_engine::{AddressRange, Intervals};

/// The context, of these processes, or of this RAM where it is of physical memory.
pub(super) fn context(
    spec: &ContextSpec,
    pids: &[u32],
    ram: &[AddressRange],
    sees_by_scheme: bool,
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
    let acting = spec.acting.as_ref();
    let mut schemes = spec.schemes().to_vec();
    if acting.is_some_and(|acting| acting.is_dry_run) {
        for scheme in &mut schemes {
            pretend(scheme);
        }
    }
    if sees_by_scheme {
        schemes.push(Scheme::new(AccessPattern::ANY, Action::Stat));
    }
    Ok(DamonContext {
        operations,
        targets,
        intervals: Intervals {
            sample: attributes.sample_interval,
            aggregation: attributes.aggregation_interval,
            update: attributes.update_interval,
        },
        intervals_goal: attributes.intervals_goal,
        nr_regions: Bounds {
            min: attributes.min_nr_regions,
            max: attributes.max_nr_regions,
        },
        is_paused: acting.is_some_and(|acting| acting.is_paused),
        schemes,
    })
}

/// A process, within these addresses where there are any.
pub(super) fn target(pid: u32, ranges: &[AddressRange]) -> DamonTarget {
    DamonTarget {
        pid: Some(pid),
        regions: ranges.to_vec(),
        is_obsolete: false,
    }
}

/// Counts what it would be tried on, and does nothing.
fn pretend(scheme: &mut Scheme) {
    scheme.action = Action::Stat;
    scheme.destinations.clear();
}

/// The same with its limited schemes held back: their patterns match nothing.
///
/// A quota is in force from the end of its first window on; on Linux 6.12 that first window has none, and the first
/// apply acts on all that matches (measured: 100 MiB at once, by a quota of 4 MiB a second). So the first window is to
/// pass with nothing to be done. `None` where there is nothing to hold back.
pub(super) fn held_back(context: &DamonContext) -> Option<DamonContext> {
    let is_limited = |scheme: &Scheme| scheme.quota.is_limited();
    context.schemes.iter().any(is_limited).then(|| {
        let mut held = context.clone();
        for scheme in held.schemes.iter_mut().filter(|scheme| is_limited(scheme)) {
            scheme.pattern.size.min = u64::MAX;
            scheme.pattern.size.max = u64::MAX;
        }
        held
    })
}

/// Whether all quotas of a context that is held back are in force. A kernel that does not tell is not waited for.
pub(super) fn are_in_force(context: &DamonContext, stats: &[KernelStats]) -> bool {
    let schemes = context.schemes.iter().zip(stats);
    schemes
        .filter(|(scheme, _)| scheme.quota.is_limited())
        .all(|(_, stats)| stats.effective_bytes != Some(0))
}

/// This boot, so that notes of another's tree are told from this one's.
pub(super) fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use isotherm_engine::Nanos;
    use isotherm_engine::scheme::Bounds;

    use super::*;

    fn of_schemes(schemes: Vec<Scheme>) -> DamonContext {
        DamonContext {
            operations: Operations::Paddr,
            targets: Vec::new(),
            intervals: Intervals {
                sample: Nanos::from_millis(5),
                aggregation: Nanos::from_millis(100),
                update: Nanos::from_millis(1_000),
            },
            intervals_goal: None,
            nr_regions: Bounds { min: 10, max: 1000 },
            is_paused: false,
            schemes,
        }
    }

    #[test]
    fn schemes_with_quotas_wait_until_these_are_in_force() {
        let free = Scheme::new(AccessPattern::ANY, Action::Pageout);
        assert_eq!(held_back(&of_schemes(vec![free.clone()])), None);
        let mut limited = free.clone();
        limited.quota.bytes = 4 << 20;
        let context = of_schemes(vec![free.clone(), limited]);
        let held = held_back(&context).expect("one has a quota");
        assert_eq!(held.schemes[0], free);
        assert_eq!(held.schemes[1].pattern.size.min, u64::MAX);

        let stats = |effective_bytes| KernelStats {
            effective_bytes,
            ..KernelStats::default()
        };
        let of_free = stats(Some(0));
        assert!(!are_in_force(&context, &[of_free, stats(Some(0))]));
        assert!(are_in_force(&context, &[of_free, stats(Some(4 << 20))]));
        // Before 6.9.
        assert!(are_in_force(&context, &[of_free, stats(None)]));
    }
}
