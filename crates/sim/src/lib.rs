//! A simulated machine: what policies do to memory, tried before they are let loose.
//!
//! Memory is simulated page by page: nodes, zones, buddy free lists, frames and who owns them. Time is
//! simulated by events: nothing here reads a clock, and the same seed gives the same bytes. What an
//! operation takes is in [`cost`], with its source; everything else follows from mechanisms.
//!
//! Start reading at [`memory`]; [`compaction`] moves pages, [`kcompactd`] decides when, [`machine`] is all of
//! it with processes, [`simulation`] is Isotherm on it, and [`experiment`] sets the stage as published
//! experiments did.

#![forbid(unsafe_code)]

mod bits;
pub mod compaction;
pub mod cost;
pub mod experiment;
pub mod fault;
pub mod kcompactd;
pub mod machine;
pub mod memory;
pub mod published;
pub mod simulation;
pub mod statistics;
