//! Pages of files that were dropped, and came back.
//!
//! Problem: the kernel keeps no trace of pages that were dropped for us, so its count of refaults
//! (`workingset_refault_file`) misses them. Approach: which pages of which file were dropped is noted, and
//! looked for in the page cache now and then, in turns. A file of which an eighth came back must be idle four
//! times as long the next time, then sixteen and sixty-four times; that lasts ten minutes after the last
//! return, and goes down by one step each ten minutes.
//!
//! Of large files a sample is noted: groups of 16 pages, chosen by a hash of their place, each standing for as
//! many others as were left out.
//!
//! Thousands of files that are read by chance need not be dropped once each to learn that: of a control group
//! of whose dropped pages an eighth came back lately, all others wait four times as long as well, of a quarter
//! sixteen and of a half sixty-four times.
//!
//! Of thousands of files a turn takes minutes, in which the guard would not see what dropping them costs. So
//! of those that nobody has looked for yet the same share is presumed to have come back as of those of the same
//! control group that were looked for of late; what is found then counts only as far as it is more than was presumed.
//!
//! Limits: of more than [`FILES_MAX`] files, or [`SAMPLES_MAX`] groups of pages in all, those are forgotten
//! that were dropped first.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::address::Nanos;
use crate::guard::Flows;

/// Files that are looked for.
const FILES_MAX: usize = 16_384;
/// Pages of a file that are noted together.
const GROUP: u64 = u16::BITS as u64;
/// Such groups of one file, and of all.
const SAMPLE_MAX: usize = 128;
const SAMPLES_MAX: usize = 1 << 18;
/// What is not back after so long is forgotten.
const FORGOTTEN_AFTER: Nanos = Nanos::from_millis(1_800_000);
/// Part of what was dropped that must come back for the file to wait longer.
const RETURNED_SHARE: u64 = 8;
/// Each step is four times as long.
const STEPS_MAX: u8 = 3;
/// A step is forgotten after so long without another return.
const STEP_LASTS: Nanos = Nanos::from_millis(600_000);
/// How much what was found before counts beside what was found since.
const FORMER_WEIGHT: f64 = 0.7;

/// A file, by what stays its own: device and inode.
pub type FileId = (u64, u64);

/// [`GROUP`] pages of a file.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    /// The first page.
    first: u64,
    /// Those that were dropped.
    dropped: u16,
    /// Of these, those that came back.
    back: u16,
    /// Those that are cached.
    cached: u16,
}

/// What was dropped of a file.
#[derive(Clone, Debug, Default)]
pub struct DroppedFile {
    /// Which one.
    pub file: FileId,
    /// Whose it was, most of it.
    group: u64,
    /// In order of places.
    sample: Vec<Sampled>,
    /// Each group of the sample stands for 2 to the power of so many.
    thinned: u32,
    dropped: Nanos,
    /// It was looked for since that.
    is_seen: bool,
    /// That it came back has made it wait longer.
    is_counted: bool,
}

impl DroppedFile {
    /// These pages were dropped.
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
                        Err(at) => self.sample.insert(at, Sampled::new(first, pages)),
                    }
                    self.thin();
                }
                first += GROUP;
            }
        }
    }

    /// Leaves out half of the sample while it is too large.
    fn thin(&mut self) {
        while self.sample.len() > SAMPLE_MAX {
            self.thinned += 1;
            let thinned = self.thinned;
            self.sample.retain(|of| is_sampled(of.first, thinned));
        }
    }

    /// Where its pages are to be looked for; what is cached there is to be [told](Self::tell_cached).
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

    /// These pages are cached.
    pub fn tell_cached(&mut self, pages: &Range<u64>) {
        let first = self
            .sample
            .partition_point(|of| of.first + GROUP <= pages.start);
        let of_pages = self.sample[first..].iter_mut();
        for of in of_pages.take_while(|of| of.first < pages.end) {
            of.cached |= bits_of(of.first, pages);
        }
    }

    /// Takes in what was told to be cached. Yields how many pages are new.
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
        let pages = self
            .sample
            .iter()
            .map(|of| u64::from(bits(of).count_ones()));
        pages.sum::<u64>() << self.thinned
    }

    fn nr_pages(&self) -> u64 {
        self.sum(|of| of.dropped)
    }

    fn nr_back(&self) -> u64 {
        self.sum(|of| of.back)
    }

    /// Pages that have not come back, as far as is known.
    fn nr_out(&self) -> u64 {
        self.sum(|of| of.dropped & !of.back)
    }
}

impl Sampled {
    fn new(first: u64, dropped: u16) -> Self {
        Self {
            first,
            dropped,
            back: 0,
            cached: 0,
        }
    }
}

/// The pages of `range` among those from `first` on.
fn bits_of(first: u64, range: &Range<u64>) -> u16 {
    let from = range.start.saturating_sub(first).min(GROUP);
    let to = range.end.saturating_sub(first).min(GROUP);
    let up_to = |n: u64| u32::MAX.checked_shr(32 - n as u32).unwrap_or(0) as u16;
    up_to(to) & !up_to(from)
}

/// Whether a group of pages is in a sample that is thinned so often: every other one, by chance, each time.
fn is_sampled(first: u64, thinned: u32) -> bool {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4): high bits are well mixed.
    let hash = (first / GROUP).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    thinned == 0 || hash >> (64 - thinned.min(63)) == 0
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct ReturnedFiles {
    files: BTreeMap<FileId, DroppedFile>,
    nr_samples: usize,
    /// The one that is to be looked for next is first.
    turns: VecDeque<FileId>,
    steps: BTreeMap<FileId, (u8, Nanos)>,
    /// By control group.
    groups: BTreeMap<u64, OfGroup>,
}

/// What is known of the files of a control group.
#[derive(Clone, Debug, Default)]
struct OfGroup {
    /// Pages of files that were looked for, and those that came back.
    flows: Flows,
    /// Pages of files that were looked for the first time since they were dropped, and those of them that had come
    /// back; what was found before counts less and less.
    first_looks: (f64, f64),
    /// Pages of files that nobody has looked for.
    nr_unseen: u64,
    /// Of these and those that were looked for since this was last told, so many were presumed to be back.
    presumed: f64,
    /// Since that: pages found by first looks, and by others.
    found_first: u64,
    found_later: u64,
}

impl OfGroup {
    /// So many of `nr_out` pages are found to be back.
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

    /// Pages that came back since this was last asked, those that most likely did included.
    fn take_returned(&mut self) -> u64 {
        let found = std::mem::take(&mut self.found_first) as f64;
        let (pages, back) = self.first_looks;
        let unseen = if pages > 0.0 {
            back / pages * self.nr_unseen as f64
        } else {
            0.0
        };
        self.first_looks = (pages * FORMER_WEIGHT, back * FORMER_WEIGHT);
        let new = (found + unseen - self.presumed).max(0.0);
        // Of what was forgotten nothing is presumed any more.
        self.presumed = (self.presumed + new - found).clamp(0.0, self.nr_unseen as f64);
        std::mem::take(&mut self.found_later) + new.round() as u64
    }
}

impl ReturnedFiles {
    /// These places of a file of `group` were dropped: pages, in order.
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

    /// The next to look for.
    pub fn next(&mut self, now: Nanos) -> Option<DroppedFile> {
        loop {
            let next = self.turns.pop_front()?;
            let next = self.take(next)?;
            if now.since(next.dropped) < FORGOTTEN_AFTER {
                return Some(next);
            }
        }
    }

    /// Whether `file` is one of them.
    pub fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Files that are looked for.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A file was looked for: it was told what is cached of it.
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
        // What is still out may come back as well.
        if file.nr_out() > 0 {
            self.turns.push_back(file.file);
            self.put(file);
        }
    }

    /// How many times longer pages of `file` must be idle.
    pub fn patience(&self, now: Nanos, file: FileId) -> u64 {
        4u64.pow(u32::from(self.step(now, file)))
    }

    /// How many times longer pages of any file of `group` must be idle.
    pub fn patience_of_group(&self, now: Nanos, group: u64) -> u64 {
        let group = self.groups.get(&group);
        let share = group.and_then(|of| of.flows.returned(now)).unwrap_or(0.0);
        let steps = { (0..STEPS_MAX).rev() }
            .map(|step| RETURNED_SHARE >> step)
            .filter(|part| share * *part as f64 >= 1.0);
        4u64.pow(steps.count() as u32)
    }

    fn step(&self, now: Nanos, file: FileId) -> u8 {
        let Some((step, changed)) = self.steps.get(&file) else {
            return 0;
        };
        let passed = now.since(*changed).0 / STEP_LASTS.0;
        step.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
    }

    /// Pages that came back since this was last asked, those that most likely did included.
    pub fn take_returned(&mut self, now: Nanos) -> u64 {
        let returned = self.groups.values_mut().map(OfGroup::take_returned);
        let returned = returned.sum();
        // Those of whom nothing is out that was not looked for, and little was lately.
        let is_needed = |of: &OfGroup| of.nr_unseen > 0 || of.flows.returned(now).is_some();
        self.groups.retain(|_, of| is_needed(of));
        returned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = (1, 2);

    fn second(n: u64) -> Nanos {
        Nanos::from_millis(n * 1000)
    }

    /// The first of its pages are cached.
    fn found(files: &mut ReturnedFiles, now: Nanos, mut file: DroppedFile, nr_cached: u64) {
        file.tell_cached(&(0..nr_cached));
        files.found(now, file);
    }

    #[test]
    fn a_file_that_comes_back_waits_longer_for_a_while() {
        let mut files = ReturnedFiles::default();
        let mut cycle = |at: u64, nr_cached: u64| {
            files.dropped(second(at), FILE, 0, &[0..60, 64..104]);
            let dropped = files.next(second(at + 1)).expect("it was dropped");
            found(&mut files, second(at + 1), dropped, nr_cached);
            (
                files.take_returned(second(1)),
                files.patience(second(at + 1), FILE),
            )
        };
        assert_eq!(cycle(0, 5), (5, 1), "less than an eighth");
        assert_eq!(files.patience(second(2), (1, 3)), 1);
        let mut files = ReturnedFiles::default();
        files.dropped(second(0), FILE, 0, std::slice::from_ref(&(0..100)));
        let dropped = files.next(second(1)).expect("it was dropped");
        assert_eq!(dropped.places(), vec![0..112; 1]);
        found(&mut files, second(1), dropped, 50);
        assert_eq!(
            (
                files.take_returned(second(1)),
                files.patience(second(1), FILE)
            ),
            (50, 4)
        );
        // The rest.
        let dropped = files.next(second(2)).expect("half is still out");
        found(&mut files, second(2), dropped, 100);
        assert_eq!(files.take_returned(second(1)), 50);
        assert_eq!(files.patience(second(602), FILE), 1, "ten minutes later");
    }

    #[test]
    fn files_are_looked_for_in_turns_and_forgotten_in_the_end() {
        let mut files = ReturnedFiles::default();
        files.dropped(second(0), (0, 1), 0, std::slice::from_ref(&(0..8)));
        files.dropped(second(0), (0, 2), 0, std::slice::from_ref(&(0..8)));
        for turn in [1, 2, 1, 2] {
            let next = files.next(second(5)).expect("two");
            assert_eq!(next.file.1, turn);
            found(&mut files, second(5), next, 0);
        }
        assert!(files.next(second(1801)).is_none());
        for file in 0..FILES_MAX as u64 + 10 {
            files.dropped(second(0), (0, file), 0, std::slice::from_ref(&(0..8)));
        }
        assert_eq!(files.len(), FILES_MAX);
    }

    #[test]
    fn what_comes_back_of_many_files_is_presumed_before_all_are_looked_for() {
        let mut files = ReturnedFiles::default();
        for file in 0..1000 {
            files.dropped(second(0), (0, file), 0, std::slice::from_ref(&(0..8)));
        }
        let mut told = Vec::new();
        for turn in 1..=50 {
            for _ in 0..20 {
                let next = files.next(second(turn)).expect("a thousand");
                // Every second file is back.
                let nr_cached = if next.file.1.is_multiple_of(2) { 8 } else { 0 };
                found(&mut files, second(turn), next, nr_cached);
            }
            told.push(files.take_returned(second(1)));
        }
        assert_eq!(told[0], 4000, "a look at a fiftieth tells");
        assert_eq!(told.iter().sum::<u64>(), 4000);
    }

    #[test]
    fn nothing_is_presumed_of_files_that_are_forgotten() {
        let mut files = ReturnedFiles::default();
        let dropped = |files: &mut ReturnedFiles, file| {
            files.dropped(second(0), (0, file), 0, std::slice::from_ref(&(0..8)));
        };
        (0..100).for_each(|file| dropped(&mut files, file));
        let next = files.next(second(1)).expect("a hundred");
        found(&mut files, second(1), next, 8);
        assert_eq!(files.take_returned(second(1)), 800);
        assert!(files.next(second(1801)).is_none(), "all are forgotten");
        files.take_returned(second(1));
        dropped(&mut files, 200);
        let next = files.next(second(2)).expect("one");
        found(&mut files, second(2), next, 8);
        assert_eq!(files.take_returned(second(1)), 8, "it counts");
    }

    #[test]
    fn files_of_a_group_of_which_much_comes_back_wait_longer() {
        let patience_if_back = |nr_back: u64| {
            let mut files = ReturnedFiles::default();
            for file in 0..100 {
                files.dropped(second(0), (0, file), 7, std::slice::from_ref(&(0..64)));
                let next = files.next(second(1)).expect("one");
                found(&mut files, second(1), next, nr_back);
            }
            assert_eq!(files.patience_of_group(second(1), 8), 1, "another's");
            assert_eq!(files.patience_of_group(second(3600), 7), 1);
            files.patience_of_group(second(1), 7)
        };
        assert_eq!(
            [0, 7, 9, 17, 33, 64].map(patience_if_back),
            [1, 1, 4, 16, 64, 64]
        );
    }

    #[test]
    fn what_is_presumed_is_by_group() {
        let mut files = ReturnedFiles::default();
        files.dropped(second(0), (0, 1), 7, std::slice::from_ref(&(0..8)));
        for file in 2..100 {
            let group = 7 + file % 2;
            files.dropped(second(0), (0, file), group, std::slice::from_ref(&(0..8)));
        }
        let next = files.next(second(1)).expect("a hundred");
        found(&mut files, second(1), next, 8);
        // 49 of 98 are of that group.
        assert_eq!(files.take_returned(second(1)), 8 + 49 * 8);
    }

    #[test]
    fn of_a_large_file_a_sample_tells() {
        // Every other page of a GiB; of its second half all that was not dropped was never away.
        let places: Vec<_> = (0..1 << 17).map(|n| n * 2..n * 2 + 1).collect();
        let (mut files, mut returned) = (ReturnedFiles::default(), 0);
        for portion in places.chunks(1000) {
            files.dropped(second(0), FILE, 0, portion);
        }
        let mut look = |files: &mut ReturnedFiles, cached: &dyn Fn(u64) -> bool| {
            let mut file = files.next(second(1)).expect("one");
            assert!(file.sample.len() <= SAMPLE_MAX);
            assert!(
                file.nr_pages().abs_diff(1 << 17) < 1 << 15,
                "{}",
                file.nr_pages()
            );
            let pages = file
                .places()
                .into_iter()
                .flatten()
                .filter(|page| cached(*page));
            for page in pages.collect::<Vec<_>>() {
                file.tell_cached(&(page..page + 1));
            }
            files.found(second(1), file);
            returned += files.take_returned(second(1));
            returned
        };
        assert_eq!(look(&mut files, &|page| page % 2 == 1), 0);
        let half = look(&mut files, &|page| page < 1 << 17);
        assert!(half.abs_diff(1 << 16) < 1 << 14, "{half}");
        assert_eq!(
            look(&mut files, &|page| page < 1 << 17),
            half,
            "no page twice"
        );
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
