//! The sampler: perf events, the BPF program that they run, and the ring buffer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use isotherm_engine::{AddressRange, Nanos};
use libbpf_rs::{Link, MapCore as _, MapFlags, Object, RingBuffer};
use thiserror::Error;

use super::perf_event::{self, MAJOR, MINOR};
use crate::probe::{Walker, WalkerError, access_flags, object};
use crate::process;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/faults.bpf.o"));
/// Bytes of a `struct fault` before the stack.
const HEAD_BYTES: usize = WORDS * 8 + 2 * 4 + COMM_BYTES;
const WORDS: usize = 12;
const COMM_BYTES: usize = 16;
/// Seconds of tokens that a processor may save: a program that has just started touches much memory at once.
const BURST_S: u64 = 5;
/// Pages between two samples while tokens are plentiful. A prime, so that it coincides with no pattern of a program.
const PAGES_MIN: u64 = 17;
/// Name of the program that samples huge page faults.
const HUGE: &str = "fault_huge";
/// Setting that makes the kernel call programs attached to its functions.
const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";
/// Sampling period of major faults: each is sampled, as it waits longer than a sample takes.
const MAJOR_PERIOD: u64 = 1;

/// Reason why faults cannot be sampled.
#[derive(Debug, Error)]
pub enum FaultError {
    #[error("cannot load the program that takes stacks of page faults: {0}")]
    Load(String),
    #[error(
        "stacks of page faults would mislead here: this processor leaves accessed bits to the kernel, so that each access \
         to a watched page is a fault"
    )]
    AccessFaults,
    #[error("page faults are not seen here: {0}")]
    Watch(#[source] WalkerError),
    #[error(
        "cannot count page faults (perf_event_open, CPU {cpu}): {source}; it needs CAP_PERFMON (or root), and \
         in a container a seccomp profile that lets perf_event_open pass"
    )]
    Event { cpu: u32, source: io::Error },
    #[error(
        "stacks of page faults go by the kernel's process ids, and this is a container with its own; run it in \
         the host's (Kubernetes: hostPID: true, Docker: --pid=host)"
    )]
    PidNamespace,
    #[error("cannot {what} for samples of page faults: {source}")]
    Bpf {
        what: &'static str,
        source: libbpf_rs::Error,
    },
}

impl FaultError {
    fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { what, source }
    }
}

/// Selection of the processes whose faults are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledTargets {
    /// Sample all processes except our own.
    pub all: bool,
    /// Sample the children of targets as well, from their first instruction on.
    pub children: bool,
}

/// A private anonymous mapping at the time of a fault. mremap keeps `memory`, and for each page its distance from
/// `range.start` plus `origin` (copy_vma in the kernel's mm/vma.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnonymousMapping {
    pub range: AddressRange,
    /// Start address of the mapping when it was created.
    pub origin: u64,
    /// The kernel's anon_vma, as a number. Mappings that were split from one another share it.
    pub memory: u64,
}

/// A sampled fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Time of the fault by CLOCK_MONOTONIC.
    pub monotonic: Nanos,
    pub pid: u32,
    pub thread: String,
    pub address: u64,
    /// The address space, as a number; exec changes it.
    pub space: u64,
    pub ip: u64,
    pub sp: u64,
    /// Frame pointer, if the program keeps one.
    pub fp: u64,
    /// Link register; 0 on x86-64, which has none.
    pub lr: u64,
    /// Pages that the sample represents: those mapped on this processor since its last sample.
    pub pages: u64,
    /// The mapping, if it is private and anonymous, and known.
    pub anonymous: Option<AnonymousMapping>,
    /// Whether the fault waited for a device or for swap.
    pub is_major: bool,
    /// The stack from `sp` on.
    pub stack: Vec<u8>,
}

/// Samples page faults until it is dropped.
pub struct FaultSampler {
    buffer: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<Fault>>>,
    object: Object,
    minor: Vec<OwnedFd>,
    whose: SampledTargets,
    sees_huge_pages: bool,
    /// [`Walker::layout`]; zeros if unknown.
    tables: [u64; 4],
    /// Processes that existed before the sampler.
    older: BTreeSet<u32>,
    /// Links that detach when dropped.
    links: Vec<Link>,
}

impl FaultSampler {
    /// Samples every `period`-th fault of the children that this process starts from now on, and of the processes
    /// [added](Self::add) later. Takes at most `a_second` samples per second on each processor.
    pub fn attach(whose: SampledTargets, period: u64, a_second: u64) -> Result<Self, FaultError> {
        // The walker's layout is needed to detect huge pages; sampling works without it.
        let mut walker = Walker::new();
        if walker.as_ref().is_ok_and(|walker| !walker.sees_all_ids) {
            return Err(FaultError::PidNamespace);
        }
        if access_flags().by_faults {
            return Err(FaultError::AccessFaults);
        }
        // Not every kernel allows programs on its functions.
        let object = object::load(OBJECT).or_else(|_| object::load_without(OBJECT, HUGE));
        let object = match (object, &mut walker) {
            (Ok(object), _) => object,
            // The walker's error names the missing privilege more precisely.
            (Err(_), Err(_)) => return Err(walker.err().map(FaultError::Watch).expect("refused")),
            (Err(said), Ok(_)) => return Err(FaultError::Load(said)),
        };
        let walker = walker.as_mut().ok();
        let taken = Rc::new(RefCell::new(Vec::new()));
        let sink: Rc<RefCell<Vec<Fault>>> = Rc::clone(&taken);
        let keep = move |bytes: &[u8]| sink.borrow_mut().extend(parse(bytes));
        let buffer = object::ring_buffer(&object, keep);
        let mut sampler = Self {
            buffer: buffer.map_err(FaultError::bpf("use the buffer"))?,
            taken,
            object,
            minor: Vec::new(),
            whose,
            sees_huge_pages: false,
            tables: walker.map(Walker::layout).unwrap_or_default(),
            older: BTreeSet::new(),
            links: Vec::new(),
        };
        sampler.see_huge_pages();
        sampler.set_rate(a_second)?;
        sampler.count(period)?;
        sampler.older = process::all().collect();
        Ok(sampler)
    }

    fn count(&mut self, period: u64) -> Result<(), FaultError> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(FaultError::bpf("count processors"))?;
        for cpu in 0..cpus as u32 {
            for (what, program, period) in [
                (MINOR, "fault_minor", period),
                (MAJOR, "fault_major", MAJOR_PERIOD),
            ] {
                let event = match perf_event::open(what, cpu, period) {
                    // The processor is offline.
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                    event => event.map_err(|source| FaultError::Event { cpu, source })?,
                };
                let mut programs = self.object.progs_mut();
                let found = programs.find(|found| found.name() == program);
                let of_link = event.try_clone();
                let of_link = of_link.map_err(|source| FaultError::Event { cpu, source })?;
                let link = found
                    .expect("a program of our object")
                    .attach_perf_event(of_link.as_raw_fd())
                    .map_err(FaultError::bpf("attach to faults"))?;
                // The link closes the descriptor (bpf_link_perf_detach in libbpf).
                let _ = of_link.into_raw_fd();
                self.links.push(link);
                if what == MINOR {
                    self.minor.push(event);
                }
            }
        }
        Ok(())
    }

    /// Whether each fault that maps a huge page is seen. Otherwise such faults are counted like all others.
    pub fn sees_huge_pages(&self) -> bool {
        self.sees_huge_pages
    }

    /// Attaches the program for huge pages. Sampling continues without it if that fails: functions may not be
    /// traceable, or another tracer may modify this one.
    fn see_huge_pages(&mut self) {
        // With ftrace off the kernel lets programs attach but never calls them.
        if fs::read_to_string(FTRACE).is_ok_and(|on| on.trim() == "0") {
            return;
        }
        let mut programs = self.object.progs_mut();
        let found = programs.find(|found| found.name() == HUGE && found.autoload());
        let link = found.and_then(|program| program.attach_trace().ok());
        drop(programs);
        self.sees_huge_pages = link.is_some();
        self.links.extend(link);
    }

    /// Samples the faults of `pid` as well. Returns whether they have been sampled since the process was created.
    pub fn add(&self, pid: u32) -> Result<bool, FaultError> {
        let map = self.map("targets");
        let key = pid.to_ne_bytes();
        let is_known = || matches!(map.lookup(&key, MapFlags::ANY), Ok(Some(_)));
        let is_ours = || process::parent_of(pid) == Some(std::process::id());
        let is_whole = !self.older.contains(&pid) && (self.whose.all || is_known() || is_ours());
        map.update(&pid.to_ne_bytes(), &0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(FaultError::bpf("name a process"))?;
        Ok(is_whole)
    }

    /// Stops sampling the faults of `pid`.
    pub fn remove(&self, pid: u32) {
        // The process may have ended and been removed already.
        self.map("targets").delete(&pid.to_ne_bytes()).ok();
    }

    /// Limits the samples of each processor to `a_second` per second from now on.
    pub fn set_rate(&mut self, a_second: u64) -> Result<(), FaultError> {
        let second = 1_000_000_000;
        let token_ns = second / a_second.max(1);
        let numbers = [token_ns, BURST_S * second, PAGES_MIN];
        let mut configuration = numbers.map(u64::to_ne_bytes).concat();
        let flags = [
            std::process::id(),
            self.whose.all.into(),
            self.whose.children.into(),
            self.sees_huge_pages.into(),
        ];
        configuration.extend(flags.map(u32::to_ne_bytes).concat());
        configuration.extend(self.tables.map(u64::to_ne_bytes).concat());
        self.map("configuration")
            .update(&0_u32.to_ne_bytes(), &configuration, MapFlags::ANY)
            .map_err(FaultError::bpf("set the rate"))
    }

    /// Samples every `period`-th minor fault from now on.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.minor
            .iter()
            .try_for_each(|event| perf_event::set_period(event, period))
    }

    /// Returns a descriptor that becomes readable once the buffer begins to fill.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        // SAFETY: the buffer's own descriptor, which stays open as long as the buffer lives.
        unsafe { BorrowedFd::borrow_raw(self.buffer.epoll_fd()) }
    }

    /// Turns counting, and so sampling, of minor faults on or off. Counting has a cost at every fault.
    pub fn set_counting(&self, counts: bool) -> io::Result<()> {
        self.minor
            .iter()
            .try_for_each(|event| perf_event::set_counting(event, counts))
    }

    /// Appends the faults sampled since the last call.
    pub fn take(&mut self, faults: &mut Vec<Fault>) -> Result<(), FaultError> {
        self.buffer
            .consume()
            .map_err(FaultError::bpf("read the buffer"))?;
        faults.append(&mut self.taken.borrow_mut());
        Ok(())
    }

    /// Returns the totals of sampling so far.
    pub fn totals(&self) -> SamplerTotals {
        let states = self
            .map("states")
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .ok()
            .flatten()
            .unwrap_or_default();
        let mut totals = SamplerTotals::default();
        for state in &states {
            let words = state.as_chunks::<8>().0;
            let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
            totals.nr_lost += word(3);
            totals.took = totals.took + Nanos(word(4));
            totals.nr_calls += word(5);
        }
        totals
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        object::map(&self.object, name)
    }
}

/// Totals of sampling since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerTotals {
    /// Samples lost because the buffer was full.
    pub nr_lost: u64,
    /// CPU time that sampling took in the sampled processes.
    pub took: Nanos,
    /// Number of times that the program examined a fault of a target.
    pub nr_calls: u64,
}

/// Parses a `struct fault` of faults.bpf.c.
fn parse(bytes: &[u8]) -> Option<Fault> {
    let (head, stack) = bytes.split_at_checked(HEAD_BYTES)?;
    let (words, rest) = head.split_at(WORDS * 8);
    let words: [u64; WORDS] =
        std::array::from_fn(|i| u64::from_ne_bytes(words.as_chunks::<8>().0[i]));
    let (numbers, comm) = rest.split_at(8);
    let number = |at: usize| u32::from_ne_bytes(numbers.as_chunks::<4>().0[at]);
    let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    let [
        time,
        address,
        space,
        ip,
        sp,
        fp,
        lr,
        pages,
        start,
        end,
        origin,
        memory,
    ] = words;
    let mapping = AddressRange::checked(start, end).filter(|_| memory != 0);
    Some(Fault {
        monotonic: Nanos(time),
        pid: number(0),
        thread: String::from_utf8_lossy(comm).into_owned(),
        address,
        space,
        ip,
        sp,
        fp,
        lr,
        pages,
        anonymous: mapping.map(|range| AnonymousMapping {
            range,
            origin,
            memory,
        }),
        is_major: number(1) != 0,
        stack: stack.to_vec(),
    })
}
