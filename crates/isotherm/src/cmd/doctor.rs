//! `isotherm doctor`: reports what this machine can do.

use std::process::ExitCode;

use isotherm_linux::host::{self, CheckOutcome, HostReport};

use crate::out::ResultArgs;

/// Examine this machine: what works here, what is missing, and what would enable it.
///
/// Changes nothing. Exits with 0 if processes can be recorded, else with 1.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm doctor --json | jq .abilities")]
pub(crate) struct Args {
    #[command(flatten)]
    result: ResultArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = host::examine();
    args.result.print(&report, text)?;
    let works = report.abilities.first().is_some_and(|first| first.works);
    Ok(ExitCode::from(u8::from(!works)))
}

fn text(report: &HostReport) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{}, Linux {}\n\n", report.host, report.kernel);
    let widths = report.checks.iter().map(|check| check.name.len());
    let width = widths.max().unwrap_or(0);
    for check in &report.checks {
        let mark = match check.outcome {
            CheckOutcome::Ok => "ok     ",
            CheckOutcome::Missing => "MISSING",
            CheckOutcome::Note => "note   ",
        };
        writeln!(text, "  {mark}  {:width$}  {}", check.name, check.found).expect("a string");
        if let Some(remedy) = &check.remedy {
            writeln!(text, "           {:width$}  needs: {remedy}", "").expect("a string");
        }
    }
    text.push_str("\nWhat works here:\n");
    for ability in &report.abilities {
        let mark = if ability.works { "yes" } else { "NO " };
        write!(text, "  {mark}  {}", ability.name).expect("a string");
        match &ability.why_not {
            Some(why) => writeln!(text, ": {why}"),
            None => writeln!(text),
        }
        .expect("a string");
    }
    text
}
