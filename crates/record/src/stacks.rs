//! Page faults with the user stacks that led to them, as they stand in a record.
//!
//! Problem: stacks are long and much alike, and a record is a stream that may be cut anywhere.
//!
//! Approach: files, frames, stacks and threads' names are numbered from 0 through the whole record, and an item
//! brings those that are new before the samples that name them. A stack is a node of a tree: the frame that it
//! ends with, and the stack that called it; so what stacks have in common stands once. Frames are places in
//! files; what is called what is told by later items ([`FrameSymbols`]), or found out by who reads. Nodes and
//! samples are packed: base64 (RFC 4648) of zlib (RFC 1950) of their fields as LEB128 numbers, addresses,
//! times and stacks as differences from the sample before (zigzag).
//!
//! Limits: [`STACKS_MAX`] and the other bounds below; a writer that meets one cuts stacks off at their root
//! side's last known node.

use std::io::{Read, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use isotherm_engine::{AddressRange, Nanos, TargetId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::collections::BTreeMap;

/// Most files of a record.
pub const MODULES_MAX: usize = 16 << 10;
/// Most frames of a record.
pub const FRAMES_MAX: usize = 256 << 10;
/// Most stacks of a record.
pub const STACKS_MAX: usize = 512 << 10;
/// Most threads' names of a record.
pub const THREADS_MAX: usize = 16 << 10;
/// Most samples of one item.
pub const SAMPLES_MAX: usize = 64 << 10;
/// Most bytes that an item's samples or nodes unpack to.
const UNPACKED_MAX: u64 = 16 << 20;

/// The header's setting that says how stacks were taken; without it a record has none.
pub const STACKS_SETTING: &str = "stacks";
/// The header's setting that says how faults that map huge pages were found, for people.
pub const HUGE_PAGES_SETTING: &str = "stacks_huge_pages";

/// The stack of which nothing is known. The first node is stack 1.
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
    /// Its path, as the process saw it.
    pub path: String,
    /// The linker's build id, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

/// Where a frame's code is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StackFrame {
    /// In a file: which, and how many bytes after its beginning.
    File { module: u32, offset: u64 },
    /// Made at run time, and called this by who made it.
    Named(String),
    /// Made at run time, in this target at this address. What it is called is told later, or never.
    Unnamed { target: TargetId, address: u64 },
    /// What called the rest is not known.
    Cut,
}

/// A stack: the frame that it ends with, and what called that.
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
    /// By the record's clock.
    pub time: Nanos,
    pub target: TargetId,
    /// Which address space of the target, counting from 0: another one after exec.
    pub space: u32,
    /// The page that was touched, by its first address.
    pub address: u64,
    pub stack: StackId,
    /// The thread's name, by its number.
    pub thread: u32,
    /// Pages that it stands for: those that were mapped since the sample before it on the same processor.
    pub pages: u64,
    /// It waited for a device or for swap.
    pub is_major: bool,
}

/// Memory that is at other addresses now, with what was touched of it (mremap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MovedMemory {
    pub target: TargetId,
    /// Where it was.
    pub from: AddressRange,
    /// Its first address now.
    pub to: u64,
    /// When it was last seen where it was: what was touched there since is something else.
    pub until: Nanos,
    /// It is at its new place before this sample of the item, counting from 0.
    pub before_sample: u32,
}

/// Faults that were sampled since the item before, and what is new with them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StackSamples {
    /// When they were collected.
    pub time: Nanos,
    /// Every so many faults is sampled at present.
    pub period: u64,
    /// Targets that had touched memory before they were sampled: whose code that was, nobody knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun_before: Vec<TargetId>,
    /// Samples that found no room since the beginning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nr_lost: u64,
    /// For how long since the beginning faults were not counted, as that would have cost more than the budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub not_counted: Nanos,
    /// Memory that was moved, in the order of `before_sample`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedMemory>,
    /// New files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<CodeModule>,
    /// New frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<StackFrame>,
    /// New names of threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// New stacks, packed.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "pack_nodes",
        deserialize_with = "unpack_nodes"
    )]
    pub stacks: Vec<StackNode>,
    /// The samples by time, packed.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "pack_samples",
        deserialize_with = "unpack_samples"
    )]
    pub samples: Vec<FaultSample>,
}

/// What frames are called, by their numbers. Later ones replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameSymbols {
    pub time: Nanos,
    pub symbols: BTreeMap<u32, FrameSymbol>,
}

/// What a frame is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameSymbol {
    /// The function, demangled.
    pub name: String,
    /// Functions that were inlined there, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<String>,
    /// The source file and line of the innermost, where debug information tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl FrameSymbol {
    /// Whether it comes from debug information.
    pub fn is_by_debug_information(&self) -> bool {
        self.line.is_some() || !self.inlined.is_empty()
    }
}

/// Frames to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Frames without a name, but for those that cannot be named.
    Unnamed,
    /// Frames without lines and inlined functions.
    WithoutLines,
    /// All frames.
    All,
}

/// The files and frames that a record has brought so far, and what frames are called.
#[derive(Clone, Debug, Default)]
pub struct FrameTable {
    pub modules: Vec<CodeModule>,
    pub frames: Vec<StackFrame>,
    pub symbols: BTreeMap<u32, FrameSymbol>,
    /// Frames below this number are not asked for any more, named or not.
    given_up: u32,
}

impl FrameTable {
    /// From now on frames that are there and have no name are not asked for.
    pub fn give_up(&mut self) {
        self.given_up = self.frames.len() as u32;
    }

    /// Takes what an item brings.
    pub fn extend(&mut self, item: &StackSamples) {
        self.modules.extend(item.modules.iter().cloned());
        self.frames.extend(item.frames.iter().cloned());
    }

    /// Takes names.
    pub fn name(&mut self, symbols: &FrameSymbols) {
        let symbols = symbols.symbols.iter();
        self.symbols
            .extend(symbols.map(|(frame, symbol)| (*frame, symbol.clone())));
    }

    /// Frames in files, by file: their numbers, and where in the file they are.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_no_time(time: &Nanos) -> bool {
    *time == Nanos(0)
}

/// How much of each a record has brought so far: what a new item may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackCounts {
    modules: usize,
    frames: usize,
    /// [`NO_STACK`] is not counted.
    stacks: usize,
    threads: usize,
}

impl StackCounts {
    /// Counts an item's; says what is wrong with it, if anything.
    pub(crate) fn take(&mut self, item: &StackSamples) -> Result<(), String> {
        let add = |count: &mut usize, new: usize, max: usize, what: &str| {
            *count += new;
            if *count > max {
                return Err(format!("has more than {max} {what} with those before"));
            }
            Ok(())
        };
        add(
            &mut self.modules,
            item.modules.len(),
            MODULES_MAX,
            "modules",
        )?;
        add(&mut self.frames, item.frames.len(), FRAMES_MAX, "frames")?;
        add(
            &mut self.threads,
            item.threads.len(),
            THREADS_MAX,
            "threads",
        )?;
        let before = self.stacks;
        add(&mut self.stacks, item.stacks.len(), STACKS_MAX, "stacks")?;
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

fn pack_nodes<S: Serializer>(nodes: &[StackNode], serializer: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::new();
    for node in nodes {
        push(&mut bytes, node.caller.0.into());
        push(&mut bytes, node.frame.into());
    }
    serializer.serialize_str(&pack(&bytes).map_err(ser::Error::custom)?)
}

fn unpack_nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StackNode>, D::Error> {
    let bytes = unpack(&String::deserialize(deserializer)?).map_err(de::Error::custom)?;
    let mut rest = &bytes[..];
    let mut nodes = Vec::new();
    while !rest.is_empty() {
        let node = take(&mut rest).zip(take(&mut rest));
        let node = node.ok_or_else(|| de::Error::custom("a stack is cut"))?;
        let [caller, frame] = [node.0, node.1].map(u32::try_from);
        let (Ok(caller), Ok(frame)) = (caller, frame) else {
            return Err(de::Error::custom("a stack's number is too large"));
        };
        nodes.push(StackNode {
            caller: StackId(caller),
            frame,
        });
    }
    Ok(nodes)
}

fn pack_samples<S: Serializer>(samples: &[FaultSample], serializer: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::new();
    let mut before = FaultSample::default();
    for sample in samples {
        push(&mut bytes, difference(before.time.0, sample.time.0));
        push(&mut bytes, sample.target.0.into());
        push(&mut bytes, sample.space.into());
        push(
            &mut bytes,
            difference(before.address >> 12, sample.address >> 12),
        );
        push(
            &mut bytes,
            difference(before.stack.0.into(), sample.stack.0.into()),
        );
        push(&mut bytes, sample.thread.into());
        push(&mut bytes, sample.pages);
        push(&mut bytes, sample.is_major.into());
        before = *sample;
    }
    serializer.serialize_str(&pack(&bytes).map_err(ser::Error::custom)?)
}

fn unpack_samples<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<FaultSample>, D::Error> {
    let bytes = unpack(&String::deserialize(deserializer)?).map_err(de::Error::custom)?;
    let mut rest = &bytes[..];
    let mut samples = Vec::new();
    let mut before = FaultSample::default();
    while !rest.is_empty() {
        let sample = take_sample(&mut rest, &before);
        before = sample.ok_or_else(|| de::Error::custom("a sample is cut, or none"))?;
        samples.push(before);
    }
    Ok(samples)
}

fn take_sample(rest: &mut &[u8], before: &FaultSample) -> Option<FaultSample> {
    let time = Nanos(apply(before.time.0, take(rest)?));
    let target = TargetId(u32::try_from(take(rest)?).ok()?);
    let space = u32::try_from(take(rest)?).ok()?;
    let page = apply(before.address >> 12, take(rest)?);
    let stack = apply(before.stack.0.into(), take(rest)?);
    Some(FaultSample {
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

pub(crate) fn pack(bytes: &[u8]) -> std::io::Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(BASE64_STANDARD.encode(encoder.finish()?))
}

pub(crate) fn unpack(text: &str) -> Result<Vec<u8>, String> {
    let packed = BASE64_STANDARD
        .decode(text)
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    ZlibDecoder::new(&packed[..])
        .take(UNPACKED_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > UNPACKED_MAX {
        return Err("more stacks or samples than an item can have".to_owned());
    }
    Ok(bytes)
}

/// Appends a number as LEB128.
pub(crate) fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(crate) fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Zigzag: small differences of either sign are small numbers.
pub(crate) fn difference(before: u64, now: u64) -> u64 {
    let signed = now.wrapping_sub(before) as i64;
    (signed << 1 ^ signed >> 63) as u64
}

pub(crate) fn apply(before: u64, difference: u64) -> u64 {
    let signed = (difference >> 1) as i64 ^ -((difference & 1) as i64);
    before.wrapping_add(signed as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item() -> StackSamples {
        let sample = |time, address, stack| FaultSample {
            time: Nanos(time),
            target: TargetId(1),
            address,
            stack: StackId(stack),
            pages: 17,
            ..FaultSample::default()
        };
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
            stacks: vec![
                StackNode {
                    caller: NO_STACK,
                    frame: 2,
                },
                StackNode {
                    caller: StackId(1),
                    frame: 0,
                },
            ],
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
