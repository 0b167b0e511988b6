//! Checks that every page is in exactly one place.

use super::{BLOCK, Place, SimMachine, SwapKind};
use crate::memory::{BLOCK_PAGES, Owner, Page};

impl SimMachine {
    /// Checks frames and lists ([`crate::memory::Memory::check`]), pages' places, swap's contents and pool, the
    /// counters of processes, and huge pages. Returns the first inconsistency as the error. Slow: for tests, after
    /// every event.
    pub fn check(&self) -> Result<(), String> {
        self.memory.check()?;
        let mut in_swap = 0;
        for (page, place) in self.place.iter().enumerate() {
            let has_frame = self.memory.frame_of(page as Page).is_some();
            if has_frame != (*place == Place::Memory) {
                return Err(format!(
                    "page {page} is said to be in {place:?}, and has a frame: {has_frame}"
                ));
            }
            in_swap += u64::from(*place == Place::Swap);
        }
        let stored = self.swap.as_ref().map_or(0, super::Swap::stored);
        if stored != in_swap {
            return Err(format!("{in_swap} pages are in swap, which has {stored}"));
        }
        self.check_pool(stored)?;
        self.check_processes()?;
        self.check_holdings()?;
        self.check_huge()
    }

    fn check_pool(&self, stored: u64) -> Result<(), String> {
        let Some(swap) = &self.swap else {
            return Ok(());
        };
        let wanted = match swap.kind() {
            SwapKind::Zram { ratio } => (stored as f64 / ratio).ceil() as u64,
            SwapKind::Disk { .. } => 0,
        };
        let zones = self.memory.zones();
        let frames = zones.iter().flat_map(|zone| zone.start..zone.end());
        let kernel = frames.filter(|frame| self.memory.owner(*frame) == Owner::Kernel);
        let kernel = kernel.count() as u64;
        if (swap.pool_pages(), kernel) != (wanted, wanted) {
            return Err(format!(
                "{stored} pages in swap need {wanted} frames; it has {}, the kernel {kernel}",
                swap.pool_pages()
            ));
        }
        Ok(())
    }

    fn check_processes(&self) -> Result<(), String> {
        for (index, process) in self.processes.iter().enumerate() {
            let areas = process.areas().iter();
            let pages = areas.flat_map(|area| self.areas[*area].pages.clone());
            let of = |wanted: Place| {
                let pages = pages.clone();
                pages
                    .filter(|page| self.place[*page as usize] == wanted)
                    .count() as u64
                    * 4096
            };
            let (rss, swapped) = (of(Place::Memory), of(Place::Swap));
            if (rss, swapped) != (process.rss(), process.swapped()) {
                return Err(format!(
                    "process {index} has {rss} and {swapped} bytes, {} and {} are counted",
                    process.rss(),
                    process.swapped()
                ));
            }
            if !process.is_running() && rss + swapped > 0 {
                return Err(format!("process {index} has ended, and has memory"));
            }
        }
        Ok(())
    }

    fn check_huge(&self) -> Result<(), String> {
        for (block, _) in self.huge.iter().enumerate().filter(|(_, huge)| **huge) {
            let first = block as Page * BLOCK;
            let frame = self.memory.frame_of(first);
            let is_whole = (0..BLOCK_PAGES)
                .all(|i| self.memory.frame_of(first + i as Page) == frame.map(|frame| frame + i));
            if frame.is_none_or(|frame| frame % BLOCK_PAGES != 0) || !is_whole {
                return Err(format!("block {block} is not one huge page"));
            }
        }
        Ok(())
    }
}
