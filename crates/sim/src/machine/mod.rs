//! A machine with processes: page tables, faults, huge pages, swap and reclaim, as events of simulated time.
//!
//! Problem: a policy needs a trial before it acts on a real machine, also for machines that this project does not own.
//! The trial has to use the engine that would act, and the cost to a process has to be a result, not an input.
//!
//! Approach: every page of every process has a place: nowhere yet, in a frame, in swap or in its file. A page in a
//! frame has an accessed bit, which is drawn when it is read (`accessed`, [`pattern`]). A process has a *work clock*,
//! which stands still during faults. It is slower than the machine's clock by the cost of accesses (tiers and
//! translations: [`speed`]). The next access to a page that is not in memory is scheduled on the work clock, and faults
//! then. [`probe`] and [`actuator`] implement the engine's probe and actuator traits, for virtual and for physical
//! addresses. The kernel's own reclaim is in [`reclaim`], huge pages are in [`huge`].
//!
//! Limits: threads of a process share its faults evenly. The page cache has the pages of mapped files only, all clean.
//! Forks and shared memory are not simulated.

mod accessed;
mod actuator;
mod area;
mod check;
mod compact;
mod fault;
mod frames;
mod huge;
mod page_out;
pub mod pattern;
mod placing;
mod probe;
mod process;
mod reclaim;
mod run;
mod scatter;
mod speed;
mod swap;

use placing::{node_pages, place};

use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use crate::cost::{CompactionCosts, MachineCosts, THIS_MACHINE, THIS_MACHINES_COMPACTION};
use crate::memory::{BLOCK_PAGES, Memory, NodeSize, Owner, Page, Pfn};
use crate::statistics::Distribution;

pub use actuator::SimActuator;
pub use area::{AreaSpec, Use};
pub use compact::Defrag;
pub use fault::{FaultKind, InjectedFault};
pub use huge::ThpMode;
pub use pattern::{Pattern, Rates, Trace};
pub use probe::{ProbeState, SimProbe};
pub use process::{Losses, SimProcess, SimProcessSpec};
pub use speed::miss_share;
pub use swap::{Swap, SwapKind};

use accessed::PageBits;
use area::Area;
use compact::Compaction;
use node_pages::{FilePages, NodePages};
use place::Marks;

/// A node of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeSpec {
    /// Size in bytes; whole blocks of 4 MiB.
    pub size: u64,
    /// Latency of an access that misses the caches.
    pub latency: Nanos,
    /// Bandwidth in bytes a second; `None` if it is unlimited.
    pub bandwidth: Option<u64>,
    /// Bytes at the node's end that are for movable pages only (`movablecore`).
    pub movable: u64,
}

impl NodeSpec {
    /// Returns a node of `size` bytes, as fast as near memory is.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            latency: Nanos(90),
            bandwidth: None,
            movable: 0,
        }
    }
}

/// Rules of monitoring and acting where Isotherm and the kernel's DAMON differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Huge pages are made and split at once. The accesses to unmapped frames are unknown.
    #[default]
    Isotherm,
    /// `hugepage` and `nohugepage` only advise (`madvise`): existing huge pages stay. khugepaged and the first faults
    /// of blocks that lie whole within the range follow the advice. Unmapped frames count as not accessed.
    KernelDamon,
}

/// Hardware, settings and costs of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpec {
    /// CPUs that processes, monitors and the kernel's threads share.
    pub cpus: u32,
    /// Nodes, the nearest first.
    pub nodes: Vec<NodeSpec>,
    /// Swap and its size in bytes.
    pub swap: Option<(SwapKind, u64)>,
    /// Huge pages.
    pub thp: ThpMode,
    /// Faults that compact memory to get a huge page.
    pub defrag: Defrag,
    /// `vm.compaction_proactiveness`, 0 to 100.
    pub compaction_proactiveness: u32,
    /// Rules of monitoring and acting.
    pub rules: Rules,
    /// Whether pieces of 4 MiB of physical addresses are shuffled within their zone, as on a machine that has been in
    /// use. If not, frames are in the order of their addresses. The free lists here take the lowest frame, and the
    /// kernel's take the frame freed last.
    pub is_scattered: bool,
    /// CPUs that programs outside the simulation keep busy, each number from its moment on.
    pub others: Vec<(Nanos, f64)>,
    /// Costs of operations.
    pub costs: MachineCosts,
    /// Costs of compaction.
    pub compaction_costs: CompactionCosts,
    /// Seed of all random draws.
    pub seed: u64,
}

impl Default for MachineSpec {
    fn default() -> Self {
        Self {
            cpus: 2,
            nodes: vec![NodeSpec::new(8 << 30)],
            swap: None,
            thp: ThpMode::Madvise,
            defrag: Defrag::Madvise,
            compaction_proactiveness: 20,
            rules: Rules::default(),
            is_scattered: false,
            others: Vec::new(),
            costs: THIS_MACHINE,
            compaction_costs: THIS_MACHINES_COMPACTION,
            seed: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// Never used, or given back.
    Nowhere,
    Memory,
    Swap,
    /// In its file only.
    File,
}

/// CPU time and pages of the work that the kernel and Isotherm did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// CPU time of the kernel's reclaim, in the background and direct.
    pub reclaim_cpu: Nanos,
    /// CPU time of khugepaged.
    pub khugepaged_cpu: Nanos,
    /// CPU time of the compaction threads.
    pub kcompactd_cpu: Nanos,
    /// Time that faults, khugepaged and collapses by schemes spent in direct compaction.
    pub compaction_stall: Nanos,
    /// Huge pages that direct compaction made.
    pub compaction_successes: u64,
    /// Faults and collapses whose direct compaction made no huge page.
    pub compaction_failures: u64,
    /// Huge pages that a first fault brought.
    pub huge_faults: u64,
    /// First faults that wanted a huge page and got none.
    pub huge_fallbacks: u64,
    /// CPU time of actions.
    pub acting_cpu: Nanos,
    /// Pages that the kernel's reclaim evicted.
    pub reclaimed_pages: u64,
    /// Pages that went to swap, for any reason.
    pub swapped_out: u64,
    /// Pages read back from swap.
    pub swapped_in: u64,
    /// Processes that were killed for want of memory.
    pub oom_kills: u64,
}

/// A simulated machine.
#[derive(Clone, Debug)]
pub struct SimMachine {
    pub(crate) memory: Memory,
    spec: MachineSpec,
    pub(crate) now: Nanos,
    /// Mappings, in the order of their pages.
    areas: Vec<Area>,
    area_ends: Vec<Page>,
    processes: Vec<SimProcess>,
    place: Vec<Place>,
    accessed: PageBits,
    /// Number of times that accessed bits were set other than by a draw.
    touches: u64,
    /// Pages that the program itself has filled; pages that a huge page only added are not.
    filled: PageBits,
    /// Per block of 512 pages: whether one entry maps it, and whether it has a page table.
    huge: Vec<bool>,
    has_table: Vec<bool>,
    /// Per block: the last advice of a scheme about huge pages.
    advised: Vec<Option<bool>>,
    swap: Option<Swap>,
    faults: Vec<InjectedFault>,
    compaction: Compaction,
    /// Watermarks per zone.
    marks: Vec<Marks>,
    /// The piece of frames at each piece of physical addresses; empty if no frames are shuffled.
    scatter: Vec<u32>,
    /// One flag per node.
    is_kswapd_awake: Vec<bool>,
    /// The frame that reclaim scans next, per node.
    clock_hands: Vec<Pfn>,
    files: FilePages,
    /// Reclaim runs on each node since the last that reclaimed a page.
    failures: Vec<u32>,
    /// The block that khugepaged scans next.
    next_collapse: usize,
    khugepaged_due: Nanos,
    speeds_due: Nanos,
    /// Factor by which processes are slower because CPUs are short; 1 if they are not.
    pub(crate) contention: f64,
    busy_before: Nanos,
    /// CPU time of actions that processes have lost directly.
    acting_beside: Nanos,
    /// CPU time of programs outside the simulation, in seconds.
    others_cpu: f64,
    /// CPU time that monitors report.
    pub(crate) monitor_cpu: Nanos,
    stats: MachineStats,
    /// Time that each first fault of a huge page took.
    huge_faults: Vec<Nanos>,
    random: Pcg64Mcg,
}

const BLOCK: Page = BLOCK_PAGES as Page;
/// Up to this number of mappings, counting them is faster than a search.
const FEW_AREAS: usize = 16;

impl SimMachine {
    /// Returns a machine on which nothing runs.
    pub fn new(spec: MachineSpec) -> Self {
        let nodes = spec.nodes.iter().enumerate();
        let sizes: Vec<NodeSize> = nodes.map(|(i, node)| place::zones(i, node)).collect();
        let mut memory = Memory::new(&sizes);
        let marks = place::marks(&memory);
        for (zone, marks) in marks.iter().enumerate() {
            memory.set_watermark(zone, marks.min);
        }
        let nodes = 0..memory.nr_nodes();
        let clock_hands: Vec<Pfn> = nodes.map(|node| memory.frames_of(node).start).collect();
        let compaction = Compaction::new(&memory, spec.compaction_proactiveness);
        let mut random = Pcg64Mcg::new(u128::from(spec.seed) << 1 | 1);
        let scatter = if spec.is_scattered {
            scatter::pieces(&memory, &mut random)
        } else {
            Vec::new()
        };
        let swap = spec.swap.map(|(kind, bytes)| Swap::new(kind, bytes));
        Self {
            memory,
            now: Nanos(0),
            areas: Vec::new(),
            area_ends: Vec::new(),
            processes: Vec::new(),
            place: Vec::new(),
            accessed: PageBits::default(),
            touches: 0,
            filled: PageBits::default(),
            huge: Vec::new(),
            has_table: Vec::new(),
            advised: Vec::new(),
            swap,
            faults: Vec::new(),
            marks,
            scatter,
            compaction,
            is_kswapd_awake: vec![false; clock_hands.len()],
            failures: vec![0; clock_hands.len()],
            files: FilePages::new(clock_hands.len()),
            clock_hands,
            next_collapse: 0,
            khugepaged_due: huge::SCAN_PERIOD,
            speeds_due: Nanos(0),
            contention: 1.0,
            busy_before: Nanos(0),
            acting_beside: Nanos(0),
            others_cpu: 0.0,
            monitor_cpu: Nanos(0),
            stats: MachineStats::default(),
            huge_faults: Vec::new(),
            random,
            spec,
        }
    }

    /// Starts a process. Its target number is its index among all processes.
    pub fn start(&mut self, mut spec: SimProcessSpec) -> TargetId {
        let index = self.processes.len();
        let id = TargetId(index as u32);
        let areas = std::mem::take(&mut spec.areas);
        let mut process = SimProcess::new(spec, self.now);
        for area in areas {
            let pages = self.add_pages(area.range);
            process.add(self.areas.len(), &area, pages.clone());
            self.area_ends.push(pages.end);
            let nodes = self.spec.nodes.len();
            let holdings =
                NodePages::new(nodes, area.purpose == Use::File, &pages, &mut self.files);
            let is_ever_accessed = area.pattern.is_ever_accessed();
            self.areas.push(Area {
                spec: area,
                process: index,
                clear_since: vec![0; if is_ever_accessed { pages.len() } else { 0 }],
                span: None,
                pages,
                holdings,
            });
        }
        process.finish_layout(&self.areas);
        self.processes.push(process);
        self.speeds_due = self.now;
        if self.processes[index].spec.has_run {
            for pages in self.processes[index].take_first_fills() {
                self.fill(index, pages);
            }
            self.processes[index].forget_losses();
        }
        id
    }

    /// Adds the pages of a range, so that blocks of addresses are blocks of pages.
    fn add_pages(&mut self, range: AddressRange) -> std::ops::Range<Page> {
        let lead = range.start % BLOCK_SIZE / PAGE_SIZE;
        let count = range.len() / PAGE_SIZE;
        let whole = (lead + count).next_multiple_of(BLOCK_PAGES);
        let pages = self.memory.add_pages(whole);
        let end = pages.end as usize;
        self.place.resize(end, Place::Nowhere);
        self.accessed.grow(end);
        self.filled.grow(end);
        let blocks = end / BLOCK_PAGES as usize;
        self.huge.resize(blocks, false);
        self.has_table.resize(blocks, false);
        self.advised.resize(blocks, None);
        pages.start + lead as Page..pages.start + (lead + count) as Page
    }

    /// Sets the faults that are injected, with their times.
    pub fn set_faults(&mut self, faults: Vec<InjectedFault>) {
        self.faults = faults;
    }

    /// Returns the simulated time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Returns all processes that ever ran, by their target numbers.
    pub fn processes(&self) -> &[SimProcess] {
        &self.processes
    }

    /// Returns the machine's specification.
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Returns the physical memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the memory that is not free, in bytes: of processes, files and the pool of zram.
    pub fn used(&self) -> u64 {
        (self.memory.pages() - self.memory.free_pages()) * PAGE_SIZE
    }

    /// Returns the swap, if there is any.
    pub fn swap(&self) -> Option<&Swap> {
        self.swap.as_ref()
    }

    /// Returns the counters of work done so far.
    pub fn stats(&self) -> MachineStats {
        self.stats
    }

    /// Returns the durations of first faults that brought a huge page, in microseconds.
    pub fn huge_fault_latency(&self) -> Distribution {
        let us = self.huge_faults.iter().map(|took| took.0 as f64 / 1e3);
        Distribution::of(us.collect())
    }

    fn frame_at(&self, address: u64) -> Pfn {
        let frame = address / PAGE_SIZE;
        match self.scatter.get((frame / scatter::PIECE) as usize) {
            Some(piece) => u64::from(*piece) * scatter::PIECE + frame % scatter::PIECE,
            None => frame,
        }
    }

    /// Returns the node that a frame is on.
    pub fn node_of(&self, frame: Pfn) -> u32 {
        self.memory.node_at(frame)
    }

    /// Returns a node's physical addresses.
    pub fn physical_range(&self, node: u32) -> AddressRange {
        let frames = self.memory.frames_of(node);
        AddressRange::new(frames.start * PAGE_SIZE, frames.end * PAGE_SIZE)
    }

    /// Returns the name, range and use of each mapping of a process, in address order.
    pub fn mappings(
        &self,
        target: TargetId,
    ) -> impl Iterator<Item = (&str, AddressRange, Use)> + '_ {
        let areas = self.processes[target.0 as usize].areas().iter();
        areas.map(|area| {
            let spec = &self.areas[*area].spec;
            (spec.name.as_str(), spec.range, spec.purpose)
        })
    }

    fn area_at(&self, page: Page) -> usize {
        if self.area_ends.len() <= FEW_AREAS {
            // The next page's mapping is unpredictable, so this has no branches.
            let ends = self.area_ends.iter();
            return ends.map(|end| usize::from(*end <= page)).sum();
        }
        self.area_ends.partition_point(|end| *end <= page)
    }

    fn is_running(&self, process: usize) -> bool {
        let process = self.processes.get(process);
        process.is_some_and(SimProcess::is_running)
    }

    fn page_at(&self, target: TargetId, address: u64) -> Option<Page> {
        let areas = self.processes.get(target.0 as usize)?.areas();
        let at = areas.partition_point(|area| self.areas[*area].spec.range.end <= address);
        let area = &self.areas[*areas.get(at)?];
        let range = area.spec.range;
        (range.start <= address)
            .then(|| area.pages.start + ((address - range.start) / PAGE_SIZE) as Page)
    }

    /// Returns the first page of a process within the block at an address, if it maps any of it.
    fn page_in(&self, target: TargetId, block: u64) -> Option<Page> {
        let areas = self.processes.get(target.0 as usize)?.areas();
        let at = areas.partition_point(|area| self.areas[*area].spec.range.end <= block);
        let start = self.areas[*areas.get(at)?].spec.range.start;
        let address = start.max(block);
        (address < block + BLOCK_SIZE)
            .then(|| self.page_at(target, address))
            .flatten()
    }

    fn page_of(&self, frame: Pfn) -> Option<Page> {
        match self.memory.owner(frame) {
            Owner::Page(page) => Some(page),
            _ => None,
        }
    }

    fn is_huge(&self, page: Page) -> bool {
        self.huge[(page / BLOCK) as usize]
    }

    /// Returns the pages that share an accessed bit with `page`.
    fn unit(&self, page: Page) -> std::ops::Range<Page> {
        if self.is_huge(page) {
            block_at(block_start(page))
        } else {
            page..page + 1
        }
    }

    fn release_swap(&mut self) {
        if let Some(swap) = &mut self.swap {
            swap.release(&mut self.memory);
        }
    }

    fn draw(&mut self) -> f64 {
        draw(&mut self.random)
    }

    fn set_place(&mut self, page: Page, place: Place) {
        let was = self.place[page as usize];
        self.set_places(page..page + 1, was, place);
    }

    /// Changes the places of pages of one mapping, which are all `was`, and updates the counters of its process.
    fn set_places(&mut self, pages: std::ops::Range<Page>, was: Place, is: Place) {
        let process = self.areas[self.area_at(pages.start)].process;
        self.processes[process].count(was, is, u64::from(pages.end - pages.start));
        self.place[pages.start as usize..pages.end as usize].fill(is);
    }
}

fn block_start(page: Page) -> Page {
    page / BLOCK * BLOCK
}

fn block_at(first: Page) -> std::ops::Range<Page> {
    first..first + BLOCK
}

fn draw(random: &mut Pcg64Mcg) -> f64 {
    f64::from(random.next_u32()) / (f64::from(u32::MAX) + 1.0)
}
