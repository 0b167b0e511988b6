//! Memory that a program moves.
//!
//! Problem: mremap moves pages to other addresses, as realloc does with large blocks (glibc's from 128 KiB on, hence
//! Rust's `Vec` and Python's lists). The moved pages are not touched anew, so their samples hold stale addresses.
//!
//! Approach: a mapping keeps its anon_vma and its original address when it moves ([`AnonymousMapping`]). If a sample
//! shows the mapping at another address than the previous sample, all its sampled pages have moved with it.
//!
//! Neighbouring mappings share an anon_vma, and mappings made in the same place share the origin. Of several possible
//! sources, the one is chosen that begins at the same origin and was filled to just below the touched page: a growing
//! block is filled from its beginning to its end.
//!
//! Limits: a move is not noticed if nothing is touched afterwards. The kernel reuses a freed anon_vma for other memory;
//! so memory that seems to have moved back to its origin counts as new memory.

use std::collections::HashMap;

use isotherm_engine::{AddressRange, Nanos};
use isotherm_linux::faults::AnonymousMapping;

/// Limits of the remembered places: of one target, and of one anon_vma. Beyond them, the places are forgotten.
const PLACES_MAX: usize = 16 << 10;
const PLACES_OF_ONE_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: AddressRange,
    pub(super) to: u64,
    /// Time at which the memory was last seen in its former place.
    pub(super) until: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    by_memory: HashMap<u64, Vec<Place>>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Range at which the memory was mapped originally.
    made: AddressRange,
    /// Distance from the original to the present address; it wraps.
    shift: u64,
    /// Last touched page, by its original address.
    touched: u64,
    seen: Nanos,
}

impl Places {
    /// Records that the page at `address` in `mapping` was touched. Returns the move that this reveals.
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

/// Finds the former place of `now`. It is removed unless the place has further memory.
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
        // The time of its stay is unknown: a page that is touched anew had not been touched before.
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

    /// Touches a page of a mapping from `from` to `to` that was made at `origin`, all in MiB.
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
        // The mapping grows in place.
        assert_eq!(see(&mut places, (1, 100, 104, 100), 103, 2), None);
        let moved = see(&mut places, (1, 200, 208, 100), 204, 3);
        assert_eq!(moved, Some((100, 104, 200, 2)));
        // Other memory is mapped in its former place.
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
        // The next mapping has the same anon_vma, as neighbours have.
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
