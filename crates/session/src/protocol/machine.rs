//! The machine's memory of each context's last sample, by control group.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::TargetId;
use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_record::machine::NodeMemory;
use isotherm_record::{CacheSample, HugeMemory, MachineSample, MappedMemory};

/// Limit of the control groups that are listed one by one; it bounds the number of series.
const GROUPS_MAX: usize = 300;

/// Last samples of the machine's memory, by context, with the control groups of the targets.
#[derive(Debug, Default)]
pub(super) struct Machine {
    samples: BTreeMap<Option<String>, MachineSample>,
    groups: BTreeMap<TargetId, String>,
    page_cache: CacheSample,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner<'a> {
    /// Memory that a single process of this control group maps.
    Group(&'a str),
    /// Memory of processes with an unknown control group.
    Unknown,
    /// Memory of the groups beyond those with the most memory.
    Others,
    /// Memory that several processes map, of one group or of many.
    Several,
}

impl<'a> Owner<'a> {
    /// Name as a label: a group's name begins with a slash.
    pub(super) fn name(self) -> &'a str {
        match self {
            Self::Group(path) => path,
            Self::Unknown => "unknown",
            Self::Others => "others",
            Self::Several => "several",
        }
    }
}

impl Machine {
    pub(super) fn take(&mut self, mut sample: MachineSample) {
        for of in std::mem::take(&mut sample.groups) {
            self.groups.insert(of.target, of.group);
        }
        if let Some(page_cache) = sample.page_cache.take() {
            self.page_cache = page_cache;
        }
        // Samples of the whole machine are of the same memory, whichever context made them.
        let context = sample.context.clone().filter(|_| sample.is_of_targets());
        self.samples.insert(context, sample);
    }

    pub(super) fn forget_context(&mut self, context: String) {
        self.samples.remove(&Some(context));
    }

    fn whole(&self) -> Option<&MachineSample> {
        let mut samples = self.samples.values();
        samples.find(|sample| !sample.is_of_targets())
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.groups.remove(&target);
        for sample in self.samples.values_mut() {
            sample.mapped.retain(|of| of.target != Some(target));
            sample.huge.retain(|of| of.target != target);
        }
    }

    /// Returns the targets of each control group.
    pub(super) fn targets_by_group(&self) -> BTreeMap<&str, Vec<TargetId>> {
        let mut by_group: BTreeMap<&str, Vec<TargetId>> = BTreeMap::new();
        for (target, group) in &self.groups {
            by_group.entry(group).or_default().push(*target);
        }
        by_group
    }

    pub(super) fn huge(&self) -> Vec<&HugeMemory> {
        self.samples.values().flat_map(|of| &of.huge).collect()
    }

    pub(super) fn nodes(&self) -> &[NodeMemory] {
        let mut nodes = self.samples.values().map(|of| &of.nodes[..]);
        nodes.find(|nodes| !nodes.is_empty()).unwrap_or_default()
    }

    /// Memory that these contexts map, each page once; `None` before the first sample of each.
    pub(super) fn mapped_once<'a>(
        &self,
        contexts: impl Iterator<Item = &'a Option<String>>,
    ) -> Option<AgeBytes> {
        if self.whole().is_some() {
            return Some(self.mapped().map(|memory| &memory.bytes).sum());
        }
        let contexts: BTreeSet<_> = contexts.collect();
        let sample = |context| {
            let sample = self.samples.get(context)?;
            (!sample.mapped.is_empty()).then_some(sample)
        };
        let samples: Option<Vec<_>> = contexts.into_iter().map(sample).collect();
        let mapped = samples?.into_iter().flat_map(|of| &of.mapped);
        Some(mapped.map(|memory| &memory.bytes).sum())
    }

    fn mapped(&self) -> impl Iterator<Item = &MappedMemory> + Clone {
        let whole = self.whole();
        let of_targets = self.samples.values().filter(move |_| whole.is_none());
        of_targets.chain(whole).flat_map(|of| &of.mapped)
    }

    /// Returns mapped memory of all nodes by owner, class and age; each page counts once.
    pub(super) fn by_owner(&self) -> BTreeMap<(Owner<'_>, MappedClass), AgeBytes> {
        sums(self.mapped().map(|memory| {
            let owner = match memory.target.map(|target| self.groups.get(&target)) {
                None => Owner::Several,
                Some(None) => Owner::Unknown,
                Some(Some(group)) => Owner::Group(group),
            };
            (owner, memory.class, &memory.bytes)
        }))
    }

    /// Returns the unmapped page cache of all nodes by owner.
    pub(super) fn page_cache_by_owner(&self) -> BTreeMap<Owner<'_>, AgeBytes> {
        let sums = sums(self.page_cache.memory.iter().map(|memory| {
            let group = memory.group.as_deref();
            let owner = group.map_or(Owner::Unknown, Owner::Group);
            (owner, (), &memory.bytes.ages)
        }));
        let sums = sums.into_iter();
        sums.map(|((owner, ()), ages)| (owner, ages)).collect()
    }
}

/// Sums up memory by owner and class. Only the groups with the most memory are owners of their own.
fn sums<'a, C: Ord>(
    memory: impl Iterator<Item = (Owner<'a>, C, &'a AgeBytes)> + Clone,
) -> BTreeMap<(Owner<'a>, C), AgeBytes> {
    let mut groups: BTreeMap<Owner<'_>, u64> = BTreeMap::new();
    for (owner, _, ages) in memory.clone() {
        if matches!(owner, Owner::Group(_)) {
            let sum = groups.entry(owner).or_default();
            *sum = sum.saturating_add(ages.total());
        }
    }
    let mut groups: Vec<(Owner<'_>, u64)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let small = groups.iter().skip(GROUPS_MAX).map(|(owner, _)| *owner);
    let small: BTreeSet<Owner<'_>> = small.collect();
    let mut sums: BTreeMap<_, AgeBytes> = BTreeMap::new();
    for (owner, class, ages) in memory {
        let is_small = small.contains(&owner);
        let owner = if is_small { Owner::Others } else { owner };
        sums.entry((owner, class)).or_default().add(ages);
    }
    sums
}

#[cfg(test)]
mod tests {
    use isotherm_engine::page_cache::CachedBytes;
    use isotherm_record::{CachedMemory, TargetGroup};

    use super::*;

    fn mapped(target: Option<u32>, touched: u64) -> MappedMemory {
        MappedMemory {
            target: target.map(TargetId),
            node: 0,
            class: MappedClass::Anonymous,
            bytes: AgeBytes {
                touched,
                ..AgeBytes::default()
            },
        }
    }

    fn sample(nr_groups: u32) -> MachineSample {
        let targets = 0..nr_groups;
        let group = |target: u32| TargetGroup {
            target: TargetId(target),
            group: format!("/{target}"),
        };
        let own = |target: u32| mapped(Some(target), u64::from(target) + 1);
        let mapped = targets.clone().map(own).chain([mapped(None, 1000)]);
        MachineSample {
            mapped: mapped.collect(),
            groups: targets.map(group).collect(),
            ..MachineSample::default()
        }
    }

    fn reported(machine: &Machine) -> Vec<(&str, u64)> {
        let sums = machine.by_owner().into_iter();
        sums.map(|((owner, _), ages)| (owner.name(), ages.total()))
            .collect()
    }

    #[test]
    fn groups_stay_known_and_the_ended_are_forgotten() {
        let mut machine = Machine::default();
        machine.take(sample(2));
        let mut later = sample(3);
        later.groups.clear();
        machine.take(later);
        let wanted = [("/0", 1), ("/1", 2), ("unknown", 3), ("several", 1000)];
        assert_eq!(reported(&machine), wanted);
        machine.forget(TargetId(1));
        let wanted = [("/0", 1), ("unknown", 3), ("several", 1000)];
        assert_eq!(reported(&machine), wanted);
    }

    #[test]
    fn the_page_cache_stays_known_between_looks_at_it() {
        let memory = |group: Option<&str>, touched| CachedMemory {
            node: 0,
            group: group.map(str::to_owned),
            bytes: CachedBytes {
                ages: AgeBytes {
                    touched,
                    ..AgeBytes::default()
                },
                ..CachedBytes::default()
            },
        };
        let mut machine = Machine::default();
        let mut first = sample(1);
        first.page_cache = Some(CacheSample {
            memory: vec![
                memory(Some("/0"), 5),
                memory(None, 7),
                memory(Some("/0"), 1),
            ],
            ..CacheSample::default()
        });
        machine.take(first);
        machine.take(sample(1));
        let reported: Vec<_> = { machine.page_cache_by_owner().into_iter() }
            .map(|(owner, ages)| (owner.name(), ages.total()))
            .collect();
        assert_eq!(reported, [("/0", 6), ("unknown", 7)]);
    }

    #[test]
    fn the_largest_groups_are_told_and_nothing_is_left_out() {
        let mut machine = Machine::default();
        machine.take(sample(350));
        let reported = reported(&machine);
        assert_eq!(reported.len(), GROUPS_MAX + 2);
        assert!(reported.contains(&("/349", 350)));
        assert!(reported.contains(&("others", (1..=50).sum())));
        let all: u64 = reported.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(all, (1..=350).sum::<u64>() + 1000);
    }
}
