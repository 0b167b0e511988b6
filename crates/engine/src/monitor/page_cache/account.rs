//! Sums of the page cache by file, and by node and control group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CachedFolio, FolioState, SeenFolio};
use crate::address::PAGE_SIZE;
use crate::frames::{AgeBytes, NR_AGES, PageAge};

/// Most files that are reported one by one: beyond that, files whose frames come last are left out.
const FILES_MAX: usize = 1 << 16;

/// Bytes of the page cache that no process maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedBytes {
    /// Bytes by the time of their last access.
    pub ages: AgeBytes,
    /// On the kernel's active list: read twice or more while they were in memory.
    pub active: u64,
    /// Not written to the file yet.
    pub dirty: u64,
    /// Accessed in one scan since they were first seen.
    pub used_once: u64,
    /// Accessed in several scans since they were first seen.
    pub used_again: u64,
}

impl CachedBytes {
    /// Returns the sum over all ages.
    pub fn total(&self) -> u64 {
        self.ages.total()
    }

    /// Adds the bytes of `more`.
    pub fn add(&mut self, more: &Self) {
        self.ages.add(&more.ages);
        for (sum, more) in [
            (&mut self.active, more.active),
            (&mut self.dirty, more.dirty),
            (&mut self.used_once, more.used_once),
            (&mut self.used_again, more.used_again),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// A file's page counts in a compact form.
#[derive(Clone, Copy, Debug, Default)]
struct FilePages {
    touched: u32,
    idle: [u32; NR_AGES],
    unknown: u32,
    active: u32,
    dirty: u32,
    used_once: u32,
    used_again: u32,
}

impl FilePages {
    fn total(&self) -> u32 {
        self.idle.iter().sum::<u32>() + self.touched + self.unknown
    }

    fn add(&mut self, folio: &CachedFolio, seen: SeenFolio, pages: u32) {
        *match seen.age {
            PageAge::Touched => &mut self.touched,
            PageAge::Idle(step) => &mut self.idle[PageAge::class(step)],
            PageAge::Unknown => &mut self.unknown,
        } += pages;
        match seen.nr_uses {
            0 => {}
            1 => self.used_once += pages,
            _ => self.used_again += pages,
        }
        if folio.state.has(FolioState::ACTIVE) {
            self.active += pages;
        }
        if folio.state.has(FolioState::DIRTY | FolioState::WRITEBACK) {
            self.dirty += pages;
        }
    }

    fn bytes(&self) -> CachedBytes {
        let bytes = |pages| u64::from(pages) * PAGE_SIZE;
        CachedBytes {
            ages: AgeBytes {
                touched: bytes(self.touched),
                idle: self.idle.map(bytes),
                unknown: bytes(self.unknown),
            },
            active: bytes(self.active),
            dirty: bytes(self.dirty),
            used_once: bytes(self.used_once),
            used_again: bytes(self.used_again),
        }
    }
}

/// The sums of a round.
#[derive(Clone, Debug, Default)]
pub struct CacheAccount {
    files: BTreeMap<u64, FilePages>,
    totals: BTreeMap<(u32, u64), CachedBytes>,
    /// Sums of the present file; neighbouring frames mostly belong to one file.
    last: Option<(u64, (u32, u64), FilePages)>,
    left_out: u64,
}

impl CacheAccount {
    /// Counts `pages` pages of a folio on a node.
    pub fn add(&mut self, folio: &CachedFolio, seen: SeenFolio, node: u32, pages: u32) {
        let key = (node, folio.group);
        match &mut self.last {
            Some((file, of, sums)) if *file == folio.file && *of == key => {
                sums.add(folio, seen, pages);
            }
            _ => {
                self.settle();
                let mut sums = FilePages::default();
                sums.add(folio, seen, pages);
                self.last = Some((folio.file, key, sums));
            }
        }
    }

    fn settle(&mut self) {
        let Some((file, key, more)) = self.last.take() else {
            return;
        };
        let bytes = more.bytes();
        self.totals.entry(key).or_default().add(&bytes);
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&file) {
            self.left_out = self.left_out.saturating_add(bytes.total());
            return;
        }
        let sums = self.files.entry(file).or_default();
        sums.touched += more.touched;
        sums.unknown += more.unknown;
        for (sum, more) in sums.idle.iter_mut().zip(more.idle) {
            *sum += more;
        }
        sums.active += more.active;
        sums.dirty += more.dirty;
        sums.used_once += more.used_once;
        sums.used_again += more.used_again;
    }

    /// Returns the sums by node and control group.
    pub fn totals(&mut self) -> &BTreeMap<(u32, u64), CachedBytes> {
        self.settle();
        &self.totals
    }

    /// Returns the number of files that are reported one by one, and the bytes of the others.
    pub fn nr_files(&mut self) -> (usize, u64) {
        self.settle();
        (self.files.len(), self.left_out)
    }

    /// Returns all files that are reported one by one.
    pub fn files(&mut self) -> impl Iterator<Item = (u64, CachedBytes)> {
        self.settle();
        let files = self.files.iter();
        files.map(|(file, pages)| (*file, pages.bytes()))
    }

    /// Returns the `nr` largest files.
    pub fn largest(&mut self, nr: usize) -> Vec<(u64, CachedBytes)> {
        self.settle();
        let mut all: Vec<(u32, u64)> = { self.files.iter() }
            .map(|(file, pages)| (pages.total(), *file))
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(nr);
        let bytes = |(_, file): (u32, u64)| (file, self.files[&file].bytes());
        all.into_iter().map(bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Nanos;

    #[test]
    fn folios_are_counted_by_file_and_by_group() {
        let mut account = CacheAccount::default();
        let mut add = |file, group, state, age, nr_uses, pages| {
            let folio = CachedFolio {
                frame: 0,
                order: 3,
                state: FolioState(state),
                file,
                index: 0,
                group,
            };
            let seen = SeenFolio {
                age,
                nr_uses,
                hides_next: false,
            };
            account.add(&folio, seen, 0, pages);
        };
        add(1, 7, FolioState::ACTIVE, PageAge::Touched, 2, 8);
        add(1, 7, 0, PageAge::idle_for(Nanos::from_millis(30_000)), 1, 8);
        add(1, 8, 0, PageAge::Unknown, 0, 1);
        add(2, 8, FolioState::DIRTY, PageAge::idle_for(Nanos(0)), 0, 1);
        let page = PAGE_SIZE;
        let of = account.totals()[&(0, 7)];
        assert_eq!(of.total(), 16 * page);
        let parts = [of.ages.touched, of.active, of.used_once, of.used_again];
        assert_eq!(parts, [8 * page; 4]);
        let of = account.totals()[&(0, 8)];
        let parts = [of.total(), of.ages.unknown, of.dirty];
        assert_eq!(parts, [2 * page, page, page]);
        let largest: Vec<_> = { account.largest(1).into_iter() }
            .map(|(file, bytes)| (file, bytes.total()))
            .collect();
        assert_eq!(largest, [(1, 17 * page)]);
        assert_eq!(account.nr_files(), (2, 0));
    }
}
