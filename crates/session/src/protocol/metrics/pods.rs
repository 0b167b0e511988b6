//! Metrics of control groups and of pods: what they need, who they are, and their policies.

use std::collections::BTreeSet;
use std::path::Path;

use isotherm_linux::cgroup::{self, GroupMemory};
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::pods::uid_of_group;
use prometheus_client::metrics::MetricType;

use super::super::PodPolicyName;
use super::super::machine::Owner;
use super::super::needed::GroupFacts;
use super::page::Page;
use super::{Metrics, label};

impl Metrics<'_> {
    pub(super) fn needed(&self, page: &mut Page) {
        let root = cgroup::find(Path::new("/")).unwrap_or_default();
        let has_swap = Meminfo::read()
            .get("SwapTotal")
            .is_some_and(|bytes| bytes > 0);
        let all = self.live.needed(|group| {
            let directory = root.join(group.trim_start_matches('/'));
            GroupFacts {
                charge: cgroup::charge(&directory),
                has_swap: has_swap && may_swap(&directory, &root),
            }
        });
        if all.is_empty() {
            return;
        }
        page.family(
            "isotherm_needed_bytes",
            MetricType::Gauge,
            "With --all: memory that a control group needs at a loss of 1 %, between bounds. Swap takes the rest, where \
             there is swap. Its greatest value over days is what to request.",
        );
        for (group, of) in &all {
            let group = isotherm_record::printable(group);
            let bounds = [("low", of.low), ("estimate", of.bytes), ("high", of.high)];
            for (bound, bytes) in bounds {
                page.sample(&[("cgroup", &group), ("bound", bound)], bytes);
            }
        }
        page.family(
            "isotherm_needed_age_seconds",
            MetricType::Gauge,
            "With --all: memory of a control group that is idle for this long is not needed: if it were out, reading \
             it back would cost 1 % of a CPU.",
        );
        for (group, of) in &all {
            let group = isotherm_record::printable(group);
            page.sample(&[("cgroup", &group)], of.idle_for.as_secs_f64());
        }
        page.family(
            "isotherm_charged_bytes",
            MetricType::Gauge,
            "With --all: all memory that a control group is charged for.",
        );
        for (group, of) in &all {
            let group = isotherm_record::printable(group);
            page.sample(&[("cgroup", &group)], of.charged);
        }
    }

    pub(super) fn pods(&self, page: &mut Page) {
        if self.pods.is_empty() {
            return;
        }
        page.family(
            "isotherm_pod",
            MetricType::Info,
            "Of which pod and container a control group is: join on (instance, cgroup).",
        );
        for owner in self.told_groups() {
            let uid = uid_of_group(owner.name());
            let Some((uid, pod)) = uid.and_then(|uid| self.pods.get_key_value(&uid)) else {
                continue;
            };
            let container = pod.container_of_group(owner.name());
            let labels = [
                ("cgroup", &*label(owner)),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
                ("container", container.unwrap_or_default()),
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

/// Returns whether no group from `directory` up to `root` forbids swap.
fn may_swap(directory: &Path, root: &Path) -> bool {
    let mut groups = directory.ancestors().take_while(|group| *group != root);
    groups.all(|group| GroupMemory::of(group).swap_limit != Some(0))
}
