//! `isotherm recommend`: sizes of containers in a cluster.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::Utc;
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, parse_share, parse_time_span};
use isotherm_fleet::{
    ContainerSize, FleetOptions, FleetOutcome, FleetReport, PodResize, ResizeKind, ResizeLimits,
    pass,
};
use isotherm_record::printable_lines;
use isotherm_render::table::Table;
use tracing::warn;

/// Query of the share of time that a container waits for memory, by the kubelet's metrics (pressure stall information).
const LOSS: &str = "max by (namespace, pod, container) \
                    (rate(container_pressure_memory_waiting_seconds_total{container!=\"\"}[5m]))";

/// Kind of objects that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Written {
    /// The status of VerticalPodAutoscaler objects that name the recommender isotherm
    Vpa,
    /// Memory of pods with the annotation isotherm.io/resize
    Resize,
}

/// Recommend the memory of a cluster's containers: requests and limits, from what each needs at a loss of 1 %.
///
/// Reads from Prometheus what the daemons of all nodes count (`isotherm start --all --pods`), and the pods from the API
/// server. Writes nothing by itself. With --write vpa it is a custom recommender of the Vertical Pod Autoscaler. With
/// --write resize it resizes pods in place, if they have the annotation isotherm.io/resize: `requests`, or `limits` for
/// both. One pod of a workload is first. If it restarts, or waits for memory (PSI) too long, the workload is resized back.
#[derive(clap::Args)]
#[command(after_help = "Examples, beside `kubectl proxy`:
  isotherm recommend --prometheus http://127.0.0.1:9090
  isotherm recommend --write vpa --every 5min
  isotherm recommend --write vpa,resize --every 1min --at-once 5%
Exit status: 0 all was done, 1 something was refused, 2 failed.")]
pub(crate) struct RecommendArgs {
    /// Ask this Prometheus, which scrapes the daemons
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    prometheus: String,

    /// Ask this API server, by a proxy that holds the token
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8001")]
    api: String,

    /// Count the greatest need of this time
    #[arg(long, value_name = "TIME", value_parser = parse_time_span, default_value = "7d")]
    over: Nanos,

    /// Write: `vpa`, `resize`, or both [default: nothing]
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    write: Vec<Written>,

    /// Write only sizes of what was watched for this long
    #[arg(long, value_name = "TIME", value_parser = parse_time_span, default_value = "1d")]
    min_watched: Nanos,

    /// Watch a resized pod for this long before others follow
    #[arg(long, value_name = "TIME", value_parser = parse_time_span, default_value = "10min")]
    settle: Nanos,

    /// Allow a resized container to wait for memory (PSI) for this share of its time
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "1%")]
    max_loss: f64,

    /// Ask Prometheus for that share by this query, with labels namespace, pod and container
    #[arg(long, value_name = "QUERY", default_value = LOSS)]
    loss: String,

    /// Watch at most this share of all pods that permit resizes at a time, but one at least
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "10%")]
    at_once: f64,

    /// Resize at most this many pods at a time; roll-backs do not count
    #[arg(long, value_name = "N", default_value = "1000")]
    per_pass: usize,

    /// Repeat this often, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse_time_span)]
    every: Option<Nanos>,

    #[command(flatten)]
    result: crate::out::ResultArgs,
}

pub(crate) fn run(args: &RecommendArgs) -> anyhow::Result<ExitCode> {
    let seconds = |time: Nanos| time.0 / 1_000_000_000;
    let options = FleetOptions {
        prometheus: args.prometheus.clone(),
        api: args.api.clone(),
        over_s: seconds(args.over),
        writes_vpas: args.write.contains(&Written::Vpa),
        resizes: args.write.contains(&Written::Resize),
        limits: ResizeLimits {
            watched_s: seconds(args.min_watched),
            settle_s: seconds(args.settle),
            max_loss: args.max_loss,
            at_once: args.at_once,
            per_pass: args.per_pass,
        },
        loss_query: args.loss.clone(),
    };
    let Some(every) = args.every else {
        let report = pass(&options, Utc::now())?;
        args.result.print(&report, text)?;
        return Ok(ExitCode::from(u8::from(has_failed(&report))));
    };
    let stop = crate::stop::by_signals()?;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        match pass(&options, Utc::now()) {
            Ok(report) => args.result.print(&report, text)?,
            // The API server, or Prometheus, may be away for a while.
            Err(error) => warn!("{error:#}"),
        }
        crate::stop::sleep_until(began + Duration::from_nanos(every.0), &stop);
    }
    Ok(ExitCode::SUCCESS)
}

fn has_failed(report: &FleetReport) -> bool {
    let vpas = report.vpas.iter().map(|of| &of.outcome);
    let mut all = vpas.chain(report.resizes.iter().map(|of| &of.outcome));
    all.any(|outcome| matches!(outcome, FleetOutcome::Failed(_)))
}

fn text(report: &FleetReport) -> String {
    let mut text = sizes(report);
    for vpa in &report.vpas {
        let (namespace, name, nr) = (&vpa.namespace, &vpa.name, vpa.nr_containers);
        let outcome = words(&vpa.outcome);
        let _ = writeln!(text, "vpa {namespace}/{name}, {nr} containers: {outcome}");
    }
    for resize in &report.resizes {
        let _ = writeln!(text, "{}", resized(resize));
    }
    for held in &report.held {
        let (namespace, workload, why) = (&held.namespace, &held.workload, &held.why);
        let _ = writeln!(text, "waits: {namespace}/{workload}: {why}");
    }
    if report.nr_unreadable > 0 {
        let nr = report.nr_unreadable;
        let _ = writeln!(text, "{nr} objects of the API server could not be read");
    }
    printable_lines(&text)
}

fn sizes(report: &FleetReport) -> String {
    if report.containers.is_empty() {
        return "Prometheus has no needs of containers: do the daemons run with --all and --pods, and does it scrape them?\n"
            .to_owned();
    }
    let mut out = Vec::new();
    let heads = "NAMESPACE|WORKLOAD|CONTAINER|PODS>|REQUEST>|NEEDS>|FROM>|TO>|LIMIT>";
    let rows = report.containers.iter().map(row);
    // Writing to memory does not fail.
    let _ = Table::of(heads, rows).write(&mut out);
    let all = report.containers.iter();
    let change: i64 = all.map(|of| of.request_change_bytes).sum();
    let bytes = format_bytes(change.unsigned_abs());
    let less = if change > 0 { "more" } else { "less" };
    let table = String::from_utf8_lossy(&out);
    format!("{table}All requests together would be {bytes} {less}.\n")
}

fn row(of: &ContainerSize) -> [String; 9] {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
    let need = &of.need;
    [
        of.namespace.clone(),
        of.workload.clone(),
        of.container.clone(),
        of.nr_pods.to_string(),
        bytes(of.request_bytes),
        format_bytes(need.bytes),
        format_bytes(need.low_bytes),
        format_bytes(need.high_bytes),
        bytes(of.limit_bytes),
    ]
}

fn resized(of: &PodResize) -> String {
    let kind = match of.kind {
        ResizeKind::Canary => "resize, the first of its workload",
        ResizeKind::Next => "resize",
        ResizeKind::RollBack => "resize back",
    };
    let change = of.request_change_bytes;
    let sign = if change < 0 { '-' } else { '+' };
    let bytes = format_bytes(change.unsigned_abs());
    let (namespace, pod, outcome) = (&of.namespace, &of.pod, words(&of.outcome));
    format!("{kind}: {namespace}/{pod}: {sign}{bytes}: {outcome}")
}

fn words(outcome: &FleetOutcome) -> String {
    match outcome {
        FleetOutcome::Planned => "planned; --write does it".to_owned(),
        FleetOutcome::Done => "done".to_owned(),
        FleetOutcome::Unchanged => "is so already".to_owned(),
        FleetOutcome::Failed(why) => format!("failed: {why}"),
    }
}
