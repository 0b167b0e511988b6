//! Reports: answers to the questions of a person or a script about a record.
//!
//! **Problem.** A record of five minutes holds millions of region rows; the question ("what is hot?", "how much is
//! really used?", "what has been idle for a minute?") has an answer of one screen.
//!
//! **Approach.** Each report is an accumulator: `push` takes every item of the record once, in order, and keeps the
//! data for the answer in bounded memory. `finish` returns a plain value that serde can write. [`Tabulate`] declares
//! its columns and rows once, for CSV, Markdown and Arrow; only [`render`] decides on its other forms (text, SVG, HTML).
//! Accumulators work for items of any source: a file, a pipe, a live recording or a test.
//!
//! **Limits.** Reports make one pass, in the record's order. Bounded data becomes coarser as it grows, and the report
//! states its resolution (`resolution_bytes`, the width of a column). Minima, maxima, sums and means stay exact.
//!
//! **Results.** In every JSON result, sizes are bytes, durations are nanoseconds, and points in time are nanoseconds
//! since the beginning of the record (`record.started_ns`, itself since the Unix epoch). Values that may be above 2^53,
//! where other readers of JSON round, are text: `started_ns` always, an address above that limit. `access_rate` is the
//! share of checks that found an access, 0 to 1; `null` means unknown, which is not zero. New keys may appear within a
//! `version`; none changes its meaning.

/// The version of every report's JSON. 1 had `record.started_ns` as a number.
pub(crate) const VERSION: u32 = 2;

pub mod access;
pub mod actions;
pub mod blame;
pub mod course;
mod data;
pub mod diff;
pub mod ethp_curve;
#[cfg(feature = "parquet")]
pub mod flat;
pub mod footprint;
mod formats;
pub mod fragmentation;
pub mod heatmap;
pub mod idle;
pub mod machine;
pub mod overview;
pub mod reclaim_curve;
pub mod render;
pub mod summary;
pub mod table;
pub mod temperature;
pub mod tiers;
pub mod wss;

#[cfg(test)]
mod test_records;
#[cfg(test)]
mod tests;

pub use data::{context, mapping, read, series};
use data::{exact, frames_once, latest, ranges, rows, working_set};

pub use access::{Access, AccessOptions, AccessReport, AccessTable};
pub use actions::{Actions, ActionsReport};
pub use blame::{Blame, BlameOptions, BlameReport};
pub use context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
pub use course::{Course, CourseReport};
pub use diff::DiffReport;
pub use ethp_curve::{EthpCurve, EthpCurveOptions, EthpCurveReport};
#[cfg(feature = "parquet")]
pub use flat::Flat;
pub use footprint::{Footprint, FootprintReport};
pub use fragmentation::{Fragmentation, FragmentationReport};
pub use heatmap::{Heatmap, HeatmapOptions, HeatmapReport};
pub use idle::{Idle, IdleOptions, IdleReport};
pub use machine::{Machine, MachineReport};
pub use mapping::MappingTable;
pub use overview::{Overview, Overviews};
pub use reclaim_curve::{ReclaimCurve, ReclaimCurveOptions, ReclaimCurveReport};
pub use render::{Render, ReportFormat, Style};
pub use rows::{Column, ColumnType, ColumnValue, column, nullable};
pub use summary::SummaryReport;
pub use table::Tabulate;
pub use temperature::TemperatureReport;
pub use tiers::{Tiers, TiersReport};
pub use wss::{Wss, WssOptions, WssReport};

/// A report under construction, which takes a record's items.
pub trait Accumulate {
    /// The finished report; `None` where the record has no data for it.
    type Report;

    /// Takes the next item of the record.
    fn push(&mut self, item: &isotherm_record::Item);

    /// Returns the report; `end` describes the end of a record that is not whole.
    fn finish_at(self, end: RecordEnd) -> Self::Report;

    /// Returns the report of a whole record.
    fn finish(self) -> Self::Report
    where
        Self: Sized,
    {
        self.finish_at(RecordEnd::default())
    }
}
