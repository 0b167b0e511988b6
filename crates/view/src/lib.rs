//! The page of a record: a zoomable heat map with tips, memory over time, processes, the work of schemes.
//!
//! **Problem.** A record has millions of rows; a person wants to see all of it at once, and then one page of it. The
//! same page has to work as a file that opens anywhere without a network, and on a server.
//!
//! **Approach.** [`Document`] reads a record once, by the accumulators of `isotherm-report`, into a [`container`] of
//! JSON and arrays. These hold pieces instead of cells, exact to the page as far as their bounds allow. The browser
//! computes cells when it needs them (`page/tiles.js`). [`page::write`] puts the packed container into one file with
//! all scripts and styles of `page/`. The scripts are the repository's modules as they are, without a build.
//!
//! **Limits.** Time has at most 2,048 steps, and all steps together have at most a million pieces; only the 16 largest
//! targets have heat maps.

pub mod container;
mod document;
mod json;
pub mod page;

pub use document::{Axes, Detail, Document, Finished};
