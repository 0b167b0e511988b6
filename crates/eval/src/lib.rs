//! Evaluations: workloads run under configurations, and the results.
//!
//! **Problem.** The benefit of watching and acting on memory shows only in many runs: workloads by configurations by
//! repeats. They run on a machine whose speed drifts, over hours in which anything may break.
//!
//! **Approach.** An [`Experiment`] is a TOML file. [`plan()`] lays its runs out interleaved, so that drift hits all
//! configurations alike. Each finished run is one line of a [`journal`], so that an evaluation can continue after an
//! interruption. [`Suite`] gathers the journal into medians and spreads. [`report`] writes them as CSV, as the text
//! tables of DAMON's evaluation, as Markdown and as an HTML page, beside [`published`] results.
//!
//! `runner` (the feature `live`) makes the runs: it starts workloads and Isotherm as processes, and samples the
//! machine. All other modules are pure.

pub mod experiment;
pub mod journal;
pub mod metric;
pub mod parameters;
mod plan;
pub mod published;
pub mod report;
#[cfg(feature = "live")]
pub mod runner;
mod suite;
mod table;
mod text_table;
pub mod tuned;
mod workload_metric;

pub use experiment::{Experiment, ExperimentError, RunConfiguration, Thp, Workload};
pub use isotherm_engine::statistics::Interval;
pub use journal::{Entry, RunEntry, RunMeasurements, RunResult};
pub use plan::{PlannedRun, TUNING, estimate_s, plan, with_tuning};
pub use suite::{Cell, OverSuite, Score, Suite};
pub use table::{EvaluationTable, WorkloadRow};
pub use tuned::{Predicted, TuneOptions, TunedEntry};
pub use workload_metric::{Mean, PublishedValues, WorkloadMeasure, WorkloadMetric};
