//! Sizes of containers in a cluster: recommended, written to `VerticalPodAutoscaler` objects, and set in place.
//!
//! **Problem.** Each node's daemon knows what its containers need (`isotherm_needed_bytes`). Nobody sets hundreds of
//! requests by hand, and a wrong one must not reach all pods of a workload.
//!
//! **Approach.** Prometheus holds the needs of all nodes, the API server the pods. One pass reads both, and computes
//! each container's request and limit ([`needs`]). It writes them as a custom recommender of the Vertical Pod Autoscaler
//! ([`vpa`]). Pods that permit it by an annotation are resized in place, one pod of a workload first ([`resize`]).
//! Nothing is written unless it was asked for.
//!
//! **Limits.** A pass keeps no state but the annotations of pods. Memory alone is recommended, no CPU.

#![forbid(unsafe_code)]

mod api;
mod needs;
mod objects;
mod pass;
mod quantity;
mod report;
mod resize;
mod vpa;

pub use needs::ContainerNeed;
pub use pass::{FleetOptions, pass};
pub use report::{
    ContainerSize, FleetOutcome, FleetReport, PodResize, ResizeKind, VpaUpdate, WorkloadHold,
};
pub use resize::ResizeLimits;
