//! Counts memory that a process maps at several addresses once, at its lowest address.
//!
//! Problem: a page of a file or memfd may be mapped at three addresses (as ZGC does with its heap). It then has three
//! page table entries, each with an accessed bit. By address it is three pages, one of which may be hot and the others
//! idle.
//!
//! Approach: shared mappings of the same part of the same file are *aliases* of the one at the lowest address. Tables
//! of aliases are read with those of the first, and merged: a page is present if one entry has it, and accessed if one
//! of their bits is set. Monitors that read tables do not see the aliases' own addresses ([`without_aliases`]).
//!
//! Limits: private file mappings and pages merged by KSM count once for each address. Aliases are found when the
//! mappings are read. Monitors that sample addresses (DAMON's regions) watch each alias separately.

use std::collections::BTreeMap;

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::table::BlockFacts;
use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK};

use crate::areas::MappedArea;

/// A range whose memory is also mapped at a lower address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alias {
    range: AddressRange,
    /// Lower addresses of the same memory.
    first: AddressRange,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Aliases {
    /// Sorted by `first.start`, each with the greatest `first.end` so far.
    all: Vec<(Alias, u64)>,
    /// Pages with one page table entry, and with several, since the last read of the mappings.
    pub(super) nr_single: u64,
    pub(super) nr_several: u64,
}

/// Returns the ranges of `areas` without aliases.
pub fn without_aliases(areas: &[MappedArea]) -> Vec<AddressRange> {
    let mut aliases: Vec<AddressRange> = of(areas).iter().map(|alias| alias.range).collect();
    aliases.sort_unstable();
    let mut left = Vec::with_capacity(areas.len());
    for area in areas {
        let mut start = area.range.start;
        let first = aliases.partition_point(|alias| alias.end <= start);
        for alias in aliases[first..]
            .iter()
            .take_while(|a| a.start < area.range.end)
        {
            left.extend(AddressRange::checked(start, alias.start));
            start = alias.end;
        }
        left.extend(AddressRange::checked(start, area.range.end));
    }
    left
}

/// Returns the aliases among `areas`, which are in address order.
fn of(areas: &[MappedArea]) -> Vec<Alias> {
    // The mapped parts of each file, by their first byte, with its address and their end.
    let mut files: BTreeMap<(u64, u64), BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    let mut aliases = Vec::new();
    for area in areas.iter().filter(|area| !area.permissions.is_private()) {
        let Some(file) = area.file.filter(|file| file.inode != 0) else {
            continue;
        };
        let parts = files.entry((file.device, file.inode)).or_default();
        let (mut at, end) = (file.offset, file.offset + area.range.len());
        let address = |offset: u64| area.range.start + (offset - file.offset);
        while at < end {
            let before = parts
                .range(..=at)
                .next_back()
                .map(|(start, part)| (*start, *part));
            if let Some((start, (first, part_end))) = before.filter(|(_, (_, e))| *e > at) {
                let to = part_end.min(end);
                let first = first + (at - start);
                aliases.push(Alias {
                    range: AddressRange::new(address(at), address(to)),
                    first: AddressRange::new(first, first + (to - at)),
                });
                at = to;
            } else {
                let next = parts.range(at..).next().map_or(end, |(start, _)| *start);
                let to = next.min(end);
                parts.insert(at, (address(at), to));
                at = to;
            }
        }
    }
    aliases
}

impl Aliases {
    pub(super) fn of(areas: &[MappedArea]) -> Self {
        let mut aliases = of(areas);
        aliases.sort_unstable_by_key(|alias| alias.first.start);
        let mut end = 0;
        let all = aliases.into_iter().map(|alias| {
            end = end.max(alias.first.end);
            (alias, end)
        });
        Self {
            all: all.collect(),
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the union of all ranges whose memory is mapped several times.
    pub(super) fn held(&self) -> Vec<AddressRange> {
        let both = self.all.iter();
        AddressRange::union(both.flat_map(|(alias, _)| [alias.range, alias.first]))
    }

    /// Iterates over the aliases of memory in `range`: the aliased part of `range`, and the alias's start address.
    fn of_range(&self, range: AddressRange) -> impl Iterator<Item = (AddressRange, u64)> {
        let from = self.all.partition_point(|(_, end)| *end <= range.start);
        let near = self.all[from..].iter();
        let near = near.take_while(move |(alias, _)| alias.first.start < range.end);
        near.filter_map(move |(alias, _)| {
            let part = alias.first.intersection(range)?;
            Some((part, part.start - alias.first.start + alias.range.start))
        })
    }

    /// Returns the blocks at first addresses that hold the memory of the aliases in `blocks`.
    pub(super) fn firsts_of(&self, blocks: &[u64]) -> Vec<u64> {
        let mut firsts = Vec::new();
        for (alias, _) in &self.all {
            let from = blocks.partition_point(|block| block + BLOCK_SIZE <= alias.range.start);
            for block in blocks[from..]
                .iter()
                .take_while(|block| **block < alias.range.end)
            {
                let part = AddressRange::new(*block, block + BLOCK_SIZE);
                if let Some(part) = part.intersection(alias.range) {
                    let first = part.start - alias.range.start + alias.first.start;
                    let last = first + part.len() - PAGE_SIZE;
                    firsts.extend([first, last].map(block_of));
                }
            }
        }
        firsts.sort_unstable();
        firsts.dedup();
        firsts
    }

    /// Returns the aliases' own addresses of the memory in `ranges`.
    pub(super) fn ranges_of(&self, ranges: &[AddressRange]) -> Vec<AddressRange> {
        let of = |range: &AddressRange| self.of_range(*range).collect::<Vec<_>>();
        let aliases = ranges.iter().flat_map(of);
        let aliases = aliases.map(|(part, start)| AddressRange::new(start, start + part.len()));
        let mut aliases: Vec<AddressRange> = aliases.collect();
        aliases.sort_unstable();
        aliases
    }

    /// Returns the aliases' own blocks of the memory in `blocks`.
    pub(super) fn blocks_of(&self, blocks: &[u64]) -> Vec<u64> {
        let ranges: Vec<AddressRange> = blocks
            .iter()
            .map(|block| AddressRange::new(*block, block + BLOCK_SIZE))
            .collect();
        let mut found = Vec::new();
        for range in self.ranges_of(&ranges) {
            found.extend((block_of(range.start)..range.end).step_by(BLOCK_SIZE as usize));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Merges the aliases' page table entries into `facts`.
    pub(super) fn merge(&mut self, facts: &mut BlockFacts, others: &BTreeMap<u64, BlockFacts>) {
        let block = AddressRange::new(facts.address, facts.address + BLOCK_SIZE);
        let (mut several, mut covered) = (bits::NONE, bits::NONE);
        for (part, start) in self.of_range(block) {
            covered = bits::or(&covered, &bits::mask(facts.address, part));
            let (present, accessed, swapped) = moved(start, part, others);
            several = bits::or(&several, &bits::and(&facts.present, &present));
            facts.present = bits::or(&facts.present, &present);
            facts.accessed = bits::or(&facts.accessed, &accessed);
            facts.swapped = bits::or(&facts.swapped, &swapped);
        }
        facts.swapped = bits::and_not(&facts.swapped, &facts.present);
        let (several, there) = (
            bits::count(&several),
            bits::count(&bits::and(&facts.present, &covered)),
        );
        self.nr_several += u64::from(several);
        self.nr_single += u64::from(there - several);
    }

    /// Calls `see` for each aliased page of `block`: its index in the block, and the alias's address.
    pub(super) fn pages_of(&self, block: u64, mut see: impl FnMut(usize, u64)) {
        let range = AddressRange::new(block, block + BLOCK_SIZE);
        for (part, start) in self.of_range(range) {
            for at in (0..part.len()).step_by(PAGE_SIZE as usize) {
                see(((part.start + at - block) / PAGE_SIZE) as usize, start + at);
            }
        }
    }
}

fn block_of(address: u64) -> u64 {
    address & !(BLOCK_SIZE - 1)
}

/// Returns the present, accessed and swapped bits of the alias at `start`, shifted into the block of `part`.
fn moved(
    start: u64,
    part: AddressRange,
    others: &BTreeMap<u64, BlockFacts>,
) -> (Bitmap, Bitmap, Bitmap) {
    let mut bitmaps = (bits::NONE, bits::NONE, bits::NONE);
    if start % BLOCK_SIZE == part.start % BLOCK_SIZE {
        if let Some(other) = others.get(&block_of(start)) {
            let mask = bits::mask(block_of(part.start), part);
            let of = |bitmap: &Bitmap| bits::and(bitmap, &mask);
            bitmaps = (of(&other.present), of(&other.accessed), of(&other.swapped));
        }
        return bitmaps;
    }
    for nr in 0..part.len() / PAGE_SIZE {
        let own = start + nr * PAGE_SIZE;
        let Some(other) = others.get(&block_of(own)) else {
            continue;
        };
        let from = ((own % BLOCK_SIZE) / PAGE_SIZE) as usize;
        let to = ((part.start / PAGE_SIZE + nr) % PAGES_PER_BLOCK as u64) as usize;
        for (into, of) in [
            (&mut bitmaps.0, &other.present),
            (&mut bitmaps.1, &other.accessed),
            (&mut bitmaps.2, &other.swapped),
        ] {
            if bits::has(of, from) {
                bits::set(into, to);
            }
        }
    }
    bitmaps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns mappings of `inode`, each `start-end@offset` in pages.
    fn areas(text: &str) -> Vec<MappedArea> {
        let lines = text.split_whitespace().map(|word| {
            let (range, rest) = word.split_once('@').expect("an offset");
            let (start, end) = range.split_once('-').expect("a range");
            let (offset, inode) = rest.split_once('#').unwrap_or((rest, "7"));
            let page = |text: &str| text.parse::<u64>().expect("a number") * PAGE_SIZE;
            let (start, end, offset) = (page(start), page(end), page(offset));
            let line = format!("{start:x}-{end:x} rw-s {offset:08x} 00:01 {inode} /memfd:x");
            MappedArea::parse(&line).expect("a mapping")
        });
        lines.collect()
    }

    fn pages(ranges: &[AddressRange]) -> String {
        let words = ranges
            .iter()
            .map(|r| format!("{}-{}", r.start / PAGE_SIZE, r.end / PAGE_SIZE));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_mapped_again_is_left_out() {
        let check =
            |text: &str, left: &str| assert_eq!(pages(&without_aliases(&areas(text))), left);
        check("0-4@0 8-12@0 16-20@0", "0-4");
        check("0-4@0 8-12@2", "0-4 10-12");
        check("0-4@2 8-16@0", "0-4 8-10 14-16");
        check("0-4@0 8-12@0#8", "0-4 8-12");
        check("0-4@0 8-12@4", "0-4 8-12");
        check("0-4@0#0 8-12@0#0", "0-4 8-12");
    }

    fn facts(address: u64, present: u64, accessed: u64) -> BlockFacts {
        BlockFacts {
            address,
            huge: false,
            present: [present, 0, 0, 0, 0, 0, 0, 0],
            accessed: [accessed, 0, 0, 0, 0, 0, 0, 0],
            swapped: bits::NONE,
        }
    }

    #[test]
    fn entries_of_the_same_page_are_put_together() {
        let block = PAGES_PER_BLOCK as u64;
        for shift in [0, 3] {
            let second = 4 * block + shift;
            let text = format!("0-8@0 {second}-{}@0", second + 8);
            let mut aliases = Aliases::of(&areas(&text));
            assert_eq!(aliases.blocks_of(&[0]), [4 * BLOCK_SIZE]);
            assert_eq!(aliases.firsts_of(&[4 * BLOCK_SIZE]), [0]);
            let other = facts(4 * BLOCK_SIZE, 0b1110 << shift, 0b0100 << shift);
            let mut first = facts(0, 0b0011, 0b0001);
            aliases.merge(&mut first, &BTreeMap::from([(other.address, other)]));
            assert_eq!((first.present[0], first.accessed[0]), (0b1111, 0b0101));
            assert_eq!((aliases.nr_several, aliases.nr_single), (1, 3));
            let mut seen = Vec::new();
            aliases.pages_of(0, |page, own| seen.push((page, own)));
            assert_eq!((seen.len(), seen[1]), (8, (1, (second + 1) * PAGE_SIZE)));
        }
    }

    #[test]
    fn whole_mappings_are_held() {
        let aliases = Aliases::of(&areas("0-4@0 8-12@0 16-20@2 30-40@9"));
        assert_eq!(pages(&aliases.held()), "0-4 8-12 16-18");
    }
}
