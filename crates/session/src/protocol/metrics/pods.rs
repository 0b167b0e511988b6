//! Metrics of pods: their control groups and their policies.

use std::collections::BTreeSet;

use isotherm_linux::pods::uid_of_group;
use prometheus_client::metrics::MetricType;

use super::super::PodPolicyName;
use super::super::machine::Owner;
use super::page::Page;
use super::{Metrics, label};

impl Metrics<'_> {
    pub(super) fn pods(&self, page: &mut Page) {
        if self.pods.is_empty() {
            return;
        }
        page.family(
            "isotherm_pod",
            MetricType::Info,
            "Of which pod a control group is: join on (instance, cgroup).",
        );
        for owner in self.told_groups() {
            let uid = uid_of_group(owner.name());
            let Some((uid, pod)) = uid.and_then(|uid| self.pods.get_key_value(&uid)) else {
                continue;
            };
            let labels = [
                ("cgroup", &*label(owner)),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
                ("uid", uid),
            ];
            page.sample(&labels, 1);
        }
    }

    /// Returns the control groups that have series of their own: the largest.
    fn told_groups(&self) -> BTreeSet<Owner<'_>> {
        let machine = &self.live.machine;
        let mapped = machine.by_owner().into_keys().map(|(owner, _)| owner);
        let owners = mapped.chain(machine.page_cache_by_owner().into_keys());
        owners
            .filter(|owner| matches!(owner, Owner::Group(_)))
            .collect()
    }

    pub(super) fn pod_policies(&self, page: &mut Page) {
        let Some(policies) = &self.live.pods else {
            return;
        };
        page.family(
            "isotherm_pod_policy",
            MetricType::Gauge,
            "Permission of pods with known control groups: `report`, `reclaim`, \
             `invalid` or `unknown`; only `reclaim` is acted on.",
        );
        let groups = self.told_groups();
        let uids = groups.iter().filter_map(|owner| uid_of_group(owner.name()));
        for uid in uids.collect::<BTreeSet<String>>() {
            let by_folder = self.pods.get(&uid).map(|pod| (&*pod.namespace, &*pod.name));
            let (namespace, pod) = policies.name_of(&uid).or(by_folder).unwrap_or(("", ""));
            let policy = policies.policy_of(&uid).name();
            let labels = [
                ("namespace", namespace),
                ("pod", pod),
                ("uid", &*uid),
                ("policy", policy),
            ];
            page.sample(&labels, 1);
        }
        page.family(
            "isotherm_pod_policy_pods",
            MetricType::Gauge,
            "Pods of this node by what they let be done to their memory, all of them.",
        );
        for policy in [
            PodPolicyName::Report,
            PodPolicyName::Reclaim,
            PodPolicyName::Invalid,
        ] {
            page.sample(&[("policy", policy.name())], policies.nr_pods(policy));
        }
        page.single(
            "isotherm_pod_policy_up",
            MetricType::Gauge,
            "Whether the last request for this node's pods succeeded. If not, the former answer holds.",
            policies.answered_at.is_some() && policies.error.is_none(),
        );
        if let Some(at) = policies.answered_at {
            page.single(
                "isotherm_pod_policy_age_seconds",
                MetricType::Gauge,
                "Age of the API server's last answer about this node's pods.",
                self.now.since(at).as_secs_f64(),
            );
        }
    }
}
