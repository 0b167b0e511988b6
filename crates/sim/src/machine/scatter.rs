//! Physical addresses of frames on a machine that has been in use.
//!
//! The free lists of the highest order are in any order there. So pages that a process fills in a row lie in pieces of
//! 4 MiB all over their zone. (Kernels with `CONFIG_SHUFFLE_PAGE_ALLOCATOR` begin that way.) Compaction and the free
//! lists here use frames, and monitors and actions of physical memory use addresses.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use crate::memory::{BLOCK_PAGES, Memory, SimZone};

/// Frames of a piece, which is a block of the free lists' highest order.
pub(super) const PIECE: u64 = 2 * BLOCK_PAGES;

/// Returns the piece of frames at each piece of addresses. Those of each zone are shuffled (Fisher and Yates).
pub(super) fn pieces(memory: &Memory, random: &mut Pcg64Mcg) -> Vec<u32> {
    let zones = memory.zones();
    let end = zones.iter().map(SimZone::end).max().unwrap_or(0);
    let mut pieces: Vec<u32> = (0..(end / PIECE) as u32).collect();
    for zone in zones {
        let of_zone = &mut pieces[(zone.start / PIECE) as usize..(zone.end() / PIECE) as usize];
        for last in (1..of_zone.len()).rev() {
            of_zone.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use isotherm_engine::PAGE_SIZE;

    use crate::machine::{MachineSpec, NodeSpec, SimMachine};

    #[test]
    fn every_address_has_a_frame_of_its_own_in_its_zone() {
        let machine = SimMachine::new(MachineSpec {
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
