//! The page that shows a record: a heat map to zoom and to point at, memory over time, processes, what schemes did.
//!
//! **Problem.** A record has millions of rows; a person wants to see all of it at once, and then one page of it. The
//! same page is to be a file that opens anywhere, without a network, and what a server shows.
//!
//! **Approach.** [`Document`] reads a record once, by the accumulators of `isotherm-report`, into a [`container`] of
//! JSON and arrays: not cells, but pieces, exact to the page as far as their bounds allow. The browser makes cells of
//! them as it needs them (`page/tiles.js`). [`page::write`] puts the container, packed, into one file with all scripts
//! and styles of `page/`, which are modules as they stand in the repository: nothing is built.
//!
//! **Limits.** Time has 2,048 steps at most, and all together a million pieces; the heat maps are of the 16 largest targets.

pub mod container;
mod document;
mod json;
pub mod page;

pub use document::{Axes, Detail, Document, Finished};
