//! `isotherm status`, `tune`, `pause`, `resume` and `stop`: talk to the daemon.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use isotherm_engine::units::format_bytes;
use isotherm_record::printable;
use tracing::info;

use crate::daemon::SOCKET;
use crate::daemon::client::{DaemonRequest, ask, text};

/// The daemon's socket.
#[derive(clap::Args)]
pub(crate) struct Where {
    /// Talk to the daemon at this socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Show what the daemon watches, what its schemes have done, and how the guard stands.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm status --watch")]
pub(crate) struct StatusArgs {
    /// Print the status as JSON
    #[arg(long)]
    json: bool,

    /// Print the status every second, until Ctrl-C or the daemon's end
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    at: Where,
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    loop {
        let status = ask(&args.at.socket, &DaemonRequest::Status)?;
        let mut out = std::io::stdout().lock();
        let text = match (args.json, args.watch) {
            (true, true) => status.to_string(),
            (true, false) => serde_json::to_string_pretty(&status)?,
            (false, _) => text(&status),
        };
        if args.watch && !args.json && crate::out::draws_on(&out) {
            // Move the cursor home, overwrite the old text, and clear what is left.
            let lines = text.replace('\n', "\x1b[K\n");
            write!(out, "\x1b[H{lines}\x1b[K\n\x1b[J")?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Replaces the schemes and limits of the daemon at `socket` by those of `config`, while it runs. A faulty file changes
/// nothing.
pub(crate) fn tune(config: &Path, socket: &Path) -> anyhow::Result<ExitCode> {
    let name = config.display();
    let bytes = std::fs::read(config).with_context(|| format!("cannot read {name}"))?;
    let config = String::from_utf8(bytes).with_context(|| format!("{name} is not text"))?;
    let request = DaemonRequest::Tune {
        config,
        name: name.to_string(),
    };
    tell(socket, &request)
}

/// Replaces the schemes of the daemon at `socket`, while it runs; its limits stay.
pub(crate) fn set_schemes(
    presets: &[String],
    lines: &[String],
    socket: &Path,
) -> anyhow::Result<ExitCode> {
    let request = DaemonRequest::Schemes {
        presets: presets.to_vec(),
        lines: lines.to_vec(),
    };
    tell(socket, &request)
}

pub(crate) fn pause(at: &Where) -> anyhow::Result<ExitCode> {
    let code = tell(&at.socket, &DaemonRequest::Pause)?;
    info!("paused: it goes on watching, and acts again after `isotherm resume`");
    Ok(code)
}

pub(crate) fn resume(at: &Where) -> anyhow::Result<ExitCode> {
    let code = tell(&at.socket, &DaemonRequest::Resume)?;
    info!("resumed: schemes act again");
    Ok(code)
}

pub(crate) fn stop(at: &Where) -> anyhow::Result<ExitCode> {
    let out = out_of(&at.socket);
    let code = tell(&at.socket, &DaemonRequest::Stop)?;
    let asked = Instant::now();
    while at.socket.exists() {
        if asked.elapsed() > Duration::from_secs(30) {
            bail!(
                "it was asked to stop, but {} is still there",
                at.socket.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    match out {
        Some(out) if out > 0 => info!(
            "stopped; {} of its targets' memory is in swap; it is read back when it is used",
            format_bytes(out)
        ),
        _ => info!("stopped"),
    }
    Ok(code)
}

/// Returns the bytes that the daemon's targets have in swap, if it reports them.
fn out_of(socket: &Path) -> Option<u64> {
    let status = ask(socket, &DaemonRequest::Status).ok()?;
    let targets = status["targets"].as_array()?;
    let swapped = targets
        .iter()
        .filter_map(|target| target["swap_bytes"].as_u64());
    Some(swapped.sum())
}

fn tell(socket: &Path, request: &DaemonRequest) -> anyhow::Result<ExitCode> {
    let reply = ask(socket, request)?;
    for note in reply["notes"].as_array().into_iter().flatten() {
        eprintln!("{}", printable(note.as_str().unwrap_or_default()));
    }
    Ok(ExitCode::SUCCESS)
}
