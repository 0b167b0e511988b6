//! Where reclaimed anonymous memory goes: compressed into memory (zram), or to a disk.

use isotherm_engine::{Nanos, PAGE_SIZE};

use crate::memory::{Memory, Pfn};

/// A swap device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SwapKind {
    /// Compressed memory: so many pages go into the room of one.
    Zram {
        /// Compression ratio.
        ratio: f64,
    },
    /// A disk.
    Disk {
        /// What reading a page back takes, on top of the fault.
        read: Nanos,
    },
}

/// Swap of some size, and what is in it.
#[derive(Clone, Debug)]
pub struct Swap {
    kind: SwapKind,
    capacity: u64,
    stored: u64,
    /// Frames that compressed pages lie in.
    pool: Vec<Pfn>,
}

impl Swap {
    /// Empty swap of `bytes`.
    pub fn new(kind: SwapKind, bytes: u64) -> Self {
        Self {
            kind,
            capacity: bytes / PAGE_SIZE,
            stored: 0,
            pool: Vec::new(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> SwapKind {
        self.kind
    }

    /// Pages in it.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Pages that fit in.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Frames that it takes of memory itself.
    pub fn pool_pages(&self) -> u64 {
        self.pool.len() as u64
    }

    fn pool_wanted(&self) -> u64 {
        match self.kind {
            SwapKind::Zram { ratio } => (self.stored as f64 / ratio).ceil() as u64,
            SwapKind::Disk { .. } => 0,
        }
    }

    /// Takes a page in; whether there was room.
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

    /// Gives a page back.
    pub(crate) fn release(&mut self, memory: &mut Memory) {
        self.stored -= 1;
        while self.pool_pages() > self.pool_wanted() {
            let Some(frame) = self.pool.pop() else { break };
            memory.free_kernel(frame, 0);
        }
    }
}
