//! The record: its format, its reader and writer.
//!
//! A record is one Arrow IPC stream. Start at [`item`] for its contents, at [`writer`] for its layout, at [`reader`]
//! for the checks on the way back (it trusts nothing).

#![forbid(unsafe_code)]

pub mod blocks;
pub mod convert;
pub mod damo;
pub mod error;
mod file;
pub mod huge;
pub mod item;
pub mod machine;
mod packed;
pub mod pages;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "without_parquet.rs"]
pub mod parquet;
mod printable;
pub mod publish;
pub mod stacks;
mod suggest;
pub mod table;
#[cfg(test)]
mod tests;

use file::{columns, frame, rows, schema};
pub use file::{index, input, reader, writer};

pub use blocks::SnapshotBlocks;
pub use error::RecordError;
pub use huge::{HugePageRead, HugePagesSample, TargetHugePages};
pub use item::{
    ActionSample, CalibrationSample, CompactionSample, CostSample, FragmentationSample,
    GuardSample, Header, Item, KernelMigrations, Mapping, MappingChange, TargetActions, TargetExit,
    TargetStart, UsageSample,
};
pub use machine::{
    CacheSample, CachedFile, CachedKind, CachedMemory, ChargedMemory, HugeMemory, MachineSample,
    MappedMemory, NodeMemory, TargetGroup, ZoneMemory,
};
pub use pages::{PageAges, PageBlock, PageSnapshot};
pub use printable::{printable, printable_lines};
pub use reader::{Reader, Truncated};
pub use stacks::{
    CodeModule, FaultSample, FrameSymbol, FrameSymbols, FrameTable, MovedMemory, Naming,
    StackFrame, StackId, StackNode, StackSamples,
};
pub use suggest::quoted;
pub use writer::Writer;
