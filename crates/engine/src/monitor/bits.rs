//! Sets of the pages of one block.

/// One bit for each page of a block: bit `i % 64` of word `i / 64` is page `i`.
pub(crate) type Bitmap = [u64; 8];

pub(crate) const NONE: Bitmap = [0; 8];
pub(crate) const ALL: Bitmap = [u64::MAX; 8];

pub(crate) fn mask_of(pages: std::ops::Range<usize>) -> Bitmap {
    std::array::from_fn(|word| {
        let low = pages.start.clamp(word * 64, word * 64 + 64) - word * 64;
        let high = pages.end.clamp(word * 64, word * 64 + 64) - word * 64;
        let below = |n: usize| if n == 64 { u64::MAX } else { (1 << n) - 1 };
        below(high) & !below(low)
    })
}

pub(crate) fn and(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & b[i])
}

pub(crate) fn and_not(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] & !b[i])
}

pub(crate) fn or(a: &Bitmap, b: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| a[i] | b[i])
}

pub(crate) fn count(bits: &Bitmap) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

pub(crate) fn has(bits: &Bitmap, page: usize) -> bool {
    bits[page / 64] >> (page % 64) & 1 == 1
}

pub(crate) fn is_empty(bits: &Bitmap) -> bool {
    bits.iter().all(|word| *word == 0)
}

/// The first page at or after `from`.
pub(crate) fn next(bits: &Bitmap, from: usize) -> Option<usize> {
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

/// How often neighbouring pages differ.
pub(crate) fn nr_changes(bits: &Bitmap) -> u32 {
    let mut before = bits[0] & 1;
    let mut changes = 0;
    for word in bits {
        changes += (word ^ (word << 1 | before)).count_ones();
        before = word >> 63;
    }
    changes
}

/// One past the last page.
pub(crate) fn end(bits: &Bitmap) -> usize {
    let last = bits.iter().rposition(|word| *word != 0);
    last.map_or(0, |word| {
        word * 64 + 64 - bits[word].leading_zeros() as usize
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
        assert_eq!(
            (next(&pages, 0), next(&pages, 71), next(&pages, 72)),
            (Some(70), Some(71), None)
        );
        assert_eq!((end(&pages), end(&NONE)), (72, 0));
    }
}
