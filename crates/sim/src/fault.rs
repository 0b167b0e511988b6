//! Random faults while pages are moved, from a seed: tests see what happens then.
//!
//! A full node needs no fault: [`crate::memory::Memory::set_watermark`] makes one.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

/// Frequencies of faults; by default there are none.
#[derive(Clone, Debug)]
pub struct Faults {
    migration_permil: u32,
    contention_permil: u32,
    random: Pcg64Mcg,
}

impl Default for Faults {
    fn default() -> Self {
        Self::new(0, 0, 0)
    }
}

impl Faults {
    /// Creates faults with these frequencies in a thousand: of pages that cannot be moved since they are pinned, and of
    /// locks that another holds.
    pub fn new(migration_permil: u32, contention_permil: u32, seed: u64) -> Self {
        Self {
            migration_permil,
            contention_permil,
            random: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
        }
    }

    pub(crate) fn fails_migration(&mut self) -> bool {
        self.happens(self.migration_permil)
    }

    /// Whether another holds the requested lock.
    pub(crate) fn is_contended(&mut self) -> bool {
        self.happens(self.contention_permil)
    }

    /// Draws whether a fault happens; without faults no number is drawn.
    fn happens(&mut self, permil: u32) -> bool {
        permil > 0 && self.random.next_u32() % 1000 < permil
    }
}
