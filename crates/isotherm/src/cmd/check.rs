//! `isotherm check`: checks a configuration, and whether this machine can execute it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use isotherm_session::Finding;

use crate::out::{self, ResultArgs};

/// Check a configuration: what is wrong with it, at which key or line, and what this machine cannot do of
/// it.
#[derive(clap::Args)]
#[command(after_help = "Example:
  isotherm check kdamonds.yaml

Exit status: 0 it can be run here, 1 it cannot, 2 it could not be read.")]
pub(crate) struct Args {
    /// Check this file: damo's or HMSDK's kdamonds (JSON or YAML), memtierd's policy, or a .damos file of one-line
    /// schemes
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    result: ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let report = isotherm_session::check(&bytes);
    if args.result.is_json() {
        println!("{}", out::json(&report)?);
    } else {
        for finding in &report.findings {
            println!("{name}: {}{}", prefix(finding), finding.problem);
        }
        for problem in &report.not_here {
            println!("{name}: {problem}");
        }
        for warning in &report.warnings {
            println!("{name}: warning: {warning}");
        }
        if report.findings.is_empty() && report.not_here.is_empty() {
            let verdict = if report.warnings.is_empty() {
                "fine"
            } else {
                "can be run"
            };
            println!(
                "{name}: {verdict}: {} contexts, {} schemes",
                report.contexts, report.schemes
            );
        }
    }
    Ok(ExitCode::from(u8::from(!report.can_be_run())))
}

/// Returns the prefix of a finding; the text of a warning already contains one.
fn prefix(finding: &Finding) -> &'static str {
    if finding.is_error() { "error: " } else { "" }
}
