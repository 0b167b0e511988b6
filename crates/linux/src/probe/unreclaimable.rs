//! Finds mappings that the kernel does not reclaim: locked memory, device memory, hugetlbfs.
//!
//! `/proc/PID/smaps` shows the flags of mappings, but walks all their pages. A BPF iterator over mappings
//! (`iter/task_vma`, Linux 5.12) returns the flags without walking pages.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use isotherm_engine::{AddressRange, TargetId};
use isotherm_policy::Unreclaimable;

use super::aliases::Aliases;
use super::page_table::PageTableProbe;
use super::walker::{TaskLimit, Walker, open_iterator};
use crate::areas::MappedArea;
use crate::process::ProcessError;

/// Words of a `struct unreclaimable` of `page_table.bpf.c`: start, end, flags.
const WORDS: usize = 3;
/// Flags of a mapping (include/linux/mm.h), in `page_table.bpf.c` as well.
const VM_LOCKED: u64 = 0x2000;
const VM_HUGETLB: u64 = 0x40_0000;
/// Bytes to read for one process: 65,536 mappings. Further ones count as reclaimable.
const BYTES_MAX: u64 = (65_536 * WORDS * 8) as u64;

impl Walker {
    /// Returns the unreclaimable mappings of a thread's address space, in address order.
    pub(super) fn unreclaimable(
        &self,
        thread: u32,
    ) -> io::Result<Vec<(AddressRange, Unreclaimable)>> {
        let iterator = open_iterator(self.find_unreclaimable.as_fd(), TaskLimit::Thread(thread))?;
        let mut bytes = Vec::new();
        File::from(iterator)
            .take(BYTES_MAX)
            .read_to_end(&mut bytes)?;
        Ok(parse(&bytes))
    }
}

impl PageTableProbe {
    /// Returns the mappings of `target`, with the unreclaimable ones marked; `None` if it is not watched. Also updates
    /// its aliases.
    pub fn mappings(&mut self, target: TargetId) -> Option<Result<Vec<MappedArea>, ProcessError>> {
        let process = self.process(target)?;
        let mut areas = match process.mappings() {
            Ok(areas) => areas,
            Err(error) => return Some(Err(error)),
        };
        // Without these, the kernel's later refusal reports the reason.
        let found = self.walker.unreclaimable(process.memory_thread());
        for (range, why) in found.unwrap_or_default() {
            let at = areas.partition_point(|area| area.range.start < range.start);
            if let Some(area) = areas.get_mut(at).filter(|area| area.range == range) {
                area.unreclaimable = Some(why);
            }
        }
        self.note_aliases(target, &mut areas);
        Some(Ok(areas))
    }

    fn note_aliases(&mut self, target: TargetId, areas: &mut [MappedArea]) {
        let aliases = Aliases::of(areas);
        let before = self.aliases.remove(&target).unwrap_or_default();
        if aliases.is_empty() {
            return;
        }
        // The kernel's advice skips pages with several entries; it accepts those with one.
        if before.nr_several > before.nr_single {
            let held = aliases.held();
            let is_held = |range: AddressRange| {
                let at = held.partition_point(|held| held.end < range.end);
                held.get(at).is_some_and(|held| held.start <= range.start)
            };
            let free = areas.iter_mut().filter(|area| area.unreclaimable.is_none());
            for area in free.filter(|area| area.file.is_some() && !area.permissions.is_private()) {
                if is_held(area.range) {
                    area.unreclaimable = Some(Unreclaimable::Several);
                }
            }
        }
        // Half of the earlier counts is kept, so that a quiet interval does not make everything unknown.
        let mut aliases = aliases;
        aliases.nr_single = before.nr_single / 2;
        aliases.nr_several = before.nr_several / 2;
        self.aliases.insert(target, aliases);
    }
}

fn parse(bytes: &[u8]) -> Vec<(AddressRange, Unreclaimable)> {
    let words = bytes.as_chunks::<8>().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_ne_bytes(*word)).collect();
    let found = words.as_chunks::<WORDS>().0.iter();
    let found = found.filter_map(|[start, end, flags]| {
        let range = AddressRange::checked(*start, *end)?;
        Some((range, why(*flags)))
    });
    found.collect()
}

fn why(flags: u64) -> Unreclaimable {
    if flags & VM_HUGETLB != 0 {
        Unreclaimable::HugeTlb
    } else if flags & VM_LOCKED != 0 {
        Unreclaimable::Locked
    } else {
        Unreclaimable::Device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_by_their_flags() {
        let device = 0x4000 | 0x400;
        let words = [
            0x1000, 0x3000, VM_LOCKED, 0x4000, 0x5000, device, 9, 9, 0, 7,
        ];
        let bytes = words.iter().flat_map(|word: &u64| word.to_ne_bytes());
        let bytes: Vec<u8> = bytes.collect();
        let found = [
            (AddressRange::new(0x1000, 0x3000), Unreclaimable::Locked),
            (AddressRange::new(0x4000, 0x5000), Unreclaimable::Device),
        ];
        assert_eq!(parse(&bytes), found);
        assert_eq!(why(VM_HUGETLB | VM_LOCKED), Unreclaimable::HugeTlb);
    }
}
