//! Idle pages of memory that is in use, page by page.
//!
//! Problem: a heap or a cache mixes hot and cold pages within every 2 MiB, so that no region of it is idle for long. A
//! scheme about idle memory finds nothing there, even if a fifth of its pages were not touched for minutes.
//!
//! Approach: if a region does not match the pattern of a scheme that reclaims or demotes idle memory, its idle pages
//! are taken. The monitor knows them ([`Snapshot::idle_pages`](isotherm_engine::Snapshot::idle_pages)). They are taken
//! a block at a time: such an operation names its pages. Their size is the memory that they hold, their age the mean.
//!
//! Limits: DAMON has no equivalent. Goals on eligible memory count regions only.

use std::collections::BTreeMap;

use super::pattern::PatternForSamples;
use super::{Action, Scheme};
use isotherm_engine::address::{AddressRange, Nanos, PAGE_SIZE};
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::monitor::idle_pages::IdlePages;
use isotherm_engine::snapshot::{RegionMemory, RegionSnapshot, Snapshot};

/// Idle pages of one block, or of the part of it that lies in a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdlePart {
    pub(super) block: u64,
    pages: Bitmap,
    /// The pages in the form of a region.
    pub(super) region: RegionSnapshot,
}

/// Returns whether `scheme` is about idle memory that it reclaims or demotes, or only counts.
fn takes_pages(scheme: &Scheme) -> bool {
    let takes = matches!(
        scheme.action,
        Action::Pageout | Action::Cold | Action::LruDeprio | Action::MigrateCold | Action::Stat
    );
    takes && scheme.is_idle_only()
}

/// Returns the idle pages of `range` that match `scheme`, whose pattern is `pattern`, by block and class of age. `idle`
/// belongs to a snapshot over `interval`.
pub(super) fn idle_parts<'a>(
    idle: &'a [IdlePages],
    interval: Nanos,
    range: AddressRange,
    (scheme, pattern): (&Scheme, &'a PatternForSamples),
) -> impl Iterator<Item = IdlePart> + 'a {
    let idle = if takes_pages(scheme) { idle } else { &[] };
    let (min, max) = pattern.ages(interval);
    let has_size = move |block: &&IdlePages| {
        let pages = block.of_age(range, min, max);
        !bits::is_empty(&pages) && pattern.has_size(bits::bytes(&pages))
    };
    let blocks = overlapping(idle, range).iter();
    blocks.filter(has_size).flat_map(move |block| {
        (0..CLASSES).filter_map(move |class| {
            let (from, to) = ages_of_class(class, min);
            let pages = block.of_age(range, from, to.min(max));
            IdlePart::new(block, pages, interval)
        })
    })
}

/// Returns the blocks that have pages in `range`.
fn overlapping(idle: &[IdlePages], range: AddressRange) -> &[IdlePages] {
    let first = idle.partition_point(|block| block.range().end <= range.start);
    let end = idle.partition_point(|block| block.block < range.end);
    &idle[first..end]
}

/// Number of age classes: up to twice, four and eight times the least age, and above.
const CLASSES: usize = 4;
/// Base of the classes if the pattern has no least age.
const LEAST_AGE: Nanos = Nanos::from_millis(1000);

/// Returns the least and the greatest age of a class, from young to old, if the pattern's least age is `min`.
fn ages_of_class(class: usize, min: Nanos) -> (Nanos, Nanos) {
    let at = |class: usize| min.max(LEAST_AGE).0.saturating_mul(1 << class);
    let least = if class == 0 { min.0 } else { at(class) };
    let next = if class + 1 < CLASSES {
        at(class + 1) - 1
    } else {
        u64::MAX
    };
    (Nanos(least), Nanos(next))
}

pub(super) fn interval_of(snapshot: &Snapshot) -> Nanos {
    snapshot.end.since(snapshot.start)
}

impl IdlePart {
    fn new(block: &IdlePages, pages: Bitmap, interval: Nanos) -> Option<Self> {
        let range = span(block.block, &pages)?;
        let age_ns = block.mean_age(&pages);
        let age = age_ns.0.checked_div(interval.0).unwrap_or(0);
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        let region = RegionSnapshot::new(range, Some(0.0)).aged(age, age_ns);
        let region = region.holding(RegionMemory::resident(bits::bytes(&pages)));
        Some(Self {
            block: block.block,
            pages,
            region,
        })
    }
}

/// Returns the range from the first to the last of `pages`.
pub(super) fn span(block: u64, pages: &Bitmap) -> Option<AddressRange> {
    let at = |page: usize| block + page as u64 * PAGE_SIZE;
    AddressRange::checked(at(bits::next(pages, 0)?), at(bits::end(pages)))
}

#[derive(Debug, Default)]
pub(super) struct WalkedPages<'a> {
    pub(super) idle: &'a [IdlePages],
    pub(super) interval: Nanos,
    /// Pages that schemes of this walk have taken, by block: they have age 0 for the schemes after.
    taken: BTreeMap<u64, Bitmap>,
}

impl<'a> WalkedPages<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            idle: &snapshot.idle_pages,
            interval: interval_of(snapshot),
            taken: BTreeMap::new(),
        }
    }

    /// Marks all of `range` as taken by a scheme.
    pub(super) fn take_range(&mut self, range: AddressRange) {
        for block in overlapping(self.idle, range) {
            self.take(block.block, &bits::mask(block.block, range));
        }
    }

    pub(super) fn take(&mut self, block: u64, pages: &Bitmap) {
        let taken = self.taken.entry(block).or_insert(bits::NONE);
        *taken = bits::or(taken, pages);
    }

    pub(super) fn left(&self, part: &IdlePart) -> Bitmap {
        let taken = self.taken.get(&part.block);
        taken.map_or(part.pages, |taken| bits::and_not(&part.pages, taken))
    }
}
