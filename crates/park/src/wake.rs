//! Lets a parked group run, reads its pages back in the order of need, and learns that order.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isotherm_engine::{AddressRange, PAGE_SIZE};
use isotherm_linux::process::Process;
use serde::Serialize;

use crate::note::{Note, NotedProcess};
use crate::order::{bytes, pages, sorted, without};
use crate::park::{processes_of, unfreeze};

/// Pages that a thread reads at once: 1 MiB.
const PAGES_AT_ONCE: usize = 256;
/// Threads that read: compressed swap is bound by CPU time.
const THREADS_MAX: usize = 4;
/// Shortest time between two looks at which pages have returned.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A look may take this part of the time.
const LOOK_SHARE: u32 = 4;

/// Options of a wake.
#[derive(Clone, Copy, Debug)]
pub struct WakeSpec {
    /// Whether the noted order is left out, and learned anew.
    pub learns_anew: bool,
    /// Time for which returning pages are noted.
    pub watch: Duration,
}

/// Result of a wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WakeReport {
    /// Number of processes.
    pub nr_processes: u64,
    /// Bytes that were in memory before the group was parked, and not any more.
    pub parked_bytes: u64,
    /// Bytes of the noted order, which were read ahead unless they were there.
    pub prefetched_bytes: u64,
    /// Time that this took, in seconds. The group ran meanwhile, unless it was frozen.
    pub prefetch_seconds: f64,
    /// Bytes that the processes read back themselves, from when they were parked until the end of the watch.
    pub returned_bytes: u64,
}

/// Wakes the group at `group`. `goes_on` is asked from time to time, and ends the watch by returning `false`.
///
/// # Errors
/// Fails if the group has no processes, or was never parked.
pub fn wake(
    group: &Path,
    spec: WakeSpec,
    mut goes_on: impl FnMut() -> bool,
) -> anyhow::Result<WakeReport> {
    let processes = processes_of(group)?;
    let mut note = Note::read(group)?;
    anyhow::ensure!(
        !note.processes.is_empty() || note.is_frozen,
        "nothing is known of {}: `isotherm park` was not run on it",
        group.display()
    );
    let woken = wake_all(&processes, &mut note, spec, &mut goes_on);
    // Whatever went wrong, the group runs, and what was learned is kept.
    unfreeze(&mut note)?;
    note.write()?;
    woken
}

fn wake_all(
    processes: &[Process],
    note: &mut Note,
    spec: WakeSpec,
    goes_on: &mut impl FnMut() -> bool,
) -> anyhow::Result<WakeReport> {
    let mut waking: Vec<Waking> = Vec::new();
    for process in processes {
        let mut noted = note.of(process);
        if spec.learns_anew {
            noted.order.clear();
        }
        match Waking::new(process, noted) {
            Err(_) if !process.is_alive() => {}
            looked => waking.push(looked?),
        }
    }
    let mut report = WakeReport {
        nr_processes: waking.len() as u64,
        parked_bytes: { waking.iter() }
            .map(|of| bytes(&of.noted.resident) - of.present_bytes)
            .sum(),
        ..WakeReport::default()
    };
    let started = Instant::now();
    report.prefetched_bytes = prefetch(&waking, goes_on);
    report.prefetch_seconds = started.elapsed().as_secs_f64();
    unfreeze(note)?;
    let started = Instant::now();
    loop {
        let before = Instant::now();
        for of in &mut waking {
            report.returned_bytes += of.look();
        }
        let took = before.elapsed();
        if started.elapsed() >= spec.watch || !goes_on() {
            break;
        }
        std::thread::sleep(LOOK_EVERY.max(took * LOOK_SHARE));
    }
    note.processes = waking.into_iter().map(|of| of.noted).collect();
    Ok(report)
}

/// A process that wakes.
struct Waking<'a> {
    process: &'a Process,
    noted: NotedProcess,
    /// Bytes that had not left.
    present_bytes: u64,
    /// Pages that did not leave, or are in the order, by address.
    known: Vec<AddressRange>,
}

impl<'a> Waking<'a> {
    fn new(process: &'a Process, mut noted: NotedProcess) -> anyhow::Result<Self> {
        let present = process.present(&noted.resident)?;
        let present_bytes = bytes(&present);
        // What came back before this command saw that the group runs was needed first.
        let known = noted.remained.take().unwrap_or(present);
        Ok(Self {
            process,
            present_bytes,
            known: sorted(&[&known[..], &noted.order].concat()),
            noted,
        })
    }

    /// Appends the pages that have returned since the last look to the order, and returns their bytes.
    fn look(&mut self) -> u64 {
        // A process that has ended returns nothing.
        let Ok(present) = self.process.present(&self.noted.resident) else {
            return 0;
        };
        let new = without(&present, &self.known);
        if !new.is_empty() {
            self.known = sorted(&[&self.known[..], &new].concat());
            self.noted.order.extend(&new);
        }
        bytes(&new)
    }
}

/// Reads the noted pages of all processes, in their orders. Returns the bytes.
fn prefetch(waking: &[Waking], goes_on: &mut impl FnMut() -> bool) -> u64 {
    let parts: Vec<(&Process, Vec<u64>)> = waking
        .iter()
        .flat_map(|of| {
            let pages: Vec<u64> = pages(&of.noted.order).collect();
            let parts: Vec<Vec<u64>> = pages.chunks(PAGES_AT_ONCE).map(<[u64]>::to_vec).collect();
            parts.into_iter().map(|part| (of.process, part))
        })
        .collect();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let read = || {
        while let Some((process, pages)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_stopped.load(Ordering::Relaxed) {
                return;
            }
            process.fault_in(pages);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus.min(THREADS_MAX))
            .map(|_| scope.spawn(read))
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if !goes_on() {
                is_stopped.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let done = next.load(Ordering::Relaxed).min(parts.len());
    parts[..done]
        .iter()
        .map(|(_, pages)| pages.len() as u64 * PAGE_SIZE)
        .sum()
}
