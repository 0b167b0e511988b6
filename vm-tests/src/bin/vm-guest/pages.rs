//! Places of a workload's hot and cold memory: in memory, in swap, in huge pages, on which node. It also shows the
//! advice that the kernel got.
//!
//! The sources are pagemap, smaps, numa_maps and zoneinfo, none of which the product uses for acting. With `--active`
//! the pages of the active list are counted through kpageflags. With `--sum` the content is read as well, through
//! `/proc/PID/mem`. That brings pages back from swap, so it comes last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use isotherm_vm_tests::{Pages, Part};
use isotherm_workload::family::program::{mapping, smaps_sum};
use isotherm_workload::truth;

use super::pagemap::{Entry, Pagemap};

/// Print the places of a workload's hot and cold memory, as JSON.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inspect this process.
    #[arg(long)]
    pid: u32,
    /// Read the hot and cold ranges from the last phase of this truth file.
    #[arg(long)]
    truth: PathBuf,
    /// Count pages of the active list, too.
    #[arg(long)]
    active: bool,
    /// Read and sum up the content, too.
    #[arg(long)]
    sum: bool,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let file = BufReader::new(File::open(&args.truth)?);
    let episodes = truth::read(file).map_err(io::Error::other)?;
    let last = episodes
        .last()
        .ok_or_else(|| io::Error::other("the truth file holds no phase"))?;
    let hot: Vec<AddressRange> = last.temperature.hot.iter().map(|h| h.range).collect();
    let cold = &last.temperature.cold;
    let all = [&hot[..], cold].concat();
    let nodes = frames_of_nodes()?;
    let mut pagemap = Pagemap::open(args.pid)?;
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", args.pid))?;
    let mut answer = Pages {
        hot: part(&mut pagemap, &hot, &nodes)?,
        cold: part(&mut pagemap, cold, &nodes)?,
        anon_huge: smaps_sum(&smaps, &all, "AnonHugePages:"),
        referenced: smaps_sum(&smaps, &all, "Referenced:"),
        numa_maps: numa_maps(args.pid, &all)?,
    };
    for (part, ranges) in [(&mut answer.hot, &hot), (&mut answer.cold, cold)] {
        part.advised_huge = advised(&smaps, "hg", ranges);
        part.advised_small = advised(&smaps, "nh", ranges);
        if args.active {
            part.active = Some(active(&mut pagemap, ranges)?);
        }
    }
    if args.sum {
        answer.hot.sum = Some(sum(args.pid, &hot)?);
        answer.cold.sum = Some(sum(args.pid, cold)?);
    }
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

fn part(
    pagemap: &mut Pagemap,
    ranges: &[AddressRange],
    nodes: &[(u32, Range<u64>)],
) -> io::Result<Part> {
    let mut part = Part::default();
    for range in ranges {
        for entry in pagemap.entries(*range)? {
            part.swapped += u64::from(entry.is_swapped()) * PAGE_SIZE;
            let Some(frame) = entry.frame() else { continue };
            part.present += PAGE_SIZE;
            if let Some((node, _)) = nodes.iter().find(|(_, frames)| frames.contains(&frame)) {
                *part.nodes.entry(*node).or_default() += PAGE_SIZE;
            }
        }
    }
    Ok(part)
}

/// Counts the bytes of pages that are on the active list according to kpageflags.
fn active(pagemap: &mut Pagemap, ranges: &[AddressRange]) -> io::Result<u64> {
    /// `KPF_ACTIVE` of `include/uapi/linux/kernel-page-flags.h`.
    const ACTIVE: u64 = 1 << 6;
    let flags = File::open("/proc/kpageflags")?;
    let mut bytes = 0;
    for range in ranges {
        for frame in pagemap
            .entries(*range)?
            .into_iter()
            .filter_map(Entry::frame)
        {
            let mut of_frame = [0; 8];
            flags.read_exact_at(&mut of_frame, frame * 8)?;
            if u64::from_le_bytes(of_frame) & ACTIVE != 0 {
                bytes += PAGE_SIZE;
            }
        }
    }
    Ok(bytes)
}

/// Counts the bytes of `ranges` in mappings that have this flag in smaps.
fn advised(smaps: &str, flag: &str, ranges: &[AddressRange]) -> u64 {
    let (mut of, mut bytes) = (None, 0);
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            of = Some(mapping);
        } else if let (Some(flags), Some(mapping)) = (line.strip_prefix("VmFlags:"), of)
            && flags.split_whitespace().any(|found| found == flag)
        {
            let inside = ranges
                .iter()
                .filter_map(|range| range.intersection(mapping));
            bytes += inside.map(AddressRange::len).sum::<u64>();
        }
    }
    bytes
}

/// Reads the frames of every zone, and the node to which it belongs.
fn frames_of_nodes() -> io::Result<Vec<(u32, Range<u64>)>> {
    let text = fs::read_to_string("/proc/zoneinfo")?;
    let (mut node, mut spanned) = (0, 0);
    let mut zones = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.trim_end_matches(',').parse().unwrap_or(0);
        match words[..] {
            ["Node", id, "zone", ..] => node = number(id) as u32,
            ["spanned", pages] => spanned = number(pages),
            ["start_pfn:", first] => zones.push((node, number(first)..number(first) + spanned)),
            _ => {}
        }
    }
    Ok(zones)
}

/// Counts the bytes by node of the mappings that hold some of `ranges`. numa_maps has only the start of each mapping.
fn numa_maps(pid: u32, ranges: &[AddressRange]) -> io::Result<BTreeMap<u32, u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let starts: Vec<u64> = maps
        .lines()
        .filter_map(mapping)
        .filter(|mapping| {
            ranges
                .iter()
                .any(|range| range.intersection(*mapping).is_some())
        })
        .map(|mapping| mapping.start)
        .collect();
    let mut bytes = BTreeMap::new();
    // A kernel without NUMA has no such file.
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let start = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
        if !start.is_some_and(|start| starts.contains(&start)) {
            continue;
        }
        for word in words {
            if let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('='))
                && let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>())
            {
                *bytes.entry(node).or_default() += pages * PAGE_SIZE;
            }
        }
    }
    Ok(bytes)
}

/// Hashes the content of `ranges`. The hash differs if any byte differs, or if two change places.
fn sum(pid: u32, ranges: &[AddressRange]) -> io::Result<u64> {
    const CHUNK: usize = 1 << 20;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; CHUNK];
    for range in ranges {
        for start in (range.start..range.end).step_by(CHUNK) {
            let chunk = &mut buffer[..CHUNK.min((range.end - start) as usize)];
            memory.read_exact_at(chunk, start)?;
            hasher.write(chunk);
        }
    }
    Ok(hasher.finish())
}
