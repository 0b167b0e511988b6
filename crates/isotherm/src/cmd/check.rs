//! `isotherm check`: is a configuration right, and can this machine do it?

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use isotherm_config::{Configuration, Format, Problem, Problems, Request, Severity, TargetSpec};
use serde::Serialize;

use isotherm_session::lacking;

use crate::out::{self, ResultArgs};

/// Say what is wrong with a configuration, at which key or line, and what this machine cannot do of
/// it.
#[derive(clap::Args)]
#[command(after_help = "Example:
  isotherm check kdamonds.yaml

Exit status: 0 it can be run here, 1 it cannot, 2 it could not be read.")]
pub(crate) struct Args {
    /// damo's or HMSDK's kdamonds (JSON or YAML), or a .damos file of one-line schemes
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    result: ResultArgs,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Finding {
    severity: &'static str,
    line: Option<u32>,
    column: Option<u32>,
    path: String,
    problem: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Report {
    contexts: usize,
    schemes: usize,
    findings: Vec<Finding>,
    not_here: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let loaded = isotherm_config::text_of(&bytes)
        .map_err(|problem| vec![problem])
        .and_then(|text| isotherm_config::load(text, Format::Detect).map_err(Problems::into_vec));
    let (configuration, problems) = match loaded {
        Ok(configuration) => (configuration.clone(), configuration.warnings),
        Err(problems) => (Configuration::default(), problems),
    };
    let report = Report {
        contexts: configuration.contexts.len(),
        schemes: configuration.contexts.iter().map(|c| c.schemes.len()).sum(),
        findings: problems.iter().map(finding).collect(),
        not_here: not_here(&configuration),
    };
    if args.result.is_json() {
        println!("{}", out::json(&report)?);
    } else {
        for problem in &problems {
            println!("{name}: {}{problem}", prefix(problem));
        }
        for problem in &report.not_here {
            println!("{name}: {problem}");
        }
        if problems.is_empty() && report.not_here.is_empty() {
            println!(
                "{name}: fine: {} contexts, {} schemes",
                report.contexts, report.schemes
            );
        }
    }
    let wrong = problems.iter().any(|p| p.severity == Severity::Error);
    Ok(ExitCode::from(u8::from(
        wrong || !report.not_here.is_empty(),
    )))
}

/// What cannot be run here of it, or at all.
fn not_here(configuration: &Configuration) -> Vec<String> {
    // Whose memory may be for the command line to say.
    let anybody = TargetSpec::Processes {
        processes: Vec::new(),
        children: false,
    };
    let spec = Request::default().act_or_watch(&configuration.contexts, Some(anybody));
    spec.map_or_else(|error| vec![error.to_string()], |spec| lacking(&spec))
}

/// A warning says so itself.
fn prefix(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Error => "error: ",
        Severity::Warning => "",
    }
}

fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn finding(problem: &Problem) -> Finding {
    Finding {
        severity: severity(problem),
        line: problem.place.line,
        column: problem.place.column,
        path: problem.place.path.clone(),
        problem: problem.to_string(),
    }
}

/// The schema of what is printed.
#[cfg(test)]
pub(crate) fn schema() -> schemars::Schema {
    out::schema::<Report>()
}
