//! Selects the blocks that are reported page by page: those of regions that only give the number of touched pages.

use super::target::Target;
use crate::address::block_of;
use crate::monitor::block_pages::BlockPages;
use crate::monitor::by_page::is_mixed;
use crate::snapshot::RegionSnapshot;

/// Returns the pages of the blocks of `target` that lie in mixed regions, in address order. Returns none if there are
/// more than `most` such blocks.
pub(super) fn blocks(
    target: &Target,
    regions: &[RegionSnapshot],
    now: u32,
    most: usize,
) -> Vec<BlockPages> {
    let mut all = Vec::new();
    let mut at = 0;
    for range in regions.iter().filter(|r| is_mixed(r)).map(|r| r.range) {
        let first = block_of(range.start);
        at += target.blocks[at..].partition_point(|block| block.address < first);
        let rest = &target.blocks[at..];
        let nr = rest.partition_point(|block| block.address < range.end);
        if all.len() + nr > most {
            return Vec::new();
        }
        let reported = rest[..nr].iter();
        all.extend(reported.filter_map(|block| block.by_page(now, target.hides_accesses)));
        at += nr;
    }
    all
}
