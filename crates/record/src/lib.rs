//! The record: its format, its reader and writer, and what can be read out of it.

#![forbid(unsafe_code)]

pub mod item;
pub mod report;

pub use item::{
    CostSample, Header, Item, Mapping, MappingChange, TargetExit, TargetStart, UsageSample,
};
