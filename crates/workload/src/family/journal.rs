//! A program's progress in its sequence of touches, with times. Nothing else must be logged: the page that is touched
//! at each position of the sequence follows from the case.
//!
//! The file is a sequence of [`Batch`]es, 40 bytes each, little-endian. A torn one at the end is left out.

use std::io::{self, Read, Write};

use isotherm_engine::{AddressRange, Nanos, PAGES_PER_BLOCK};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

use super::case::{Case, TouchOrder};
use super::layout::CaseLayout;
use super::pages::PageSet;

/// Random touches for each hot page after which each was touched (chance of a miss: 1e-12).
const ENOUGH: u64 = 40;

/// Report of the program once its memory is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub time: Nanos,
    /// The program's case.
    pub case: Case,
    /// Addresses of its memory; they begin at a multiple of 2 MiB.
    pub memory: AddressRange,
    /// Bytes of it in huge pages.
    pub huge: u64,
    /// Bytes of it that are swapped out.
    pub swapped: u64,
    /// Traits that could not be established here, with reasons.
    pub without: Vec<String>,
}

/// Touches made one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Time before the first touch, in nanoseconds since the epoch.
    pub start: u64,
    /// Time after the last touch, in nanoseconds since the epoch.
    pub end: u64,
    /// First position in the sequence.
    pub from: u64,
    /// One past the last position.
    pub to: u64,
    /// The phase whose hot pages are touched.
    pub phase: u64,
}

impl Batch {
    /// Appends it to `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let fields = [self.start, self.end, self.from, self.to, self.phase];
        out.write_all(fields.map(u64::to_le).as_bytes())
    }

    /// Reads a batch from `bytes`, which are as long as one.
    fn read(bytes: &[u8]) -> Self {
        let fields = <[u64; 5]>::read_from_bytes(bytes).expect("as long as a batch");
        let [start, end, from, to, phase] = fields.map(u64::from_le);
        Self {
            start,
            end,
            from,
            to,
            phase,
        }
    }
}

/// The touches of a program that has ended.
#[derive(Clone, Debug)]
pub struct TouchJournal {
    /// The program's report.
    pub ready: Ready,
    /// Its pages.
    pub layout: CaseLayout,
    batches: Vec<Batch>,
    hot: Vec<Vec<u32>>,
}

/// The pages touched in an interval.
#[derive(Clone, Debug)]
pub struct Touched {
    /// Pages that were certainly touched.
    pub certain: PageSet,
    /// Pages that were touched so near to an edge of the interval that they may count either way.
    pub either: PageSet,
}

impl TouchJournal {
    /// Reads a file of batches.
    pub fn read(ready: Ready, mut input: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        let batches = bytes
            .chunks_exact(size_of::<Batch>())
            .map(Batch::read)
            .collect();
        Ok(Self::new(ready, batches))
    }

    /// Creates a journal of `batches`, which are in order.
    pub fn new(ready: Ready, batches: Vec<Batch>) -> Self {
        let layout = CaseLayout::new(ready.case);
        let phases = batches.last().map_or(0, |batch| batch.phase as u32);
        let hot = (0..=phases).map(|phase| layout.hot(phase)).collect();
        Self {
            ready,
            layout,
            batches,
            hot,
        }
    }

    /// Returns the times at which the phases began, without the first.
    pub fn moves(&self) -> Vec<Nanos> {
        let pairs = self.batches.windows(2);
        pairs
            .filter(|pair| pair[0].phase != pair[1].phase)
            .map(|pair| Nanos(pair[1].start))
            .collect()
    }

    /// Whether the touches cover all of the time from `start` to `end`.
    pub fn covers(&self, start: Nanos, end: Nanos) -> bool {
        self.batches.first().is_some_and(|b| b.start <= start.0)
            && self.batches.last().is_some_and(|b| b.end >= end.0)
    }

    /// Returns the touches of each hot page per second, over all the time.
    pub fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.batches.first(), self.batches.last()) else {
            return 0.0;
        };
        let seconds = last.end.saturating_sub(first.start).max(1) as f64 / 1e9;
        (last.to - first.from) as f64 / self.hot[0].len() as f64 / seconds
    }

    /// Returns the pages touched in `[start, end)`. The times of touches and of the interval's edges are known to
    /// `edge`.
    pub fn touched_by(&self, start: Nanos, end: Nanos, edge: Nanos) -> Touched {
        let (start, end, edge) = (start.0, end.0, edge.0);
        // Batches do not overlap, so that each of these bounds divides them in two.
        let first = |time: u64| self.batches.partition_point(|b| b.end <= time);
        let begun = |time: u64| self.batches.partition_point(|b| b.start < time);
        let widest = first(start.saturating_sub(edge))..begun(end + edge);
        let from = begun(start + edge);
        let to = first(end.saturating_sub(edge));
        let (from, to) = if from < to {
            (from, to)
        } else {
            (widest.end, widest.end)
        };
        let mut certain = PageSet::new(self.layout.span());
        let mut either = PageSet::new(self.layout.span());
        self.add(&mut certain, from..to);
        self.add(&mut either, widest.start..from.max(widest.start));
        self.add(&mut either, to.min(widest.end)..widest.end);
        // If all of the memory is huge pages, a touch is one of 2 MiB.
        if self.ready.huge >= self.layout.bytes() {
            certain.fill_blocks(PAGES_PER_BLOCK);
        }
        if self.ready.huge > 0 {
            either.add(&certain);
            either.fill_blocks(PAGES_PER_BLOCK);
        }
        either.remove(&certain);
        certain.index();
        either.index();
        Touched { certain, either }
    }

    fn add(&self, set: &mut PageSet, batches: std::ops::Range<usize>) {
        for part in self.batches[batches].chunk_by(|a, b| a.phase == b.phase) {
            let hot = &self.hot[part[0].phase as usize];
            let (from, to) = (part[0].from, part[part.len() - 1].to);
            let count = hot.len() as u64;
            let enough = match self.ready.case.order {
                TouchOrder::Sweep | TouchOrder::Spread => count,
                TouchOrder::Random => ENOUGH * count,
            };
            if to - from >= enough {
                for page in hot {
                    set.insert(*page as usize);
                }
                continue;
            }
            for position in from..to {
                set.insert(hot[self.layout.at(position, hot.len())] as usize);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::family::case::Populated;
    use isotherm_engine::PAGE_SIZE;

    pub(in crate::family) const BASE: u64 = 0x7f00_0000_0000;

    /// 32 MiB in 4 KiB pages, of which a quarter is hot.
    pub(in crate::family) fn case(order: TouchOrder) -> Case {
        Case {
            total: 32 << 20,
            hot: 0.25,
            order,
            piece: Some(PAGE_SIZE),
            populated: Populated::All,
            huge: false,
            phase: None,
            fork: false,
            paged_out: 0.0,
            zeros: 0,
            ..Case::draw(1, 0)
        }
    }

    pub(in crate::family) fn journal(case: Case, batches: Vec<Batch>) -> TouchJournal {
        let span = CaseLayout::new(case).bytes();
        let ready = Ready {
            time: Nanos(0),
            case,
            memory: AddressRange::new(BASE, BASE + span),
            huge: if case.huge { span } else { 0 },
            swapped: 0,
            without: Vec::new(),
        };
        TouchJournal::new(ready, batches)
    }

    /// Builds one batch of `len` touches in each 10 ms, which takes 1 ms.
    pub(in crate::family) fn steady(count: u64, len: u64) -> Vec<Batch> {
        (0..count)
            .map(|i| Batch {
                start: i * 10_000_000,
                end: i * 10_000_000 + 1_000_000,
                from: i * len,
                to: (i + 1) * len,
                phase: i / 50,
            })
            .collect()
    }

    #[test]
    fn pages_of_an_interval_are_those_of_the_batches_in_it() {
        for order in [TouchOrder::Sweep, TouchOrder::Random] {
            let journal = journal(case(order), steady(100, 16));
            for (start, end) in [(0, 1000), (95, 105), (100, 140), (460, 540), (250, 250)] {
                let (start, end) = (Nanos::from_millis(start), Nanos::from_millis(end));
                let touched = journal.touched_by(start, end, Nanos::from_millis(2));
                let mut certain = PageSet::new(journal.layout.span());
                let mut possible = certain.clone();
                for batch in &journal.batches {
                    let hot = &journal.hot[batch.phase as usize];
                    for p in batch.from..batch.to {
                        let page = hot[journal.layout.at(p, hot.len())] as usize;
                        if batch.start >= start.0 + 2_000_000 && batch.end + 2_000_000 <= end.0 {
                            certain.insert(page);
                        }
                        if batch.end + 2_000_000 > start.0 && batch.start < end.0 + 2_000_000 {
                            possible.insert(page);
                        }
                    }
                }
                for page in 0..journal.layout.span() {
                    let is = touched.certain.contains(page);
                    assert_eq!(is, certain.contains(page), "{start:?} {end:?} {page}");
                    let may = is || touched.either.contains(page);
                    assert_eq!(may, possible.contains(page), "{start:?} {end:?} {page}");
                }
            }
        }
    }

    #[test]
    fn a_touch_of_a_huge_page_is_one_of_all_of_it() {
        let case = Case {
            huge: true,
            ..case(TouchOrder::Sweep)
        };
        let journal = journal(case, steady(10, 1));
        let touched = journal.touched_by(Nanos(0), Nanos::from_millis(100), Nanos::from_millis(2));
        assert_eq!(touched.certain.len() % 512, 0);
        assert!(!touched.certain.is_empty());
    }

    #[test]
    fn a_torn_batch_at_the_end_is_left_out() {
        let mut bytes = Vec::new();
        for batch in steady(3, 4) {
            batch.write(&mut bytes).expect("memory can be written");
        }
        let ready = journal(case(TouchOrder::Sweep), Vec::new()).ready;
        let journal = TouchJournal::read(ready, &bytes[..bytes.len() - 1]).expect("it can be read");
        assert_eq!(journal.batches, steady(2, 4));
    }

    #[test]
    fn moves_are_the_beginnings_of_phases() {
        let journal = journal(case(TouchOrder::Sweep), steady(120, 16));
        assert_eq!(
            journal.moves(),
            [Nanos::from_millis(500), Nanos::from_millis(1000)]
        );
    }
}
