//! The `isotherm` command: one file per subcommand under [`cmd`].

/// Like the standard library's macro, but by [`out`].
macro_rules! print {
    ($($text:tt)*) => { $crate::out::print(format_args!($($text)*)) };
}
/// Like the standard library's macro, but by [`out`].
macro_rules! println {
    () => { $crate::out::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
/// Like the standard library's macro, but by [`out`].
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::out::note(format_args!("{}\n", format_args!($($text)*))) };
}

mod blame;
mod cmd;
mod daemon;
#[cfg(test)]
mod examples;
mod flags;
mod input;
mod log;
mod out;
mod progress;
#[cfg(test)]
mod schemas;
mod serve;
mod stop;
mod view;
mod whole_file;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use isotherm_linux::calibrate::subject::{SUBJECT, be_subject};

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// See which memory of a running program is hot, which is cold, since when, and what watching cost.
#[derive(Parser)]
#[command(name = "isotherm", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    verbosity: log::Verbosity,

    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Doctor(cmd::doctor::Args),
    Record(cmd::record::Args),
    Run(cmd::run::Args),
    Start(cmd::start::Args),
    Status(cmd::control::StatusArgs),
    Tune(cmd::tune::Args),
    /// Stop the daemon's schemes until `isotherm resume`. It goes on watching.
    #[command(after_help = "Example:\n  isotherm pause --socket /run/isotherm/redis.sock")]
    Pause(cmd::control::Where),
    /// Let the daemon act again after `isotherm pause`.
    #[command(after_help = "Example:\n  isotherm resume --socket /run/isotherm/redis.sock")]
    Resume(cmd::control::Where),
    /// End the daemon. What was paged out stays so until it is touched.
    #[command(after_help = "Example:\n  isotherm stop --socket /run/isotherm/redis.sock")]
    Stop(cmd::control::Where),
    Restore(cmd::restore::Args),
    Park(cmd::park::ParkArgs),
    Wake(cmd::park::WakeArgs),
    Thp(cmd::thp::Args),
    Check(cmd::check::Args),
    Swap(cmd::swap::Args),
    Compact(cmd::compact::Args),
    Tier(cmd::tier::Args),
    Damo(cmd::damo::Args),
    Damon(cmd::damon::Args),
    Compare(cmd::compare::Args),
    Report(cmd::report::Args),
    Top(cmd::top::Args),
    Web(cmd::web::Args),
    Convert(cmd::convert::Args),
    Symbolize(cmd::symbolize::Args),
    #[command(alias = "exercise")]
    Workload(cmd::workload::Args),
    Eval(cmd::eval::Args),
    Simulate(cmd::simulate::Args),
    Calibrate(cmd::calibrate::Args),
    #[cfg(feature = "reproduce")]
    #[command(alias = "paper")]
    Reproduce(cmd::reproduce::Args),
    Size(cmd::report::size::SizeArgs),
    Recommend(cmd::recommend::RecommendArgs),
    ReclaimCurve(cmd::report::reclaim_curve::ReclaimCurveArgs),
    EthpCurve(cmd::report::ethp_curve::EthpCurveArgs),
    /// Print a shell completion script.
    #[command(
        after_help = "Example:\n  isotherm completions bash > /etc/bash_completion.d/isotherm"
    )]
    Completions {
        /// Print the script of this shell.
        shell: clap_complete::Shell,
    },
    #[command(hide = true)]
    Man(cmd::man::Args),
}

impl Command {
    /// Returns whether a broken pipe can only be that of standard output.
    fn only_prints(&self) -> bool {
        #[cfg(feature = "reproduce")]
        if matches!(self, Self::Reproduce(_)) {
            return true;
        }
        matches!(
            self,
            Self::Doctor(_)
                | Self::Check(_)
                | Self::Tier(_)
                | Self::Damo(_)
                | Self::Damon(_)
                | Self::Report(_)
                | Self::ReclaimCurve(_)
                | Self::EthpCurve(_)
                | Self::Convert(_)
                | Self::Symbolize(_)
                | Self::Workload(_)
                | Self::Eval(_)
                | Self::Simulate(_)
                | Self::Calibrate(_)
                | Self::Completions { .. }
        )
    }
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if first.is_some_and(|first| first == SUBJECT) {
        return ExitCode::from(u8::from(be_subject().is_err()));
    }
    let Cli { verbosity, command } = Cli::parse();
    log::start(&verbosity);
    let prints = command.only_prints();
    let result = match command {
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Record(args) => cmd::record::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Start(args) => cmd::start::run(args),
        Command::Status(args) => cmd::control::status(&args),
        Command::Tune(args) => cmd::tune::run(&args),
        Command::Pause(args) => cmd::control::pause(&args),
        Command::Resume(args) => cmd::control::resume(&args),
        Command::Stop(args) => cmd::control::stop(&args),
        Command::Restore(args) => cmd::restore::run(&args),
        Command::Park(args) => cmd::park::park(&args),
        Command::Wake(args) => cmd::park::wake(&args),
        Command::Thp(args) => cmd::thp::run(&args),
        Command::Check(args) => cmd::check::run(&args),
        Command::Swap(args) => cmd::swap::run(&args),
        Command::Compact(args) => cmd::compact::run(&args),
        Command::Tier(args) => cmd::tier::run(&args),
        Command::Damo(args) => cmd::damo::run(&args),
        Command::Damon(args) => cmd::damon::run(&args),
        Command::Compare(args) => cmd::compare::run(&args),
        Command::Report(args) => cmd::report::run(args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Web(args) => cmd::web::run(&args),
        Command::Convert(args) => cmd::convert::run(&args),
        Command::Symbolize(args) => cmd::symbolize::run(&args),
        Command::Workload(args) => cmd::workload::run(args),
        Command::Eval(args) => cmd::eval::run(&args),
        Command::Simulate(args) => cmd::simulate::run(&args),
        Command::Calibrate(args) => cmd::calibrate::run(&args),
        #[cfg(feature = "reproduce")]
        Command::Reproduce(args) => cmd::reproduce::run(&args),
        Command::Size(args) => cmd::report::size::run(&args),
        Command::Recommend(args) => cmd::recommend::run(&args),
        Command::ReclaimCurve(args) => cmd::report::reclaim_curve::run(&args),
        Command::EthpCurve(args) => cmd::report::ethp_curve::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "isotherm", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => cmd::man::run(&args, Cli::command()),
    };
    result.unwrap_or_else(|error| {
        if prints && out::is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        let error = isotherm_record::printable_lines(&with_causes(&error));
        tracing::error!("{error}");
        ExitCode::from(2)
    })
}

/// Formats an error and its causes as a line, without causes that the text already contains.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    #[test]
    fn a_cause_is_named_once() {
        let error = Err::<(), _>(anyhow!("no such device"))
            .context("cannot size /dev/zram0: no such device")
            .context("no swap")
            .unwrap_err();
        let said = super::with_causes(&error);
        assert_eq!(said, "no swap: cannot size /dev/zram0: no such device");
    }
}
