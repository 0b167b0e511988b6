//! The true state of pages between two spans of exact scans.
//!
//! A page that was touched in both spans counts as in use between them, one that was touched in neither as idle. A page
//! on which the spans differ, or that is not known, is left out: it may have been either.

use std::collections::BTreeMap;

use isotherm_engine::monitor::bits::{self, Bitmap, NONE};
use isotherm_engine::{AddressRange, BLOCK_SIZE};
use isotherm_record::PageSnapshot;
use serde::Serialize;

/// Values of blocks by process id (0: physical memory) and address.
type Blocks<T> = BTreeMap<(u32, u64), T>;

#[derive(Debug, Default)]
pub(super) struct Scans {
    blocks: Blocks<Seen>,
    pub(super) nr: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    present: Bitmap,
    touched: Bitmap,
    unknown: Bitmap,
}

impl Scans {
    pub(super) fn take(&mut self, pid: u32, scan: &PageSnapshot) {
        self.nr += 1;
        for block in &scan.blocks {
            let seen = self.blocks.entry((pid, block.block)).or_insert(Seen {
                present: block.present,
                touched: NONE,
                unknown: NONE,
            });
            // A page that was absent in one of the scans may have been in use or idle.
            seen.present = bits::and(&seen.present, &block.present);
            seen.touched = bits::or(&seen.touched, &block.accessed);
            seen.unknown = bits::or(&seen.unknown, &block.unknown);
        }
    }
}

/// State of pages between two spans, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Truth {
    blocks: Blocks<Known>,
    pub(super) bytes: TruthBytes,
}

/// Bytes of memory, by what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TruthBytes {
    /// Touched before and after.
    pub accessed: u64,
    /// Touched neither before nor after.
    pub idle: u64,
    /// Touched before or after: left out.
    pub changed: u64,
    /// Not known to the scans: left out.
    pub unknown: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    accessed: Bitmap,
    idle: Bitmap,
}

/// Bytes of a range by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) accessed: u64,
    pub(super) idle: u64,
}

impl Truth {
    pub(super) fn between(before: &Scans, after: &Scans) -> Self {
        let mut truth = Self::default();
        for (place, first) in &before.blocks {
            let Some(second) = after.blocks.get(place) else {
                continue;
            };
            let present = bits::and(&first.present, &second.present);
            let unknown = bits::and(&present, &bits::or(&first.unknown, &second.unknown));
            let known = bits::and_not(&present, &unknown);
            let both = bits::and(&first.touched, &second.touched);
            let any = bits::or(&first.touched, &second.touched);
            let accessed = bits::and(&known, &both);
            let idle = bits::and_not(&known, &any);
            let bytes = &mut truth.bytes;
            bytes.accessed += bits::bytes(&accessed);
            bytes.idle += bits::bytes(&idle);
            bytes.unknown += bits::bytes(&unknown);
            bytes.changed += bits::bytes(&bits::and_not(&bits::and_not(&known, &both), &idle));
            truth.blocks.insert(*place, Known { accessed, idle });
        }
        truth
    }

    /// Returns the known bytes of an address range of a process; with `pages`, only those pages of the block.
    pub(super) fn of(&self, pid: u32, range: AddressRange, pages: Option<&Bitmap>) -> Overlap {
        let first = range.start / BLOCK_SIZE * BLOCK_SIZE;
        let blocks = self.blocks.range((pid, first)..(pid, range.end));
        let mut overlap = Overlap::default();
        for ((_, block), known) in blocks {
            let mut mask = bits::mask(*block, range);
            if let Some(pages) = pages {
                mask = bits::and(&mask, pages);
            }
            overlap.accessed += bits::bytes(&bits::and(&known.accessed, &mask));
            overlap.idle += bits::bytes(&bits::and(&known.idle, &mask));
        }
        overlap
    }
}

#[cfg(test)]
mod tests {
    use isotherm_record::PageBlock;

    use super::*;

    /// Returns a scan of one block whose pages are pictured: `#` touched, `.` untouched, `?` unknown, a blank absent.
    fn scan(picture: &str) -> Scans {
        let mut block = PageBlock::default();
        for (page, state) in picture.bytes().enumerate() {
            let bit = 1_u64 << page;
            block.present[0] |= if state == b' ' { 0 } else { bit };
            block.accessed[0] |= if state == b'#' { bit } else { 0 };
            block.unknown[0] |= if state == b'?' { bit } else { 0 };
        }
        let mut scans = Scans::default();
        let scan = PageSnapshot {
            blocks: vec![block],
            ..PageSnapshot::default()
        };
        scans.take(7, &scan);
        scans
    }

    fn check(before: &str, after: &str, accessed: u64, idle: u64, changed: u64, unknown: u64) {
        let truth = Truth::between(&scan(before), &scan(after));
        let pages = |bytes: u64| bytes / isotherm_engine::PAGE_SIZE;
        let bytes = truth.bytes;
        let found = [bytes.accessed, bytes.idle, bytes.changed, bytes.unknown].map(pages);
        let wanted = [accessed, idle, changed, unknown];
        assert_eq!(found, wanted, "'{before}' '{after}'");
        let whole = truth.of(7, AddressRange::new(0, isotherm_engine::BLOCK_SIZE), None);
        assert_eq!((pages(whole.accessed), pages(whole.idle)), (accessed, idle));
        let another = truth.of(8, AddressRange::new(0, 1 << 30), None);
        assert_eq!(another, Overlap::default());
    }

    #[test]
    fn only_what_is_the_same_before_and_after_is_known_between() {
        check("##..", "##..", 2, 2, 0, 0);
        check("##..", "#.#.", 1, 1, 2, 0);
        check("#?. ", "##..", 1, 1, 0, 1);
        check("....", "  ..", 0, 2, 0, 0);
    }
}
