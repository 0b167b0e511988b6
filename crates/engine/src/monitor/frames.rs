//! Physical memory as seen by page tables: the mapper and the last access of each frame.
//!
//! Problem: a frame has no accessed bit. The memory of a machine is not the sum of the memory that its processes map:
//! they share much of it.
//!
//! Approach: page tables name frames. The monitor's result for each page is recorded for the page's frame. If several
//! pages map one frame, it was touched if any of them was, and is known if all of them are. A frame takes three bytes,
//! in blocks that take memory only if something is mapped there. [`FrameMap::sums`] reports by mapper,
//! [`FrameMap::snapshot`] and [`FrameMap::pages`] report by address.
//!
//! Limits: frames that no page table names are known only if the caller [adds them](FrameMap::add_unmapped). Ages are
//! kept in 62 steps, of a quarter of them or less up to an hour; sums are in the classes of [`AGE_BOUNDS`].

mod age;
mod regions;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::{PAGE_SIZE, PAGES_PER_BLOCK};

pub use age::{AGE_BOUNDS, NR_AGES, PageAge};
pub use regions::FrameView;

/// The kind of memory of a page, by its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MappedClass {
    /// Anonymous: heaps, stacks, written pages of private mappings.
    Anonymous,
    /// Pages of a file.
    File,
    /// Shared memory: tmpfs, memfd, System V.
    Shared,
}

impl MappedClass {
    const fn bits(self) -> u8 {
        (self as u8 + 1) << CLASS_SHIFT
    }

    const fn from_bits(bits: u8) -> Self {
        match bits >> CLASS_SHIFT {
            1 => Self::Anonymous,
            2 => Self::File,
            _ => Self::Shared,
        }
    }
}

/// Bytes by the time of their last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgeBytes {
    /// Accessed in the last interval.
    pub touched: u64,
    /// Idle, by [`AGE_BOUNDS`]: for less than 1 s, from there to 5 s, 30 s, 2 min, 10 min, 1 h, for longer.
    pub idle: [u64; NR_AGES],
    /// Not known.
    pub unknown: u64,
}

impl AgeBytes {
    /// Returns the sum of all bytes.
    pub fn total(&self) -> u64 {
        let known = self
            .idle
            .into_iter()
            .fold(self.touched, u64::saturating_add);
        known.saturating_add(self.unknown)
    }

    /// Returns the bytes idle for at least the time at this place in [`AGE_BOUNDS`].
    pub fn idle_from(&self, bound: usize) -> u64 {
        let idle = self.idle[bound + 1..].iter().copied();
        idle.fold(0, u64::saturating_add)
    }

    /// Adds the bytes of `more`.
    pub fn add(&mut self, more: &Self) {
        self.touched = self.touched.saturating_add(more.touched);
        self.unknown = self.unknown.saturating_add(more.unknown);
        for (sum, more) in self.idle.iter_mut().zip(more.idle) {
            *sum = sum.saturating_add(more);
        }
    }

    fn add_page(&mut self, age: PageAge) {
        let bytes = match age {
            PageAge::Touched => &mut self.touched,
            PageAge::Idle(step) => &mut self.idle[PageAge::class(step)],
            PageAge::Unknown => &mut self.unknown,
        };
        *bytes += PAGE_SIZE;
    }
}

impl<'a> std::iter::Sum<&'a Self> for AgeBytes {
    fn sum<I: Iterator<Item = &'a Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |mut all, part| {
            all.add(part);
            all
        })
    }
}

/// The processes that map a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mapper {
    /// One process, by the number that it was added with.
    One(u16),
    /// Several of them.
    Several,
    /// No process: page cache that is only read and written.
    Nobody,
}

/// Upper bound of the processes' numbers.
pub const NR_MAPPERS: usize = NOBODY as usize;
const SEVERAL: u16 = u16::MAX;
const NOBODY: u16 = u16::MAX - 1;

impl Mapper {
    const fn from_bits(bits: u16) -> Self {
        match bits {
            SEVERAL => Self::Several,
            NOBODY => Self::Nobody,
            number => Self::One(number),
        }
    }
}

const CLASS_SHIFT: u32 = 6;
/// Blocks of 2 MiB in a gigabyte.
const BLOCKS: usize = 512;

/// Class (from 1 on) and age of a frame, and its mapper; all zero: nothing is known. The three bytes lie side by side:
/// neighbouring pages are on frames all over memory, and each is a cache miss.
type Frame = [u8; 3];
/// Number of frames that are tested together.
const STRIDE: usize = 8;

#[derive(Debug)]
struct FrameBlock {
    frames: [Frame; PAGES_PER_BLOCK],
    reported: regions::ReportedState,
}

type Gigabyte = Box<[Option<Box<FrameBlock>>; BLOCKS]>;

/// The known frames, by address.
#[derive(Debug, Default)]
pub struct FrameMap {
    gigabytes: Vec<Option<Gigabyte>>,
}

impl FrameMap {
    /// Removes all entries.
    pub fn clear(&mut self) {
        for blocks in self.gigabytes.iter_mut().flatten() {
            for slot in blocks.iter_mut() {
                match slot {
                    Some(block) if block.known().next().is_some() => {
                        block.frames.as_flattened_mut().fill(0);
                    }
                    _ => *slot = None,
                }
            }
        }
    }

    /// Records that `mapper` maps `frame` at a page of this class and age.
    ///
    /// # Panics
    /// Panics if `mapper` is not below [`NR_MAPPERS`].
    pub fn add(&mut self, mapper: u16, class: MappedClass, frame: u64, age: PageAge) {
        assert!(mapper < NOBODY, "a process's number");
        let page = (frame % PAGES_PER_BLOCK as u64) as usize;
        let known = &mut self.block(frame / PAGES_PER_BLOCK as u64).frames[page];
        let [before, low, high] = *known;
        let [new_low, new_high] = mapper.to_le_bytes();
        if before == 0 {
            *known = [class.bits() | age.bits(), new_low, new_high];
            return;
        }
        let age = PageAge::from_bits(before).and(age);
        known[0] = before & !PageAge::MASK | age.bits();
        if [low, high] != [new_low, new_high] {
            [known[1], known[2]] = SEVERAL.to_le_bytes();
        }
    }

    /// Records class and age of `frame` from another source than page tables. If a process maps the frame, its entry
    /// stays. The caller must add all mapped frames before.
    pub fn add_unmapped(&mut self, class: MappedClass, frame: u64, age: PageAge) {
        let page = (frame % PAGES_PER_BLOCK as u64) as usize;
        let known = &mut self.block(frame / PAGES_PER_BLOCK as u64).frames[page];
        if known[0] == 0 {
            let [low, high] = NOBODY.to_le_bytes();
            *known = [class.bits() | age.bits(), low, high];
        }
    }

    /// Returns whether a process maps `frame`.
    pub fn is_mapped(&self, frame: u64) -> bool {
        self.known(frame..frame + 1).is_some_and(|frames| {
            let [state, low, high] = frames[0];
            state != 0 && u16::from_le_bytes([low, high]) != NOBODY
        })
    }

    /// Returns whether these frames, of one block of 512, are all anonymous memory.
    pub fn are_anonymous(&self, frames: std::ops::Range<u64>) -> bool {
        let class = MappedClass::Anonymous.bits() >> CLASS_SHIFT;
        self.known(frames)
            .is_some_and(|frames| frames.iter().all(|of| of[0] >> CLASS_SHIFT == class))
    }

    /// Returns the entries of these frames, of one block of 512; `None` if nothing is known of the whole block.
    fn known(&self, frames: std::ops::Range<u64>) -> Option<&[Frame]> {
        let first = frames.start as usize;
        let (number, page) = (first / PAGES_PER_BLOCK, first % PAGES_PER_BLOCK);
        let blocks = self.gigabytes.get(number / BLOCKS)?.as_ref()?;
        let block = blocks[number % BLOCKS].as_ref()?;
        Some(&block.frames[page..page + (frames.end - frames.start) as usize])
    }

    fn block(&mut self, number: u64) -> &mut FrameBlock {
        let (gigabyte, block) = (number as usize / BLOCKS, number as usize % BLOCKS);
        if gigabyte >= self.gigabytes.len() {
            self.gigabytes.resize_with(gigabyte + 1, || None);
        }
        let blocks =
            self.gigabytes[gigabyte].get_or_insert_with(|| Box::new([const { None }; BLOCKS]));
        blocks[block].get_or_insert_with(|| {
            Box::new(FrameBlock {
                frames: [[0; 3]; PAGES_PER_BLOCK],
                reported: regions::ReportedState::default(),
            })
        })
    }

    /// Returns the bytes by mapper, node (by `node_of` for a frame) and class; a frame counts once.
    pub fn sums(
        &self,
        node_of: impl Fn(u64) -> u32,
    ) -> BTreeMap<(Mapper, u32, MappedClass), AgeBytes> {
        let mut sums: BTreeMap<(Mapper, u32, MappedClass), AgeBytes> = BTreeMap::new();
        for (first, block) in self.blocks() {
            let node = node_of(first);
            // Neighbours mostly have the same mapper and class.
            let mut last = None;
            let mut bytes = AgeBytes::default();
            for (_, [state, low, high]) in block.known() {
                let mapper = Mapper::from_bits(u16::from_le_bytes([low, high]));
                let key = (mapper, node, MappedClass::from_bits(state));
                if let Some(before) = last.replace(key)
                    && before != key
                {
                    sums.entry(before).or_default().add(&bytes);
                    bytes = AgeBytes::default();
                }
                bytes.add_page(PageAge::from_bits(state));
            }
            if let Some(key) = last {
                sums.entry(key).or_default().add(&bytes);
            }
        }
        sums
    }

    fn blocks(&self) -> impl Iterator<Item = (u64, &FrameBlock)> {
        let gigabytes = self.gigabytes.iter().enumerate();
        let gigabytes = gigabytes.filter_map(|(at, blocks)| Some((at, blocks.as_ref()?)));
        gigabytes.flat_map(|(gigabyte, blocks)| {
            let blocks = blocks.iter().enumerate();
            blocks.filter_map(move |(at, block)| {
                let number = gigabyte * BLOCKS + at;
                Some((number as u64 * PAGES_PER_BLOCK as u64, &**block.as_ref()?))
            })
        })
    }
}

impl FrameBlock {
    /// Returns the known frames of the block, with their places.
    fn known(&self) -> impl Iterator<Item = (usize, Frame)> + '_ {
        let strides = self.frames.chunks_exact(STRIDE).enumerate();
        let strides = strides.filter(|(_, frames)| frames.as_flattened().iter().any(|b| *b != 0));
        let frames = strides.flat_map(|(at, frames)| (at * STRIDE..).zip(frames.iter().copied()));
        frames.filter(|(_, frame)| frame[0] != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE;

    #[test]
    fn sums_are_from_a_bound_on() {
        let bytes = AgeBytes {
            touched: 1,
            idle: [2, 4, 8, 16, 32, 64, 128],
            unknown: 256,
        };
        assert_eq!(bytes.total(), 511);
        assert_eq!(bytes.idle_from(0), 252, "at least 1 s");
        assert_eq!(bytes.idle_from(5), 128, "at least an hour");
    }

    #[test]
    fn each_frame_counts_once_whoever_maps_it() {
        use MappedClass::{Anonymous, File, Shared};
        let idle = |bound: usize| PageAge::idle_for(AGE_BOUNDS[bound]);
        let mut map = FrameMap::default();
        for round in 0..2 {
            map.clear();
            // Two pages of one process, one shared by two, and one that a process maps twice.
            map.add(3, Anonymous, 1000, PageAge::Touched);
            map.add(3, Anonymous, 1 << 20, idle(1));
            map.add(3, File, 1001, idle(3));
            map.add(4, File, 1001, idle(0));
            map.add(4, Shared, 1002, PageAge::Unknown);
            map.add(4, Shared, 1002, PageAge::Touched);
            assert!(map.is_mapped(1000) && !map.is_mapped(999) && !map.is_mapped(1 << 30));
            assert!(map.are_anonymous(1000..1001) && !map.are_anonymous(1000..1002));
            assert!(!map.are_anonymous(999..1001) && !map.are_anonymous(1 << 30..(1 << 30) + 64));
            let sums = map.sums(|frame| u32::from(frame >= 1 << 20));
            let page = |age: PageAge| {
                let mut bytes = AgeBytes::default();
                bytes.add_page(age);
                bytes
            };
            let wanted = BTreeMap::from([
                ((Mapper::One(3), 0, Anonymous), page(PageAge::Touched)),
                ((Mapper::One(3), 1, Anonymous), page(idle(1))),
                ((Mapper::One(4), 0, Shared), page(PageAge::Touched)),
                ((Mapper::Several, 0, File), page(idle(0))),
            ]);
            assert_eq!(sums, wanted, "round {round}");
            assert_eq!(sums[&(Mapper::One(3), 1, Anonymous)].idle[2], PAGE);
            assert_eq!(sums[&(Mapper::Several, 0, File)].idle[1], PAGE);
        }
        map.clear();
        assert!(map.sums(|_| 0).is_empty());
    }

    #[test]
    fn what_nobody_maps_is_what_is_said_of_it() {
        let mut map = FrameMap::default();
        map.add(0, MappedClass::File, 7, PageAge::Touched);
        map.add_unmapped(MappedClass::File, 7, PageAge::Unknown);
        map.add_unmapped(MappedClass::File, 8, PageAge::Unknown);
        let sums = map.sums(|_| 0);
        assert_eq!(sums[&(Mapper::One(0), 0, MappedClass::File)].touched, PAGE);
        assert_eq!(sums[&(Mapper::Nobody, 0, MappedClass::File)].unknown, PAGE);
    }
}
