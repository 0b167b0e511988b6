//! A program of the generated family, as a process of its own (`isotherm-bench truth-case`, `vm-guest truth-case`).
//!
//! It maps its memory with a wide margin on both sides, so that no other mapping is merged with it. It populates the
//! memory as the case says, and then makes its touches until a signal ends it. Every batch of touches (at most
//! [`BATCH`]) is logged with the time before and after it.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::FromBytes as _;

use super::case::{Case, Populated, TouchOrder};
use super::journal::{Batch, Ready};
use super::layout::CaseLayout;

/// Untouched addresses on both sides of the memory.
const MARGIN: usize = 2 * BLOCK_SIZE as usize;
/// Longest time between two logged reads of the clock.
const BATCH: Duration = Duration::from_micros(250);
/// Touches between two reads of the clock.
const STRIDE: u64 = 64;
/// Shortest and longest sleep: they bound how often evenly spread touches are made, and how late a signal is noticed.
const TICK: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(20);
const WORDS: usize = PAGE_SIZE as usize / 8;

/// Program to run, and files for its reports
#[derive(Clone, Debug, clap::Args)]
pub struct ProgramOptions {
    /// Seed of the family
    #[arg(long)]
    pub seed: u64,
    /// Number of the program in the family
    #[arg(long)]
    pub index: u64,
    /// Most bytes that it may populate
    #[arg(long)]
    pub limit: u64,
    /// File for the program's report, as JSON, once it runs
    #[arg(long)]
    pub ready: PathBuf,
    /// File for the log of its touches
    #[arg(long)]
    pub journal: PathBuf,
}

/// Runs the program in this process until SIGINT or SIGTERM.
///
/// # Errors
/// Fails if its memory is not available, or a file cannot be written.
pub fn run(options: &ProgramOptions) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(because("cannot handle signals"))?;
    }
    let case = Case::draw(options.seed, options.index).within(options.limit);
    let mut program = Program::new(case)?;
    let journal = File::create(&options.journal).map_err(because("cannot create the journal"))?;
    let ready = program.ready()?;
    if case.fork {
        fork_sharer()?;
    }
    write_whole(&options.ready, &serde_json::to_vec(&ready)?)?;
    program.run(&mut BufWriter::new(journal), &stop)
}

fn because(what: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Starts a child that shares all memory, does nothing, and ends with its parent.
fn fork_sharer() -> io::Result<()> {
    match fork::fork().map_err(because("cannot fork"))? {
        fork::Fork::Parent(_) => Ok(()),
        fork::Fork::Child => {
            let orphaned = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
                .is_err()
                || nix::unistd::getppid().as_raw() == 1;
            if orphaned {
                std::process::exit(0);
            }
            loop {
                std::thread::park();
            }
        }
    }
}

/// Writes a file so that a reader sees all of it or none.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, bytes)
        .and_then(|()| std::fs::rename(&draft, path))
        .map_err(because("cannot say what it is"))
}

struct Program {
    case: Case,
    layout: CaseLayout,
    memory: MmapMut,
    /// Offset in the mapping at which the memory begins.
    skip: usize,
    zeros: Option<MmapMut>,
    without: Vec<String>,
    /// A time of the monotonic clock, and the same time in nanoseconds since the epoch.
    origin: (Instant, u64),
}

impl Program {
    fn new(case: Case) -> io::Result<Self> {
        let layout = CaseLayout::new(case);
        let bytes = layout.bytes() as usize;
        let mut memory = MmapOptions::new()
            .len(bytes + 3 * MARGIN)
            .map_anon()
            .map_err(because("cannot map the memory"))?;
        let advice = if case.huge {
            Advice::HugePage
        } else {
            Advice::NoHugePage
        };
        memory
            .advise(advice)
            .map_err(because("cannot set huge pages"))?;
        let start = memory.as_ptr() as usize + MARGIN;
        let skip = start.next_multiple_of(BLOCK_SIZE as usize) - memory.as_ptr() as usize;
        populate(&mut memory[skip..skip + bytes], case, &layout);
        let zeros = (case.zeros > 0)
            .then(|| MmapOptions::new().len(case.zeros as usize).map_anon())
            .transpose()
            .map_err(because("cannot map the zeros"))?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = epoch.map_err(io::Error::other)?.as_nanos() as u64;
        let mut program = Self {
            case,
            layout,
            memory,
            skip,
            zeros,
            without: Vec::new(),
            origin: (Instant::now(), epoch),
        };
        program.page_out();
        Ok(program)
    }

    /// Pages out the case's share of the memory, if swap is on.
    fn page_out(&mut self) {
        let pages = self.layout.paged_out();
        if pages.is_empty() {
            return;
        }
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.lines().count() < 2 {
            self.without
                .push("no paged-out share: no swap is on".into());
            return;
        }
        let start = (self.memory.as_ptr() as usize + self.skip) as u64;
        let runs = pages.chunk_by(|a, b| a + 1 == *b).map(|run| {
            let bytes = run.len() as u64 * PAGE_SIZE;
            format!("{} {bytes}\n", start + u64::from(run[0]) * PAGE_SIZE)
        });
        if let Err(error) = page_out(&runs.collect::<String>()) {
            self.without.push(format!("no paged-out share: {error}"));
        }
    }

    fn ready(&mut self) -> io::Result<Ready> {
        let start = (self.memory.as_ptr() as usize + self.skip) as u64;
        let memory = AddressRange::new(start, start + self.layout.bytes());
        let smaps =
            std::fs::read_to_string("/proc/self/smaps").map_err(because("cannot read smaps"))?;
        let huge = smaps_sum(&smaps, &[memory], "AnonHugePages:");
        let swapped = smaps_sum(&smaps, &[memory], "Swap:");
        if self.case.huge && huge < memory.len() {
            let share = huge as f64 / memory.len() as f64 * 100.0;
            self.without
                .push(format!("only {share:.0} % are huge pages"));
        }
        Ok(Ready {
            time: self.now(),
            case: self.case,
            memory,
            huge,
            swapped,
            without: self.without.clone(),
        })
    }

    fn now(&self) -> Nanos {
        Nanos(self.origin.1 + self.origin.0.elapsed().as_nanos() as u64)
    }

    fn run(mut self, journal: &mut BufWriter<File>, stop: &AtomicBool) -> io::Result<()> {
        let bytes = self.layout.bytes() as usize;
        let origin = self.origin;
        let words = <[AtomicU64]>::mut_from_bytes(&mut self.memory[self.skip..self.skip + bytes])
            .map_err(|error| io::Error::other(format!("memory is no words: {error}")))?;
        let mut phase = 0;
        let mut hot = self.layout.hot(phase);
        let mut pace = Pace::new(self.case, hot.len() as u64, origin.0);
        let mut moved = Instant::now();
        let mut zeroed: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            if self
                .case
                .phase
                .is_some_and(|p| moved.elapsed() >= Duration::from_nanos(p.0))
            {
                phase += 1;
                hot = self.layout.hot(phase);
                moved = Instant::now();
                pace.restart(moved);
            }
            if let Some(zeros) = &self.zeros
                && zeroed.is_none_or(|last| last.elapsed() >= pace.period.max(100 * TICK))
            {
                read_half(zeros);
                zeroed = Some(Instant::now());
            }
            let begin = Instant::now();
            let due = pace.due(begin);
            if pace.position == due {
                std::thread::sleep(pace.wait(begin).clamp(TICK, SLEEP_MAX));
                continue;
            }
            let from = pace.position;
            let mut end = begin;
            while pace.position < due && end - begin < BATCH {
                let to = (pace.position + STRIDE).min(due);
                for position in pace.position..to {
                    touch(
                        words,
                        hot[self.layout.at(position, hot.len())],
                        self.case.writes,
                    );
                }
                pace.position = to;
                end = Instant::now();
            }
            let time = |at: Instant| origin.1 + (at - origin.0).as_nanos() as u64;
            let batch = Batch {
                start: time(begin),
                end: time(end),
                from,
                to: pace.position,
                phase: u64::from(phase),
            };
            batch
                .write(journal)
                .map_err(because("cannot write the journal"))?;
        }
        journal.flush().map_err(because("cannot write the journal"))
    }
}

#[inline]
fn touch(words: &[AtomicU64], page: u32, write: bool) {
    // Each page is touched in another line, so that touches do not fight for one set of the cache.
    let page = page as usize;
    let word = &words[page * WORDS + page * 8 % WORDS];
    if write {
        word.store(page as u64, Ordering::Relaxed);
    } else {
        std::hint::black_box(word.load(Ordering::Relaxed));
    }
}

fn read_half(zeros: &[u8]) {
    for page in zeros.chunks(PAGE_SIZE as usize).step_by(2) {
        std::hint::black_box(page[0]);
    }
}

/// Pages out ranges of this process, given as `START BYTES` lines.
fn page_out(ranges: &str) -> io::Result<()> {
    let mut python = Command::new("python3")
        .args(["-c", include_str!("page_out.py")])
        .arg(std::process::id().to_string())
        .stdin(Stdio::piped())
        .spawn()
        .map_err(because("cannot start python3"))?;
    let input = python.stdin.take();
    let input = input.ok_or_else(|| io::Error::other("standard input is no pipe"))?;
    BufWriter::new(input)
        .write_all(ranges.as_bytes())
        .map_err(because("cannot write to python3"))?;
    let status = python.wait()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("python3 failed, with {status}")))
}

fn populate(memory: &mut [u8], case: Case, layout: &CaseLayout) {
    let whole = case.populated == Populated::All;
    for (page, bytes) in memory.chunks_mut(PAGE_SIZE as usize).enumerate() {
        if whole || layout.is_populated(page as u64) {
            bytes[0] = std::hint::black_box(1);
        }
    }
}

/// Rule by which touches become due.
struct Pace {
    order: TouchOrder,
    period: Duration,
    hot: u64,
    /// The position of the next touch in the sequence.
    position: u64,
    /// A time, and the position that was due then.
    base: (Instant, u64),
}

impl Pace {
    fn new(case: Case, hot: u64, now: Instant) -> Self {
        Self {
            order: case.order,
            period: Duration::from_nanos(case.period.0),
            hot,
            position: 0,
            base: (now, 0),
        }
    }

    /// Restarts the pace at `now`, at the beginning of a round through all hot pages.
    fn restart(&mut self, now: Instant) {
        self.position = self.position.next_multiple_of(self.hot);
        self.base = (now, self.position);
    }

    /// Returns the position up to which touches are due. Where the machine is too slow, touches of more than a period
    /// are left out.
    fn due(&mut self, now: Instant) -> u64 {
        let periods = (now - self.base.0).as_secs_f64() / self.period.as_secs_f64();
        let due = self.base.1
            + match self.order {
                TouchOrder::Sweep => (periods.floor() as u64 + 1) * self.hot,
                TouchOrder::Spread | TouchOrder::Random => (periods * self.hot as f64) as u64,
            };
        if due > self.position + 2 * self.hot {
            let ahead = match self.order {
                // The current round goes on to its end.
                TouchOrder::Sweep => self.position.next_multiple_of(self.hot),
                TouchOrder::Spread | TouchOrder::Random => self.position,
            };
            self.base = (now, ahead);
            return ahead
                + if self.order == TouchOrder::Sweep {
                    self.hot
                } else {
                    1
                };
        }
        due.max(self.position)
    }

    fn wait(&self, now: Instant) -> Duration {
        let next = self.position + 1 - self.base.1;
        let periods = match self.order {
            TouchOrder::Sweep => (next / self.hot) as f64,
            TouchOrder::Spread | TouchOrder::Random => next as f64 / self.hot as f64,
        };
        let at = self.base.0 + self.period.mul_f64(periods);
        at.saturating_duration_since(now)
    }
}

/// Returns the sum of a field of smaps, in bytes, over the mappings that share addresses with any of `ranges`.
pub fn smaps_sum(smaps: &str, ranges: &[AddressRange], field: &str) -> u64 {
    let (mut kib, mut inside) = (0, false);
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            let mut ranges = ranges.iter();
            inside = ranges.any(|range| range.intersection(mapping).is_some());
        } else if let Some(value) = line.strip_prefix(field)
            && inside
        {
            let value = value.trim().trim_end_matches(" kB");
            kib += value.parse::<u64>().unwrap_or(0);
        }
    }
    kib << 10
}

/// Returns the addresses in the first line of a mapping in `maps` or `smaps`; `None` for another line.
pub fn mapping(line: &str) -> Option<AddressRange> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    AddressRange::checked(address(start)?, address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(order: TouchOrder) -> (Pace, Instant) {
        let mut case = Case::draw(1, 1);
        case.order = order;
        case.period = Nanos::from_millis(100);
        let now = Instant::now();
        (Pace::new(case, 1000, now), now)
    }

    #[test]
    fn a_sweep_is_due_at_once_and_then_each_period() {
        let (mut pace, start) = pace(TouchOrder::Sweep);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.due(start), 1000);
        pace.position = 1000;
        assert_eq!(pace.due(at(99)), 1000);
        assert_eq!(pace.wait(at(40)), Duration::from_millis(60));
        assert_eq!(pace.due(at(100)), 2000);
    }

    #[test]
    fn spread_touches_are_due_one_by_one() {
        let (mut pace, start) = pace(TouchOrder::Spread);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.due(at(50)), 500);
        pace.position = 500;
        assert!((509..=510).contains(&pace.due(at(51))));
    }

    #[test]
    fn what_the_machine_is_too_slow_for_is_left_out() {
        for order in [TouchOrder::Sweep, TouchOrder::Spread] {
            let (mut pace, start) = pace(order);
            pace.position = 500;
            let due = pace.due(start + Duration::from_secs(10));
            assert!(due <= 2000, "{order:?}: {due}");
        }
    }

    #[test]
    fn a_field_is_summed_over_the_mappings_of_a_range() {
        let smaps = "1000-3000 rw-p 0 0 0\nSize: 8 kB\nSwap: 4 kB\nVmFlags: rd\n\
                     3000-4000 rw-p 0 0 0\nSwap: 8 kB\n8000-9000 rw-p 0 0 0\nSwap: 16 kB\n";
        let range = AddressRange::new(0x2000, 0x8000);
        assert_eq!(smaps_sum(smaps, &[range], "Swap:"), 12 << 10);
    }
}
