//! The machine report: the use of the machine's memory by class, process, control group and node, and the idle part of
//! it.
//!
//! JSON: [`MachineReport`]. The target of a scope is ignored, because memory belongs to the machine. The report shows
//! the last sample of the scope.

mod class;

use std::collections::BTreeMap;

use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{Nanos, TargetId};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use isotherm_record::item::{Header, Item};
use isotherm_record::machine::{
    CacheSample, CachedFile, HugeMemory, MachineSample, NodeMemory, ZoneMemory,
};

pub use class::MemoryClass;

/// Memory of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClassMemory {
    /// The class.
    pub class: MemoryClass,
    /// All bytes of the class.
    pub bytes: u64,
    /// Bytes by age, for classes of user memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ages: Option<AgeBytes>,
    /// Bytes on the kernel's active lists (mapped files included), for the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_bytes: Option<u64>,
}

/// The memory of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineNode {
    /// Number of the node.
    pub node: u32,
    /// All memory of the node.
    pub total_bytes: u64,
    /// Memory that is not free.
    pub used_bytes: u64,
    /// Memory by class.
    pub classes: Vec<ClassMemory>,
}

/// The memory of a zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineZone {
    /// Number of the node.
    pub node: u32,
    /// Name of the zone.
    pub zone: String,
    /// All bytes present in the zone.
    pub present_bytes: u64,
    /// Bytes that the kernel reserved at boot.
    pub reserved_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes that processes map, by age.
    pub mapped: AgeBytes,
    /// The remaining bytes: unmapped page cache and kernel memory.
    pub other_bytes: u64,
}

/// Memory that only one process maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineProcess {
    /// The process.
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Control group of the process.
    pub group: Option<String>,
    /// Mapped bytes.
    pub bytes: u64,
    /// The bytes by age.
    pub ages: AgeBytes,
}

/// Memory that the processes of a control group map exclusively.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineGroup {
    /// Path of the control group.
    pub group: String,
    /// Number of processes in it.
    pub nr_processes: usize,
    /// Mapped bytes.
    pub bytes: u64,
    /// The bytes by age.
    pub ages: AgeBytes,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineReport {
    /// `machine`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Time of the sample.
    pub time_ns: Nanos,
    /// All memory.
    pub total_bytes: u64,
    /// Memory that is not free.
    pub used_bytes: u64,
    /// Share of used memory with a known use, 0 to 1: memory mapped by watched processes, the page cache, and named
    /// kernel memory.
    pub known_use: f64,
    /// Share of user memory with a known age, 0 to 1.
    pub known_age: f64,
    /// Memory by class, all nodes together.
    pub classes: Vec<ClassMemory>,
    /// Memory by node.
    pub nodes: Vec<MachineNode>,
    /// Memory by zone.
    pub zones: Vec<MachineZone>,
    /// Memory that each process maps exclusively, the largest first.
    pub processes: Vec<MachineProcess>,
    /// Memory that several processes map.
    pub several: AgeBytes,
    /// Memory by control group, the largest first.
    pub groups: Vec<MachineGroup>,
    /// Huge pages by process, the largest waste first.
    pub huge_pages: Vec<MachineHuge>,
    /// Unmapped page cache, where it was scanned.
    pub page_cache: Option<MachineCache>,
}

/// The huge pages of a process, of any origin; private anonymous memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineHuge {
    /// The process.
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Bytes in huge pages.
    pub bytes: u64,
    /// Bytes that were scanned for pages of zeros; the rest is unknown.
    pub read_bytes: u64,
    /// Scanned bytes that were never written.
    pub unused_bytes: u64,
    /// Estimated bytes that were never written, if the rest is like the scanned part; `null` where nothing was scanned.
    pub waste_bytes: Option<u64>,
}

/// Page cache that no process maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineCache {
    /// Time of the scan.
    pub time_ns: Nanos,
    /// Duration of a scan of all memory, which is the precision of the ages.
    pub took_ns: Nanos,
    /// All bytes of it.
    pub bytes: CachedBytes,
    /// Bytes by control group, the largest first.
    pub groups: Vec<MachineCacheGroup>,
    /// The largest files.
    pub files: Vec<CachedFile>,
    /// Number of all files.
    pub nr_files: u64,
}

/// Page cache that is charged to a control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineCacheGroup {
    /// Path of the control group; `null` where it was removed or is unknown.
    pub group: Option<String>,
    /// Charged bytes.
    pub bytes: CachedBytes,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    context: RecordContext,
    groups: BTreeMap<TargetId, String>,
    last: Option<(Nanos, MachineSample)>,
    page_cache: Option<(Nanos, CacheSample)>,
}

impl Machine {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            ..Self::default()
        }
    }
}

impl Accumulate for Machine {
    type Report = Option<MachineReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        let Item::Machine(sample) = item else { return };
        if sample.is_of_targets() {
            return;
        }
        for of in &sample.groups {
            self.groups.insert(of.target, of.group.clone());
        }
        if self.context.admits_time(sample.time) {
            let time = self.context.offset(sample.time);
            if let Some(page_cache) = &sample.page_cache {
                let time = self.context.offset(page_cache.time);
                self.page_cache = Some((time, page_cache.clone()));
            }
            self.last = Some((time, sample.clone()));
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<MachineReport> {
        self.context.end(end);
        let (time_ns, sample) = self.last.as_ref()?;
        let cache = self.page_cache.as_ref().map(|(_, cache)| cache);
        let nodes = sample.nodes.iter().map(|node| node_of(node, sample, cache));
        let nodes: Vec<MachineNode> = nodes.collect();
        let classes = sum_of(&nodes);
        let bytes_of = |class| {
            let of_class = classes.iter().find(|of| of.class == class);
            of_class.map_or(0, |of| of.bytes)
        };
        let total_bytes = saturating_sum(nodes.iter().map(|node| node.total_bytes));
        let used_bytes = total_bytes.saturating_sub(bytes_of(MemoryClass::Free));
        let seen = saturating_sum(sample.mapped.iter().map(|of| of.bytes.total()));
        let mapped = [
            MemoryClass::Anonymous,
            MemoryClass::MappedFiles,
            MemoryClass::SharedMemory,
        ];
        let unseen = saturating_sum(mapped.map(bytes_of)).saturating_sub(seen);
        let unknown_use = unseen.saturating_add(bytes_of(MemoryClass::Other));
        let user = classes.iter().filter_map(|class| class.ages.as_ref());
        let user: AgeBytes = user.sum();
        let several = sample.mapped.iter().filter(|of| of.target.is_none());
        let several = several.map(|memory| &memory.bytes).sum();
        let processes = self.processes(sample);
        Some(MachineReport {
            report: "machine",
            version: crate::VERSION,
            record: self.context.record_info(),
            time_ns: *time_ns,
            total_bytes,
            used_bytes,
            known_use: 1.0 - share(unknown_use, used_bytes),
            known_age: 1.0 - share(user.unknown, user.total()),
            nodes,
            zones: sample.zones.iter().map(zone_of).collect(),
            groups: groups(&processes),
            huge_pages: self.huge_pages(sample),
            processes,
            several,
            classes,
            page_cache: { self.page_cache.as_ref() }.map(|(time, cache)| page_cache(*time, cache)),
        })
    }
}

impl Machine {
    fn huge_pages(&self, sample: &MachineSample) -> Vec<MachineHuge> {
        let of = |huge: &HugeMemory| MachineHuge {
            target: self.context.target_info(huge.target),
            bytes: huge.bytes,
            read_bytes: huge.read,
            unused_bytes: huge.unused,
            waste_bytes: huge.estimate(),
        };
        let mut all: Vec<MachineHuge> = sample.huge.iter().map(of).collect();
        all.sort_by_key(|huge| std::cmp::Reverse((huge.waste_bytes, huge.bytes)));
        all
    }

    fn processes(&self, sample: &MachineSample) -> Vec<MachineProcess> {
        let mut ages: BTreeMap<TargetId, AgeBytes> = BTreeMap::new();
        for memory in &sample.mapped {
            if let Some(target) = memory.target {
                ages.entry(target).or_default().add(&memory.bytes);
            }
        }
        let process = |(target, ages): (TargetId, AgeBytes)| MachineProcess {
            target: self.context.target_info(target),
            group: { self.groups.get(&target) }.map(|g| isotherm_record::printable(g).into_owned()),
            bytes: ages.total(),
            ages,
        };
        let mut processes: Vec<MachineProcess> = ages.into_iter().map(process).collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        processes
    }
}

fn page_cache(time_ns: Nanos, sample: &CacheSample) -> MachineCache {
    let mut bytes = CachedBytes::default();
    let mut groups: BTreeMap<Option<&str>, CachedBytes> = BTreeMap::new();
    for memory in &sample.memory {
        bytes.add(&memory.bytes);
        let group = groups.entry(memory.group.as_deref()).or_default();
        group.add(&memory.bytes);
    }
    let group = |(group, bytes): (Option<&str>, CachedBytes)| MachineCacheGroup {
        group: group.map(|group| isotherm_record::printable(group).into_owned()),
        bytes,
    };
    let mut groups: Vec<MachineCacheGroup> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes.total()));
    MachineCache {
        time_ns,
        took_ns: sample.took,
        bytes,
        groups,
        files: sample.files.iter().cloned().map(printable_file).collect(),
        nr_files: sample.nr_files,
    }
}

fn printable_file(file: CachedFile) -> CachedFile {
    let path = file.path.as_deref();
    CachedFile {
        path: path.map(|path| isotherm_record::printable(path).into_owned()),
        ..file
    }
}

fn saturating_sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

fn share(part: u64, all: u64) -> f64 {
    (part as f64 / all.max(1) as f64).min(1.0)
}

fn groups(processes: &[MachineProcess]) -> Vec<MachineGroup> {
    let mut groups: BTreeMap<&str, (usize, AgeBytes)> = BTreeMap::new();
    for process in processes {
        if let Some(group) = &process.group {
            let (nr, ages) = groups.entry(group).or_default();
            *nr += 1;
            ages.add(&process.ages);
        }
    }
    let group = |(group, (nr_processes, ages)): (&str, (usize, AgeBytes))| MachineGroup {
        group: group.to_owned(),
        nr_processes,
        bytes: ages.total(),
        ages,
    };
    let mut groups: Vec<MachineGroup> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}

/// Combines the kernel's counters of a node with the ages that page tables show.
fn node_of(
    node: &NodeMemory,
    sample: &MachineSample,
    page_cache: Option<&CacheSample>,
) -> MachineNode {
    let cached = page_cache.map_or(&[][..], |cache| &cache.memory);
    let cached = { cached.iter() }.filter(|memory| memory.node == node.node);
    let cached: AgeBytes = cached.map(|memory| &memory.bytes.ages).sum();
    let seen = |class: MappedClass| -> AgeBytes {
        let mapped = sample.mapped.iter();
        let of_node = mapped.filter(|of| of.node == node.node && of.class == class);
        of_node.map(|of| &of.bytes).sum()
    };
    let (anonymous, files) = (seen(MappedClass::Anonymous), seen(MappedClass::File));
    let shared = seen(MappedClass::Shared);
    let anonymous_bytes = node.anonymous.max(anonymous.total());
    // Unwritten pages of private mappings are counted as anonymous by their mapping.
    let unwritten = anonymous_bytes - node.anonymous;
    let mapped = node.mapped.saturating_sub(shared.total());
    let mapped = mapped.saturating_sub(unwritten);
    let mapped = mapped.min(node.files).max(files.total());
    let cache = node.files.saturating_sub(mapped).saturating_sub(unwritten);
    let user = |class, bytes: u64, ages: AgeBytes| {
        let unseen = bytes.saturating_sub(ages.total());
        let unknown = ages.unknown.saturating_add(unseen);
        ClassMemory {
            class,
            bytes: bytes.max(ages.total()),
            ages: Some(AgeBytes { unknown, ..ages }),
            active_bytes: (class == MemoryClass::PageCache).then_some(node.active_files),
        }
    };
    let kernel = |class, bytes| ClassMemory {
        class,
        bytes,
        ages: None,
        active_bytes: None,
    };
    let mut classes = vec![
        user(MemoryClass::Anonymous, anonymous_bytes, anonymous),
        user(MemoryClass::MappedFiles, mapped, files),
        user(MemoryClass::SharedMemory, node.shared, shared),
        user(MemoryClass::PageCache, cache, cached),
        kernel(MemoryClass::Slab, node.slab),
        kernel(MemoryClass::PageTables, node.page_tables),
        kernel(MemoryClass::KernelStacks, node.kernel_stacks),
        kernel(MemoryClass::CompressedSwap, node.compressed_swap),
        kernel(MemoryClass::Hugetlb, node.hugetlb),
    ];
    let reported = saturating_sum(classes.iter().map(|class| class.bytes));
    let reported = node.free.saturating_add(reported);
    // The page cache was counted at the end of its last round, all else now. Memory freed since must not count twice.
    let gone = reported.saturating_sub(node.total);
    if let Some(cache) = { classes.iter_mut() }.find(|c| c.class == MemoryClass::PageCache) {
        let left = cache.bytes.saturating_sub(gone);
        cache.ages = cache.ages.map(|ages| part_of(&ages, left));
        cache.bytes = left;
    }
    let other = node.total.saturating_sub(reported);
    classes.push(kernel(MemoryClass::Other, other));
    classes.push(kernel(MemoryClass::Free, node.free));
    MachineNode {
        node: node.node,
        total_bytes: node.total,
        used_bytes: node.total.saturating_sub(node.free),
        classes,
    }
}

/// Scales the ages down to at most `bytes` in proportion.
fn part_of(ages: &AgeBytes, bytes: u64) -> AgeBytes {
    let total = ages.total();
    if total <= bytes {
        return *ages;
    }
    let part = |of: u64| (u128::from(of) * u128::from(bytes) / u128::from(total)) as u64;
    AgeBytes {
        touched: part(ages.touched),
        idle: ages.idle.map(part),
        unknown: part(ages.unknown),
    }
}

fn zone_of(zone: &ZoneMemory) -> MachineZone {
    let reported = zone.free.saturating_add(zone.mapped.total());
    MachineZone {
        node: zone.node,
        zone: isotherm_record::printable(&zone.zone).into_owned(),
        present_bytes: zone.present,
        reserved_bytes: zone.present.saturating_sub(zone.managed),
        free_bytes: zone.free,
        mapped: zone.mapped,
        other_bytes: zone.managed.saturating_sub(reported),
    }
}

fn sum_of(nodes: &[MachineNode]) -> Vec<ClassMemory> {
    let sum = |class| {
        let all = nodes.iter().flat_map(|node| &node.classes);
        let of_class = all.filter(|of| of.class == class);
        let none = ClassMemory {
            class,
            bytes: 0,
            ages: class.is_user().then(AgeBytes::default),
            active_bytes: (class == MemoryClass::PageCache).then_some(0),
        };
        of_class.fold(none, |mut sum, of| {
            sum.bytes = sum.bytes.saturating_add(of.bytes);
            if let (Some(sum), Some(ages)) = (&mut sum.ages, &of.ages) {
                sum.add(ages);
            }
            if let (Some(sum), Some(bytes)) = (&mut sum.active_bytes, of.active_bytes) {
                *sum = sum.saturating_add(bytes);
            }
            sum
        })
    };
    MemoryClass::ALL.map(sum).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_in_proportion_and_no_more_than_all() {
        let mut ages = AgeBytes {
            touched: 600,
            unknown: 300,
            ..AgeBytes::default()
        };
        assert_eq!(part_of(&ages, 900), ages);
        (ages.touched, ages.unknown) = (400, 200);
        assert_eq!(part_of(&ages, 300).total(), 300);
        assert_eq!(part_of(&ages, 300).touched, 200);
    }
}
