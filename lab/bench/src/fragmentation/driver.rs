//! The driver: requests huge pages one after the other, and notes the duration of each fault.
//!
//! It is a process of its own (`isotherm-bench drive`). So its memory is free again at its end, and the kernel kills it
//! first if memory runs out.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use memmap2::{Advice, MmapOptions};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

use super::super::BenchContext;
use super::super::child::Guarded;
use super::super::machine::meminfo;

pub(super) const HUGE: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// Faults between two checks of available memory: 128 MiB.
const LOOK_EVERY: u64 = 64;
/// Time for the driver beyond its pace; a fault may take 100 ms if nothing can be moved.
const SLACK: Duration = Duration::from_mins(3);

/// The number of huge pages, and the pace.
#[derive(Clone, Copy, Debug, Parser)]
pub(super) struct Demand {
    /// Huge pages
    #[arg(long)]
    pub(super) pages: u64,
    /// Microseconds from one to the next; 0 is without a pause
    #[arg(long)]
    pub(super) interval_us: u64,
    /// Bytes that must stay available
    #[arg(long)]
    pub(super) floor: u64,
}

#[derive(Parser)]
#[command(
    name = "isotherm-bench drive",
    about = "Take huge pages and time each fault"
)]
struct Args {
    #[command(flatten)]
    demand: Demand,
    /// Write the results to this file
    #[arg(long)]
    output: PathBuf,
}

/// The driver's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Driven {
    /// The faults, in order.
    pub(super) faults: Vec<Fault>,
    /// Seconds from the first fault to the last.
    pub(super) seconds: f64,
    /// CPU time of the driver in the kernel meanwhile.
    pub(super) system_seconds: f64,
    /// The driver ended early, as too little memory was available.
    pub(super) out_of_memory: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) nanos: u64,
    /// The fault brought a huge page.
    pub(super) huge: bool,
    /// Memory was compacted for the fault (or for another process meanwhile).
    pub(super) stalled: bool,
}

/// Runs the driver to its end.
pub(super) fn run(context: &BenchContext, demand: Demand) -> anyhow::Result<Driven> {
    let output = context.scratch("driven.json");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("drive").arg("--output").arg(&output);
    for (name, value) in [
        ("--pages", demand.pages),
        ("--interval-us", demand.interval_us),
        ("--floor", demand.floor),
    ] {
        command.args([name, &value.to_string()]);
    }
    let mut child = Guarded::spawn(context, command.stdout(Stdio::null()))?;
    let pace = Duration::from_micros(demand.interval_us.saturating_mul(demand.pages));
    child.finish(context, pace + SLACK)?;
    let text = fs::read_to_string(&output).context("the driver left nothing")?;
    Ok(serde_json::from_str(&text)?)
}

/// Runs `isotherm-bench drive`.
pub(crate) fn main(args: impl Iterator<Item = String>) -> anyhow::Result<ExitCode> {
    let args = Args::parse_from(args);
    fs::write("/proc/self/oom_score_adj", "1000")
        .context("cannot write /proc/self/oom_score_adj")?;
    let driven = drive(args.demand)?;
    fs::write(&args.output, serde_json::to_string(&driven)?)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn drive(demand: Demand) -> anyhow::Result<Driven> {
    // One more, so that it can begin at a multiple of 2 MiB.
    let mut memory = MmapOptions::new()
        .len(((demand.pages + 1) * HUGE) as usize)
        .map_anon()
        .context("cannot map memory")?;
    memory
        .advise(Advice::HugePage)
        .context("cannot advise MADV_HUGEPAGE; has the kernel transparent huge pages?")?;
    let base = memory.as_ptr().addr() as u64;
    let first = base.next_multiple_of(HUGE);
    let pagemap = File::open("/proc/self/pagemap").context("cannot open /proc/self/pagemap")?;
    let mut stalls = Stalls::open()?;
    let mut faults = Vec::with_capacity(demand.pages as usize);
    let (start, system) = (Instant::now(), system_time()?);
    let mut out_of_memory = false;
    for number in 0..demand.pages {
        if number % LOOK_EVERY == 0
            && meminfo("MemAvailable:").context("no MemAvailable")? < demand.floor
        {
            out_of_memory = true;
            break;
        }
        let due = start + Duration::from_micros(number * demand.interval_us);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let address = first + number * HUGE;
        let before = Instant::now();
        *black_box(&mut memory[(address - base) as usize]) = 1;
        let nanos = before.elapsed().as_nanos() as u64;
        // Only a huge page also makes the last of the 512 small pages present.
        let huge = is_present(&pagemap, address + HUGE - PAGE)?;
        let stalled = stalls.grew()?;
        faults.push(Fault {
            nanos,
            huge,
            stalled,
        });
    }
    let seconds = start.elapsed().as_secs_f64();
    let system_seconds = system_time()?.saturating_sub(system).as_secs_f64();
    // All of the memory must be held until here.
    black_box(&memory);
    if faults.is_empty() {
        bail!("too little memory was available to begin with");
    }
    Ok(Driven {
        faults,
        seconds,
        system_seconds,
        out_of_memory,
    })
}

/// Reads how often the machine compacted for an allocation: 20 us each time.
struct Stalls {
    vmstat: File,
    text: Vec<u8>,
    last: u64,
}

impl Stalls {
    fn open() -> anyhow::Result<Self> {
        let vmstat = File::open("/proc/vmstat").context("cannot open /proc/vmstat")?;
        let mut stalls = Self {
            vmstat,
            text: vec![0; 64 << 10],
            last: 0,
        };
        stalls.grew()?;
        Ok(stalls)
    }

    /// Returns whether the count has grown since the last call.
    fn grew(&mut self) -> anyhow::Result<bool> {
        let read = self
            .vmstat
            .read_at(&mut self.text, 0)
            .context("cannot read /proc/vmstat")?;
        let now = stalls(&self.text[..read]).context("/proc/vmstat has no compact_stall")?;
        Ok(std::mem::replace(&mut self.last, now) < now)
    }
}

fn stalls(vmstat: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(vmstat).ok()?;
    let lines = text.lines();
    lines
        .filter_map(|line| line.strip_prefix("compact_stall "))
        .find_map(|value| value.parse().ok())
}

/// Returns bit 63 of a page's entry in the pagemap (Documentation/admin-guide/mm/pagemap.rst).
fn is_present(pagemap: &File, address: u64) -> anyhow::Result<bool> {
    let mut entry = [0; 8];
    pagemap
        .read_exact_at(&mut entry, address / PAGE * 8)
        .context("cannot read /proc/self/pagemap")?;
    Ok(u64::from_ne_bytes(entry) >> 63 == 1)
}

fn system_time() -> anyhow::Result<Duration> {
    let time = getrusage(UsageWho::RUSAGE_SELF)?.system_time();
    Ok(Duration::from_micros(time.num_microseconds() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_timed_and_known_to_be_huge_or_not() {
        let demand = Demand {
            pages: 3,
            interval_us: 1000,
            floor: 0,
        };
        let driven = drive(demand).expect("driven");
        assert_eq!(driven.faults.len(), 3);
        assert!(driven.faults.iter().all(|fault| fault.nanos > 0));
        assert!(driven.seconds >= 0.002 && !driven.out_of_memory);
    }

    #[test]
    fn stalls_are_read_from_vmstat() {
        assert_eq!(
            stalls(b"compact_isolated 3\ncompact_stall 12\ncompact_fail 1\n"),
            Some(12)
        );
        assert_eq!(stalls(b"nr_free_pages 3\n"), None);
    }

    #[test]
    fn it_takes_nothing_where_too_little_is_available() {
        let demand = Demand {
            pages: 3,
            interval_us: 0,
            floor: u64::MAX,
        };
        let error = drive(demand).expect_err("refused");
        assert!(error.to_string().contains("too little"), "{error}");
    }
}
