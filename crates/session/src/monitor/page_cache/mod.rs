//! The unmapped page cache by file, control group and node, with the time of its last access.
//!
//! Approach: rounds scan all frames, part by part ([`Memmap`]); the engine keeps the state of each folio
//! ([`isotherm_engine::page_cache`]). At the end of a round, set marks of accesses are cleared ([`clears`]) within the
//! budget, the most informative first; the next round then shows whether there were more accesses.
//!
//! Limits: the budget sets the length of a round, [`ROUND_MIN`] at least; ages are exact to a round.

mod act;
mod clears;
mod group;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;

use isotherm_engine::frames::{FrameMap, MappedClass};
use isotherm_engine::page_cache::{
    CacheAccount, CacheLayout, CachedBytes, CachedFolio, FileId, FolioAges, FolioState,
    ReturnedFiles,
};
use isotherm_engine::{Nanos, Snapshot};
use isotherm_linux::cache::file::{self, Mounts};
use isotherm_linux::cache::memmap::{FileFacts, Memmap, MemmapError};
use isotherm_linux::cache::{self, clear::Clearer};
use isotherm_linux::cgroup::GroupNumbers;
use isotherm_linux::clock::process_cpu;
use isotherm_record::{CacheSample, CachedFile, CachedKind, CachedMemory, printable};

use super::machine::node_in;
use clears::Clears;
pub(crate) use group::GroupCache;

/// Shortest time between the beginnings of two rounds.
const ROUND_MIN: Nanos = Nanos::from_millis(5_000);
/// Wanted length of a round: marks are cleared until it is reached, or until the round takes twice as long as without.
const ROUND_WANTED: Nanos = Nanos::from_millis(10_000);
/// Limit of the CPU time that is spent at once, and of the saved credit.
const STEP_MAX: Nanos = Nanos::from_millis(100);
/// Number of frames that are scanned before a selection is cleared.
const CHUNK_FRAMES: u64 = 1 << 16;
/// Rounds before a file that could not be opened is tried again.
const RETRY_ROUNDS: u32 = 10;
/// Limit of the remembered files that could not be opened.
const REFUSED_MAX: usize = 1 << 14;
/// Share of unknown ages in the page cache above which more budget is spent.
const UNKNOWN_MUCH: f64 = 0.1;
/// Limit of the largest files that are listed.
const FILES_TOLD: usize = 50;

pub(crate) struct CacheView {
    memmap: Memmap,
    clearer: Clearer,
    mounts: Mounts,
    ages: FolioAges,
    /// Available CPU time in ns; negative if more was spent.
    credit: f64,
    credited: Nanos,
    round: Round,
    next_round: Nanos,
    clears: Clears,
    scan_cost: Nanos,
    /// Files that could not be opened, with the round of the attempt.
    refused: BTreeMap<u64, u32>,
    groups: BTreeMap<u64, String>,
    group_numbers: GroupNumbers,
    /// Sums of the last round, until they are taken.
    pub(super) reported: Option<CacheSample>,
    /// Bytes that the last round found, and those of unknown age.
    pub(crate) bytes: u64,
    unknown_bytes: u64,
    /// Set once schemes ask for snapshots.
    is_acted_on: bool,
    layout: CacheLayout,
    snapshot: Option<Snapshot>,
    /// State of regions by start: the end of the last part that was acted on, and its position in the file.
    cursors: BTreeMap<u64, (u64, u64)>,
    returned: ReturnedFiles,
    /// File regions, by start, without pages that are old enough, and the time until which that holds.
    waiting: BTreeMap<(u64, u64), Nanos>,
    dropped: BTreeMap<FileId, FileFacts>,
    /// Path of the only control group whose page cache is of interest, with those below it; and their keys in the kernel,
    /// once they are known.
    only_group: Option<String>,
    only: Option<BTreeSet<u64>>,
}

#[derive(Default)]
struct Round {
    began: Nanos,
    /// Ranges yet to scan, the next one last.
    rest: Vec<(u32, Range<u64>)>,
    /// Frames since the last selection and to the end of the round; and those of them yet to scan.
    nr_frames: u64,
    nr_frames_left: u64,
    account: CacheAccount,
    scan_cost: Nanos,
}

impl CacheView {
    pub(crate) fn new(now: Nanos) -> Result<Self, MemmapError> {
        let clearer = Clearer::new().map_err(|source| MemmapError::System {
            what: "open /proc/self/clear_refs for writing",
            source,
        })?;
        Ok(Self {
            memmap: Memmap::new()?,
            clearer,
            mounts: Mounts::default(),
            ages: FolioAges::default(),
            credit: STEP_MAX.0 as f64,
            credited: now,
            round: Round::default(),
            next_round: now,
            clears: Clears::default(),
            scan_cost: Nanos(0),
            refused: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_numbers: GroupNumbers::default(),
            reported: None,
            bytes: 0,
            unknown_bytes: 0,
            is_acted_on: false,
            layout: CacheLayout::default(),
            snapshot: None,
            cursors: BTreeMap::new(),
            returned: ReturnedFiles::default(),
            waiting: BTreeMap::new(),
            dropped: BTreeMap::new(),
            only_group: None,
            only: None,
        })
    }

    /// Continues the round. It may take the share of a CPU that `rate` returns, by whether little is known yet, and
    /// `spare` beside that. `nodes` are the nodes' ranges of RAM in frames; `mapped` is the processes' mapped memory.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        rate: impl Fn(bool) -> f64,
        spare: Nanos,
        nodes: &[(u32, Range<u64>)],
        mapped: &FrameMap,
    ) -> Result<(), MemmapError> {
        let elapsed = now.since(std::mem::replace(&mut self.credited, now));
        let rate = rate(self.is_little_known());
        let earned = self.credit + elapsed.0 as f64 * rate;
        self.credit = earned.min(STEP_MAX.0 as f64);
        if self.is_between_rounds() {
            if now < self.next_round {
                return Ok(());
            }
            self.begin_round(now, nodes, rate);
        }
        let before = process_cpu();
        let spent = || process_cpu().since(before);
        let room = Nanos(self.credit.max(0.0) as u64) + spare;
        while spent() < room {
            let spare = spare.since(spent());
            if let Some((folios, estimate)) = self.clears.next(spare) {
                let before = process_cpu();
                let marked_again = self.clear(now, &folios)?;
                // A page accessed at that moment is cleared once more, or the next round could not see its accesses.
                self.clear(now, &marked_again)?;
                let spent = process_cpu().since(before);
                self.clears.cleared(estimate, spent, spare);
            } else if let Some((node, frames)) = self.round.rest.pop() {
                self.look_at(now, node, frames, mapped)?;
                if self.round.rest.is_empty() {
                    self.end_round(now)?;
                }
            } else {
                break;
            }
        }
        self.credit -= spent().since(spare).0 as f64;
        Ok(())
    }

    /// Enters the ages of unmapped page cache into `frames`, by address.
    pub(crate) fn tell_frames(&self, nodes: &[(u32, Range<u64>)], frames: &mut FrameMap) {
        self.ages.each_frame(|frame, age| {
            if node_in(nodes, frame).is_some() {
                frames.add_unmapped(MappedClass::File, frame, age);
            }
        });
    }

    /// Whether more ages than usual are unknown: they are known two rounds after the first clears.
    fn is_little_known(&self) -> bool {
        self.ages.nr_rounds() <= 2 || self.unknown_bytes as f64 > UNKNOWN_MUCH * self.bytes as f64
    }

    /// Smallest budget of a round for clears.
    fn clear_cost_min(&self) -> Nanos {
        let times = if self.is_little_known() { 3 } else { 1 };
        Nanos(self.scan_cost.0 * times)
    }

    /// Begins a round; `rate` is the CPU time in seconds that may be spent per second.
    fn begin_round(&mut self, now: Nanos, nodes: &[(u32, Range<u64>)], rate: f64) {
        self.ages.begin_round(now, cache::lru());
        let mut rest = Vec::new();
        for (node, frames) in nodes.iter().rev() {
            let first = frames.start / CHUNK_FRAMES;
            for chunk in (first..frames.end.div_ceil(CHUNK_FRAMES)).rev() {
                let (start, end) = (chunk * CHUNK_FRAMES, (chunk + 1) * CHUNK_FRAMES);
                rest.push((*node, start.max(frames.start)..end.min(frames.end)));
            }
        }
        let wanted = Nanos((ROUND_WANTED.0 as f64 * rate) as u64);
        // The first round only scans, so that results come soon. Later clears get at least the cost of a scan: scans
        // without clears show little.
        self.clears.begin(match self.ages.nr_rounds() {
            1 => Nanos(0),
            _ => wanted.since(self.scan_cost).max(self.clear_cost_min()),
        });
        let sizes = rest.iter().map(|(_, frames)| frames.end - frames.start);
        let nr_frames = sizes.sum();
        self.round = Round {
            began: now,
            nr_frames,
            nr_frames_left: nr_frames,
            rest,
            account: CacheAccount::default(),
            scan_cost: Nanos(0),
        };
        self.next_round = now + ROUND_MIN;
        self.mounts = Mounts::read().unwrap_or_default();
        let (nr_rounds, refused) = (self.ages.nr_rounds(), &mut self.refused);
        refused.retain(|_, round| *round + RETRY_ROUNDS > nr_rounds);
    }

    fn look_at(
        &mut self,
        now: Nanos,
        node: u32,
        frames: Range<u64>,
        mapped: &FrameMap,
    ) -> Result<(), MemmapError> {
        let before = process_cpu();
        let (ages, clears) = (&mut self.ages, &mut self.clears);
        let (account, refused, only) = (&mut self.round.account, &self.refused, &self.only);
        let was_anonymous = |together| mapped.are_anonymous(together);
        self.memmap.scan(frames.clone(), was_anonymous, |folio| {
            let pages = unmapped_pages(&folio, mapped);
            if pages == 0 {
                return;
            }
            let seen = ages.look(&folio, now);
            account.add(&folio, seen, node, pages);
            let is_wanted = only.as_ref().is_none_or(|only| only.contains(&folio.group));
            if seen.hides_next && is_wanted && !refused.contains_key(&folio.file) {
                clears.add(folio);
            }
        })?;
        ages.end_frames(&frames);
        let round = &mut self.round;
        round.scan_cost = round.scan_cost + process_cpu().since(before);
        round.nr_frames_left -= frames.end - frames.start;
        if round.rest.is_empty() || clears.is_full() {
            let looked_at = round.nr_frames - round.nr_frames_left;
            clears.plan(looked_at as f64 / round.nr_frames as f64);
            round.nr_frames = round.nr_frames_left;
        }
        Ok(())
    }

    /// Whether no work of a round is left: all frames are scanned and reported, and the selected marks are cleared.
    fn is_between_rounds(&self) -> bool {
        self.round.rest.is_empty() && !self.clears.is_waiting()
    }

    /// Clears the marks of folios, in order of their files. Returns the folios with a mark after that.
    fn clear(
        &mut self,
        now: Nanos,
        folios: &[CachedFolio],
    ) -> Result<Vec<CachedFolio>, MemmapError> {
        let by_file: Vec<&[CachedFolio]> = folios.chunk_by(|a, b| a.file == b.file).collect();
        let mappings: Vec<u64> = by_file.iter().map(|folios| folios[0].file).collect();
        let facts = self.memmap.describe(&mappings)?;
        let mut added: Vec<&CachedFolio> = Vec::new();
        for (folios, facts) in by_file.into_iter().zip(facts) {
            let file: Option<File> = facts.and_then(|facts| file::open(&facts, &self.mounts).ok());
            let is_added = file.is_some_and(|file| self.clearer.add(&file, folios).is_ok());
            if is_added {
                added.extend(folios);
            } else if self.refused.len() < REFUSED_MAX {
                self.refused.insert(folios[0].file, self.ages.nr_rounds());
            }
        }
        let _ = self.clearer.flush();
        // A mark counts as cleared only when it is seen to be.
        let added: Vec<CachedFolio> = added.into_iter().copied().collect();
        let (ages, mut still) = (&mut self.ages, Vec::new());
        self.memmap.look(&added, |at, folio| {
            if folio.state.has(FolioState::REFERENCED) {
                still.push(added[at]);
            } else {
                ages.cleared(&folio, now);
            }
        })?;
        Ok(still)
    }

    fn end_round(&mut self, now: Nanos) -> Result<(), MemmapError> {
        self.scan_cost = self.round.scan_cost;
        self.waiting.retain(|_, until| *until > now);
        let mut round = std::mem::take(&mut self.round);
        if self.is_acted_on {
            let files = round.account.files();
            self.cursors.clear();
            self.snapshot = Some(self.layout.snapshot(round.began, now, files));
        }
        let largest = round.account.largest(FILES_TOLD);
        let mappings: Vec<u64> = largest.iter().map(|(file, _)| *file).collect();
        let facts = self.memmap.describe(&mappings)?;
        let files = { largest.into_iter().zip(facts) }
            .filter_map(|((_, bytes), facts)| Some(self.file(&facts?, bytes)))
            .collect();
        let totals: Vec<_> = { round.account.totals().iter() }
            .map(|(key, bytes)| (*key, *bytes))
            .collect();
        let names = self.group_names(totals.iter().map(|((_, group), _)| *group).collect())?;
        self.only = self.only_group.as_ref().map(|only| {
            let within = names
                .iter()
                .filter(|(_, name)| group::is_within(name, only));
            within.map(|(key, _)| *key).collect()
        });
        let only = &self.only;
        let counts = |key: &u64| only.as_ref().is_none_or(|only| only.contains(key));
        let all = totals.iter().filter(|((_, group), _)| counts(group));
        self.bytes = all.clone().map(|(_, bytes)| bytes.total()).sum();
        self.unknown_bytes = all.map(|(_, bytes)| bytes.ages.unknown).sum();
        let mut memory: BTreeMap<(u32, Option<String>), CachedBytes> = BTreeMap::new();
        for ((node, group), bytes) in totals {
            let name = names.get(&group).cloned();
            memory.entry((node, name)).or_default().add(&bytes);
        }
        let memory = memory.into_iter();
        self.reported = Some(CacheSample {
            time: now,
            took: now.since(round.began),
            memory: memory
                .map(|((node, group), bytes)| CachedMemory { node, group, bytes })
                .collect(),
            files,
            nr_files: round.account.nr_files().0 as u64,
        });
        Ok(())
    }

    fn file(&self, facts: &FileFacts, bytes: CachedBytes) -> CachedFile {
        let kind = facts.kind();
        let is_device = kind == CachedKind::BlockDevice;
        let (device, path) = if is_device {
            (facts.own_device, file::device_name(facts.own_device))
        } else {
            (facts.device, self.mounts.name(facts))
        };
        let path = path.map(|path| path.to_string_lossy().into_owned());
        let within = || Some(String::from_utf8_lossy(facts.path.as_deref()?).into_owned());
        CachedFile {
            path: path
                .or_else(within)
                .map(|path| printable(&path).into_owned()),
            kind,
            device: file::device_number(device),
            inode: facts.inode,
            size: facts.size,
            bytes,
        }
    }

    /// Returns the names of control groups by the kernel's keys.
    fn group_names(&mut self, groups: Vec<u64>) -> Result<BTreeMap<u64, String>, MemmapError> {
        let ids = self.memmap.group_ids(&groups)?;
        if ids.iter().flatten().any(|id| !self.groups.contains_key(id)) {
            self.groups = GroupNumbers::by_inode();
        }
        let named = groups.into_iter().zip(ids);
        Ok(named
            .filter_map(|(group, id)| Some((group, self.groups.get(&id?)?.clone())))
            .collect())
    }
}

fn unmapped_pages(folio: &CachedFolio, mapped: &FrameMap) -> u32 {
    let pages = folio.nr_pages() as u32;
    if pages == 1 {
        return u32::from(!folio.state.has(FolioState::MAPPED));
    }
    // Older kernels do not count mappings of a large folio as a whole.
    let frames = folio.frame..folio.frame + folio.nr_pages();
    let nr_mapped = frames.filter(|frame| mapped.is_mapped(*frame)).count() as u32;
    pages - nr_mapped
}
