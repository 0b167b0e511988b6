//! Progress of time: processes work, fault and fill memory, and the kernel's threads do their part.

use std::cmp::Reverse;

use isotherm_engine::Nanos;

use super::area::Use;
use super::process::Losses;
use super::{BLOCK, Place, SimMachine, SwapKind, block_start};
use crate::memory::{BLOCK_PAGES, Page, Pfn};

/// Time within which processes and the kernel's threads have no effect on each other.
const QUANTUM: Nanos = Nanos::from_millis(10);

enum Next {
    Work,
    Return(Page),
    Fill(std::ops::Range<Page>),
    GiveBack(std::ops::Range<Page>, f64),
    End,
}

impl SimMachine {
    /// Runs everything until `to`.
    pub fn advance(&mut self, to: Nanos) {
        while self.now < to {
            let length = to.since(self.now).min(QUANTUM);
            for process in self.to_end() {
                self.end_process(process, false);
            }
            if self.now >= self.speeds_due {
                self.refresh_speeds();
            }
            for process in 0..self.processes.len() {
                self.work(process, length);
            }
            self.others_cpu += self.cpus_of_others() * length.as_secs_f64();
            self.balance();
            self.run_kcompactd(self.now + length);
            if self.now >= self.khugepaged_due {
                self.khugepaged();
            }
            self.now = self.now + length;
        }
    }

    fn work(&mut self, index: usize, length: Nanos) {
        let mut left = length.0 as f64;
        loop {
            let contention = self.contention;
            let process = &mut self.processes[index];
            if !process.is_running() {
                return;
            }
            let waited = process.debt.min(left);
            process.debt -= waited;
            left -= waited;
            // Waiting for zram is work for the process's CPU, and waiting for a disk is not. The difference is ignored
            // here.
            process.cpu += waited;
            if left <= 0.0 {
                return;
            }
            let extra = process.slow_tiers + process.slow_translations;
            let slow = (1.0 + extra).max(0.05) * contention;
            let (at, next) = process.next();
            let needed = (at - process.work).max(0.0) * slow;
            let (used, next) = if needed <= left {
                (needed, next)
            } else {
                (left, Next::Work)
            };
            let done = used / slow;
            process.work = if matches!(next, Next::Work) {
                process.work + done
            } else {
                at.max(process.work)
            };
            process.cpu += used * process.cpus() / contention;
            let losses = &mut process.losses;
            losses.tiers += done * process.slow_tiers / 1e9;
            losses.translations += done * process.slow_translations / 1e9;
            losses.contention += (used - used / contention) / 1e9;
            left -= used;
            match next {
                Next::Work => return,
                Next::End => self.end_process(index, false),
                Next::Return(page) => {
                    self.processes[index].returns.pop();
                    self.refault(index, page);
                }
                Next::Fill(pages) => {
                    self.processes[index].fills.pop_front();
                    self.fill(index, pages);
                }
                Next::GiveBack(pages, share) => {
                    self.processes[index].returnings.pop_front();
                    self.give_back(pages, share);
                }
            }
        }
    }

    /// Accesses a page, which faults if it is in swap or in its file only.
    fn refault(&mut self, index: usize, page: Page) {
        let place = self.place[page as usize];
        if !matches!(place, Place::Swap | Place::File) {
            return;
        }
        if self.bring_back(page).is_none() {
            self.end_process(index, true);
            return;
        }
        let cost = self.refault_cost(place);
        let process = &mut self.processes[index];
        process.major_faults += 1;
        process.wait(cost, |losses: &mut Losses| &mut losses.refaults);
    }

    fn refault_cost(&self, place: Place) -> Nanos {
        let costs = &self.spec.costs;
        match (place, self.swap.as_ref().map(super::Swap::kind)) {
            (Place::File, _) => costs.refault_file,
            (_, Some(SwapKind::Disk { read })) => costs.refault_disk + read,
            _ => costs.refault_zram,
        }
    }

    /// Puts a page that is not in memory into a frame, and returns the frame; `None` if there is no memory left.
    pub(super) fn bring_back(&mut self, page: Page) -> Option<Pfn> {
        let frame = self.place_page(page)?;
        if self.place[page as usize] == Place::Swap {
            self.stats.swapped_in += 1;
            self.release_swap();
        }
        self.set_place(page, Place::Memory);
        self.note_in(page..page + 1);
        self.set_accessed(page);
        Some(frame)
    }

    pub(super) fn fill(&mut self, index: usize, pages: std::ops::Range<Page>) {
        let first = block_start(pages.start);
        self.has_table[(first / BLOCK) as usize] = true;
        let mut next = pages.start;
        while next < pages.end {
            let block = block_start(next);
            let end = (block + BLOCK).min(pages.end);
            self.has_table[(block / BLOCK) as usize] = true;
            if self.wants_huge(block) {
                let (is_huge, compacting) = self.fill_huge(block);
                let process = &mut self.processes[index];
                process.wait(compacting, |losses: &mut Losses| &mut losses.compaction);
                if is_huge {
                    let cost = self.spec.costs.huge_fault;
                    self.huge_faults.push(compacting + cost);
                    process.fault(1, cost);
                }
            }
            while next < end {
                let filled = self.fill_run(index, next..end);
                next += filled as Page;
                if filled == 0 {
                    if !self.fill_page(index, next) {
                        self.end_process(index, true);
                        return;
                    }
                    next += 1;
                }
            }
        }
    }

    /// Gives back a share of pages, drawn at random (MADV_DONTNEED).
    fn give_back(&mut self, pages: std::ops::Range<Page>, share: f64) {
        for page in pages {
            if self.draw() >= share {
                continue;
            }
            if self.is_huge(page) {
                self.split(block_start(page));
            }
            self.drop_page(page);
        }
    }

    pub(super) fn drop_page(&mut self, page: Page) {
        match self.place[page as usize] {
            Place::Memory => {
                self.note_out(page..page + 1);
                self.memory.free_page(page);
            }
            Place::Swap => self.release_swap(),
            Place::File | Place::Nowhere => {}
        }
        self.set_place(page, Place::Nowhere);
        self.filled.set(page, false);
    }

    /// Fills new pages, from the first on, with the same result as one by one. Returns their number, up to the first
    /// page that is not new or has no frame without reclaim.
    fn fill_run(&mut self, index: usize, pages: std::ops::Range<Page>) -> u64 {
        let new = new_ones(&self.place[pages.start as usize..pages.end as usize]);
        if new == 0 {
            return 0;
        }
        let count = self.place_run(pages.start, new);
        if count > 0 {
            let filled = pages.start..pages.start + count as Page;
            self.set_places(filled.clone(), Place::Nowhere, Place::Memory);
            self.note_in(filled.clone());
            self.filled.set_run(filled.clone(), true);
            self.set_run_accessed(filled);
            let cost = self.spec.costs.minor_fault;
            self.processes[index].fault(count, cost);
        }
        count
    }

    /// Fills a page. Returns whether there was memory for it.
    fn fill_page(&mut self, index: usize, page: Page) -> bool {
        self.filled.set(page, true);
        match self.place[page as usize] {
            Place::Nowhere => {
                if self.place_page(page).is_none() {
                    return false;
                }
                self.set_place(page, Place::Memory);
                self.note_in(page..page + 1);
                let cost = self.spec.costs.minor_fault;
                self.processes[index].fault(1, cost);
            }
            Place::Memory => {}
            // A huge page had added this page, and it was reclaimed before its first use.
            Place::Swap | Place::File => self.refault(index, page),
        }
        self.set_accessed(page);
        true
    }

    pub(super) fn end_process(&mut self, index: usize, was_killed: bool) {
        let areas = self.processes[index].areas().to_vec();
        for area in areas {
            let pages = self.areas[area].pages.clone();
            pages.clone().for_each(|page| self.drop_page(page));
            for block in pages.step_by(BLOCK_PAGES as usize) {
                self.huge[(block / BLOCK) as usize] = false;
            }
        }
        let now = self.now;
        let process = &mut self.processes[index];
        process.huge_blocks = 0;
        process.end(now, was_killed);
        self.stats.oom_kills += u64::from(was_killed);
    }

    /// Moves a page from memory to swap or to its file, and schedules its next access. Returns the time that this
    /// takes.
    pub(super) fn evict(&mut self, page: Page) -> Result<Nanos, isotherm_policy::Refusal> {
        use isotherm_policy::Refusal;
        let at = self.area_at(page);
        let area = &self.areas[at];
        let (purpose, process, offset) = (area.spec.purpose, area.process, page - area.pages.start);
        let (place, cost) = match purpose {
            Use::Shared => return Err(Refusal::Shared),
            Use::Unreclaimable(why) => return Err(why.into()),
            Use::File => (Place::File, self.spec.costs.drop_page),
            Use::Anon => {
                let is_full = self.is_swap_full();
                let Some(swap) = &mut self.swap else {
                    return Err(Refusal::NoSwap);
                };
                if is_full || !swap.store(&mut self.memory) {
                    return Err(Refusal::SwapFull);
                }
                self.stats.swapped_out += 1;
                let costs = &self.spec.costs;
                let cost = match swap.kind() {
                    SwapKind::Zram { .. } => costs.compress,
                    SwapKind::Disk { .. } => costs.drop_page,
                };
                (Place::Swap, cost)
            }
        };
        self.note_out(page..page + 1);
        self.memory.free_page(page);
        self.set_place(page, place);
        // Pages that a huge page added and the program has never filled are never accessed.
        if self.filled.get(page) {
            let lot = self.draw();
            let process = &mut self.processes[process];
            let area = &self.areas[at];
            if let Some(at) = area.spec.pattern.next(offset, process.work(), lot) {
                process.returns.push(Reverse((at.0, page)));
            }
        }
        Ok(cost)
    }
}

/// Returns the number of unused pages, from the first on. Most often all are unused, which is found without a branch
/// for each page.
fn new_ones(places: &[Place]) -> u64 {
    let is_new = |place: &Place| *place == Place::Nowhere;
    let all = |places: &[Place]| places.iter().fold(true, |all, place| all & is_new(place));
    if all(places) {
        return places.len() as u64;
    }
    places.iter().take_while(|place| is_new(place)).count() as u64
}

impl super::SimProcess {
    /// Returns the moment of the next event, on the work clock, and the event.
    fn next(&self) -> (f64, Next) {
        let mut next = (self.work_end, Next::End);
        if let Some(Reverse((at, page))) = self.returns.peek()
            && (*at as f64) < next.0
        {
            next = (*at as f64, Next::Return(*page));
        }
        if let Some((at, pages)) = self.fills.front()
            && at.0 as f64 <= next.0
        {
            next = (at.0 as f64, Next::Fill(pages.clone()));
        }
        // Releases come after fills of the same time.
        if let Some((at, pages, share)) = self.returnings.front()
            && (at.0 as f64) < next.0
        {
            next = (at.0 as f64, Next::GiveBack(pages.clone(), *share));
        }
        next
    }
}
