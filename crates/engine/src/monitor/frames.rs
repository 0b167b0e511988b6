//! Physical memory as page tables tell it: who maps each frame, and when it was accessed last.
//!
//! Problem: a frame has no accessed bit, and the memory of a machine is not the sum of what its processes
//! map: they share much of it.
//!
//! Approach: page tables name frames. What the page-table monitor knows of each page is put down for the
//! page's frame; where several pages map one frame, it was touched if any of them was, and is known if all
//! of them are. A frame takes three bytes, in blocks of which memory is only taken where something is
//! mapped.
//!
//! Limits: frames that no page table names are not known here. Ages are told in the classes of
//! [`AGE_BOUNDS`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::{Nanos, PAGE_SIZE, PAGES_PER_BLOCK};

const fn seconds(seconds: u64) -> Nanos {
    Nanos::from_millis(seconds * 1000)
}

/// What divides idle memory: idle for less than the first, from there to the second, ..., from the last on.
pub const AGE_BOUNDS: [Nanos; 6] = [
    seconds(1),
    seconds(5),
    seconds(30),
    seconds(120),
    seconds(600),
    seconds(3600),
];
/// Classes of idle memory.
pub const NR_AGES: usize = AGE_BOUNDS.len() + 1;

/// What is known of a page's last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageAge {
    /// It was accessed in the last interval.
    Touched,
    /// It has been idle for a time in this class: its place in [`AGE_BOUNDS`].
    Idle(u8),
    /// Nothing is known.
    Unknown,
}

impl PageAge {
    /// Of a page that has been idle for at least so long.
    pub fn idle_for(time: Nanos) -> Self {
        Self::Idle(AGE_BOUNDS.partition_point(|bound| *bound <= time) as u8)
    }

    /// Of the frame that pages of this and of that age map.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Touched || other == Self::Touched {
            Self::Touched
        } else if self == Self::Unknown || other == Self::Unknown {
            Self::Unknown
        } else {
            self.min(other)
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Touched => 0,
            Self::Idle(class) => 1 + class,
            Self::Unknown => AGE_MASK,
        }
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Touched,
            AGE_MASK => Self::Unknown,
            class => Self::Idle(class - 1),
        }
    }
}

/// What kind of memory a page is, by its mapping.
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
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Anonymous,
            1 => Self::File,
            _ => Self::Shared,
        }
    }
}

/// Bytes by when they were accessed last.
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
    /// All of them.
    pub fn total(&self) -> u64 {
        self.idle
            .iter()
            .fold(self.touched, |a, b| a.saturating_add(*b))
            .saturating_add(self.unknown)
    }

    /// Those idle for at least the time at this place in [`AGE_BOUNDS`].
    pub fn idle_from(&self, bound: usize) -> u64 {
        self.idle[bound + 1..]
            .iter()
            .fold(0, |a, b| a.saturating_add(*b))
    }

    /// More of them.
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
            PageAge::Idle(class) => &mut self.idle[usize::from(class)],
            PageAge::Unknown => &mut self.unknown,
        };
        *bytes += PAGE_SIZE;
    }
}

/// Who maps memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mapper {
    /// One process, by the number that it was added with.
    One(u16),
    /// Several of them.
    Several,
}

const MAPPED: u8 = 0x80;
const SEVERAL: u8 = 0x40;
const CLASS_SHIFT: u32 = 4;
const AGE_MASK: u8 = 0x0f;
/// Blocks of 2 MiB in a gigabyte.
const BLOCKS: usize = 512;

/// 512 frames.
#[derive(Debug)]
struct FrameBlock {
    /// [`MAPPED`], [`SEVERAL`], class and age; 0 where nobody maps the frame.
    states: [u8; PAGES_PER_BLOCK],
    /// Who was the first to.
    mappers: [u16; PAGES_PER_BLOCK],
}

type Gigabyte = Box<[Option<Box<FrameBlock>>; BLOCKS]>;

/// What is known of the frames that somebody maps.
#[derive(Debug, Default)]
pub struct FrameMap {
    gigabytes: Vec<Option<Gigabyte>>,
}

impl FrameMap {
    /// Forgets all.
    pub fn clear(&mut self) {
        for blocks in self.gigabytes.iter_mut().flatten() {
            for slot in blocks.iter_mut() {
                let is_used = |block: &FrameBlock| block.states.iter().any(|state| *state != 0);
                match slot {
                    Some(block) if is_used(block) => block.states.fill(0),
                    _ => *slot = None,
                }
            }
        }
    }

    /// `mapper` maps `frame` at a page of this class and age.
    pub fn add(&mut self, mapper: u16, class: MappedClass, frame: u64, age: PageAge) {
        let page = (frame % PAGES_PER_BLOCK as u64) as usize;
        let block = self.block(frame / PAGES_PER_BLOCK as u64);
        let before = block.states[page];
        if before == 0 {
            block.states[page] = MAPPED | (class as u8) << CLASS_SHIFT | age.bits();
            block.mappers[page] = mapper;
            return;
        }
        let age = PageAge::from_bits(before & AGE_MASK).and(age);
        let is_same = block.mappers[page] == mapper;
        let several = if is_same { 0 } else { SEVERAL };
        block.states[page] = before & !AGE_MASK | several | age.bits();
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
                states: [0; PAGES_PER_BLOCK],
                mappers: [0; PAGES_PER_BLOCK],
            })
        })
    }

    /// Bytes by who maps them, the node that `node_of` says of a frame, and class; a frame counts once.
    pub fn sums(
        &self,
        node_of: impl Fn(u64) -> u32,
    ) -> BTreeMap<(Mapper, u32, MappedClass), AgeBytes> {
        let mut sums: BTreeMap<(Mapper, u32, MappedClass), AgeBytes> = BTreeMap::new();
        for (first, block) in self.blocks() {
            let node = node_of(first);
            // Neighbours mostly are one mapper's and class'.
            let mut last = None;
            let mut bytes = AgeBytes::default();
            for (state, mapper) in block.states.iter().zip(block.mappers) {
                if *state == 0 {
                    continue;
                }
                let mapper = if state & SEVERAL == 0 {
                    Mapper::One(mapper)
                } else {
                    Mapper::Several
                };
                let key = (
                    mapper,
                    node,
                    MappedClass::from_bits(state >> CLASS_SHIFT & 3),
                );
                if let Some(before) = last.replace(key)
                    && before != key
                {
                    sums.entry(before).or_default().add(&bytes);
                    bytes = AgeBytes::default();
                }
                bytes.add_page(PageAge::from_bits(state & AGE_MASK));
            }
            if let Some(key) = last {
                sums.entry(key).or_default().add(&bytes);
            }
        }
        sums
    }

    /// The blocks that there are, by their first frames.
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE;

    #[test]
    fn a_frame_is_as_its_pages_together() {
        use PageAge::{Idle, Touched, Unknown};
        let check = |a: PageAge, b: PageAge, wanted| {
            assert_eq!((a.and(b), b.and(a)), (wanted, wanted), "{a:?} and {b:?}");
        };
        check(Touched, Unknown, Touched);
        check(Touched, Idle(6), Touched);
        check(Idle(2), Unknown, Unknown);
        check(Idle(2), Idle(5), Idle(2));
        for age in [Touched, Idle(0), Idle(6), Unknown] {
            assert_eq!(PageAge::from_bits(age.bits()), age);
        }
    }

    #[test]
    fn ages_fall_into_their_classes() {
        let check = |ms, wanted| {
            assert_eq!(
                PageAge::idle_for(Nanos::from_millis(ms)),
                PageAge::Idle(wanted),
                "{ms} ms"
            );
        };
        check(0, 0);
        check(999, 0);
        check(1000, 1);
        check(4_999, 1);
        check(3_600_000, 6);
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
        let mut map = FrameMap::default();
        for round in 0..2 {
            map.clear();
            // Two pages of one process, one that two share, and one that a process maps twice.
            map.add(3, MappedClass::Anonymous, 1000, PageAge::Touched);
            map.add(3, MappedClass::Anonymous, 1 << 20, PageAge::Idle(2));
            map.add(3, MappedClass::File, 1001, PageAge::Idle(4));
            map.add(4, MappedClass::File, 1001, PageAge::Idle(1));
            map.add(4, MappedClass::Shared, 1002, PageAge::Unknown);
            map.add(4, MappedClass::Shared, 1002, PageAge::Touched);
            let sums = map.sums(|frame| u32::from(frame >= 1 << 20));
            let mut idle = [0; NR_AGES];
            let touched = AgeBytes {
                touched: PAGE,
                ..AgeBytes::default()
            };
            assert_eq!(sums[&(Mapper::One(3), 0, MappedClass::Anonymous)], touched);
            assert_eq!(sums[&(Mapper::One(4), 0, MappedClass::Shared)], touched);
            idle[2] = PAGE;
            let on_other = sums[&(Mapper::One(3), 1, MappedClass::Anonymous)];
            assert_eq!(
                on_other,
                AgeBytes {
                    idle,
                    ..AgeBytes::default()
                },
                "round {round}"
            );
            idle = [0; NR_AGES];
            idle[1] = PAGE;
            let shared = sums[&(Mapper::Several, 0, MappedClass::File)];
            assert_eq!(
                shared,
                AgeBytes {
                    idle,
                    ..AgeBytes::default()
                }
            );
            assert_eq!(sums.len(), 4);
        }
        map.clear();
        assert!(map.sums(|_| 0).is_empty());
    }
}
