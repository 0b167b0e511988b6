//! A table of billions of numbers, most of which follow from their neighbours.
//!
//! Problem: the owner of each frame and the frame of each page take four bytes each. A machine of hundreds of gigabytes
//! then takes gigabytes and is slow to make, and every access to it misses all caches. Yet most of it is huge pages and
//! large blocks: 512 entries that are all alike, or that count up.
//!
//! Approach: a chunk of 512 entries is one number until something else is written into it. It becomes one number again
//! once its last entry is written and all entries are alike or count up. Chunks are mostly filled and emptied from
//! their start to their end.

use super::BLOCK_PAGES;

const CHUNK: usize = BLOCK_PAGES as usize;

#[derive(Clone, Debug)]
enum Chunk {
    /// All entries have this value.
    Same(u32),
    /// The first entry has this value, and each is one more than the one before.
    Rising(u32),
    Each(Box<[u32; CHUNK]>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct RunTable {
    chunks: Vec<Chunk>,
    len: usize,
}

/// Rule by which the entries of a run follow from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// All have this value.
    Same(u32),
    /// They count up from this value.
    Rising(u32),
}

impl Run {
    const fn at(self, i: usize) -> u32 {
        match self {
            Self::Same(value) => value,
            Self::Rising(first) => first.wrapping_add(i as u32),
        }
    }

    const fn chunk(self, from: usize) -> Chunk {
        match self {
            Self::Same(value) => Chunk::Same(value),
            Self::Rising(_) => Chunk::Rising(self.at(from)),
        }
    }
}

impl Chunk {
    fn get(&self, i: usize) -> u32 {
        match self {
            Self::Same(value) => *value,
            Self::Rising(first) => first + i as u32,
            Self::Each(all) => all[i],
        }
    }

    /// Returns how many entries from `i` on belong to `run`, at most `count`; the first is taken to belong.
    fn run_len(&self, i: usize, count: usize, run: Run) -> usize {
        let count = count.min(CHUNK - i);
        match self {
            Self::Each(all) => {
                let entries = all[i..i + count].iter().enumerate();
                let mut following = entries.map(|(i, entry)| *entry == run.at(i));
                following.position(|follows| !follows).unwrap_or(count)
            }
            Self::Same(_) if matches!(run, Run::Same(_)) => count,
            Self::Rising(_) if matches!(run, Run::Rising(_)) => count,
            _ => 1,
        }
    }

    /// Becomes one number if all entries follow from the first.
    fn fold(&mut self) {
        let first = self.get(0);
        let rises = first.checked_add(CHUNK as u32).map(|_| Run::Rising(first));
        let found = [Some(Run::Same(first)), rises].into_iter().flatten();
        if let Some(run) = { found }.find(|run| self.run_len(0, CHUNK, *run) == CHUNK) {
            *self = run.chunk(0);
        }
    }

    fn each(&mut self) -> &mut [u32; CHUNK] {
        if !matches!(self, Self::Each(_)) {
            let all: Box<[u32; CHUNK]> = Box::new(std::array::from_fn(|i| self.get(i)));
            *self = Self::Each(all);
        }
        match self {
            Self::Each(all) => all,
            _ => unreachable!("it was just made so"),
        }
    }
}

impl RunTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Extends the table to `len` entries, the new ones being `value`.
    pub(super) fn grow(&mut self, len: usize, value: u32) {
        let old = self.len;
        self.chunks.resize(len.div_ceil(CHUNK), Chunk::Same(value));
        self.len = len;
        // Entries beyond the old end of the last chunk may hold other values.
        let end = old.next_multiple_of(CHUNK).min(len);
        if old < end {
            self.set_run(old, end - old, Run::Same(value));
        }
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        self.chunks[at / CHUNK].get(at % CHUNK)
    }

    pub(super) fn set(&mut self, at: usize, value: u32) {
        let chunk = &mut self.chunks[at / CHUNK];
        chunk.each()[at % CHUNK] = value;
        if at % CHUNK == CHUNK - 1 {
            chunk.fold();
        }
    }

    /// Returns how many entries from `at` on belong to `run`, at most `count`, and at most up to the end of the chunk.
    pub(super) fn run_len(&self, at: usize, count: usize, run: Run) -> usize {
        self.chunks[at / CHUNK].run_len(at % CHUNK, count, run)
    }

    /// Sets `count` entries from `at` on to the entries of `run`.
    pub(super) fn set_run(&mut self, at: usize, count: usize, run: Run) {
        let mut done = 0;
        while done < count {
            let (chunk, from) = ((at + done) / CHUNK, (at + done) % CHUNK);
            let here = (CHUNK - from).min(count - done);
            if here == CHUNK {
                self.chunks[chunk] = run.chunk(done);
            } else {
                let all = self.chunks[chunk].each();
                for (i, entry) in all[from..from + here].iter_mut().enumerate() {
                    *entry = run.at(done + i);
                }
                if from + here == CHUNK {
                    self.chunks[chunk].fold();
                }
            }
            done += here;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len).map(|at| self.get(at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_vector(
            steps in prop::collection::vec((0_u8..4, 0_usize..3_000, 1_usize..1_500, 0_u32..1_000), 1..40)
        ) {
            let (mut table, mut vector) = (RunTable::default(), Vec::new());
            for (what, at, count, value) in steps {
                let end = (at + count).min(vector.len());
                match what {
                    0 => {
                        let len = (vector.len() + count).min(4_000);
                        vector.resize(len, value);
                        table.grow(len, value);
                    }
                    1 if at < vector.len() => {
                        vector[at] = value;
                        table.set(at, value);
                    }
                    2 if at < end => {
                        vector[at..end].fill(value);
                        table.set_run(at, end - at, Run::Same(value));
                    }
                    3 if at < end => {
                        for (i, entry) in vector[at..end].iter_mut().enumerate() {
                            *entry = value + i as u32;
                        }
                        table.set_run(at, end - at, Run::Rising(value));
                    }
                    _ => {}
                }
                prop_assert_eq!(table.iter().collect::<Vec<_>>(), vector.clone());
            }
            prop_assert_eq!(table.len(), vector.len());
        }
    }
}
