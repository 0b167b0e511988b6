//! Plans of resizes, and whole roll-outs.

use std::collections::BTreeSet;

use super::*;

const NOW: u64 = 1_000_000;
const LIMITS: ResizeLimits = ResizeLimits {
    watched_s: 3600,
    settle_s: 600,
    max_loss: 0.01,
    at_once: 0.5,
    per_pass: 1000,
};

fn pod(name: &str, mode: &str, memory: [&str; 2], more: &Value) -> KubePod {
    let mut annotations = json!({PERMIT: mode});
    if let (Some(all), Some(more)) = (annotations.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    let [request, limit] = memory;
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": name, "annotations": annotations,
            "labels": {"pod-template-hash": "7d9f"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "cart-7d9f", "controller": true}],
        },
        "spec": {"containers": [{"name": "web", "resources": {
            "requests": {"memory": request}, "limits": {"memory": limit},
        }}]},
        "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 1}]},
    }))
    .expect("a pod")
}

fn resized(at: u64, restarts: u64) -> Value {
    let was = json!([{"name": "web", "request": 1_000_000_000, "limit": 2_u64 << 30}]);
    json!({RESIZED: json!({"at": at, "restarts": restarts, "was": was}).to_string()})
}

fn planned(
    pods: &[KubePod],
    needs: &BTreeMap<ContainerKey, ContainerNeed>,
    losses: &Losses,
    limits: ResizeLimits,
    now: u64,
) -> ResizePlan {
    let cluster = Cluster {
        pods,
        needs,
        losses,
        autoscaled: &[("shop".to_owned(), "Deployment/auto".to_owned())].into(),
    };
    plan(cluster, limits, now)
}

const BIG: [&str; 2] = ["1Gi", "2Gi"];
/// Sizes that follow from the needs below.
const SMALL: [&str; 2] = ["100Mi", "150Mi"];
const EVEN: [&str; 2] = ["1Gi", "1Gi"];

const WATCHED: &str = "its resized pods are watched";

/// A need of so many MiB, 80 to 150, watched for long enough.
fn need_of(mib: u64) -> ContainerNeed {
    ContainerNeed {
        bytes: mib << 20,
        low_bytes: 80 << 20,
        high_bytes: 150 << 20,
        charged_bytes: 0,
        watched_s: 7200,
    }
}

/// Plans with needs of 80 to 150 MiB, and these losses of the pods. Compares the beginnings of what describes each
/// resize and each hold, of `Deployment/cart` by its reason alone, between `; `.
fn check(pods: &[KubePod], losses: &[f64], expected: &str) -> ResizePlan {
    let key = |pod: &KubePod| ("shop".to_owned(), pod.metadata.name.clone());
    let need = |(at, pod): (usize, &KubePod)| {
        let need = need_of(100 - at as u64);
        let (namespace, name) = key(pod);
        ((namespace, name, "web".to_owned()), need)
    };
    let needs = pods.iter().enumerate().map(need).collect();
    let losses = pods.iter().map(key).zip(losses.iter().copied()).collect();
    let plan = planned(pods, &needs, &losses, LIMITS, NOW);
    let resizes = plan.resizes.iter().map(|of| {
        let to = &of.resources["spec"]["containers"][0]["resources"];
        let memory = |name: &str| to[name]["memory"].as_str().unwrap_or("-").to_owned();
        let [request, limit] = ["requests", "limits"].map(memory);
        format!("{:?} {} {request} {limit}", of.resize.kind, of.resize.pod)
    });
    let held = plan.held.iter().map(|of| {
        let hold = format!("{}: {}", of.workload, of.why);
        hold.trim_start_matches("Deployment/cart: ").to_owned()
    });
    let all: Vec<String> = resizes.chain(held).collect();
    let wanted: Vec<&str> = expected.split_terminator("; ").collect();
    let is_so = |(all, wanted): (&String, &&str)| all.starts_with(*wanted);
    let are_so = all.len() == wanted.len() && all.iter().zip(&wanted).all(is_so);
    assert!(are_so, "{all:#?}, not {wanted:#?}");
    plan
}

/// Each of two Prometheus servers knows half of the pods.
#[test]
fn pods_that_another_knows_prove_nothing_and_hold_nothing_up() {
    let done = pod("a", "limits", SMALL, &resized(NOW - 700, 1));
    let pods = [done, pod("b", "limits", BIG, &json!({}))];
    let need = need_of(100);
    let key = ["shop", "b", "web"].map(str::to_owned);
    let needs = [(key.into(), need)].into();
    let plan = planned(&pods, &needs, &Losses::new(), LIMITS, NOW);
    assert_eq!(plan.resizes.len(), 1, "{:?}", plan.held);
    assert_eq!(
        (plan.resizes[0].resize.kind, &plan.resizes[0].resize.pod[..]),
        (ResizeKind::Canary, "b")
    );
}

#[test]
fn one_pod_is_first_and_more_follow_if_it_lost_nothing() {
    let none = json!({});
    let big = |name: &str| pod(name, "limits", BIG, &none);
    let pods = [big("a"), big("b"), big("c")];
    let plan = check(&pods, &[], "Canary a 100Mi 150Mi");
    assert_eq!(plan.resizes[0].resize.request_change_bytes, -(924 << 20));
    let note = plan.resizes[0].note_after(0);
    assert_eq!(note, plan.resizes[0].note);
    // It is watched from the time on at which it is written.
    let noted_at = |after_s| {
        let note = plan.resizes[0].note_after(after_s);
        let note = note["metadata"]["annotations"][RESIZED].as_str();
        serde_json::from_str::<Resized>(note.expect("noted")).expect("ours")
    };
    assert_eq!(noted_at(90).at, NOW + 90);
    let note = noted_at(0);
    assert_eq!(
        (note.at, note.restarts, note.was[0].request),
        (NOW, 1, Some(1 << 30))
    );
    let canary = |at, restarts| pod("a", "limits", SMALL, &resized(at, restarts));
    let pods = |canary| [canary, big("b"), big("c")];
    let (begun, settled) = (pods(canary(NOW - 60, 1)), pods(canary(NOW - 700, 1)));
    check(&begun, &[0.0], WATCHED);
    check(&settled, &[0.0], "Next b 100Mi 150Mi");
    check(&settled, &[], "what its resized pods lose is unknown");
    let next = pod("b", "limits", SMALL, &resized(NOW - 650, 1));
    let two = [canary(NOW - 700, 1), next, big("c")];
    check(&two, &[0.0, 0.0], "Next c 100Mi 150Mi");
    let all = two.map(|mut pod| {
        pod.spec = canary(0, 1).spec;
        pod
    });
    check(&all, &[], "");
}

#[test]
fn a_loss_or_a_restart_undoes_all_of_a_workload() {
    let canary = |at, restarts| pod("a", "limits", SMALL, &resized(at, restarts));
    let next = pod("b", "limits", SMALL, &resized(NOW - 60, 1));
    let back = "RollBack a 1000000000 2048Mi; RollBack b 1000000000 2048Mi";
    check(&[canary(NOW - 60, 0), next.clone()], &[0.0, 0.0], back);
    let plan = check(&[canary(NOW - 700, 1), next], &[0.5, 0.0], back);
    let note = &plan.resizes[0].note["metadata"]["annotations"];
    assert!(note[RESIZED].is_null());
    assert_eq!(plan.resizes[0].note_after(9), plan.resizes[0].note);
    assert_eq!(note[FAILED].as_str(), Some(NOW.to_string().as_str()));
    let failed = |ago: u64| {
        let failed = json!({FAILED: (NOW - ago).to_string()});
        pod("a", "limits", BIG, &failed)
    };
    check(&[failed(3600)], &[], "was resized back 1 h ago");
    check(&[failed(LEFT_ALONE_S)], &[], "Canary a 100Mi 150Mi");
}

#[test]
fn what_a_resize_did_not_cause_undoes_nothing() {
    let canary = |at, restarts| pod("a", "limits", SMALL, &resized(at, restarts));
    // A restart much later, a loss that was there before, and one that is older than the resize.
    check(&[canary(NOW - 700, 0)], &[0.0], "");
    let mut noted = resized(NOW - 700, 1);
    let text = noted[RESIZED].as_str().expect("a note");
    noted[RESIZED] = text.replacen('{', "{\"loss\":0.4,", 1).into();
    check(&[pod("a", "limits", SMALL, &noted)], &[0.5], "");
    check(&[canary(NOW - 60, 1)], &[0.5], WATCHED);
}

#[test]
fn a_pod_that_was_evicted_after_a_resize_counts_as_lost() {
    let mut evicted = pod("a", "limits", SMALL, &resized(NOW - 700, 1));
    let status = json!({"phase": "Failed", "reason": "Evicted"});
    evicted.status = serde_json::from_value(status).expect("a status");
    let next = pod("b", "limits", BIG, &json!({}));
    let both = |evicted: &KubePod| [evicted.clone(), next.clone()];
    let plan = check(&both(&evicted), &[], "RollBack a - -; RollBack b - -");
    assert!(plan.resizes[0].resources.is_null(), "it is noted alone");
    let failed = json!({FAILED: NOW.to_string()});
    evicted.metadata.annotations = pod("a", "limits", SMALL, &failed).metadata.annotations;
    check(&both(&evicted), &[], "was resized back");
    evicted.metadata.annotations.remove(FAILED);
    check(&both(&evicted), &[], "Canary b 99Mi 150Mi");
}

#[test]
fn a_roll_back_lowers_no_limit_below_the_need() {
    let was = json!([{"name": "web", "request": 64 << 20, "limit": 128 << 20}]);
    let noted = json!({RESIZED: json!({"at": NOW - 60, "restarts": 0, "was": was}).to_string()});
    let grown = pod("a", "limits", ["100Mi", "1Gi"], &noted);
    check(&[grown], &[0.0], "RollBack a 64Mi 150Mi");
}

#[test]
fn classes_of_pods_and_odd_pods_stay_as_they_are() {
    let none = json!({});
    let one = |mode: &str, memory| pod("a", mode, memory, &none);
    for (mode, memory, expected) in [
        ("requests", BIG, "Canary a 100Mi 2048Mi"),
        ("requests", ["1Gi", "64Mi"], "Canary a 63Mi 64Mi"),
        ("limits", EVEN, "Canary a 150Mi 150Mi"),
        ("requests", EVEN, "the request of web is its limit"),
        ("both", BIG, "isotherm.io/resize: \"both\" is neither"),
        ("limits", ["105Mi", "155Mi"], ""),
        ("limits", ["much", "more"], ""),
    ] {
        check(&[one(mode, memory)], &[], expected);
    }
    let mut pending = one("limits", BIG);
    let status = json!({"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"},
        {"type": "PodResizePending", "status": "True", "reason": "Deferred"},
    ]});
    pending.status = serde_json::from_value(status).expect("a status");
    let not_yet = "the resize of a is not in force yet: Deferred";
    check(&[pending], &[], not_yet);
    let mut starting = one("limits", BIG);
    starting.status.phase = "Pending".to_owned();
    check(&[starting], &[], "not all of its pods are ready");
}

#[test]
fn few_pods_of_the_cluster_are_watched_at_a_time() {
    let none = json!({});
    let pods: Vec<KubePod> = (0..4)
        .map(|at| {
            let mut pod = pod(&format!("p{at}"), "limits", BIG, &none);
            pod.metadata.owner_references[0].name = format!("w{at}-7d9f");
            pod
        })
        .collect();
    let held = "as many pods as may be";
    let held = ["w2", "w3"].map(|of| format!("Deployment/{of}: {held}"));
    let expected = format!("Canary p0; Canary p1; {}", held.join("; "));
    check(&pods, &[], &expected);
}

/// Resizes a fleet by one pass a minute until nothing is left to do. Every tenth workload loses once it is resized.
/// Returns the passes, the resizes, the most resizes of a pass, and the pods that lost.
fn roll_out(nr_workloads: usize, nr_pods: usize) -> [usize; 4] {
    let mut pods: Vec<KubePod> = (0..nr_workloads * nr_pods)
        .map(|at| {
            let mut pod = pod(&format!("p{at}"), "limits", BIG, &json!({}));
            pod.metadata.owner_references[0].name = format!("w{}-7d9f", at / nr_pods);
            pod
        })
        .collect();
    let need = need_of(100);
    let key = |pod: &KubePod| ("shop".to_owned(), pod.metadata.name.clone());
    let of = |pod: &KubePod| ((key(pod).0, key(pod).1, "web".to_owned()), need);
    let needs = pods.iter().map(of).collect();
    let limits = ResizeLimits {
        at_once: 0.1,
        ..LIMITS
    };
    let is_small = |pod: &KubePod| memory_of(pod).any(|of| of.request < Some(1 << 29));
    let (mut resizes, mut most, mut lost) = (0, 0, BTreeSet::new());
    for pass in 0.. {
        let loses = |at: usize, pod: &KubePod| (at / nr_pods).is_multiple_of(10) && is_small(pod);
        let all = pods.iter().enumerate();
        let losses: Vec<f64> = all
            .map(|(at, pod)| f64::from(u8::from(loses(at, pod))))
            .collect();
        let now_lost = losses.iter().enumerate().filter(|(_, loss)| **loss > 0.0);
        lost.extend(now_lost.map(|(at, _)| at));
        let losses = pods.iter().map(key).zip(losses).collect();
        let plan = planned(&pods, &needs, &losses, limits, NOW + 60 * pass as u64);
        let is_done = plan
            .held
            .iter()
            .all(|held| held.why.starts_with("was resized back"));
        if plan.resizes.is_empty() && is_done {
            return [pass, resizes, most, lost.len()];
        }
        let changed = plan.resizes.iter().filter(|of| !of.resources.is_null());
        resizes += changed.clone().count();
        most = most.max(changed.count());
        for planned in &plan.resizes {
            let at: usize = planned.resize.pod[1..].parse().expect("our name");
            if !planned.resources.is_null() {
                let spec = planned.resources["spec"].clone();
                pods[at].spec = serde_json::from_value(spec).expect("a pod");
            }
            let notes = planned.note["metadata"]["annotations"]
                .as_object()
                .expect("notes");
            for (name, value) in notes {
                let annotations = &mut pods[at].metadata.annotations;
                match value.as_str() {
                    Some(value) => annotations.insert(name.clone(), value.to_owned()),
                    None => annotations.remove(name),
                };
            }
        }
    }
    unreachable!("it ends")
}

#[test]
fn a_bad_size_reaches_one_pod_of_its_workload() {
    let began = std::time::Instant::now();
    // PODS is set by hand, for a fleet as large as 400,000.
    let pods = std::env::var("PODS")
        .ok()
        .and_then(|pods| pods.parse().ok());
    let nr_workloads = pods.unwrap_or(1_600_usize) / 40;
    let [passes, resizes, most, lost] = roll_out(nr_workloads, 40);
    let took = began.elapsed() / passes as u32;
    println!(
        "{passes} passes of {took:?}, {resizes} resizes, {most} at most in a pass, {lost} pods lost"
    );
    assert_eq!(lost, nr_workloads / 10);
    // All pods of the others, and the canaries of those that lose twice: there and back.
    assert_eq!(resizes, nr_workloads / 10 * 9 * 40 + nr_workloads / 10 * 2);
    assert!(most <= (nr_workloads * 40).div_ceil(10), "{most}");
}
