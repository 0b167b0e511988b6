//! The same record, reported by us and by damo: time and memory.
//!
//! The record is synthetic (snapshots of 1,000 regions whose counts wander), converted to damo's own
//! format with `isotherm convert`. damo comes from PyPI, into `.venv`. Output goes nowhere on both
//! sides: damo's `raw` heat map and our CSV, damo's working-set percentiles and ours.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Header, Item, TargetStart, Writer};
use serde_json::{Value, json};

use super::child::Guarded;
use super::measure::{Measured, measure};
use super::stats::cell;
use super::table::Table;
use super::{Context, Outcome, machine};

const REGIONS: u64 = 1000;
/// What damo takes for each row of a record, with room; measured: 1.9 kB.
const DAMO_BYTES_PER_ROW: u64 = 2300;
const LIMIT: Duration = Duration::from_mins(20);

pub(super) fn run(context: &Context) -> anyhow::Result<Outcome> {
    let ours = context.scratch("synthetic.isotherm");
    synthesize(&ours, context.rows.div_ceil(REGIONS))?;
    let theirs = context.scratch("synthetic.damo");
    let (isotherm, ours, theirs) = (text(&context.isotherm)?, text(&ours)?, text(&theirs)?);
    let damo = damo(context, isotherm, ours, theirs);
    let mut jobs = vec![
        (
            "heatmap",
            "isotherm",
            vec![isotherm, "report", "heatmap", ours, "--format", "csv"],
        ),
        (
            "wss",
            "isotherm",
            vec![isotherm, "report", "wss", ours, "--format", "json"],
        ),
    ];
    let mut version = "absent".to_owned();
    let program;
    match damo {
        Ok(path) => {
            version = machine::output(Command::new(&path).arg("version"));
            program = path;
            let damo = text(&program)?;
            jobs.push((
                "heatmap",
                "damo",
                vec![
                    damo, "report", "heatmap", "--input", theirs, "--output", "raw",
                ],
            ));
            jobs.push((
                "wss",
                "damo",
                vec![damo, "report", "wss", "--input", theirs],
            ));
        }
        Err(error) => println!("SKIP damo: {error:#}"),
    }
    let mut results: Vec<Vec<Measured>> = vec![Vec::new(); jobs.len()];
    let mut failures = vec![String::new(); jobs.len()];
    for _ in 0..context.repeats {
        for (index, (report, tool, command)) in jobs.iter().enumerate() {
            println!("{report}, {tool}");
            match measure(context, command, LIMIT) {
                Ok(measured) => results[index].push(measured),
                Err(error) => failures[index] = format!("{error:#}"),
            }
        }
    }
    let mut table = Table::new(
        format!(
            "{} rows of {REGIONS} regions a snapshot; damo {version}",
            context.rows
        ),
        &["report", "tool", "s", "CPU s", "largest RSS MiB", "failed"],
    );
    let mut data = Vec::new();
    for (index, (report, tool, _)) in jobs.iter().enumerate() {
        let of = |value: fn(&Measured) -> f64| results[index].iter().map(value).collect::<Vec<_>>();
        table.row(vec![
            (*report).to_owned(),
            (*tool).to_owned(),
            cell(&of(|m| m.seconds), 2),
            cell(&of(|m| m.cpu_seconds), 2),
            cell(&of(|m| m.max_rss_bytes as f64 / f64::from(1 << 20)), 1),
            failures[index].clone(),
        ]);
        data.push(json!({ "report": report, "tool": tool, "runs": results[index], "failed": failures[index] }));
    }
    Ok(Outcome::Done {
        tables: vec![table],
        data: json!({ "rows": context.rows, "damo": version, "jobs": Value::from(data) }),
    })
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the path is no text")
}

/// damo, installed if need be, with the record in its format; or why not.
fn damo(context: &Context, isotherm: &str, ours: &str, theirs: &str) -> anyhow::Result<PathBuf> {
    let needed = context.rows * DAMO_BYTES_PER_ROW;
    let available = machine::meminfo("MemAvailable:").unwrap_or(0);
    anyhow::ensure!(
        needed <= available,
        "would take about {}, {} are available",
        isotherm_exercise::size::format(needed),
        isotherm_exercise::size::format(available)
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
fn synthesize(path: &Path, snapshots: u64) -> anyhow::Result<()> {
    let file = File::create(path).context("cannot write to the temporary folder")?;
    let start = Nanos(1_800_000_000_000_000_000);
    let header = Header {
        writer: "xtask bench".into(),
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
    }))?;
    for number in 0..snapshots {
        writer.write(&Item::Snapshot(snapshot(start, number)))?;
    }
    writer.finish()?;
    Ok(())
}

/// A tenth of the regions is hot at a time; which tenth moves on every second. Borders shift with
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
            RegionSnapshot {
                range: AddressRange::new(border(region), border(region + 1)),
                nr_accesses: Some(count as f32),
                age: (number % 10) as u32,
                age_ns: Nanos::from_millis(number % 10 * 100),
            }
        })
        .collect();
    Snapshot {
        target: TargetId(0),
        start: start + Nanos::from_millis(number * 100),
        end: start + Nanos::from_millis((number + 1) * 100),
        nr_samples: 20,
        regions,
    }
}
