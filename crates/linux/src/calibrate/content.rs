//! Content of the pages with which costs are measured: copies of a process's pages, or generated ones.

use isotherm_engine::{AddressRange, PAGE_SIZE};

use super::{CalibrationError, Result};
use crate::process::Process;

/// Number of pages that are enough to measure with.
pub const PAGES: usize = 512;

/// Copies at most `pages` pages, spread over a process's private memory, or over those parts of it that lie `within`.
pub fn content_of(pid: u32, pages: usize, within: Option<&[AddressRange]>) -> Result<Vec<u8>> {
    let process = Process::open(pid)?;
    let mappings = process.mappings()?;
    let private = mappings.iter().filter(|area| area.is_private_anonymous());
    let mut ranges: Vec<AddressRange> = private.map(|area| area.range).collect();
    if let Some(within) = within {
        let is_private = |part: &&AddressRange| {
            let next = ranges.partition_point(|range| range.end <= part.start);
            ranges
                .get(next)
                .is_some_and(|range| range.start <= part.start && part.end <= range.end)
        };
        ranges = within.iter().filter(is_private).copied().collect();
    }
    let bytes: u64 = ranges.iter().map(|range| range.len()).sum();
    // Much of an address space may be empty: more addresses are tried than are wanted.
    let step = (bytes / PAGE_SIZE / (64 * pages.max(1) as u64)).max(1) * PAGE_SIZE;
    let mut addresses: Vec<u64> = ranges
        .iter()
        .flat_map(|range| (range.start..range.end).step_by(step as usize))
        .collect();
    let map = process.page_map();
    let map = map.map_err(|_| CalibrationError::Unseen(pid))?;
    // Copying absent pages would read them back, or allocate them.
    addresses.retain(|address| map.is_present(*address));
    let step = addresses.len().div_ceil(pages.max(1)).max(1);
    let (mut content, mut page) = (Vec::new(), vec![0; PAGE_SIZE as usize]);
    for address in addresses.into_iter().step_by(step) {
        if process.copy(address, &mut page) {
            content.extend_from_slice(&page);
        }
    }
    if content.is_empty() {
        return Err(CalibrationError::NotCopied(pid));
    }
    Ok(content)
}

/// Returns generated content, as a substitute for a program's own: half of each page is random.
pub fn made_up_content(pages: usize) -> Vec<u8> {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut content = vec![0; pages * PAGE_SIZE as usize];
    for page in content.chunks_mut(PAGE_SIZE as usize) {
        for word in page[..PAGE_SIZE as usize / 2].chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&random.to_le_bytes());
        }
    }
    content
}
