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

/// Declares the commands: each is a line of a name, its options and what runs it. `@` names a feature that it needs;
/// `prints` says that a broken pipe can only be that of standard output.
macro_rules! commands {
    ($(
        $(@$feature:literal)? $(#[$attribute:meta])*
        $name:ident($args:ident: $type:ty) => $run:expr $(, $prints:ident)?;
    )*) => {
        #[derive(clap::Subcommand)]
        enum Command {
            $($(#[cfg(feature = $feature)])? $(#[$attribute])* $name($type),)*
        }

        impl Command {
            fn only_prints(&self) -> bool {
                let is_so: &[&str] = match self {
                    $($(#[cfg(feature = $feature)])? Self::$name(_) => &[$(stringify!($prints))?],)*
                };
                !is_so.is_empty()
            }

            fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$name($args) => $run,)*
                }
            }
        }
    };
}

commands! {
    Doctor(args: cmd::doctor::Args) => cmd::doctor::run(&args), prints;
    Record(args: cmd::record::Args) => cmd::record::run(&args);
    Run(args: cmd::run::Args) => cmd::run::run(&args);
    Start(args: cmd::start::Args) => cmd::start::run(args);
    Status(args: cmd::control::StatusArgs) => cmd::control::status(&args);
    Tune(args: cmd::tune::Args) => cmd::tune::run(&args);
    /// Stop the daemon's schemes until `isotherm resume`. It goes on watching.
    #[command(after_help = "Example:\n  isotherm pause --socket /run/isotherm/redis.sock")]
    Pause(args: cmd::control::Where) => cmd::control::pause(&args);
    /// Let the daemon act again after `isotherm pause`.
    #[command(after_help = "Example:\n  isotherm resume --socket /run/isotherm/redis.sock")]
    Resume(args: cmd::control::Where) => cmd::control::resume(&args);
    /// End the daemon. What was paged out stays so until it is touched.
    #[command(after_help = "Example:\n  isotherm stop --socket /run/isotherm/redis.sock")]
    Stop(args: cmd::control::Where) => cmd::control::stop(&args);
    Restore(args: cmd::restore::Args) => cmd::restore::run(&args);
    Park(args: cmd::park::ParkArgs) => cmd::park::park(&args);
    Wake(args: cmd::park::WakeArgs) => cmd::park::wake(&args);
    Thp(args: cmd::thp::Args) => cmd::thp::run(&args);
    Check(args: cmd::check::Args) => cmd::check::run(&args), prints;
    Swap(args: cmd::swap::Args) => cmd::swap::run(&args);
    Compact(args: cmd::compact::Args) => cmd::compact::run(&args);
    Tier(args: cmd::tier::Args) => cmd::tier::run(&args), prints;
    Damo(args: cmd::damo::Args) => cmd::damo::run(&args), prints;
    Damon(args: cmd::damon::Args) => cmd::damon::run(&args), prints;
    Compare(args: cmd::compare::Args) => cmd::compare::run(&args);
    Report(args: cmd::report::Args) => cmd::report::run(args), prints;
    Top(args: cmd::top::Args) => cmd::top::run(&args);
    Web(args: cmd::web::Args) => cmd::web::run(&args);
    Convert(args: cmd::convert::Args) => cmd::convert::run(&args), prints;
    Symbolize(args: cmd::symbolize::Args) => cmd::symbolize::run(&args), prints;
    #[command(alias = "exercise")]
    Workload(args: cmd::workload::Args) => cmd::workload::run(args), prints;
    Eval(args: cmd::eval::Args) => cmd::eval::run(&args), prints;
    Simulate(args: cmd::simulate::Args) => cmd::simulate::run(&args), prints;
    Calibrate(args: cmd::calibrate::Args) => cmd::calibrate::run(&args), prints;
    @"reproduce"
    #[command(alias = "paper")]
    Reproduce(args: cmd::reproduce::Args) => cmd::reproduce::run(&args), prints;
    Size(args: cmd::report::size::SizeArgs) => cmd::report::size::run(&args);
    Recommend(args: cmd::recommend::RecommendArgs) => cmd::recommend::run(&args);
    ReclaimCurve(args: cmd::report::reclaim_curve::ReclaimCurveArgs) => cmd::report::reclaim_curve::run(&args), prints;
    EthpCurve(args: cmd::report::ethp_curve::EthpCurveArgs) => cmd::report::ethp_curve::run(&args), prints;
    /// Print a shell completion script.
    #[command(after_help = "Example:\n  isotherm completions bash > /etc/bash_completion.d/isotherm")]
    Completions(args: CompletionsArgs) => Ok(completions(&args)), prints;
    #[command(hide = true)]
    Man(args: cmd::man::Args) => cmd::man::run(&args, Cli::command());
}

#[derive(clap::Args)]
struct CompletionsArgs {
    /// Print the script of this shell.
    shell: clap_complete::Shell,
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if first.is_some_and(|first| first == SUBJECT) {
        return ExitCode::from(u8::from(be_subject().is_err()));
    }
    let Cli { verbosity, command } = Cli::parse();
    log::start(&verbosity);
    let prints = command.only_prints();
    command.run().unwrap_or_else(|error| {
        if prints && out::is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        let error = isotherm_record::printable_lines(&with_causes(&error));
        tracing::error!("{error}");
        ExitCode::from(2)
    })
}

fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "isotherm", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
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
