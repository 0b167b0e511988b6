//! Times of accesses to a page: rates by phase of the work, or a trace of a real program.
//!
//! Problem: of billions of accesses only two facts matter. One is whether there was any between two moments (the
//! accessed bit). The other is when the next one comes (the fault of a page that is not in memory).
//!
//! Approach: time is the process's *work time*, which stands still while it waits. With rates, accesses to a page are a
//! Poisson process with a rate that is constant in each phase. Its integral answers both questions. With a trace (page
//! scans of a real run), each scan says of each page whether it was accessed in the interval before. Such an interval
//! gets the number of accesses that the page's share of accessed intervals makes likely. Their moments depend on page
//! and interval only. So a replay is exact at each scan, and made up between two.
//!
//! Limits: a page seen in every scan may have been accessed any number of times between two; it is given [`BUSY`].
//! Stores and loads are not distinguished.

use std::ops::Range;
use std::sync::Arc;

use isotherm_engine::Nanos;

use crate::statistics::scramble;

/// Accesses per second of work to each page of a mapping, by the page's index in it.
#[derive(Clone, Debug, PartialEq)]
pub enum Rates {
    /// No accesses.
    Never,
    /// One rate for all pages.
    Even(f32),
    /// Pairs of an end and a rate, which holds from the end before (or 0) up to, not including, its own. After the last
    /// end the rate is 0.
    Steps(Vec<(u32, f32)>),
    /// One rate for each page.
    Each(Arc<Vec<f32>>),
    /// One rate for each page, and the cache lines a second if an access moves several.
    EachWithLines(Arc<Vec<f32>>, Arc<Vec<f32>>),
}

impl Rates {
    /// Returns the rate of one page.
    pub fn of(&self, page: u32) -> f64 {
        f64::from(match self {
            Self::Never => 0.0,
            Self::Even(rate) => *rate,
            Self::Steps(steps) => {
                let at = steps.partition_point(|(end, _)| *end <= page);
                steps.get(at).map_or(0.0, |(_, rate)| *rate)
            }
            Self::Each(rates) | Self::EachWithLines(rates, _) => {
                rates.get(page as usize).copied().unwrap_or(0.0)
            }
        })
    }

    /// Returns the rate of one page, and the number of pages from it on that are known to have it.
    fn from(&self, page: u32) -> (f64, u32) {
        match self {
            Self::Never | Self::Even(_) => (self.of(page), u32::MAX),
            Self::Steps(steps) => {
                let at = steps.partition_point(|(end, _)| *end <= page);
                let step = steps.get(at);
                step.map_or((0.0, u32::MAX), |(end, rate)| {
                    (f64::from(*rate), end - page)
                })
            }
            Self::Each(_) | Self::EachWithLines(..) => (self.of(page), 1),
        }
    }

    /// Returns the cache lines of one page that are moved per second: one per access unless they are given.
    pub fn lines(&self, page: u32) -> f64 {
        match self {
            Self::EachWithLines(_, lines) => {
                lines.get(page as usize).copied().map_or(0.0, f64::from)
            }
            _ => self.of(page),
        }
    }

    /// Whether no page is accessed at all.
    pub fn are_none(&self) -> bool {
        match self {
            Self::Never => true,
            Self::Even(rate) => *rate <= 0.0,
            Self::Steps(steps) => steps.iter().all(|(_, rate)| *rate <= 0.0),
            Self::Each(_) | Self::EachWithLines(..) => false,
        }
    }

    /// Returns the rate of several pages together.
    pub fn sum(&self, pages: Range<u32>) -> f64 {
        match self {
            Self::Never => 0.0,
            Self::Even(rate) => f64::from(*rate) * f64::from(pages.end - pages.start),
            _ => pages.map(|page| self.of(page)).sum(),
        }
    }
}

/// Accesses of a process to a mapping in the course of its work.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Rates, each from a moment of the work on; the first from its start.
    Phases(Vec<(Nanos, Rates)>),
    /// A recorded trace, from this page of it on.
    Trace(Arc<Trace>, u32),
}

impl Pattern {
    /// Returns a pattern whose rates never change.
    pub fn steady(rates: Rates) -> Self {
        Self::Phases(vec![(Nanos(0), rates)])
    }

    pub(crate) fn is_ever_accessed(&self) -> bool {
        match self {
            Self::Phases(phases) => !phases.iter().all(|(_, rates)| rates.are_none()),
            Self::Trace(..) => true,
        }
    }

    /// Returns the phase at a moment of the work; `None` before the first.
    pub(crate) fn phase(phases: &[(Nanos, Rates)], at: Nanos) -> Option<usize> {
        phases
            .partition_point(|(start, _)| *start <= at)
            .checked_sub(1)
    }

    /// Returns the work between two moments as one span; `None` if it is in several phases.
    pub(crate) fn span(&self, from: Nanos, to: Nanos) -> Option<Span> {
        let phases = match self {
            Self::Phases(phases) => phases,
            Self::Trace(trace, _) => return Some(trace.span(from, to)),
        };
        let phase = Self::phase(phases, from)?;
        let is_last = phases.get(phase + 1).is_none_or(|(next, _)| *next >= to);
        is_last.then(|| Span {
            from,
            to,
            phase,
            last: phase,
            seconds: to.since(from).as_secs_f64(),
        })
    }

    /// Returns whether one of `pages` was accessed within a span of this pattern. See [`Pattern::accessed`].
    pub(crate) fn accessed_within(
        &self,
        pages: Range<u32>,
        span: &Span,
        draw: impl FnOnce() -> f64,
    ) -> bool {
        match self {
            Self::Phases(phases) => is_drawn(phases[span.phase].1.sum(pages) * span.seconds, draw),
            Self::Trace(trace, first) => pages
                .into_iter()
                .any(|page| trace.accessed_within(first + page, span)),
        }
    }

    /// Returns whether one of `pages` was accessed after `from`, up to `to`; `draw` yields a number from 0 up to 1.
    pub(crate) fn accessed(
        &self,
        pages: Range<u32>,
        from: Nanos,
        to: Nanos,
        draw: impl FnOnce() -> f64,
    ) -> bool {
        match self {
            Self::Phases(phases) => {
                let mut expected = 0.0;
                let first = Self::phase(phases, from).unwrap_or(0);
                let until_then = phases[first..].iter().take_while(|(start, _)| *start < to);
                for (i, (start, rates)) in (first..).zip(until_then) {
                    let end = phases.get(i + 1).map_or(to, |(next, _)| (*next).min(to));
                    let elapsed = end.since((*start).max(from)).as_secs_f64();
                    if elapsed > 0.0 {
                        expected += rates.sum(pages.clone()) * elapsed;
                    }
                }
                is_drawn(expected, draw)
            }
            Self::Trace(trace, _) => self.accessed_within(pages, &trace.span(from, to), draw),
        }
    }

    /// Returns the next access to `page` after `from`; `None` if there is none. `draw` is from 0 up to 1.
    pub(crate) fn next(&self, page: u32, from: Nanos, draw: f64) -> Option<Nanos> {
        match self {
            Self::Phases(phases) => {
                // The logarithm is computed on demand: many pages, as in the page cache, are never accessed.
                let mut wanted = None;
                for (i, (start, rates)) in phases.iter().enumerate() {
                    let rate = rates.of(page);
                    let begin = (*start).max(from);
                    let end = phases.get(i + 1).map(|(next, _)| *next);
                    if rate <= 0.0 || end.is_some_and(|end| end <= begin) {
                        continue;
                    }
                    let left = wanted.get_or_insert_with(|| -libm::log(1.0 - draw));
                    let needed = *left / rate;
                    let available = end.map_or(f64::INFINITY, |end| end.since(begin).as_secs_f64());
                    if needed <= available {
                        let ns = (needed * 1e9).min(1e18);
                        return Some(begin + Nanos(ns as u64 + 1));
                    }
                    *left -= available * rate;
                }
                None
            }
            Self::Trace(trace, first) => trace.next(first + page, from),
        }
    }

    /// Returns the accesses per second to a page at a moment of the work, and the number of pages from it on that have
    /// them.
    pub(crate) fn rate_from(&self, page: u32, at: Nanos) -> (f64, u32) {
        match self {
            Self::Phases(phases) => {
                let phase = Self::phase(phases, at);
                phase.map_or((0.0, u32::MAX), |i| phases[i].1.from(page))
            }
            Self::Trace(trace, first) => (trace.rate(first + page, at), 1),
        }
    }

    /// Returns the cache lines of a page that are moved per second, at a moment of the work.
    pub(crate) fn lines(&self, page: u32, at: Nanos) -> f64 {
        match self {
            Self::Phases(phases) => {
                Self::phase(phases, at).map_or(0.0, |i| phases[i].1.lines(page))
            }
            Self::Trace(trace, first) => trace.rate(first + page, at),
        }
    }
}

/// A part of a process's work: within one phase of a pattern, or over intervals of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// The phase, or the first interval.
    phase: usize,
    /// The phase, or the interval that contains the end; the number of intervals if the end is after all of them.
    last: usize,
    seconds: f64,
}

/// Draws whether there is any access, if `expected` accesses are expected.
fn is_drawn(expected: f64, draw: impl FnOnce() -> f64) -> bool {
    // The probability is less than `expected`, so that most draws need no exponential.
    expected > 0.0 && {
        let drawn = draw();
        drawn < expected && drawn < 1.0 - libm::exp(-expected)
    }
}

/// Accesses between two scans to a page that is accessed in all of them.
pub const BUSY: u32 = 32;

/// Page scans of a real program: for each page, the intervals between scans in which it was accessed.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// End of each interval; the first interval begins at 0.
    ends: Vec<Nanos>,
    words: usize,
    accessed: Vec<u64>,
    /// Accesses in an interval that has any, per page.
    density: Vec<u8>,
    /// The interval in which each page was first in memory; [`NEVER`] if it never was.
    present_from: Vec<u16>,
    /// The last interval so far in which each page was in memory.
    present_until: Vec<u16>,
    /// Pages that were given up: from one interval on and, if they were in memory again, until another.
    absences: Vec<(u32, u16, Option<u16>)>,
}

const NEVER: u16 = u16::MAX;

impl Trace {
    /// Returns a trace with no accesses and no pages in memory, for intervals that end at `ends`.
    pub fn new(ends: Vec<Nanos>, pages: u32) -> Self {
        assert!(ends.len() < usize::from(NEVER), "too many scans");
        let words = ends.len().div_ceil(64);
        Self {
            words,
            accessed: vec![0; words * pages as usize],
            density: vec![0; pages as usize],
            present_from: vec![NEVER; pages as usize],
            present_until: vec![NEVER; pages as usize],
            absences: Vec::new(),
            ends,
        }
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        self.density.len() as u32
    }

    /// Returns the duration.
    pub fn duration(&self) -> Nanos {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Returns the number of scans.
    pub fn nr_scans(&self) -> usize {
        self.ends.len()
    }

    /// Returns a number that another trace hardly has (FNV-1a, by words of 64 bits).
    pub fn digest(&self) -> u64 {
        let times = self.ends.iter().map(|end| end.0);
        let pages = self.density.iter().zip(&self.present_from);
        let pages = pages.map(|(density, from)| u64::from(*density) << 16 | u64::from(*from));
        let words = times.chain(pages).chain(self.accessed.iter().copied());
        words.fold(0xcbf2_9ce4_8422_2325, |digest: u64, word| {
            (digest ^ word).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Notes that the scan at the end of `interval` saw `page` in memory, and whether it was accessed.
    pub fn note(&mut self, interval: usize, page: u32, was_accessed: bool) {
        let from = &mut self.present_from[page as usize];
        *from = (*from).min(interval as u16);
        let last = std::mem::replace(&mut self.present_until[page as usize], interval as u16);
        if last != NEVER && last + 1 < interval as u16 {
            self.absences.push((page, last + 1, Some(interval as u16)));
        }
        if was_accessed {
            self.accessed[page as usize * self.words + interval / 64] |= 1 << (interval % 64);
        }
    }

    /// Completes the trace after the last note: finds pages that stay away, and the accesses per interval.
    pub fn finish(&mut self) {
        for (page, last) in (0..).zip(std::mem::take(&mut self.present_until)) {
            if last != NEVER && usize::from(last) + 1 < self.ends.len() {
                self.absences.push((page, last + 1, None));
            }
        }
        self.absences.sort_unstable();
        for page in 0..self.pages() {
            let from = self.present_from[page as usize];
            let lived = self.ends.len().saturating_sub(usize::from(from));
            let set: u32 = self.bits(page).iter().map(|word| word.count_ones()).sum();
            let share = f64::from(set) / lived.max(1) as f64;
            let density = if share >= 1.0 && lived > 1 {
                f64::from(BUSY)
            } else {
                (-libm::log(1.0 - share) / share.max(1e-9)).round()
            };
            self.density[page as usize] = density.clamp(1.0, f64::from(BUSY)) as u8;
        }
    }

    /// Returns the moment from which on a page was first in memory; `None` if it never was.
    pub fn present_from(&self, page: u32) -> Option<Nanos> {
        let interval = self.present_from[page as usize];
        (interval != NEVER).then(|| self.start_of(usize::from(interval)))
    }

    /// Returns the absences of `pages`, in page order: from when on, and until when if the page was in memory again.
    pub(super) fn absences(
        &self,
        pages: Range<u32>,
    ) -> impl Iterator<Item = (u32, Nanos, Option<Nanos>)> + '_ {
        self.absences_of(pages).iter().map(|(page, from, until)| {
            let until = until.map(|until| self.start_of(usize::from(until)));
            (*page, self.start_of(usize::from(*from)), until)
        })
    }

    fn absences_of(&self, pages: Range<u32>) -> &[(u32, u16, Option<u16>)] {
        let before = |end: u32| self.absences.partition_point(|(page, ..)| *page < end);
        &self.absences[before(pages.start)..before(pages.end)]
    }

    /// Returns the number of scans that saw a page in memory, summed up over `pages`.
    pub fn seen(&self, pages: Range<u32>) -> u64 {
        let all = self.ends.len() as u64;
        let lived = pages.clone().map(|page| self.present_from[page as usize]);
        let lived = lived.map(|from| all.saturating_sub(u64::from(from)));
        let absences = self.absences_of(pages).iter();
        let away = absences.map(|(_, from, until)| until.map_or(all, u64::from) - u64::from(*from));
        lived.sum::<u64>() - away.sum::<u64>()
    }

    /// Returns the number of scans that saw a page accessed, summed up over `pages`.
    pub fn accessed_in(&self, pages: Range<u32>) -> u64 {
        let words = pages.start as usize * self.words..pages.end as usize * self.words;
        let set = self.accessed[words].iter();
        set.map(|word| u64::from(word.count_ones())).sum()
    }

    fn bits(&self, page: u32) -> &[u64] {
        &self.accessed[page as usize * self.words..][..self.words]
    }

    fn start_of(&self, interval: usize) -> Nanos {
        interval.checked_sub(1).map_or(Nanos(0), |i| self.ends[i])
    }

    fn span(&self, from: Nanos, to: Nanos) -> Span {
        Span {
            from,
            to,
            phase: self.ends.partition_point(|end| *end <= from),
            last: self.ends.partition_point(|end| *end <= to),
            seconds: 0.0,
        }
    }

    /// Whether `page` was accessed within `span`, which means that [`Trace::next`] after its start comes by its end. An
    /// interval that begins and ends within the span has all of its accesses there.
    fn accessed_within(&self, page: u32, span: &Span) -> bool {
        let bits = self.bits(page);
        let (first, last) = (span.phase, span.last);
        let has = |interval: usize| bits[interval / 64] >> (interval % 64) & 1 == 1;
        if first < last && has(first) && self.first_in(page, first, span.from).is_some() {
            return true;
        }
        if (first + 1..last).any(has) {
            return true;
        }
        last < self.ends.len()
            && has(last)
            && (self.first_in(page, last, span.from)).is_some_and(|at| at <= span.to)
    }

    fn next(&self, page: u32, from: Nanos) -> Option<Nanos> {
        let first = self.ends.partition_point(|end| *end <= from);
        let bits = self.bits(page);
        let mut interval = first;
        while interval < self.ends.len() {
            let rest = bits[interval / 64] >> (interval % 64);
            if rest == 0 {
                interval = (interval / 64 + 1) * 64;
                continue;
            }
            interval += rest.trailing_zeros() as usize;
            if let Some(at) = self.first_in(page, interval, from) {
                return Some(at);
            }
            interval += 1;
        }
        None
    }

    /// Returns the first access after `from` in an interval that has some.
    fn first_in(&self, page: u32, interval: usize, from: Nanos) -> Option<Nanos> {
        let (start, end) = (self.start_of(interval), self.ends[interval]);
        let count = u64::from(self.density[page as usize]);
        let slot = end.since(start).0 / count;
        let skipped = from.since(start).0 / slot.max(1);
        (skipped..count)
            .map(|i| {
                let lot = scramble(u64::from(page) << 32 | (interval as u64) << 8 | i);
                start + Nanos(slot * i + lot % slot.max(1) + 1)
            })
            .find(|at| *at > from && *at <= end)
    }

    fn rate(&self, page: u32, at: Nanos) -> f64 {
        let interval = self.ends.partition_point(|end| *end <= at);
        if interval >= self.ends.len() || self.bits(page)[interval / 64] >> (interval % 64) & 1 == 0
        {
            return 0.0;
        }
        let length = self.ends[interval].since(self.start_of(interval));
        f64::from(self.density[page as usize]) / length.as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos(1_000_000_000);

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * SECOND.0)
    }

    #[test]
    fn a_rate_sets_bits_as_often_as_it_says() {
        let pattern = Pattern::Phases(vec![(Nanos(0), Rates::Never), (at(10), Rates::Even(0.5))]);
        let is_set = |from, to, draw| pattern.accessed(0..1, at(from), at(to), || draw);
        assert!(!is_set(0, 10, 0.0));
        // One second at a half each second: 1 - exp(-0.5) = 0.393.
        assert!(is_set(5, 11, 0.39) && !is_set(5, 11, 0.40));
        // Two pages are accessed twice as often.
        assert!(pattern.accessed(0..2, at(10), at(11), || 0.63));
    }

    #[test]
    fn the_next_access_waits_for_its_phase() {
        let pattern = Pattern::Phases(vec![
            (Nanos(0), Rates::Never),
            (at(10), Rates::Even(1.0)),
            (at(20), Rates::Never),
        ]);
        let half = pattern.next(0, at(3), 0.5).expect("it comes");
        assert!((half.as_secs_f64() - 10.0 - 2.0_f64.ln()).abs() < 1e-6);
        let next = pattern.next(0, at(3), 1.0 - 1e-9);
        assert_eq!(next, None, "its phase is over first");
        assert_eq!(pattern.next(0, at(20), 0.1), None);
    }

    #[test]
    fn a_trace_is_replayed_to_the_scan() {
        let mut trace = Trace::new((1..=100).map(at).collect(), 2);
        for interval in [0, 3, 70] {
            trace.note(interval, 1, true);
        }
        trace.note(5, 0, false);
        trace.finish();
        let pattern = Pattern::Trace(Arc::new(trace), 0);
        let seen: Vec<u64> = (0..100)
            .filter(|&second| pattern.accessed(1..2, at(second), at(second + 1), || 0.0))
            .collect();
        assert_eq!(seen, [0, 3, 70]);
        let next = pattern.next(1, at(4), 0.0).expect("there is one more");
        assert!(next > at(70) && next <= at(71));
        assert_eq!(pattern.next(1, next, 0.0), None);
        assert_eq!(pattern.next(0, at(0), 0.0), None);
        let Pattern::Trace(trace, _) = &pattern else {
            unreachable!()
        };
        assert_eq!(trace.present_from(0), Some(at(5)));
        assert_eq!(trace.present_from(1), Some(at(0)));
    }

    #[test]
    fn what_was_given_up_is_known_until_it_comes_back() {
        let mut trace = Trace::new((1..=9).map(at).collect(), 3);
        (0..9).for_each(|interval| trace.note(interval, 0, false));
        for interval in [0, 1, 5, 6, 7, 8] {
            trace.note(interval, 1, false);
        }
        (2..4).for_each(|interval| trace.note(interval, 2, true));
        trace.finish();
        let absences: Vec<_> = trace.absences(0..3).collect();
        assert_eq!(absences, [(1, at(2), Some(at(5))), (2, at(4), None)]);
        assert_eq!(trace.absences(0..1).count(), 0);
        assert_eq!([trace.seen(0..1), trace.seen(1..3)], [9, 6 + 2]);
    }

    #[test]
    fn a_page_in_every_scan_is_busy_in_between() {
        let mut trace = Trace::new((1..=10).map(at).collect(), 1);
        (0..10).for_each(|interval| trace.note(interval, 0, true));
        trace.finish();
        let mut now = Nanos(0);
        let mut count = 0;
        while let Some(next) = trace.next(0, now) {
            (now, count) = (next, count + 1);
        }
        assert_eq!(count, 10 * BUSY);
    }
}
