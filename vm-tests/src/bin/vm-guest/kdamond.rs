//! Runs the kernel's own DAMON on a process through sysfs and writes down its snapshots.
//!
//! It uses one kdamond with one context, `vaddr` operations, and one scheme that takes every region and does nothing
//! (`stat`). An update of that scheme's tried regions yields all regions of the aggregation interval that has just
//! ended (`Documentation/admin-guide/mm/damon/usage.rst`). Paths are those of 6.12.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Record a process with kernel DAMON; snapshots come out as lines of JSON.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record this process.
    #[arg(long)]
    pid: u32,
    /// Record for this many seconds.
    #[arg(long)]
    seconds: u64,
    /// Sample at this interval, in milliseconds.
    #[arg(long, default_value_t = 100)]
    sample_ms: u64,
    /// Aggregate at this interval, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    aggregation_ms: u64,
    /// Write the snapshots to this file.
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let mut out = io::BufWriter::new(fs::File::create(&args.out)?);
    let kdamond = Kdamond::start(args)?;
    let end = Instant::now() + Duration::from_secs(args.seconds);
    while Instant::now() < end && read("0/state")?.trim() == "on" {
        let snapshot = kdamond.snapshot()?;
        serde_json::to_writer(&mut out, &snapshot)?;
        writeln!(out)?;
    }
    out.flush()
}

/// A running kdamond, turned off and removed when dropped.
struct Kdamond {
    aggregation: Nanos,
    nr_samples: u32,
}

impl Kdamond {
    fn start(args: &Args) -> io::Result<Self> {
        write("nr_kdamonds", "1")?;
        write("0/contexts/nr_contexts", "1")?;
        let context = |file: &str| format!("0/contexts/0/{file}");
        write(&context("operations"), "vaddr")?;
        for (file, ms) in [
            ("sample_us", args.sample_ms),
            ("aggr_us", args.aggregation_ms),
            ("update_us", args.aggregation_ms * 10),
        ] {
            let path = context(&format!("monitoring_attrs/intervals/{file}"));
            write(&path, &(ms * 1000).to_string())?;
        }
        write(&context("targets/nr_targets"), "1")?;
        write(&context("targets/0/pid_target"), &args.pid.to_string())?;
        write(&context("schemes/nr_schemes"), "1")?;
        write(&context("schemes/0/action"), "stat")?;
        for range in ["sz", "nr_accesses", "age"] {
            let pattern = context(&format!("schemes/0/access_pattern/{range}"));
            write(&format!("{pattern}/min"), "0")?;
            // The files hold unsigned long, but nr_accesses and age are unsigned int inside.
            write(&format!("{pattern}/max"), "4294967295")?;
        }
        write(
            &context("schemes/0/access_pattern/sz/max"),
            &u64::MAX.to_string(),
        )?;
        write("0/state", "on")?;
        Ok(Self {
            aggregation: Nanos::from_millis(args.aggregation_ms),
            nr_samples: (args.aggregation_ms / args.sample_ms) as u32,
        })
    }

    /// Waits for the end of the current aggregation interval and reads its regions.
    fn snapshot(&self) -> io::Result<Snapshot> {
        write("0/state", "update_schemes_tried_regions")?;
        let end = super::hot::now();
        let tried = Path::new(KDAMONDS).join("0/contexts/0/schemes/0/tried_regions");
        let mut regions = Vec::new();
        for entry in fs::read_dir(&tried)? {
            let dir = entry?.path();
            if dir.is_dir() {
                regions.push(region(&dir, self.aggregation)?);
            }
        }
        regions.sort_unstable_by_key(|r: &RegionSnapshot| r.range);
        write("0/state", "clear_schemes_tried_regions")?;
        Ok(Snapshot {
            blocks: Vec::new(),
            idle_pages: std::sync::Arc::default(),
            target: TargetId(0),
            start: end - self.aggregation,
            end,
            nr_samples: self.nr_samples,
            regions,
        })
    }
}

impl Drop for Kdamond {
    fn drop(&mut self) {
        for (file, value) in [("0/state", "off"), ("nr_kdamonds", "0")] {
            if let Err(e) = write(file, value) {
                eprintln!("vm-guest: {e}");
            }
        }
    }
}

fn region(dir: &Path, aggregation: Nanos) -> io::Result<RegionSnapshot> {
    let number = |file: &str| -> io::Result<u64> {
        let path = dir.join(file);
        let text = fs::read_to_string(&path)?;
        text.trim()
            .parse()
            .map_err(|e| io::Error::other(format!("{}: {e}: `{text}`", path.display())))
    };
    let (start, end) = (number("start")?, number("end")?);
    let age = number("age")?;
    Ok(RegionSnapshot {
        range: AddressRange::checked(start, end)
            .ok_or_else(|| io::Error::other(format!("a region from {start:#x} to {end:#x}")))?,
        nr_accesses: Some(number("nr_accesses")? as f32),
        age: age as u32,
        age_ns: Nanos(age * aggregation.0),
        memory: None,
    })
}

fn write(file: &str, value: &str) -> io::Result<()> {
    let path = Path::new(KDAMONDS).join(file);
    fs::write(&path, value).map_err(|e| {
        io::Error::new(
            e.kind(),
            format!("cannot write `{value}` to {}: {e}", path.display()),
        )
    })
}

fn read(file: &str) -> io::Result<String> {
    let path = Path::new(KDAMONDS).join(file);
    fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display())))
}
