//! Page frames of a program of the generated family, and the CPU share of a record of it.

use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::PathBuf;

use isotherm_record::{Item, Reader};
use isotherm_workload::family::Ready;
use zerocopy::IntoBytes as _;

use super::pagemap::{Entry, Pagemap};

/// Write down the frame of each page of a program's memory: eight bytes each, little-endian, 0 where there is none.
#[derive(clap::Args)]
pub(crate) struct PageFrames {
    #[arg(long)]
    pid: u32,
    /// Read the program's description of itself from this file.
    #[arg(long)]
    ready: PathBuf,
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn page_frames(args: &PageFrames) -> io::Result<()> {
    let ready: Ready = serde_json::from_slice(&fs::read(&args.ready)?)?;
    let mut out = io::BufWriter::new(File::create(&args.out)?);
    for entry in Pagemap::open(args.pid)?.entries(ready.memory)? {
        let frame = Entry::frame(entry).unwrap_or(0);
        out.write_all(frame.to_le().as_bytes())?;
    }
    out.flush()
}

/// Print the CPU share that a record says its monitor took, as a percentage for `--cpu-budget`.
#[derive(clap::Args)]
pub(crate) struct CpuShare {
    record: PathBuf,
}

pub(crate) fn cpu_share(args: &CpuShare) -> io::Result<()> {
    let file = BufReader::new(File::open(&args.record)?);
    let mut samples = Vec::new();
    for item in Reader::open(file).map_err(io::Error::other)? {
        if let Item::Cost(sample) = item.map_err(io::Error::other)? {
            samples.push((sample.time, sample.cost.monitor_cpu));
        }
    }
    // The first sample includes the cost of loading.
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Err(io::Error::other("the record tells no costs"));
    };
    let cpu = last.1.since(first.1).as_secs_f64();
    println!("{:.2}%", 100.0 * cpu / last.0.since(first.0).as_secs_f64());
    Ok(())
}
