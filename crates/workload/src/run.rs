//! Runs a workload: allocates its regions, then makes its accesses, phase by phase.
//!
//! Problem: accesses must be so cheap that the memory, not the generator, sets their rate. They must really happen, and
//! must be counted exactly.
//!
//! Approach: regions are anonymous mappings seen as relaxed atomic words. Accesses are plain `mov`s on x86, which the
//! compiler may not leave out, and threads may share the words without `unsafe`. A pattern is picked for every [`RUN`]
//! accesses. The clock is read every [`RUN`] x [`RUNS_PER_CHECK`] of them (some 20 us), and nothing else enters the
//! kernel. Every count is of accesses made, over time measured.
//!
//! Limits: an access is eight bytes wide, a `rw` access two instructions (counted as one). Where
//! memory was paged out, a phase may end some milliseconds late, since faults make a check late.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isotherm_engine::units::format_bytes;
use isotherm_engine::{AddressRange, Nanos};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use thiserror::Error;

use crate::config::{Config, Phase};
use crate::layout;
use crate::truth::{Line, RegionPlace};

use memory::Memory;
use walk::Mix;

mod memory;
mod walk;

/// Accesses of one pattern before the next is picked: long enough to keep the pick's cost small,
/// short enough that shares hold within a sampling interval.
const RUN: u64 = 64;
/// Runs between two reads of the clock.
const RUNS_PER_CHECK: u64 = 64;
/// Interval at which an idle phase checks whether it is over.
const IDLE_CHECK: Duration = Duration::from_millis(10);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Backing of regions by huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// The system's setting applies.
    #[default]
    Default,
    /// Huge pages are asked for (`MADV_HUGEPAGE`).
    Always,
    /// Huge pages are refused (`MADV_NOHUGEPAGE`).
    Never,
}

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Rounds through all phases; with 0 they go on until stopped.
    pub rounds: u64,
    /// Threads that all make the phase's accesses.
    pub threads: usize,
    /// Seed of the order of random accesses.
    pub seed: u64,
    /// Backing of the regions.
    pub huge_pages: HugePages,
    /// Whether memory is made resident before the first phase, rather than as it is touched.
    pub populate: bool,
}

/// Event of a run, for an [`Observer`].
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadEvent<'a> {
    /// Memory is being populated.
    Populating {
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A line of truth: memory is ready, a phase starts, a phase ends.
    Truth(&'a Line),
    /// About 100 ms of a phase have passed.
    Progress {
        /// The phase's name.
        phase: &'a str,
        /// Time since the phase began.
        elapsed: Duration,
        /// Planned duration of the phase.
        duration: Duration,
        /// Accesses made since the phase began.
        operations: u64,
    },
    /// A phase has ended, with the exact time that its accesses took.
    Phase {
        /// The phase's name.
        phase: &'a str,
        /// Time it took.
        elapsed: Duration,
        /// Accesses made.
        operations: u64,
    },
}

/// Receives the events of a run.
pub trait Observer {
    /// Receives an event. An error ends the run.
    fn event(&mut self, event: &WorkloadEvent<'_>) -> io::Result<()>;
}

/// Why a workload cannot be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// There is not enough memory.
    #[error(
        "the regions take {}, but only {} of memory and swap are available; stop something or make the regions smaller",
        format_bytes(*.needed), format_bytes(*.available)
    )]
    Memory {
        /// Bytes that the regions take.
        needed: u64,
        /// `MemAvailable` and `SwapFree`.
        available: u64,
    },
    /// A mapping was refused.
    #[error("cannot map {} for region `{region}`; is `ulimit -v` or vm.overcommit_memory in the way?", format_bytes(*.bytes))]
    Map {
        /// The region.
        region: String,
        /// Its size.
        bytes: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Huge pages were refused.
    #[error(
        "cannot set huge pages for region `{region}`; does this kernel have CONFIG_TRANSPARENT_HUGEPAGE? `--hugepages default` does without"
    )]
    HugePages {
        /// The region.
        region: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file with initial data cannot be read.
    #[error("cannot read {} for the initial data of region `{region}`", .path.display())]
    Content {
        /// The region.
        region: String,
        /// The file.
        path: PathBuf,
        /// The error of the file.
        #[source]
        source: io::Error,
    },
    /// A file with initial data is empty.
    #[error("{} is empty and cannot fill region `{region}`; write `none` for zeroes", .path.display())]
    NoContent {
        /// The region.
        region: String,
        /// The file.
        path: PathBuf,
    },
    /// The observer failed.
    #[error("cannot write the workload's output")]
    Output(#[source] io::Error),
}

/// Runs `config` until it is done or `stop` is set.
pub fn run(
    config: &Config,
    options: RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<(), RunError> {
    assert!(options.threads > 0, "the caller checks this");
    let mut memories = memory::allocate(config, options, stop, observer)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let places: Vec<RegionPlace> = std::iter::zip(&config.regions, &memories)
        .map(|(region, memory)| RegionPlace {
            name: region.name.clone(),
            range: memory.range(),
        })
        .collect();
    let ranges: Vec<AddressRange> = places.iter().map(|place| place.range).collect();
    let ready = Line::Ready {
        time_ns: now(),
        pid: std::process::id(),
        seed: options.seed,
        regions: places,
    };
    tell(observer, &WorkloadEvent::Truth(&ready))?;
    let words: Vec<&[AtomicU64]> = memories.iter_mut().map(Memory::words).collect();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) && (options.rounds == 0 || round < options.rounds) {
        for phase in &config.phases {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let start = Line::Start {
                time_ns: now(),
                phase: phase.name.clone(),
                round,
                temperature: layout::temperature(config, phase, &ranges),
            };
            tell(observer, &WorkloadEvent::Truth(&start))?;
            let (operations, elapsed) =
                run_phase(config, phase, &words, options, round, stop, observer)
                    .map_err(RunError::Output)?;
            let end = Line::End {
                time_ns: now(),
                phase: phase.name.clone(),
                round,
                operations,
                interrupted: stop.load(Ordering::Relaxed),
            };
            tell(observer, &WorkloadEvent::Truth(&end))?;
            let ended = WorkloadEvent::Phase {
                phase: &phase.name,
                elapsed,
                operations,
            };
            tell(observer, &ended)?;
        }
        round += 1;
    }
    Ok(())
}

fn tell(observer: &mut dyn Observer, event: &WorkloadEvent<'_>) -> Result<(), RunError> {
    observer.event(event).map_err(RunError::Output)
}

/// Makes a phase's accesses. The calling thread is the first of the workers, so that by default there is only one
/// thread.
fn run_phase(
    config: &Config,
    phase: &Phase,
    words: &[&[AtomicU64]],
    options: RunOptions,
    round: u64,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> io::Result<(u64, Duration)> {
    let crew = Crew {
        begun: Instant::now(),
        duration: Duration::from_millis(phase.duration_ms),
        counts: (0..options.threads).map(|_| AtomicU64::new(0)).collect(),
        failed: AtomicBool::new(false),
        stop,
    };
    let mut next = PROGRESS_INTERVAL;
    let mut tell = |elapsed| {
        if elapsed < next {
            return Ok(());
        }
        next = elapsed + PROGRESS_INTERVAL;
        observer.event(&WorkloadEvent::Progress {
            phase: &phase.name,
            elapsed,
            duration: crew.duration,
            operations: crew.operations(),
        })
    };
    std::thread::scope(|scope| {
        let worker = |thread: usize| {
            let seed = options.seed ^ (thread as u64) << 48 ^ round << 16;
            let mix = Mix::new(config, phase, words, thread, options.threads);
            (mix, Pcg64Mcg::seed_from_u64(seed))
        };
        for thread in 1..options.threads {
            let (mix, random) = worker(thread);
            let crew = &crew;
            scope.spawn(move || crew.work(thread, mix, random, |_| Ok(())));
        }
        let (mix, random) = worker(0);
        let result = crew.work(0, mix, random, &mut tell);
        crew.failed.store(result.is_err(), Ordering::Relaxed);
        result
    })?;
    Ok((crew.operations(), crew.begun.elapsed()))
}

struct Crew<'a> {
    begun: Instant,
    duration: Duration,
    counts: Vec<AtomicU64>,
    failed: AtomicBool,
    stop: &'a AtomicBool,
}

impl Crew<'_> {
    fn operations(&self) -> u64 {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn work(
        &self,
        thread: usize,
        mut mix: Mix<'_>,
        mut random: Pcg64Mcg,
        mut tell: impl FnMut(Duration) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut operations = 0;
        loop {
            if mix.is_idle() {
                let left = self.duration.saturating_sub(self.begun.elapsed());
                std::thread::sleep(left.min(IDLE_CHECK));
            } else {
                for _ in 0..RUNS_PER_CHECK {
                    mix.run(&mut random, RUN);
                }
                operations += RUN * RUNS_PER_CHECK;
            }
            self.counts[thread].store(operations, Ordering::Relaxed);
            let elapsed = self.begun.elapsed();
            if elapsed >= self.duration
                || self.stop.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed)
            {
                return Ok(());
            }
            tell(elapsed)?;
        }
    }
}

/// Returns the nanoseconds since the Unix epoch, the record's clock.
pub fn now() -> Nanos {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .into()
}
