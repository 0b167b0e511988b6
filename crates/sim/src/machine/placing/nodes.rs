//! Pages of each mapping on each node: their number, their accesses, and which are a file's.
//!
//! All of it follows from the places of pages, but is needed far more often than pages move. So it is stored, and
//! updated with every page that comes, goes or moves.

use std::ops::Range;

use isotherm_engine::TargetId;

use crate::machine::area::{Area, Use};
use crate::machine::{Pattern, Place, SimMachine};
use crate::memory::Page;

impl SimMachine {
    /// Notes that pages of one mapping, in consecutive frames, are in memory now.
    pub(in crate::machine) fn note_in(&mut self, pages: Range<Page>) {
        let node = self.node_holding(pages.start);
        self.note(pages, node, true);
    }

    /// Notes that pages of one mapping, in consecutive frames, are about to leave their frames.
    pub(in crate::machine) fn note_out(&mut self, pages: Range<Page>) {
        let node = self.node_holding(pages.start);
        self.note(pages, node, false);
    }

    fn node_holding(&self, page: Page) -> u32 {
        let frame = self.memory.frame_of(page);
        self.node_of(frame.expect("it is in memory"))
    }

    /// Notes that pages of one mapping were on `from`, and are now in consecutive frames.
    pub(in crate::machine) fn note_moved(&mut self, pages: Range<Page>, from: u32) {
        self.note(pages.clone(), from, false);
        self.note_in(pages);
    }

    fn note(&mut self, pages: Range<Page>, node: u32, is_in: bool) {
        let node = node as usize;
        let at = self.area_at(pages.start);
        let Area {
            spec,
            pages: all,
            holdings,
            ..
        } = &mut self.areas[at];
        let count = u64::from(pages.end - pages.start);
        let update = |held: &mut u64| *held = if is_in { *held + count } else { *held - count };
        update(&mut holdings.pages[node]);
        if let (Some((phase, lines)), Pattern::Phases(phases)) =
            (&mut holdings.lines, &spec.pattern)
        {
            let rates = &phases[*phase].1;
            let lines_of = pages.clone().map(|page| rates.lines(page - all.start));
            let sum: f64 = lines_of.sum();
            lines[node] += if is_in { sum } else { -sum };
        }
        if let Some(first) = holdings.first_of_file {
            let first = first + u64::from(pages.start - all.start);
            let files = &mut self.files.nodes[node];
            update(&mut files.nr);
            for number in first..first + count {
                if is_in {
                    files.pages.insert(number);
                } else {
                    files.pages.remove(number);
                }
            }
        }
    }

    /// Returns the cache lines a second that accesses to a mapping move on each node, at this point of its process's
    /// work.
    pub(in crate::machine) fn lines_by_node(&mut self, at: usize) -> Vec<f64> {
        let work = self.processes[self.areas[at].process].work();
        let phase = match &self.areas[at].spec.pattern {
            Pattern::Phases(phases) => {
                let phase = Pattern::phase(phases, work);
                let phase = phase.filter(|phase| !phases[*phase].1.are_none());
                if phase.is_none() {
                    return vec![0.0; self.spec.nodes.len()];
                }
                phase
            }
            Pattern::Trace(..) if self.spec.nodes.len() < 2 => return vec![0.0],
            Pattern::Trace(..) => None,
        };
        if let Some((of, lines)) = &self.areas[at].holdings.lines
            && Some(*of) == phase
        {
            return lines.clone();
        }
        let area = &self.areas[at];
        let mut lines = vec![0.0; self.spec.nodes.len()];
        for page in area.pages.clone() {
            if self.place[page as usize] == Place::Memory
                && let Some(frame) = self.memory.frame_of(page)
            {
                let rate = area.spec.pattern.lines(page - area.pages.start, work);
                lines[self.node_of(frame) as usize] += rate;
            }
        }
        self.areas[at].holdings.lines = phase.map(|phase| (phase, lines.clone()));
        lines
    }

    /// Returns a process's anonymous memory on a node, in pages.
    pub fn anon_on(&self, target: TargetId, node: u32) -> u64 {
        let areas = self.processes[target.0 as usize].areas().iter();
        let areas = areas.map(|area| &self.areas[*area]);
        let anon = areas.filter(|area| area.spec.purpose == Use::Anon);
        anon.map(|area| area.holdings.pages[node as usize]).sum()
    }

    /// Checks that the holdings match the places of pages. Returns the first difference as the error. Slow: for tests.
    pub(in crate::machine) fn check_holdings(&self) -> Result<(), String> {
        for area in &self.areas {
            let mut pages = vec![0; self.spec.nodes.len()];
            for page in area.pages.clone() {
                let node = self.memory.frame_of(page).map(|frame| self.node_of(frame));
                if let Some(node) = node {
                    pages[node as usize] += 1;
                }
                let Some(first) = area.holdings.first_of_file else {
                    continue;
                };
                let number = first + u64::from(page - area.pages.start);
                for (of, files) in (0..).zip(&self.files.nodes) {
                    if files.pages.contains(number) != (node == Some(of)) {
                        return Err(format!("page {page} of a file is on {node:?}, not on {of}"));
                    }
                }
            }
            if pages != area.holdings.pages {
                let (name, held) = (&area.spec.name, &area.holdings.pages);
                return Err(format!(
                    "{name} has {pages:?} pages on the nodes, not {held:?}"
                ));
            }
        }
        Ok(())
    }
}
