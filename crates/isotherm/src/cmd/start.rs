//! `isotherm start`: the daemon.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use isotherm_record::{printable_lines, quoted};

use crate::daemon::{self, Config, OtlpReceiver, PodPolicySource, SOCKET, client};
use crate::flags::ActArgs;

/// Act on memory as `isotherm run` does, as a service that can be asked and tuned while it works.
///
/// It stays in the foreground, for systemd (Type=notify) or a terminal, or goes to the background
/// with --detach. SIGHUP reads the configuration again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm start -c kdamonds.json --cgroup system.slice/redis.service --detach
  isotherm start --preset prcl --pid 1234 --metrics 127.0.0.1:9464
  isotherm start --preset damon_reclaim --exclude sshd        # the machine, while memory is short
Then: isotherm status; isotherm tune -c new.json; isotherm pause; isotherm resume; isotherm stop")]
pub(crate) struct Args {
    /// Listen for requests at this socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,

    /// Serve Prometheus metrics at this loopback address, e.g. 127.0.0.1:9464
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,

    /// Send metrics to this receiver of OTLP over HTTP, e.g. an OpenTelemetry Collector: http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Send metrics this often
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = isotherm_engine::units::parse_time, requires = "otlp")]
    otlp_every: isotherm_engine::Nanos,

    /// Name the pods of control groups in the metrics (`isotherm_pod_info`), by the kubelet's folder of logs
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = isotherm_linux::pods::FOLDER)]
    pods: Option<PathBuf>,

    /// Act only on processes of pods with the annotation `isotherm.io/policy: reclaim`, as reported by a proxy of the
    /// API server at this loopback address: http://127.0.0.1:8001
    #[arg(long, value_name = "URL", requires = "node_name")]
    pod_policy: Option<String>,

    /// Ask for the pods of this node, by the cluster's name for it
    #[arg(long, value_name = "NAME", requires = "pod_policy")]
    node_name: Option<String>,

    /// Ask for pods' annotations this often
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = isotherm_engine::units::parse_time, requires = "pod_policy")]
    pod_policy_every: isotherm_engine::Nanos,

    /// Return once the daemon is at work, and leave it in the background; its log is the socket's path with .log
    #[arg(long)]
    detach: bool,

    /// Run as the process that --detach leaves in the background.
    #[arg(long, hide = true)]
    detached: bool,

    #[command(flatten)]
    act: ActArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.act.watch.targets.command.is_empty(),
        "a daemon watches what runs already; `isotherm run -- COMMAND` starts a command"
    );
    let pod_policy = pod_policy(&args)?;
    let otlp = args.otlp.as_deref();
    let otlp = otlp
        .map(|url| OtlpReceiver::new(url, args.otlp_every))
        .transpose()?;
    ensure!(
        args.pods.is_none() || args.metrics.is_some() || otlp.is_some(),
        "--pods names pods in metrics; add --metrics or --otlp"
    );
    if args.detach {
        return detach(&args);
    }
    if args.detached {
        nix::unistd::setsid().context("cannot leave the terminal's session")?;
    }
    daemon::run(Config {
        socket: args.socket,
        metrics: args.metrics,
        otlp,
        pods: args.pods,
        pod_policy,
        request: args.act.request(),
        file: args.act.schemes.config,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the source that names the pods which may be acted on, if one is configured.
fn pod_policy(args: &Args) -> anyhow::Result<Option<PodPolicySource>> {
    let (Some(url), Some(node)) = (&args.pod_policy, &args.node_name) else {
        return Ok(None);
    };
    let every = Duration::from_nanos(args.pod_policy_every.0);
    PodPolicySource::new(url, node, every).map(Some)
}

const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts this program again in the background, and waits until it answers or has failed.
fn detach(args: &Args) -> anyhow::Result<ExitCode> {
    let log_path = client::log_of(&args.socket);
    daemon::make_folder_of(&log_path)?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&log_path)
        .with_context(|| format!("cannot write {}; run as root", log_path.display()))?;
    let begins_at = log.metadata().map_or(0, |metadata| metadata.len());
    let mut child = background(log)?;
    let started = Instant::now();
    loop {
        if let Ok(status) = client::ask(&args.socket, &client::DaemonRequest::Status)
            && status["pid"] == child.id()
        {
            let at = socket_flag(&args.socket);
            println!(
                "isotherm runs (pid {}); `isotherm status{at}` shows its state",
                child.id()
            );
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(status) = child.try_wait()? {
            let said = std::fs::read(&log_path).unwrap_or_default();
            let said = said.get(begins_at as usize..).unwrap_or_default();
            eprint!("{}", printable_lines(&String::from_utf8_lossy(said)));
            return Ok(ExitCode::from(
                status.code().map_or(2, |code| code.clamp(1, 255) as u8),
            ));
        }
        if started.elapsed() > TIMEOUT {
            // No daemon is better than one that cannot be reached.
            child.kill().ok();
            child.wait().ok();
            bail!(
                "it did not get to work within {} s; {} may say why",
                TIMEOUT.as_secs(),
                log_path.display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the flag that leads other commands to a daemon with another socket than the default.
fn socket_flag(socket: &Path) -> String {
    if socket == Path::new(SOCKET) {
        return String::new();
    }
    format!(" --socket {}", quoted(&socket.display().to_string()))
}

fn background(log: File) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let arguments = std::env::args_os().skip(1).map(|argument| {
        if argument == "--detach" {
            "--detached".into()
        } else {
            argument
        }
    });
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start it in the background")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_leads_to_the_daemon_that_was_started() {
        let check = |socket: &str, wanted| assert_eq!(socket_flag(Path::new(socket)), wanted);
        check(SOCKET, "");
        check("/tmp/a.sock", " --socket /tmp/a.sock");
        check("/tmp/it's", " --socket '/tmp/it'\\''s'");
    }
}
