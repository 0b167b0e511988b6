//! Keeps the segments in step with the target's mappings and page tables.

use super::segment::{Segment, block_of};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::snapshot::TargetId;

/// A mapping, by its range; its start serves as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Where.
    pub range: AddressRange,
}

/// A layout that was told before.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    mappings: Vec<MappedRange>,
    blocks: Vec<u64>,
    /// How often it has been the same again.
    pub(super) nr_same: u32,
}

impl Known {
    pub(super) fn is(&self, mappings: &[MappedRange], blocks: &[u64]) -> bool {
        self.mappings == mappings && self.blocks == blocks
    }

    pub(super) fn keep(&mut self, mappings: &[MappedRange], blocks: &[u64]) {
        self.mappings.clear();
        self.mappings.extend_from_slice(mappings);
        self.blocks.clear();
        self.blocks.extend_from_slice(blocks);
    }
}

/// The new segments of `target`: every part of a mapping that lies in one of `blocks` is covered,
/// by the old segments that still fit and by fresh ones for the rest.
pub(super) fn rebuild(
    target: TargetId,
    old: Vec<Segment>,
    mappings: &[MappedRange],
    blocks: &[u64],
    now: Nanos,
) -> Vec<Segment> {
    let mut new = Vec::with_capacity(old.len());
    let mut old = old.into_iter().peekable();
    for piece in pieces(mappings, blocks) {
        let mut covered_to = piece.range.start;
        while let Some(segment) = old.next_if(|s| s.range.start < piece.range.end) {
            let fits = segment.range.start >= covered_to && segment.range.end <= piece.range.end;
            if !fits {
                continue;
            }
            if let Some(gap) = AddressRange::checked(covered_to, segment.range.start) {
                new.push(Segment::new(target, gap, piece.mapping, now));
            }
            covered_to = segment.range.end;
            push_merged(
                &mut new,
                Segment {
                    mapping: piece.mapping,
                    ..segment
                },
                now,
            );
        }
        if let Some(rest) = AddressRange::checked(covered_to, piece.range.end) {
            new.push(Segment::new(target, rest, piece.mapping, now));
        }
    }
    new
}

/// Appends `segment`, joined with the one before it where both have long been alike.
fn push_merged(new: &mut Vec<Segment>, segment: Segment, now: Nanos) {
    if let Some(last) = new.last_mut()
        && last.can_join(&segment, now)
    {
        last.join(&segment);
        return;
    }
    new.push(segment);
}

struct Piece {
    range: AddressRange,
    mapping: u64,
}

/// The parts of the mappings that lie in the blocks, each in one block, in address order.
fn pieces(mappings: &[MappedRange], blocks: &[u64]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(blocks.len());
    let mut at = 0;
    for mapping in mappings {
        // A block may hold several mappings: step back at most to the one the last mapping ended in.
        let first = block_of(mapping.range.start);
        while at > 0 && blocks[at - 1] >= first {
            at -= 1;
        }
        while let Some(&block) = blocks.get(at) {
            if block >= mapping.range.end {
                break;
            }
            let whole = AddressRange::new(block, block + BLOCK_SIZE);
            if let Some(range) = whole.intersection(mapping.range) {
                pieces.push(Piece {
                    range,
                    mapping: mapping.range.start,
                });
            }
            at += 1;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_in_blocks_and_mappings() {
        let map = |start, end| MappedRange {
            range: AddressRange::new(start, end),
        };
        let mappings = [
            map(0x1000, 0x3000),
            map(0x5000, 0x20_2000),
            map(0x60_0000, 0x80_0000),
        ];
        let blocks = [0, 0x20_0000, 0x40_0000, 0x60_0000];
        let got: Vec<_> = pieces(&mappings, &blocks)
            .iter()
            .map(|p| (p.range.start, p.range.end))
            .collect();
        let expected = [
            (0x1000, 0x3000),
            (0x5000, 0x20_0000),
            (0x20_0000, 0x20_2000),
            (0x60_0000, 0x80_0000),
        ];
        assert_eq!(got, expected);
    }
}
