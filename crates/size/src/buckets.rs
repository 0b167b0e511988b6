//! Numbers of pages in classes of nearly one size.

/// Classes for each doubling: the ends of a class differ by at most 1.6 %.
const PER_DOUBLING: u64 = 64;

/// Returns the class of a number of pages.
pub(crate) fn class_of(pages: u64) -> usize {
    if pages < PER_DOUBLING {
        return pages as usize;
    }
    let shift = u64::from(pages.ilog2() - PER_DOUBLING.ilog2());
    ((shift + 1) * PER_DOUBLING + (pages >> shift) - PER_DOUBLING) as usize
}

/// Returns the smallest number of pages in a class.
pub(crate) fn first_of(class: usize) -> u64 {
    class.checked_sub(1).map_or(0, |before| last_of(before) + 1)
}

/// Returns the largest number of pages in a class.
pub(crate) fn last_of(class: usize) -> u64 {
    let class = class as u64;
    if class < PER_DOUBLING {
        return class;
    }
    let shift = class / PER_DOUBLING - 1;
    let lead = class % PER_DOUBLING + PER_DOUBLING;
    ((lead + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_in_one_class_and_classes_follow_each_other() {
        for class in 0..2000 {
            let last = last_of(class);
            assert_eq!(class_of(last), class);
            assert_eq!(class_of(last + 1), class + 1);
        }
        let width = |class: usize| last_of(class) as f64 / last_of(class - 1) as f64;
        assert!((100..2000).all(|class| width(class) < 1.016));
    }
}
