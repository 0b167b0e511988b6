//! Watches physical memory: samples every frame through a page table that maps it.
//!
//! The problem: a frame has no accessed bit; the entries that map it do. The kernel finds these by its reverse map,
//! which user space cannot see. The approach: read all page tables of all processes at intervals (half a nanosecond a
//! page), and store which process and address map which frame. A sample of a frame then becomes a sample of that page,
//! and is valid only if the entry still holds that frame.
//!
//! Limits: frames that no process maps are unknown, and counted (free memory, page cache that is only read and written,
//! the kernel's own). A frame that several processes map is unknown, as its bits cannot be cleared. To limit memory, on
//! large machines only every 2^k-th group of 16 frames is kept; a sample of another frame is then taken at the next
//! kept one of its block.

use std::collections::BTreeMap;

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, Cost, Gap, PAGE_SIZE, Sample, TargetId, Touch,
};

use super::page_table::{PageTableProbe, ProbeError, Result};
use super::walker::WalkerError;
use crate::arch;
use crate::process::{self, Process, ProcessError};

/// Maximum number of runs kept: 12 MiB.
const MAX_RUNS: usize = 1 << 19;
/// Frames that are kept or dropped together when the map is thinned.
const STRETCH_FRAMES: u64 = 16;

/// Consecutive frames that are mapped at consecutive addresses of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    frame: u64,
    address: u64,
    process: u32,
    nr_frames: u32,
}

/// Result of the last read of all page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapFacts {
    /// Frames in the watched ranges.
    pub frames: u64,
    /// Watched frames that some process maps (counted once for each mapping, at most all).
    pub mapped: u64,
    /// Processes whose tables were read.
    pub processes: u32,
    /// Ratio of thinning: one of this many groups of 16 frames was kept.
    pub thinning: u64,
}

/// An [`AccessProbe`] whose addresses are physical.
pub struct PhysicalProbe {
    inner: PageTableProbe,
    ranges: Vec<AddressRange>,
    runs: Vec<Run>,
    facts: MapFacts,
    /// Process id of each watched process, by its number in `inner`.
    processes: BTreeMap<u32, u32>,
    next_process: u32,
    /// Index of each started sample among the inner probe's samples.
    places: Vec<Option<usize>>,
    inner_touches: Vec<Touch>,
}

impl PhysicalProbe {
    /// Watches the RAM in `ranges` (in address order).
    pub fn new(ranges: Vec<AddressRange>) -> Result<Self> {
        let mut probe = Self {
            ranges,
            ..Self::without_map()?
        };
        probe.refresh()?;
        Ok(probe)
    }

    /// Returns a probe without a map, for [`each_mapped_frame`](Self::each_mapped_frame) only.
    pub fn without_map() -> Result<Self> {
        Ok(Self {
            inner: PageTableProbe::new()?,
            ranges: Vec::new(),
            runs: Vec::new(),
            facts: MapFacts::default(),
            processes: BTreeMap::new(),
            next_process: 0,
            places: Vec::new(),
            inner_touches: Vec::new(),
        })
    }

    /// Returns the processes found by the last scan of all of them: numbers of this probe's own, and process ids.
    pub fn processes(&self) -> impl Iterator<Item = (TargetId, u32)> + '_ {
        self.processes
            .iter()
            .map(|(number, pid)| (TargetId(*number), *pid))
    }

    /// Reads all page tables of all processes, and passes each present page to `see`: its process, address and frame.
    /// Skips this process.
    pub fn each_mapped_frame(&mut self, mut see: impl FnMut(TargetId, u64, u64)) -> Result<()> {
        self.follow_processes()?;
        for (number, pid) in self.processes.clone() {
            if pid != std::process::id() {
                self.each_frame_of(number, |address, frame, nr| {
                    (0..u64::from(nr))
                        .for_each(|i| see(TargetId(number), address + i * PAGE_SIZE, frame + i));
                })?;
            }
        }
        Ok(())
    }

    /// Returns the result of the last [`refresh`](Self::refresh).
    pub fn map_facts(&self) -> MapFacts {
        self.facts
    }

    /// Reads all page tables of all processes again.
    pub fn refresh(&mut self) -> Result<()> {
        self.follow_processes()?;
        self.runs.clear();
        let mut thinning = self.facts.thinning.max(1);
        let mut per_block: BTreeMap<u64, u32> = BTreeMap::new();
        for number in self.processes.keys().copied().collect::<Vec<_>>() {
            self.map_process(number, &mut thinning, &mut per_block)?;
        }
        self.runs.sort_unstable();
        let frames = self.ranges.iter().map(|r| r.len() / PAGE_SIZE).sum();
        let mapped: u64 = per_block.values().map(|&n| u64::from(n.min(512))).sum();
        self.facts = MapFacts {
            frames,
            mapped: mapped.min(frames),
            processes: self.processes.len() as u32,
            thinning,
        };
        Ok(())
    }

    /// Opens new processes, and closes those that ended.
    fn follow_processes(&mut self) -> Result<()> {
        for (number, _) in self.processes.clone() {
            if !self.inner.refresh(TargetId(number))? {
                self.inner.remove(TargetId(number));
                self.processes.remove(&number);
            }
        }
        let known: Vec<u32> = self.processes.values().copied().collect();
        let pids = process::all().chain([std::process::id()]);
        for pid in pids.filter(|pid| !known.contains(pid)).collect::<Vec<_>>() {
            let Ok(process) = Process::open(pid) else {
                continue;
            };
            match self.inner.add(TargetId(self.next_process), process) {
                Ok(()) => {
                    self.processes.insert(self.next_process, pid);
                    self.next_process += 1;
                }
                // Kernel threads have no address space, and others may have ended.
                Err(
                    ProbeError::Walker(WalkerError::NoAddressSpace { .. })
                    | ProbeError::Process(ProcessError::NoSuchProcess { .. }),
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn map_process(
        &mut self,
        number: u32,
        thinning: &mut u64,
        per_block: &mut BTreeMap<u64, u32>,
    ) -> Result<()> {
        let mut runs = std::mem::take(&mut self.runs);
        let ranges = std::mem::take(&mut self.ranges);
        let keep = |address: u64, frame: u64, nr_frames: u32| {
            let start = frame * PAGE_SIZE;
            let at = ranges.partition_point(|r| r.end <= start);
            if ranges.get(at).is_none_or(|r| r.start > start) {
                return;
            }
            *per_block.entry(frame / 512).or_default() += nr_frames;
            if nr_frames == 1 && !(frame / STRETCH_FRAMES).is_multiple_of(*thinning) {
                return;
            }
            match runs.last_mut() {
                Some(last)
                    if last.process == number
                        && last.frame + u64::from(last.nr_frames) == frame
                        && last.address + u64::from(last.nr_frames) * PAGE_SIZE == address =>
                {
                    last.nr_frames += nr_frames;
                }
                _ => runs.push(Run {
                    frame,
                    address,
                    process: number,
                    nr_frames,
                }),
            }
            if runs.len() > MAX_RUNS {
                *thinning *= 2;
                runs.retain(|run| {
                    run.nr_frames > 16 || (run.frame / STRETCH_FRAMES).is_multiple_of(*thinning)
                });
            }
        };
        let read = self.each_frame_of(number, keep);
        self.runs = runs;
        self.ranges = ranges;
        read
    }

    /// Passes to `see` the present pages of process `number`: address, frame, and the number of pages for which both
    /// are consecutive.
    fn each_frame_of(&mut self, number: u32, see: impl FnMut(u64, u64, u32)) -> Result<()> {
        let target = TargetId(number);
        let user = AddressRange::new(0, arch::user_end(self.inner.walker.format));
        let Some(blocks) = self.inner.occupied_blocks(target, &[user])? else {
            return Ok(());
        };
        self.inner.each_frame(target, &blocks, see).map(drop)
    }

    /// Returns the page that maps the sampled frame, and the frame.
    fn mapping_of(&self, address: u64) -> Option<(Sample, u64)> {
        let frame = address / PAGE_SIZE;
        let after = self.runs.partition_point(|run| run.frame <= frame);
        let holds = |run: &&Run| frame < run.frame + u64::from(run.nr_frames);
        let (run, frame) = match self.runs[..after].last().filter(holds) {
            Some(run) => (run, frame),
            None if self.facts.thinning > 1 => {
                let next = self.runs.get(after)?;
                (next.frame * PAGE_SIZE / BLOCK_SIZE == address / BLOCK_SIZE)
                    .then_some((next, next.frame))?
            }
            None => return None,
        };
        let page = run.address + (frame - run.frame) * PAGE_SIZE;
        Some((
            Sample {
                target: TargetId(run.process),
                address: page,
            },
            frame,
        ))
    }
}

impl AccessProbe for PhysicalProbe {
    type Error = ProbeError;

    fn arm(&mut self, samples: &[Sample]) -> Result<()> {
        let mut found: Vec<(Sample, u64, usize)> = samples
            .iter()
            .enumerate()
            .filter_map(|(i, sample)| {
                self.mapping_of(sample.address)
                    .map(|(page, frame)| (page, frame, i))
            })
            .collect();
        // The page-table probe works process by process.
        found.sort_unstable_by_key(|(page, ..)| (page.target, page.address));
        self.places.clear();
        self.places.resize(samples.len(), None);
        for (place, (.., i)) in found.iter().enumerate() {
            self.places[*i] = Some(place);
        }
        let (pages, frames): (Vec<Sample>, Vec<u64>) = found
            .into_iter()
            .map(|(page, frame, _)| (page, frame))
            .unzip();
        self.inner.arm_frames(&pages, frames)
    }

    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<()> {
        self.inner.check(&mut self.inner_touches)?;
        touches.clear();
        touches.extend(self.places.iter().map(|place| match place {
            Some(place) => self.inner_touches[*place],
            None => Touch::Unknown(Gap::NoMapping),
        }));
        Ok(())
    }

    fn cost(&self) -> Cost {
        self.inner.cost()
    }
}
