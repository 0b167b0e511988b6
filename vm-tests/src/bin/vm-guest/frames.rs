//! Translates a truth file from a process's addresses to physical ones.
//!
//! Frames that follow each other become one range. The translation is a snapshot: the workload's pages must not move
//! meanwhile.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use isotherm_workload::layout::{Heat, Temperature};
use isotherm_workload::truth::{self, Line};

use super::pagemap::{Entry, Pagemap};

/// Rewrite a truth file in physical addresses.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Translate addresses of this process.
    #[arg(long)]
    pid: u32,
    /// Read this truth file.
    #[arg(long)]
    truth: PathBuf,
    /// Write the translated truth to this file.
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let mut pagemap = Pagemap::open(args.pid)?;
    let mut out = File::create(&args.out)?;
    for text in BufReader::new(File::open(&args.truth)?).lines() {
        let mut line: Line = serde_json::from_str(&text?)?;
        if let Line::Start { temperature, .. } = &mut line {
            *temperature = Temperature {
                hot: heats(&mut pagemap, &temperature.hot)?,
                warm: heats(&mut pagemap, &temperature.warm)?,
                cold: ranges(&mut pagemap, &temperature.cold)?,
            };
        }
        truth::write(&mut out, &line)?;
    }
    Ok(())
}

/// Translates heats. Each heat's share of accesses is divided among its frames by size.
fn heats(pagemap: &mut Pagemap, virtual_heats: &[Heat]) -> io::Result<Vec<Heat>> {
    let mut heats = Vec::new();
    for heat in virtual_heats {
        for range in ranges(pagemap, &[heat.range])? {
            let share = range.len() as f64 / heat.range.len() as f64;
            heats.push(Heat {
                range,
                probability: heat.probability * share,
            });
        }
    }
    Ok(heats)
}

fn ranges(pagemap: &mut Pagemap, virtual_ranges: &[AddressRange]) -> io::Result<Vec<AddressRange>> {
    let mut starts = Vec::new();
    for range in virtual_ranges {
        let entries = pagemap.entries(*range)?;
        let frames = entries.into_iter().filter_map(Entry::frame);
        starts.extend(frames.map(|frame| frame * PAGE_SIZE));
    }
    starts.sort_unstable();
    let mut ranges: Vec<AddressRange> = Vec::new();
    for start in starts {
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += PAGE_SIZE,
            _ => ranges.push(AddressRange::new(start, start + PAGE_SIZE)),
        }
    }
    Ok(ranges)
}
