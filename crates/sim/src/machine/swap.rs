//! Swap for reclaimed anonymous memory: compressed in memory (zram), or on a disk.

use isotherm_engine::{Nanos, PAGE_SIZE};

use crate::memory::{Memory, Pfn};

/// Kind of a swap device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SwapKind {
    /// Compressed memory.
    Zram {
        /// Compression ratio: pages that one frame holds.
        ratio: f64,
    },
    /// A disk.
    Disk {
        /// Time to read a page back, in addition to the fault.
        read: Nanos,
    },
}

/// A swap device of some size, and its contents.
#[derive(Clone, Debug)]
pub struct Swap {
    kind: SwapKind,
    capacity: u64,
    stored: u64,
    /// Frames that hold compressed pages.
    pool: Vec<Pfn>,
}

impl Swap {
    /// Returns empty swap of `bytes`.
    pub fn new(kind: SwapKind, bytes: u64) -> Self {
        Self {
            kind,
            capacity: bytes / PAGE_SIZE,
            stored: 0,
            pool: Vec::new(),
        }
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> SwapKind {
        self.kind
    }

    /// Returns the number of pages in swap.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of pages that fit in.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of frames that swap itself occupies.
    pub fn pool_pages(&self) -> u64 {
        self.pool.len() as u64
    }

    /// Returns the number of frames that its pages need.
    fn pool_wanted(&self) -> u64 {
        match self.kind {
            SwapKind::Zram { ratio } => (self.stored as f64 / ratio).ceil() as u64,
            SwapKind::Disk { .. } => 0,
        }
    }

    /// Stores a page. Returns whether there was space.
    pub(crate) fn store(&mut self, memory: &mut Memory) -> bool {
        if self.stored >= self.capacity {
            return false;
        }
        self.stored += 1;
        while self.pool_pages() < self.pool_wanted() {
            let zones = 0..memory.zones().len();
            let frame = zones.rev().find_map(|zone| memory.allocate_reserve(zone));
            let Some(frame) = frame else {
                self.stored -= 1;
                return false;
            };
            self.pool.push(frame);
        }
        true
    }

    pub(crate) fn release(&mut self, memory: &mut Memory) {
        self.stored -= 1;
        while self.pool_pages() > self.pool_wanted() {
            let Some(frame) = self.pool.pop() else { break };
            memory.free_kernel(frame, 0);
        }
    }
}
