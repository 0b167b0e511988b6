//! Page table entries, and bitmaps of a whole table of them.
//!
//! Entries are in the form of [`entry`]; a slot's words are those of `bpf/page_table.bpf.c`.

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::table::BlockFacts;

use crate::arch::{TableFormat, entry};

pub(crate) const ENTRIES_PER_TABLE: usize = 512;

pub(super) type RawTable = [u64; ENTRIES_PER_TABLE];

/// One leaf of a page table, or its replacement where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf(pub(super) u64);

impl Leaf {
    pub(super) const PRESENT: u64 = 0x1;
    const ACCESSED: u64 = 0x2;
    const HUGE_2M: u64 = 0x4;
    const LARGER: u64 = 0x8;
    const UNREADABLE: u64 = 0x10;
    const SWAPPED: u64 = 0x40;
    const HUGE_1G: u64 = 0x80;
    pub(super) const CHANGED: u64 = 0x100;
    const SPECIAL: u64 = 0x400;
    const ZEROS: u64 = 0x800;
    pub(super) const TABLE: u64 = 0x200;

    /// Whether a page is present (also one that NUMA balancing made PROT_NONE).
    pub(crate) fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }
    pub(crate) fn is_accessed(self) -> bool {
        self.0 & (Self::PRESENT | Self::ACCESSED) == Self::PRESENT | Self::ACCESSED
    }
    pub(crate) fn is_huge_2m(self) -> bool {
        self.0 & Self::HUGE_2M != 0
    }
    /// Whether the leaf is a block's part of a larger one, with one accessed bit: of 32 or 512 MiB.
    pub(crate) fn is_larger(self) -> bool {
        self.0 & Self::LARGER != 0
    }
    pub(crate) fn is_huge_1g(self) -> bool {
        self.0 & Self::HUGE_1G != 0
    }
    /// Whether the entry has no page of its own: the huge zero page, device memory.
    pub(crate) fn is_special(self) -> bool {
        self.0 & Self::SPECIAL != 0
    }
    /// Whether all of the page is zeros, if its content was read.
    pub(super) fn is_zeros(self) -> bool {
        self.0 & Self::ZEROS != 0
    }
    pub(crate) fn is_unreadable(self) -> bool {
        self.0 & (Self::UNREADABLE | Self::CHANGED) != 0
    }
    pub(crate) fn is_swapped(self) -> bool {
        self.0 & Self::SWAPPED != 0
    }
    /// Returns the number of the (first) frame; meaningful only if a page is present.
    pub(crate) fn frame(self) -> u64 {
        self.0 >> 12
    }
}

impl Leaf {
    /// Converts a lowest-level entry to a slot's words, like `describe` of `page_table.bpf.c`.
    pub(super) fn of_entry(entry: u64, format: TableFormat) -> Self {
        if entry & (entry::PRESENT | entry::ABSENT) == 0 {
            return Self(if entry == 0 { 0 } else { Self::SWAPPED });
        }
        let is_absent = entry & entry::PRESENT == 0;
        let frame = if is_absent { !entry } else { entry } & format.unit_mask();
        let accessed = if entry & entry::ACCESSED == 0 {
            0
        } else {
            Self::ACCESSED
        };
        Self(frame | Self::PRESENT | accessed)
    }

    /// Whether the page lies in `frame`; for a huge leaf, whether the frame is one of its frames.
    pub(super) fn holds(self, frame: u64) -> bool {
        let frames = if self.is_huge_2m() { 512 } else { 1 };
        self.is_present() && self.frame() & !(frames - 1) == frame & !(frames - 1)
    }
}

/// A copied lowest-level table, or the part of one that maps a block: 512 entries of 4 KiB.
#[derive(Clone, Copy)]
pub(crate) struct TableCopy<'a> {
    pub(super) entries: &'a RawTable,
    pub(super) format: TableFormat,
}

const ABSENT_SHIFT: u32 = entry::ABSENT.trailing_zeros();
const ACCESSED_SHIFT: u32 = entry::ACCESSED.trailing_zeros();
/// Such pages do not count as resident.
const SPECIAL_SHIFT: u32 = entry::SPECIAL.trailing_zeros();
/// Swap types from here on are the kernel's own (migration, poison, markers): `MAX_SWAPFILES` is at least 23.
const SWAP_TYPES: u64 = 23;

impl TableCopy<'_> {
    /// Sets the bitmaps of the block that the table maps, which were empty.
    pub(crate) fn read_into(&self, facts: &mut BlockFacts) {
        for (word, entries) in self.entries.as_chunks::<64>().0.iter().enumerate() {
            // Much of a sparse table is empty.
            if entries.iter().fold(0, |any, entry| any | entry) == 0 {
                continue;
            }
            // Flags are first computed as bytes, many entries at a time and without dependencies. The compiler turns
            // that into vector code (of the low 16 bits, so that more fit). Then eight bytes become eight bits by a
            // multiplication.
            let low: [u16; 64] = std::array::from_fn(|i| entries[i] as u16);
            // Present, or absent to the processor alone.
            let mapped: [u16; 64] = low.map(|entry| (entry | entry >> ABSENT_SHIFT) & 1);
            let there: [u16; 64] = std::array::from_fn(|i| mapped[i] & !(low[i] >> SPECIAL_SHIFT));
            facts.present[word] = pack(&there.map(|flag| flag as u8));
            let used: [u8; 64] =
                std::array::from_fn(|i| (there[i] & low[i] >> ACCESSED_SHIFT) as u8);
            facts.accessed[word] = pack(&used);
            let mapped = pack(&mapped.map(|flag| flag as u8));
            if mapped != u64::MAX {
                facts.swapped[word] = swapped(entries, mapped);
            }
        }
    }

    /// Returns the leaf of page `index`.
    pub(super) fn leaf(&self, index: usize) -> Leaf {
        Leaf::of_entry(self.entries[index], self.format)
    }

    /// Returns the frame number of page `index`, if it is present.
    pub(crate) fn frame(&self, index: usize) -> Option<u64> {
        let leaf = self.leaf(index);
        leaf.is_present().then(|| leaf.frame())
    }
}

/// Returns the entries that are not `mapped` and hold a page's place in swap.
fn swapped(entries: &[u64; 64], mapped: u64) -> u64 {
    let mut out = [0u8; 64];
    for (i, entry) in entries.iter().enumerate() {
        out[i] = u8::from(*entry != 0 && entry >> entry::SWAP_TYPE_SHIFT < SWAP_TYPES);
    }
    pack(&out) & !mapped
}

/// Packs bytes that are 0 or 1 into bits: bit `i` of the result is byte `i`.
fn pack(bytes: &[u8; 64]) -> u64 {
    let mut bits = 0;
    for (i, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // Each byte's bit is shifted into the top byte, byte 0 lowest.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= gathered << (i * 8);
    }
    bits
}

/// Replaces the entries of larger pages by those of their parts of 4 KiB.
pub(super) fn spread(entries: &mut RawTable, format: TableFormat) {
    let nr = format.entries_of_block();
    if nr == ENTRIES_PER_TABLE {
        return;
    }
    let (mask, parts) = (format.unit_mask(), ENTRIES_PER_TABLE / nr);
    for at in (0..ENTRIES_PER_TABLE).rev() {
        let entry = entries[at / parts];
        let offset = (at % parts) as u64 * PAGE_SIZE;
        // Bits that are not set in a frame's address are those of its parts.
        entries[at] = match entry & (entry::PRESENT | entry::ABSENT) {
            0 => entry,
            entry::ABSENT => entry & !mask | (entry | mask & !format.frame_mask) & mask & !offset,
            _ => entry | offset,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_tell_present_and_accessed_pages() {
        let mut entries = [0u64; ENTRIES_PER_TABLE];
        entries[0] = 0x21;
        entries[63] = 0x1;
        entries[64] = 0x120; // PROT_NONE and accessed
        entries[100] = 0x221; // the zero page
        entries[101] = 0x20_0000 | 3 << 59; // a swap entry
        entries[102] = 0x20_0000 | 30 << 59; // a migration entry
        let mut facts = BlockFacts::default();
        let copy = TableCopy {
            entries: &entries,
            format: TableFormat {
                page_shift: 12,
                top_shift: 39,
                frame_mask: !0xfff,
                absent: entry::ABSENT,
            },
        };
        copy.read_into(&mut facts);
        let (present, accessed) = (facts.present, facts.accessed);
        assert_eq!((present[0], present[1], present[7]), (1 | 1 << 63, 1, 0));
        assert_eq!(facts.swapped, [0, 1 << 37, 0, 0, 0, 0, 0, 0]);
        assert_eq!((accessed[0], accessed[1], accessed[7]), (1, 1, 0));
    }

    #[test]
    fn parts_of_a_larger_page_have_its_bits_and_neighbouring_frames() {
        let format = TableFormat {
            page_shift: 14,
            top_shift: 36,
            frame_mask: ((1 << 50) - 1) & !0x3fff,
            absent: entry::ABSENT,
        };
        let accessed = 0x1234_4000 | entry::PRESENT | entry::ACCESSED;
        let hidden = !0x1234_8000 & format.frame_mask | entry::ABSENT;
        let mut entries = [0; ENTRIES_PER_TABLE];
        entries[1..3].copy_from_slice(&[accessed, hidden]);
        spread(&mut entries, format);
        let table = TableCopy {
            entries: &entries,
            format,
        };
        let frames: Vec<Option<u64>> = (3..13).map(|page| table.frame(page)).collect();
        let mut wanted = vec![None; 10];
        for at in 0..8 {
            wanted[1 + at] = Some(0x1_2344 + at as u64);
        }
        assert_eq!(frames, wanted);
        assert!((4..8).all(|page| table.leaf(page).is_accessed()));
    }
}
