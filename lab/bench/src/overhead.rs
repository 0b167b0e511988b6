//! The cost of recording a real service: redis' throughput with and without a recorder.
//!
//! The windows of one server alternate: without, with mode A, without, with mode B, and so on. A mode's loss is against
//! the mean of the windows before and after it.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::recording::{Recorded, Recording};
use super::redis::{self, Client, Server, Window};
use super::stats::cell;
use super::table::Table;
use super::{BenchContext, BenchOutcome, Mode, accuracy};

const MODES: [&str; 3] = ["default=", "faithful=--faithful", "pages=--pages"];
/// About 1.2 GB in redis, with its own bookkeeping.
const KEYS: u64 = 1_000_000;
const KEYS_QUICK: u64 = 100_000;
/// Time for a recorder to attach before its window begins.
const ATTACH: Duration = Duration::from_secs(2);

#[derive(Default, Serialize)]
struct Series {
    mode: String,
    requests_per_second: Vec<f64>,
    loss_percent: Vec<f64>,
    server_cpu_percent: Vec<f64>,
    recorder_cpu_percent: Vec<f64>,
    failures: Vec<String>,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !redis::installed() {
        return Ok(BenchOutcome::Skip(
            "redis-server is not installed (apt-get install redis-server)".into(),
        ));
    }
    let modes = accuracy::modes(context, &MODES)?;
    let (server, mut client) =
        redis::start(context, if context.quick { KEYS_QUICK } else { KEYS })?;
    let window = context.duration / 3;
    let mut without = Vec::new();
    let mut series: Vec<Series> = modes
        .iter()
        .map(|mode| Series {
            mode: mode.name.clone(),
            ..Series::default()
        })
        .collect();
    let mut before = server.window(context, &mut client, window)?;
    for _ in 0..context.repeats {
        for (mode, series) in std::iter::zip(&modes, &mut series) {
            let recorded = recorded_window(context, &server, &mut client, mode);
            let after = server.window(context, &mut client, window)?;
            match recorded {
                Ok((during, recorded)) => {
                    let mean = |of: fn(&Window) -> f64| f64::midpoint(of(&before), of(&after));
                    let rate = |w: &Window| w.requests_per_second;
                    let cpu = |w: &Window| w.server_microseconds_per_request;
                    series.requests_per_second.push(rate(&during));
                    series
                        .loss_percent
                        .push(100.0 * (1.0 - rate(&during) / mean(rate)));
                    series
                        .server_cpu_percent
                        .push(100.0 * (cpu(&during) / mean(cpu) - 1.0));
                    series
                        .recorder_cpu_percent
                        .push(100.0 * recorded.cpu_measured);
                }
                Err(error) => series.failures.push(format!("{error:#}")),
            }
            without.push(before.requests_per_second);
            before = after;
        }
    }
    Ok(BenchOutcome::Done {
        tables: vec![table(&without, &series)],
        data: json!({ "without_requests_per_second": without, "modes": series }),
    })
}

fn table(without: &[f64], series: &[Series]) -> Table {
    let mut table = Table::new(
        "redis: a client reads a hot tenth of the keys, 16 requests under way",
        &[
            "recording",
            "requests/s",
            "loss %",
            "server CPU/request +%",
            "recorder CPU %",
            "failed",
        ],
    );
    table.row(vec![
        "without".into(),
        cell(without, 0),
        "-".into(),
        "-".into(),
        "-".into(),
        String::new(),
    ]);
    for s in series {
        table.row(vec![
            s.mode.clone(),
            cell(&s.requests_per_second, 0),
            cell(&s.loss_percent, 2),
            cell(&s.server_cpu_percent, 2),
            cell(&s.recorder_cpu_percent, 2),
            s.failures.first().cloned().unwrap_or_default(),
        ]);
    }
    table
}

/// Measures a window under a recorder that is attached before the window begins and detaches after it has ended.
fn recorded_window(
    context: &BenchContext,
    server: &Server,
    client: &mut Client,
    mode: &Mode,
) -> anyhow::Result<(Window, Recorded)> {
    let window = context.duration / 3;
    let mut recording = Recording::start(context, mode, server.pid(), window + 2 * ATTACH)?;
    server.window(context, client, ATTACH)?;
    let during = server.window(context, client, window)?;
    recording.check_running()?;
    Ok((during, recording.finish(context)?))
}
