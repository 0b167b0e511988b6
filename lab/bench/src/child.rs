//! Child processes that never outlive the bench.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use isotherm_linux::pressure;
use isotherm_linux::process::Process;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::BenchContext;

const GRACE: Duration = Duration::from_secs(10);

/// Number of children so far: each writes to a file of its own.
static NR_SPAWNED: AtomicU64 = AtomicU64::new(0);

/// Compiles a program of `experiments/workloads`; returns `None` without a compiler.
pub(super) fn compile(context: &BenchContext, name: &str) -> Result<Option<PathBuf>> {
    let source = format!("experiments/workloads/{name}.c");
    let (source, program) = (context.root.join(source), context.scratch(name));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).args([&program, &source]);
    let Ok(status) = compiler.status() else {
        return Ok(None);
    };
    ensure!(
        status.success(),
        "cc could not compile {}",
        source.display()
    );
    Ok(Some(program))
}

/// A running child, which is ended when it is dropped.
pub(super) struct Guarded {
    child: Child,
    name: String,
    errors: PathBuf,
    /// The file of its standard output, if [`Guarded::spawn_json`] started it.
    output: PathBuf,
}

impl Guarded {
    /// Starts `command`; keeps its standard error for messages.
    pub(super) fn spawn(context: &BenchContext, command: &mut Command) -> Result<Self> {
        let name = Path::new(command.get_program())
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let nth = NR_SPAWNED.fetch_add(1, Ordering::Relaxed);
        let errors = context.scratch(&format!("{name}.{nth}.stderr"));
        let file = File::create(&errors).context("cannot write to the temporary folder")?;
        let child = command
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}; is it installed?"))?;
        Ok(Self {
            child,
            name,
            errors,
            output: PathBuf::new(),
        })
    }

    /// Starts `command`, which prints JSON for [`Guarded::finish_json`].
    pub(super) fn spawn_json(context: &BenchContext, command: &mut Command) -> Result<Self> {
        let nth = NR_SPAWNED.fetch_add(1, Ordering::Relaxed);
        let output = context.scratch(&format!("{nth}.json"));
        let file = File::create(&output).context("cannot write to the temporary folder")?;
        let mut child = Self::spawn(context, command.stdout(file))?;
        child.output = output;
        Ok(child)
    }

    /// Runs `command` to its end and returns the JSON that it prints.
    pub(super) fn json(
        context: &BenchContext,
        command: &mut Command,
        limit: Duration,
    ) -> Result<Value> {
        Self::spawn_json(context, command)?.finish_json(context, limit)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn stdout(&mut self) -> Result<ChildStdout> {
        let output = self.child.stdout.take();
        output.context("standard output is a pipe, and read by nobody else")
    }

    /// Waits for the child to print `ready` on its piped output. Returns the rest of that output.
    pub(super) fn ready(&mut self) -> Result<BufReader<ChildStdout>> {
        let mut output = BufReader::new(self.stdout()?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let said = line.trim();
        ensure!(
            said == "ready",
            "{} said `{said}`: {}",
            self.name,
            self.said()
        );
        Ok(output)
    }

    /// Fails, with the child's standard error, if it has ended.
    pub(super) fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended early, with {status}: {}", self.name, self.said());
        }
        Ok(())
    }

    /// Waits for the child to end without a signal, successfully, within `limit`.
    pub(super) fn finish(&mut self, context: &BenchContext, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                self.stop()?;
                bail!(
                    "{} did not end within {} s: {}",
                    self.name,
                    limit.as_secs(),
                    self.said()
                );
            }
            context.sleep(Duration::from_millis(10))?;
        };
        if !status.success() {
            bail!("{} failed, with {status}: {}", self.name, self.said());
        }
        Ok(())
    }

    /// Waits as [`Guarded::finish`] does, and returns the JSON that the child has printed.
    pub(super) fn finish_json(&mut self, context: &BenchContext, limit: Duration) -> Result<Value> {
        self.finish(context, limit)?;
        let text = std::fs::read(&self.output)?;
        serde_json::from_slice(&text).with_context(|| format!("{} printed no JSON", self.name))
    }

    /// Ends the child: SIGTERM first, then SIGKILL.
    pub(super) fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        // The child has not been waited for, so the process id is still its own.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let end = Instant::now() + GRACE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Returns the last lines that the child wrote to standard error.
    fn said(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(4)..].join(" / ")
    }
}

/// Processes that belong together, and the one that is watched. They end in their order; then their folder is removed.
pub(super) struct Group {
    pub(super) children: Vec<Guarded>,
    pub(super) pid: u32,
    pub(super) folder: Option<TempDir>,
}

impl Group {
    pub(super) fn of(child: Guarded) -> Self {
        Self {
            pid: child.id(),
            children: vec![child],
            folder: None,
        }
    }

    pub(super) fn check_running(&mut self) -> Result<()> {
        // The server is the last: if it ends, its load ends with it.
        let mut children = self.children.iter_mut().rev();
        children.try_for_each(Guarded::check_running)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!(
                "isotherm-bench: cannot end {} (pid {}): {error}",
                self.name,
                self.id()
            );
        }
    }
}

/// Returns the processes that a process has started.
pub(super) fn children(pid: u32) -> Vec<u32> {
    Process::open(pid).map_or_else(|_| Vec::new(), |process| process.children())
}

/// Returns the CPU time of all children that have been waited for. The difference around waiting for one child is that
/// child's time.
pub(super) fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros as u64))
}

/// Returns the CPU time of all threads of a running process, to the nanosecond.
pub(super) fn process_cpu(pid: u32) -> Result<Duration> {
    let progress = pressure::progress(&Process::open(pid)?);
    let progress = progress.with_context(|| format!("process {pid} has ended"))?;
    Ok(Duration::from_nanos(progress.cpu.0))
}
