//! Compares zram and zswap on this machine, with copies of programs' pages.
//!
//! Problem: which of them keeps less memory and reads back faster depends on the content, the kernel's algorithms and
//! the processor.
//!
//! Approach: a process of our own holds the copies. In turn they are paged out to a zram device, and through zswap to a
//! file, both made for this. Each has the highest priority of all while it is measured, so that the copies go there. What
//! others page out meanwhile goes there too, and is read back when the area goes. All is noted first ([`SwapSetup`]), so
//! the next command undoes it after a SIGKILL.
//!
//! Limits: times are of the wall clock, so a busy machine is measured busy. Others' page-outs count in the ratio.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use isotherm_engine::calibration::{Measured, SwapMeasured};
use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE};

use super::subject::Subject;
use super::{CalibrationError, HELD, Result};
use crate::process::Process;
use crate::swap::{
    PRIORITY_MAX, Part, Setting, SwapArea, SwapFile, SwapSetup, ZramDevice, ZramOptions, held_by,
    held_by_zswap, impossible, swap_off, swap_on,
};

const ROUNDS: usize = 5;

/// Measures zram, and zswap before a file at the path `scratch`, unless that is the reason why no file may be made.
/// `content` are whole pages; `subject` starts the program that holds them. Ends early if `is_stopped` says so. Fails
/// if measuring is impossible, or if something could not be undone. A kind that fails alone has its reason.
pub fn compare_swap(
    content: &[u8],
    scratch: Result<&Path, String>,
    compressor: Option<&str>,
    subject: Command,
    is_stopped: &dyn Fn() -> bool,
) -> Result<[SwapMeasured; 2]> {
    if content.is_empty() || !(content.len() as u64).is_multiple_of(PAGE_SIZE) {
        return Err(CalibrationError::Content(content.len()));
    }
    if let Some(first) = SwapArea::all()
        .first()
        .filter(|of| of.priority >= PRIORITY_MAX)
    {
        let why = "it would take what is measured, as it has the highest priority; swap it on with a lower one";
        let tried = format!("measure beside {}", first.path.display());
        return Err(impossible(tried, why).into());
    }
    let bytes = (content.len() as u64).max(HELD);
    let subject = Subject::start(subject, content, bytes.next_multiple_of(BLOCK_SIZE))?;
    let mut bench = SwapBench {
        process: Process::open(subject.pid())?,
        subject,
        setup: SwapSetup::open()?,
        enabled: None,
    };
    let result = bench.compare(scratch, compressor, is_stopped);
    bench.setup.abandon()?;
    Ok(result)
}

struct SwapBench {
    subject: Subject,
    process: Process,
    setup: SwapSetup,
    /// The switch of zswap, where the kernel has one.
    enabled: Option<Setting>,
}

/// A kind of swap, and its rounds: ratio, share kept in memory, time out and time back.
struct Kind {
    name: &'static str,
    area: Result<PathBuf, String>,
    /// `mm_stat` of the zram device.
    mm_stat: Option<PathBuf>,
    rounds: Vec<[f64; 4]>,
}

impl Kind {
    fn new(name: &'static str, area: Result<PathBuf>, mm_stat: Option<PathBuf>) -> Self {
        Self {
            name,
            area: area.map_err(|error| error.to_string()),
            mm_stat,
            rounds: Vec::new(),
        }
    }

    /// Returns the bytes that it holds, and the memory that these take.
    fn held(&self) -> Option<(u64, u64)> {
        self.mm_stat.as_deref().map_or_else(held_by_zswap, held_by)
    }

    fn measured(self, compressor: String) -> SwapMeasured {
        let column = |at: usize| {
            let known = self.rounds.iter().map(|round| round[at]);
            Measured::of(&known.filter(|value| value.is_finite()).collect::<Vec<_>>())
        };
        SwapMeasured {
            kind: self.name.to_owned(),
            compressor,
            ratio: column(0),
            kept_in_memory: column(1),
            page_out_ns: column(2),
            fault_in_ns: column(3),
            unknown: self.area.err(),
        }
    }
}

impl SwapBench {
    fn compare(
        &mut self,
        scratch: Result<&Path, String>,
        compressor: Option<&str>,
        is_stopped: &dyn Fn() -> bool,
    ) -> [SwapMeasured; 2] {
        // Without a switch there is no zswap, which would take what is meant for zram.
        let switch = self.setup.begin_setting("enabled");
        let lacks = switch.as_ref().err().map(ToString::to_string);
        self.enabled = switch.ok();
        let device = self.make_zram();
        let mm_stat = device.as_ref().ok().map(|device| device.sys("mm_stat"));
        let zram = Kind::new("zram", device.map(|device| device.device()), mm_stat);
        let mut zswap = Kind::new("zswap", Ok(PathBuf::new()), None);
        zswap.area = match (lacks, scratch) {
            (Some(why), _) | (None, Err(why)) => Err(why),
            (None, Ok(path)) => self
                .make_zswap(path, compressor)
                .map_err(|error| error.to_string()),
        };
        let mut kinds = [zram, zswap];
        for round in 0..ROUNDS {
            for at in [round % 2, 1 - round % 2] {
                let kind = &mut kinds[at];
                let done = kind.area.clone().map(|area| self.round(kind, &area));
                if let Ok(Err(error)) = done {
                    kind.area = Err(error.to_string());
                }
            }
            if is_stopped() {
                break;
            }
        }
        let [zram, zswap] = kinds;
        let by = zram.area.as_deref().ok().map(SwapArea::compression_of);
        let zram = zram.measured(by.unwrap_or_default());
        [zram, zswap.measured(self.setup.value("compressor"))]
    }

    fn make_zram(&mut self) -> Result<ZramDevice> {
        let options = ZramOptions {
            bytes: 2 * self.subject.memory.len(),
            ..ZramOptions::default()
        };
        let device = ZramDevice::new(options.bytes)?;
        self.setup.begin(Part::Zram(device.clone()))?;
        device.make(&options)?;
        Ok(device)
    }

    fn make_zswap(&mut self, scratch: &Path, compressor: Option<&str>) -> Result<PathBuf> {
        if let Some(name) = compressor {
            let setting = self.setup.begin_setting("compressor")?;
            self.setup.set(&setting, name)?;
        }
        let file = SwapFile::new(scratch, 2 * self.subject.memory.len())?;
        self.setup.begin(Part::File(file.clone()))?;
        file.make()?;
        Ok(file.path)
    }

    /// Measures once, and takes the area out of use in any case.
    fn round(&mut self, kind: &mut Kind, area: &Path) -> Result<()> {
        self.subject.touch(false)?;
        if let Some(setting) = &self.enabled {
            let is_zswap = kind.mm_stat.is_none();
            self.setup.set(setting, if is_zswap { "Y" } else { "N" })?;
        }
        swap_on(area, Some(PRIORITY_MAX))?;
        let measured = self.page_out_and_back(kind);
        swap_off(area)?;
        kind.rounds.push(measured?);
        Ok(())
    }

    fn page_out_and_back(&mut self, kind: &Kind) -> Result<[f64; 4]> {
        let memory = self.subject.memory;
        let starts = (memory.start..memory.end).step_by(BLOCK_SIZE as usize);
        let blocks = starts.map(|start| AddressRange::new(start, start + BLOCK_SIZE));
        let (blocks, mut answers, mut swapped) =
            (blocks.collect::<Vec<_>>(), Vec::new(), Vec::new());
        let (before, began) = (kind.held(), Instant::now());
        self.process
            .advise(&blocks, libc::MADV_PAGEOUT, &mut answers)?;
        let (out, after) = (began.elapsed(), kind.held());
        let (map, wanted) = (self.process.page_map(), memory.len() / PAGE_SIZE);
        map.and_then(|map| map.swapped(memory.start, wanted, &mut swapped))
            .map_err(|_| CalibrationError::Unseen(self.process.pid()))?;
        let began = Instant::now();
        self.subject.touch(false)?;
        let back = began.elapsed();
        let nr = swapped.len() as f64;
        if nr < wanted as f64 / 2.0 {
            let why = format!(
                "only {nr} went; does a limit of this command's own control group forbid more?"
            );
            return Err(impossible(format!("page out {wanted} pages"), why).into());
        }
        let [held, taken] = before.zip(after).map_or([f64::NAN; 2], |(before, after)| {
            let more = |before: u64, after: u64| after.saturating_sub(before) as f64;
            [more(before.0, after.0), more(before.1, after.1)]
        });
        let kept = held / (nr * PAGE_SIZE as f64);
        // Not by `min`, which makes 1 of what is unknown. Others' pages may count.
        let kept = if kept > 1.0 { 1.0 } else { kept };
        Ok([
            held / taken,
            kept,
            out.as_nanos() as f64 / nr,
            back.as_nanos() as f64 / nr,
        ])
    }
}
