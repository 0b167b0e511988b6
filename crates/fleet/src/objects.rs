//! The parts of the API server's objects that are read, by their names there.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::quantity;

/// Custom recommenders are named in a `VerticalPodAutoscaler`.
pub(crate) const RECOMMENDER: &str = "isotherm";

/// Declares parts of objects: a member that is absent, or that is not read, is not an error.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $member:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub(crate) struct $name {
            $($(#[$of])* pub(crate) $member: $type,)*
        }
    )*};
}

objects! {
    ObjectMeta {
        namespace: String,
        name: String,
        uid: String,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<OwnerReference>,
        deletion_timestamp: Option<String>,
    }
    OwnerReference { kind: String, name: String, controller: bool }
    /// A list, whose items are read one by one.
    List { metadata: ListMeta, items: Vec<Value> }
    ListMeta {
        /// Token of the next page; empty on the last.
        r#continue: String,
    }
    KubePod { metadata: ObjectMeta, spec: PodSpec, status: PodStatus }
    PodSpec { containers: Vec<Container> }
    Container { name: String, resources: Resources, resize_policy: Vec<ResizePolicy> }
    Resources { requests: BTreeMap<String, Value>, limits: BTreeMap<String, Value> }
    ResizePolicy { resource_name: String, restart_policy: String }
    PodStatus {
        phase: String,
        reason: String,
        container_statuses: Vec<ContainerStatus>,
        conditions: Vec<Condition>,
    }
    Condition { r#type: String, status: String, reason: String }
    ContainerStatus { ready: bool, restart_count: u64, last_state: LastState }
    LastState { terminated: Terminated }
    Terminated { reason: String }
    Vpa { metadata: ObjectMeta, spec: VpaSpec, status: VpaStatus }
    VpaStatus { recommendation: Value }
    VpaSpec {
        target_ref: TargetRef,
        recommenders: Vec<Recommender>,
        update_policy: UpdatePolicy,
        resource_policy: ResourcePolicy,
    }
    TargetRef { kind: String, name: String }
    UpdatePolicy { update_mode: String }
    Recommender { name: String }
    ResourcePolicy { container_policies: Vec<ContainerPolicy> }
    ContainerPolicy {
        container_name: String,
        mode: String,
        /// Resources that are recommended; `None`: all.
        controlled_resources: Option<Vec<String>>,
        min_allowed: BTreeMap<String, Value>,
        max_allowed: BTreeMap<String, Value>,
    }
}

/// Memory in a list of resources, in bytes: a text, or a number.
pub(crate) fn memory(resources: &BTreeMap<String, Value>) -> Option<u64> {
    match resources.get("memory")? {
        Value::String(text) => quantity::parse(text),
        number => quantity::parse(&number.to_string()),
    }
}

/// Removes the members that are null: they stand for what is absent.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            let members = members.map(|(name, value)| (name, without_nulls(value)));
            Value::Object(members.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

impl Resources {
    pub(crate) fn request(&self) -> Option<u64> {
        memory(&self.requests)
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        memory(&self.limits)
    }
}

impl Container {
    /// Returns whether a resize of its memory restarts it.
    pub(crate) fn restarts_on_resize(&self) -> bool {
        let mut policies = self.resize_policy.iter();
        policies.any(|of| of.resource_name == "memory" && of.restart_policy == "RestartContainer")
    }
}

impl KubePod {
    /// Returns the kind and the name of the workload that the pod is of: of a Deployment, not of its `ReplicaSet`.
    pub(crate) fn workload(&self) -> (String, String) {
        let mut owners = self.metadata.owner_references.iter();
        let Some(owner) = owners.find(|owner| owner.controller) else {
            return ("Pod".to_owned(), self.metadata.name.clone());
        };
        let hash = self.metadata.labels.get("pod-template-hash");
        let of_deployment = hash.and_then(|hash| {
            let name = owner.name.strip_suffix(hash.as_str())?;
            name.strip_suffix('-')
        });
        match of_deployment.filter(|_| owner.kind == "ReplicaSet") {
            Some(name) => ("Deployment".to_owned(), name.to_owned()),
            None => (owner.kind.clone(), owner.name.clone()),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        let statuses = &self.status.container_statuses;
        self.status.phase == "Running"
            && self.metadata.deletion_timestamp.is_none()
            && statuses.iter().all(|status| status.ready)
    }

    /// Returns whether all of its containers have ended: it was evicted, or is done.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Failed" | "Succeeded")
    }

    /// Returns whether its node ended it to free memory, or another resource.
    pub(crate) fn was_evicted(&self) -> bool {
        self.status.phase == "Failed" && self.status.reason == "Evicted"
    }

    /// Returns why a resize is not in force yet: `Infeasible` first, then `Deferred` or any other reason, which may be
    /// empty. `None`: none is pending.
    pub(crate) fn pending_resize(&self) -> Option<&str> {
        let conditions = self.status.conditions.iter().filter(|of| {
            let kind = of.r#type.as_str();
            matches!(kind, "PodResizePending" | "PodResizeInProgress") && of.status == "True"
        });
        let reasons = conditions.map(|of| of.reason.as_str());
        reasons.max_by_key(|reason| (*reason == "Infeasible", *reason == "Deferred"))
    }

    /// Returns whether a container was last killed as it exceeded its limit, or its node had no memory.
    pub(crate) fn was_oom_killed(&self) -> bool {
        let mut statuses = self.status.container_statuses.iter();
        statuses.any(|of| of.last_state.terminated.reason == "OOMKilled")
    }

    pub(crate) fn restarts(&self) -> u64 {
        let statuses = self.status.container_statuses.iter();
        statuses.map(|status| status.restart_count).sum()
    }
}

impl Vpa {
    /// Returns whether the autoscaler itself sets the sizes of the target's pods.
    pub(crate) fn sets_sizes(&self) -> bool {
        !matches!(
            self.spec.update_policy.update_mode.as_str(),
            "Off" | "Initial"
        )
    }

    /// Returns whether it names us as its recommender.
    pub(crate) fn is_ours(&self) -> bool {
        let mut named = self.spec.recommenders.iter();
        named.any(|of| of.name == RECOMMENDER)
    }
}
