//! The regions' memory: mapped, with the requested backing, and populated.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE};
use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::FromBytes;

use super::{HugePages, Observer, RunError, RunOptions, WorkloadEvent, tell};
use crate::config::{Config, Region};

/// Bytes populated between two checks of `stop`.
const CHUNK: usize = 64 << 20;

pub(super) struct Memory {
    map: MmapMut,
    /// Offset of the region in the mapping. The region starts at a huge page's boundary, so that pieces of 2 MiB are
    /// whole huge pages. Kernels before 6.7 do not align mappings themselves.
    skip: usize,
    len: usize,
}

impl Memory {
    fn map(region: &Region, huge_pages: HugePages) -> Result<Self, RunError> {
        let len = region.bytes() as usize;
        let align = if region.bytes() >= BLOCK_SIZE {
            BLOCK_SIZE
        } else {
            PAGE_SIZE
        } as usize;
        let map = MmapOptions::new()
            .len(len + align - PAGE_SIZE as usize)
            .map_anon()
            .map_err(|source| RunError::Map {
                region: region.name.clone(),
                bytes: region.bytes(),
                source,
            })?;
        let advice = match huge_pages {
            HugePages::Default => None,
            HugePages::Always => Some(Advice::HugePage),
            HugePages::Never => Some(Advice::NoHugePage),
        };
        if let Some(advice) = advice {
            map.advise(advice).map_err(|source| RunError::HugePages {
                region: region.name.clone(),
                source,
            })?;
        }
        let start = map.as_ptr() as usize;
        Ok(Self {
            skip: start.next_multiple_of(align) - start,
            map,
            len,
        })
    }

    pub(super) fn range(&self) -> AddressRange {
        let start = (self.map.as_ptr() as usize + self.skip) as u64;
        AddressRange::new(start, start + self.len as u64)
    }

    pub(super) fn words(&mut self) -> &[AtomicU64] {
        let bytes = &mut self.map[self.skip..self.skip + self.len];
        <[AtomicU64]>::mut_from_bytes(bytes).expect("whole pages are whole, aligned words")
    }

    fn populate(&mut self, start: usize, len: usize) {
        let from = self.skip + start;
        // Kernels before 5.14 do not know this advice: pages are then written one by one, which is slower.
        if self
            .map
            .advise_range(Advice::PopulateWrite, from, len)
            .is_err()
        {
            for page in self.map[from..from + len].chunks_mut(PAGE_SIZE as usize) {
                page[0] = std::hint::black_box(0);
            }
        }
    }

    fn fill(&mut self, content: &[u8]) {
        for part in self.map[self.skip..self.skip + self.len].chunks_mut(content.len()) {
            part.copy_from_slice(&content[..part.len()]);
        }
    }
}

/// Maps all regions and, if `options` say so, populates them. Once `stop` is set the rest stays unpopulated.
pub(super) fn allocate(
    config: &Config,
    options: RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Vec<Memory>, RunError> {
    let total = config.total_bytes();
    // Populating more than is available would end in the out-of-memory killer, perhaps of another program.
    if let Some(available) = available().filter(|available| *available < total) {
        return Err(RunError::Memory {
            needed: total,
            available,
        });
    }
    let mut memories = Vec::with_capacity(config.regions.len());
    let mut done = 0;
    for region in &config.regions {
        let mut memory = Memory::map(region, options.huge_pages)?;
        let populated = if options.populate { memory.len } else { 0 };
        for start in (0..populated).step_by(CHUNK) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let len = CHUNK.min(memory.len - start);
            memory.populate(start, len);
            done += len as u64;
            tell(observer, &WorkloadEvent::Populating { done, total })?;
        }
        if let Some(content) = content(region)? {
            memory.fill(&content);
        }
        memories.push(memory);
    }
    Ok(memories)
}

/// Reads the region's initial data, no more than fits.
fn content(region: &Region) -> Result<Option<Vec<u8>>, RunError> {
    let Some(path) = region.content.clone() else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let name = region.name.clone();
    match File::open(&path).and_then(|file| file.take(region.bytes()).read_to_end(&mut bytes)) {
        Err(source) => Err(RunError::Content {
            region: name,
            path,
            source,
        }),
        Ok(0) => Err(RunError::NoContent { region: name, path }),
        Ok(_) => Ok(Some(bytes)),
    }
}

/// Returns the available memory and swap, or `None` where the system does not say.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    Some(field("MemAvailable:")? + field("SwapFree:").unwrap_or(0))
}
