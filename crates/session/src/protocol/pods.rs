//! Policies of pods, as status and metrics report them.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_config::{AnnotatedPod, PodPolicy};
use isotherm_engine::Nanos;
use serde::Serialize;

use crate::PodPermits;

/// Limit of the pods that a status lists.
const PODS_TOLD: usize = 1_000;

/// Policies of this node's pods, by the last answer of the API server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PodPolicies {
    /// Name of the node in the cluster.
    node: String,
    /// Time of the last answer, nanoseconds since 1970; `null` before the first: no pod is acted on until then.
    pub(super) answered_at: Option<Nanos>,
    /// Error of the last request; the policies of the last answer stay valid.
    pub(super) error: Option<String>,
    /// Number of pods of each policy.
    nr_pods: BTreeMap<PodPolicyName, u64>,
    /// Pods with another policy than `report`, the first 1,000 by uid.
    pods: Vec<ToldPod>,
    #[serde(skip)]
    by_uid: BTreeMap<String, AnnotatedPod>,
    /// Pods with the problem that was reported for each.
    #[serde(skip)]
    reported: BTreeSet<(String, String)>,
}

isotherm_engine::named! {
    /// Name of a policy in status and metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PodPolicyName {
        /// Memory of the pod is reported only.
        Report = "report",
        /// Schemes may page out memory of the pod.
        Reclaim = "reclaim",
        /// The pod's annotations are not understood; the pod is not acted on.
        Invalid = "invalid",
        /// The pod is missing in the API server's answer; it is not acted on.
        Unknown = "unknown",
    }

    /// Name as text.
    fn name;
}

impl PodPolicyName {
    fn of(pod: &AnnotatedPod) -> Self {
        match pod.policy {
            Ok(PodPolicy::Report) => Self::Report,
            Ok(PodPolicy::Reclaim { .. }) => Self::Reclaim,
            Err(_) => Self::Invalid,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct ToldPod {
    namespace: String,
    pod: String,
    uid: String,
    policy: PodPolicyName,
    /// From the pod's annotation, as `problem` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_age: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl ToldPod {
    fn of(pod: &AnnotatedPod) -> Self {
        let min_age = match pod.policy {
            Ok(PodPolicy::Reclaim { min_age }) => Some(min_age).filter(|age| age.0 > 0),
            _ => None,
        };
        Self {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            policy: PodPolicyName::of(pod),
            min_age,
            problem: pod.policy.as_ref().err().map(ToString::to_string),
        }
    }
}

impl PodPolicies {
    /// Makes the policies of a node before the first answer.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            ..Self::default()
        }
    }

    /// Takes an answer of the API server. Returns new notes: errors in pods' annotations, a failed request, or the
    /// first answer after one.
    pub fn take(&mut self, now: Nanos, answer: Result<Vec<AnnotatedPod>, String>) -> Vec<String> {
        match answer {
            Ok(pods) => self.take_pods(now, pods),
            Err(error) => {
                let is_new = self.error.is_none();
                let text = format!("it is not known which pods may be acted on: {error}; {}", {
                    match self.answered_at {
                        Some(_) => {
                            "what they said before holds, and pods that came since are left alone"
                        }
                        None => "none is, until it is",
                    }
                });
                self.error = Some(error);
                is_new.then_some(text).into_iter().collect()
            }
        }
    }

    fn take_pods(&mut self, now: Nanos, pods: Vec<AnnotatedPod>) -> Vec<String> {
        let mut notes = Vec::new();
        if self.error.take().is_some() {
            notes.push("pods say again what may be done to them".to_owned());
        }
        self.answered_at = Some(now);
        self.by_uid = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        self.nr_pods = BTreeMap::new();
        for pod in self.by_uid.values() {
            *self.nr_pods.entry(PodPolicyName::of(pod)).or_default() += 1;
        }
        let reported = { self.by_uid.values() }
            .filter(|pod| PodPolicyName::of(pod) != PodPolicyName::Report)
            .map(ToldPod::of);
        self.pods = reported.take(PODS_TOLD).collect();
        // A pod that is gone, or has been corrected, may be reported again.
        let mut wrong = BTreeSet::new();
        for pod in self.by_uid.values() {
            let Err(problem) = &pod.policy else { continue };
            let what = (pod.uid.clone(), problem.to_string());
            if !self.reported.contains(&what) {
                let (namespace, name) = (&pod.namespace, &pod.name);
                notes.push(format!("pod {namespace}/{name} is left alone: {problem}"));
            }
            wrong.insert(what);
        }
        self.reported = wrong;
        notes
    }

    /// Pods that may be acted on, with their minimum ages.
    pub fn permits(&self) -> PodPermits {
        let of = |pod: &AnnotatedPod| match pod.policy {
            Ok(PodPolicy::Reclaim { min_age }) => Some((pod.uid.clone(), min_age)),
            _ => None,
        };
        self.by_uid.values().filter_map(of).collect()
    }

    /// Policy of a pod.
    pub fn policy_of(&self, uid: &str) -> PodPolicyName {
        self.by_uid
            .get(uid)
            .map_or(PodPolicyName::Unknown, PodPolicyName::of)
    }

    /// Namespace and name of a pod in the API server's answer.
    pub(super) fn name_of(&self, uid: &str) -> Option<(&str, &str)> {
        let pod = self.by_uid.get(uid)?;
        Some((&pod.namespace, &pod.name))
    }

    pub(super) fn nr_pods(&self, policy: PodPolicyName) -> u64 {
        self.nr_pods.get(&policy).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use isotherm_config::read_pods;
    use serde_json::json;

    use super::*;

    fn pods(of: &[(&str, &str)]) -> Vec<AnnotatedPod> {
        let items = of.iter().map(|(uid, policy)| {
            let annotations = json!({"isotherm.io/policy": policy, "isotherm.io/min-age": "1m"});
            json!({"metadata": {"uid": uid, "namespace": "shop", "name": uid, "annotations": annotations}})
        });
        let list = json!({"kind": "PodList", "items": items.collect::<Vec<_>>()});
        read_pods(list.to_string().as_bytes()).expect("a list")
    }

    #[test]
    fn what_is_wrong_is_told_once_and_what_was_known_holds() {
        let mut known = PodPolicies::new("n");
        let refused = || Err("403".to_owned());
        let notes = known.take(Nanos(1), refused());
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("none is"), "{notes:?}");
        assert_eq!(known.take(Nanos(2), refused()), Vec::<String>::new());
        assert!(known.permits().is_empty() && known.answered_at.is_none());
        let both = || Ok(pods(&[("a", "reclaim"), ("b", "Reclaim"), ("c", "report")]));
        let notes = known.take(Nanos(3), both());
        assert!(notes.len() == 2 && notes[1].contains("shop/b"), "{notes:?}");
        assert_eq!(known.take(Nanos(4), both()), Vec::<String>::new());
        let wanted: PodPermits = [("a".to_owned(), Nanos(60_000_000_000))].into();
        assert_eq!(known.permits(), wanted);
        let notes = known.take(Nanos(5), refused());
        let is_told = notes[0].contains("what they said before holds");
        assert!(is_told, "{notes:?}");
        assert_eq!(known.permits(), wanted);
        assert_eq!(known.answered_at, Some(Nanos(4)));
        assert_eq!(known.policy_of("b"), PodPolicyName::Invalid);
        assert_eq!(known.policy_of("d"), PodPolicyName::Unknown);
        assert_eq!(known.nr_pods(PodPolicyName::Report), 1);
        // The annotation is removed from one pod, and wrong in another way on the other.
        let notes = known.take(Nanos(6), Ok(pods(&[("b", "no"), ("a", "report")])));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(known.permits().is_empty());
    }
}
