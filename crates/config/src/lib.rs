//! Configurations, from text to the engine's types.
//!
//! A configuration is DAMON's own model (kdamonds > contexts > operations, targets, intervals, regions, schemes). It is
//! read from:
//! - the JSON and YAML of `damo` and HMSDK, with their names, units and unit strings, and [`Own`] keys of Isotherm
//!   ([`load`]);
//! - memtierd's YAML, whose policies become schemes ([`load`]);
//! - one-line schemes, `4K max 0 0 5s max pageout` ([`scheme_line`], and `.damos` files of them);
//! - names: [`preset`];
//! - a plan: [`TierPlan`], for machines with fast and slow nodes;
//! - command lines of damo ([`damo::translate`]).
//!
//! The text becomes a tree with the position of each value (`node.rs`). The tree becomes the model (`kdamonds.rs`,
//! `scheme.rs`), and the parts of the model are checked together (`validate.rs`). All faults are collected as
//! [`Problem`]s, as far as reading can continue after the first.
//!
//! Limits: a text has at most [`TEXT_MAX`] bytes and nests at most 32 deep, so that hostile input costs bounded time
//! and memory. YAML merge keys (`<<`) are refused, aliases are followed within bounds. The abilities of this machine
//! are checked when the configuration is run, not here.
//!
//! Sources: `damo` 3.4.3's own reader (`_damon.py`, `_damo_fmt_str.py`) for names, aliases and units; the kernel's
//! `Documentation/admin-guide/mm/damon/usage.rst` for the meanings.

#![forbid(unsafe_code)]

pub mod damo;
mod error;
mod file;
mod model;
mod pods;
mod preset;
mod problem;
mod request;
mod spec;
mod tier;
mod topology;
mod validate;

use file::{
    cursor, form, json, kdamonds, kernel, line, memtierd, monitoring, node, plain, quota, scheme,
    unit, write, yaml,
};

pub use error::RequestError;
pub use line::scheme_line;
pub use model::{Configuration, ContextConfig, DamonTarget, Method, Operations, Own};
pub use monitoring::Monitoring;
pub use plain::plain;
pub use pods::{AnnotatedPod, PODS_MAX, PodListError, PodPolicy, PodProblem, read_pods};
pub use preset::{PRESETS, Preset, hmsdk_demote, hmsdk_promote, preset};
pub use problem::{Place, Problem, Problems, Severity};
pub use request::{ActingRequest, Request};
pub use spec::{
    ActingSpec, ClearBy, ContextSpec, MemoryGoal, MonitorSpec, PageAttributes, ProcessSpec,
    SessionSpec, StacksSpec, TargetSpec, ThpPolicy, World,
};
pub use tier::{HMSDK_MEMCG, Move, TierError, TierPlan};
pub use topology::{Extent, Topology, TopologyError, node_extent};
pub use validate::contrary_schemes;
pub use write::{to_json, to_yaml};

use cursor::{Cursor, Log};
use node::Node;

/// Limit of a text in bytes. HMSDK's files for terabytes of memory in small regions have some hundred kilobytes.
pub const TEXT_MAX: usize = 4 << 20;

/// Format of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFormat {
    /// damo's JSON.
    Json,
    /// damo's and HMSDK's YAML.
    Yaml,
    /// One-line schemes.
    Damos,
    /// Detected from the text. HMSDK names its YAML `.json`, so a file's name is no evidence.
    Detect,
}

impl ConfigFormat {
    fn of(self, text: &str) -> Self {
        if self != Self::Detect {
            return self;
        }
        let first = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim())
            .find(|line| !line.is_empty() && *line != "---");
        match first {
            Some(line) if line.starts_with(['{', '[']) => Self::Json,
            Some(line) if line.contains(':') || line.starts_with('-') => Self::Yaml,
            Some(line) if line.split_whitespace().count() > 1 => Self::Damos,
            _ => Self::Yaml,
        }
    }
}

/// Reads a configuration. Its warnings are in [`Configuration::warnings`].
///
/// # Errors
/// Fails if the configuration has errors; returns all its errors and warnings.
pub fn load(text: &str, format: ConfigFormat) -> Result<Configuration, Problems> {
    let log = Log::new(text);
    let contexts = read(text, format, &log);
    let problems = log.into_problems();
    match contexts {
        Some(contexts) if !problems.has_errors() => Ok(Configuration {
            contexts,
            warnings: problems.into_vec(),
        }),
        _ => Err(problems),
    }
}

/// Returns all errors and warnings of a configuration, in the order of the text.
pub fn check(text: &str, format: ConfigFormat) -> Vec<Problem> {
    match load(text, format) {
        Ok(configuration) => configuration.warnings,
        Err(problems) => problems.into_vec(),
    }
}

/// Returns a file's bytes as text.
///
/// # Errors
/// Fails at the first byte that is no UTF-8, or if the file is too long.
pub fn text_of(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > TEXT_MAX {
        return Err(too_long(bytes.len()));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let byte = bytes[error.valid_up_to()];
        Problem::error(format!("byte {byte:#04x}"), "text in UTF-8").at(Place::at_end_of(&valid))
    })
}

fn too_long(len: usize) -> Problem {
    Problem::error(
        format!("{len} bytes"),
        format!("a configuration of at most {TEXT_MAX} bytes"),
    )
}

fn read(text: &str, format: ConfigFormat, log: &Log) -> Option<Vec<ContextConfig>> {
    if text.len() <= TEXT_MAX && format.of(unmarked(text)) == ConfigFormat::Damos {
        return line::read_file(unmarked(text), log);
    }
    let root = parse(text, format, log)?;
    let root = Cursor::root(&root, log);
    if memtierd::is_memtierd(&root) {
        return memtierd::read(&root);
    }
    kdamonds::read(&root)
}

/// Parses a text in JSON or YAML to a tree. Logs a problem if that fails.
fn parse(text: &str, format: ConfigFormat, log: &Log) -> Option<Node> {
    if text.len() > TEXT_MAX {
        log.add(too_long(text.len()));
        return None;
    }
    let text = unmarked(text);
    let parse = match format.of(text) {
        ConfigFormat::Json => json::parse,
        _ => yaml::parse,
    };
    parse(text).map_err(|problem| log.add(problem)).ok()
}

/// Removes the byte order mark that editors on some systems write first.
fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}
