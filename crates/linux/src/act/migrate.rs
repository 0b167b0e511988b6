//! Moves pages to another node with move_pages(2).

use isotherm_engine::scheme::Destination;
use isotherm_engine::{PAGE_SIZE, Refusal, TargetId};

use super::batch::Block;
use super::{ProcessActuator, bits, refuse_all};
use crate::probe::ProbeError;
use crate::process::ProcessError;

/// Pages in one call: it takes and gives a word for each.
const CHUNK_PAGES: usize = 4096;

impl ProcessActuator {
    /// Moves what is wanted, shared out by the destinations' weights.
    pub(super) fn migrate(
        &mut self,
        target: TargetId,
        destinations: &[Destination],
        blocks: &mut [Block],
    ) -> Result<(), ProbeError> {
        let Some(process) = self.probe.process(target) else {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        let pages: Vec<(usize, usize)> = blocks
            .iter()
            .enumerate()
            .flat_map(|(i, block)| {
                // A huge page moves whole, by its first page.
                let nr = if block.huge { 1 } else { usize::MAX };
                let pages: Vec<usize> = bits::each(&block.wanted).take(nr).collect();
                pages.into_iter().map(move |page| (i, page))
            })
            .collect();
        for chunk in pages.chunks(CHUNK_PAGES) {
            let addresses: Vec<u64> = chunk
                .iter()
                .map(|(i, page)| blocks[*i].address + *page as u64 * PAGE_SIZE)
                .collect();
            let before = match process.nodes_of(&addresses) {
                Ok(nodes) => nodes,
                Err(ProcessError::NoSuchProcess { .. }) => {
                    refuse_all(blocks, Refusal::Exited);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let wanted: Vec<i32> = addresses
                .iter()
                .map(|address| node_for(*address, destinations))
                .collect();
            let moving: Vec<usize> = (0..chunk.len())
                .filter(|&i| before[i] != wanted[i])
                .collect();
            let from: Vec<u64> = moving.iter().map(|&i| addresses[i]).collect();
            let to: Vec<i32> = moving.iter().map(|&i| wanted[i]).collect();
            let after = match process.move_pages(&from, &to) {
                Ok(status) => status,
                Err(ProcessError::NoSuchProcess { .. }) => vec![-libc::ESRCH; from.len()],
                Err(error) => return Err(error.into()),
            };
            let mut status = before;
            for (&i, now) in moving.iter().zip(after) {
                let (block, page) = chunk[i];
                let pages = pages_of(&blocks[block], page);
                if now == wanted[i] {
                    blocks[block].applied = bits::or(&blocks[block].applied, &pages);
                } else {
                    blocks[block].refuse(&pages, refusal(now));
                }
                status[i] = i32::MIN;
            }
            // What was there already needed no move.
            for (&(block, page), &status) in chunk.iter().zip(&status) {
                if status != i32::MIN {
                    let pages = pages_of(&blocks[block], page);
                    blocks[block].refuse(&pages, Refusal::NotPresent);
                }
            }
        }
        Ok(())
    }
}

/// The pages that move with `page`.
fn pages_of(block: &Block, page: usize) -> bits::Bitmap {
    if block.huge {
        return block.wanted;
    }
    let mut pages = bits::NONE;
    bits::set(&mut pages, page);
    pages
}

/// The destination of a page: by its address, so that it is the same every time, in proportion to
/// the weights.
fn node_for(address: u64, destinations: &[Destination]) -> i32 {
    let total: u64 = destinations.iter().map(|d| u64::from(d.weight)).sum();
    let hash = (address / PAGE_SIZE).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let mut place = (hash * total) >> 32;
    for destination in destinations {
        let weight = u64::from(destination.weight);
        if place < weight {
            return destination.node as i32;
        }
        place -= weight;
    }
    destinations.last().map_or(-1, |d| d.node as i32)
}

/// What a status of `move_pages` means.
fn refusal(status: i32) -> Refusal {
    match -status {
        libc::ENOENT | libc::EFAULT => Refusal::NotPresent,
        libc::ENOMEM => Refusal::NoRoom,
        libc::EBUSY => Refusal::Locked,
        libc::EACCES => Refusal::Shared,
        libc::EPERM => Refusal::Denied,
        libc::ESRCH => Refusal::Exited,
        _ if status >= 0 => Refusal::Kept,
        _ => Refusal::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_shared_out_by_weight() {
        let destinations = [
            Destination { node: 1, weight: 3 },
            Destination { node: 2, weight: 1 },
        ];
        let of_node_1 = (0..100_000u64)
            .filter(|page| node_for(page * PAGE_SIZE, &destinations) == 1)
            .count();
        assert!((74_000..76_000).contains(&of_node_1), "{of_node_1}");
    }
}
