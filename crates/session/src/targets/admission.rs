//! Spreads the first scan of many processes over time.
//!
//! Problem: the first scan of a process (opening it, reading its mappings and page tables) costs many times a later
//! one. Of a thousand processes it would take the CPU budget of a minute at once.
//!
//! Approach: processes wait in a queue, those with most resident memory first. Each scan for new processes admits as
//! many as a part of the budget pays for, by the measured cost of those before, and one in any case.
//!
//! Limits: a process that waits is not watched, which a note says. A process that starts later waits behind the others.

use std::collections::{BTreeSet, VecDeque};

use isotherm_engine::Nanos;
use isotherm_engine::units::format_bytes;
use isotherm_linux::clock::process_cpu;
use isotherm_linux::process;
use isotherm_record::Item;

use super::largest_first;

/// Part of the budget that pays for admissions while processes wait. The first intervals of an admitted process cost
/// about three times as much again (measured: a thousand processes of 12 MiB).
const PART: f64 = 0.2;
/// Budget that is there at the start, in seconds: a few dozen processes are admitted at once.
const SAVED_S: f64 = 10.0;

#[derive(Debug, Default)]
pub(super) struct Admission {
    share: f64,
    began: Option<Nanos>,
    spent: Nanos,
    waiting: VecDeque<u32>,
    is_noted: bool,
}

impl Admission {
    pub(super) fn new(share: f64) -> Self {
        Self {
            share,
            ..Self::default()
        }
    }

    /// Replaces the queue by `new`: processes that waited keep their places, others follow by resident memory.
    pub(super) fn queue(&mut self, new: &[u32], now: Nanos) {
        self.began.get_or_insert(now);
        let new: BTreeSet<u32> = new.iter().copied().collect();
        self.waiting.retain(|pid| new.contains(pid));
        let waited: BTreeSet<u32> = self.waiting.iter().copied().collect();
        let mut rest: Vec<u32> = new.difference(&waited).copied().collect();
        largest_first(&mut rest);
        self.waiting.extend(rest);
    }

    /// Takes the next process, if the budget pays for it or it is the first of this scan.
    pub(super) fn next(&mut self, is_first: bool, now: Nanos) -> Option<u32> {
        let elapsed = now.since(self.began?).as_secs_f64();
        let allowed_s = self.share * PART * (elapsed + SAVED_S);
        if !is_first && self.spent.as_secs_f64() >= allowed_s {
            return None;
        }
        self.waiting.pop_front()
    }

    pub(super) fn charge<T>(&mut self, add: impl FnOnce() -> T) -> T {
        let before = process_cpu();
        let result = add();
        self.spent = self.spent + process_cpu().since(before);
        result
    }

    /// Returns the note that processes wait, once, and the one that none waits any more.
    pub(super) fn note(&mut self, now: Nanos) -> Option<Item> {
        // Kernel threads have no memory, and are the last.
        let resident = { self.waiting.iter() }
            .map(|pid| process::resident_bytes(*pid))
            .take_while(|bytes| *bytes > 0);
        let text = match (self.is_noted, { resident.clone() }.next()) {
            (false, Some(_)) => {
                let (nr, sum) = resident.fold((0, 0), |(nr, sum), bytes| (nr + 1, sum + bytes));
                format!(
                    "{nr} processes with {} are not watched yet: the CPU budget pays for a few each second, those with \
                     most memory first; --cpu-budget raises it",
                    format_bytes(sum)
                )
            }
            (true, None) => "all processes are watched now".to_owned(),
            _ => return None,
        };
        self.is_noted = !self.is_noted;
        Some(Item::Note { time: now, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_admitted_in_any_case_and_more_as_time_goes_by() {
        let mut admission = Admission::new(0.01);
        admission.queue(&[1, 2, 3, 4], Nanos(0));
        admission.spent = Nanos::from_millis(25);
        let mut admitted = |seconds: u64| {
            let now = Nanos::from_millis(1000 * seconds);
            let mut nr = 0;
            while admission.next(nr == 0, now).is_some() {
                nr += 1;
                admission.spent = admission.spent + Nanos::from_millis(10);
            }
            nr
        };
        assert_eq!(admitted(0), 1);
        assert_eq!(admitted(1), 1);
        assert_eq!(admitted(30), 2);
        assert!(admission.note(Nanos(0)).is_none());
    }

    #[test]
    fn a_process_that_ends_leaves_the_queue() {
        let mut admission = Admission::new(0.01);
        let (own, gone) = (std::process::id(), u32::MAX);
        admission.queue(&[own, gone], Nanos(0));
        let first = admission.next(true, Nanos(0));
        assert_eq!(first, Some(own), "the larger first");
        admission.queue(&[own], Nanos(0));
        let text = |item: Option<Item>| match item {
            Some(Item::Note { text, .. }) => text,
            _ => String::new(),
        };
        assert!(text(admission.note(Nanos(0))).starts_with("1 processes with "));
        assert!(admission.note(Nanos(0)).is_none());
        assert_eq!(admission.next(true, Nanos(0)), Some(own));
        let all = text(admission.note(Nanos(0)));
        assert_eq!(all, "all processes are watched now");
    }
}
