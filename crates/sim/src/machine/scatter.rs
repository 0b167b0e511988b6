//! Where frames are in physical addresses, on a machine that has been in use: the free lists of the highest
//! order are in any order there, so that what a process fills in a row is in pieces of 4 MiB all over its zone.
//! (Kernels with `CONFIG_SHUFFLE_PAGE_ALLOCATOR` begin that way.) Compaction and the free lists here go by frames,
//! monitors and actions of physical memory by addresses.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use crate::memory::{BLOCK_PAGES, Memory, Zone};

/// Frames of a piece: the highest order of the free lists.
pub(super) const PIECE: u64 = 2 * BLOCK_PAGES;

/// By pieces of addresses the piece of frames: those of each zone shuffled (Fisher and Yates).
pub(super) fn pieces(memory: &Memory, random: &mut Pcg64Mcg) -> Vec<u32> {
    let zones = memory.zones();
    let end = zones.iter().map(Zone::end).max().unwrap_or(0);
    let mut pieces: Vec<u32> = (0..(end / PIECE) as u32).collect();
    for zone in zones {
        let of_zone = &mut pieces[(zone.start() / PIECE) as usize..(zone.end() / PIECE) as usize];
        for last in (1..of_zone.len()).rev() {
            of_zone.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use isotherm_engine::PAGE_SIZE;

    use crate::machine::{Machine, MachineSpec, NodeSpec};

    #[test]
    fn every_address_has_a_frame_of_its_own_in_its_zone() {
        let machine = Machine::new(MachineSpec {
            nodes: vec![NodeSpec::new(4 << 30), NodeSpec::new(1 << 30)],
            is_scattered: true,
            ..MachineSpec::default()
        });
        let frames = (5 << 30) / PAGE_SIZE;
        let mut seen = vec![false; frames as usize];
        let mut in_place = 0;
        for address in 0..frames {
            let frame = machine.frame_at(address * PAGE_SIZE);
            assert!(!std::mem::replace(&mut seen[frame as usize], true));
            assert_eq!(machine.node_of(frame), machine.node_of(address));
            in_place += u64::from(frame == address);
        }
        assert!(in_place < frames / 20, "{in_place} of {frames}");
    }
}
