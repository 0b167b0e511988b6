//! Memory that a program moves.
//!
//! Problem: mremap moves pages to other addresses, as realloc does with large blocks (glibc's from 128 KiB on, so Rust's
//! `Vec` and Python's lists). Nobody touches them anew, so what was sampled of them tells of addresses where they are
//! no longer.
//!
//! Approach: a mapping's anon_vma and the place where it was made stay with it ([`AnonymousMapping`]). When a sample shows
//! it elsewhere than the sample before did, all that was sampled of it has moved with it.
//!
//! Neighbouring mappings have the same anon_vma, and what was made where others had been has their origin, too. So of
//! several places from which memory may have come, the one is taken that begins where it does and was filled to just
//! below the page that was touched now: what grows is filled from its beginning to its end.
//!
//! Limits: a move after which nothing is touched is not seen. The kernel uses an anon_vma anew for other memory when
//! it has gone; so what seems to have gone back to where it was made is taken for that.

use std::collections::HashMap;

use isotherm_engine::{AddressRange, Nanos};
use isotherm_linux::faults::AnonymousMapping;

/// Places of one target that are remembered, and of one anon_vma. When there are more, they are forgotten.
const PLACES_MAX: usize = 16 << 10;
const PLACES_OF_ONE_MAX: usize = 256;

/// Memory that is elsewhere now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: AddressRange,
    /// Its first address now.
    pub(super) to: u64,
    /// When it was last seen where it was.
    pub(super) until: Nanos,
}

/// Where a target's memory was when it was last seen.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By anon_vma.
    by_memory: HashMap<u64, Vec<Place>>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where it was made.
    made: AddressRange,
    /// From there to where it is; it wraps.
    shift: u64,
    /// The last page of it that was touched, by where it was made.
    touched: u64,
    seen: Nanos,
}

impl Places {
    /// The page at `address` was touched, which is in `mapping`. Yields what is elsewhere now.
    pub(super) fn see(
        &mut self,
        mapping: &AnonymousMapping,
        address: u64,
        time: Nanos,
    ) -> Option<Moved> {
        let origin = mapping.origin;
        let made = AddressRange::checked(origin, origin.saturating_add(mapping.range.len()))?;
        let shift = mapping.range.start.wrapping_sub(origin);
        if self.len >= PLACES_MAX {
            *self = Self::default();
        }
        let places = self.by_memory.entry(mapping.memory).or_default();
        let before = places.len();
        if before >= PLACES_OF_ONE_MAX {
            places.clear();
        }
        let mut now = Place {
            made,
            shift,
            touched: address.wrapping_sub(shift),
            seen: time,
        };
        let is_here =
            |place: &Place| place.shift == shift && place.made.intersection(made).is_some();
        let mut moved = None;
        if places.iter().any(is_here) {
            let here = places.iter().filter(|place| is_here(place));
            let touched = here.map(|place| place.touched).max();
            now.touched = now.touched.max(touched.unwrap_or_default());
            places.retain(|place| !is_here(place));
        } else if shift != 0 {
            moved = take_former(places, &now);
        }
        places.push(now);
        self.len = (self.len + places.len()).saturating_sub(before);
        moved
    }
}

/// Where it came from: the place is no more, unless it had other memory beside.
fn take_former(places: &mut Vec<Place>, now: &Place) -> Option<Moved> {
    let start = now.made.start;
    let all = places.iter().enumerate();
    let former = all.filter(|(_, place)| place.shift != now.shift && place.made.contains(start));
    let (at, former) = former.min_by_key(|(_, place)| {
        let is_whole = place.made.start == start;
        let distance = if is_whole {
            place.touched.abs_diff(now.touched)
        } else {
            0
        };
        (!is_whole, distance, std::cmp::Reverse(place.seen))
    })?;
    let former = *former;
    let mut end = former.made.end.min(now.made.end);
    if former.made.start == start {
        places.swap_remove(at);
    } else {
        // How long it was there is not known: what is touched anew had not been touched before.
        end = end.min(now.touched);
    }
    let at = |address: u64, place: &Place| address.wrapping_add(place.shift);
    let from = AddressRange::checked(at(start, &former), at(end, &former))?;
    Some(Moved {
        from,
        to: at(start, now),
        until: former.seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Sees a page of a mapping from `from` to `to` that was made at `origin`, all in MiB.
    fn see(
        places: &mut Places,
        (memory, from, to, origin): (u64, u64, u64, u64),
        page: u64,
        time: u64,
    ) -> Option<(u64, u64, u64, u64)> {
        let mapping = AnonymousMapping {
            range: AddressRange::new(from * MIB, to * MIB),
            origin: origin * MIB,
            memory,
        };
        let moved = places.see(&mapping, page * MIB, Nanos(time))?;
        let from = moved.from;
        let until = moved.until.0;
        Some((from.start / MIB, from.end / MIB, moved.to / MIB, until))
    }

    #[test]
    fn what_grows_and_moves_takes_along_what_was_seen_of_it() {
        let mut places = Places::default();
        assert_eq!(see(&mut places, (1, 100, 102, 100), 100, 1), None);
        // In place.
        assert_eq!(see(&mut places, (1, 100, 104, 100), 103, 2), None);
        let moved = see(&mut places, (1, 200, 208, 100), 204, 3);
        assert_eq!(moved, Some((100, 104, 200, 2)));
        // Something else has come to where it was.
        assert_eq!(see(&mut places, (2, 100, 104, 100), 100, 4), None);
        let moved = see(&mut places, (1, 40, 56, 100), 48, 5);
        assert_eq!(moved, Some((200, 208, 40, 3)));
        assert_eq!(see(&mut places, (1, 40, 56, 100), 49, 6), None);
        assert_eq!(places.len, 2);
    }

    #[test]
    fn two_that_were_made_at_one_place_are_told_by_how_far_they_are_filled() {
        let mut places = Places::default();
        see(&mut places, (1, 100, 116, 100), 115, 1);
        let moved = see(&mut places, (1, 200, 232, 100), 216, 2);
        assert_eq!(moved, Some((100, 116, 200, 1)));
        // The next one, whose anon_vma is the same, as their neighbour's is.
        assert_eq!(see(&mut places, (1, 100, 104, 100), 103, 3), None);
        let moved = see(&mut places, (1, 300, 308, 100), 304, 4);
        assert_eq!(moved, Some((100, 104, 300, 3)));
        let moved = see(&mut places, (1, 400, 464, 100), 432, 5);
        assert_eq!(moved, Some((200, 232, 400, 2)));
    }

    #[test]
    fn a_part_of_what_was_joined_with_its_neighbours_moves_alone() {
        let mut places = Places::default();
        see(&mut places, (1, 10, 20, 10), 12, 1);
        let moved = see(&mut places, (1, 50, 58, 12), 54, 2);
        assert_eq!(moved, Some((12, 16, 50, 1)));
        let moved = see(&mut places, (1, 70, 86, 12), 78, 3);
        assert_eq!(moved, Some((50, 58, 70, 2)));
    }

    #[test]
    fn an_anon_vma_that_is_used_anew_moves_nothing_and_there_is_an_end_to_what_is_kept() {
        let mut places = Places::default();
        see(&mut places, (1, 10, 20, 10), 10, 1);
        see(&mut places, (1, 50, 60, 10), 59, 2);
        assert_eq!(see(&mut places, (1, 10, 20, 10), 11, 3), None);
        for memory in 0..2 * PLACES_MAX as u64 {
            see(&mut places, (memory, 10, 20, 10), 10, 4);
            see(&mut places, (1, memory, memory + 1, 3 * memory), memory, 4);
            assert!(places.len <= PLACES_MAX + 1);
        }
        let strange = AnonymousMapping {
            range: AddressRange::new(0, u64::MAX),
            origin: u64::MAX - 9,
            memory: 1,
        };
        for address in [0, u64::MAX] {
            places.see(&strange, address, Nanos(5));
        }
    }
}
