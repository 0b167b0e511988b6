//! Checks of a configuration: whether it is valid, and whether this machine can run it.

use isotherm_config::{
    ConfigFormat, Configuration, Problem, Problems, Request, SessionSpec, Severity, TargetSpec,
};
use serde::Serialize;

#[cfg(feature = "live")]
use crate::acting::{all_schemes, for_want_of_swap, lacking, without_group};

/// An error or a warning about a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    pub severity: &'static str,
    pub line: Option<u32>,
    pub column: Option<u32>,
    pub path: String,
    pub problem: String,
}

impl Finding {
    /// Whether the configuration is unusable because of it.
    pub fn is_error(&self) -> bool {
        self.severity == severity(Severity::Error)
    }
}

/// Result of checking a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReport {
    pub contexts: usize,
    pub schemes: usize,
    pub findings: Vec<Finding>,
    /// Parts that this machine cannot run; the configuration cannot be run here.
    pub not_here: Vec<String>,
    /// Obstacles on this machine that do not prevent a run: no swap, a missing control group.
    pub warnings: Vec<String>,
}

impl CheckReport {
    /// Whether the configuration can be run on this machine.
    pub fn can_be_run(&self) -> bool {
        self.not_here.is_empty() && !self.findings.iter().any(Finding::is_error)
    }

    /// Returns the report as text for people.
    pub fn text(&self) -> String {
        let findings = self.findings.iter().map(|finding| &finding.problem);
        let problems = findings.chain(&self.not_here).chain(&self.warnings);
        let lines: Vec<&str> = problems.map(String::as_str).collect();
        if lines.is_empty() {
            return format!(
                "fine: {} contexts, {} schemes\n",
                self.contexts, self.schemes
            );
        }
        lines.join("\n") + "\n"
    }
}

/// Checks the text of a configuration: damo's or HMSDK's kdamonds, memtierd's policy, or one-line schemes.
pub fn check(text: &[u8]) -> CheckReport {
    let loaded = isotherm_config::text_of(text)
        .map_err(|problem| vec![problem])
        .and_then(|text| {
            isotherm_config::load(text, ConfigFormat::Detect).map_err(Problems::into_vec)
        });
    let (configuration, problems) = match loaded {
        Ok(configuration) => (configuration.clone(), configuration.warnings),
        Err(problems) => (Configuration::default(), problems),
    };
    let (not_here, warnings) = here(&configuration);
    CheckReport {
        contexts: configuration.contexts.len(),
        schemes: configuration.contexts.iter().map(|c| c.schemes.len()).sum(),
        findings: problems.iter().map(finding).collect(),
        not_here,
        warnings,
    }
}

/// Returns the parts that cannot be run here, or at all, and the obstacles on this machine.
fn here(configuration: &Configuration) -> (Vec<String>, Vec<String>) {
    // The caller may set the targets.
    let anybody = TargetSpec::named(Vec::new());
    let spec = Request::default().act_or_watch(&configuration.contexts, Some(anybody));
    match spec {
        Ok(spec) => (lacking(&spec), in_the_way(&spec)),
        Err(error) => (vec![error.to_string()], Vec::new()),
    }
}

#[cfg(feature = "live")]
fn in_the_way(spec: &SessionSpec) -> Vec<String> {
    let mut warnings = for_want_of_swap(&all_schemes(spec));
    warnings.extend(without_group(spec));
    warnings
}

#[cfg(not(feature = "live"))]
fn in_the_way(_spec: &SessionSpec) -> Vec<String> {
    Vec::new()
}

#[cfg(not(feature = "live"))]
fn lacking(_spec: &SessionSpec) -> Vec<String> {
    vec!["this build of Isotherm has no live sessions".to_owned()]
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn finding(problem: &Problem) -> Finding {
    Finding {
        severity: severity(problem.severity),
        line: problem.place.line,
        column: problem.place.column,
        path: problem.place.path.clone(),
        problem: problem.to_string(),
    }
}
