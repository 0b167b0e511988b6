//! The result of a pass.

use serde::Serialize;

use crate::needs::ContainerNeed;

/// Outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FleetOutcome {
    /// Not written, as that was not asked for.
    Planned,
    /// It is written.
    Done,
    /// Not written, as it is so already.
    Unchanged,
    /// Refused, with the reason.
    Failed(String),
}

/// The size of a container of a workload: what suffices for all of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerSize {
    /// Namespace of the object.
    pub namespace: String,
    /// Kind and name of the workload.
    pub workload: String,
    /// Name of the container.
    pub container: String,
    /// Pods of the workload that are watched.
    pub nr_pods: u64,
    /// The greatest present request of a pod; `null` without one.
    pub request_bytes: Option<u64>,
    /// Change of all requests together, if they were what is needed.
    pub request_change_bytes: i64,
    /// The greatest present limit of a pod; `null` without one.
    pub limit_bytes: Option<u64>,
    /// The need, which is to be the request.
    pub need: ContainerNeed,
}

/// A `VerticalPodAutoscaler` whose recommendation was computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VpaUpdate {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Number of containers with a recommendation.
    pub nr_containers: u64,
    /// Outcome of the change.
    pub outcome: FleetOutcome,
}

/// Reason for a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResizeKind {
    /// The first pod of its workload.
    Canary,
    /// A further pod, after others lost nothing.
    Next,
    /// Back to what was set before: a resized pod of the workload lost.
    RollBack,
}

/// A pod whose memory is resized in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodResize {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Kind and name of the workload.
    pub workload: String,
    /// Kind of the resize.
    pub kind: ResizeKind,
    /// Change of all requests together, in bytes.
    pub request_change_bytes: i64,
    /// Outcome of the change.
    pub outcome: FleetOutcome,
}

/// A workload whose pods are not resized now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkloadHold {
    /// Namespace of the object.
    pub namespace: String,
    /// Kind and name of the workload.
    pub workload: String,
    /// Reason in words.
    pub why: String,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FleetReport {
    /// Sizes of containers, by workload.
    pub containers: Vec<ContainerSize>,
    /// `VerticalPodAutoscaler` objects with our recommendation.
    pub vpas: Vec<VpaUpdate>,
    /// Pods that are resized.
    pub resizes: Vec<PodResize>,
    /// Workloads that permit it, and are not resized now.
    pub held: Vec<WorkloadHold>,
    /// Number of objects of the API server that could not be read.
    pub nr_unreadable: u64,
}
