//! A workload above 47 bits: a quarter of its memory is hot, the rest is touched once.
//!
//! Other scenarios use `isotherm workload`, which maps its memory where the kernel chooses. The kernel goes above 47
//! bits only if a program asks for it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU8;

use isotherm_engine::AddressRange;
use isotherm_workload::layout::{Heat, Temperature};
use isotherm_workload::run::now;
use isotherm_workload::truth::{self, Line, RegionPlace};

use super::memory::touch;

/// Keep a known part of memory hot until killed, and write the truth about it to a file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Map this much memory, in MiB; its second quarter is hot.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Map the memory above 47 bits.
    #[arg(long)]
    high: bool,
    /// Write the truth to this file, in the format of `isotherm workload --truth`.
    #[arg(long)]
    truth: PathBuf,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let memory = super::memory::map(args.mib << 20, args.high)?;
    touch(memory);
    let quarter = memory.len() / 4;
    let (before, rest) = memory.split_at(quarter);
    let (hot, after) = rest.split_at(quarter);

    let mut out = File::create(&args.truth)?;
    let ready = Line::Ready {
        time_ns: now(),
        pid: std::process::id(),
        seed: 0,
        regions: vec![RegionPlace {
            name: "high".to_owned(),
            range: range_of(memory),
        }],
    };
    truth::write(&mut out, &ready)?;
    let start = Line::Start {
        time_ns: now(),
        phase: "hot".to_owned(),
        round: 0,
        temperature: Temperature {
            hot: vec![Heat {
                range: range_of(hot),
                probability: 1.0,
            }],
            warm: Vec::new(),
            cold: vec![range_of(before), range_of(after)],
        },
    };
    truth::write(&mut out, &start)?;
    loop {
        touch(hot);
    }
}

fn range_of(memory: &[AtomicU8]) -> AddressRange {
    let start = memory.as_ptr().addr() as u64;
    AddressRange::new(start, start + memory.len() as u64)
}
