//! The heatmap's address axis: the gaps to cut out, and the start of each row.
//!
//! A process uses a few gigabytes of 128 TiB. The axis holds the addresses that were ever monitored. It also keeps gaps
//! that are small beside them (together a tenth at most), because they show which areas are neighbours. The largest of
//! the cut-out gaps divide the axis into segments, and are marked. Smaller ones are cut out without a mark, but
//! counted. Rows are divided among the segments by size, with a minimum. A stack of 132 KiB therefore stays visible
//! beside a heap of 60 GiB.

use isotherm_engine::{AddressRange, PAGE_SIZE};
use serde::Serialize;

const MAX_SEGMENTS: usize = 12;
/// The divisor of the rows that gives each segment's minimum number of rows.
const LEAST_SHARE: usize = 40;

/// Neighbouring rows without a marked gap between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Segment {
    /// First row.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Addresses of the segment.
    #[serde(flatten)]
    pub range: AddressRange,
    /// Bytes on the axis: the addresses without the gaps that were cut out unmarked.
    pub shown_bytes: u64,
    /// Unmapped bytes cut out between the segment before and this one.
    pub gap_before_bytes: u64,
}

/// A run of addresses that lies on the axis without a gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) range: AddressRange,
    pub(super) offset: u64,
}

/// Maps addresses to rows, lowest first.
#[derive(Debug, Default)]
pub(super) struct Axis {
    pub(super) runs: Vec<Run>,
    pub(super) segments: Vec<Segment>,
    /// Start of each row on the axis, then the end of the last row.
    bounds: Vec<u64>,
}

impl Axis {
    /// Builds the axis of `covered` addresses (in order, not adjacent), with about `rows` rows.
    pub(super) fn new(covered: &[AddressRange], rows: usize) -> Self {
        let kept = keep_small_gaps(covered);
        let mut runs = Vec::with_capacity(kept.len());
        let mut offset = 0;
        for &range in &kept {
            runs.push(Run { range, offset });
            offset += range.len();
        }
        let mut axis = Self {
            runs,
            ..Self::default()
        };
        axis.divide(rows.max(1));
        axis
    }

    pub(super) fn rows(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    pub(super) fn row_range(&self, row: usize) -> AddressRange {
        let (from, to) = (self.bounds[row], self.bounds[row + 1]);
        let run_at = |offset: u64| {
            let after = self.runs.partition_point(|run| run.offset <= offset);
            self.runs[after - 1]
        };
        let (first, last) = (run_at(from), run_at(to - 1));
        AddressRange::new(
            first.range.start + (from - first.offset),
            last.range.start + (to - last.offset),
        )
    }

    pub(super) fn row_bytes(&self, row: usize) -> u64 {
        self.bounds[row + 1] - self.bounds[row]
    }

    pub(super) fn row_offset(&self, row: usize) -> u64 {
        self.bounds[row]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bounds.last().copied().unwrap_or_default()
    }

    /// Calls `put(piece, row, bytes)` for every row that a piece of sorted `pieces` lies in.
    pub(super) fn distribute<P>(
        &self,
        pieces: &[P],
        range_of: impl Fn(&P) -> AddressRange,
        mut put: impl FnMut(&P, usize, u64),
    ) {
        let mut run = 0;
        let mut row = 0;
        for piece in pieces {
            let range = range_of(piece);
            while run < self.runs.len() && self.runs[run].range.end <= range.start {
                run += 1;
            }
            for at in &self.runs[run..] {
                let Some(part) = at.range.intersection(range) else {
                    break;
                };
                let mut from = at.offset + (part.start - at.range.start);
                let to = from + part.len();
                while from < to {
                    while self.bounds[row + 1] <= from {
                        row += 1;
                    }
                    let end = to.min(self.bounds[row + 1]);
                    put(piece, row, end - from);
                    from = end;
                }
            }
        }
    }

    fn divide(&mut self, rows: usize) {
        let starts = self.segment_starts(rows);
        let total: u64 = self.runs.iter().map(|run| run.range.len()).sum();
        let least = (rows / LEAST_SHARE).max(1);
        self.bounds.push(0);
        for (index, &first) in starts.iter().enumerate() {
            let last = starts.get(index + 1).map_or(self.runs.len(), |&next| next) - 1;
            let (low, high) = (self.runs[first], self.runs[last]);
            let offset = low.offset;
            let shown = high.offset + high.range.len() - offset;
            let share = rows as f64 * shown as f64 / total as f64;
            let pages = usize::try_from(shown.div_ceil(PAGE_SIZE)).unwrap_or(usize::MAX);
            let count = (share.round() as usize).max(least).min(pages);
            let first_row = self.rows();
            for row in 1..=count as u64 {
                let even = u128::from(shown) * u128::from(row) / count as u128;
                let is_last = row == count as u64;
                let page = even as u64 / PAGE_SIZE * PAGE_SIZE;
                let bound = if is_last { shown } else { page };
                self.bounds.push(offset + bound);
            }
            let before = first.checked_sub(1);
            let before = before.map(|before| self.runs[before].range.end);
            self.segments.push(Segment {
                first_row,
                rows: count,
                range: AddressRange::new(low.range.start, high.range.end),
                shown_bytes: shown,
                gap_before_bytes: before.map_or(0, |end| low.range.start - end),
            });
        }
    }

    /// Returns the runs that begin a segment: the first run, and those after the largest gaps.
    fn segment_starts(&self, rows: usize) -> Vec<usize> {
        if self.runs.is_empty() {
            return Vec::new();
        }
        let most = MAX_SEGMENTS.min(rows / 4).max(1);
        let mut after_gaps: Vec<usize> = (1..self.runs.len()).collect();
        let gap = |&run: &usize| self.runs[run].range.start - self.runs[run - 1].range.end;
        after_gaps.sort_by_key(|run| std::cmp::Reverse(gap(run)));
        after_gaps.truncate(most - 1);
        after_gaps.push(0);
        after_gaps.sort_unstable();
        after_gaps
    }
}

/// Joins ranges over the smallest gaps, as long as these are at most a tenth of the whole.
fn keep_small_gaps(covered: &[AddressRange]) -> Vec<AddressRange> {
    let total: u64 = covered.iter().map(|range| range.len()).sum();
    let mut gaps: Vec<u64> = covered.windows(2).map(|w| w[1].start - w[0].end).collect();
    gaps.sort_unstable();
    let mut left = total / 10;
    let mut largest_kept = 0;
    for gap in gaps {
        if gap > left {
            break;
        }
        left -= gap;
        largest_kept = gap;
    }
    let mut joined: Vec<AddressRange> = Vec::with_capacity(covered.len());
    for &range in covered {
        match joined.last_mut() {
            Some(last) if range.start - last.end <= largest_kept => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Builds an axis from covered pages and wanted rows; checks each segment's gap and its rows in pages.
    fn check(covered: &[(u64, u64)], rows: usize, expected: &str) {
        let page = |&(start, end)| AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
        let covered: Vec<AddressRange> = covered.iter().map(page).collect();
        let axis = Axis::new(&covered, rows);
        let mut shown = String::new();
        for segment in &axis.segments {
            if segment.gap_before_bytes > 0 {
                let _ = write!(shown, "~{}~ ", segment.gap_before_bytes / PAGE_SIZE);
            }
            for row in segment.first_row..segment.first_row + segment.rows {
                let AddressRange { start, end } = axis.row_range(row);
                let _ = write!(shown, "{}-{} ", start / PAGE_SIZE, end / PAGE_SIZE);
            }
        }
        assert_eq!(shown.trim_end(), expected);
    }

    #[test]
    fn rows_share_the_addresses() {
        check(&[(0, 8)], 4, "0-2 2-4 4-6 6-8");
        check(&[(0, 2)], 4, "0-1 1-2");
        check(&[(10, 13)], 2, "10-11 11-13");
        check(&[], 4, "");
    }

    #[test]
    fn huge_gaps_are_cut_out_and_small_ones_kept() {
        let shown = "0-2 2-5 5-7 7-10 ~990~ 1000-1002 1002-1005 1005-1007 1007-1010";
        check(&[(0, 10), (1_000, 1_010)], 8, shown);
        check(&[(0, 10), (11, 21)], 2, "0-10 10-21");
    }

    #[test]
    fn a_small_segment_keeps_a_row() {
        let shown =
            "0-125 125-250 250-375 375-500 500-625 625-750 750-875 875-1000 ~49000~ 50000-50001";
        check(&[(0, 1_000), (50_000, 50_001)], 8, shown);
    }

    #[test]
    fn more_gaps_than_segments_are_cut_out_silently() {
        let covered = [(0, 4), (100, 104), (300, 304), (900, 904)];
        check(&covered, 4, "0-4 100-104 300-304 900-904");
        let marked = "0-2 2-4 100-102 102-104 300-302 302-304 ~596~ 900-902 902-904";
        check(&covered, 8, marked);
    }
}
