//! A workload whose truth is known: all of its memory is touched once, then only a hot part, again
//! and again, every page several times within the shortest sampling interval used in emulation.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE};
use isotherm_vm_tests::accuracy::{Phase, Truth};

/// Keep a known part of memory hot, and write down which and when.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// All of the memory, in MiB.
    #[arg(long, default_value_t = 128)]
    total_mib: usize,
    /// The hot part, in MiB.
    #[arg(long, default_value_t = 16)]
    hot_mib: usize,
    /// Where the hot part begins, in MiB.
    #[arg(long, default_value_t = 40)]
    at_mib: usize,
    /// How many phases; the hot part moves on by its own size from one to the next ("stairs").
    #[arg(long, default_value_t = 1)]
    steps: usize,
    /// How long a phase lasts, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How long to rest between two rounds over the hot part, in milliseconds; 0 never rests, so
    /// that nothing but the workload runs on its processor.
    #[arg(long, default_value_t = 20)]
    rest_ms: u64,
    /// Map the memory above 47 bits.
    #[arg(long)]
    high: bool,
    /// Where to write the truth, as JSON: rewritten after each phase.
    #[arg(long)]
    truth: PathBuf,
    /// A file to make once all the memory has been touched.
    #[arg(long)]
    ready: PathBuf,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let memory = super::memory::map(args.total_mib << 20, args.high)?;
    touch(memory);
    let mut truth = Truth {
        area: vec![range_of(memory)],
        phases: Vec::new(),
    };
    fs::write(&args.ready, "")?;
    for step in 0..args.steps {
        let from = ((args.at_mib + step * args.hot_mib) << 20) % memory.len();
        let to = (from + (args.hot_mib << 20)).min(memory.len());
        let hot = &memory[from..to];
        let start = now();
        let end = Instant::now() + Duration::from_secs(args.seconds);
        while Instant::now() < end {
            touch(hot);
            if args.rest_ms > 0 {
                thread::sleep(Duration::from_millis(args.rest_ms));
            }
        }
        truth.phases.push(Phase {
            start,
            end: now(),
            hot: vec![range_of(hot)],
        });
        fs::write(&args.truth, serde_json::to_string_pretty(&truth)?)?;
    }
    Ok(())
}

fn touch(memory: &[AtomicU8]) {
    for page in memory.iter().step_by(PAGE_SIZE as usize) {
        page.fetch_add(1, Ordering::Relaxed);
    }
}

fn range_of(memory: &[AtomicU8]) -> AddressRange {
    let start = memory.as_ptr().addr() as u64;
    AddressRange::new(start, start + memory.len() as u64)
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now() -> Nanos {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .into()
}
