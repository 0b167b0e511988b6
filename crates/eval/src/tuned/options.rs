//! Options of `[configuration.tune]` in an experiment's file: those of `isotherm tune`, by the same names.

use isotherm_config::ActingRequest;
use isotherm_engine::units::parse_share;
use isotherm_session::simulated::FarMemory;
use isotherm_tune::{MemoryLimit, OBJECTIVES, Prices};
use serde::{Deserialize, Deserializer, Serialize};

use crate::experiment::RunConfiguration;

/// Names of folders in that of the results.
const TAKEN: [&str; 1] = ["failed"];

/// Schemes that are tuned for each workload, and the objective.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "what `isotherm tune` takes: `preset`, `scheme` or `config`, and what is sought"
)]
pub struct TuneOptions {
    /// Presets whose numbers are tuned.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub preset: Vec<String>,
    /// Schemes, each in a line.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub scheme: Vec<String>,
    /// A file of schemes, relative to the experiment's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Contents of `config`: a part of the run's fingerprint. The caller that loads the experiment reads the file.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub config_text: Option<String>,
    /// Parameters to tune, and their ranges.
    #[serde(
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub param: Vec<String>,
    /// Objective of the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// Maximum slowdown, as a share of a workload's time: the limit of the objective, and of the guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<String>,
    /// Maximum resident memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<String>,
    /// Prices of memory and CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// A second node of the replayed machine, as the runs' machine has one: its size and latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<String>,
    /// Share of its time in which a workload waits for memory; used with `far`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bound: Option<String>,
    /// Maximum number of settings to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// Seed of every random choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Monitor by DAMON's rules, in replays and in runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub faithful: bool,
    /// Replay and run without a guard.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_guard: bool,
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    Ok(match OneOrMore::deserialize(from)? {
        OneOrMore::One(one) => vec![one],
        OneOrMore::More(more) => more,
    })
}

impl TuneOptions {
    fn fault(&self) -> Option<String> {
        if self.preset.is_empty() && self.scheme.is_empty() && self.config.is_none() {
            return Some("there is nothing to tune; add `preset`, `scheme` or `config`".into());
        }
        if let Some(objective) = &self.objective
            && OBJECTIVES.iter().all(|(name, ..)| name != objective)
        {
            let names: Vec<&str> = OBJECTIVES.iter().map(|(name, ..)| *name).collect();
            let names = names.join(", ");
            return Some(format!("`objective` is one of {names}, not '{objective}'"));
        }
        if self.budget == Some(0) {
            return Some("`budget` is above 0".into());
        }
        let acting = ActingRequest {
            presets: self.preset.clone(),
            scheme_lines: self.scheme.clone(),
            ..ActingRequest::default()
        };
        match acting.schemes() {
            Err(error) => return Some(error.to_string()),
            Ok((_, true)) => {
                return Some(
                    "a trace is of one process; schemes of physical memory are not tuned by it"
                        .into(),
                );
            }
            Ok((_, false)) => {}
        }
        let fault = |name: &str, why: Option<String>| Some(format!("`{name}`: {}", why?));
        let slowdown = self.max_slowdown.as_deref().map(parse_share);
        let memory = self.max_memory.as_deref().map(MemoryLimit::parse);
        let price = self.price.as_deref().map(Prices::parse);
        let far = self.far.as_deref().map(FarMemory::parse_node);
        let memory_bound = self.memory_bound.as_deref().map(parse_share);
        if far.is_some() != memory_bound.is_some() {
            return Some("`far` and `memory_bound` belong together".into());
        }
        None.or_else(|| fault("max_slowdown", slowdown?.err().map(|e| e.to_string())))
            .or_else(|| fault("max_memory", memory?.err().map(|e| e.to_string())))
            .or_else(|| fault("price", price?.err()))
            .or_else(|| fault("far", far?.err()))
            .or_else(|| fault("memory_bound", memory_bound?.err().map(|e| e.to_string())))
    }

    /// Returns the options of `isotherm tune`, except for the file of schemes.
    pub fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        let mut add = |name: &str, value: &str| options.extend([name.to_owned(), value.to_owned()]);
        for (name, values) in [
            ("--preset", &self.preset),
            ("--scheme", &self.scheme),
            ("--param", &self.param),
        ] {
            for value in values {
                add(name, value);
            }
        }
        for (name, value) in [
            ("--objective", &self.objective),
            ("--max-slowdown", &self.max_slowdown),
            ("--max-memory", &self.max_memory),
            ("--price", &self.price),
            ("--far", &self.far),
            ("--memory-bound", &self.memory_bound),
            ("--budget", &self.budget.map(|n| n.to_string())),
            ("--seed", &self.seed.map(|n| n.to_string())),
        ] {
            if let Some(value) = value {
                add(name, value);
            }
        }
        let flags = [(self.faithful, "--faithful"), (self.no_guard, "--no-guard")];
        options.extend(flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()));
        options
    }
}

/// Returns the error in a configuration's tuning, as far as it can be checked without a trace. The first configuration
/// is the base of comparisons.
pub(crate) fn fault(configuration: &RunConfiguration, is_first: bool) -> Option<String> {
    let name = &configuration.name;
    let fault = configuration.tune.as_ref()?.fault().or_else(|| {
        if is_first {
            Some("the others are compared to the first configuration, which is not tuned".into())
        } else if configuration.isotherm.is_some() {
            Some("`isotherm` or `tune`, not both".into())
        } else if TAKEN.contains(&name.as_str()) || name.contains('.') {
            // The folder of the result has this name.
            Some("choose another name, without `.`".into())
        } else {
            None
        }
    })?;
    Some(format!("configuration '{name}': tune: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;

    fn request(text: &str) -> TuneOptions {
        toml::from_str(text).expect("it is right")
    }

    #[test]
    fn its_options_are_those_of_the_command() {
        let all = request(
            "preset = \"prcl\"\nparam = [\"age=1s..5s\", \"quota\"]\nobjective = \"cost\"\nmax_slowdown = \"2%\"\n\
             price = \"dram=3\"\nbudget = 9\nseed = 7\nno_guard = true",
        );
        assert_eq!(all.fault(), None);
        let far = request(
            "scheme = \"4K max 0 0 5s max migrate_cold 1\"\nfar = \"8G\"\nmemory_bound = \"20%\"",
        );
        assert_eq!(far.fault(), None);
        let options = far.options().join(" ");
        assert!(options.ends_with("--far 8G --memory-bound 20%"));
        for wrong in ["far = \"8G\"", "far = \"0\"\nmemory_bound = \"20%\""] {
            let request = request(&format!("preset = \"prcl\"\n{wrong}"));
            assert!(request.fault().is_some(), "{wrong}");
        }
        let wanted = "--preset prcl --param age=1s..5s --param quota --objective cost --max-slowdown 2% \
                      --price dram=3 --budget 9 --seed 7 --no-guard";
        assert_eq!(all.options().join(" "), wanted);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let check = |text: &str, expected: &str| {
            let fault = request(text).fault().expect(text);
            assert!(fault.contains(expected), "{text}: {fault}");
        };
        check("", "nothing to tune");
        check("preset = \"prlc\"", "prlc");
        check("preset = \"pprcl\"", "physical memory");
        check("scheme = \"nonsense\"", "nonsense");
        let prcl = |more: &str| format!("preset = \"prcl\"\n{more}");
        check(&prcl("objective = \"speed\""), "one of memory, slowdown");
        check(&prcl("max_slowdown = \"much\""), "`max_slowdown`: ");
        check(&prcl("max_memory = \"0\""), "`max_memory`: ");
        check(&prcl("price = \"gold=1\""), "`price`: ");
        check(&prcl("budget = 0"), "`budget` is above 0");
        assert!(toml::from_str::<TuneOptions>("presets = \"prcl\"").is_err());
    }

    const GOOD: &str = "name = \"a\"\n[[workload]]\nname = \"w\"\nrun = \"true\"\n\
                        [[configuration]]\nname = \"orig\"\n";

    #[test]
    fn what_is_tuned_is_checked_with_the_rest() {
        let tuned = |name: &str, more: &str| {
            format!(
                "{GOOD}[[configuration]]\nname = \"{name}\"\n{more}[configuration.tune]\npreset = \"prcl\"\n"
            )
        };
        let experiment = Experiment::parse(&tuned("tuned", "")).expect("it is right");
        let request = experiment.configurations[1].tune.as_ref();
        assert_eq!(request.map(|tune| tune.preset.len()), Some(1));
        let check = |text: &str, expected: &str| {
            let error = Experiment::parse(text).expect_err("it is wrong");
            assert!(error.to_string().contains(expected), "{error}");
        };
        let misspelt = tuned("tuned", "").replace("prcl", "prlc");
        check(&misspelt, "line 7: configuration 'tuned': tune: ");
        check(&tuned("failed", ""), "choose another name");
        let both = tuned("tuned", "isotherm = \"run {targets}\"\n");
        check(&both, "`isotherm` or `tune`, not both");
        let first = tuned("tuned", "").replace("[[configuration]]\nname = \"orig\"\n", "");
        check(&first, "first configuration, which is not tuned");
    }
}
