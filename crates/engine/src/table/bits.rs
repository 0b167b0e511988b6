//! Sets of the pages of one block.

/// One bit for each page of a block.
pub(super) type Bitmap = [u64; 8];

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

pub(super) fn has(bits: &Bitmap, page: usize) -> bool {
    bits[page / 64] >> (page % 64) & 1 == 1
}
