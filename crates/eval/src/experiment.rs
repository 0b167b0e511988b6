//! Reads an experiment's file: TOML in, checked settings out; errors are reported with their line.

use std::collections::BTreeMap;
use std::ops::Range;

use isotherm_engine::units::parse_bytes;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::Spanned;

use crate::parameters::{self, Parameters};
use crate::tuned::{self, TuneOptions};
use crate::workload_metric::{self, Mean, WorkloadMeasure, is_name, last_match};

const TIME_LIMIT_S: u64 = 600;
const REPEATS_MAX: u32 = 1000;
/// Memory of the machine that no workload may take.
pub const FLOOR_BYTES: u64 = 2 << 30;
/// Folders of the settings that a configuration may change.
pub const SETTINGS_BELOW: [&str; 2] = ["/proc/sys/", "/sys/kernel/mm/"];

/// Workloads and configurations of an evaluation, and the number of repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Experiment {
    /// Name of the results.
    pub name: String,
    /// Number of runs of each workload under each configuration.
    pub repeats: u32,
    /// Size of the zram swap to set up while the experiment runs, as in `isotherm swap zram --size`.
    pub zram: Option<String>,
    /// Whether the page cache is dropped before each run.
    pub drop_caches: bool,
    /// Time limit of a run, seconds; a run that takes longer is ended and counts as failed.
    pub time_limit_s: u64,
    /// Idle time after each run, seconds, in which its after-effects (writeback, freed swap) settle.
    pub cool_down_s: u64,
    /// Number of nodes with memory that it needs; on a machine with fewer, nothing of it runs.
    pub nodes: u32,
    /// Parameters that a user may set, with their defaults.
    pub parameters: Parameters,
    /// Programs to run.
    pub workloads: Vec<Workload>,
    /// Configurations that each workload runs under. The first is the base of all comparisons.
    pub configurations: Vec<RunConfiguration>,
}

/// A program whose time and memory are measured. Commands are run by `sh -c`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a workload with `name` and `run`")]
pub struct Workload {
    /// Name in tables; `parsec3/canneal` and the like are compared with published results.
    pub name: String,
    /// Programs that it needs; if one is missing, the workload is skipped.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Command that runs to its end before anything else.
    #[serde(default)]
    pub setup: Option<String>,
    /// A server, started before `warmup` and ended after `run`. If there is one, its memory is watched and measured.
    #[serde(default)]
    pub serve: Option<String>,
    /// Command that runs to its end before the measured part.
    #[serde(default)]
    pub warmup: Option<String>,
    /// Command that is measured.
    pub run: String,
    /// A regular expression for the standard output of `run`: the first group (or all) of its last match is the
    /// throughput, for workloads that run for a fixed time.
    #[serde(default)]
    pub progress: Option<String>,
    /// A file in the run's folder, written by `run`, that holds the throughput.
    #[serde(default)]
    pub progress_file: Option<String>,
    /// Memory that must be available for it, besides the [`FLOOR_BYTES`] that always stay; it may name a parameter:
    /// `$SIZE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Whether all its processes run in a control group of their own, which is then measured, and emptied at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cgroup: bool,
    /// Other measures that it reports.
    #[serde(default, rename = "measure", skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<WorkloadMeasure>,
    /// Means over some of these measures.
    #[serde(default, rename = "mean", skip_serializing)]
    pub means: Vec<Mean>,
    /// Seconds of one run including its preparation, for the estimate of the whole.
    #[serde(default, skip_serializing)]
    pub expected_s: Option<f64>,
    /// Name of the program in published tables, if `name` itself is not in them, with another version or input.
    #[serde(default, skip_serializing)]
    pub published: Option<String>,
}

impl Workload {
    /// Returns the bytes of memory that must be available for it, besides those that always stay. Fails if the memory
    /// is no size, or names an unknown parameter.
    pub fn memory_bytes(&self, parameters: &Parameters) -> Result<u64, String> {
        let Some(memory) = &self.memory else {
            return Ok(0);
        };
        let text = parameters::expand(memory, parameters)
            .map_err(|name| format!("`memory`: there is no parameter {name}"))?;
        parse_bytes(&text).map_err(|error| format!("`memory`: {error}"))
    }

    /// Returns its name in published tables.
    pub fn published_name(&self) -> &str {
        self.published.as_ref().unwrap_or(&self.name)
    }

    /// Returns the throughput in `output`, the output of `run`; `None` if there is none, or if the workload has no
    /// `progress`.
    pub fn throughput_in(&self, output: &str) -> Option<f64> {
        number(last_match(self.progress.as_ref()?, output)?)
    }
}

/// Reads a positive number, perhaps with thousands separators.
pub fn number(text: &str) -> Option<f64> {
    let number: f64 = text.trim().replace(',', "").parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
}

/// Conditions that a workload runs under.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Configuration")
)]
#[serde(deny_unknown_fields, expecting = "a configuration with `name`")]
pub struct RunConfiguration {
    /// Name in tables.
    pub name: String,
    /// The arguments of the `isotherm` that runs beside the workload, if any. `{targets}` is replaced by the flags that
    /// name the workload, `{cgroup}` by its control group, `{dir}` by the run's folder.
    #[serde(default)]
    pub isotherm: Option<String>,
    /// Schemes that are tuned for each workload and then run beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tune: Option<TuneOptions>,
    /// Kernel settings while it runs, by the names of `sysctl` or paths below [`SETTINGS_BELOW`]. They are undone after
    /// it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Additional variables of the workload's commands.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: Parameters,
    /// Setting of transparent huge pages; unchanged by default.
    #[serde(default)]
    pub thp: Option<Thp>,
}

impl RunConfiguration {
    /// Returns its kernel settings, with that of transparent huge pages.
    pub fn all_settings(&self) -> BTreeMap<String, String> {
        let thp = self.thp.map(|thp| (THP.to_owned(), thp.word().to_owned()));
        thp.into_iter().chain(self.settings.clone()).collect()
    }
}

pub(crate) const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

isotherm_engine::named! {
    /// Value of `/sys/kernel/mm/transparent_hugepage/enabled`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum Thp {
        /// Huge pages for all memory.
        Always = "always",
        /// Huge pages where a program asks for them.
        Madvise = "madvise",
        /// No huge pages.
        Never = "never",
    }

    /// Returns the kernel's word.
    fn word;
}

/// An error in an experiment's file.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ExperimentError {
    /// It is not TOML, or has unknown keys. The text names line and column.
    #[error("{0}")]
    Syntax(String),
    /// A value is not valid.
    #[error("line {line}: {what}")]
    Value {
        /// Line of the value, from 1.
        line: usize,
        /// The error, and valid values.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    #[serde(default = "one")]
    repeats: Spanned<u32>,
    zram: Option<String>,
    #[serde(default)]
    drop_caches: bool,
    time_limit_s: Option<Spanned<u64>>,
    #[serde(default)]
    cool_down_s: u64,
    #[serde(default)]
    nodes: u32,
    #[serde(default)]
    parameters: BTreeMap<Spanned<String>, String>,
    #[serde(default)]
    workload: Vec<Spanned<Workload>>,
    #[serde(default)]
    configuration: Vec<Spanned<RunConfiguration>>,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

impl File {
    /// Returns what has to hold besides workloads and configurations: whether it does, its place, and the error.
    fn head_checks(&self) -> [(bool, Range<usize>, &'static str); 5] {
        let limit = self.time_limit_s.as_ref();
        [
            (
                is_name(self.name.get_ref()),
                self.name.span(),
                "the experiment's name becomes a folder: letters, digits, `-`, `_` and `.` only",
            ),
            (
                (1..=REPEATS_MAX).contains(self.repeats.get_ref()),
                self.repeats.span(),
                "repeats are 1 to 1000",
            ),
            (
                limit.is_none_or(|limit| *limit.get_ref() > 0),
                limit.map_or(0..0, Spanned::span),
                "a run needs at least a second: time_limit_s is above 0",
            ),
            (
                !self.workload.is_empty(),
                0..0,
                "there is nothing to run: add a [[workload]] with `name` and `run`",
            ),
            (
                !self.configuration.is_empty(),
                0..0,
                "there is no [[configuration]]; add at least one named `orig`",
            ),
        ]
    }
}

impl Experiment {
    /// Creates an experiment of one shell command, run once without Isotherm; `progress` is as in
    /// [`Workload::progress`]. Fails if the regular expression is not valid.
    pub fn of_command(run: String, progress: Option<String>) -> Result<Self, ExperimentError> {
        const LONG_S: u64 = 7 * 24 * 3600;
        let workload = Workload {
            name: "command".to_owned(),
            run,
            progress,
            ..Workload::default()
        };
        if let Some(what) = workload_fault(&workload, &[]) {
            return Err(ExperimentError::Value { line: 1, what });
        }
        let configuration = RunConfiguration {
            name: "by-itself".to_owned(),
            ..RunConfiguration::default()
        };
        Ok(Self {
            name: "command".to_owned(),
            repeats: 1,
            time_limit_s: LONG_S,
            workloads: vec![workload],
            configurations: vec![configuration],
            ..Self::default()
        })
    }

    /// Reads and checks the text of an experiment's file.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let file: File = toml::from_str(text)
            .map_err(|error| ExperimentError::Syntax(error.to_string().trim_end().to_owned()))?;
        let check = |at: Range<usize>, fault: Option<String>| match fault {
            Some(what) => Err(ExperimentError::Value {
                line: line_of(text, at.start),
                what,
            }),
            None => Ok(()),
        };
        for (holds, at, what) in file.head_checks() {
            check(at, (!holds).then(|| what.to_owned()))?;
        }
        for name in file.parameters.keys() {
            check(name.span(), parameters::name_fault(name.get_ref()))?;
        }
        let mut seen = Vec::new();
        for workload in &file.workload {
            check(workload.span(), workload_fault(workload.get_ref(), &seen))?;
            seen.push(&workload.get_ref().name);
        }
        seen.clear();
        for configuration in &file.configuration {
            let fault = configuration_fault(configuration.get_ref(), &seen)
                .or_else(|| tuned::fault(configuration.get_ref(), seen.is_empty()));
            check(configuration.span(), fault)?;
            seen.push(&configuration.get_ref().name);
        }
        let parameters = file.parameters.into_iter();
        let parameters = parameters.map(|(name, value)| (name.into_inner(), value));
        let configurations = file.configuration.into_iter();
        Ok(Self {
            name: file.name.into_inner(),
            repeats: file.repeats.into_inner(),
            zram: file.zram,
            drop_caches: file.drop_caches,
            time_limit_s: file.time_limit_s.map_or(TIME_LIMIT_S, Spanned::into_inner),
            cool_down_s: file.cool_down_s,
            nodes: file.nodes,
            parameters: parameters.collect(),
            workloads: file.workload.into_iter().map(Spanned::into_inner).collect(),
            configurations: configurations.map(Spanned::into_inner).collect(),
        })
    }
}

fn workload_fault(workload: &Workload, seen: &[&String]) -> Option<String> {
    let name = &workload.name;
    if !name.split('/').all(is_name) {
        return Some(format!(
            "workload name '{name}': letters, digits, `-`, `_`, `.` and `/` between them only"
        ));
    }
    if seen.contains(&name) {
        return Some(format!("a second workload named '{name}'"));
    }
    if workload.run.trim().is_empty() {
        return Some(format!("workload '{name}': `run` is empty"));
    }
    if workload.progress.is_some() && workload.progress_file.is_some() {
        return Some(format!(
            "workload '{name}': `progress` or `progress_file`, not both"
        ));
    }
    if workload
        .expected_s
        .is_some_and(|s| !s.is_finite() || s <= 0.0)
    {
        return Some(format!("workload '{name}': expected_s is above 0"));
    }
    if let Some(fault) = workload_metric::fault(&workload.measures, &workload.means) {
        return Some(format!("workload '{name}': {fault}"));
    }
    let error = Regex::new(workload.progress.as_ref()?).err()?;
    Some(format!("workload '{name}': `progress`: {error}"))
}

/// Returns the file of a setting, from a name such as `vm.swappiness` or a path that may be written.
pub(crate) fn setting_path(name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if !name.chars().all(is_plain) || name.contains("..") {
        return None;
    }
    if name.starts_with('/') {
        let is_allowed = SETTINGS_BELOW.iter().any(|below| name.starts_with(below));
        // The kernel's own DAMON may be in use by another program.
        return (is_allowed && !name.starts_with("/sys/kernel/mm/damon")).then(|| name.to_owned());
    }
    let parts = name.split('.').collect::<Vec<_>>();
    let is_whole = parts.len() > 1 && parts.iter().all(|part| !part.is_empty());
    (is_whole && !name.contains('/')).then(|| format!("/proc/sys/{}", parts.join("/")))
}

fn configuration_fault(configuration: &RunConfiguration, seen: &[&String]) -> Option<String> {
    let name = &configuration.name;
    if !is_name(name) {
        return Some(format!(
            "configuration name '{name}': letters, digits, `-`, `_` and `.` only"
        ));
    }
    if seen.contains(&name) {
        return Some(format!("a second configuration named '{name}'"));
    }
    if let Some(setting) = configuration
        .settings
        .keys()
        .find(|of| setting_path(of).is_none())
    {
        return Some(format!(
            "configuration '{name}': setting '{setting}': a name such as vm.swappiness, or a path below {}",
            SETTINGS_BELOW.join(" or ")
        ));
    }
    let mut variables = configuration.variables.keys();
    if let Some(fault) = variables.find_map(|variable| parameters::name_fault(variable)) {
        return Some(format!("configuration '{name}': {fault}"));
    }
    let arguments = configuration.isotherm.as_ref()?;
    let mut targets = ["{targets}", "--physical", "--cgroup", "--all", "--config"].iter();
    let names_target = targets.any(|word| arguments.contains(word));
    let word = arguments.split_whitespace().next().unwrap_or_default();
    if word == "compact" {
        let is_beside = arguments.contains("--daemon");
        return (!is_beside)
            .then(|| format!("configuration '{name}': `compact` ends at once; add --daemon"));
    }
    if !["record", "run"].contains(&word) {
        return Some(format!(
            "configuration '{name}': `isotherm` starts with `record`, `run` or `compact`, not '{word}'"
        ));
    }
    (!names_target).then(|| {
        format!("configuration '{name}': `isotherm` watches nothing; add {{targets}}, --physical, or a --config that names targets")
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset.min(text.len())].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"a\"\nrepeats = 2\n\n[[workload]]\nname = \"w\"\nrun = \"true\"\n\n\
                        [[configuration]]\nname = \"orig\"\n";

    fn error(text: &str) -> String {
        let error = Experiment::parse(text).expect_err("it is wrong");
        error.to_string()
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let experiment = Experiment::parse(GOOD).expect("it is right");
        assert_eq!((experiment.repeats, experiment.time_limit_s), (2, 600));
        assert_eq!(experiment.workloads[0].run, "true");
        assert!(experiment.zram.is_none() && experiment.configurations[0].thp.is_none());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let table = r#"
            repeats = 2 | repeats = 0 | line 2: repeats are 1 to 1000
            repeats = 2 | repeat = 2 | line 2
            repeats = 2 | repeats = | line 2
            name = "w" | name = "w w" | line 4: workload name
            run = "true" | run = " " | line 4: workload 'w': `run` is empty
            run = "true" | rum = "true" | line 6
            run = "true" | run = "true"; progress = '(' | line 4: workload 'w': `progress`
            name = "orig" | name = "rec"; isotherm = "record" | line 8: configuration 'rec': `isotherm` watches nothing
            name = "orig" | name = "rec"; isotherm = "rm -rf /" | starts with `record`, `run` or `compact`
            name = "orig" | name = "orig"; thp = "yes" | line 10
            [[configuration]] | [[configuration]]; name = "orig"; [[configuration]] | line 10: a second configuration named 'orig'
        "#;
        for line in table.trim().lines() {
            let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let text = error(&GOOD.replace(fields[0], &fields[1].replace("; ", "\n")));
            assert!(text.contains(fields[2]), "{line}: {text}");
        }
        assert!(error("name = \"a\"").contains("there is nothing to run"));
    }

    #[test]
    fn the_last_throughput_counts() {
        let text = GOOD.replace(
            "run = \"true\"",
            "run = \"true\"\nprogress = 'rate: ([0-9.,]+)'",
        );
        let workload = &Experiment::parse(&text).expect("it is right").workloads[0];
        let throughput = |output| workload.throughput_in(output);
        assert_eq!(throughput("rate: 1.5\nrate: 1,200.5 /s\n"), Some(1200.5));
        assert_eq!((throughput("rate: 0"), throughput("none")), (None, None));
    }

    #[test]
    fn the_shipped_experiments_are_right() {
        for text in [
            include_str!("../../../experiments/shipped.toml"),
            include_str!("../../../experiments/quick.toml"),
            include_str!("../../../experiments/parsec.toml"),
            include_str!("../../../experiments/compaction.toml"),
            include_str!("../../../experiments/machine.toml"),
            include_str!("../../../experiments/tiering.toml"),
        ] {
            Experiment::parse(text).expect("it is right");
        }
    }
}
