//! A map from disjoint address ranges to values.

use std::collections::BTreeMap;

use isotherm_engine::AddressRange;
use isotherm_record::MappingChange;

#[derive(Clone, Debug)]
pub(crate) struct RangeMap<V> {
    /// End and value of each range, by first address.
    entries: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }
}

impl<V: Clone> RangeMap<V> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Iterates over the parts of `range` with a value, in address order.
    pub(crate) fn parts(&self, range: AddressRange) -> impl Iterator<Item = (AddressRange, &V)> {
        let before = self.entries.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let entries = self.entries.range(first..range.end);
        entries.filter_map(move |(start, (end, value))| {
            let part = AddressRange::checked(*start, *end)?.intersection(range)?;
            Some((part, value))
        })
    }

    /// Returns the range with a value that contains an address.
    pub(crate) fn around(&self, address: u64) -> Option<AddressRange> {
        let (start, (end, _)) = self.entries.range(..=address).next_back()?;
        AddressRange::checked(*start, *end).filter(|range| range.contains(address))
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&V) -> bool) {
        self.entries.retain(|_, (_, value)| keep(value));
    }

    /// Removes all values in `range`, and returns them with their parts of it.
    pub(crate) fn cut(&mut self, range: AddressRange) -> Vec<(AddressRange, V)> {
        let parts: Vec<AddressRange> = self.parts(range).map(|(part, _)| part).collect();
        let mut removed = Vec::with_capacity(parts.len());
        for part in parts {
            let before = self.entries.range(..=part.start).next_back();
            let key = before.map(|(key, _)| *key);
            let Some((start, (end, value))) = key.and_then(|key| self.entries.remove_entry(&key))
            else {
                continue;
            };
            if start < range.start {
                self.entries.insert(start, (range.start, value.clone()));
            }
            if range.end < end {
                self.entries.insert(range.end, (end, value.clone()));
            }
            removed.push((part, value));
        }
        removed
    }

    /// Sets `value` in `range`.
    pub(crate) fn insert(&mut self, range: AddressRange, value: V) {
        self.cut(range);
        self.entries.insert(range.start, (range.end, value));
    }
}

/// Returns the ranges that are no longer mapped; a mapping that only moved its borders still is.
pub(crate) fn unmapped(change: &MappingChange) -> Vec<AddressRange> {
    let mut added: Vec<AddressRange> = change.added.iter().map(|added| added.range).collect();
    added.sort_unstable();
    let mut removed = change.removed.clone();
    removed.sort_unstable();
    let left = removed.iter().flat_map(|range| range.without(&added));
    left.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_records::mapping;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(start, end)
    }

    proptest! {
        #[test]
        fn it_is_what_an_array_would_be(changes in prop::collection::vec((0..60_u64, 1..20_u64, prop::option::of(0..9_u8)), 0..30)) {
            let mut map = RangeMap::default();
            let mut array = [None; 80];
            for (start, length, value) in changes {
                let place = range(start, start + length);
                match value {
                    Some(value) => map.insert(place, value),
                    None => drop(map.cut(place)),
                }
                array[start as usize..(start + length) as usize].fill(value);
            }
            let mut found = [None; 80];
            for (part, value) in map.parts(range(0, 80)) {
                found[part.start as usize..part.end as usize].fill(Some(*value));
            }
            prop_assert_eq!(found, array);
            let mut middle = [None; 80];
            for (part, value) in map.parts(range(20, 40)) {
                middle[part.start as usize..part.end as usize].fill(Some(*value));
            }
            prop_assert_eq!(&middle[20..40], &array[20..40]);
            prop_assert_eq!(&middle[..20], &[None; 20]);
        }
    }

    #[test]
    fn what_is_mapped_again_at_once_has_not_gone() {
        let removed = [range(0, 10), range(20, 30)];
        let left = |added: &[AddressRange]| {
            unmapped(&MappingChange {
                removed: removed.into(),
                added: added.iter().map(|range| mapping(*range, "")).collect(),
                ..MappingChange::default()
            })
        };
        let added = [range(0, 4), range(6, 22), range(28, 40)];
        assert_eq!(left(&added), [range(4, 6), range(22, 28)]);
        assert_eq!(left(&[]), removed);
        assert_eq!(left(&[range(0, 99)]), []);
    }
}
