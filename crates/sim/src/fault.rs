//! What may go wrong while pages are moved, at random by a seed: so that tests see what happens then.
//!
//! A node that is full needs no fault: [`crate::memory::Memory::set_watermark`] makes one.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

/// How often what goes wrong; by default nothing does.
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
    /// Of a thousand pages so many cannot be moved (somebody holds them), and of a thousand times a lock
    /// is wanted so often another has it.
    pub fn new(migration_permil: u32, contention_permil: u32, seed: u64) -> Self {
        Self {
            migration_permil,
            contention_permil,
            random: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
        }
    }

    /// Whether the page that is to be moved now cannot be.
    pub(crate) fn fails_migration(&mut self) -> bool {
        let permil = self.migration_permil;
        self.happens(permil)
    }

    /// Whether another has the lock that is wanted now.
    pub(crate) fn is_contended(&mut self) -> bool {
        let permil = self.contention_permil;
        self.happens(permil)
    }

    /// Without faults no number is drawn.
    fn happens(&mut self, permil: u32) -> bool {
        permil > 0 && self.random.next_u32() % 1000 < permil
    }
}
