//! Page faults with their stacks, from the sampler to the record.
//!
//! Problem: a program that starts touches memory millions of times a second, and the cost of sampling must stay within
//! a budget. The sampler knows processes by id, the monitor knows targets.
//!
//! Approach: the sampler is attached before the command starts, so it misses nothing of the command. Each processor has
//! a token bucket that holds some seconds' samples. The emptier the bucket, the fewer samples it grants; the first
//! burst is sampled in full, a long one ever more thinly. The measured cost of samples, here and in the kernel, sets
//! the number of samples a second. The contents of huge pages are read separately ([`huge`]). Faults of processes that
//! are no targets yet wait a few seconds for their target.
//!
//! Limits: the first touches of a new process of a control group or of the machine are sampled only if it descends from
//! a known process.

mod counting;
mod huge;
mod moved;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use indexmap::IndexSet;
use isotherm_config::{SessionSpec, StacksSpec, TargetSpec};
use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::clock::{Clock, process_cpu};
use isotherm_linux::faults::modules::ModuleId;
use isotherm_linux::faults::unwind::{Chain, CodePlace, Unwinder};
use isotherm_linux::faults::{Fault, FaultError, FaultSampler, SampledTargets, SamplerTotals};
use isotherm_record::stacks::{
    FRAMES_MAX, HUGE_PAGES_SETTING, MODULES_MAX, NO_STACK, SAMPLES_MAX, STACKS_MAX, THREADS_MAX,
};
use isotherm_record::{
    CodeModule, FaultSample, FrameSymbol, FrameSymbols, Item, MovedMemory, StackFrame, StackId,
    StackNode, StackSamples,
};
use isotherm_symbols::Symbolizer;

use crate::monitor::Monitor;
use counting::Counting;
use huge::HugePages;
use moved::Places;

/// Bounds of the sampling period: one of this many minor faults is sampled. Huge pages have no period: they are few.
const PERIOD_MIN: u64 = 3;
const PERIOD_MAX: u64 = 4099;
/// Samples a second of each processor: the first value and the limit.
const RATE_FIRST: f64 = 300.0;
const RATE_MAX: f64 = 5_000.0;
/// Calls of the sampler a second that the period aims at. A call without a sample costs a tenth of a sample.
const CALLS_A_SECOND: f64 = 5_000.0;
/// Interval at which the buffer is emptied.
const DRAIN: Nanos = Nanos::from_millis(100);
/// Cost of a sample to the program besides the time it takes: the evicted cache lines (measured by the example
/// `fault_cost` of isotherm-linux).
const SAMPLE_BESIDE: Nanos = Nanos(1_500);
/// Limit of the time spent on resolving names at the end.
const NAMING_MAX: Duration = Duration::from_secs(10);
/// Interval at which the rate is adapted.
const ADAPT: Nanos = Nanos::from_millis(1000);
/// Shares of the budget: for samples, for counting faults, and for reading huge pages.
const SAMPLES_SHARE: f64 = 0.4;
const COUNTING_SHARE: f64 = 0.4;
const HUGE_PAGES_SHARE: f64 = 0.2;
/// Limits of the age and the number of faults that are kept for a process that is no target.
const WAIT: Nanos = Nanos::from_millis(3000);
const WAITING_MAX: usize = 4096;

pub(crate) struct Stacks {
    sampler: FaultSampler,
    unwinder: Unwinder,
    tables: Tables,
    targets: BTreeMap<u32, Sampled>,
    waiting: VecDeque<Fault>,
    offset: u64,
    budget: StacksSpec,
    rate: f64,
    period: u64,
    cpu: Nanos,
    /// Sum of [`SAMPLE_BESIDE`] over all samples.
    beside: Nanos,
    /// Time at which faults are collected next.
    pub(crate) next_drain: Nanos,
    adapted: Adapted,
    /// Time of the last adaptation of the period, and the totals at that time.
    counted: (Nanos, SamplerTotals),
    counting: Counting,
    huge: HugePages,
    /// Faults that were missed while counting was off; each of the next samples represents them as well.
    missed: u64,
}

/// Time of the last adaptation of the rate, and the totals at that time.
#[derive(Default)]
struct Adapted {
    at: Nanos,
    cpu: Nanos,
    beside: Nanos,
    totals: SamplerTotals,
}

/// A target whose faults are sampled.
#[derive(Default)]
struct Sampled {
    id: TargetId,
    /// Number of the address space: the kernel's, and the record's.
    space: u64,
    space_number: u32,
    places: Places,
}

/// Numbers that the record uses for modules, frames, stacks and threads.
#[derive(Default)]
struct Tables {
    /// Modules written so far; the unwinder and the record number them alike.
    nr_modules: usize,
    frames: IndexSet<StackFrame>,
    stacks: IndexSet<StackNode>,
    threads: IndexSet<String>,
    /// Unnamed frames of code that was generated at run time, by process, each with its address.
    unnamed: BTreeMap<u32, Vec<(u32, u64)>>,
    new: StackSamples,
}

impl Stacks {
    /// Starts sampling if `spec` asks for it; call it before any process is started.
    pub(crate) fn start(spec: &SessionSpec, clock: Clock) -> Result<Option<Self>, FaultError> {
        let Some(budget) = spec.stacks else {
            return Ok(None);
        };
        let targets = || spec.contexts.iter().map(|context| &context.targets);
        let whose = SampledTargets {
            all: targets().any(TargetSpec::is_machine),
            children: targets().any(|targets| {
                targets.follows_children() || matches!(targets, TargetSpec::Cgroup(_))
            }),
        };
        let sampler = FaultSampler::attach(whose, PERIOD_MIN, RATE_FIRST as u64)?;
        Ok(Some(Self {
            sampler,
            unwinder: Unwinder::default(),
            tables: Tables::default(),
            targets: BTreeMap::new(),
            waiting: VecDeque::new(),
            offset: clock.offset(),
            budget,
            rate: RATE_FIRST,
            period: PERIOD_MIN,
            cpu: Nanos(0),
            beside: Nanos(0),
            next_drain: clock.now(),
            adapted: Adapted {
                at: clock.now(),
                ..Adapted::default()
            },
            counted: (clock.now(), SamplerTotals::default()),
            counting: Counting::new(budget.cpu_budget * COUNTING_SHARE, clock.now()),
            huge: HugePages::new(budget.cpu_budget * HUGE_PAGES_SHARE, clock.now()),
            missed: 0,
        }))
    }

    /// Returns the header entry that names the method of finding faults that map huge pages.
    pub(crate) fn huge_pages_setting(&self) -> (String, String) {
        let how = if self.sampler.sees_huge_pages() {
            "each fault, by tracing the kernel's function"
        } else {
            "by the page table, of the faults that are sampled"
        };
        (HUGE_PAGES_SETTING.to_owned(), how.to_owned())
    }

    /// File descriptor that becomes readable when the buffer must be emptied before `next_drain`.
    pub(crate) fn wakes(&self) -> BorrowedFd<'_> {
        self.sampler.wakes()
    }

    /// Collects the sampled faults of the targets of `monitor`, and reads some of their huge pages.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        monitor: &mut dyn Monitor,
        items: &mut Vec<Item>,
    ) -> Result<(), FaultError> {
        self.next_drain = now + DRAIN;
        let before = process_cpu();
        let live = monitor.live().into_iter();
        let live: Vec<(TargetId, u32)> = live.map(|(id, process)| (id, process.pid())).collect();
        self.follow(&live)?;
        items.extend(self.collect(now)?);
        self.forget(now, &live, items);
        self.set_period(now);
        self.cpu = self.cpu + process_cpu().since(before);
        if now.since(self.adapted.at) >= ADAPT {
            items.extend(self.jit_symbols(now));
            self.adapt(now)?;
        }
        self.huge.step(now, monitor, items);
        Ok(())
    }

    pub(crate) fn cpu(&self) -> Nanos {
        self.cpu + self.huge.cpu
    }

    /// Reads huge pages once more when recording ends, and resolves the names of frames.
    pub(crate) fn finish(&mut self, now: Nanos, monitor: &mut dyn Monitor, items: &mut Vec<Item>) {
        items.extend(self.huge.last(now, monitor));
        self.symbols(now, items);
    }

    /// Resolves the names of frames from the mapped files. Frames of an unreadable file stay without a name; the reader
    /// of the record may still resolve them.
    fn symbols(&mut self, now: Nanos, items: &mut Vec<Item>) {
        items.extend(self.jit_symbols(now));
        let modules = self.unwinder.modules();
        let mut by_module: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        for (number, frame) in (0..).zip(&self.tables.frames) {
            if let StackFrame::File { module, offset } = frame {
                let frames = by_module.entry(*module).or_default();
                frames.push((number, *offset));
            }
        }
        let symbolizer = Symbolizer::by_symbols();
        let started = Instant::now();
        let mut symbols = BTreeMap::new();
        for (module, frames) in by_module {
            let Some(file) = modules.file(ModuleId(module)) else {
                continue;
            };
            if started.elapsed() > NAMING_MAX {
                break;
            }
            let offsets: Vec<u64> = frames.iter().map(|(_, offset)| *offset).collect();
            if let Ok(names) = symbolizer.file_names(file, &offsets) {
                let names = frames.iter().zip(names);
                symbols.extend(names.filter_map(|((frame, _), name)| Some((*frame, name?))));
            }
        }
        if !symbols.is_empty() {
            items.push(Item::Symbols(FrameSymbols { time: now, symbols }));
        }
    }

    fn follow(&mut self, live: &[(TargetId, u32)]) -> Result<(), FaultError> {
        for (id, pid) in live {
            match self.targets.get_mut(pid) {
                Some(known) if known.id == *id => {}
                // The process id belongs to another process now.
                Some(known) => {
                    known.id = *id;
                    self.tables.new.begun_before.push(*id);
                }
                None => {
                    if !self.sampler.add(*pid)? {
                        self.tables.new.begun_before.push(*id);
                    }
                    self.targets.entry(*pid).or_default().id = *id;
                }
            }
        }
        Ok(())
    }

    /// Looks up names that JIT compilers have published since the last call. A frame without a name is looked up until
    /// it has one.
    fn jit_symbols(&mut self, now: Nanos) -> Option<Item> {
        let mut symbols = BTreeMap::new();
        for (pid, unnamed) in &mut self.tables.unnamed {
            let addresses: Vec<u64> = unnamed.iter().map(|(_, address)| *address).collect();
            let mut names = self.unwinder.jit_names(*pid, &addresses).into_iter();
            unnamed.retain(|(frame, _)| {
                let name = names.next().flatten();
                let symbol = name.as_ref().map(|name| FrameSymbol {
                    name: name.to_string(),
                    ..FrameSymbol::default()
                });
                symbols.extend(symbol.map(|symbol| (*frame, symbol)));
                name.is_none()
            });
        }
        let symbols = FrameSymbols { time: now, symbols };
        (!symbols.symbols.is_empty()).then_some(Item::Symbols(symbols))
    }

    /// Removes ended processes; their last faults have been collected.
    fn forget(&mut self, now: Nanos, live: &[(TargetId, u32)], items: &mut Vec<Item>) {
        if self.targets.len() == live.len() {
            return;
        }
        items.extend(self.jit_symbols(now));
        let alive: BTreeSet<u32> = live.iter().map(|(_, pid)| *pid).collect();
        self.targets.retain(|pid, _| {
            let stays = alive.contains(pid);
            if !stays {
                self.sampler.remove(*pid);
                self.unwinder.forget(*pid);
                self.tables.unnamed.remove(pid);
            }
            stays
        });
    }

    fn collect(&mut self, now: Nanos) -> Result<Option<Item>, FaultError> {
        let mut faults: Vec<Fault> = self.waiting.drain(..).collect();
        let nr_waiting = faults.len();
        self.sampler.take(&mut faults)?;
        let nr_new = (faults.len() - nr_waiting) as u64;
        self.beside = self.beside + Nanos(SAMPLE_BESIDE.0 * nr_new);
        for fault in faults {
            if self.tables.new.samples.len() >= SAMPLES_MAX {
                break;
            }
            let time = Nanos(fault.monotonic.0 + self.offset);
            if !self.targets.contains_key(&fault.pid) {
                // A process that is being added becomes a target soon; its code is read while the process exists.
                if now.since(time) < WAIT && self.waiting.len() < WAITING_MAX {
                    self.waiting.push_back(fault);
                }
                continue;
            }
            self.push(time, &fault);
        }
        self.tables.take_modules(&self.unwinder);
        let new = std::mem::take(&mut self.tables.new);
        if new.samples.is_empty() && new.modules.is_empty() && new.begun_before.is_empty() {
            return Ok(None);
        }
        Ok(Some(Item::Stacks(StackSamples {
            time: now,
            period: self.period,
            nr_lost: self.sampler.totals().nr_lost,
            not_counted: self.counting.off,
            ..new
        })))
    }

    fn push(&mut self, time: Nanos, fault: &Fault) {
        let chain = self.unwinder.unwind(fault);
        let Some(target) = self.targets.get_mut(&fault.pid) else {
            return;
        };
        let stack = self.tables.stack(target.id, fault.pid, &chain);
        let thread = self.tables.thread(&fault.thread);
        if target.space != fault.space {
            target.space_number += u32::from(target.space != 0);
            target.space = fault.space;
            target.places = Places::default();
        }
        if let Some(mapping) = &fault.anonymous {
            let moved = target.places.see(mapping, fault.address & !0xfff, time);
            self.tables.new.moved.extend(moved.map(|moved| MovedMemory {
                target: target.id,
                from: moved.from,
                to: moved.to,
                until: moved.until,
                before_sample: self.tables.new.samples.len() as u32,
            }));
        }
        self.tables.new.samples.push(FaultSample {
            time,
            target: target.id,
            space: target.space_number,
            address: fault.address & !0xfff,
            stack,
            thread,
            pages: fault.pages.saturating_add(self.missed),
            is_major: fault.is_major,
        });
    }

    /// Sets the period by the present number of faults a second.
    fn set_period(&mut self, now: Nanos) {
        let totals = self.sampler.totals();
        let (then, before) = std::mem::replace(&mut self.counted, (now, totals));
        let seconds = now.since(then).0 as f64 / 1e9;
        let nr_calls = totals.nr_calls.saturating_sub(before.nr_calls);
        let calls = nr_calls as f64 / seconds.max(0.01);
        self.missed = 0;
        let faults = nr_calls * self.period;
        if let Some(counts) = self.counting.update(now, faults) {
            // If the kernel refuses, faults stay counted.
            self.sampler.set_counting(counts).ok();
            if counts {
                self.missed = self.counting.missed(now);
            }
        }
        if faults == 0 && self.counting.off > Nanos(0) {
            // The rate of faults may be as high as before the pause.
            return;
        }
        let wanted = (self.period as f64 * calls / CALLS_A_SECOND) as u64;
        // The period is odd and varies from one interval to the next: a program may work in a fixed rhythm.
        let jitter = match wanted {
            0..16 => 0,
            _ => (now.0 >> 10) % 8,
        };
        let period = (wanted + jitter).clamp(PERIOD_MIN, PERIOD_MAX) | 1;
        // If the kernel refuses, the period stays.
        if period != self.period && self.sampler.set_period(period).is_ok() {
            self.period = period;
        }
    }

    /// Sets the rate by the cost of the last second.
    fn adapt(&mut self, now: Nanos) -> Result<(), FaultError> {
        let totals = self.sampler.totals();
        let before = &self.adapted;
        let seconds = now.since(before.at).0 as f64 / 1e9;
        let in_program = totals.took.since(before.totals.took) + self.beside.since(before.beside);
        let spent = self.cpu.since(before.cpu).0 + in_program.0;
        let share = spent as f64 / 1e9 / seconds;
        let by_cost = (self.budget.cpu_budget * SAMPLES_SHARE / share.max(1e-6)).clamp(0.25, 1.25);
        let rate = (self.rate * by_cost).clamp(1.0, RATE_MAX);
        if rate as u64 != self.rate as u64 {
            self.sampler.set_rate(rate as u64)?;
        }
        self.rate = rate;
        self.adapted = Adapted {
            at: now,
            cpu: self.cpu,
            beside: self.beside,
            totals,
        };
        Ok(())
    }
}

impl Tables {
    /// Returns the number of a chain. Callees that no longer get a number are left out.
    fn stack(&mut self, target: TargetId, pid: u32, chain: &Chain) -> StackId {
        let mut stack = NO_STACK;
        if chain.is_cut {
            stack = self.node(stack, StackFrame::Cut).unwrap_or(stack);
        }
        for place in chain.places.iter().rev() {
            let frame = match place {
                CodePlace::File { module, offset } if (module.0 as usize) < MODULES_MAX => {
                    StackFrame::File {
                        module: module.0,
                        offset: *offset,
                    }
                }
                CodePlace::Named(name) => StackFrame::Named(name.to_string()),
                CodePlace::Unnamed(address) => {
                    let address = *address;
                    let frame = StackFrame::Unnamed { target, address };
                    if !self.frames.contains(&frame) && self.frames.len() < FRAMES_MAX {
                        let unnamed = self.unnamed.entry(pid).or_default();
                        unnamed.push((self.frames.len() as u32, address));
                    }
                    frame
                }
                CodePlace::File { .. } => StackFrame::Cut,
            };
            let Some(node) = self.node(stack, frame) else {
                break;
            };
            stack = node;
        }
        stack
    }

    fn node(&mut self, caller: StackId, frame: StackFrame) -> Option<StackId> {
        let frame = number_of(&mut self.frames, &mut self.new.frames, frame, FRAMES_MAX)?;
        let node = StackNode { caller, frame };
        let number = number_of(&mut self.stacks, &mut self.new.stacks, node, STACKS_MAX)?;
        // Number 0 is `NO_STACK`.
        Some(StackId(number + 1))
    }

    /// Returns the number of a thread's name, or 0, the first thread's, if the table is full.
    fn thread(&mut self, name: &str) -> u32 {
        if let Some(number) = self.threads.get_index_of(name) {
            return number as u32;
        }
        let name = name.to_owned();
        number_of(&mut self.threads, &mut self.new.threads, name, THREADS_MAX).unwrap_or(0)
    }

    /// Adds the modules that the unwinder has found since the last call.
    fn take_modules(&mut self, unwinder: &Unwinder) {
        let modules = unwinder.modules();
        let all = modules.len().min(MODULES_MAX);
        for number in self.nr_modules..all {
            let name = modules.name(ModuleId(number as u32));
            self.new.modules.push(CodeModule {
                path: name.path.clone(),
                build_id: name.build_id.clone(),
            });
        }
        self.nr_modules = all;
    }
}

/// Returns the number of `value` in a table of at most `max` values; a new value is added to `new` as well.
fn number_of<T: Clone + Eq + Hash>(
    known: &mut IndexSet<T>,
    new: &mut Vec<T>,
    value: T,
    max: usize,
) -> Option<u32> {
    if let Some(number) = known.get_index_of(&value) {
        return Some(number as u32);
    }
    if known.len() >= max {
        return None;
    }
    new.push(value.clone());
    Some(known.insert_full(value).0 as u32)
}
