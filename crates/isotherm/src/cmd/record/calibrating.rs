//! Measures the cost of acting on the target while it is recorded page by page, for a replay of the record.
//!
//! Periodically, a few pages that the last scan found are copied. At the end a helper process measures with the copies
//! ([`isotherm_linux::calibrate`]). It was started early, with the privileges that the recorder has given up meanwhile.
//! The copies are not kept.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use isotherm_config::{MonitorSpec, SessionSpec, TargetSpec};
use isotherm_engine::calibration::Calibration;
use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_record::{CalibrationSample, Item, PageSnapshot};
use isotherm_session::Session;
use tracing::info;

/// Pages that are copied each time, and the period of copying.
const PAGES_PER_LOOK: u64 = 8;
const LOOK_EVERY: Nanos = Nanos::from_millis(500);
/// Pages that are kept: 2 MiB.
const PAGES_MAX: usize = 512;
/// Period of checks which pages other processes map as well.
const SHARED_EVERY: Nanos = Nanos::from_millis(30_000);
/// Measuring that takes longer than this is announced.
const QUICK: Duration = Duration::from_millis(500);

/// The helper process, while there is one.
type Helper = Arc<Mutex<Option<Child>>>;

/// Copies of pages, and the thread that will measure with them.
pub(super) struct Calibrating {
    /// The thread that measures once it has received the content.
    worker: JoinHandle<anyhow::Result<Calibration>>,
    to_worker: Sender<Vec<u8>>,
    helper: Helper,
    content: Vec<u8>,
    nr_copied: usize,
    next: Nanos,
    random: u64,
    refuse_huge: Vec<TargetId>,
    /// Mappings that others map as well, and the time of the next check.
    shared: BTreeMap<u32, Vec<AddressRange>>,
    next_shared: Nanos,
}

impl Calibrating {
    /// Starts the thread for a record that can be replayed; else returns `None`.
    pub(super) fn start(spec: &SessionSpec) -> Option<Self> {
        let [context] = &spec.contexts[..] else {
            return None;
        };
        let is_machine = context.targets.is_machine() || context.targets.is_physical();
        let is_trace = matches!(context.monitor, MonitorSpec::Pages(_)) && context.acting.is_none();
        let is_real = !matches!(context.targets, TargetSpec::Simulated);
        if !is_trace || !is_real || is_machine {
            return None;
        }
        let (to_worker, content) = std::sync::mpsc::channel();
        // A separate thread keeps the privileges that measuring takes. The recorder also searches the children of its
        // own thread for orphans of a command, and must not find the helper there.
        let helper = Helper::default();
        let of_worker = Arc::clone(&helper);
        let worker = std::thread::spawn(move || measure(&content, &of_worker));
        Some(Self {
            worker,
            to_worker,
            helper,
            content: Vec::new(),
            nr_copied: 0,
            next: Nanos(0),
            random: spec.seed | 1,
            refuse_huge: Vec::new(),
            shared: BTreeMap::new(),
            next_shared: Nanos(0),
        })
    }

    /// Copies some of the pages that a scan has found, if it is time.
    pub(super) fn look(&mut self, session: &Session, items: &[Item]) {
        let now = session.now();
        if now < self.next {
            return;
        }
        let is_shared_due = now >= self.next_shared;
        for item in items {
            let Item::Pages(pages) = item else { continue };
            self.next = now + LOOK_EVERY;
            self.copy_from(session, pages);
            if is_shared_due {
                self.next_shared = now + SHARED_EVERY;
                self.ask_shared(session, pages.target);
            }
        }
    }

    fn ask_shared(&mut self, session: &Session, target: TargetId) {
        let live = session.live();
        let process = live.iter().find(|(id, _)| *id == target);
        if let Some(shared) = process.and_then(|(_, process)| process.shared_mappings()) {
            self.shared.insert(target.0, shared);
        }
    }

    fn copy_from(&mut self, session: &Session, pages: &PageSnapshot) {
        let live = session.live();
        let Some((_, process)) = live.iter().find(|(id, _)| *id == pages.target) else {
            return;
        };
        if process.refuses_huge() == Some(true) && !self.refuse_huge.contains(&pages.target) {
            self.refuse_huge.push(pages.target);
        }
        let mut page = [0; PAGE_SIZE as usize];
        for _ in 0..PAGES_PER_LOOK {
            if pages.blocks.is_empty() {
                return;
            }
            let block = &pages.blocks[self.draw(pages.blocks.len())];
            let at = self.draw(PAGES_PER_BLOCK);
            let address = block.block + at as u64 * PAGE_SIZE;
            if bits::has(&block.present, at) && process.copy(address, &mut page) {
                self.keep(&page);
            }
        }
    }

    /// Keeps a page, or not: each copied page is kept with the same probability (Vitter, "Random sampling with a
    /// reservoir", 1985, algorithm R).
    fn keep(&mut self, page: &[u8]) {
        self.nr_copied += 1;
        if self.content.len() / page.len() < PAGES_MAX {
            self.content.extend_from_slice(page);
            return;
        }
        let place = self.draw(self.nr_copied) * page.len();
        if let Some(kept) = self.content.get_mut(place..place + page.len()) {
            kept.copy_from_slice(page);
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % below
    }

    /// Measures, unless the user ends that. Returns the result, or the reason why there is none.
    pub(super) fn finish(mut self, now: Nanos) -> Item {
        let (refuse_huge, shared) = (self.refuse_huge, self.shared);
        // If the thread does not receive it, it has failed and reports why.
        self.to_worker.send(std::mem::take(&mut self.content)).ok();
        wait_for(&self.worker, &self.helper);
        let measured = self.worker.join();
        let measured = measured.unwrap_or_else(|_| Err(anyhow!("measuring has panicked")));
        match measured {
            Ok(costs) => Item::Calibration(CalibrationSample {
                time: now,
                refuse_huge,
                shared,
                costs: Box::new(costs),
            }),
            Err(error) => Item::Note {
                time: now,
                text: format!("what acting on it would cost was not measured: {error:#}"),
            },
        }
    }
}

/// Waits until measuring has ended. Prints what it waits for, and lets a signal end it.
fn wait_for<T>(worker: &JoinHandle<T>, helper: &Helper) {
    let stop = crate::stop::by_signals();
    let started = Instant::now();
    let mut is_announced = false;
    while !worker.is_finished() {
        if !is_announced && started.elapsed() > QUICK {
            is_announced = true;
            info!(
                "the recording is complete; measuring what acting on this memory would cost (some 10 s; Ctrl-C leaves \
                 it out)"
            );
        }
        let is_stopped = stop.as_ref().is_ok_and(|stop| stop.load(Ordering::Relaxed));
        if let Some(helper) = &mut *helper.lock().unwrap_or_else(PoisonError::into_inner)
            && is_stopped
        {
            isotherm_linux::process::terminate(helper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn measure(content: &Receiver<Vec<u8>>, shown: &Helper) -> anyhow::Result<Calibration> {
    // Ctrl-C is for the recorder only.
    let mut helper = Command::new("/proc/self/exe")
        .args(["calibrate", "--content", "--json"])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the process that measures")?;
    // If nothing was recorded, nothing is sent, and the helper ends with its input.
    let content = content.recv().unwrap_or_default();
    let mut input = helper
        .stdin
        .take()
        .context("its standard input is not open")?;
    // The helper reports its own failures.
    let written = input.write_all(&content);
    drop(input);
    let (mut said, mut error) = (String::new(), String::new());
    let (output, complaints) = (helper.stdout.take(), helper.stderr.take());
    let lock = || shown.lock().unwrap_or_else(PoisonError::into_inner);
    *lock() = Some(helper);
    if let Some(mut output) = output {
        output.read_to_string(&mut said)?;
    }
    if let Some(mut complaints) = complaints {
        complaints.read_to_string(&mut error)?;
    }
    let helper = lock().take();
    let status = helper.context("it was taken away")?.wait()?;
    ensure!(status.signal().is_none(), "it was ended");
    let error = error.trim().lines().last().unwrap_or("").to_owned();
    ensure!(status.success(), "{error}");
    written?;
    Ok(serde_json::from_str(&said)?)
}
