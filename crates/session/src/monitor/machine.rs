//! Memory of the machine by owner, class and time of the last access.
//!
//! Problem: the sum of all processes' mapped memory exceeds the memory in use, as they share much of it. And much of a
//! machine's memory is not mapped at all.
//!
//! Approach: at intervals all page tables are read once more for their frame numbers. The monitor's state of each page
//! is entered for its frame ([`isotherm_engine::frames`]). The kernel's counts of each node are reported beside it, so
//! that all memory is accounted for.
//!
//! [`CacheView`] reports the unmapped page cache; without it, the kernel's lists do.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use isotherm_engine::frames::{AgeBytes, FrameMap, MappedClass, Mapper, NR_MAPPERS, PageAge};
use isotherm_engine::table::TableMonitor;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::node::Zone;
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_linux::process::merged_pages;
use isotherm_linux::{cgroup, node};
use isotherm_record::{
    ChargedMemory, Item, MachineSample, MappedMemory, NodeMemory, TargetGroup, ZoneMemory,
};

use super::CacheView;
use super::areas::Areas;
use super::by_frame::{ByFrame, frames};
use super::huge::HugePages;
use crate::targets::TargetSet;

/// Shortest time between two scans.
const INTERVAL_MIN: Nanos = Nanos::from_millis(5_000);
/// Shortest time between two scans if memory is recorded by frame.
const INTERVAL_MIN_BY_FRAME: Nanos = Nanos::from_millis(1_000);

/// Memory that samples cover.
enum Scope {
    /// All of each node.
    WholeNodes,
    /// A part of a node; there are no samples.
    PartOfNodes,
    /// Memory of the targets, and the charge of the control group at this directory.
    Targets {
        charged: Option<PathBuf>,
        /// Whether the session has other contexts. Reports sum up samples, so each context needs one.
        is_one_of_several: bool,
    },
}

pub(crate) struct MachineView {
    next: Nanos,
    /// Ends of the last two intervals, the later first.
    ends: [Nanos; 2],
    is_first: bool,
    frames: FrameMap,
    zones: Vec<Zone>,
    /// Watched ranges of RAM with their nodes, as frames in ascending order.
    nodes: Vec<(u32, Range<u64>)>,
    is_alone: bool,
    scope: Scope,
    /// Physical memory as a target, if memory is recorded by frame.
    pub(super) by_frame: Option<ByFrame>,
    groups: BTreeMap<TargetId, String>,
    huge: HugePages,
    /// Page cache, if it is watched.
    pub(crate) page_cache: Option<CacheView>,
}

impl MachineView {
    pub(crate) fn new(now: Nanos) -> anyhow::Result<Self> {
        let nodes = ram_by_node()?;
        Ok(Self {
            next: now,
            ends: [now; 2],
            is_first: true,
            frames: FrameMap::default(),
            zones: node::zones()?,
            is_alone: nodes.iter().all(|(node, _)| *node == nodes[0].0),
            nodes,
            scope: Scope::WholeNodes,
            by_frame: None,
            groups: BTreeMap::new(),
            huge: HugePages::default(),
            page_cache: None,
        })
    }

    /// Restricts the view to these ranges of RAM and makes them a target. With `is_part` they are only a part of a
    /// node.
    pub(crate) fn told_by_frame(
        mut self,
        ram: &[AddressRange],
        by_frame: ByFrame,
        is_part: bool,
    ) -> Self {
        let watched: Vec<Range<u64>> = ram.iter().map(frames).collect();
        let within = |(node, of_node): &(u32, Range<u64>)| {
            let node = *node;
            let parts = watched.iter().map(|range| {
                (
                    node,
                    range.start.max(of_node.start)..range.end.min(of_node.end),
                )
            });
            parts
                .filter(|(_, part)| !part.is_empty())
                .collect::<Vec<_>>()
        };
        self.nodes = self.nodes.iter().flat_map(within).collect();
        if is_part {
            self.scope = Scope::PartOfNodes;
        }
        // The first scan comes after the first results.
        self.next = self.next + INTERVAL_MIN_BY_FRAME;
        self.by_frame = Some(by_frame);
        self
    }

    /// Restricts reports to the targets' memory, and adds the charge of the control group at `charged`.
    pub(crate) fn of_group(mut self, charged: Option<PathBuf>, is_one_of_several: bool) -> Self {
        self.scope = Scope::Targets {
            charged,
            is_one_of_several,
        };
        self
    }

    /// Returns the start of the target of physical memory on the first call.
    pub(crate) fn start(&mut self, now: Nanos) -> Option<Item> {
        self.by_frame.as_mut()?.start(now)
    }

    pub(crate) fn look(
        &mut self,
        now: Nanos,
        probe: &mut PageTableProbe,
        monitor: &TableMonitor,
        targets: &TargetSet,
    ) -> Result<Vec<Item>, ProbeError> {
        self.ends = [now, self.ends[0]];
        if now >= self.next && self.is_one_process(targets) {
            self.next = now + INTERVAL_MIN_BY_FRAME;
        }
        if now < self.next {
            return Ok(self.look_at_page_cache(now, monitor).into_iter().collect());
        }
        let before = process_cpu();
        let ids = self.put_down(now, now, probe, monitor, targets)?;
        let paused = process_cpu();
        let mut items: Vec<Item> = self.look_at_page_cache(now, monitor).into_iter().collect();
        let resumed = process_cpu();
        items.extend(self.tell(now, &ids, probe, targets)?);
        let spent = paused.since(before) + process_cpu().since(resumed);
        // The allocation of the frame map happens only once.
        let wait = if std::mem::take(&mut self.is_first) {
            INTERVAL_MIN_BY_FRAME
        } else {
            let least = if self.by_frame.is_some() {
                INTERVAL_MIN_BY_FRAME
            } else {
                INTERVAL_MIN
            };
            // A single process without children leaves the share for new processes unused.
            let rate = monitor.rate(|shares| match shares.frames {
                0.0 => shares.follow,
                frames => frames,
            });
            least.max(Nanos((spent.0 as f64 / rate) as u64))
        };
        self.next = now + wait;
        Ok(items)
    }

    /// Reports the results of the last interval, which may have been very short. Pages touched in the interval before
    /// count as touched, too.
    pub(crate) fn last_look(
        &mut self,
        now: Nanos,
        probe: &mut PageTableProbe,
        monitor: &TableMonitor,
        targets: &TargetSet,
    ) -> Result<Vec<Item>, ProbeError> {
        if self.is_one_process(targets) {
            return Ok(Vec::new());
        }
        let ids = self.put_down(now, self.ends[1], probe, monitor, targets)?;
        self.tell(now, &ids, probe, targets)
    }

    /// Whether snapshots of the targets report all memory: one process maps each frame once unless KSM has merged some.
    fn is_one_process(&self, targets: &TargetSet) -> bool {
        let Scope::Targets {
            charged: None,
            is_one_of_several,
        } = self.scope
        else {
            return false;
        };
        let mut ids = targets.ids();
        match (ids.next(), ids.next()) {
            // Nothing is left to count.
            (None, _) => true,
            (Some(_), None) if !is_one_of_several => {
                targets.pids().all(|(_, pid)| merged_pages(pid) == 0)
            }
            _ => false,
        }
    }

    /// Enters the monitor's state of each page for its frame. Returns the targets by their numbers as mappers. Pages
    /// accessed after `since`, or after the last snapshot of physical memory, count as touched.
    fn put_down(
        &mut self,
        now: Nanos,
        since: Nanos,
        probe: &mut PageTableProbe,
        monitor: &TableMonitor,
        targets: &TargetSet,
    ) -> Result<Vec<TargetId>, ProbeError> {
        self.frames.clear();
        self.huge.begin();
        let ids: Vec<TargetId> = targets.ids().take(NR_MAPPERS).collect();
        let since = self.by_frame.as_ref().map_or(since, |memory| memory.since);
        for (mapper, id) in (0..).zip(&ids) {
            self.add_target(mapper, *id, since..now, probe, monitor, targets)?;
        }
        Ok(ids)
    }

    fn tell(
        &mut self,
        now: Nanos,
        ids: &[TargetId],
        probe: &mut PageTableProbe,
        targets: &TargetSet,
    ) -> Result<Vec<Item>, ProbeError> {
        let mut items = Vec::new();
        match &self.scope {
            Scope::PartOfNodes => {}
            Scope::WholeNodes => {
                let huge = self.huge.look(probe)?;
                let sample = self.sample(ids, now, targets);
                items.push(Item::Machine(MachineSample { huge, ..sample }));
            }
            Scope::Targets { charged, .. } => {
                let charged = charged.as_deref().map(|group| ChargedMemory {
                    group: group.display().to_string(),
                    charge: cgroup::charge(group),
                });
                items.push(Item::Machine(MachineSample {
                    charged,
                    nodes: Vec::new(),
                    zones: Vec::new(),
                    ..self.sample(ids, now, targets)
                }));
            }
        }
        if let Some(by_frame) = &mut self.by_frame {
            // Sums list the page cache beside mapped memory; by address it is part of it.
            if let Some(page_cache) = &self.page_cache {
                page_cache.tell_frames(&self.nodes, &mut self.frames);
            }
            items.push(by_frame.snapshot(&mut self.frames, now));
        }
        Ok(items)
    }

    /// Makes the sample; `ids` are the targets by their numbers as mappers.
    fn sample(&mut self, ids: &[TargetId], now: Nanos, targets: &TargetSet) -> MachineSample {
        let zone_of = |frame: u64| {
            let is_in = |zone: &Zone| zone.range.contains(frame * PAGE_SIZE);
            { self.zones.iter().position(is_in) }.map_or(u32::MAX, |at| at as u32)
        };
        let mut of_zones = vec![AgeBytes::default(); self.zones.len()];
        let mut sums: BTreeMap<(Mapper, u32, MappedClass), AgeBytes> = BTreeMap::new();
        for ((mapper, zone, class), bytes) in self.frames.sums(zone_of) {
            let node = self.zones.get(zone as usize).map_or(0, |zone| zone.node);
            sums.entry((mapper, node, class)).or_default().add(&bytes);
            if let Some(sum) = of_zones.get_mut(zone as usize) {
                sum.add(&bytes);
            }
        }
        let mapped = sums.into_iter();
        let mapped = mapped.map(|((mapper, node, class), bytes)| MappedMemory {
            target: match mapper {
                Mapper::One(mapper) => Some(ids[usize::from(mapper)]),
                Mapper::Several | Mapper::Nobody => None,
            },
            node,
            class,
            bytes,
        });
        let mapped = mapped.collect();
        // Zones are read anew for their present counts.
        let zones = node::zones().unwrap_or_default();
        MachineSample {
            time: now,
            nodes: self.node_memory(&zones),
            zones: self.zone_memory(&zones, &of_zones),
            mapped,
            groups: self.new_groups(targets),
            page_cache: { self.page_cache.as_mut() }.and_then(|cache| cache.reported.take()),
            ..MachineSample::default()
        }
    }

    /// Scans the page cache. Returns a note with the error when that is no longer possible.
    fn look_at_page_cache(&mut self, now: Nanos, monitor: &TableMonitor) -> Option<Item> {
        let page_cache = self.page_cache.as_mut()?;
        let rate = |is_little_known| {
            monitor.rate(|shares| {
                if is_little_known {
                    shares.new_page_cache
                } else {
                    shares.page_cache
                }
            })
        };
        let spare = monitor.spare();
        let error = page_cache
            .step(now, rate, spare, &self.nodes, &self.frames)
            .err()?;
        self.page_cache = None;
        let text = format!("the page cache is not watched any more: {error}");
        Some(Item::Note { time: now, text })
    }

    /// Enters a target's mapped pages. Pages accessed in `touched` count as touched.
    fn add_target(
        &mut self,
        mapper: u16,
        id: TargetId,
        touched: Range<Nanos>,
        probe: &mut PageTableProbe,
        monitor: &TableMonitor,
        targets: &TargetSet,
    ) -> Result<(), ProbeError> {
        let blocks = monitor.blocks(id);
        let mut areas = Areas::new(targets.areas(id));
        let (mut of, mut ages) = (u64::MAX, [PageAge::Unknown; PAGES_PER_BLOCK]);
        let (frames, nodes, huge) = (&mut self.frames, &self.nodes, &mut self.huge);
        probe.each_frame(id, &blocks, |address, frame, nr| {
            let Some(class) = areas.class_at(address) else {
                return;
            };
            if nr == PAGES_PER_BLOCK as u32 && class == MappedClass::Anonymous {
                huge.add(id, address);
            }
            let block = address & !(BLOCK_SIZE - 1);
            if of != block {
                let known = monitor.page_ages(id, block, touched.start, touched.end);
                (of, ages) = (block, known.unwrap_or([PageAge::Unknown; PAGES_PER_BLOCK]));
            }
            let first = ((address - block) / PAGE_SIZE) as usize;
            for (page, frame) in (first..first + nr as usize).zip(frame..) {
                if node_in(nodes, frame).is_some() {
                    frames.add(mapper, class, frame, ages[page]);
                }
            }
        })?;
        Ok(())
    }

    /// Returns the kernel's counts of each zone of the watched nodes, and the `mapped` memory there.
    fn zone_memory(&self, now: &[Zone], mapped: &[AgeBytes]) -> Vec<ZoneMemory> {
        let zones = self.zones.iter().zip(mapped);
        let watched =
            zones.filter(|(zone, _)| self.nodes.iter().any(|(node, _)| *node == zone.node));
        watched
            .map(|(zone, mapped)| {
                let is_it = |now: &&Zone| (now.node, &now.name) == (zone.node, &zone.name);
                let zone = now.iter().find(is_it).unwrap_or(zone);
                ZoneMemory {
                    node: zone.node,
                    zone: zone.name.clone(),
                    present: zone.present,
                    managed: zone.managed,
                    free: zone.free + zone.free_on_lists,
                    mapped: *mapped,
                }
            })
            .collect()
    }

    fn node_memory(&self, zones: &[Zone]) -> Vec<NodeMemory> {
        let mut nodes: Vec<u32> = self.nodes.iter().map(|(node, _)| *node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let reported = nodes.into_iter().map(|node| {
            let zones = zones.iter().filter(|zone| zone.node == node);
            let reported = node_memory(node, self.is_alone);
            zones.fold(reported, |all, zone| NodeMemory {
                free: all.free + zone.free_on_lists,
                compressed_swap: all.compressed_swap + zone.compressed_swap,
                ..all
            })
        });
        reported.collect()
    }

    /// Returns the control groups of new targets, and of those that have changed it.
    fn new_groups(&mut self, targets: &TargetSet) -> Vec<TargetGroup> {
        let pids = targets.pids();
        let groups = pids.filter_map(|(target, pid)| Some((target, cgroup::of_process(pid)?)));
        let before = std::mem::replace(&mut self.groups, groups.collect());
        let all = self.groups.iter();
        let new = all.filter(|(target, group)| before.get(*target) != Some(*group));
        new.map(|(target, group)| TargetGroup {
            target: *target,
            group: group.clone(),
        })
        .collect()
    }
}

/// Returns the nodes' ranges of RAM as frames, in ascending order.
pub(super) fn ram_by_node() -> anyhow::Result<Vec<(u32, Range<u64>)>> {
    let ram = node::all()?.into_iter();
    let mut nodes: Vec<_> = ram.map(|(node, range)| (node, frames(&range))).collect();
    nodes.sort_unstable_by_key(|(_, frames)| frames.start);
    Ok(nodes)
}

/// Returns the node of a frame; `None` if it is no RAM.
pub(super) fn node_in(nodes: &[(u32, Range<u64>)], frame: u64) -> Option<u32> {
    let at = nodes.partition_point(|(_, frames)| frames.end <= frame);
    let (node, frames) = nodes.get(at)?;
    frames.contains(&frame).then_some(*node)
}

/// Returns the kernel's counts of a node. On a machine with one node they are the machine's: some virtual machines keep
/// only these right.
fn node_memory(node: u32, is_alone: bool) -> NodeMemory {
    let is_numa = !is_alone;
    let meminfo = if is_numa {
        Meminfo::of_node(node)
    } else {
        Meminfo::read()
    };
    let get = |name: &str| meminfo.get(name).unwrap_or(0);
    let shared = get("Shmem");
    let cached = if is_numa {
        get("FilePages").saturating_sub(get("SwapCached"))
    } else {
        get("Cached") + get("Buffers")
    };
    NodeMemory {
        node,
        total: get("MemTotal"),
        free: get("MemFree"),
        anonymous: get("AnonPages"),
        shared,
        files: cached.saturating_sub(shared),
        active_files: get("Active(file)"),
        mapped: get("Mapped"),
        slab: get("Slab"),
        reclaimable_slab: get("SReclaimable"),
        page_tables: get("PageTables") + get("SecPageTables"),
        kernel_stacks: get("KernelStack"),
        compressed_swap: 0,
        hugetlb: if is_numa {
            Meminfo::hugetlb_of_node(node)
        } else {
            get("Hugetlb")
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_by_their_ranges() {
        let nodes = [(0, 1..10), (1, 10..20), (0, 30..40)];
        let check = |frame, wanted| assert_eq!(node_in(&nodes, frame), wanted, "{frame}");
        check(0, None);
        check(1, Some(0));
        check(10, Some(1));
        check(25, None);
        check(39, Some(0));
        check(40, None);
    }

    #[test]
    fn the_kernels_accounts_do_not_exceed_the_node() {
        let nodes = node::all().unwrap_or_default();
        let Some((node, _)) = nodes.first() else {
            eprintln!("SKIP the_kernels_accounts_do_not_exceed_the_node: not root");
            return;
        };
        let memory = node_memory(*node, true);
        let used =
            memory.anonymous + memory.shared + memory.files + memory.slab + memory.page_tables;
        let fits = memory.free > 0 && used + memory.free <= memory.total;
        assert!(fits, "{memory:?}");
    }
}
