//! The inner loop: patterns as walks over words of memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use rand_pcg::Pcg64Mcg;

use crate::config::{AccessOrder, Config, Mode, Phase, WorkloadPattern};
use crate::layout::{self, below};

const WORD: u64 = size_of::<u64>() as u64;

/// The patterns of a phase, chosen in proportion to their weights.
pub(super) struct Mix<'a> {
    walks: Vec<Walk<'a>>,
    /// Sums of the weights up to and with each walk.
    bounds: Vec<u64>,
}

impl<'a> Mix<'a> {
    /// Creates the walks of one thread. Each thread starts at another place, so that sequential walks together cover
    /// their region sooner instead of following each other.
    pub(super) fn new(
        config: &Config,
        phase: &Phase,
        words: &[&'a [AtomicU64]],
        thread: usize,
        threads: usize,
    ) -> Self {
        let used = phase.patterns.iter().filter(|pattern| pattern.weight > 0);
        let walks: Vec<Walk> = used
            .clone()
            .map(|pattern| {
                let bytes = config.regions[pattern.region].size;
                let mut walk = Walk::new(pattern, bytes, words[pattern.region]);
                walk.start_at(thread as u64, threads as u64);
                walk
            })
            .collect();
        let bounds = used
            .scan(0, |sum, pattern| {
                *sum += u64::from(pattern.weight);
                Some(*sum)
            })
            .collect();
        Self { walks, bounds }
    }

    /// Whether nothing is accessed in this phase.
    pub(super) fn is_idle(&self) -> bool {
        self.walks.is_empty()
    }

    /// Makes `count` accesses of one pattern.
    #[inline]
    pub(super) fn run(&mut self, random: &mut Pcg64Mcg, count: u64) {
        let chosen = match self.bounds.as_slice() {
            [_] => 0,
            bounds => {
                let ticket = below(random, bounds[bounds.len() - 1]);
                bounds.partition_point(|bound| *bound <= ticket)
            }
        };
        self.walks[chosen].run(random, count);
    }
}

/// One pattern on its way through its spans, all of which have the same length.
struct Walk<'a> {
    words: &'a [AtomicU64],
    starts: Vec<u64>,
    span: u64,
    order: AccessOrder,
    mode: Mode,
    stride: u64,
    /// Position of a sequential walk: the span's index, and the offset in it.
    piece: usize,
    offset: u64,
    link: u64,
}

impl<'a> Walk<'a> {
    fn new(pattern: &WorkloadPattern, region_bytes: u64, words: &'a [AtomicU64]) -> Self {
        let spans = layout::spans(pattern, region_bytes);
        Self {
            words,
            span: spans[0].end - spans[0].start,
            starts: spans.into_iter().map(|span| span.start).collect(),
            order: pattern.order,
            mode: pattern.mode,
            stride: pattern.stride,
            piece: 0,
            offset: 0,
            link: 0,
        }
    }

    /// Moves a sequential walk to the `part`th of `parts` of its way.
    fn start_at(&mut self, part: u64, parts: u64) {
        let steps = self.span.div_ceil(self.stride);
        let step =
            u128::from(steps * self.starts.len() as u64) * u128::from(part) / u128::from(parts);
        self.piece = (step as u64 / steps) as usize;
        self.offset = step as u64 % steps * self.stride;
    }

    fn run(&mut self, random: &mut Pcg64Mcg, count: u64) {
        match self.mode {
            Mode::Read => self.steps(random, count, |word| {
                black_box(word.load(Ordering::Relaxed));
            }),
            Mode::Write => self.steps(random, count, |word| word.store(1, Ordering::Relaxed)),
            Mode::ReadWrite => self.steps(random, count, |word| {
                let value = word.load(Ordering::Relaxed);
                word.store(value.wrapping_add(1), Ordering::Relaxed);
            }),
            Mode::Chain => self.chain(random, count),
        }
    }

    /// Makes random reads. Each has to end before the next one's address is known, so that neither misses nor page
    /// walks overlap.
    fn chain(&mut self, random: &mut Pcg64Mcg, count: u64) {
        let pieces = self.starts.len() as u64;
        for _ in 0..count {
            let piece = below(random, pieces) as usize;
            // The added value is nearly always zero, which the processor cannot know.
            let within = below(random, self.span).wrapping_add(self.link) % self.span;
            let word = &self.words[((self.starts[piece] + within) / WORD) as usize];
            self.link = black_box(word.load(Ordering::Relaxed));
        }
    }

    #[inline]
    fn steps(&mut self, random: &mut Pcg64Mcg, count: u64, access: impl Fn(&AtomicU64)) {
        let words = self.words;
        let at = |offset: u64| access(&words[(offset / WORD) as usize]);
        match self.order {
            AccessOrder::Random if self.starts.len() == 1 => {
                for _ in 0..count {
                    at(self.starts[0] + below(random, self.span));
                }
            }
            AccessOrder::Random => {
                let pieces = self.starts.len() as u64;
                for _ in 0..count {
                    let piece = below(random, pieces) as usize;
                    at(self.starts[piece] + below(random, self.span));
                }
            }
            AccessOrder::Sequential => {
                for _ in 0..count {
                    at(self.starts[self.piece] + self.offset);
                    self.offset += self.stride;
                    if self.offset >= self.span {
                        self.offset = 0;
                        self.piece += 1;
                        if self.piece == self.starts.len() {
                            self.piece = 0;
                        }
                    }
                }
            }
        }
    }
}
