//! Dropped pages of files that were read back.
//!
//! Problem: the kernel keeps no trace of pages that were dropped on our request, so its count of refaults
//! (`workingset_refault_file`) misses them. Approach: the dropped pages of each file are noted, and looked up in the
//! page cache from time to time, file by file. If an eighth of a file's dropped pages were read back, the file waits
//! longer. Its pages must be idle four times as long the next time, then sixteen and sixty-four times. This lasts ten
//! minutes after the last return, and falls by one step each ten minutes.
//!
//! Of large files a sample is noted: groups of 16 pages, chosen by a hash of their place. Each sampled group also
//! represents the groups that were left out.
//!
//! Thousands of files with random reads need not be dropped once each to learn that. If an eighth of the lately dropped
//! pages of a control group were read back, all its other files wait four times as long too. From a quarter on they
//! wait sixteen times as long, from a half on sixty-four times.
//!
//! With thousands of files a round takes minutes, in which the guard would not see the refaults. Therefore files that
//! were not checked yet are presumed to have the return share of the recently checked files of their control group.
//! Later findings count only as far as they exceed the presumed number.
//!
//! Limits: beyond [`FILES_MAX`] files, or [`SAMPLES_MAX`] groups of pages in all, the files next in turn are forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::address::Nanos;
use crate::refault_rate::RefaultRate;

const FILES_MAX: usize = 16_384;
/// Pages of a file that are noted together.
const GROUP: u64 = u16::BITS as u64;
/// Most such groups of one file, and of all.
const SAMPLE_MAX: usize = 128;
const SAMPLES_MAX: usize = 1 << 18;
/// Time after which a dropped file is no longer checked.
const FORGOTTEN_AFTER: Nanos = Nanos::from_millis(1_800_000);
/// Divisor for the part of the dropped pages that must return for the file to wait longer.
const RETURNED_SHARE: u64 = 8;
/// Most steps; each step is four times as long.
const STEPS_MAX: u8 = 3;
/// Time after which a step expires without another return.
const STEP_LASTS: Nanos = Nanos::from_millis(600_000);
/// Weight of earlier findings against newer ones.
const FORMER_WEIGHT: f64 = 0.7;

/// A file by its permanent identity: device and inode.
pub type FileId = (u64, u64);

/// [`GROUP`] pages of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    /// The first page.
    first: u64,
    dropped: u16,
    /// The dropped pages that were read back.
    back: u16,
    cached: u16,
}

/// The dropped pages of a file.
#[derive(Clone, Debug, Default)]
pub struct DroppedFile {
    /// The file's identity.
    pub file: FileId,
    /// Control group that owned most of it.
    group: u64,
    /// The noted groups in order of places.
    sample: Vec<Sampled>,
    /// Binary logarithm of the number of groups that each sampled group represents.
    thinned: u32,
    dropped: Nanos,
    /// The file was checked since it was dropped.
    is_seen: bool,
    /// Its return has already made it wait longer.
    is_counted: bool,
}

impl DroppedFile {
    fn drop_pages(&mut self, places: &[Range<u64>]) {
        for place in places {
            let mut first = place.start / GROUP * GROUP;
            while first < place.end {
                if is_sampled(first, self.thinned) {
                    let pages = bits_of(first, place);
                    match self.sample.binary_search_by_key(&first, |of| of.first) {
                        Ok(at) => {
                            self.sample[at].dropped |= pages;
                            self.sample[at].back &= !pages;
                        }
                        Err(at) => {
                            let of = Sampled {
                                first,
                                dropped: pages,
                                ..Sampled::default()
                            };
                            self.sample.insert(at, of);
                        }
                    }
                    self.thin();
                }
                first += GROUP;
            }
        }
    }

    /// Removes half of the sample while it is too large.
    fn thin(&mut self) {
        while self.sample.len() > SAMPLE_MAX {
            self.thinned += 1;
            let thinned = self.thinned;
            self.sample.retain(|of| is_sampled(of.first, thinned));
        }
    }

    /// Returns the ranges in which to look for its pages; cached pages are passed to
    /// [`tell_cached`](Self::tell_cached).
    pub fn places(&self) -> Vec<Range<u64>> {
        let mut places: Vec<Range<u64>> = Vec::new();
        for of in &self.sample {
            match places.last_mut() {
                Some(last) if last.end == of.first => last.end += GROUP,
                _ => places.push(of.first..of.first + GROUP),
            }
        }
        places
    }

    /// Marks these pages as cached.
    pub fn tell_cached(&mut self, pages: &Range<u64>) {
        let is_before = |of: &Sampled| of.first + GROUP <= pages.start;
        let first = self.sample.partition_point(is_before);
        let of_pages = self.sample[first..].iter_mut();
        for of in of_pages.take_while(|of| of.first < pages.end) {
            of.cached |= bits_of(of.first, pages);
        }
    }

    /// Takes in the pages that were marked as cached. Returns the number of newly returned pages.
    fn settle(&mut self) -> u64 {
        let mut new = 0;
        for of in &mut self.sample {
            let back = std::mem::take(&mut of.cached) & of.dropped & !of.back;
            of.back |= back;
            new += u64::from(back.count_ones());
        }
        new << self.thinned
    }

    fn sum(&self, bits: impl Fn(&Sampled) -> u16) -> u64 {
        let groups = self.sample.iter();
        let pages = groups.map(|of| u64::from(bits(of).count_ones()));
        pages.sum::<u64>() << self.thinned
    }

    fn nr_pages(&self) -> u64 {
        self.sum(|of| of.dropped)
    }

    fn nr_back(&self) -> u64 {
        self.sum(|of| of.back)
    }

    /// Returns the number of pages that are not known to be back.
    fn nr_out(&self) -> u64 {
        self.sum(|of| of.dropped & !of.back)
    }
}

/// Returns the pages of `range` among the [`GROUP`] pages from `first` on, as bits.
fn bits_of(first: u64, range: &Range<u64>) -> u16 {
    let from = range.start.saturating_sub(first).min(GROUP);
    let to = range.end.saturating_sub(first).min(GROUP);
    let up_to = |n: u64| u32::MAX.checked_shr(32 - n as u32).unwrap_or(0) as u16;
    up_to(to) & !up_to(from)
}

/// Returns whether a group of pages is in a sample that was thinned `thinned` times. Each time removes every other
/// group, at random.
fn is_sampled(first: u64, thinned: u32) -> bool {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4): high bits are well mixed.
    let hash = (first / GROUP).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    thinned == 0 || hash >> (64 - thinned.min(63)) == 0
}

/// All dropped files that are checked for returns.
#[derive(Clone, Debug, Default)]
pub struct ReturnedFiles {
    files: BTreeMap<FileId, DroppedFile>,
    nr_samples: usize,
    /// The files in the order in which they will be checked.
    turns: VecDeque<FileId>,
    steps: BTreeMap<FileId, (u8, Nanos)>,
    groups: BTreeMap<u64, OfGroup>,
}

/// Known returns of the files of a control group.
#[derive(Clone, Debug, Default)]
struct OfGroup {
    /// Pages of checked files, and the returned ones among them.
    flows: RefaultRate,
    /// Pages of files that were checked for the first time since they were dropped, and the returned ones among them.
    /// Earlier findings count less and less.
    first_looks: (f64, f64),
    /// Pages of files that were not checked yet.
    nr_unseen: u64,
    /// Pages that were presumed to be back, in files not yet checked and in files checked since the last report.
    presumed: f64,
    /// Pages found by first checks since the last report, and pages found by others.
    found_first: u64,
    found_later: u64,
}

impl OfGroup {
    /// Adds a check that found `new` of `nr_out` pages to be back.
    fn found(&mut self, now: Nanos, is_first: bool, nr_out: u64, new: u64) {
        self.flows.add(now, if is_first { nr_out } else { 0 }, new);
        if is_first {
            self.found_first += new;
            self.first_looks.0 += nr_out as f64;
            self.first_looks.1 += new as f64;
        } else {
            self.found_later += new;
        }
    }

    /// Returns the pages that returned since the last call, including the presumed ones.
    fn take_returned(&mut self) -> u64 {
        let found = std::mem::take(&mut self.found_first) as f64;
        let (pages, back) = self.first_looks;
        let share = if pages > 0.0 { back / pages } else { 0.0 };
        let unseen = share * self.nr_unseen as f64;
        self.first_looks = (pages * FORMER_WEIGHT, back * FORMER_WEIGHT);
        let new = (found + unseen - self.presumed).max(0.0);
        // The pages of forgotten files are no longer presumed.
        self.presumed = (self.presumed + new - found).clamp(0.0, self.nr_unseen as f64);
        std::mem::take(&mut self.found_later) + new.round() as u64
    }
}

impl ReturnedFiles {
    /// Notes that these places of a file of `group` were dropped: pages, in order.
    pub fn dropped(&mut self, now: Nanos, file: FileId, group: u64, places: &[Range<u64>]) {
        let mut of_file = self.take(file).unwrap_or_else(|| {
            self.make_room();
            self.turns.push_back(file);
            DroppedFile::default()
        });
        (of_file.file, of_file.group) = (file, group);
        of_file.dropped = now;
        of_file.is_seen = false;
        of_file.is_counted = false;
        of_file.drop_pages(places);
        self.put(of_file);
    }

    fn make_room(&mut self) {
        while (self.files.len() >= FILES_MAX || self.nr_samples >= SAMPLES_MAX)
            && let Some(first) = self.turns.pop_front()
        {
            self.take(first);
        }
    }

    fn take(&mut self, file: FileId) -> Option<DroppedFile> {
        let known = self.files.remove(&file)?;
        self.nr_samples -= known.sample.len();
        if !known.is_seen
            && let Some(group) = self.groups.get_mut(&known.group)
        {
            group.nr_unseen = group.nr_unseen.saturating_sub(known.nr_out());
        }
        Some(known)
    }

    fn put(&mut self, file: DroppedFile) {
        self.nr_samples += file.sample.len();
        if !file.is_seen {
            self.groups.entry(file.group).or_default().nr_unseen += file.nr_out();
        }
        self.files.insert(file.file, file);
    }

    /// Returns the next file to check.
    pub fn next(&mut self, now: Nanos) -> Option<DroppedFile> {
        loop {
            let next = self.turns.pop_front()?;
            let next = self.take(next)?;
            if now.since(next.dropped) < FORGOTTEN_AFTER {
                return Some(next);
            }
        }
    }

    /// Returns whether `file` is one of them.
    pub fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Returns the number of files that are checked.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Takes in a file that was checked: its cached pages are already marked.
    pub fn found(&mut self, now: Nanos, mut file: DroppedFile) {
        let nr_out = file.nr_out();
        let new = file.settle();
        let is_first = !std::mem::replace(&mut file.is_seen, true);
        let group = self.groups.entry(file.group).or_default();
        group.found(now, is_first, nr_out, new);
        let is_known = self.steps.len() < FILES_MAX || self.steps.contains_key(&file.file);
        let is_back = file.nr_back() * RETURNED_SHARE >= file.nr_pages();
        if is_back && is_known && !std::mem::replace(&mut file.is_counted, true) {
            let step = self.step(now, file.file);
            let step = (step + 1).min(STEPS_MAX);
            self.steps.insert(file.file, (step, now));
        }
        // The pages that are still out may return too.
        if file.nr_out() > 0 {
            self.turns.push_back(file.file);
            self.put(file);
        }
    }

    /// Returns the factor by which pages of `file` must be idle longer.
    pub fn backoff(&self, now: Nanos, file: FileId) -> u64 {
        4u64.pow(u32::from(self.step(now, file)))
    }

    /// Returns the factor by which pages of any file of `group` must be idle longer.
    pub fn backoff_of_group(&self, now: Nanos, group: u64) -> u64 {
        let group = self.groups.get(&group);
        let share = group.and_then(|of| of.flows.returned(now)).unwrap_or(0.0);
        let steps = { (0..STEPS_MAX).rev() }
            .map(|step| RETURNED_SHARE >> step)
            .filter(|part| share * *part as f64 >= 1.0);
        4u64.pow(steps.count() as u32)
    }

    fn step(&self, now: Nanos, file: FileId) -> u8 {
        let step = self.steps.get(&file);
        step.map_or(0, |step| step_left(now, *step))
    }

    /// Returns the pages that returned since the last call, including the presumed ones.
    pub fn take_returned(&mut self, now: Nanos) -> u64 {
        let returned = self.groups.values_mut().map(OfGroup::take_returned);
        let returned = returned.sum();
        // Drops groups without unchecked pages and with few recent findings.
        let is_needed = |of: &OfGroup| of.nr_unseen > 0 || of.flows.returned(now).is_some();
        self.groups.retain(|_, of| is_needed(of));
        self.steps.retain(|_, step| step_left(now, *step) > 0);
        returned
    }
}

/// Returns the steps that are left of those gained at a time: one less for each [`STEP_LASTS`] since then.
fn step_left(now: Nanos, (step, changed): (u8, Nanos)) -> u8 {
    let passed = now.since(changed).0 / STEP_LASTS.0;
    step.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pictures::second;

    const FILE: FileId = (1, 2);

    /// Notes the first `nr` pages of a file as dropped.
    fn drop_first(files: &mut ReturnedFiles, file: FileId, group: u64, nr: u64) {
        files.dropped(second(0), file, group, std::slice::from_ref(&(0..nr)));
    }

    /// Reports a check that found the first `nr_cached` pages cached.
    fn found(files: &mut ReturnedFiles, now: Nanos, mut file: DroppedFile, nr_cached: u64) {
        file.tell_cached(&(0..nr_cached));
        files.found(now, file);
    }

    #[test]
    fn a_file_that_comes_back_waits_longer_for_a_while() {
        let mut files = ReturnedFiles::default();
        files.dropped(second(0), FILE, 0, &[0..60, 64..104]);
        let dropped = files.next(second(1)).expect("it was dropped");
        found(&mut files, second(1), dropped, 5);
        assert_eq!(files.take_returned(second(1)), 5);
        assert_eq!(files.backoff(second(1), FILE), 1, "less than an eighth");
        assert_eq!(files.backoff(second(2), (1, 3)), 1);
        let mut files = ReturnedFiles::default();
        drop_first(&mut files, FILE, 0, 100);
        let dropped = files.next(second(1)).expect("it was dropped");
        assert_eq!(dropped.places(), vec![0..112; 1]);
        found(&mut files, second(1), dropped, 50);
        assert_eq!(files.take_returned(second(1)), 50);
        assert_eq!(files.backoff(second(1), FILE), 4);
        // The other half.
        let dropped = files.next(second(2)).expect("half is still out");
        found(&mut files, second(2), dropped, 100);
        assert_eq!(files.take_returned(second(1)), 50);
        assert_eq!(files.backoff(second(602), FILE), 1, "ten minutes later");
    }

    #[test]
    fn files_are_looked_for_in_turns_and_forgotten_in_the_end() {
        let mut files = ReturnedFiles::default();
        drop_first(&mut files, (0, 1), 0, 8);
        drop_first(&mut files, (0, 2), 0, 8);
        for turn in [1, 2, 1, 2] {
            let next = files.next(second(5)).expect("two");
            assert_eq!(next.file.1, turn);
            found(&mut files, second(5), next, 0);
        }
        assert!(files.next(second(1801)).is_none());
        for file in 0..FILES_MAX as u64 + 10 {
            drop_first(&mut files, (0, file), 0, 8);
        }
        assert_eq!(files.len(), FILES_MAX);
    }

    #[test]
    fn what_comes_back_of_many_files_is_presumed_before_all_are_looked_for() {
        let mut files = ReturnedFiles::default();
        for file in 0..1000 {
            drop_first(&mut files, (0, file), 0, 8);
        }
        let mut reported = Vec::new();
        for turn in 1..=50 {
            for _ in 0..20 {
                let next = files.next(second(turn)).expect("a thousand");
                // Every second file is back.
                let nr_cached = if next.file.1.is_multiple_of(2) { 8 } else { 0 };
                found(&mut files, second(turn), next, nr_cached);
            }
            reported.push(files.take_returned(second(1)));
        }
        assert_eq!(reported[0], 4000, "a look at a fiftieth tells");
        assert_eq!(reported.iter().sum::<u64>(), 4000);
    }

    #[test]
    fn nothing_is_presumed_of_files_that_are_forgotten() {
        let mut files = ReturnedFiles::default();
        (0..100).for_each(|file| drop_first(&mut files, (0, file), 0, 8));
        let next = files.next(second(1)).expect("a hundred");
        found(&mut files, second(1), next, 8);
        assert_eq!(files.take_returned(second(1)), 800);
        assert!(files.next(second(1801)).is_none(), "all are forgotten");
        files.take_returned(second(1));
        drop_first(&mut files, (0, 200), 0, 8);
        let next = files.next(second(2)).expect("one");
        found(&mut files, second(2), next, 8);
        assert_eq!(files.take_returned(second(1)), 8, "it counts");
    }

    #[test]
    fn files_of_a_group_of_which_much_comes_back_wait_longer() {
        let backoff_if_back = |nr_back: u64| {
            let mut files = ReturnedFiles::default();
            for file in 0..100 {
                drop_first(&mut files, (0, file), 7, 64);
                let next = files.next(second(1)).expect("one");
                found(&mut files, second(1), next, nr_back);
            }
            assert_eq!(files.backoff_of_group(second(1), 8), 1, "another's");
            assert_eq!(files.backoff_of_group(second(3600), 7), 1);
            files.backoff_of_group(second(1), 7)
        };
        let backoffs = [0, 7, 9, 17, 33, 64].map(backoff_if_back);
        assert_eq!(backoffs, [1, 1, 4, 16, 64, 64]);
    }

    #[test]
    fn what_is_presumed_is_by_group() {
        let mut files = ReturnedFiles::default();
        drop_first(&mut files, (0, 1), 7, 8);
        for file in 2..100 {
            let group = 7 + file % 2;
            drop_first(&mut files, (0, file), group, 8);
        }
        let next = files.next(second(1)).expect("a hundred");
        found(&mut files, second(1), next, 8);
        // 49 of 98 are of that group.
        assert_eq!(files.take_returned(second(1)), 8 + 49 * 8);
    }

    #[test]
    fn of_a_large_file_a_sample_tells() {
        // Every other page of a GiB is dropped. At first the other pages are cached, and later the first half.
        let places: Vec<_> = (0..1 << 17).map(|n| n * 2..n * 2 + 1).collect();
        let (mut files, mut returned) = (ReturnedFiles::default(), 0);
        for part in places.chunks(1000) {
            files.dropped(second(0), FILE, 0, part);
        }
        let mut look = |files: &mut ReturnedFiles, cached: &dyn Fn(u64) -> bool| {
            let mut file = files.next(second(1)).expect("one");
            assert!(file.sample.len() <= SAMPLE_MAX);
            let nr_pages = file.nr_pages();
            assert!(nr_pages.abs_diff(1 << 17) < 1 << 15, "{nr_pages}");
            for page in file.places().into_iter().flatten() {
                if cached(page) {
                    file.tell_cached(&(page..page + 1));
                }
            }
            files.found(second(1), file);
            returned += files.take_returned(second(1));
            returned
        };
        assert_eq!(look(&mut files, &|page| page % 2 == 1), 0);
        let half = look(&mut files, &|page| page < 1 << 17);
        assert!(half.abs_diff(1 << 16) < 1 << 14, "{half}");
        let again = look(&mut files, &|page| page < 1 << 17);
        assert_eq!(again, half, "no page twice");
        files.dropped(second(2), FILE, 0, &places);
        let again = look(&mut files, &|page| page < 1 << 17);
        assert_eq!(again, 2 * half, "but when it was dropped again");
    }

    #[test]
    fn bits_are_those_of_the_part_in_a_group() {
        let check =
            |range: Range<u64>, bits: u16| assert_eq!(bits_of(32, &range), bits, "{range:?}");
        check(0..32, 0);
        check(0..100, u16::MAX);
        check(32..33, 1);
        check(47..48, 1 << 15);
        check(40..44, 0x0F00);
        check(48..60, 0);
    }
}
