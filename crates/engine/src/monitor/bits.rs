//! Sets of the pages of one 2 MiB block.

use crate::address::{AddressRange, BLOCK_SIZE, PAGE_SIZE, PAGES_PER_BLOCK};

/// One bit for each page of a block: bit `i % 64` of word `i / 64` is page `i`.
pub type Bitmap = [u64; PAGES_PER_BLOCK / 64];

/// No page.
pub const NONE: Bitmap = [0; 8];
/// All pages of a block.
pub const ALL: Bitmap = [u64::MAX; 8];

/// Returns the pages `pages`, by index in the block.
pub fn mask_of(pages: std::ops::Range<usize>) -> Bitmap {
    std::array::from_fn(|word| {
        let low = pages.start.clamp(word * 64, word * 64 + 64) - word * 64;
        let high = pages.end.clamp(word * 64, word * 64 + 64) - word * 64;
        let below = |n: usize| if n == 64 { u64::MAX } else { (1 << n) - 1 };
        below(high) & !below(low)
    })
}

/// Returns all pages of each aligned part of `pages` pages that has one in `of`.
pub fn in_parts_of(of: &Bitmap, pages: usize) -> Bitmap {
    if pages <= 1 || is_empty(of) {
        return *of;
    }
    let mut whole = NONE;
    for start in (0..PAGES_PER_BLOCK).step_by(pages) {
        let part = mask_of(start..start + pages);
        if !is_empty(&and(of, &part)) {
            whole = or(&whole, &part);
        }
    }
    whole
}

/// Returns the pages in both.
pub fn and(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & b[i])
}

/// Returns the pages of `a` that are not in `b`.
pub fn and_not(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & !b[i])
}

/// Returns the pages in either.
pub fn or(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] | b[i])
}

/// Returns the number of pages in the set.
pub fn count(bits: &Bitmap) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

/// Returns whether the set has `page`.
pub fn has(bits: &Bitmap, page: usize) -> bool {
    bits[page / 64] >> (page % 64) & 1 == 1
}

/// Returns whether the set is empty.
pub fn is_empty(bits: &Bitmap) -> bool {
    bits.iter().all(|word| *word == 0)
}

/// Returns the first page at or after `from`.
pub fn next(bits: &Bitmap, from: usize) -> Option<usize> {
    let mut word = from / 64;
    let mut rest = *bits.get(word)? & (u64::MAX << (from % 64));
    loop {
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        word += 1;
        rest = *bits.get(word)?;
    }
}

/// Returns the number of neighbouring pages that differ.
pub fn nr_changes(bits: &Bitmap) -> u32 {
    let mut before = bits[0] & 1;
    let mut changes = 0;
    for word in bits {
        changes += (word ^ (word << 1 | before)).count_ones();
        before = word >> 63;
    }
    changes
}

/// Returns the index after the last page; 0 for an empty set.
pub fn end(bits: &Bitmap) -> usize {
    let last = bits.iter().rposition(|word| *word != 0);
    last.map_or(0, |word| {
        word * 64 + 64 - bits[word].leading_zeros() as usize
    })
}

/// Returns the bytes of the pages in the set.
pub fn bytes(bits: &Bitmap) -> u64 {
    u64::from(count(bits)) * PAGE_SIZE
}

/// Returns the first `nr` pages of the set.
pub fn first(bits: &Bitmap, nr: u64) -> Bitmap {
    let mut left = nr;
    let mut first = *bits;
    for word in &mut first {
        while u64::from(word.count_ones()) > left {
            *word &= !(1 << (63 - word.leading_zeros()));
        }
        left -= u64::from(word.count_ones());
    }
    first
}

/// Adds `page`.
pub fn set(bits: &mut Bitmap, page: usize) {
    bits[page / 64] |= 1 << (page % 64);
}

/// Sets a page's bit, or clears it.
pub fn put(bits: &mut Bitmap, page: usize, is_set: bool) {
    let bit = 1 << (page % 64);
    if is_set {
        bits[page / 64] |= bit;
    } else {
        bits[page / 64] &= !bit;
    }
}

/// Returns the pages of the block at `block` that lie in `range`, in part or whole.
pub fn mask(block: u64, range: AddressRange) -> Bitmap {
    let whole = AddressRange::new(block, block + BLOCK_SIZE);
    let Some(part) = range.intersection(whole) else {
        return NONE;
    };
    let first = (part.start - block) / PAGE_SIZE;
    let end = (part.end - block).div_ceil(PAGE_SIZE);
    mask_of(first as usize..end as usize)
}

/// Appends the stretches of set pages of the block at `block`; joins the first one to the end of `ranges` if they
/// touch.
pub fn runs(block: u64, bits: &Bitmap, ranges: &mut Vec<AddressRange>) {
    let mut page = 0;
    while let Some(first) = next(bits, page) {
        page = first;
        while page < PAGES_PER_BLOCK && has(bits, page) {
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

/// Returns the indices of the set pages, in order.
pub fn each(bits: &Bitmap) -> impl Iterator<Item = usize> + '_ {
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

    #[test]
    fn changes_are_counted_across_words() {
        assert_eq!(nr_changes(&NONE), 0);
        assert_eq!(nr_changes(&ALL), 0);
        assert_eq!(nr_changes(&mask_of(3..70)), 2);
        assert_eq!(nr_changes(&mask_of(64..512)), 1);
    }

    #[test]
    fn the_first_page_from_a_place_on_and_the_last_are_found() {
        let pages = mask_of(70..72);
        let found = [0, 71, 72].map(|from| next(&pages, from));
        assert_eq!(found, [Some(70), Some(71), None]);
        assert_eq!((end(&pages), end(&NONE)), (72, 0));
    }

    #[test]
    fn the_first_few_are_taken() {
        let pages = mask_of(60..200);
        for nr in [0, 1, 4, 5, 100, 140, 1000] {
            let wanted = mask_of(60..(60 + nr as usize).min(200));
            assert_eq!(first(&pages, nr), wanted, "{nr}");
        }
    }

    const B: u64 = 4 * BLOCK_SIZE;

    fn pages_in(start: u64, end: u64) -> AddressRange {
        AddressRange::new(B + start * PAGE_SIZE, B + end * PAGE_SIZE)
    }

    #[test]
    fn a_range_and_its_pages_are_the_same() {
        for (start, end) in [(0, 512), (0, 1), (63, 65), (64, 128), (511, 512), (5, 300)] {
            let bits = mask(B, pages_in(start, end));
            assert_eq!(u64::from(count(&bits)), end - start);
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
