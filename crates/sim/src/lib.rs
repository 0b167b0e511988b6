//! A simulated machine, on which policies' effects on memory are tried before they are let loose.
//!
//! Memory is simulated page by page: nodes, zones, buddy free lists, frames and their owners. Time is simulated by
//! events: nothing here reads a clock, and the same seed gives the same bytes. The time of each operation is in
//! [`cost`], with its source; everything else follows from mechanisms.
//!
//! Start reading at [`memory`]. [`compaction`] moves pages, and [`kcompactd`] decides when. [`machine`] is all of it
//! with processes, and [`simulation`] is Isotherm on it.

#![forbid(unsafe_code)]

mod bits;
pub mod compaction;
pub mod cost;
pub mod fault;
pub mod kcompactd;
pub mod machine;
pub mod memory;
pub mod simulation;
pub mod statistics;
