//! The encoding of blocks that a snapshot lists page by page.
//!
//! Problem: the bitmaps beside a snapshot's regions ([`isotherm_engine::BlockPages`]) take 272 bytes a block. Most of
//! them are all zeros, all ones or equal to one another, and a record's rows are regions.
//!
//! Approach: the bitmaps are an item of their own just before their snapshot's rows. The item is JSON with one string:
//! base64 (RFC 4648) of zlib (RFC 1950) of the blocks. Each block has its address and `untouched_for` (8 bytes each,
//! little endian), a byte of tags, and 64 bytes for each bitmap that follows. The byte holds four two-bit tags (from
//! the lowest: resident, touched, unknown, swapped). Tag 0 means none, 1 all, 2 equal to resident, 3 that the bitmap
//! follows. The reader yields the blocks within their snapshot.
//!
//! Limits: a snapshot has at most [`MAX_BLOCKS`] blocks.

use isotherm_engine::{BlockPages, Nanos, Snapshot, TargetId};
use serde::{Deserialize, Serialize};

use crate::packed::{self, Packed};
use crate::pages::{PageBits, bits, check_addresses, push_bits};

/// The largest number of blocks of one snapshot: 128 GiB.
pub const MAX_BLOCKS: usize = 64 << 10;

const BYTES_MAX: usize = 8 + 8 + 1 + 4 * 64;
const NONE: u8 = 0;
const ALL: u8 = 1;
const AS_RESIDENT: u8 = 2;
const FOLLOWS: u8 = 3;

/// Blocks listed page by page, of the snapshot that follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotBlocks {
    /// The snapshot's target.
    pub target: TargetId,
    /// The snapshot's start.
    pub start: Nanos,
    /// The snapshot's end.
    pub end: Nanos,
    /// The blocks in address order.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(with = "packed")]
    pub blocks: Vec<BlockPages>,
}

impl SnapshotBlocks {
    /// Copies the blocks of `snapshot`.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            target: snapshot.target,
            start: snapshot.start,
            end: snapshot.end,
            blocks: snapshot.blocks.clone(),
        }
    }

    /// Moves the blocks into `snapshot`, if they belong to it.
    pub(crate) fn give(self, snapshot: &mut Snapshot) {
        if (self.target, self.start, self.end) == (snapshot.target, snapshot.start, snapshot.end) {
            snapshot.blocks = self.blocks;
        }
    }
}

/// Checks the blocks of a snapshot, and returns a description of the first fault.
pub(crate) fn check(blocks: &[BlockPages]) -> Result<(), String> {
    if blocks.len() > MAX_BLOCKS {
        return Err(format!(
            "has {} blocks with pages, more than {MAX_BLOCKS}",
            blocks.len()
        ));
    }
    check_addresses(blocks.iter().map(|block| block.block))?;
    blocks.iter().try_for_each(|block| {
        let wrong = |why| format!("has the block {:#x}, which {why}", block.block);
        block.check().map_err(wrong)
    })
}

impl Packed for BlockPages {
    const CUT: &'static str = "a block's pages are cut";
    const BYTES: (u64, &'static str) = (
        (MAX_BLOCKS * BYTES_MAX) as u64,
        "more blocks than a snapshot can have",
    );

    fn push(&self, _: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(&self.block.to_le_bytes());
        bytes.extend_from_slice(&self.untouched_for.0.to_le_bytes());
        let tags_at = bytes.len();
        bytes.push(0);
        let maps = [self.resident, self.touched, self.unknown, self.swapped];
        for (i, map) in maps.iter().enumerate() {
            let tag = if *map == PageBits::default() {
                NONE
            } else if *map == [u64::MAX; 8] {
                ALL
            } else if i > 0 && *map == self.resident {
                AS_RESIDENT
            } else {
                push_bits(bytes, map);
                FOLLOWS
            };
            bytes[tags_at] |= tag << (2 * i);
        }
        Ok(())
    }

    fn take(rest: &mut &[u8], _: Option<&Self>) -> Option<Self> {
        let block = take_word(rest)?;
        let untouched_for = Nanos(take_word(rest)?);
        let (tags, after) = rest.split_first()?;
        *rest = after;
        let mut maps = [PageBits::default(); 4];
        for i in 0..maps.len() {
            maps[i] = match tags >> (2 * i) & 3 {
                NONE => PageBits::default(),
                ALL => [u64::MAX; 8],
                // In the first map this tag means all zeros.
                AS_RESIDENT => maps[0],
                _ => {
                    let (map, after) = rest.split_at_checked(size_of::<PageBits>())?;
                    *rest = after;
                    bits(map)
                }
            };
        }
        let [resident, touched, unknown, swapped] = maps;
        Some(Self {
            block,
            resident,
            touched,
            unknown,
            swapped,
            untouched_for,
        })
    }
}

fn take_word(rest: &mut &[u8]) -> Option<u64> {
    let (word, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    use super::*;
    use crate::tests::{header, read, snapshot, write};
    use crate::{Item, Reader};

    fn block(number: u64) -> BlockPages {
        BlockPages {
            block: number << 21,
            resident: [u64::MAX; 8],
            touched: [0x5555_5555_5555_5555; 8],
            unknown: [0xa, 0, 0, 0, 0, 0, 0, 0],
            untouched_for: Nanos(7),
            ..BlockPages::default()
        }
    }

    fn with_blocks(target: u32, tenth: u64) -> Item {
        let picture = "[512,1536)=3@1:1024/512/4/0 [2048,2050)=1@1:2/1/0/0";
        Item::Snapshot(Snapshot {
            blocks: vec![block(1), block(2)],
            ..snapshot(target, tenth, picture)
        })
    }

    #[test]
    fn they_come_back_within_their_snapshot() {
        let without = Item::Snapshot(snapshot(2, 0, "[512,1536)=3@1"));
        let items = [
            with_blocks(0, 0),
            with_blocks(1, 0),
            without,
            with_blocks(0, 1),
        ];
        assert_eq!(read(&write(&header(), &items)).0, items);
    }

    #[test]
    fn who_wants_pages_as_regions_gets_them() {
        let bytes = write(&header(), &[with_blocks(0, 0)]);
        let mut reader = Reader::open(&bytes[..]).expect("readable");
        let snapshot = reader.snapshots().next().expect("one").expect("whole");
        let touched = |pages: std::ops::Range<u64>| {
            let its = snapshot.regions.iter();
            let its = its.filter(|r| pages.contains(&(r.range.start / 4096)));
            its.map(isotherm_engine::RegionSnapshot::touched)
                .sum::<u64>()
                / 4096
        };
        assert_eq!((touched(512..513), touched(513..514)), (1, 0));
        assert_eq!(touched(512..1536), 512);
        assert!(snapshot.blocks.is_empty());
    }

    #[test]
    fn any_bitmaps_are_packed_and_unpacked() {
        let pattern = |seed: u64| std::array::from_fn(|i| seed.rotate_left(i as u32 * 7));
        let mut odd = block(3);
        odd.resident = pattern(0x1234_5678_9abc_def1);
        odd.touched = odd.resident;
        odd.unknown = [0; 8];
        odd.swapped = odd.resident.map(|word| !word);
        let blocks = SnapshotBlocks {
            blocks: vec![BlockPages::default(), block(1), odd],
            target: TargetId(1),
            start: Nanos(1),
            end: Nanos(2),
        };
        let json = serde_json::to_string(&blocks).expect("packs");
        let back: SnapshotBlocks = serde_json::from_str(&json).expect("unpacks");
        assert_eq!(back, blocks);
        let text = BASE64_STANDARD.encode([1, 2, 3]);
        for broken in ["no base64", &text] {
            let mut value = serde_json::to_value(&blocks).expect("packs");
            value["blocks"] = broken.into();
            assert!(serde_json::from_value::<SnapshotBlocks>(value).is_err());
        }
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        let backward = [block(2), block(1)];
        assert!(check(&backward).is_err_and(|why| why.contains("out of order")));
        let mut astray = block(1);
        astray.block = 1;
        assert!(check(&[astray]).is_err_and(|why| why.contains("where a block can be")));
        let many = vec![BlockPages::default(); MAX_BLOCKS + 1];
        assert!(check(&many).is_err_and(|why| why.contains("more than")));
    }
}
