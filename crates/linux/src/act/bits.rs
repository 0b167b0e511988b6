//! One bit for each page of a 2 MiB block.

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE};

/// Bit `i` is page `i`.
pub(super) type Bitmap = [u64; 8];

pub(super) const NONE: Bitmap = [0; 8];

pub(super) fn and(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & b[i])
}

pub(super) fn or(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] | b[i])
}

pub(super) fn without(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & !b[i])
}

pub(super) fn pages(bits: &Bitmap) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

pub(super) fn bytes(bits: &Bitmap) -> u64 {
    pages(bits) * PAGE_SIZE
}

pub(super) fn is_empty(bits: &Bitmap) -> bool {
    bits.iter().all(|word| *word == 0)
}

pub(super) fn set(bits: &mut Bitmap, page: usize) {
    bits[page / 64] |= 1 << (page % 64);
}

/// The pages of the block at `block` that lie in `range`.
pub(super) fn mask(block: u64, range: AddressRange) -> Bitmap {
    let whole = AddressRange::new(block, block + BLOCK_SIZE);
    let Some(part) = range.intersection(whole) else {
        return NONE;
    };
    let first = (part.start - block) / PAGE_SIZE;
    let end = (part.end - block).div_ceil(PAGE_SIZE);
    std::array::from_fn(|word| {
        let (low, high) = (word as u64 * 64, word as u64 * 64 + 64);
        let (from, to) = (first.max(low), end.min(high));
        if from >= to {
            return 0;
        }
        (u64::MAX >> (64 - (to - from))) << (from - low)
    })
}

/// Appends the stretches of set pages of the block at `block`, joined to what `ranges` ends with.
pub(super) fn runs(block: u64, bits: &Bitmap, ranges: &mut Vec<AddressRange>) {
    let mut page = 0;
    while page < 512 {
        let word = bits[page / 64] >> (page % 64);
        if word == 0 {
            page = (page / 64 + 1) * 64;
            continue;
        }
        page += word.trailing_zeros() as usize;
        let first = page;
        while page < 512 && bits[page / 64] >> (page % 64) & 1 != 0 {
            page += 1;
        }
        let start = block + first as u64 * PAGE_SIZE;
        let end = block + page as u64 * PAGE_SIZE;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(AddressRange::new(start, end)),
        }
    }
}

/// Which pages are set, in order.
pub(super) fn each(bits: &Bitmap) -> impl Iterator<Item = usize> + '_ {
    bits.iter().enumerate().flat_map(|(word, bits)| {
        let mut left = *bits;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                word * 64 + bit
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = 4 * BLOCK_SIZE;

    fn pages_in(start: u64, end: u64) -> AddressRange {
        AddressRange::new(B + start * PAGE_SIZE, B + end * PAGE_SIZE)
    }

    #[test]
    fn a_range_and_its_pages_are_the_same() {
        for (start, end) in [(0, 512), (0, 1), (63, 65), (64, 128), (511, 512), (5, 300)] {
            let bits = mask(B, pages_in(start, end));
            assert_eq!(pages(&bits), end - start);
            assert!(each(&bits).eq(start as usize..end as usize));
            let mut ranges = Vec::new();
            runs(B, &bits, &mut ranges);
            assert_eq!(ranges, [pages_in(start, end)]);
        }
        assert!(is_empty(&mask(B, AddressRange::new(0, B))));
    }

    #[test]
    fn stretches_are_told_apart_and_joined_across_blocks() {
        let bits = or(&mask(B, pages_in(0, 3)), &mask(B, pages_in(60, 512)));
        let mut ranges = Vec::new();
        runs(B, &bits, &mut ranges);
        runs(B + BLOCK_SIZE, &mask(B, pages_in(0, 2)), &mut ranges);
        assert_eq!(ranges, [pages_in(0, 3), pages_in(60, 514)]);
    }
}
