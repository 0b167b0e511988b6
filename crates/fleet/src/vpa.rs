//! Recommendations in `VerticalPodAutoscaler` objects.
//!
//! An object names its recommender in `spec.recommenders`. Its status holds, for each container, a target between bounds.
//! The updater of the Vertical Pod Autoscaler evicts, or resizes, pods whose request is beyond the bounds.
//!
//! Source: kubernetes/autoscaler, vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1/types.go.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::needs::ContainerNeed;
use crate::objects::{ContainerPolicy, Vpa, memory};
use crate::quantity::{format, rounded};

/// Returns the status of `vpa` at `now` (RFC 3339), with the needs of its target's containers, how many there are, and
/// whether that is new. Returns `None` if there are none.
pub(crate) fn status(
    vpa: &Vpa,
    needs: &BTreeMap<String, ContainerNeed>,
    now: &str,
) -> Option<(Value, u64, bool)> {
    let containers = needs.iter().filter_map(|(container, need)| {
        let policy = policy_of(vpa, container);
        if policy.is_some_and(|policy| !policy.is_about_memory()) {
            return None;
        }
        let bound = |bytes: u64| json!({"memory": allowed(policy, bytes)});
        Some(json!({
            "containerName": container,
            "lowerBound": bound(need.low_bytes),
            "target": bound(need.bytes),
            "uncappedTarget": {"memory": format(rounded(need.bytes))},
            "upperBound": bound(need.high_bytes),
        }))
    });
    let containers: Vec<Value> = containers.collect();
    let nr = containers.len() as u64;
    let recommendation = json!({"containerRecommendations": containers});
    let is_new = vpa.status.recommendation != recommendation;
    let status = json!({"status": {
        "recommendation": recommendation,
        "conditions": [{"type": "RecommendationProvided", "status": "True", "lastTransitionTime": now}],
    }});
    (nr > 0).then_some((status, nr, is_new))
}

impl ContainerPolicy {
    /// Returns whether memory is to be recommended.
    fn is_about_memory(&self) -> bool {
        let controlled = self.controlled_resources.as_ref();
        let is_controlled =
            controlled.is_none_or(|names| names.iter().any(|name| name == "memory"));
        self.mode != "Off" && is_controlled
    }
}

fn policy_of<'a>(vpa: &'a Vpa, container: &str) -> Option<&'a ContainerPolicy> {
    let policies = &vpa.spec.resource_policy.container_policies;
    let of = |name: &str| policies.iter().find(|of| of.container_name == name);
    of(container).or_else(|| of("*"))
}

/// Returns a quantity within what the policy allows.
fn allowed(policy: Option<&ContainerPolicy>, bytes: u64) -> String {
    let least = policy.and_then(|policy| memory(&policy.min_allowed));
    let most = policy.and_then(|policy| memory(&policy.max_allowed));
    let rounded = rounded(bytes.max(least.unwrap_or(0)));
    match most.filter(|most| rounded > *most) {
        Some(most) => most.to_string(),
        None => format(rounded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommendations_keep_to_what_is_allowed() {
        let vpa: Vpa = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "cart"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"},
                "recommenders": [{"name": "isotherm"}],
                "resourcePolicy": {"containerPolicies": [
                    {"containerName": "proxy", "mode": "Off"},
                    {"containerName": "cache", "controlledResources": ["cpu"]},
                    {"containerName": "*", "minAllowed": {"memory": 67_108_864}, "maxAllowed": {"memory": "0.1Gi", "cpu": 1}},
                ]},
            },
        }))
        .expect("an object");
        assert!(vpa.is_ours());
        let need = ContainerNeed {
            bytes: 90 << 20,
            low_bytes: 30 << 20,
            high_bytes: 300 << 20,
            charged_bytes: 0,
            watched_s: 0,
        };
        let needs = ["web", "proxy", "cache"]
            .map(|name| (name.to_owned(), need))
            .into();
        let (status, nr, is_new) = status(&vpa, &needs, "2026-11-29T12:00:00Z").expect("one");
        assert!(is_new && nr == 1);
        let container = &status["status"]["recommendation"]["containerRecommendations"][0];
        let memory = |name: &str| container[name]["memory"].as_str().map(str::to_owned);
        assert_eq!(memory("lowerBound").as_deref(), Some("64Mi"));
        assert_eq!(memory("target").as_deref(), Some("90Mi"));
        assert_eq!(memory("upperBound").as_deref(), Some("107374183"));
        assert_eq!(super::status(&vpa, &BTreeMap::new(), ""), None);
        let written = Vpa {
            status: serde_json::from_value(status["status"].clone()).expect("a status"),
            ..vpa
        };
        let again = super::status(&written, &needs, "later").expect("one");
        assert!(!again.2);
    }
}
