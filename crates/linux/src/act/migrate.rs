//! Moves pages to another node with move_pages(2).

use isotherm_engine::{PAGE_SIZE, TargetId};
use isotherm_policy::Refusal;
use isotherm_policy::scheme::Destination;

use super::batch::Block;
use super::{ProcessActuator, bits, refuse_all};
use crate::node;
use crate::probe::{Leaf, Result};
use crate::process::{Process, ProcessError};

/// Pages in one call: it takes and returns a word for each.
const CHUNK_PAGES: usize = 4096;

impl ProcessActuator {
    /// Moves the wanted pages, divided by the destinations' weights. Idle pages stay idle.
    pub(super) fn migrate(
        &mut self,
        target: TargetId,
        destinations: &[Destination],
        is_idle: bool,
        blocks: &mut [Block],
    ) -> Result<()> {
        let Some(process) = self.probe.process(target) else {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        let pages: Vec<(usize, usize)> = blocks
            .iter()
            .enumerate()
            .flat_map(|(i, block)| {
                // A huge page moves as a whole, by its first page.
                let nr = if block.huge { 1 } else { usize::MAX };
                let pages: Vec<usize> = bits::each(&block.wanted).take(nr).collect();
                pages.into_iter().map(move |page| (i, page))
            })
            .collect();
        let mut hidden = Vec::new();
        for chunk in pages.chunks(CHUNK_PAGES) {
            let addresses: Vec<u64> = chunk
                .iter()
                .map(|(i, page)| blocks[*i].address + *page as u64 * PAGE_SIZE)
                .collect();
            let mut status = statuses(process.nodes_of(&addresses), addresses.len())?;
            let wanted: Vec<i32> = addresses
                .iter()
                .map(|address| node_for(*address, destinations))
                .collect();
            for (i, now) in move_elsewhere(process, &addresses, &wanted, &status)? {
                let (block, page) = chunk[i];
                let pages = pages_of(&blocks[block], page);
                if now == wanted[i] {
                    blocks[block].moved(&pages, status[i], now);
                } else if now == -libc::ENOENT {
                    hidden.push(Hidden {
                        block,
                        page,
                        address: addresses[i],
                        node: wanted[i],
                    });
                } else {
                    blocks[block].refuse(&pages, refusal(now));
                }
                status[i] = i32::MIN;
            }
            // A page that was there already needed no move.
            for (&(block, page), &status) in chunk.iter().zip(&status) {
                if status != i32::MIN {
                    let pages = pages_of(&blocks[block], page);
                    blocks[block].refuse(&pages, Refusal::NotPresent);
                }
            }
        }
        if hidden.is_empty() {
            return Ok(());
        }
        self.move_hidden(target, hidden, is_idle, blocks)
    }

    /// Moves pages that NUMA balancing has unmapped to see their user. From Linux 6.1 to 6.4 move_pages(2) does not see
    /// them either (until *mm/gup: reintroduce FOLL_NUMA as FOLL_HONOR_NUMA_FAULT*), so they are read first. Reading
    /// may also move them, which their frames show.
    fn move_hidden(
        &mut self,
        target: TargetId,
        hidden: Vec<Hidden>,
        is_idle: bool,
        blocks: &mut [Block],
    ) -> Result<()> {
        let spans = |pages: &[Hidden]| -> Vec<(u64, u32)> {
            pages.iter().map(|page| (page.address, 1)).collect()
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        if !self.probe.leaves(target, &spans(&hidden), &mut before)? {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        }
        let (hidden, gone): (Vec<_>, Vec<_>) = hidden
            .into_iter()
            .zip(before)
            .partition(|(_, leaf)| leaf.is_present());
        for (page, _) in gone {
            let pages = pages_of(&blocks[page.block], page.page);
            blocks[page.block].refuse(&pages, Refusal::NotPresent);
        }
        let (hidden, before): (Vec<Hidden>, Vec<Leaf>) = hidden.into_iter().unzip();
        let addresses: Vec<u64> = hidden.iter().map(|page| page.address).collect();
        let Some(process) = self.probe.process(target) else {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        process.fault_in(&addresses);
        let wanted: Vec<i32> = hidden.iter().map(|page| page.node).collect();
        let mut status = statuses(process.nodes_of(&addresses), addresses.len())?;
        for (i, now) in move_elsewhere(process, &addresses, &wanted, &status)? {
            status[i] = now;
        }
        if !self.probe.leaves(target, &spans(&hidden), &mut after)? {
            refuse_all(blocks, Refusal::Exited);
            return Ok(());
        }
        let mut read: Vec<Block> = Vec::new();
        let zones = node::zones().unwrap_or_default();
        for (i, page) in hidden.iter().enumerate() {
            let block = &mut blocks[page.block];
            let pages = pages_of(block, page.page);
            let has_moved = before[i].frame() != after[i].frame();
            if read.last().is_none_or(|last| last.address != block.address) {
                let wanted = bits::NONE;
                read.push(Block {
                    wanted,
                    ..block.clone()
                });
            }
            if let Some(read) = read.last_mut() {
                read.wanted = bits::or(&read.wanted, &pages);
            }
            if status[i] != page.node {
                block.refuse(&pages, refusal(status[i]));
            } else if has_moved {
                let from = node::node_of(&zones, before[i].frame());
                block.moved(&pages, from.map_or(-1, |node| node as i32), page.node);
            } else {
                block.refuse(&pages, Refusal::NotPresent);
            }
        }
        if is_idle {
            // Only this process has read it.
            self.make_old(target, &mut read)?;
        }
        Ok(())
    }
}

/// A page that is present in its page table but not according to `move_pages`.
struct Hidden {
    block: usize,
    page: usize,
    address: u64,
    node: i32,
}

/// Moves those pages that are not on the wanted node. Returns the place of each among `addresses`, and its node
/// afterwards or a negative errno.
fn move_elsewhere(
    process: &Process,
    addresses: &[u64],
    wanted: &[i32],
    now: &[i32],
) -> Result<Vec<(usize, i32)>, ProcessError> {
    let places = 0..addresses.len();
    let moving: Vec<usize> = places.filter(|&i| now[i] != wanted[i]).collect();
    let from: Vec<u64> = moving.iter().map(|&i| addresses[i]).collect();
    let to: Vec<i32> = moving.iter().map(|&i| wanted[i]).collect();
    let after = statuses(process.move_pages(&from, &to), from.len())?;
    Ok(moving.into_iter().zip(after).collect())
}

/// Returns the answer for `nr` pages; `ESRCH` for each if the process has ended.
fn statuses(answer: Result<Vec<i32>, ProcessError>, nr: usize) -> Result<Vec<i32>, ProcessError> {
    match answer {
        Err(ProcessError::NoSuchProcess { .. }) => Ok(vec![-libc::ESRCH; nr]),
        answer => answer,
    }
}

/// Returns the pages that move with `page`.
fn pages_of(block: &Block, page: usize) -> bits::Bitmap {
    if block.huge {
        return block.wanted;
    }
    let mut pages = bits::NONE;
    bits::set(&mut pages, page);
    pages
}

/// Returns the destination node of a page: chosen by its address, so that it is always the same, in proportion to the
/// weights.
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

/// Maps a status of `move_pages` to a refusal.
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
