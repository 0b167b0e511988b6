//! Physical memory as one target, recorded by physical address.
//!
//! Approach: the state of all processes' pages is entered for their frames ([`isotherm_engine::frames`]). One target,
//! `physical`, reports the frames. The processes are targets as well, since actions need a process. They have no
//! snapshots in the record, which would hold their memory twice.

use std::ops::Range;

use isotherm_engine::frames::{FrameMap, FrameView};
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::{Item, PageSnapshot, TargetStart};

/// Target id of physical memory.
pub(crate) const MEMORY: TargetId = TargetId(0);
/// First target id of processes.
pub(crate) const FIRST_PROCESS: u32 = 1;
/// Limit of the bitmap blocks in a snapshot: a megabyte.
const MAX_NR_BLOCKS: usize = 4096;

pub(crate) struct ByFrame {
    /// Watched frames of RAM, in ascending order.
    ranges: Vec<Range<u64>>,
    max_nr_regions: usize,
    is_told: bool,
    /// Start of the interval: the last snapshot, or the creation.
    pub(super) since: Nanos,
}

impl ByFrame {
    /// Makes the target of these addresses; its first interval starts at `now`.
    pub(crate) fn new(ram: &[AddressRange], max_nr_regions: usize, now: Nanos) -> Self {
        Self {
            ranges: ram.iter().map(frames).collect(),
            max_nr_regions,
            is_told: false,
            since: now,
        }
    }

    /// Returns the start of the target on the first call.
    pub(crate) fn start(&mut self, now: Nanos) -> Option<Item> {
        let is_told = std::mem::replace(&mut self.is_told, true);
        (!is_told).then(|| start_of_memory(now))
    }

    pub(crate) fn has(&self, frame: u64) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= frame);
        self.ranges
            .get(at)
            .is_some_and(|range| range.contains(&frame))
    }

    pub(crate) fn snapshot(&mut self, frames: &mut FrameMap, now: Nanos) -> Item {
        Item::Snapshot(frames.snapshot(&FrameView {
            target: MEMORY,
            start: std::mem::replace(&mut self.since, now),
            end: now,
            ranges: &self.ranges,
            max_nr_regions: self.max_nr_regions,
            max_nr_blocks: MAX_NR_BLOCKS,
        }))
    }

    pub(crate) fn pages(&mut self, frames: &FrameMap, now: Nanos) -> Item {
        let start = std::mem::replace(&mut self.since, now);
        let blocks = frames.pages().collect();
        Item::Pages(PageSnapshot::new(MEMORY, (start, now), blocks))
    }
}

pub(crate) fn start_of_memory(now: Nanos) -> Item {
    Item::TargetStart(TargetStart::new(now, MEMORY, 0, "physical"))
}

/// Drops the mappings among the items from `first` on: they are virtual addresses, which a record by frame does not
/// hold.
pub(crate) fn drop_mappings(items: &mut Vec<Item>, first: usize) {
    let mappings = items.extract_if(first.., |item| matches!(item, Item::Mappings(_)));
    mappings.for_each(drop);
}

pub(crate) fn frames(range: &AddressRange) -> Range<u64> {
    range.start / PAGE_SIZE..range.end / PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_once_and_its_intervals_follow_each_other() {
        let ram = [
            AddressRange::new(0x1000, 0x3000),
            AddressRange::new(0x8000, 0x9000),
        ];
        let mut memory = ByFrame::new(&ram, 10, Nanos(5));
        assert!(memory.start(Nanos(5)).is_some() && memory.start(Nanos(6)).is_none());
        let watched: Vec<u64> = (0..12).filter(|frame| memory.has(*frame)).collect();
        assert_eq!(watched, [1, 2, 8]);
        let mut frames = FrameMap::default();
        let mut reported = Vec::new();
        for now in [7, 9] {
            if let Item::Snapshot(snapshot) = memory.snapshot(&mut frames, Nanos(now)) {
                reported.push((snapshot.start.0, snapshot.end.0));
            }
        }
        assert_eq!(reported, [(5, 7), (7, 9)]);
    }
}
