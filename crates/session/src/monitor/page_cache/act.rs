//! Schemes on the page cache: they drop clean pages that have been idle for long enough.
//!
//! An operation of a scheme covers addresses that represent the idle pages of a file
//! ([`isotherm_engine::page_cache::CacheLayout`]). The pages are looked up when the operation is executed, so that
//! pages accessed, written or mapped since are kept. Afterwards the dropped pages are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::{ControlFlow, Range};

use isotherm_engine::page_cache::{CachedFolio, CachedKind, CachedRegion, FileId, FolioState};
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, Snapshot};
use isotherm_linux::cache::discard::discard;
use isotherm_linux::cache::file::{self, Unopenable};
use isotherm_linux::cache::memmap::{FileFacts, MemmapError};
use isotherm_policy::scheme::{Action, OpsFilter};
use isotherm_policy::{Operation, Outcome, Refusal};

use super::CacheView;

const NEVER: Nanos = Nanos(u64::MAX);
/// Smallest number of folios to list: listing fewer costs as much.
const LISTED_MIN: usize = 64;
/// Files with dropped pages that are checked for refaults at once.
const LOOKED_FOR: usize = 16;

struct Wanted<'a> {
    operation: &'a Operation,
    /// Control group of each filter that names one.
    groups: &'a [Option<u64>],
    region: CachedRegion,
    part: AddressRange,
    backoff: u64,
}

impl CacheView {
    /// Takes the snapshot of the last round for schemes; from now on each round makes one.
    pub(crate) fn take_snapshot(&mut self) -> Option<Snapshot> {
        self.is_acted_on = true;
        self.snapshot.take()
    }

    /// Executes operations on the page cache. Adds one outcome for each, in their order.
    pub(crate) fn act(
        &mut self,
        now: Nanos,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), MemmapError> {
        for operation in operations {
            let started = std::time::Instant::now();
            let mut outcome = Outcome::default();
            let parts: Vec<_> = self.layout.find(operation.range).collect();
            for (region, part) in parts {
                self.act_on(now, operation, region, part, &mut outcome)?;
            }
            outcome.took = started.elapsed().into();
            outcomes.push(outcome);
        }
        Ok(())
    }

    fn act_on(
        &mut self,
        now: Nanos,
        operation: &Operation,
        region: CachedRegion,
        part: AddressRange,
        outcome: &mut Outcome,
    ) -> Result<(), MemmapError> {
        let refuse = |outcome: &mut Outcome, why| {
            *outcome.refused.entry(why).or_default() += part.len();
        };
        match operation.action {
            Action::Pageout => {}
            Action::Stat => {
                outcome.filter_passed += part.len();
                outcome.applied += part.len();
                return Ok(());
            }
            _ => {
                refuse(outcome, Refusal::Unsupported);
                return Ok(());
            }
        }
        let waits_until = self.waiting.get(&(region.file, region.range.start));
        if waits_until.is_some_and(|until| *until > now) {
            refuse(outcome, Refusal::Refaulted);
            return Ok(());
        }
        let Some(facts) = self.memmap.describe(&[region.file])?.remove(0) else {
            refuse(outcome, Refusal::NotPresent);
            return Ok(());
        };
        let file = match self.open(&facts) {
            Ok(file) => file,
            Err(why) => {
                refuse(outcome, why);
                return Ok(());
            }
        };
        let groups = self.group_numbers.of_filters(&operation.filters);
        let wanted = Wanted {
            operation,
            groups: &groups,
            region,
            part,
            backoff: self.returned.backoff(now, id(&facts)),
        };
        let chosen = self.choose(now, &wanted, outcome)?;
        self.drop_pages(now, &file, &facts, &chosen, outcome)
    }

    /// Opens a regular file: tables of a file system are not dropped.
    fn open(&self, facts: &FileFacts) -> Result<File, Refusal> {
        if !matches!(facts.kind(), CachedKind::File) {
            return Err(Refusal::Unsupported);
        }
        file::open(facts, &self.mounts).map_err(|why| match why {
            Unopenable::Deleted | Unopenable::Remote | Unopenable::NotAFile => Refusal::Unsupported,
            Unopenable::NoName => Refusal::Denied,
        })
    }

    /// Selects folios of a file that have been idle for long enough and can be dropped, up to the wanted size.
    fn choose(
        &mut self,
        now: Nanos,
        wanted: &Wanted<'_>,
        outcome: &mut Outcome,
    ) -> Result<Vec<CachedFolio>, MemmapError> {
        let least = wanted.region.min_idle;
        let mut found: Vec<(CachedFolio, Nanos)> = Vec::new();
        let mut seen = 0;
        let mut next = self.continued(wanted);
        let (ages, file) = (&self.ages, wanted.region.file);
        let at_once = (wanted.part.len() / PAGE_SIZE) as usize;
        self.memmap
            .list(file, next..u64::MAX, at_once.max(LISTED_MIN), |folios| {
                for folio in folios {
                    // Pages that are younger than the region, or of unknown age, are not meant.
                    let Some(idle) = ages.idle(folio, now).filter(|idle| *idle >= least) else {
                        continue;
                    };
                    let bytes = folio.nr_pages() * PAGE_SIZE;
                    if seen + bytes > wanted.part.len() && seen > 0 {
                        return ControlFlow::Break(());
                    }
                    seen += bytes;
                    next = folio.index + folio.nr_pages();
                    found.push((*folio, idle));
                }
                ControlFlow::Continue(())
            })?;
        let start = wanted.region.range.start;
        self.cursors.insert(start, (wanted.part.end, next));
        if let Some(gone @ 1..) = wanted.part.len().checked_sub(seen) {
            *outcome.refused.entry(Refusal::Kept).or_default() += gone;
        }
        let groups = self.groups_of(wanted, &found)?;
        let (mut chosen, mut waits_least) = (Vec::new(), NEVER);
        // Neighbours mostly belong to one control group.
        let mut of_last = None;
        for (folio, idle) in found {
            let group = groups.get(&folio.group).copied().flatten();
            if !passes(wanted, &folio, group) {
                continue;
            }
            let bytes = folio.nr_pages() * PAGE_SIZE;
            outcome.filter_passed += bytes;
            let (_, backoff) = of_last
                .filter(|(group, _)| *group == folio.group)
                .unwrap_or_else(|| {
                    let of_group = self.returned.backoff_of_group(now, folio.group);
                    (folio.group, of_group.max(wanted.backoff))
                });
            of_last = Some((folio.group, backoff));
            let waits = Nanos(least.0.saturating_mul(backoff)).since(idle);
            match refusal(&folio).or((waits.0 > 0).then_some(Refusal::Refaulted)) {
                Some(why) => *outcome.refused.entry(why).or_default() += bytes,
                None => chosen.push(folio),
            }
            waits_least = waits_least.min(waits);
        }
        if chosen.is_empty() && waits_least.0 > 0 && waits_least < NEVER {
            let key = (file, wanted.region.range.start);
            self.waiting.insert(key, now + waits_least);
        }
        Ok(chosen)
    }

    /// Returns the ids of the folios' control groups, if a filter needs them.
    fn groups_of(
        &mut self,
        wanted: &Wanted<'_>,
        folios: &[(CachedFolio, Nanos)],
    ) -> Result<BTreeMap<u64, Option<u64>>, MemmapError> {
        if wanted.groups.iter().all(Option::is_none) {
            return Ok(BTreeMap::new());
        }
        let keys: BTreeSet<u64> = folios.iter().map(|(folio, _)| folio.group).collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        let ids = self.memmap.group_ids(&keys)?;
        Ok(keys.into_iter().zip(ids).collect())
    }

    /// Returns the position in the file at which to continue, if the part before this one has just been acted on.
    fn continued(&self, wanted: &Wanted<'_>) -> u64 {
        match self.cursors.get(&wanted.region.range.start) {
            Some((end, next)) if *end == wanted.part.start => *next,
            _ => 0,
        }
    }

    fn drop_pages(
        &mut self,
        now: Nanos,
        file: &File,
        facts: &FileFacts,
        chosen: &[CachedFolio],
        outcome: &mut Outcome,
    ) -> Result<(), MemmapError> {
        if chosen.is_empty() {
            return Ok(());
        }
        if discard(file, chosen).is_err() {
            *outcome.refused.entry(Refusal::Other).or_default() += bytes_of(chosen);
            return Ok(());
        }
        let mut is_left = vec![None; chosen.len()];
        self.memmap.look(chosen, |at, folio| {
            is_left[at] = Some(refusal(&folio).unwrap_or(Refusal::Kept));
        })?;
        let mut places: Vec<Range<u64>> = Vec::new();
        for (folio, left) in chosen.iter().zip(is_left) {
            let bytes = folio.nr_pages() * PAGE_SIZE;
            if let Some(why) = left {
                *outcome.refused.entry(why).or_default() += bytes;
                continue;
            }
            outcome.applied += bytes;
            let end = folio.index + folio.nr_pages();
            match places.last_mut() {
                Some(last) if last.end == folio.index => last.end = end,
                _ => places.push(folio.index..end),
            }
        }
        if !places.is_empty() {
            let group = chosen[0].group;
            self.returned.dropped(now, id(facts), group, &places);
            self.dropped.insert(id(facts), facts.clone());
        }
        Ok(())
    }

    /// Checks some of the files with dropped pages. Returns the number of refaulted pages since the last call.
    pub(crate) fn look_for_returned(&mut self, now: Nanos) -> Result<u64, MemmapError> {
        for _ in 0..LOOKED_FOR.min(self.returned.len()) {
            let Some(mut of) = self.returned.next(now) else {
                break;
            };
            let Some(facts) = self.dropped.get(&of.file) else {
                continue;
            };
            let Ok(file) = file::open(facts, &self.mounts) else {
                // The file was deleted or moved: its pages cannot be read back.
                self.dropped.remove(&of.file);
                continue;
            };
            let mapping = self.memmap.mapping_of(std::os::fd::AsFd::as_fd(&file))?;
            for place in of.places() {
                self.memmap.list(mapping, place, usize::MAX, |folios| {
                    for folio in folios {
                        of.tell_cached(&(folio.index..folio.index + folio.nr_pages()));
                    }
                    ControlFlow::Continue(())
                })?;
            }
            self.returned.found(now, of);
        }
        if self.dropped.len() > 2 * self.returned.len() {
            let returned = &self.returned;
            self.dropped.retain(|file, _| returned.has(*file));
        }
        Ok(self.returned.take_returned(now))
    }
}

fn id(facts: &FileFacts) -> FileId {
    (facts.device, facts.inode)
}

fn bytes_of(folios: &[CachedFolio]) -> u64 {
    folios.iter().map(CachedFolio::nr_pages).sum::<u64>() * PAGE_SIZE
}

/// Returns the reason if a folio cannot be dropped in its present state.
fn refusal(folio: &CachedFolio) -> Option<Refusal> {
    let is = |bits| folio.state.has(bits);
    if is(FolioState::DIRTY | FolioState::WRITEBACK) {
        Some(Refusal::Dirty)
    } else if is(FolioState::MAPPED) {
        Some(Refusal::Shared)
    } else if is(FolioState::UNEVICTABLE | FolioState::LOCKED) {
        Some(Refusal::Locked)
    } else {
        None
    }
}

/// Whether the filters let a folio pass; the first filter that matches decides.
fn passes(wanted: &Wanted<'_>, folio: &CachedFolio, group: Option<u64>) -> bool {
    let filters = wanted.operation.filters.iter().zip(wanted.groups);
    for ((filter, matching, allow), wanted_group) in filters {
        let is = match filter {
            OpsFilter::Active => folio.state.has(FolioState::ACTIVE),
            OpsFilter::Memcg { .. } => wanted_group.is_some() && group == *wanted_group,
            // Pages accessed since the last scan are not selected.
            OpsFilter::Anon | OpsFilter::Young => false,
            OpsFilter::HugepageSize { min, max } => {
                let bytes = folio.nr_pages() * PAGE_SIZE;
                bytes > PAGE_SIZE && (*min..=*max).contains(&bytes)
            }
            OpsFilter::Unmapped => !folio.state.has(FolioState::MAPPED),
        };
        if is == *matching {
            return *allow;
        }
    }
    wanted.operation.pass_unmatched
}
