//! The mapping of an address: a file, heap, stack or anonymous area.
//!
//! A record has changes of mappings. A region can outlive its mapping by an update interval. A target's last mappings
//! vanish when it exits, while a report asks afterwards. The table therefore remembers a vanished mapping until another
//! takes its place: the answer is the last known one. Vanished mappings are dropped only when there are more than
//! [`MAX_MAPPINGS`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use isotherm_engine::{AddressRange, TargetId};
use isotherm_policy::Unreclaimable;
use serde::{Serialize, Serializer};

use crate::ranges::RangeMap;
use isotherm_record::item::MappingChange;

/// The largest number of mappings; above it, vanished mappings are dropped.
pub(crate) const MAX_MAPPINGS: usize = 1 << 17;

pub(crate) const ANONYMOUS: &str = "(anonymous)";

/// The name of the mapping in a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingLabel {
    /// Name of the mapping, or of all mappings with that name, that overlap most.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(serialize_with = "serialize_name")]
    pub name: Arc<str>,
    /// Number of other names that overlap.
    pub others: usize,
}

impl std::fmt::Display for MappingLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.others > 0 {
            write!(f, " +{}", self.others)?;
        }
        Ok(())
    }
}

pub(crate) fn serialize_name<S: Serializer>(name: &Arc<str>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(name)
}

#[derive(Clone, Debug)]
struct Entry {
    name: Arc<str>,
    unreclaimable: Option<Unreclaimable>,
    live: bool,
}

/// The last known mappings of all targets.
#[derive(Clone, Debug, Default)]
pub struct MappingTable {
    targets: BTreeMap<TargetId, RangeMap<Entry>>,
    /// Number of mappings of all targets.
    nr: usize,
    names: BTreeSet<Arc<str>>,
}

impl MappingTable {
    /// Applies a change of mappings.
    pub fn apply(&mut self, change: &MappingChange) {
        let mappings = self.targets.entry(change.target).or_default();
        let before = mappings.len();
        for &range in &change.removed {
            for (part, mut entry) in mappings.cut(range) {
                entry.live = false;
                mappings.insert(part, entry);
            }
        }
        for mapping in &change.added {
            let entry = Entry {
                name: intern(&mut self.names, &isotherm_record::printable(&mapping.name)),
                unreclaimable: mapping.unreclaimable,
                live: true,
            };
            mappings.insert(mapping.range, entry);
        }
        self.nr = self.nr + mappings.len() - before;
        if self.nr > MAX_MAPPINGS {
            self.targets.retain(|_, mappings| {
                mappings.retain(|entry| entry.live);
                mappings.len() > 0
            });
            self.nr = self.targets.values().map(RangeMap::len).sum();
        }
    }

    /// Returns the name of the mapping in `range`; `None` where no mapping is known.
    pub fn label(&self, target: TargetId, range: AddressRange) -> Option<MappingLabel> {
        let mut bytes: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
        for (part, entry) in self.overlapping(target, range) {
            *bytes.entry(&entry.name).or_default() += part.len();
        }
        let (name, _) = bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
        Some(MappingLabel {
            name: Arc::clone(name),
            others: bytes.len() - 1,
        })
    }

    /// Iterates over the mapped parts of `range`, from the lowest address up, each with its name.
    pub fn parts(
        &self,
        target: TargetId,
        range: AddressRange,
    ) -> impl Iterator<Item = (AddressRange, &Arc<str>)> {
        let parts = self.overlapping(target, range);
        parts.map(|(part, entry)| (part, &entry.name))
    }

    /// Iterates over the parts of `range` in unreclaimable mappings.
    pub fn unreclaimable(
        &self,
        target: TargetId,
        range: AddressRange,
    ) -> impl Iterator<Item = AddressRange> {
        let parts = self.overlapping(target, range);
        parts.filter_map(|(part, entry)| entry.unreclaimable.map(|_| part))
    }

    /// Returns the whole mapping around `part`, or `part` itself where none is known.
    pub fn whole(&self, target: TargetId, part: AddressRange) -> AddressRange {
        let mappings = self.targets.get(&target);
        let whole = mappings.and_then(|mappings| mappings.around(part.start));
        whole.unwrap_or(part)
    }

    /// Iterates over the mapped parts of `range`, with their entries.
    fn overlapping(
        &self,
        target: TargetId,
        range: AddressRange,
    ) -> impl Iterator<Item = (AddressRange, &Entry)> {
        let mappings = self.targets.get(&target).into_iter();
        mappings.flat_map(move |mappings| mappings.parts(range))
    }
}

fn intern(names: &mut BTreeSet<Arc<str>>, name: &str) -> Arc<str> {
    let name = if name.is_empty() { ANONYMOUS } else { name };
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = name.into();
    names.insert(Arc::clone(&new));
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::mapping;

    /// Applies changes in turn (`+a 0-4` maps, `-0-4` unmaps), then asks for a range.
    fn check(changes: &[&str], ask: &str, expected: Option<&str>) {
        let mut table = MappingTable::default();
        for change in changes {
            let mut parsed = MappingChange::default();
            if let Some(added) = change.strip_prefix('+') {
                let (name, range) = added.split_once(' ').expect("a name and a range");
                parsed.added.push(mapping(range_of(range), name));
            } else {
                parsed.removed.push(range_of(&change[1..]));
            }
            table.apply(&parsed);
        }
        let label = table.label(TargetId(0), range_of(ask));
        assert_eq!(label.map(|l| l.to_string()).as_deref(), expected);
        assert_eq!(table.label(TargetId(1), range_of(ask)), None);
    }

    fn range_of(text: &str) -> AddressRange {
        let (start, end) = text.split_once('-').expect("start-end");
        let number = |s: &str| s.parse::<u64>().expect("a number");
        AddressRange::new(number(start), number(end))
    }

    #[test]
    fn largest_overlap_names_the_range() {
        check(&["+a 0-4", "+b 4-12"], "0-12", Some("b +1"));
        check(&["+a 0-4", "+b 4-12"], "1-3", Some("a"));
        check(&["+a 0-4", "+b 4-12"], "12-14", None);
        check(&["+a 0-3", "+b 3-7", "+a 7-9"], "0-9", Some("a +1"));
        check(&["+ 0-4"], "0-4", Some("(anonymous)"));
    }

    #[test]
    fn mappings_that_cannot_be_reclaimed_are_known() {
        let mut added = ["0-4", "4-8"].map(|range| mapping(range_of(range), ""));
        added[1].unreclaimable = Some(Unreclaimable::Locked);
        let mut table = MappingTable::default();
        table.apply(&MappingChange {
            added: added.into(),
            ..MappingChange::default()
        });
        let parts = table.unreclaimable(TargetId(0), range_of("2-6"));
        assert_eq!(parts.collect::<Vec<_>>(), [range_of("4-6")]);
    }

    #[test]
    fn what_is_gone_is_remembered_until_replaced() {
        check(&["+a 0-8", "-0-8"], "0-8", Some("a"));
        check(&["+a 0-8", "-2-6", "+b 2-6"], "2-6", Some("b"));
        check(&["+a 0-8", "-2-6", "+b 2-6"], "6-8", Some("a"));
        check(&["+a 0-8", "+b 2-6"], "0-2", Some("a"));
    }
}
