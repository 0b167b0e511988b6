//! The time since a page's last access, in six bits.

use crate::address::Nanos;

const fn seconds(seconds: u64) -> Nanos {
    Nanos::from_millis(seconds * 1000)
}

/// Bounds between the classes of idle memory in sums. The first class is idle for less than the first bound, the next
/// from there to the second, and so on; the last one has no upper bound.
pub const AGE_BOUNDS: [Nanos; 6] = [
    seconds(1),
    seconds(5),
    seconds(30),
    seconds(120),
    seconds(600),
    seconds(3600),
];
/// Number of classes of idle memory.
pub const NR_AGES: usize = AGE_BOUNDS.len() + 1;

const NR_STEPS: usize = 62;
/// Start, length (both in milliseconds) and number of equal steps.
const STEPS: [(u64, u64, usize); 6] = [
    (0, 250, 4),
    (1_000, 500, 8),
    (5_000, 2_500, 10),
    (30_000, 10_000, 9),
    (120_000, 40_000, 12),
    (600_000, 300_000, 10),
];
/// Start of the steps that are each twice as old as the one before.
const DOUBLING_FROM_MS: u64 = 3_600_000;

const LEAST: [Nanos; NR_STEPS] = least();
const CLASS: [u8; NR_STEPS] = classes();

const fn least() -> [Nanos; NR_STEPS] {
    let mut least = [Nanos(0); NR_STEPS];
    let (mut at, mut part) = (0, 0);
    while part < STEPS.len() {
        let (from, length, nr) = STEPS[part];
        let mut i = 0;
        while i < nr {
            least[at] = Nanos::from_millis(from + length * i as u64);
            (at, i) = (at + 1, i + 1);
        }
        part += 1;
    }
    let mut from = DOUBLING_FROM_MS;
    while at < NR_STEPS {
        least[at] = Nanos::from_millis(from);
        (at, from) = (at + 1, from * 2);
    }
    least
}

const fn classes() -> [u8; NR_STEPS] {
    let mut classes = [0; NR_STEPS];
    let mut at = 0;
    while at < NR_STEPS {
        let mut bound = 0;
        while bound < AGE_BOUNDS.len() && AGE_BOUNDS[bound].0 <= LEAST[at].0 {
            bound += 1;
        }
        classes[at] = bound as u8;
        at += 1;
    }
    classes
}

/// The time since a page's last access, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageAge {
    /// The page was accessed in the last interval.
    Touched,
    /// The page has been idle for this step, from [`PageAge::idle_for`].
    Idle(u8),
    /// Nothing is known.
    Unknown,
}

impl PageAge {
    /// Bits of a state that hold the age.
    pub(super) const MASK: u8 = 0x3f;

    /// Returns the age of a page that has been idle for at least `time`.
    pub fn idle_for(time: Nanos) -> Self {
        Self::Idle((LEAST.partition_point(|least| *least <= time) - 1) as u8)
    }

    /// Returns the least time that it has been idle; zero if it is not idle or nothing is known.
    pub fn least(self) -> Nanos {
        match self {
            Self::Idle(step) => LEAST[usize::from(step)],
            Self::Touched | Self::Unknown => Nanos(0),
        }
    }

    /// Returns the class of an idle page's step: the ages below the bound at this place in [`AGE_BOUNDS`].
    pub(in crate::monitor) fn class(step: u8) -> usize {
        usize::from(CLASS[usize::from(step)])
    }

    /// Returns the age of a frame that pages of this age and of the other age map.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Touched || other == Self::Touched {
            Self::Touched
        } else if self == Self::Unknown || other == Self::Unknown {
            Self::Unknown
        } else {
            self.min(other)
        }
    }

    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Touched => 0,
            Self::Idle(step) => 1 + step,
            Self::Unknown => Self::MASK,
        }
    }

    pub(super) const fn from_bits(bits: u8) -> Self {
        match bits & Self::MASK {
            0 => Self::Touched,
            Self::MASK => Self::Unknown,
            step => Self::Idle(step - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_its_pages_together() {
        use PageAge::{Idle, Touched, Unknown};
        let check = |a: PageAge, b: PageAge, wanted| {
            assert_eq!((a.and(b), b.and(a)), (wanted, wanted), "{a:?} and {b:?}");
        };
        check(Touched, Unknown, Touched);
        check(Touched, Idle(6), Touched);
        check(Idle(2), Unknown, Unknown);
        check(Idle(2), Idle(5), Idle(2));
        for age in [Touched, Idle(0), Idle(61), Unknown] {
            assert_eq!(PageAge::from_bits(age.bits()), age);
        }
    }

    #[test]
    fn ages_are_kept_in_steps_and_told_in_classes() {
        let check = |ms, least, class| {
            let age = PageAge::idle_for(Nanos::from_millis(ms));
            assert_eq!(age.least(), Nanos::from_millis(least), "{ms} ms");
            let PageAge::Idle(step) = age else {
                panic!("{age:?}")
            };
            assert_eq!(PageAge::class(step), class, "{ms} ms");
        };
        check(0, 0, 0);
        check(999, 750, 0);
        check(1000, 1000, 1);
        check(4_999, 4_500, 1);
        check(5_000, 5_000, 2);
        check(119_999, 110_000, 3);
        check(3_599_999, 3_300_000, 5);
        check(3_600_000, 3_600_000, 6);
        check(u64::MAX / 1_000_001, 3_600_000 << 8, 6);
        assert!(LEAST.is_sorted_by(|a, b| a < b), "{LEAST:?}");
    }
}
