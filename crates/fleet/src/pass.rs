//! One pass over the cluster: reads, plans, and writes what was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};

use crate::api::{Http, PatchKind, Refused};
use crate::needs::{
    ContainerKey, ContainerNeed, charged_query, key_of, needs, needs_of, query, watched_query,
};
use crate::objects::{KubePod, Vpa};
use crate::report::{
    ContainerSize, FleetOutcome, FleetReport, PodResize, ResizeKind, VpaUpdate, WorkloadHold,
};
use crate::resize::{Cluster, Losses, PlannedResize, ResizeLimits, plan};
use crate::vpa::status;

const VPAS: &str = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers";

/// Options of a pass.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// URL of Prometheus, which scrapes the daemons with `--all` and `--pods`.
    pub prometheus: String,
    /// URL of the API server, or of a proxy before it.
    pub api: String,
    /// Time whose greatest needs count, in seconds.
    pub over_s: u64,
    /// Whether recommendations are written.
    pub writes_vpas: bool,
    /// Whether pods are resized.
    pub resizes: bool,
    /// Limits of resizes, and of the recommendations that are written.
    pub limits: ResizeLimits,
    /// Query for the share of time that containers wait for memory, by `namespace`, `pod` and `container`.
    pub loss_query: String,
}

/// Makes one pass at `now`. What fails for one object does not end it.
///
/// # Errors
/// Fails if the API server or Prometheus does not answer the questions.
pub fn pass(options: &FleetOptions, now: DateTime<Utc>) -> anyhow::Result<FleetReport> {
    let over = options.over_s;
    anyhow::ensure!(
        over >= options.limits.watched_s,
        "what was watched for {} s is not in the last {over} s: count a longer time, or ask for less",
        options.limits.watched_s
    );
    let started = Instant::now();
    let http = Http::new(&options.api, &options.prometheus)?;
    let pods = http.list::<KubePod>("/api/v1/pods")?;
    let (pods, nr_unreadable) = pods.context("the API server knows no pods: is the URL right?")?;
    let needs = needs(
        http.query(&query(over))?,
        http.query(&charged_query())?,
        http.query(&watched_query(over))?,
    );
    let workloads = Workloads::new(&pods, &needs);
    let (losses, unknown) = losses(&http, options);
    let (all_vpas, nr_unreadable_vpas) = match http.list::<Vpa>(VPAS)? {
        Some(found) => found,
        None if options.writes_vpas => anyhow::bail!(
            "the API server knows no VerticalPodAutoscaler: install its CustomResourceDefinition first"
        ),
        None => (Vec::new(), 0),
    };
    let vpas = vpas(&http, options, (&workloads, &all_vpas), now);
    let autoscaled = { all_vpas.iter() }.filter(|vpa| vpa.sets_sizes());
    let autoscaled = autoscaled.map(|vpa| {
        let target = &vpa.spec.target_ref;
        let workload = format!("{}/{}", target.kind, target.name);
        (vpa.metadata.namespace.clone(), workload)
    });
    let autoscaled: BTreeSet<(String, String)> = autoscaled.collect();
    let cluster = Cluster {
        pods: &pods,
        needs: &needs,
        losses: &losses,
        autoscaled: &autoscaled,
    };
    let mut report = resizes(&http, options, cluster, (now, started));
    report.held.extend(unknown);
    Ok(FleetReport {
        vpas,
        containers: workloads.sizes(),
        nr_unreadable: nr_unreadable + nr_unreadable_vpas,
        ..report
    })
}

/// Needs by workload: namespace, kind and name.
struct Workloads<'a> {
    all: BTreeMap<(String, String, String), Vec<&'a KubePod>>,
    needs: &'a BTreeMap<ContainerKey, ContainerNeed>,
}

impl<'a> Workloads<'a> {
    fn new(pods: &'a [KubePod], needs: &'a BTreeMap<ContainerKey, ContainerNeed>) -> Self {
        let mut all: BTreeMap<_, Vec<&KubePod>> = BTreeMap::new();
        for pod in pods {
            let (kind, name) = pod.workload();
            let key = (pod.metadata.namespace.clone(), kind, name);
            all.entry(key).or_default().push(pod);
        }
        Self { all, needs }
    }

    fn needs_of(&self, pods: &[&KubePod]) -> BTreeMap<String, (ContainerNeed, u64)> {
        needs_of(pods.iter().copied(), self.needs)
    }

    fn sizes(&self) -> Vec<ContainerSize> {
        let mut sizes = Vec::new();
        for ((namespace, kind, name), pods) in &self.all {
            for (container, (need, nr_pods)) in self.needs_of(pods) {
                let known = pods
                    .iter()
                    .filter(|pod| self.needs.contains_key(&key_of(pod, &container)));
                let of_pods = known.flat_map(|pod| &pod.spec.containers);
                let of_pods = of_pods.filter(|of| of.name == container);
                let requests = of_pods.clone().filter_map(|of| of.resources.request());
                let changes = requests.clone().map(|now| need.bytes as i64 - now as i64);
                sizes.push(ContainerSize {
                    namespace: namespace.clone(),
                    workload: format!("{kind}/{name}"),
                    nr_pods,
                    request_bytes: requests.max(),
                    request_change_bytes: changes.sum(),
                    limit_bytes: of_pods.filter_map(|of| of.resources.limit()).max(),
                    container,
                    need,
                });
            }
        }
        sizes
    }
}

fn vpas(
    http: &Http<'_>,
    options: &FleetOptions,
    (workloads, vpas): (&Workloads<'_>, &[Vpa]),
    now: DateTime<Utc>,
) -> Vec<VpaUpdate> {
    let now = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    let update = |vpa: &Vpa| {
        let (namespace, name) = (&vpa.metadata.namespace, &vpa.metadata.name);
        let target = &vpa.spec.target_ref;
        let key = (namespace.clone(), target.kind.clone(), target.name.clone());
        let needs = workloads.needs_of(workloads.all.get(&key)?).into_iter();
        let needs = needs.filter(|(_, (need, _))| need.watched_s >= options.limits.watched_s);
        let needs = needs.map(|(container, (need, _))| (container, need));
        let (status, nr_containers, is_new) = status(vpa, &needs.collect(), &now)?;
        let path = format!(
            "/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalers/{name}/status"
        );
        let outcome = if is_new {
            outcome(options.writes_vpas, || {
                http.patch(&path, PatchKind::Merge, &status)
            })
        } else {
            FleetOutcome::Unchanged
        };
        Some(VpaUpdate {
            namespace: namespace.clone(),
            name: name.clone(),
            nr_containers,
            outcome,
        })
    };
    let ours = vpas.iter().filter(|vpa| vpa.is_ours());
    ours.filter_map(update).collect()
}

/// Returns the losses, and a hold if they cannot be asked for.
fn losses(http: &Http<'_>, options: &FleetOptions) -> (Losses, Option<WorkloadHold>) {
    let mut losses = Losses::new();
    let values = match http.query(&options.loss_query) {
        Ok(values) => values,
        Err(error) => {
            let hold = WorkloadHold {
                namespace: "all".to_owned(),
                workload: "all".to_owned(),
                why: format!("what resized pods lose is unknown: {error:#}"),
            };
            return (losses, Some(hold));
        }
    };
    for ((namespace, pod, _), _, loss) in values {
        let of_pod = losses.entry((namespace, pod)).or_default();
        *of_pod = of_pod.max(loss);
    }
    (losses, None)
}

/// Returns a report of resizes alone.
fn resizes(
    http: &Http<'_>,
    options: &FleetOptions,
    cluster: Cluster<'_>,
    (now, started): (DateTime<Utc>, Instant),
) -> FleetReport {
    let now = now.timestamp().max(0) as u64;
    let plan = plan(cluster, options.limits, now);
    let done = plan.resizes.into_iter().filter_map(|planned| {
        let outcome = outcome(options.resizes, || write(http, &planned, started));
        // A pod that only notes the roll-back of others is reported if that fails.
        let is_told = !planned.resources.is_null() || matches!(outcome, FleetOutcome::Failed(_));
        is_told.then_some(PodResize {
            outcome,
            ..planned.resize
        })
    });
    FleetReport {
        resizes: done.collect(),
        held: plan.held,
        ..FleetReport::default()
    }
}

/// Writes the note first, so that what is resized can be undone; after a roll-back last, so that it is tried again.
fn write(http: &Http<'_>, planned: &PlannedResize, started: Instant) -> anyhow::Result<()> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}",
        planned.resize.namespace, planned.resize.pod
    );
    let note = |note| http.patch(&path, PatchKind::Merge, note);
    let resize = || {
        if planned.resources.is_null() {
            return Ok(());
        }
        let path = format!("{path}/resize");
        http.patch(&path, PatchKind::StrategicMerge, &planned.resources)
    };
    if planned.resize.kind == ResizeKind::RollBack {
        resize()?;
        return note(&planned.note);
    }
    let first = planned.note_after(started.elapsed().as_secs());
    note(&first)?;
    resize().inspect_err(|error| {
        // Without an answer it may have been resized: the note stays.
        if error.downcast_ref::<Refused>().is_some() {
            let _ = note(&planned.refused);
        }
    })
}

fn outcome(is_written: bool, write: impl FnOnce() -> anyhow::Result<()>) -> FleetOutcome {
    if !is_written {
        return FleetOutcome::Planned;
    }
    match write() {
        Ok(()) => FleetOutcome::Done,
        Err(error) => FleetOutcome::Failed(format!("{error:#}")),
    }
}
