//! Page faults with the user stacks that led to them, and their encoding in a record.
//!
//! Problem: stacks are long and similar, and a record is a stream that may be cut anywhere.
//!
//! Approach: files, frames, stacks and thread names are numbered from 0 through the whole record. An item defines the
//! new ones before the samples that refer to them. A stack is a node of a tree: the frame that it ends with, and the
//! calling stack. Common parts of stacks are therefore stored once. Frames are places in files. Later items
//! ([`FrameSymbols`]) give their names, or the reader of the record finds them. Nodes and samples are packed: base64
//! (RFC 4648) of zlib (RFC 1950) of their fields as LEB128 numbers. Addresses, times and stacks are differences from
//! the sample before (zigzag).
//!
//! Limits: [`STACKS_MAX`] and the other bounds below; a writer that meets one cuts stacks off at their root side's last
//! known node.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, Nanos, TargetId};
use serde::{Deserialize, Serialize};

use crate::packed::{self, Packed, apply, difference, push, take};

/// The largest number of files of a record.
pub const MODULES_MAX: usize = 16 << 10;
/// The largest number of frames of a record.
pub const FRAMES_MAX: usize = 256 << 10;
/// The largest number of stacks of a record.
pub const STACKS_MAX: usize = 512 << 10;
/// The largest number of thread names of a record.
pub const THREADS_MAX: usize = 16 << 10;
/// The largest number of samples of one item.
pub const SAMPLES_MAX: usize = 64 << 10;

/// The header's setting that names the method of stack sampling; a record without it has no stacks.
pub const STACKS_SETTING: &str = "stacks";
/// The header's setting that describes, for people, the detection of faults that map huge pages.
pub const HUGE_PAGES_SETTING: &str = "stacks_huge_pages";

/// The unknown stack. The first node is stack 1.
pub const NO_STACK: StackId = StackId(0);

/// A stack, by its number in the record.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StackId(pub u32);

/// A file whose code ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodeModule {
    /// Path of the file, as the process saw it.
    pub path: String,
    /// The linker's build id, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

/// The place of a frame's code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StackFrame {
    /// Code in a file: number of the file, and offset in bytes from its beginning.
    File { module: u32, offset: u64 },
    /// Code generated at run time, with the name that its generator gave.
    Named(String),
    /// Code generated at run time, in this target at this address. A later item may name it.
    Unnamed { target: TargetId, address: u64 },
    /// The callers of the rest are unknown.
    Cut,
}

/// A stack: its last frame, and the calling stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackNode {
    /// A stack with a lower number; [`NO_STACK`] for the outermost frame.
    pub caller: StackId,
    /// The frame's number.
    pub frame: u32,
}

/// One page fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSample {
    /// Time by the record's clock.
    pub time: Nanos,
    pub target: TargetId,
    /// Number of the target's address space, counted from 0; an exec begins another one.
    pub space: u32,
    /// First address of the touched page.
    pub address: u64,
    pub stack: StackId,
    /// Number of the thread's name.
    pub thread: u32,
    /// Number of pages that the sample stands for: pages mapped since the sample before on the same CPU.
    pub pages: u64,
    /// Whether the fault waited for a device or for swap.
    pub is_major: bool,
}

/// Memory that has moved to other addresses with its touches (mremap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MovedMemory {
    pub target: TargetId,
    /// The old addresses.
    pub from: AddressRange,
    /// The new first address.
    pub to: u64,
    /// Time at which the memory was last seen at the old addresses; later touches there belong to other memory.
    pub until: Nanos,
    /// Number of the sample, counted from 0 in the item, before which the memory arrived at the new addresses.
    pub before_sample: u32,
}

/// Faults that were sampled since the item before, and their new definitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StackSamples {
    /// Time of collection.
    pub time: Nanos,
    /// Current sampling period, in faults per sample.
    pub period: u64,
    /// Targets that had touched memory before sampling began; the code behind those touches is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun_before: Vec<TargetId>,
    /// Number of samples since the beginning that were lost because a buffer was full.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nr_lost: u64,
    /// Time since the beginning without counted faults, because counting would have cost more than the budget.
    #[serde(default, skip_serializing_if = "is_default")]
    pub not_counted: Nanos,
    /// Moved memory, in the order of `before_sample`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedMemory>,
    /// New files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<CodeModule>,
    /// New frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<StackFrame>,
    /// New thread names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// New stacks, packed.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub stacks: Vec<StackNode>,
    /// The samples by time, packed.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub samples: Vec<FaultSample>,
}

/// Names of frames by number. Later names replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameSymbols {
    pub time: Nanos,
    pub symbols: BTreeMap<u32, FrameSymbol>,
}

/// Names of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameSymbol {
    /// Demangled name of the function.
    pub name: String,
    /// Functions inlined there, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<String>,
    /// Source file and line of the innermost function, where debug information has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl FrameSymbol {
    /// Returns whether the name comes from debug information.
    pub fn is_by_debug_information(&self) -> bool {
        self.line.is_some() || !self.inlined.is_empty()
    }
}

/// Selection of the frames to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Frames without a name, except those that cannot be named.
    Unnamed,
    /// Frames without lines and inlined functions.
    WithoutLines,
    /// All frames.
    All,
}

/// All files and frames of a record so far, and the names of frames.
#[derive(Clone, Debug, Default)]
pub struct FrameTable {
    pub modules: Vec<CodeModule>,
    pub frames: Vec<StackFrame>,
    pub symbols: BTreeMap<u32, FrameSymbol>,
    /// Frames below this number are no longer requested, named or not.
    given_up: u32,
}

impl FrameTable {
    /// Gives up the existing unnamed frames: they are not requested again.
    pub fn give_up(&mut self) {
        self.given_up = self.frames.len() as u32;
    }

    /// Adds the files and frames of an item.
    pub fn extend(&mut self, item: &StackSamples) {
        self.modules.extend(item.modules.iter().cloned());
        self.frames.extend(item.frames.iter().cloned());
    }

    /// Adds names.
    pub fn name(&mut self, symbols: &FrameSymbols) {
        let named = symbols.symbols.iter();
        self.symbols
            .extend(named.map(|(number, symbol)| (*number, symbol.clone())));
    }

    /// Returns the frames in files by file, with their numbers and their offsets in the file.
    pub fn in_files(&self, naming: Naming) -> Vec<(&CodeModule, Vec<(u32, u64)>)> {
        let mut by_module: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        let is_wanted = |number: u32| match (naming, self.symbols.get(&number)) {
            (Naming::All, _) | (Naming::WithoutLines, None) => true,
            (Naming::WithoutLines, Some(symbol)) => !symbol.is_by_debug_information(),
            (Naming::Unnamed, symbol) => symbol.is_none() && number >= self.given_up,
        };
        for (number, frame) in (0..).zip(&self.frames) {
            if let StackFrame::File { module, offset } = frame
                && is_wanted(number)
            {
                by_module
                    .entry(*module)
                    .or_default()
                    .push((number, *offset));
            }
        }
        let known = by_module.into_iter();
        let known =
            known.filter_map(|(module, frames)| Some((self.modules.get(module as usize)?, frames)));
        known.collect()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Counts of definitions in a record so far: the numbers that a new item may refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackCounts {
    modules: usize,
    frames: usize,
    /// Number of stacks, without [`NO_STACK`].
    stacks: usize,
    threads: usize,
}

impl StackCounts {
    /// Adds an item's counts, and returns a description of the first fault.
    pub(crate) fn take(&mut self, item: &StackSamples) -> Result<(), String> {
        let before = self.stacks;
        let (modules, frames) = (item.modules.len(), item.frames.len());
        let (threads, stacks) = (item.threads.len(), item.stacks.len());
        for (count, new, max, what) in [
            (&mut self.modules, modules, MODULES_MAX, "modules"),
            (&mut self.frames, frames, FRAMES_MAX, "frames"),
            (&mut self.threads, threads, THREADS_MAX, "threads"),
            (&mut self.stacks, stacks, STACKS_MAX, "stacks"),
        ] {
            *count += new;
            if *count > max {
                return Err(format!("has more than {max} {what} with those before"));
            }
        }
        let is_known = |frame: &StackFrame| match frame {
            StackFrame::File { module, .. } => (*module as usize) < self.modules,
            _ => true,
        };
        if !item.frames.iter().all(is_known) {
            return Err("has a frame in a module that is not there".to_owned());
        }
        for (at, node) in item.stacks.iter().enumerate() {
            let own = before + at + 1;
            if node.caller.0 as usize >= own || node.frame as usize >= self.frames {
                return Err(format!(
                    "has the stack {own}, whose caller or frame is not there"
                ));
            }
        }
        if item.samples.len() > SAMPLES_MAX {
            return Err(format!("has more than {SAMPLES_MAX} samples"));
        }
        let is_whole = |sample: &FaultSample| {
            sample.stack.0 as usize <= self.stacks && (sample.thread as usize) < self.threads
        };
        if !item.samples.iter().all(is_whole) {
            return Err("has a sample of a stack or a thread that is not there".to_owned());
        }
        let is_in_order = item.moved.is_sorted_by_key(|moved| moved.before_sample);
        let mut moved = item.moved.iter();
        if !is_in_order || !moved.all(|moved| moved.to.checked_add(moved.from.len()).is_some()) {
            return Err("has memory that was moved out of order, or out of memory".to_owned());
        }
        Ok(())
    }
}

impl Packed for StackNode {
    const CUT: &'static str = "a stack is cut, or none";

    fn push(&self, _: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String> {
        push(bytes, self.caller.0.into());
        push(bytes, self.frame.into());
        Ok(())
    }

    fn take(rest: &mut &[u8], _: Option<&Self>) -> Option<Self> {
        let mut number = || u32::try_from(take(rest)?).ok();
        Some(Self {
            caller: StackId(number()?),
            frame: number()?,
        })
    }
}

impl Packed for FaultSample {
    const CUT: &'static str = "a sample is cut, or none";

    fn push(&self, before: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String> {
        let before = before.copied().unwrap_or_default();
        for number in [
            difference(before.time.0, self.time.0),
            self.target.0.into(),
            self.space.into(),
            difference(before.address >> 12, self.address >> 12),
            difference(before.stack.0.into(), self.stack.0.into()),
            self.thread.into(),
            self.pages,
            self.is_major.into(),
        ] {
            push(bytes, number);
        }
        Ok(())
    }

    fn take(rest: &mut &[u8], before: Option<&Self>) -> Option<Self> {
        let before = before.copied().unwrap_or_default();
        let time = Nanos(apply(before.time.0, take(rest)?));
        let target = TargetId(u32::try_from(take(rest)?).ok()?);
        let space = u32::try_from(take(rest)?).ok()?;
        let page = apply(before.address >> 12, take(rest)?);
        let stack = apply(before.stack.0.into(), take(rest)?);
        Some(Self {
            time,
            target,
            space,
            address: page.checked_mul(1 << 12)?,
            stack: StackId(u32::try_from(stack).ok()?),
            thread: u32::try_from(take(rest)?).ok()?,
            pages: take(rest)?,
            is_major: take(rest)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packed::pack;

    fn item() -> StackSamples {
        let sample = |time, address, stack| FaultSample {
            time: Nanos(time),
            target: TargetId(1),
            address,
            stack: StackId(stack),
            pages: 17,
            ..FaultSample::default()
        };
        let node = |caller, frame| StackNode { caller, frame };
        StackSamples {
            time: Nanos(9),
            period: 17,
            modules: vec![CodeModule {
                path: "/bin/a".to_owned(),
                build_id: Some("ab".to_owned()),
            }],
            frames: vec![
                StackFrame::File {
                    module: 0,
                    offset: 4096,
                },
                StackFrame::Named("f".to_owned()),
                StackFrame::Cut,
            ],
            threads: vec!["main".to_owned()],
            stacks: vec![node(NO_STACK, 2), node(StackId(1), 0)],
            samples: vec![
                sample(7, 0x7fff_0000_0000, 2),
                sample(8, 0x5000, 0),
                sample(6, 0x7fff_0000_1000, 1),
            ],
            moved: vec![MovedMemory {
                target: TargetId(1),
                from: AddressRange::new(0x1000, 0x2000),
                to: 0x9000,
                until: Nanos(5),
                before_sample: 1,
            }],
            ..StackSamples::default()
        }
    }

    #[test]
    fn samples_come_back_as_they_were() {
        let json = serde_json::to_string(&item()).expect("packs");
        let back: StackSamples = serde_json::from_str(&json).expect("unpacks");
        assert_eq!(back, item());
        StackCounts::default().take(&back).expect("whole");
    }

    #[test]
    fn what_names_something_that_is_not_there_is_refused() {
        let check = |change: fn(&mut StackSamples), wanted: &str| {
            let mut broken = item();
            change(&mut broken);
            let said = StackCounts::default().take(&broken).expect_err(wanted);
            assert!(said.contains(wanted), "{said}");
        };
        check(|item| item.modules.clear(), "in a module");
        check(|item| item.frames.truncate(1), "stack 1");
        check(|item| item.stacks[0].caller = StackId(1), "stack 1");
        check(|item| item.stacks.clear(), "a sample");
        check(|item| item.threads.clear(), "a sample");
        check(|item| item.moved[0].to = u64::MAX - 1, "out of memory");
    }

    proptest! {
        #[test]
        fn numbers_and_differences_come_back(before: u64, now: u64) {
            prop_assert_eq!(apply(before, difference(before, now)), now);
            let mut bytes = Vec::new();
            push(&mut bytes, now);
            prop_assert_eq!(take(&mut &bytes[..]), Some(now));
        }

        #[test]
        fn nothing_packed_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = pack(&bytes).expect("packs");
            for name in ["stacks", "samples"] {
                let json = serde_json::json!({"time": 0, "period": 1, name: text});
                if let Ok(item) = serde_json::from_value::<StackSamples>(json) {
                    let _ = StackCounts::default().take(&item);
                }
            }
        }
    }
}
