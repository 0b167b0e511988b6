//! Measures the latency and the bandwidth of each memory node, from each node with processors.
//!
//! Approach: a thread runs on the processors of one node, and its memory is moved to another. A chase of pointers, one to
//! a cache line, in an order that no prefetcher foresees, shows the latency. A sum over all words shows the bandwidth of
//! one thread. The memory is four times the largest cache, in huge pages where the kernel gives them: small ones cost
//! page walks besides.
//!
//! Limits: one thread does not exhaust the bandwidth of a node. Others' loads are measured, too. Where the hypervisor
//! does not say which node is far, all look alike.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::calibration::{Measured, NodeMeasured};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::cgroup;
use crate::mapped::MappedArray;
use crate::meminfo::Meminfo;
use crate::migrations::{NODES, node_numbers};
use crate::process::Process;
use crate::text;

const ROUNDS: usize = 5;
const WORDS_OF_LINE: usize = 8;
/// Loads of a chase.
const LOADS: usize = 1 << 20;
/// Least and most bytes that are read.
const BYTES: [u64; 2] = [16 << 20, 1 << 30];
/// At most one part in this many of a node's free memory is taken, and of what the control group may still be charged for.
const FREE_SHARE: u64 = 4;

/// Measures every pair of nodes, and calls `tell` with the completed fraction after each.
pub fn measure_nodes(mut tell: impl FnMut(f64)) -> Vec<NodeMeasured> {
    let nodes = node_numbers();
    let running = nodes.iter().map(|node| (*node, cpus_of(*node)));
    let running: Vec<_> = running.filter(|(_, cpus)| cpus.count() > 0).collect();
    let mut measured = Vec::new();
    for (cpu_node, cpus) in &running {
        for node in &nodes {
            let one = || -> Result<[Option<Measured>; 2], String> {
                let memory = Memory::on(*node)?;
                sched_setaffinity(None, cpus).map_err(|error| error.to_string())?;
                Ok(memory.measure())
            };
            // On a thread of its own: this one stays where it may run.
            let done = std::thread::scope(|scope| scope.spawn(one).join());
            let done = done.unwrap_or_else(|_| Err("the measuring thread ended".to_owned()));
            let [latency_ns, read_bytes_per_s] = done.clone().unwrap_or_default();
            measured.push(NodeMeasured {
                cpu_node: *cpu_node,
                node: *node,
                latency_ns,
                read_bytes_per_s,
                unknown: done.err(),
            });
            tell(measured.len() as f64 / (running.len() * nodes.len()) as f64);
        }
    }
    measured
}

/// Returns the processors of a node: none, if it is memory alone.
fn cpus_of(node: u32) -> CpuSet {
    let list = fs::read_to_string(format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
    let mut cpus = CpuSet::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = (first.parse(), last.parse());
        let (Ok(first), Ok(last)) = bounds else {
            continue;
        };
        (first..=last)
            .take_while(|cpu| *cpu < CpuSet::MAX_CPU)
            .for_each(|cpu| cpus.set(cpu));
    }
    cpus
}

/// Bytes of the largest cache of processor 0.
fn largest_cache() -> u64 {
    let size = |index: u32| -> Option<u64> {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text: String = text::number(path)?;
        { text.strip_suffix('K')? }
            .parse()
            .ok()
            .map(|kib: u64| kib << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}

/// Returns the memory that this control group, and those above it, may still be charged for.
fn room_of_group() -> u64 {
    let own = cgroup::of_process(std::process::id());
    let own = own.and_then(|name| cgroup::find(Path::new(&name)).ok());
    let limited = own.and_then(|group| cgroup::memory(&group));
    limited.map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used))
}

/// Words of which each line's first is the place of the next line.
struct Memory {
    words: MappedArray<u64>,
}

impl Memory {
    /// Takes memory of a node.
    fn on(node: u32) -> Result<Self, String> {
        let free = Meminfo::of_node(node).get("MemFree").unwrap_or(0);
        let free = free.min(room_of_group()) / FREE_SHARE;
        let bytes = (4 * largest_cache()).clamp(BYTES[0], BYTES[1]).min(free);
        // A power of two, so that the order of lines has one cycle.
        let bytes = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
        if bytes < BYTES[0] {
            return Err(format!(
                "a quarter of what is free on node {node}, or in this control group, is less than 16 MiB"
            ));
        }
        let words = MappedArray::anonymous(bytes as usize / 8);
        let mut words = words.map_err(|error| error.to_string())?;
        words.mapping().advise(libc::MADV_HUGEPAGE).ok();
        chain(words.get_mut());
        let range = words.mapping().range();
        let pages: Vec<u64> = (range.start..range.end)
            .step_by(PAGE_SIZE as usize)
            .collect();
        let this = Process::open(std::process::id()).map_err(|error| error.to_string())?;
        let nodes = vec![node as i32; pages.len()];
        let now = this.move_pages(&pages, &nodes);
        let now = now.map_err(|error| error.to_string())?;
        let there = now.iter().filter(|of| **of == node as i32).count();
        if there < pages.len() * 99 / 100 {
            let all = pages.len();
            return Err(format!(
                "the kernel moved {there} of {all} pages to node {node}"
            ));
        }
        Ok(Self { words })
    }

    fn measure(&self) -> [Option<Measured>; 2] {
        let words = self.words.get();
        let (mut latencies, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (began, mut place) = (Instant::now(), 0);
            for _ in 0..LOADS {
                place = words[place] as usize;
            }
            black_box(place);
            latencies.push(began.elapsed().as_nanos() as f64 / LOADS as f64);
            let began = Instant::now();
            black_box(
                words
                    .iter()
                    .fold(0_u64, |sum, word| sum.wrapping_add(*word)),
            );
            let seconds = began.elapsed().as_secs_f64();
            rates.push(words.len() as f64 * 8.0 / seconds);
        }
        [latencies, rates].map(|values| Measured::of(&values))
    }
}

/// Makes one cycle of all lines. Their number is a power of two, so the steps of this generator have it as their period
/// (Hull and Dobell: Random number generators, SIAM Review 1962).
fn chain(words: &mut [u64]) {
    let lines = words.len() / WORDS_OF_LINE;
    for line in 0..lines {
        let next = line.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % lines;
        words[line * WORDS_OF_LINE] = (next * WORDS_OF_LINE) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chase_visits_every_line_once() {
        let mut words = vec![0; 1024 * WORDS_OF_LINE];
        chain(&mut words);
        let mut place = 0;
        for visited in 1..=1024 {
            place = words[place] as usize;
            assert_eq!(place == 0, visited == 1024, "after {visited} lines");
        }
    }

    #[test]
    fn processors_of_this_machine_are_on_a_node() {
        let nodes = node_numbers();
        let all: u32 = nodes.iter().map(|node| cpus_of(*node).count()).sum();
        assert!(nodes.is_empty() || all > 0, "{nodes:?}");
    }
}
