//! Resizes pods in place: one pod of a workload first, more only if it lost nothing.
//!
//! Problem: a size that is too small slows a program, or kills it. It must not reach all pods of a workload, nor many
//! workloads at once.
//!
//! Approach: pods permit it by the annotation [`PERMIT`]. Of a workload one pod is resized, and watched for a while. If
//! it lost nothing, as many pods follow as have been resized, and so on. A pod has lost if it restarted within that time,
//! was killed for memory, evicted, or waited for memory longer than allowed. It has lost as well if its node cannot resize
//! it, or does not for as long. Then all of the workload's pods are resized back, and left alone for a week. A pod keeps
//! what was set at first in an annotation, so that any later pass can undo it. Where the loss is unknown, no further pod
//! follows.
//!
//! Limits: the class of a pod's quality of service cannot change. A container whose request is its limit keeps them
//! equal; one without a request is left alone. No limit falls below the present charge, as the kubelet waits for that.
//! A roll-back lowers no limit below what is needed. All notes of a workload end with its pods.
//!
//! Source: Kubernetes' documents, "Resize CPU and Memory Resources assigned to Containers".

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::Nanos;
use isotherm_engine::units::format_time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::needs::{ContainerKey, ContainerNeed, key_of, needs_of};
use crate::objects::KubePod;
use crate::quantity::{format, rounded};
use crate::report::{FleetOutcome, PodResize, ResizeKind, WorkloadHold};

/// Annotation by which a pod permits resizes: `requests`, or `limits` for both.
pub(crate) const PERMIT: &str = "isotherm.io/resize";
/// Annotation with the last resize of a pod.
const RESIZED: &str = "isotherm.io/resized";
/// Annotation with the time at which a resize was undone, in seconds since 1970.
const FAILED: &str = "isotherm.io/resize-failed";
/// Time for which a workload is left alone after that.
const LEFT_ALONE_S: u64 = 7 * 24 * 3600;
/// Time in which a loss is put down to the resize.
const BLAMED_S: u64 = 24 * 3600;
/// Time that the default query of the loss looks back.
const LOOKS_BACK_S: u64 = 300;
/// Least change that is worth a resize: a share, and bytes.
const LEAST_CHANGE: (f64, u64) = (0.1, 16 << 20);
/// Distance between a request and its limit, in bytes.
const LEAST_APART: u64 = 1 << 20;

/// Limits of resizes.
#[derive(Clone, Copy, Debug)]
pub struct ResizeLimits {
    /// Least time for which a container was watched before anything is written, in seconds.
    pub watched_s: u64,
    /// Time for which a resized pod is watched before others follow, in seconds.
    pub settle_s: u64,
    /// Largest share of time that a resized container may wait for memory.
    pub max_loss: f64,
    /// Largest share of all pods that permit resizes and are watched at a time; one is always allowed.
    pub at_once: f64,
    /// Most resizes of a pass; roll-backs do not count.
    pub per_pass: usize,
}

/// Memory of a pod's containers before a resize.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Resized {
    /// Time, in seconds since 1970.
    at: u64,
    /// Restarts of its containers until then.
    restarts: u64,
    /// Share of its time that it waited for memory before, if that was known.
    #[serde(default)]
    loss: Option<f64>,
    was: Vec<ContainerMemory>,
}

/// Memory of a container, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ContainerMemory {
    name: String,
    request: Option<u64>,
    limit: Option<u64>,
}

/// A resize to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedResize {
    /// The resize as it is reported.
    pub(crate) resize: PodResize,
    /// Strategic merge patch of the subresource `resize`; null for a pod that only notes a roll-back.
    pub(crate) resources: Value,
    /// Merge patch of the pod, which notes what was set before. It is written first, after a roll-back last.
    pub(crate) note: Value,
    /// Merge patch after a refusal: the pod was not resized, and its workload is left alone.
    pub(crate) refused: Value,
}

impl PlannedResize {
    /// Returns the note of a resize that is made `after_s` seconds after it was planned: the pod is watched from then on.
    pub(crate) fn note_after(&self, after_s: u64) -> Value {
        let mut note = self.note.clone();
        let text = &mut note["metadata"]["annotations"][RESIZED];
        let resized = text.as_str().map(serde_json::from_str::<Resized>);
        if let Some(Ok(mut resized)) = resized {
            resized.at += after_s;
            *text = serde_json::to_string(&resized).unwrap_or_default().into();
        }
        note
    }
}

/// Resizes to be made, and workloads that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResizePlan {
    pub(crate) resizes: Vec<PlannedResize>,
    pub(crate) held: Vec<WorkloadHold>,
}

/// A pod that permits resizes.
struct Member<'a> {
    pod: &'a KubePod,
    resized: Option<Resized>,
    /// Share of its time that it waited for memory lately, if that is known.
    loss: Option<f64>,
}

/// The pods of a workload that permit resizes.
struct Workload<'a> {
    namespace: String,
    name: String,
    members: Vec<Member<'a>>,
}

/// Shares of time that pods wait for memory, by namespace and name.
pub(crate) type Losses = BTreeMap<(String, String), f64>;

/// Facts that a plan follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster<'a> {
    pub(crate) pods: &'a [KubePod],
    pub(crate) needs: &'a BTreeMap<ContainerKey, ContainerNeed>,
    pub(crate) losses: &'a Losses,
    /// Workloads that are left alone: namespace, and kind and name.
    pub(crate) autoscaled: &'a BTreeSet<(String, String)>,
}

/// Plans the resizes of one pass at `now`, in seconds since 1970.
pub(crate) fn plan(cluster: Cluster<'_>, limits: ResizeLimits, now: u64) -> ResizePlan {
    let Cluster {
        needs, autoscaled, ..
    } = cluster;
    let workloads = workloads_of(cluster.pods, cluster.losses);
    let nr: usize = workloads
        .iter()
        .map(|workload| workload.members.len())
        .sum();
    let all = workloads.iter().flat_map(|workload| &workload.members);
    let unsettled = all.filter(|member| member.unsettled_for(limits, now) > 0);
    let mut left = ((limits.at_once * nr as f64) as usize).max(1);
    left = left.saturating_sub(unsettled.count()).min(limits.per_pass);
    let mut plan = ResizePlan::default();
    for workload in &workloads {
        if autoscaled.contains(&(workload.namespace.clone(), workload.name.clone())) {
            plan.hold(
                workload,
                "its VerticalPodAutoscaler sets its sizes (updateMode)",
            );
            continue;
        }
        match workload.resizes(needs, limits, now) {
            Ok(resizes) => {
                let is_back = |of: &PlannedResize| of.resize.kind == ResizeKind::RollBack;
                let (back, mut on): (Vec<_>, Vec<_>) = resizes.into_iter().partition(is_back);
                if on.len() > left {
                    on.truncate(left);
                    plan.hold(
                        workload,
                        "as many pods as may be at once are resized, or watched",
                    );
                }
                left -= on.len();
                plan.resizes.extend(back.into_iter().chain(on));
            }
            Err(why) => plan.hold(workload, &why),
        }
    }
    plan
}

fn workloads_of<'a>(pods: &'a [KubePod], losses: &Losses) -> Vec<Workload<'a>> {
    let mut all: BTreeMap<(String, String), Vec<Member<'a>>> = BTreeMap::new();
    for pod in pods {
        let meta = &pod.metadata;
        let is_noted = [RESIZED, FAILED]
            .iter()
            .any(|name| meta.annotations.contains_key(*name));
        let is_member = meta.annotations.contains_key(PERMIT) && meta.deletion_timestamp.is_none();
        if is_member && (is_noted || !pod.is_over()) {
            let resized = meta.annotations.get(RESIZED);
            let (kind, name) = pod.workload();
            let members = all.entry((meta.namespace.clone(), format!("{kind}/{name}")));
            members.or_default().push(Member {
                pod,
                resized: resized.and_then(|text| serde_json::from_str(text).ok()),
                loss: losses
                    .get(&(meta.namespace.clone(), meta.name.clone()))
                    .copied(),
            });
        }
    }
    let workload = |((namespace, name), members)| Workload {
        namespace,
        name,
        members,
    };
    all.into_iter().map(workload).collect()
}

impl ResizePlan {
    fn hold(&mut self, workload: &Workload<'_>, why: &str) {
        self.held.push(WorkloadHold {
            namespace: workload.namespace.clone(),
            workload: workload.name.clone(),
            why: why.to_owned(),
        });
    }
}

fn words_of(seconds: u64) -> String {
    format_time(Nanos(seconds.saturating_mul(1_000_000_000)))
}

impl Workload<'_> {
    /// Returns the resizes of the workload, or why it has to wait.
    fn resizes(
        &self,
        needs: &BTreeMap<ContainerKey, ContainerNeed>,
        limits: ResizeLimits,
        now: u64,
    ) -> Result<Vec<PlannedResize>, String> {
        let members = &self.members;
        // A roll-back that was made in part is completed.
        let failed = members.iter().filter_map(Member::failed_at).max();
        let is_left = |member: &Member<'_>| {
            let resized = member.resized.as_ref();
            resized.is_some_and(|resized| failed.is_some_and(|failed| resized.at <= failed))
        };
        if { members.iter() }.any(|of| of.has_lost(limits, now) || is_left(of)) {
            return Ok(self.roll_back(needs, now));
        }
        match self.waits_for(limits, now) {
            Some(why) => Err(why),
            None => self.next(needs, limits, now),
        }
    }

    /// Returns the roll-back of all resized pods. The others note it as well.
    fn roll_back(
        &self,
        needs: &BTreeMap<ContainerKey, ContainerNeed>,
        now: u64,
    ) -> Vec<PlannedResize> {
        let need = self.need(needs);
        let back = self.members.iter().map(|member| {
            let was = member.resized.iter().flat_map(|resized| &resized.was);
            let to = was.map(|was| restored(member.pod, was, need.get(&was.name)));
            let note = json!({RESIZED: null, FAILED: now.to_string()});
            let to: Vec<ContainerMemory> = to.collect();
            self.planned(member, ResizeKind::RollBack, &to, (&note, now))
        });
        back.collect()
    }

    fn waits_for(&self, limits: ResizeLimits, now: u64) -> Option<String> {
        let members = &self.members;
        let failed = members.iter().filter_map(Member::failed_at).max();
        if let Some(failed) = failed.filter(|at| now.saturating_sub(*at) < LEFT_ALONE_S) {
            let ago = words_of(now.saturating_sub(failed));
            return Some(format!(
                "was resized back {ago} ago: a resized pod lost, or restarted"
            ));
        }
        let mut live = members.iter().filter(|member| !member.pod.is_over());
        if !live.all(|member| member.pod.is_ready()) {
            return Some("not all of its pods are ready".to_owned());
        }
        let pods = members.iter().map(|member| member.pod);
        let mut pending = pods.filter_map(|pod| Some((&pod.metadata.name, pod.pending_resize()?)));
        if let Some((pod, why)) = pending.next() {
            return Some(format!("the resize of {pod} is not in force yet: {why}"));
        }
        let unsettled = members.iter().map(|of| of.unsettled_for(limits, now));
        let left = unsettled.max().filter(|left| *left > 0)?;
        let left = words_of(left);
        Some(format!("its resized pods are watched for {left} more"))
    }

    /// Returns the resizes of as many pods as have been resized and lost nothing, or of one.
    fn next(
        &self,
        needs: &BTreeMap<ContainerKey, ContainerNeed>,
        limits: ResizeLimits,
        now: u64,
    ) -> Result<Vec<PlannedResize>, String> {
        let need = self.need(needs);
        let mut wanted = Vec::new();
        for member in self.members.iter().filter(|member| !member.pod.is_over()) {
            let own = |container: &str| needs.contains_key(&key_of(member.pod, container));
            // Another Prometheus may know the others, and another command resizes them.
            if member.pod.spec.containers.iter().any(|of| own(&of.name)) {
                wanted.push((member, wanted_of(member.pod, &need, own)?));
            }
        }
        let (proven, next): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|(_, wanted)| wanted.is_empty());
        if next.is_empty() {
            return Ok(Vec::new());
        }
        let watched = need.values().map(|need| need.watched_s).min().unwrap_or(0);
        if watched < limits.watched_s {
            let (watched, least) = (words_of(watched), words_of(limits.watched_s));
            return Err(format!("was watched for {watched} of {least}"));
        }
        let proven = { proven.iter() }.filter(|(member, _)| member.resized.is_some());
        if proven.clone().any(|(member, _)| member.loss.is_none()) {
            return Err("what its resized pods lose is unknown: is the loss measured?".to_owned());
        }
        let nr = proven.count();
        let kind = if nr == 0 {
            ResizeKind::Canary
        } else {
            ResizeKind::Next
        };
        let resizes = next.iter().take(nr.max(1)).map(|(member, wanted)| {
            let is_changed = |was: &ContainerMemory| wanted.iter().any(|of| of.name == was.name);
            let mut was: Vec<ContainerMemory> = memory_of(member.pod).filter(is_changed).collect();
            // What was set at first stays noted.
            let first = member
                .resized
                .iter()
                .flat_map(|resized| resized.was.clone());
            for first in first {
                was.retain(|was| was.name != first.name);
                was.push(first);
            }
            let resized = Resized {
                at: now,
                restarts: member.pod.restarts(),
                loss: member.loss,
                was,
            };
            let text = serde_json::to_string(&resized).unwrap_or_default();
            self.planned(member, kind, wanted, (&json!({RESIZED: text}), now))
        });
        Ok(resizes.collect())
    }

    /// Returns what suffices for all of its pods, by container.
    fn need(
        &self,
        needs: &BTreeMap<ContainerKey, ContainerNeed>,
    ) -> BTreeMap<String, ContainerNeed> {
        let all = needs_of(self.members.iter().map(|member| member.pod), needs);
        let needs = all.into_iter();
        needs.map(|(name, (need, _))| (name, need)).collect()
    }

    fn planned(
        &self,
        member: &Member<'_>,
        kind: ResizeKind,
        to: &[ContainerMemory],
        (note, now): (&Value, u64),
    ) -> PlannedResize {
        let meta = &member.pod.metadata;
        let before = meta.annotations.get(RESIZED);
        // A pod of the same name that was made meanwhile has another uid, and is not patched.
        let patch = |notes: &Value| json!({"metadata": {"uid": meta.uid, "annotations": notes}});
        PlannedResize {
            resize: PodResize {
                namespace: self.namespace.clone(),
                pod: meta.name.clone(),
                workload: self.name.clone(),
                kind,
                request_change_bytes: request_change(member.pod, to),
                outcome: FleetOutcome::Planned,
            },
            resources: resources(member.pod, to),
            note: patch(note),
            refused: patch(&json!({RESIZED: before, FAILED: now.to_string()})),
        }
    }
}

impl Member<'_> {
    fn has_lost(&self, limits: ResizeLimits, now: u64) -> bool {
        let Some(resized) = &self.resized else {
            return false;
        };
        let ago = now.saturating_sub(resized.at);
        let restarted = self.pod.restarts() > resized.restarts;
        let waits = self.loss.is_some_and(|loss| {
            let before = resized.loss.unwrap_or(0.0);
            loss > limits.max_loss && loss > 1.5 * before
        });
        // What the loss is computed from begins before the resize, at first.
        let is_seen = ago >= LOOKS_BACK_S.min(limits.settle_s / 2) && ago <= BLAMED_S;
        let pending = self.pod.pending_resize();
        self.pod.was_evicted() && ago <= BLAMED_S
            || restarted && (ago <= limits.settle_s || self.pod.was_oom_killed())
            || waits && is_seen
            || pending == Some("Infeasible")
            || pending.is_some() && ago > limits.settle_s
    }

    fn failed_at(&self) -> Option<u64> {
        self.pod.metadata.annotations.get(FAILED)?.parse().ok()
    }

    /// Returns the seconds for which the pod must be watched still.
    fn unsettled_for(&self, limits: ResizeLimits, now: u64) -> u64 {
        let resized = self.resized.as_ref();
        resized.map_or(0, |resized| {
            resized
                .at
                .saturating_add(limits.settle_s)
                .saturating_sub(now)
        })
    }
}

fn memory_of(pod: &KubePod) -> impl Iterator<Item = ContainerMemory> {
    pod.spec.containers.iter().map(|container| ContainerMemory {
        name: container.name.clone(),
        request: container.resources.request(),
        limit: container.resources.limit(),
    })
}

/// Returns the containers of a pod whose memory should change, with what to set. `own` returns whether the need of a
/// container of this pod is known.
fn wanted_of(
    pod: &KubePod,
    need: &BTreeMap<String, ContainerNeed>,
    own: impl Fn(&str) -> bool,
) -> Result<Vec<ContainerMemory>, String> {
    let mode = pod.metadata.annotations.get(PERMIT).map(String::as_str);
    let sets_limits = match mode {
        Some("limits") => true,
        Some("requests") => false,
        other => {
            let other = other.unwrap_or_default();
            return Err(format!(
                "{PERMIT}: {other:?} is neither requests nor limits"
            ));
        }
    };
    let mut restarting = pod
        .spec
        .containers
        .iter()
        .filter(|of| of.restarts_on_resize());
    if let Some(container) = restarting.next() {
        let name = &container.name;
        return Err(format!(
            "a resize restarts {name}: its resizePolicy of memory is RestartContainer"
        ));
    }
    let mut wanted = Vec::new();
    for now in memory_of(pod) {
        let need = need.get(&now.name).filter(|_| own(&now.name));
        let (Some(need), Some(request)) = (need, now.request) else {
            continue;
        };
        let of = wanted_memory(&now, request, need, sets_limits)?;
        let limit = of.limit.unwrap_or(0).abs_diff(now.limit.unwrap_or(0));
        let is_much = |change: u64, of: u64| {
            change >= LEAST_CHANGE.1 && change as f64 >= LEAST_CHANGE.0 * of as f64
        };
        if is_much(of.request.unwrap_or(0).abs_diff(request), request)
            || is_much(limit, now.limit.unwrap_or(0))
        {
            wanted.push(of);
        }
    }
    Ok(wanted)
}

fn wanted_memory(
    now: &ContainerMemory,
    request: u64,
    need: &ContainerNeed,
    sets_limits: bool,
) -> Result<ContainerMemory, String> {
    let likely = rounded(need.bytes);
    let most = rounded(need.high_bytes.max(need.charged_bytes));
    let (request, limit) = match (now.limit, sets_limits) {
        (None, _) => (likely, None),
        (Some(limit), true) if limit == request => (most, Some(most)),
        // A request that reached its limit would change the pod's class.
        (Some(_), true) => (likely, Some(most.max(likely + LEAST_APART))),
        (Some(limit), false) if limit == request => {
            let name = &now.name;
            return Err(format!(
                "the request of {name} is its limit: permit limits, too"
            ));
        }
        (Some(limit), false) => (likely.min(limit.saturating_sub(LEAST_APART)), Some(limit)),
    };
    Ok(ContainerMemory {
        name: now.name.clone(),
        request: Some(request),
        limit,
    })
}

/// Returns what a roll-back sets: what was set before, with no lower limit than what is needed. Where only requests may
/// change, the limit stays.
fn restored(pod: &KubePod, was: &ContainerMemory, need: Option<&ContainerNeed>) -> ContainerMemory {
    let needed = need.map_or(0, |need| rounded(need.high_bytes.max(need.charged_bytes)));
    let now = memory_of(pod).find(|now| now.name == was.name);
    let mode = pod.metadata.annotations.get(PERMIT);
    let sets_limits = mode.is_some_and(|mode| mode == "limits");
    let limit = if sets_limits {
        was.limit.map(|limit| limit.max(needed))
    } else {
        now.and_then(|now| now.limit)
    };
    let request = match (was.request == was.limit, limit) {
        (true, _) if sets_limits => limit,
        (false, Some(limit)) => was
            .request
            .map(|of| of.min(limit.saturating_sub(LEAST_APART))),
        _ => was.request,
    };
    ContainerMemory {
        name: was.name.clone(),
        request,
        limit,
    }
}

fn request_change(pod: &KubePod, to: &[ContainerMemory]) -> i64 {
    let changes = memory_of(pod).filter_map(|now| {
        let to = to.iter().find(|to| to.name == now.name)?;
        Some(to.request? as i64 - now.request? as i64)
    });
    changes.sum()
}

/// Returns the patch of a pod's resources; null if it has ended.
fn resources(pod: &KubePod, to: &[ContainerMemory]) -> Value {
    let containers = to.iter().map(|to| {
        let memory = |bytes: Option<u64>| bytes.map(|bytes| json!({"memory": format(bytes)}));
        let parts = [
            ("requests", memory(to.request)),
            ("limits", memory(to.limit)),
        ];
        let parts = parts
            .into_iter()
            .filter_map(|(name, of)| Some((name.to_owned(), of?)));
        let resources: serde_json::Map<String, Value> = parts.collect();
        json!({"name": to.name, "resources": resources})
    });
    if pod.is_over() || to.is_empty() {
        return Value::Null;
    }
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "spec": {"containers": containers.collect::<Vec<_>>()},
    })
}

#[cfg(test)]
mod tests;
