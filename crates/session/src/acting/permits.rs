//! Limits acting to the pods that permit it.
//!
//! Problem: on a node of a cluster all processes are watched, and only some pods want their memory reclaimed.
//!
//! Approach: a process is in the pod whose uid is in the name of its control group. Schemes see only the snapshots of
//! processes whose pod permits acting, so that quotas and the guard are not spent on other memory. With a filter of
//! DAMOS (`memcg`), schemes would plan for all of it and leave it out page by page. The filter also names one control
//! group, not those below it. The minimum age that a pod asks for is a fact for the schemes, so that one scheme, with
//! one quota, serves all pods.
//!
//! Limits: a process that is moved to another group counts as of the former for [`READ_EVERY`] at most. Page cache that
//! no process maps is left alone: it is charged to its first reader, which may be in another pod.

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::{cgroup, pods};
use isotherm_record::TargetStart;

const READ_EVERY: Nanos = Nanos(5_000_000_000);

/// Pods that may be acted on, by uid, with the minimum age of their memory, whatever schemes say.
pub type PodPermits = BTreeMap<String, Nanos>;

#[derive(Debug, Default)]
pub(super) struct PodAllowlist {
    pub(super) pods: PodPermits,
    /// Process id and pod of each target.
    targets: BTreeMap<TargetId, (u32, Option<String>)>,
    read_at: Nanos,
    /// Whether anything has changed since the last call of `refresh`.
    has_changed: bool,
}

impl PodAllowlist {
    pub(super) fn start(&mut self, start: &TargetStart) {
        let pod = pod_of(start.pid);
        self.has_changed |= pod.is_some();
        self.targets.insert(start.target, (start.pid, pod));
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// Reads the pods of the processes again, if that is due. Returns whether anything has changed since the last call.
    pub(super) fn refresh(&mut self, now: Nanos) -> bool {
        if now >= self.read_at + READ_EVERY {
            self.read_at = now;
            self.refresh_by(pod_of);
        }
        std::mem::take(&mut self.has_changed)
    }

    fn refresh_by(&mut self, pod_of: impl Fn(u32) -> Option<String>) {
        for (pid, pod) in self.targets.values_mut() {
            let now_in = pod_of(*pid);
            self.has_changed |= now_in != *pod;
            *pod = now_in;
        }
    }

    /// Whether `target` may be acted on. An unknown one may not.
    pub(super) fn has(&self, target: TargetId) -> bool {
        self.least_age(target).is_some()
    }

    /// Returns the targets that may be acted on, with the minimum ages of their pods.
    pub(super) fn least_ages(&self) -> BTreeMap<TargetId, Nanos> {
        let targets = self.targets.keys();
        targets
            .filter_map(|target| Some((*target, self.least_age(*target)?)))
            .collect()
    }

    fn least_age(&self, target: TargetId) -> Option<Nanos> {
        let (_, pod) = self.targets.get(&target)?;
        self.pods.get(pod.as_ref()?).copied()
    }
}

fn pod_of(pid: u32) -> Option<String> {
    pods::uid_of_group(&cgroup::of_process(pid)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Nanos = Nanos(60_000_000_000);

    #[test]
    fn only_pods_that_permit_it_are_acted_on() {
        let mut permits = PodAllowlist::default();
        for pid in 1..5 {
            permits.targets.insert(TargetId(pid), (pid, None));
        }
        permits.pods = [("a".to_owned(), MINUTE), ("b".to_owned(), Nanos(0))].into();
        assert_eq!(permits.least_ages(), [].into(), "their place is unknown");
        let groups = |pid: u32| {
            let pods = ["a", "b", "c"];
            pods.get(pid as usize - 1).map(|pod| (*pod).to_owned())
        };
        let changes = |permits: &mut PodAllowlist, of: &dyn Fn(u32) -> Option<String>| {
            permits.refresh_by(of);
            std::mem::take(&mut permits.has_changed)
        };
        assert!(changes(&mut permits, &groups));
        assert!(!changes(&mut permits, &groups), "as before");
        let wanted = [(TargetId(1), MINUTE), (TargetId(2), Nanos(0))].into();
        assert_eq!(permits.least_ages(), wanted);
        let mut others = [3, 4, 9].map(TargetId).into_iter();
        assert!(!others.any(|target| permits.has(target)));
        // The process has moved out of the pod.
        let moved = |pid: u32| groups(pid).filter(|pod| pod != "a");
        assert!(changes(&mut permits, &moved));
        assert!(!permits.has(TargetId(1)));
        permits.pods.clear();
        assert_eq!(permits.least_ages(), [].into());
    }
}
