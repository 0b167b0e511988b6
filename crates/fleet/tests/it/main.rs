//! Passes over a cluster: an API server and a Prometheus that answer from tables.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use isotherm_fleet::{FleetOptions, FleetOutcome, FleetReport, ResizeKind, ResizeLimits, pass};
use serde_json::{Value, json};

/// A server that answers each request by the first table entry that is a part of its path.
struct Server {
    address: SocketAddr,
    /// Requests that change something: method, path and body.
    written: Arc<Mutex<Vec<(String, String, Value)>>>,
}

type Answers = Vec<(&'static str, u16, Value)>;

impl Server {
    fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&written);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, seen) = (answers.clone(), Arc::clone(&seen));
                std::thread::spawn(move || serve(&stream, &answers, &seen));
            }
        });
        Self { address, written }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn written(&self) -> Vec<(String, String, Value)> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.clone()
    }
}

fn serve(stream: &TcpStream, answers: &Answers, seen: &Mutex<Vec<(String, String, Value)>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim_end().is_empty() {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let length = lines.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).expect("the body");
        let mut words = lines[0].split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        if method != "GET" {
            let body = serde_json::from_slice(&body).expect("JSON");
            let all = &mut *seen.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((method.to_owned(), path.to_owned(), body));
        }
        let found = answers.iter().find(|(of, ..)| path.contains(of));
        let (status, body) = found.map_or(
            (404, json!({"message": "not found"})),
            |(_, status, body)| (*status, body.clone()),
        );
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = stream;
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

const VPAS: &str = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers";

fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"), "annotations": {"isotherm.io/resize": "limits"},
            "labels": {"pod-template-hash": "7d9f"}, "creationTimestamp": null,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "cart-7d9f", "controller": true}],
        },
        "spec": {"containers": [{"name": "web", "resources": {
            "requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "2Gi"},
        }}]},
        "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 0}]},
    })
}

fn vpas() -> Value {
    json!({"items": [
        {
            "metadata": {"namespace": "shop", "name": "cart", "annotations": null},
            "spec": {"updatePolicy": {"updateMode": "Off"}, "targetRef": {"kind": "Deployment", "name": "cart"}, "recommenders": [{"name": "isotherm"}]},
        },
        {
            "metadata": {"namespace": "shop", "name": "others"},
            "spec": {"updatePolicy": {"updateMode": "Off"}, "targetRef": {"kind": "Deployment", "name": "cart"}},
        },
        {"metadata": "unreadable"},
    ]})
}

/// Pods on two pages.
fn pods() -> [(&'static str, u16, Value); 2] {
    [
        (
            "/api/v1/pods?limit=500&continue=",
            200,
            json!({"items": [pod("b")]}),
        ),
        (
            "/api/v1/pods",
            200,
            json!({"metadata": {"continue": "more"}, "items": [pod("a")]}),
        ),
    ]
}

fn prometheus() -> Server {
    let series = |pod: &str, bound: &str, value: u64| {
        json!({
            "metric": {"namespace": "shop", "pod": pod, "container": "web", "bound": bound},
            "value": [1.0, value.to_string()],
        })
    };
    let vector = |all: Vec<Value>| json!({"status": "success", "data": {"result": all}});
    let needs = ["a", "b"].into_iter().flat_map(|pod| {
        let bounds = [("low", 50), ("estimate", 100), ("high", 200)];
        bounds.map(|(bound, mib)| series(pod, bound, mib << 20))
    });
    let watched = ["a", "b"].map(|pod| series(pod, "high", 90_000));
    let charged = ["a", "b"].map(|pod| series(pod, "", 150 << 20));
    Server::start(vec![
        ("max_over_time", 200, vector(needs.collect())),
        ("min_over_time", 200, vector(watched.to_vec())),
        ("isotherm_charged_bytes", 200, vector(charged.to_vec())),
        ("query=loss", 200, vector(Vec::new())),
    ])
}

fn passed(api: &Server, writes: bool) -> anyhow::Result<FleetReport> {
    let prometheus = prometheus();
    let options = FleetOptions {
        prometheus: prometheus.url(),
        api: api.url(),
        over_s: 604_800,
        writes_vpas: writes,
        resizes: writes,
        limits: ResizeLimits {
            watched_s: 3600,
            settle_s: 600,
            max_loss: 0.01,
            at_once: 0.1,
            per_pass: 10,
        },
        loss_query: "loss".to_owned(),
    };
    let now = DateTime::<Utc>::from_timestamp(1_800_000_000, 0).expect("a time");
    pass(&options, now)
}

fn api(resize: (u16, Value)) -> Server {
    let [second, first] = pods();
    Server::start(vec![
        second,
        first,
        (VPAS, 200, vpas()),
        (
            "/apis/autoscaling.k8s.io/v1/namespaces/shop/verticalpodautoscalers/cart/status",
            200,
            json!({}),
        ),
        ("/api/v1/namespaces/shop/pods/a/resize", resize.0, resize.1),
        ("/api/v1/namespaces/shop/pods/a", 200, json!({})),
    ])
}

#[test]
fn a_pass_writes_nothing_unless_asked() {
    let api = api((200, json!({})));
    let report = passed(&api, false).expect("a report");
    let [size] = &report.containers[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (size.workload.as_str(), size.nr_pods),
        ("Deployment/cart", 2)
    );
    assert_eq!(
        (size.request_bytes, size.need.bytes),
        (Some(1 << 30), 100 << 20)
    );
    let [vpa] = &report.vpas[..] else {
        panic!("{report:?}");
    };
    assert_eq!((vpa.name.as_str(), vpa.nr_containers), ("cart", 1));
    let [resize] = &report.resizes[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (resize.pod.as_str(), resize.kind),
        ("a", ResizeKind::Canary)
    );
    assert_eq!(
        (&vpa.outcome, &resize.outcome),
        (&FleetOutcome::Planned, &FleetOutcome::Planned)
    );
    assert!(api.written().is_empty());
    assert_eq!(report.nr_unreadable, 1);
}

#[test]
fn a_recommendation_is_written_and_a_resize_is_noted_first() {
    let api = api((200, json!({})));
    let report = passed(&api, true).expect("a report");
    assert_eq!(report.vpas[0].outcome, FleetOutcome::Done);
    assert_eq!(report.resizes[0].outcome, FleetOutcome::Done);
    let written = api.written();
    let [vpa, note, resize] = &written[..] else {
        panic!("{written:#?}");
    };
    assert!(vpa.1.ends_with("/cart/status"), "{vpa:?}");
    let of = &vpa.2["status"]["recommendation"]["containerRecommendations"][0];
    assert_eq!(of["target"], json!({"memory": "100Mi"}));
    assert_eq!(
        (note.0.as_str(), note.1.as_str()),
        ("PATCH", "/api/v1/namespaces/shop/pods/a")
    );
    let was = note.2["metadata"]["annotations"]["isotherm.io/resized"].as_str();
    assert!(
        was.is_some_and(|was| was.contains("1073741824")),
        "{note:?}"
    );
    let expected = json!({"metadata": {"uid": "uid-a"}, "spec": {"containers": [
        {"name": "web", "resources": {"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}}},
    ]}});
    assert_eq!(resize.2, expected);
}

#[test]
fn what_is_refused_is_said_with_the_reason() {
    let refused =
        json!({"message": "pods \"a\" is forbidden: cannot patch resource \"pods/resize\""});
    let api = api((403, refused));
    let report = passed(&api, true).expect("a report");
    assert_eq!(report.vpas[0].outcome, FleetOutcome::Done);
    let FleetOutcome::Failed(why) = &report.resizes[0].outcome else {
        panic!("{report:?}");
    };
    assert!(why.contains("403") && why.contains("is forbidden"), "{why}");
    let written = api.written();
    let undone = &written.last().expect("undone").2["metadata"]["annotations"];
    let is_held = undone["isotherm.io/resize-failed"] == "1800000000";
    assert!(
        undone["isotherm.io/resized"].is_null() && is_held,
        "{written:#?}"
    );

    let without = || Server::start(pods().to_vec());
    assert!(passed(&without(), false).expect("a report").vpas.is_empty());
    let error = format!("{:#}", passed(&without(), true).expect_err("no such kind"));
    assert!(error.contains("CustomResourceDefinition"), "{error}");
    let nothing = Server::start(Vec::new());
    assert!(passed(&nothing, false).is_err());
}
