//! Numbers whose sums over ranges are quick.

/// Numbers whose sums over ranges are quick: a Fenwick tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Sums of as many numbers up to each place, counted from 1, as the lowest set bit of the place says.
    sums: Vec<u64>,
}

impl Counts {
    pub(crate) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(crate) fn push(&mut self, number: u64) {
        let place = self.len() + 1;
        let first = place - (place & place.wrapping_neg());
        self.sums.push(number + self.sum(first..place - 1));
    }

    pub(crate) fn remove(&mut self, at: usize, number: u64) {
        let mut place = at + 1;
        while place <= self.len() {
            self.sums[place - 1] -= number;
            place += place & place.wrapping_neg();
        }
    }

    pub(crate) fn sum(&self, range: std::ops::Range<usize>) -> u64 {
        self.sum_to(range.end) - self.sum_to(range.start.min(range.end))
    }

    fn sum_to(&self, mut place: usize) -> u64 {
        let mut sum = 0;
        while place > 0 {
            sum += self.sums[place - 1];
            place &= place - 1;
        }
        sum
    }
}
