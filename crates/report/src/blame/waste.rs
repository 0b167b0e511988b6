//! Never-written pages of huge pages, by the first touch of the huge page.
//!
//! Problem: the recorder reads only a few huge pages a second. Some are therefore unknown, and the content of others is
//! old.
//!
//! Approach: each huge page counts with its content at the last read, as long as it is a huge page. A block that is no
//! longer a huge page, or was unmapped, counts nothing. For huge pages that were never read, only their number of bytes
//! is reported. The waste of a huge page is attributed to the first touch within it, since that touch allocated all of
//! it. Without such a sample, it is attributed to the nearest samples, like other memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_record::{HugePagesSample, MappingChange};
use serde::Serialize;

use super::touches::{Touch, Touches};
use super::{Blame, Whole};
use crate::ranges::unmapped;

/// Bytes in huge pages, and the part that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HugeBytes {
    /// Bytes of private anonymous memory in huge pages.
    pub bytes: u64,
    /// Bytes that were read. The content of the rest is unknown, and is not counted.
    pub read_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HugePages {
    targets: BTreeMap<TargetId, OfTarget>,
}

#[derive(Clone, Debug, Default)]
struct OfTarget {
    bytes: u64,
    /// Number of never-written pages of each huge page that was read, by address.
    read: BTreeMap<u64, u32>,
}

impl HugePages {
    pub(super) fn take(&mut self, sample: &HugePagesSample, admits: impl Fn(TargetId) -> bool) {
        for new in sample.targets.iter().filter(|new| admits(new.target)) {
            let of_target = self.targets.entry(new.target).or_default();
            of_target.bytes = new.bytes;
            for block in &new.gone {
                of_target.read.remove(block);
            }
            let read = new.read.iter();
            let read = read.map(|read| (read.block, read.never_written));
            of_target.read.extend(read);
        }
    }

    pub(super) fn apply(&mut self, change: &MappingChange) {
        let Some(of_target) = self.targets.get_mut(&change.target) else {
            return;
        };
        for gone in unmapped(change) {
            // A block also counts as gone if only a part of it is unmapped: it is no longer a huge page.
            let first = gone.start.saturating_sub(BLOCK_SIZE - 1);
            let gone = of_target.read.extract_if(first..gone.end, |_, _| true);
            gone.for_each(drop);
        }
    }
}

impl Blame {
    /// Adds the waste of one target's huge pages by the touches that own them, and the bytes of its huge pages.
    pub(super) fn add_waste(
        &self,
        target: TargetId,
        whole: &mut Whole,
        huge: &mut Option<HugeBytes>,
    ) {
        let Some(of_target) = self.huge.targets.get(&target) else {
            return;
        };
        let huge = huge.get_or_insert_default();
        let read_bytes = of_target.read.len() as u64 * BLOCK_SIZE;
        huge.bytes = huge.bytes.saturating_add(of_target.bytes);
        huge.read_bytes += read_bytes.min(of_target.bytes);
        let nothing = Touches::default();
        let touches = self.touches.get(&target).unwrap_or(&nothing);
        for (block, pages) in of_target.read.iter().filter(|(_, pages)| **pages > 0) {
            let bytes = u64::from(*pages) * PAGE_SIZE;
            whole.total += bytes;
            let range = AddressRange::new(*block, block.saturating_add(BLOCK_SIZE));
            let part = self.mappings.parts(target, range).next();
            let Some((_, name)) = part.filter(|(part, _)| *part == range) else {
                whole.not_sampled += bytes as f64;
                continue;
            };
            let mapping = self.mappings.whole(target, range);
            touches.owners_of_block(range, mapping, &mut |part, share, owner| {
                let density = bytes as f64 / BLOCK_SIZE as f64;
                let bytes = part.len() as f64 * share * density;
                whole.take(bytes, owner, |touch: &Touch| {
                    (target, touch.stack, touch.thread, Arc::clone(name))
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{Nanos, Snapshot};
    use isotherm_record::item::{Header, Item};
    use isotherm_record::stacks::NO_STACK;
    use isotherm_record::{
        FaultSample, HugePageRead, StackFrame, StackId, StackNode, StackSamples, TargetHugePages,
    };

    use super::super::{BlameOptions, BlameReport, Measure};
    use super::*;
    use crate::Accumulate;
    use crate::context::Scope;
    use crate::test_records::{idle_region, mapping};

    const TARGET: TargetId = TargetId(0);
    const BASE: u64 = 0x7f00_0000_0000;

    fn block(number: u64) -> u64 {
        BASE + number * BLOCK_SIZE
    }

    fn second(second: u64) -> Nanos {
        Nanos::from_millis(second * 1000)
    }

    /// Begins a record with `nr_blocks` blocks in one mapping, and first touches as block, page in it, function and
    /// second.
    fn begun(nr_blocks: u64, touches: &[(u64, u64, u32, u64)]) -> Blame {
        let options = BlameOptions {
            measure: Measure::Waste,
            ..BlameOptions::default()
        };
        let mut blame = Blame::new(&Header::default(), Scope::default(), options);
        let range = AddressRange::new(BASE, block(nr_blocks));
        let samples = touches.iter().map(|(number, page, stack, at)| FaultSample {
            time: second(*at),
            address: block(*number) + page * PAGE_SIZE,
            stack: StackId(*stack),
            pages: 512,
            ..FaultSample::default()
        });
        let mappings = vec![mapping(range, "")];
        let mappings = MappingChange::adding(Nanos(0), TARGET, mappings);
        blame.push(&Item::Mappings(mappings));
        let frames = ["sparse", "dense"].map(|name| StackFrame::Named(name.to_owned()));
        let caller = NO_STACK;
        let stacks = [0, 1].map(|frame| StackNode { caller, frame });
        blame.push(&Item::Stacks(StackSamples {
            frames: frames.into(),
            stacks: stacks.into(),
            threads: vec!["main".to_owned()],
            samples: samples.collect(),
            ..StackSamples::default()
        }));
        let idle = vec![idle_region(range, range.len())];
        let snapshot = Snapshot::new(TARGET, (second(8), second(9)), 1, idle);
        blame.push(&Item::Snapshot(snapshot));
        blame
    }

    /// Builds an item with `nr` huge pages, and reads as block and number of never-written pages.
    fn read(nr: u64, read: &[(u64, u32)], gone: &[u64]) -> Item {
        let read = read.iter().map(|(number, never_written)| HugePageRead {
            block: block(*number),
            never_written: *never_written,
            time: second(9),
        });
        Item::HugePages(HugePagesSample {
            time: second(9),
            targets: vec![TargetHugePages {
                target: TARGET,
                bytes: nr * BLOCK_SIZE,
                read: read.collect(),
                gone: gone.iter().map(|number| block(*number)).collect(),
            }],
        })
    }

    fn report(blame: &mut Blame) -> BlameReport {
        blame.report().expect("there are stacks")
    }

    /// Returns pages by function, and those without an owner.
    fn pages(report: &BlameReport) -> Vec<(&str, u64)> {
        let blamed = report.blamed.iter();
        let blamed = blamed.map(|of| (of.name.as_str(), of.bytes / PAGE_SIZE));
        let unsampled = report.unknown.not_sampled / PAGE_SIZE;
        let unsampled = (unsampled > 0).then_some(("?", unsampled));
        blamed.chain(unsampled).collect()
    }

    #[test]
    fn what_was_never_written_is_laid_to_the_first_touch_and_what_was_not_read_is_not_counted() {
        // Another stack has touched the first block, too, after it was split and became a huge page again.
        let mut blame = begun(8, &[(0, 9, 1, 1), (0, 200, 2, 3), (2, 0, 2, 2)]);
        blame.push(&read(4, &[(0, 384), (2, 0)], &[]));
        let said = report(&mut blame);
        assert_eq!(pages(&said), [("sparse", 384)]);
        let huge = said.huge.expect("of a target");
        assert_eq!(huge.bytes, 4 * BLOCK_SIZE);
        assert_eq!(huge.read_bytes, 2 * BLOCK_SIZE);
        assert_eq!(said.total_bytes, said.blamed_bytes);
        // Another stack's touch within the block makes the result likely only.
        assert_eq!(said.likely_bytes, said.total_bytes);
    }

    #[test]
    fn what_was_read_last_counts_and_what_is_no_huge_page_any_more_does_not() {
        let mut blame = begun(8, &[(0, 0, 1, 1), (1, 0, 1, 1), (7, 0, 2, 1)]);
        blame.push(&read(3, &[(0, 500), (1, 100), (7, 50)], &[]));
        blame.push(&read(2, &[(0, 30)], &[1]));
        assert_eq!(pages(&report(&mut blame)), [("dense", 50), ("sparse", 30)]);
        // A part of the block is unmapped.
        blame.push(&Item::Mappings(MappingChange {
            target: TARGET,
            time: second(10),
            removed: vec![AddressRange::new(block(0) + PAGE_SIZE, block(1))],
            ..MappingChange::default()
        }));
        assert_eq!(pages(&report(&mut blame)), [("dense", 50)]);
    }

    #[test]
    fn a_huge_page_without_a_sample_is_laid_to_the_nearest_or_to_nobody() {
        let mut blame = begun(40, &[(0, 0, 1, 1), (2, 0, 1, 1)]);
        blame.push(&read(3, &[(1, 100), (39, 7)], &[]));
        assert_eq!(pages(&report(&mut blame)), [("sparse", 100), ("?", 7)]);
    }

    #[test]
    fn where_nothing_is_known_nothing_is_said() {
        let mut blame = begun(8, &[]);
        assert_eq!(report(&mut blame).huge, None);
        blame.push(&read(0, &[], &[]));
        assert_eq!(report(&mut blame).huge, Some(HugeBytes::default()));
        let resident = blame.report_of(Measure::Resident, Nanos(0));
        let resident = resident.expect("stacks");
        assert_eq!(resident.huge, None);
        assert_eq!(resident.total_bytes, 8 * BLOCK_SIZE);
    }
}
