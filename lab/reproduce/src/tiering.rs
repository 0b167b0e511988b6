//! HMSDK on the machine of its publication: the plan that `tier plan -m 0 1 -g` writes, on a simulated machine as in
//! `simulate -c`.

use crate::experiment::tiering::TieringSetting;
use anyhow::Context;
use isotherm_config::{ActingRequest, Extent, Request, TierPlan, Topology};
use isotherm_sim::simulation::SimContextSpec;

/// Returns the contexts that migrate between the two nodes of an experiment.
pub(super) fn contexts(setting: &TieringSetting) -> anyhow::Result<Vec<SimContextSpec>> {
    let sizes = (0..).zip(setting.node_bytes().map(Extent::Size));
    let mut plan = TierPlan::default();
    plan.migrate(0, 1);
    let configuration = plan.configuration(&Topology::new(sizes)?)?;
    let request = Request {
        seed: setting.seed,
        acting: ActingRequest {
            // The published runs had no guard.
            no_guard: true,
            ..ActingRequest::default()
        },
        ..Request::default()
    };
    let session = request.act(&configuration.contexts, None)?;
    let contexts = { session.contexts.iter() }.map(isotherm_session::simulated::context);
    let contexts: anyhow::Result<_> = contexts.collect();
    contexts.context("HMSDK's plan cannot be simulated")
}

#[cfg(test)]
mod tests {
    use crate::experiment::redis::reads;
    use crate::experiment::tiering::{KeyDistribution, run};
    use isotherm_engine::Nanos;

    use super::*;

    /// A hundredth of the published setting: 5 GiB and 2 GiB; redis has 0.5 GiB and a snapshot of 0.3.
    fn small(cold_gib: u64, load: Nanos) -> TieringSetting {
        TieringSetting {
            fast_mib: 6 << 10,
            slow_mib: 2 << 10,
            system_mib: 1 << 10,
            cold_mib: cold_gib << 10,
            anon_mib: 538,
            file_mib: 330,
            records: 300_000,
            reads_per_s: 83_333.0,
            fill: load,
            load,
            run: Nanos::from_millis(600_000),
            ..TieringSetting::published(0)
        }
    }

    const MINUTE: Nanos = Nanos::from_millis(60_000);

    #[test]
    fn with_room_everything_is_fast() {
        let setting = small(2, MINUTE);
        let reads = reads(&setting, KeyDistribution::Zipfian);
        let outcome = run(&setting, Vec::new(), &reads);
        assert!(outcome.slow_share.abs() < 1e-9, "{outcome:?}");
        assert!(outcome.slow_gib.abs() < 1e-9, "{outcome:?}");
    }

    #[test]
    fn without_room_what_comes_last_is_slow_and_stays() {
        let setting = small(5, MINUTE);
        for distribution in KeyDistribution::ALL {
            let reads = reads(&setting, distribution);
            let outcome = run(&setting, Vec::new(), &reads);
            assert!((outcome.slow_gib - 0.525).abs() < 0.02, "{outcome:?}");
            assert!((outcome.slow_share - 1.0).abs() < 1e-6, "{outcome:?}");
        }
    }

    /// HMSDK's weights of size, access rate and age: of hot memory, too, the longest hot comes first.
    #[test]
    fn promotion_and_demotion_weigh_age_alone_as_hmsdk_has_it() {
        let contexts = contexts(&TieringSetting::published(0)).expect("a plan of ours");
        let weights = contexts.iter().map(|context| {
            let w = context.schemes[0].quota.weights;
            (w.size_permil, w.nr_accesses_permil, w.age_permil)
        });
        assert_eq!(weights.collect::<Vec<_>>(), [(0, 0, 10), (0, 0, 10)]);
    }

    #[test]
    fn migration_brings_what_is_read_to_the_fast_node() {
        // All of it is resident before any memory is old enough to be demoted.
        let setting = small(5, Nanos::from_millis(10_000));
        let reads = reads(&setting, KeyDistribution::Zipfian);
        let tiered = || {
            let contexts = contexts(&setting).expect("a plan of ours");
            run(&setting, contexts, &reads)
        };
        let outcome = tiered();
        assert!(outcome.slow_share < 0.3, "{outcome:?}");
        assert!(outcome.demoted > 0 && outcome.promoted > 0, "{outcome:?}");
        assert_eq!(outcome, tiered());
    }
}
