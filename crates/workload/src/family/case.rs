//! Draws a program from a seed.

use std::fmt;

use isotherm_engine::units::format_bytes;
use isotherm_engine::{BLOCK_SIZE, Nanos, PAGE_SIZE};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::layout::unit;

const MIB: f64 = (1u64 << 20) as f64;

/// The order in which hot pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchOrder {
    /// All pages are touched at once, by address, at the start of each period.
    Sweep,
    /// Pages are touched by address, evenly spread over the period.
    Spread,
    /// Random pages are touched. In a period there is one touch for each hot page.
    Random,
}

/// The pages of a 2 MiB block that are ever populated; the others are holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Populated {
    /// All pages.
    All,
    /// The first page of each group of this size.
    Every(u64),
    /// The first half.
    Half,
}

/// One program of the family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The seed of the family.
    pub seed: u64,
    /// Its number in the family.
    pub index: u64,
    /// Populated bytes.
    pub total: u64,
    /// Hot share of these bytes.
    pub hot: f64,
    /// Time in which all hot pages are touched once, where the machine is fast enough.
    pub period: Nanos,
    /// Order of touches.
    pub order: TouchOrder,
    /// Whether touches are writes.
    pub writes: bool,
    /// Bytes of each piece of hot memory; `None`: all in one piece.
    pub piece: Option<u64>,
    /// Pages of each block that are populated.
    pub populated: Populated,
    /// Time after which other pages become hot; `None`: they stay the same.
    pub phase: Option<Nanos>,
    /// Share of the pages that are cold at first that is paged out; needs swap.
    pub paged_out: f64,
    /// Whether a child that does nothing shares all memory.
    pub fork: bool,
    /// Whether huge pages are asked for.
    pub huge: bool,
    /// Bytes of memory never written, half of which is read (the kernel's zero page).
    pub zeros: u64,
}

impl Case {
    /// Draws case `index` of the family of `seed`. It does not depend on the size of the family.
    pub fn draw(seed: u64, index: u64) -> Self {
        let mut draw = Draw(Pcg64Mcg::seed_from_u64(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index,
        ));
        let total = draw.log(100.0 * MIB, 2048.0 * MIB) as u64 / BLOCK_SIZE * BLOCK_SIZE;
        let hot = draw.log(0.01, 0.6);
        let period = Nanos(draw.log(1e6, 1e10) as u64);
        let order = draw.one_of(&[TouchOrder::Sweep, TouchOrder::Spread, TouchOrder::Random]);
        let writes = draw.chance(0.5);
        let piece = draw.one_of(&[
            None,
            Some(PAGE_SIZE),
            Some(64 << 10),
            Some(BLOCK_SIZE),
            Some(16 << 20),
        ]);
        let every = draw.one_of(&[2, 3, 4, 8]);
        let populated = draw.one_of(&[
            Populated::All,
            Populated::All,
            Populated::Every(every),
            Populated::Half,
        ]);
        let phase = Nanos(draw.log(5e9, 20e9) as u64);
        let phase = draw.chance(0.3).then_some(phase);
        let paged_out = draw.between(0.1, 0.6);
        let paged_out = if draw.chance(0.25) { paged_out } else { 0.0 };
        let fork = draw.chance(0.15);
        let huge = draw.chance(0.15);
        let zeros = draw.log(16.0 * MIB, 256.0 * MIB) as u64 / BLOCK_SIZE * BLOCK_SIZE;
        let zeros = if draw.chance(0.2) { zeros } else { 0 };
        Self {
            seed,
            index,
            total,
            hot,
            period,
            order,
            writes,
            piece,
            // A huge page has no holes, and is not paged out as such.
            populated: if huge { Populated::All } else { populated },
            phase,
            paged_out: if huge { 0.0 } else { paged_out },
            fork,
            huge,
            zeros,
        }
    }

    /// Limits the populated bytes to `limit`; all else stays.
    #[must_use]
    pub fn within(self, limit: u64) -> Self {
        let limit = (limit / BLOCK_SIZE * BLOCK_SIZE).max(16 * BLOCK_SIZE);
        Self {
            total: self.total.min(limit),
            ..self
        }
    }

    /// Returns the traits that make the case hard to monitor, in words.
    pub fn traits(&self) -> String {
        let mut words = vec![if self.writes { "rw" } else { "ro" }.to_owned()];
        match self.populated {
            Populated::All => {}
            Populated::Every(k) => words.push(format!("1/{k} pages")),
            Populated::Half => words.push("half blocks".into()),
        }
        if let Some(phase) = self.phase {
            words.push(format!("moves {:.0}s", phase.as_secs_f64()));
        }
        if self.paged_out > 0.0 {
            words.push(format!("{:.0}% out", self.paged_out * 100.0));
        }
        for (is, word) in [(self.fork, "fork"), (self.huge, "huge")] {
            if is {
                words.push(word.into());
            }
        }
        if self.zeros > 0 {
            words.push(format!("{} zeros", format_bytes(self.zeros)));
        }
        words.join(", ")
    }
}

/// Formats a case as `1200M 12% 30ms sweep 64K`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let piece = self.piece.map_or("whole".into(), format_bytes);
        let order = match self.order {
            TouchOrder::Sweep => "sweep",
            TouchOrder::Spread => "spread",
            TouchOrder::Random => "random",
        };
        let period = self.period.as_secs_f64() * 1e3;
        let digits = usize::from(period < 10.0);
        write!(
            f,
            "{} {:.1}% {period:.digits$}ms {order} {piece}",
            format_bytes(self.total),
            self.hot * 100.0
        )
    }
}

struct Draw(Pcg64Mcg);

impl Draw {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + unit(&mut self.0) * (high - low)
    }

    fn log(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    fn chance(&mut self, share: f64) -> bool {
        unit(&mut self.0) < share
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[((unit(&mut self.0) * choices.len() as f64) as usize).min(choices.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_the_same_for_the_same_seed_and_stays_in_its_bounds() {
        for index in 0..500 {
            let case = Case::draw(7, index);
            assert_eq!(case, Case::draw(7, index));
            assert!((100 << 20..=2 << 30).contains(&(case.total + BLOCK_SIZE)));
            assert!((0.01..=0.6).contains(&case.hot), "{case:?}");
            assert!((1_000_000..=10_000_000_000).contains(&case.period.0));
            assert!(!case.huge || case.populated == Populated::All);
        }
        assert_ne!(Case::draw(7, 0), Case::draw(8, 0));
    }

    #[test]
    fn every_trait_is_drawn_sooner_or_later() {
        let family: Vec<Case> = (0..200).map(|i| Case::draw(1, i)).collect();
        let some = |wanted: fn(&Case) -> bool| assert!(family.iter().any(wanted));
        some(|c| c.order == TouchOrder::Sweep);
        some(|c| c.order == TouchOrder::Spread);
        some(|c| c.order == TouchOrder::Random);
        some(|c| c.piece.is_none());
        some(|c| c.piece == Some(PAGE_SIZE));
        some(|c| matches!(c.populated, Populated::Every(8)));
        some(|c| c.populated == Populated::Half);
        some(|c| c.phase.is_some());
        some(|c| c.paged_out > 0.0);
        some(|c| c.fork);
        some(|c| c.huge);
        some(|c| c.zeros > 0);
    }

    #[test]
    fn where_memory_is_short_only_the_size_changes() {
        let case = Case::draw(3, 4);
        let small = case.within(64 << 20);
        assert_eq!(small.total, 64 << 20);
        let total = case.total;
        assert_eq!(Case { total, ..small }, case);
    }
}
