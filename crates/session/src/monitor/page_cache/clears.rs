//! Marks of accesses that a round has still to clear, and their budget.

use std::collections::VecDeque;

use isotherm_engine::Nanos;
use isotherm_engine::page_cache::{CachedFolio, ClearCost, order_clears};

/// Number of folios from which a selection is made, 2.5 MiB: more candidates make a better selection.
const CHOSEN_FROM: usize = 1 << 16;
/// Number of folios that are cleared at once, which takes some milliseconds.
const AT_ONCE: usize = 256;

#[derive(Default)]
pub(super) struct Clears {
    cost: ClearCost,
    /// Marked folios from which no selection has been made yet.
    marked: Vec<CachedFolio>,
    /// Selected folios, the best first.
    planned: VecDeque<CachedFolio>,
    /// Budget for the selected folios, and for the rest of the round.
    budget: Nanos,
    rest: Nanos,
}

impl Clears {
    pub(super) fn begin(&mut self, budget: Nanos) {
        self.rest = budget;
    }

    /// Adds a folio with a set mark: its next access would leave no trace.
    pub(super) fn add(&mut self, folio: CachedFolio) {
        self.marked.push(folio);
    }

    pub(super) fn is_full(&self) -> bool {
        self.marked.len() >= CHOSEN_FROM
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.planned.is_empty()
    }

    /// Selects from the added folios. `share` is the share of the frames since the last selection in the frames that
    /// this round has or had yet to scan then.
    pub(super) fn plan(&mut self, share: f64) {
        // Unused budget of one part goes to another: most files are in few places.
        self.budget = Nanos((self.rest.0 as f64 * (2.0 * share).min(1.0)) as u64);
        self.rest = self.rest.since(self.budget);
        self.planned = order_clears(std::mem::take(&mut self.marked), self.cost).into();
    }

    /// Returns the next folios to clear and their estimated cost. `spare` is CPU time beyond the budget.
    pub(super) fn next(&mut self, spare: Nanos) -> Option<(Vec<CachedFolio>, Nanos)> {
        if self.budget == Nanos(0) && spare == Nanos(0) {
            self.planned.clear();
        }
        let nr = self.planned.len().min(AT_ONCE);
        let folios: Vec<CachedFolio> = self.planned.drain(..nr).collect();
        let estimate = self.cost.of(&folios);
        (nr > 0).then_some((folios, estimate))
    }

    /// Accounts for the time of clears: `spent` in all, `spare` of it beyond the budget.
    pub(super) fn cleared(&mut self, estimate: Nanos, spent: Nanos, spare: Nanos) {
        self.cost.learn(estimate, spent);
        self.budget = self.budget.since(spent.since(spare));
        if self.planned.is_empty() {
            self.rest = self.rest + self.budget;
            self.budget = Nanos(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::page_cache::FolioState;

    use super::*;

    fn folio(file: u64, index: u64) -> CachedFolio {
        CachedFolio {
            frame: index,
            order: 0,
            state: FolioState(FolioState::REFERENCED),
            file,
            index,
            group: 0,
        }
    }

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// Returns the number of cleared folios if each call takes 10 ms.
    fn clear_all(clears: &mut Clears, spare: Nanos) -> usize {
        let mut nr = 0;
        while let Some((folios, estimate)) = clears.next(spare) {
            nr += folios.len();
            clears.cleared(estimate, ms(10), spare);
        }
        nr
    }

    #[test]
    fn a_round_takes_what_it_may_and_what_is_spare() {
        let mut clears = Clears::default();
        let mut round = |nr: u64, budget: Nanos, share: f64, spare: Nanos| {
            clears.begin(budget);
            (0..nr).for_each(|index| clears.add(folio(1, index)));
            clears.plan(share);
            assert_eq!(clears.is_waiting(), nr > 0);
            let cleared = clear_all(&mut clears, spare);
            assert!(!clears.is_waiting());
            cleared
        };
        assert_eq!(round(0, ms(100), 1.0, ms(0)), 0);
        assert_eq!(round(5000, ms(0), 1.0, ms(0)), 0);
        assert_eq!(round(5000, ms(25), 1.0, ms(0)), 3 * AT_ONCE);
        assert_eq!(round(5000, ms(60), 0.25, ms(0)), 3 * AT_ONCE, "half of it");
        assert_eq!(round(5000, ms(0), 1.0, ms(10)), 5000, "nobody needs it");
    }

    #[test]
    fn what_is_left_of_one_part_is_for_the_next() {
        let mut clears = Clears::default();
        clears.begin(ms(100));
        clears.add(folio(1, 0));
        clears.plan(0.25);
        assert_eq!(clear_all(&mut clears, ms(0)), 1);
        (0..5000).for_each(|index| clears.add(folio(1, index)));
        clears.plan(1.0);
        assert_eq!(clear_all(&mut clears, ms(0)), 9 * AT_ONCE);
    }
}
