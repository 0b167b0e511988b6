//! `isotherm top`: the live view.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;

use isotherm_config::TargetSpec;
use isotherm_session::Session;

use crate::flags::WatchArgs;
use crate::view::{self, ReplaySource};

/// Watch live which memory is hot and which is cold, and what watching costs.
///
/// Several targets are a list: Enter opens the map of one, Esc goes back. Keys: q quit, p pause, s sort, t next target,
/// arrows move or scroll, ? help. A command that is run here prints nothing: its output would go over the picture.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm top --pid 1234
  isotherm top --cgroup system.slice/redis.service --cpu-budget 0.5%
  isotherm top --all --exclude sshd
  isotherm top --physical
  isotherm top --replay rec.isotherm --speed 4")]
pub(crate) struct Args {
    /// Play a record back instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "cgroup", "all", "physical", "node", "simulated", "command"])]
    replay: Option<PathBuf>,

    /// Play --replay back this many times as fast as it was recorded
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "replay", value_parser = parse_speed)]
    speed: f64,

    #[command(flatten)]
    watch: WatchArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "top draws on a terminal, and this is none; use `isotherm record` and `isotherm report` instead"
    );
    ensure!(
        crate::out::draws_on(&std::io::stdout()),
        "top draws on a terminal that can go back, and this one (TERM=dumb) cannot; `isotherm record` and \
         `isotherm report` say the same in lines"
    );
    if let Some(path) = &args.replay {
        let title = path.display().to_string();
        view::run(&mut ReplaySource::open(path, args.speed)?, &title)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut request = args.watch.request();
    if let Some(TargetSpec::Command { is_silent, .. }) = &mut request.targets {
        *is_silent = true;
    }
    let mut session = Session::start(&request.watch()?, crate::out::command_line())?;
    session.give_up_privileges(false)?;
    let shown = view::run(&mut session, "");
    if let Some(mut child) = session.take_child() {
        isotherm_linux::process::terminate(&mut child);
        child.wait().ok();
    }
    shown.map(|()| ExitCode::SUCCESS)
}

fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err(format!("'{text}' is not a positive number, e.g. 4")),
    }
}
