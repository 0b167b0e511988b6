//! The subcommands: each has its `Args` (what clap parses) and its `run`.

pub(crate) mod check;
pub(crate) mod compact;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod damo;
pub(crate) mod damon;
pub(crate) mod doctor;
pub(crate) mod man;
mod predict;
pub(crate) mod recommend;
pub(crate) mod record;
pub(crate) mod report;
#[cfg(feature = "reproduce")]
pub(crate) mod reproduce;
pub(crate) mod run;
pub(crate) mod start;
mod swapped;
pub(crate) mod symbolize;
pub(crate) mod thp;
pub(crate) mod tier;
pub(crate) mod top;
pub(crate) mod web;

#[cfg(test)]
pub(crate) use swapped::advise;
pub(crate) use swapped::{park, restore, swap};

pub(crate) use predict::{calibrate, compare, eval, simulate, tune, workload};
