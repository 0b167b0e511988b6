//! One time step of a heatmap: access rate, age and unknown time as functions of the address.
//!
//! A [`Column`] is a sorted list of pieces, each constant over its addresses. Snapshots are overlaid one after the
//! other, and boundaries accumulate. Beyond a cap, the least informative boundaries are removed: those with the most
//! similar rates on both sides, weighted by the bytes that would be misplaced. Sums over bytes and time are kept
//! exactly. Means over a coarser cell therefore stay right however often pieces merge.

use std::cmp::Ordering;

use isotherm_engine::{AddressRange, Snapshot};

/// A range of addresses with the same facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Access rate times seconds for which it is known (a mean over the bytes).
    pub(super) accessed: f32,
    pub(super) known: f32,
    pub(super) unknown: f32,
    /// Seconds for which all of it was swapped out: no rate, and not unknown.
    pub(super) swapped: f32,
    /// In seconds.
    pub(super) age: f32,
}

impl Piece {
    fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether it was ever resident while it was watched.
    pub(super) fn was_memory(&self) -> bool {
        self.known + self.unknown > 0.0
    }

    fn rate(&self) -> f32 {
        if self.known > 0.0 {
            self.accessed / self.known
        } else if self.unknown > 0.0 {
            // The value is unlike any rate: unknown pieces merge only with unknown pieces.
            -1.0
        } else {
            -2.0
        }
    }

    /// Combines the facts of `self` and of a later `other`, over `[start, end)`.
    fn joined(&self, other: &Self, start: u64, end: u64) -> Self {
        Self {
            start,
            end,
            accessed: self.accessed + other.accessed,
            known: self.known + other.known,
            unknown: self.unknown + other.unknown,
            swapped: self.swapped + other.swapped,
            age: other.age,
        }
    }

    /// Extends over `next`, which lies above, with means over the bytes of both and of the gap between.
    fn swallow(&mut self, next: &Self) {
        let (mine, its) = (self.bytes() as f32, next.bytes() as f32);
        let span = (next.end - self.start) as f32;
        let mean = |a: f32, b: f32| (a * mine + b * its) / span;
        self.accessed = mean(self.accessed, next.accessed);
        self.known = mean(self.known, next.known);
        self.unknown = mean(self.unknown, next.unknown);
        self.swapped = mean(self.swapped, next.swapped);
        self.age = (self.age * mine + next.age * its) / (mine + its);
        self.end = next.end;
    }
}

/// The pieces, in address order, not overlapping.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    pub(super) pieces: Vec<Piece>,
}

impl Column {
    /// Overlays `seconds` of a snapshot on the existing pieces. `scratch` saves an allocation.
    pub(super) fn lay(&mut self, snapshot: &Snapshot, seconds: f32, scratch: &mut Vec<Piece>) {
        let samples = snapshot.nr_samples.max(1) as f32;
        let mut floor = 0;
        let pieces = snapshot.regions.iter().filter_map(|region| {
            let known = region.nr_accesses.is_some();
            // A record of another program may hold regions out of order; the sweep below relies on their order.
            let start = region.range.start.max(floor);
            let range = AddressRange::checked(start, region.range.end)?;
            floor = range.end;
            // A region without memory is neither hot nor idle: it stays blank, like unmapped addresses.
            let is_out = region.memory.is_some_and(|memory| memory.resident == 0);
            if is_out && region.memory.is_none_or(|memory| memory.swapped == 0) {
                return None;
            }
            let for_seconds = |holds: bool| if holds { seconds } else { 0.0 };
            let known_for = for_seconds(known && !is_out);
            Some(Piece {
                start: range.start,
                end: range.end,
                accessed: region.nr_accesses.unwrap_or(0.0) / samples * known_for,
                known: known_for,
                unknown: for_seconds(!known && !is_out),
                swapped: for_seconds(is_out),
                age: region.age_ns.as_secs_f64() as f32,
            })
        });
        if self.pieces.is_empty() {
            self.pieces.extend(pieces);
        } else {
            overlay(&self.pieces, pieces, scratch);
            std::mem::swap(&mut self.pieces, scratch);
        }
    }

    pub(super) fn lay_column(&mut self, later: &Self, scratch: &mut Vec<Piece>) {
        overlay(&self.pieces, later.pieces.iter().copied(), scratch);
        self.pieces.clone_from(scratch);
    }

    /// Merges neighbours until there are at most `cap` pieces.
    pub(super) fn coarsen(&mut self, cap: usize) {
        if self.pieces.len() <= cap {
            return;
        }
        let scores: Vec<f32> = self.pieces.windows(2).map(|w| cost(&w[0], &w[1])).collect();
        let excess = self.pieces.len() - cap;
        let mut order = scores.clone();
        let (_, &mut limit, _) = order.select_nth_unstable_by(excess - 1, f32::total_cmp);
        // Boundaries with a cost equal to the limit go too, but only the number that is needed.
        let mut at_limit = excess - scores.iter().filter(|s| **s < limit).count();
        let mut kept = 0;
        for index in 1..self.pieces.len() {
            let score = scores[index - 1];
            let next = self.pieces[index];
            if score < limit || (score <= limit && at_limit > 0) {
                at_limit -= usize::from(score >= limit);
                self.pieces[kept].swallow(&next);
            } else {
                kept += 1;
                self.pieces[kept] = next;
            }
        }
        self.pieces.truncate(kept + 1);
        self.pieces.shrink_to_fit();
    }
}

/// Returns the cost of removing the boundary between two pieces: the difference of their rates in the smaller one's
/// bytes. A gap between them costs its bytes many times over, so that blank space does not fill up.
fn cost(left: &Piece, right: &Piece) -> f32 {
    let smaller = left.bytes().min(right.bytes()) as f32;
    let gap = (right.start - left.end) as f32;
    (left.rate() - right.rate()).abs() * smaller + gap * 16.0
}

/// Overlays the sorted `above` on the sorted `below`, into `out`.
fn overlay(below: &[Piece], above: impl Iterator<Item = Piece>, out: &mut Vec<Piece>) {
    out.clear();
    let mut index = 0;
    // End of the used part of the piece below at `index`.
    let mut used = below.first().map_or(0, |p| p.start);
    for top in above {
        let mut at = top.start;
        while at < top.end {
            let Some(under) = below.get(index) else {
                out.push(Piece { start: at, ..top });
                break;
            };
            used = used.max(under.start);
            match used.cmp(&at) {
                Ordering::Less => {
                    let (start, end) = (used, under.end.min(at));
                    out.push(Piece {
                        start,
                        end,
                        ..*under
                    });
                    used = end;
                }
                Ordering::Greater => {
                    let (start, end) = (at, top.end.min(used));
                    out.push(Piece { start, end, ..top });
                    at = end;
                }
                Ordering::Equal => {
                    let end = top.end.min(under.end);
                    out.push(under.joined(&top, at, end));
                    at = end;
                    used = end;
                }
            }
            index += usize::from(used >= under.end);
        }
    }
    for under in below.get(index..).unwrap_or_default() {
        used = used.max(under.start);
        out.push(Piece {
            start: used,
            ..*under
        });
    }
}

/// Returns the addresses that `wanted` pieces of any of `columns` cover, as few ranges as possible, in order.
pub(super) fn covered(columns: &[Column], wanted: fn(&Piece) -> bool) -> Vec<AddressRange> {
    let mut runs: Vec<AddressRange> = Vec::new();
    for column in columns {
        let first = runs.len();
        for piece in column.pieces.iter().filter(|piece| wanted(piece)) {
            match runs[first..].last_mut() {
                Some(run) if run.end == piece.start => run.end = piece.end,
                _ => runs.push(AddressRange::new(piece.start, piece.end)),
            }
        }
        // Most columns cover the same addresses as the one before.
        if runs.len() > 1 << 16 {
            runs = AddressRange::union(runs);
        }
    }
    AddressRange::union(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::snapshot_at;
    use isotherm_engine::PAGE_SIZE;

    /// Overlays snapshots of one second each; checks each piece's mean rate (in checks of ten) and its seen seconds.
    fn check(snapshots: &[&str], cap: usize, expected: &str) {
        let mut column = Column::default();
        let mut scratch = Vec::new();
        for text in snapshots {
            column.lay(&snapshot_at(0, 0, 1_000, text), 1.0, &mut scratch);
        }
        column.coarsen(cap);
        let shown: Vec<String> = column.pieces.iter().map(show).collect();
        assert_eq!(shown.join(" "), expected);
    }

    fn show(piece: &Piece) -> String {
        let (start, end) = (piece.start / 4096, piece.end / 4096);
        let rate = (piece.known > 0.0).then(|| (piece.rate() * 10.0).round().to_string());
        let rate = rate.unwrap_or_else(|| "?".to_owned());
        format!("[{start},{end})={rate}/{}", piece.known + piece.unknown)
    }

    #[test]
    fn snapshots_are_laid_over_each_other() {
        check(&["[0,4)=9 [4,8)=1"], 9, "[0,4)=9/1 [4,8)=1/1");
        let laid = "[0,2)=8/1 [2,4)=6/2 [4,6)=2/2 [6,8)=0/1";
        check(&["[0,4)=8 [4,8)=0", "[2,6)=4"], 9, laid);
        let laid = "[0,2)=1/1 [4,6)=2/1 [8,9)=3/1";
        check(&["[4,6)=2", "[0,2)=1 [8,9)=3"], 9, laid);
        let laid = "[0,2)=2/1 [2,3)=3/2 [3,5)=2/1 [5,6)=2/2 [6,9)=2/1";
        check(&["[0,9)=2", "[2,3)=4 [5,6)=?"], 9, laid);
        check(&["[2,3)=4", "[0,9)=2"], 9, "[0,2)=2/1 [2,3)=3/2 [3,9)=2/1");
    }

    #[test]
    fn unknown_stays_unknown() {
        check(&["[0,4)=?", "[0,4)=?"], 9, "[0,4)=?/2");
    }

    #[test]
    fn the_boundaries_that_tell_least_go_first() {
        check(&["[0,4)=9 [4,8)=8 [8,12)=1"], 2, "[0,8)=9/1 [8,12)=1/1");
        check(&["[0,4)=9 [4,8)=? [8,12)=?"], 2, "[0,4)=9/1 [4,12)=?/1");
        let same = "[0,4)=5 [4,8)=5 [8,12)=5 [12,16)=5";
        check(&[same], 2, "[0,12)=5/1 [12,16)=5/1");
    }

    #[test]
    fn coverage_is_the_union() {
        let column = |text| {
            let mut column = Column::default();
            column.lay(&snapshot_at(0, 0, 1, text), 1.0, &mut Vec::new());
            column
        };
        let page = |start, end| AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
        let columns = ["[0,2)=1 [2,4)=1 [8,9)=1", "[3,6)=1 [20,21)=?"].map(column);
        let united = [page(0, 6), page(8, 9), page(20, 21)];
        assert_eq!(covered(&columns, |_| true), united);
    }
}
