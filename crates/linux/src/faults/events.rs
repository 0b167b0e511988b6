//! The sampler: events, the program that they run, and the buffer between it and us.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use isotherm_engine::{AddressRange, Nanos};
use libbpf_rs::{Link, MapCore as _, MapFlags, Object, RingBuffer, RingBufferBuilder};
use thiserror::Error;

use super::perf_event::{self, Counted};
use crate::probe::{Walker, WalkerError, object};
use crate::process;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/faults.bpf.o"));
/// Of an event, what stands before the stack: `struct fault`.
const HEAD_BYTES: usize = WORDS * 8 + 2 * 4 + COMM_BYTES;
const WORDS: usize = 11;
const COMM_BYTES: usize = 16;
/// Tokens that a processor may save: a program that has just started touches much at once.
const BURST_S: u64 = 5;
/// Pages between two samples while there are tokens enough: not the number of anything that programs do.
const PAGES_MIN: u64 = 17;
/// The program that sees huge pages.
const HUGE: &str = "fault_huge";
/// Whether the kernel calls who traces its functions.
const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";
/// Every major fault is one: it has waited for longer than a sample takes.
const MAJOR_PERIOD: u64 = 1;

/// Why faults cannot be sampled.
#[derive(Debug, Error)]
pub enum FaultError {
    /// The program could not be loaded.
    #[error("cannot load the program that takes stacks of page faults: {0}")]
    Load(String),
    /// Nobody can be watched.
    #[error("page faults are not seen here: {0}")]
    Watch(#[source] WalkerError),
    /// The kernel counts no faults for us.
    #[error(
        "cannot count page faults (perf_event_open, CPU {cpu}): {source}; it needs CAP_PERFMON (or root), and \
         in a container a seccomp profile that lets perf_event_open pass"
    )]
    Event { cpu: u32, source: io::Error },
    /// Process ids here are not the kernel's.
    #[error(
        "stacks of page faults are told by the kernel's process ids, and this is a container with its own; run it in \
         the host's (Kubernetes: hostPID: true, Docker: --pid=host)"
    )]
    PidNamespace,
    /// The program could not be attached, or a map not be used.
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

/// Whose faults are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledTargets {
    /// All processes' but our own.
    pub all: bool,
    /// Those of targets' children, too, from their first instruction on.
    pub children: bool,
}

/// A private anonymous mapping, as it was at a fault. What stays with memory that mremap moves: `memory`, and for
/// each page how far it is from `range.start`, plus `origin` (copy_vma in the kernel's mm/vma.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnonymousMapping {
    /// Where it is.
    pub range: AddressRange,
    /// Where its start was when it was made.
    pub origin: u64,
    /// The kernel's anon_vma, as a number. Mappings that were split from one another have the same.
    pub memory: u64,
}

/// A fault that was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// By CLOCK_MONOTONIC.
    pub monotonic: Nanos,
    /// Whose fault it is.
    pub pid: u32,
    /// The thread's name.
    pub thread: String,
    /// The address that was touched.
    pub address: u64,
    /// The address space, as a number: another one after exec.
    pub space: u64,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer, if the program keeps one.
    pub bp: u64,
    /// Pages that it stands for: those that were mapped since the last sample of this processor.
    pub pages: u64,
    /// The mapping, where it is private and anonymous, and known.
    pub anonymous: Option<AnonymousMapping>,
    /// It waited for a device or for swap.
    pub is_major: bool,
    /// The stack from `sp` on.
    pub stack: Vec<u8>,
}

/// Samples page faults for as long as it lives.
pub struct FaultSampler {
    buffer: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<Fault>>>,
    object: Object,
    minor: Vec<OwnedFd>,
    whose: SampledTargets,
    sees_huge_pages: bool,
    /// Of [`Walker::layout`]; zeros: not known.
    tables: (u64, u64, u32),
    /// Processes that were there before.
    older: BTreeSet<u32>,
    /// Detached when dropped.
    links: Vec<Link>,
}

impl FaultSampler {
    /// Begins to sample every `period`-th fault of the children that this process starts from now on, and of
    /// whoever [is added](Self::add); `a_second` of each processor at most.
    ///
    /// # Errors
    /// Where this kernel or our privileges do not allow it.
    pub fn attach(whose: SampledTargets, period: u64, a_second: u64) -> Result<Self, FaultError> {
        // To tell huge pages; who watches cannot do without either.
        let mut walker = Walker::new();
        if walker.as_ref().is_ok_and(|walker| !walker.sees_all_ids()) {
            return Err(FaultError::PidNamespace);
        }
        // Not every kernel lets functions be traced.
        let object = object::load(OBJECT).or_else(|_| object::load_without(OBJECT, HUGE));
        let object = match (object, &mut walker) {
            (Ok(object), _) => object,
            // It says better what is lacking.
            (Err(_), Err(_)) => return Err(walker.err().map(FaultError::Watch).expect("refused")),
            (Err(said), Ok(_)) => return Err(FaultError::Load(said)),
        };
        let walker = walker.as_mut().ok();
        let taken = Rc::new(RefCell::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let sink = Rc::clone(&taken);
        let map = object.maps().find(|map| map.name() == "events");
        let map = map.expect("a map of our object");
        builder
            .add(&map, move |bytes: &[u8]| {
                sink.borrow_mut().extend(parse(bytes));
                0
            })
            .map_err(FaultError::bpf("use the buffer"))?;
        let buffer = builder.build().map_err(FaultError::bpf("use the buffer"))?;
        let mut sampler = Self {
            buffer,
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
                (Counted::Minor, "fault_minor", period),
                (Counted::Major, "fault_major", MAJOR_PERIOD),
            ] {
                let event = match perf_event::open(what, cpu, period) {
                    // It is offline.
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
                // The link closes it (bpf_link_perf_detach in libbpf).
                let _ = of_link.into_raw_fd();
                self.links.push(link);
                if what == Counted::Minor {
                    self.minor.push(event);
                }
            }
        }
        Ok(())
    }

    /// Whether faults that map huge pages are each seen. Otherwise they count like all others.
    pub fn sees_huge_pages(&self) -> bool {
        self.sees_huge_pages
    }

    /// Where that is refused, as where functions are not traced or somebody else changes this one, we do without.
    fn see_huge_pages(&mut self) {
        // With it off the kernel lets programs be attached, and never calls them.
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

    /// Samples the faults of `pid`, too. Yields whether they have been sampled since it was made.
    ///
    /// # Errors
    /// If there are too many.
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

    /// Samples those of `pid` no longer.
    pub fn remove(&self, pid: u32) {
        // It may have gone by itself.
        self.map("targets").delete(&pid.to_ne_bytes()).ok();
    }

    /// At most so many samples of each processor `a_second`, from now on.
    ///
    /// # Errors
    /// If the kernel does not take it.
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
        let (page_offset, frame_mask, top_shift) = self.tables;
        let tables = [page_offset, frame_mask, top_shift.into()];
        configuration.extend(tables.map(u64::to_ne_bytes).concat());
        self.map("configuration")
            .update(&0_u32.to_ne_bytes(), &configuration, MapFlags::ANY)
            .map_err(FaultError::bpf("set the rate"))
    }

    /// Every `period`-th minor fault from now on.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.minor
            .iter()
            .try_for_each(|event| perf_event::set_period(event, period))
    }

    /// Readable once the buffer begins to fill.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        // SAFETY: the buffer's own descriptor, which is open for as long as it is.
        unsafe { BorrowedFd::borrow_raw(self.buffer.epoll_fd()) }
    }

    /// Whether minor faults are counted, and so sampled, from now on: what counting them takes, every fault pays.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn set_counting(&self, counts: bool) -> io::Result<()> {
        self.minor
            .iter()
            .try_for_each(|event| perf_event::set_counting(event, counts))
    }

    /// Appends what was sampled since the last time.
    ///
    /// # Errors
    /// If the buffer cannot be read.
    pub fn take(&mut self, faults: &mut Vec<Fault>) -> Result<(), FaultError> {
        self.buffer
            .consume()
            .map_err(FaultError::bpf("read the buffer"))?;
        faults.append(&mut self.taken.borrow_mut());
        Ok(())
    }

    /// What it took so far.
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
        let map = self.object.maps().find(|map| map.name() == name);
        map.expect("a map of our object")
    }
}

/// What sampling came to since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerTotals {
    /// Samples that found no room.
    pub nr_lost: u64,
    /// Time that samples took on the processors of those who were sampled.
    pub took: Nanos,
    /// How often targets' faults were looked at.
    pub nr_calls: u64,
}

/// `struct fault` of faults.bpf.c.
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
        bp,
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
        bp,
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
