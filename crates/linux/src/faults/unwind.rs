//! Finds the chain of calls from the registers and the top of a stack.
//!
//! Approach: for code of a file, the file's unwind information says where a frame ends (framehop, by `.eh_frame`).
//! Other code was generated at run time. Its frames are followed by frame pointers. Python's trampolines (`-X perf`)
//! are an exception: their frames are eight bytes and hold no frame pointer. A chain ends where it would leave the
//! mapped code: such a word is no return address.
//!
//! Source: framehop; `Python/asm_trampoline.S` of CPython.

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use framehop::{FrameAddress, Unwinder as _};
use isotherm_engine::Nanos;

use super::events::Fault;
use super::modules::{CodeArea, ModuleId, Modules};
use super::perf_map::PerfMap;
use crate::arch::{self, CallRegisters, UnwindCache, UnwindTables};
use crate::areas::MappedArea;
use crate::clock::monotonic;

/// Maximum number of frames of a chain, as in perf.
const FRAMES_MAX: usize = 127;
/// Maximum bytes of a stack: an address farther up belongs to no frame of it.
const STACK_MAX: u64 = 8 << 20;
/// Maximum number of processes whose code is known at a time.
const SPACES_MAX: usize = 8192;
/// Delay before a process's mappings are read again if unknown code runs. It starts at the minimum and doubles up to
/// the maximum while reading finds nothing new.
const AGAIN_MIN: Nanos = Nanos::from_millis(1);
const AGAIN_MAX: Nanos = Nanos::from_millis(2000);
/// Delay before a JIT's map is read again if there is code that it has not named.
const JIT_AGAIN: Nanos = Nanos::from_millis(10);

/// Location of a frame's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CodePlace {
    /// In a file, `offset` bytes after its beginning.
    File { module: ModuleId, offset: u64 },
    /// Generated at run time, with the name that the JIT gave it.
    Named(Arc<str>),
    /// Generated at run time at this address, and not named by the JIT (yet).
    Unnamed(u64),
}

/// A chain of calls, the innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub places: Vec<CodePlace>,
    /// Whether the chain continues but could not be followed further.
    pub is_cut: bool,
}

/// Finds chains of calls. Caches the code of the processes whose faults it unwound.
#[derive(Default)]
pub struct Unwinder {
    modules: Modules,
    spaces: HashMap<u32, Space>,
    cache: UnwindCache,
    /// Bytes of names from JITs, over all processes.
    jit_bytes: Arc<AtomicU64>,
}

struct Space {
    /// The address space, as a number.
    number: u64,
    areas: Vec<CodeArea>,
    unwinder: UnwindTables<Arc<[u8]>>,
    jit: PerfMap,
    /// Time by CLOCK_MONOTONIC at which the areas were read.
    read: Nanos,
    /// Minimum time before the areas are read again.
    retry_after: Nanos,
    jit_read: Nanos,
    used: Nanos,
}

impl Unwinder {
    /// Returns the files that places refer to.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Removes the cached code of a process.
    pub fn forget(&mut self, pid: u32) {
        self.spaces.remove(&pid);
    }

    /// Returns the current name of the code at each of these addresses of a process. It is `None` for code that was not
    /// generated at run time or has no name.
    pub fn jit_names(&mut self, pid: u32, addresses: &[u64]) -> Vec<Option<Arc<str>>> {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return vec![None; addresses.len()];
        };
        space.jit.update(pid);
        let names = addresses
            .iter()
            .map(|address| space.jit.name(*address).cloned());
        names.collect()
    }

    /// Returns an unwinder that knows a file as the code of process `fault.pid`, from `base` on.
    #[cfg(feature = "fuzz")]
    pub(super) fn of_file(file: &fs::File, base: u64, fault: &Fault) -> Self {
        let mut unwinder = Self::default();
        let mut space = Space::new(fault, PerfMap::default());
        let mut areas = unwinder.modules.map(file, base);
        areas.sort_by_key(|area| area.range.start);
        for area in areas {
            space.add(area, &unwinder.modules);
        }
        unwinder.spaces.insert(fault.pid, space);
        unwinder
    }

    /// Returns the calls that led to a fault.
    pub fn unwind(&mut self, fault: &Fault) -> Chain {
        let mut chain = Chain::default();
        let mut registers = arch::call_registers(fault.ip, fault.sp, fault.fp, fault.lr);
        let mut address = FrameAddress::from_instruction_pointer(fault.ip);
        loop {
            if chain.places.len() == FRAMES_MAX {
                chain.is_cut = true;
                return chain;
            }
            let Some((place, above)) = self.frame(fault, address, &mut registers) else {
                // A process that ended before its mappings were read has no chain.
                chain.is_cut = !chain.places.is_empty() || self.spaces.contains_key(&fault.pid);
                return chain;
            };
            chain.places.push(place);
            let next = match above {
                Some(Above::Caller(caller)) => FrameAddress::from_return_address(caller),
                Some(Above::Nothing) => return chain,
                None => None,
            };
            let Some(next) = next else {
                chain.is_cut = true;
                return chain;
            };
            address = next;
        }
    }

    /// Returns a frame and its caller, if that is known; `None` where no code is mapped.
    fn frame(
        &mut self,
        fault: &Fault,
        address: FrameAddress,
        registers: &mut CallRegisters,
    ) -> Option<(CodePlace, Option<Above>)> {
        let at = address.address_for_lookup();
        self.look_at(fault, at);
        let space = self.spaces.get_mut(&fault.pid)?;
        let is_jit = space.area(at)?.module.is_none();
        let place = space.place(fault, at);
        let mut read_stack = |at: u64| word(fault, at).ok_or(());
        if is_jit {
            let is_trampoline =
                matches!(&place, CodePlace::Named(name) if name.starts_with("py::"));
            let likely = above(space, registers, is_trampoline, &mut read_stack);
            let found = likely.or_else(|| above(space, registers, !is_trampoline, &mut read_stack));
            return Some((place, found));
        }
        // A malformed file must not crash the reader if framehop does not expect its content.
        let found = catch_unwind(AssertUnwindSafe(|| {
            (space.unwinder).unwind_frame(address, registers, &mut self.cache, &mut read_stack)
        }));
        let Ok(found) = found else {
            space.unwinder = UnwindTables::new();
            self.cache = UnwindCache::default();
            return Some((place, None));
        };
        let above = found.map(|caller| caller.map_or(Above::Nothing, Above::Caller));
        Some((place, above.ok()))
    }

    /// Reads the process's mappings if the code at `address` is unknown.
    fn look_at(&mut self, fault: &Fault, address: u64) {
        let now = fault.monotonic;
        let known = self.spaces.get_mut(&fault.pid);
        let known = known.filter(|space| space.number == fault.space);
        if let Some(space) = known {
            space.used = now;
            // A read after the fault has seen all mappings of that time.
            if space.area(address).is_some() || now < space.read + space.retry_after {
                return;
            }
        }
        let maps = fs::read(format!("/proc/{}/maps", fault.pid)).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        if maps.is_empty() {
            // The process has ended: the code known so far has to do.
            return;
        }
        self.make_room();
        let jit = self.spaces.remove(&fault.pid);
        let jit = jit.filter(|space| space.number == fault.space);
        let known = jit
            .as_ref()
            .map(|space| (space.areas.len(), space.retry_after));
        let mut space = Space::new(fault, PerfMap::beside(&self.jit_bytes));
        if let Some(before) = jit {
            (space.jit, space.jit_read) = (before.jit, before.jit_read);
        }
        // Most lines are about data, whose names need no memory.
        let is_code = |line: &&str| {
            let permissions = line.split(' ').nth(1).unwrap_or_default();
            permissions.as_bytes().get(2) == Some(&b'x')
        };
        let code = maps.lines().filter(is_code);
        for mapping in code.filter_map(MappedArea::parse) {
            let area = self.modules.area(fault.pid, &mapping);
            space.add(area, &self.modules);
        }
        if let Some((nr_areas, retry_after)) = known
            && nr_areas == space.areas.len()
        {
            space.retry_after = Nanos(retry_after.0 * 2).min(AGAIN_MAX);
        }
        self.spaces.insert(fault.pid, space);
    }

    fn make_room(&mut self) {
        if self.spaces.len() >= SPACES_MAX {
            let oldest = self.spaces.iter().min_by_key(|(_, space)| space.used);
            if let Some(pid) = oldest.map(|(pid, _)| *pid) {
                self.spaces.remove(&pid);
            }
        }
    }
}

impl Space {
    fn new(fault: &Fault, jit: PerfMap) -> Self {
        Self {
            number: fault.space,
            areas: Vec::new(),
            unwinder: UnwindTables::new(),
            jit,
            read: monotonic(),
            retry_after: AGAIN_MIN,
            jit_read: Nanos(0),
            used: fault.monotonic,
        }
    }

    fn add(&mut self, area: CodeArea, modules: &Modules) {
        if let Some(module) = modules.unwinding(&area) {
            self.unwinder.add_module(module);
        }
        self.areas.push(area);
    }

    fn area(&self, address: u64) -> Option<&CodeArea> {
        let at = self.areas.partition_point(|area| area.range.end <= address);
        self.areas
            .get(at)
            .filter(|area| area.range.start <= address)
    }

    fn place(&mut self, fault: &Fault, address: u64) -> CodePlace {
        let area = self.area(address);
        if let Some((range, offset, module)) =
            area.and_then(|area| Some((area.range, area.offset, area.module?)))
        {
            let offset = offset.saturating_add(address - range.start);
            return CodePlace::File { module, offset };
        }
        if self.jit.name(address).is_none() && fault.monotonic.since(self.jit_read) >= JIT_AGAIN {
            self.jit_read = fault.monotonic;
            self.jit.update(fault.pid);
        }
        let name = self.jit.name(address);
        name.map_or(CodePlace::Unnamed(address), |name| {
            CodePlace::Named(Arc::clone(name))
        })
    }
}

enum Above {
    Caller(u64),
    /// The frame has no caller.
    Nothing,
}

/// Finds the caller of code that no file describes by the frame pointer, and sets the registers to the caller's. The
/// frame of a Python trampoline lies at the stack pointer instead: a word of padding, or the caller's frame pointer,
/// and the return address.
fn above(
    space: &Space,
    registers: &mut CallRegisters,
    is_trampoline: bool,
    read_stack: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<Above> {
    let (sp, fp) = arch::frame_of(registers);
    if !is_trampoline && (fp < sp || fp % 8 != 0) {
        return None;
    }
    let at = if is_trampoline { sp } else { fp };
    let saved = read_stack(at).ok()?;
    let caller = arch::return_address(read_stack(at.checked_add(8)?).ok()?);
    if is_trampoline || caller != 0 {
        space.area(caller.checked_sub(1)?)?;
    }
    let is_frame = !is_trampoline || saved > sp && saved - sp < STACK_MAX;
    let above = at.checked_add(16)?;
    arch::enter_caller(registers, caller, above, is_frame.then_some(saved));
    Some(if caller == 0 {
        Above::Nothing
    } else {
        Above::Caller(caller)
    })
}

/// Returns a word of the stack, if the sample contains it.
fn word(fault: &Fault, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(fault.sp)?).ok()?;
    let bytes = fault.stack.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}
