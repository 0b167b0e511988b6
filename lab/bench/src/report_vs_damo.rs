//! Time and memory of reports on the same record by Isotherm and by damo.
//!
//! The record is synthetic (snapshots of 1,000 regions whose counts vary), converted to damo's own format with
//! `isotherm convert`. damo comes from PyPI, into `.venv`. The output of both is discarded: damo's `raw` heat map and
//! Isotherm's CSV, and the working-set percentiles of both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Header, Item, TargetStart, Writer};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::child::{Guarded, children_cpu};
use super::table::{Table, cell};
use super::{BenchContext, BenchOutcome, machine};

pub(super) const REGIONS: u64 = 1000;
/// Memory of damo for each row of a record, with a margin; measured: 1.9 kB.
const DAMO_BYTES_PER_ROW: u64 = 2300;
const LIMIT: Duration = Duration::from_mins(20);

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let ours = context.scratch("synthetic.isotherm");
    synthesize(&ours, context.rows.div_ceil(REGIONS))?;
    let theirs = context.scratch("synthetic.damo");
    let (isotherm, ours, theirs) = (text(&context.isotherm)?, text(&ours)?, text(&theirs)?);
    let damo = damo(context, isotherm, ours, theirs);
    let mut jobs = Vec::new();
    let mut add = |report, tool, command: &[&str]| {
        jobs.push(Job {
            report,
            tool,
            command: command.iter().map(ToString::to_string).collect(),
            runs: Vec::new(),
            failure: None,
        });
    };
    let heatmap = [isotherm, "report", "heatmap", ours, "--format", "csv"];
    add("heatmap", "isotherm", &heatmap);
    let wss = [isotherm, "report", "wss", ours, "--format", "json"];
    add("wss", "isotherm", &wss);
    let mut version = "absent".to_owned();
    match damo {
        Ok(path) => {
            version = machine::output(Command::new(&path).arg("version"));
            let report = [text(&path)?, "report"];
            let raw = ["heatmap", "--input", theirs, "--output", "raw"];
            add("heatmap", "damo", &[&report[..], &raw].concat());
            add(
                "wss",
                "damo",
                &[&report[..], &["wss", "--input", theirs]].concat(),
            );
        }
        Err(error) => println!("SKIP damo: {error:#}"),
    }
    for _ in 0..context.repeats {
        for job in &mut jobs {
            println!("{}, {}", job.report, job.tool);
            match measure(context, &job.command, LIMIT) {
                Ok(measured) => job.runs.push(measured),
                Err(error) => job.failure = Some(format!("{error:#}")),
            }
        }
    }
    Ok(BenchOutcome::Done(
        vec![table(context.rows, &version, &jobs)],
        json!({ "rows": context.rows, "damo": version, "jobs": jobs }),
    ))
}

#[derive(Serialize)]
struct Job {
    report: &'static str,
    tool: &'static str,
    command: Vec<String>,
    runs: Vec<Measured>,
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    max_rss_bytes: u64,
}

/// Runs `isotherm-bench measure -- COMMAND ARGS...`, a process of its own: the kernel keeps the largest memory over *all*
/// children of a process. Discards the command's output, and prints its time and largest resident memory as JSON.
pub(crate) fn measure_one(args: impl Iterator<Item = String>) -> Result<ExitCode> {
    let args: Vec<String> = args.skip_while(|arg| arg == "--").collect();
    let [program, rest @ ..] = args.as_slice() else {
        bail!("usage: isotherm-bench measure -- COMMAND ARGS...");
    };
    let start = Instant::now();
    let status = Command::new(program)
        .args(rest)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{program} failed, with {status}");
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let measured = Measured {
        seconds,
        cpu_seconds: children_cpu()?.as_secs_f64(),
        max_rss_bytes: (usage.max_rss() as u64) << 10,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(ExitCode::SUCCESS)
}

/// Runs `command` (program and arguments) in a measuring process.
fn measure(context: &BenchContext, command: &[String], limit: Duration) -> Result<Measured> {
    let mut measuring = Command::new(std::env::current_exe()?);
    measuring.args(["measure", "--"]).args(command);
    let measured = Guarded::json(context, &mut measuring, limit)?;
    Ok(serde_json::from_value(measured)?)
}

fn table(rows: u64, version: &str, jobs: &[Job]) -> Table {
    let title = format!("{rows} rows, {REGIONS} regions a snapshot; damo {version}");
    let head = "report | tool | s | CPU s | largest RSS MiB | failed";
    let mut table = Table::new(title, head);
    for job in jobs {
        let of = |value: fn(&Measured) -> f64| job.runs.iter().map(value).collect::<Vec<_>>();
        table.row(vec![
            job.report.to_owned(),
            job.tool.to_owned(),
            cell(&of(|m| m.seconds), 2),
            cell(&of(|m| m.cpu_seconds), 2),
            cell(&of(|m| m.max_rss_bytes as f64 / f64::from(1 << 20)), 1),
            job.failure.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path is no text")
}

/// Installs damo if necessary, and converts the record to its format; or returns the reason why not.
fn damo(context: &BenchContext, isotherm: &str, ours: &str, theirs: &str) -> Result<PathBuf> {
    let needed = context.rows * DAMO_BYTES_PER_ROW;
    let available = machine::meminfo("MemAvailable:").unwrap_or(0);
    ensure!(
        needed <= available,
        "would take about {}, {} are available",
        isotherm_engine::units::format_bytes(needed),
        isotherm_engine::units::format_bytes(available)
    );
    let mut convert = Command::new(isotherm);
    convert
        .args(["convert", ours, theirs])
        .stdout(Stdio::null());
    Guarded::spawn(context, &mut convert)?
        .finish(context, LIMIT)
        .context("cannot convert the record to damo's format")?;
    let venv = context.root.join(".venv");
    let damo = venv.join("bin/damo");
    if !damo.exists() {
        let mut python = Command::new("python3");
        python.args(["-m", "venv"]).arg(&venv).stdout(Stdio::null());
        Guarded::spawn(context, &mut python)?.finish(context, LIMIT)?;
        let mut pip = Command::new(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "damo"])
            .stdout(Stdio::null());
        Guarded::spawn(context, &mut pip)?
            .finish(context, LIMIT)
            .context("cannot install damo from PyPI")?;
    }
    Ok(damo)
}

/// Writes a record of `snapshots` snapshots, 100 ms apart.
pub(super) fn synthesize(path: &Path, snapshots: u64) -> Result<()> {
    let file = File::create(path).context("cannot write to the temporary folder")?;
    let start = Nanos(1_800_000_000_000_000_000);
    let header = Header {
        writer: "isotherm-bench".into(),
        operations: "vaddr".into(),
        started: start,
        sample_interval: Nanos::from_millis(5),
        aggregation_interval: Nanos::from_millis(100),
        update_interval: Nanos::from_millis(1000),
        ..Header::default()
    };
    let mut writer = Writer::create(file, &header)?;
    writer.write(&Item::TargetStart(TargetStart {
        time: start,
        target: TargetId(0),
        pid: 1,
        name: "synthetic".into(),
        ..TargetStart::default()
    }))?;
    for number in 0..snapshots {
        writer.write(&Item::Snapshot(snapshot(start, number)))?;
    }
    writer.finish()?;
    Ok(())
}

/// Returns a snapshot. A tenth of the regions is hot at a time, and another tenth every second. Borders shift with
/// every snapshot, as a monitor's do.
fn snapshot(start: Nanos, number: u64) -> Snapshot {
    const REGION: u64 = 4 << 20;
    let base = 0x7f00_0000_0000;
    let shift = |region: u64| region * 37 % 64 * 4096 * u64::from(region > 0) + number % 16 * 4096;
    let border =
        |region: u64| base + region * REGION + if region < REGIONS { shift(region) } else { 0 };
    let regions = (0..REGIONS)
        .map(|region| {
            let hot = (region + number / 10 * 7).is_multiple_of(10);
            let count = if hot {
                12 + (region + number) % 9
            } else {
                (region * number) % 23 / 22
            };
            let range = AddressRange::new(border(region), border(region + 1));
            RegionSnapshot {
                age: (number % 10) as u32,
                age_ns: Nanos::from_millis(number % 10 * 100),
                ..RegionSnapshot::new(range, Some(count as f32))
            }
        })
        .collect();
    Snapshot {
        start: start + Nanos::from_millis(number * 100),
        end: start + Nanos::from_millis((number + 1) * 100),
        nr_samples: 20,
        regions,
        ..Snapshot::default()
    }
}
