//! Sets of the pages of one block.

/// One bit for each page of a block.
pub(super) type Bitmap = [u64; 8];

pub(super) const NONE: Bitmap = [0; 8];
pub(super) const ALL: Bitmap = [u64::MAX; 8];

pub(super) fn mask_of(pages: std::ops::Range<usize>) -> Bitmap {
    std::array::from_fn(|word| {
        let low = pages.start.clamp(word * 64, word * 64 + 64) - word * 64;
        let high = pages.end.clamp(word * 64, word * 64 + 64) - word * 64;
        let below = |n: usize| if n == 64 { u64::MAX } else { (1 << n) - 1 };
        below(high) & !below(low)
    })
}

pub(super) fn and(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & b[i])
}

pub(super) fn and_not(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & !b[i])
}

pub(super) fn or(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] | b[i])
}

pub(super) fn count(bits: &Bitmap) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

pub(super) fn is_empty(bits: &Bitmap) -> bool {
    bits.iter().all(|word| *word == 0)
}

/// The first page at or after `from`.
pub(super) fn next(bits: &Bitmap, from: usize) -> Option<usize> {
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

/// One past the last page.
pub(super) fn end(bits: &Bitmap) -> usize {
    let last = bits.iter().rposition(|word| *word != 0);
    last.map_or(0, |word| {
        word * 64 + 64 - bits[word].leading_zeros() as usize
    })
}
