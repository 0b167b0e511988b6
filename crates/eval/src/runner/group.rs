//! A command in a process group of its own, so that all of it can be ended. A Ctrl-C at the terminal ends this process
//! only, which then ends the group.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// Length of the end of a command's output that messages contain.
const TAIL_BYTES: usize = 400;

/// Quotes a text as one word of a shell. Fails if it is no UTF-8.
pub fn quoted(word: impl AsRef<OsStr>) -> anyhow::Result<String> {
    let word = word.as_ref();
    let text = word.to_str();
    let text = text.with_context(|| format!("{} is no UTF-8", word.display()))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

/// A command and its process group. They are ended when this is dropped.
pub(super) struct Group {
    child: Child,
    name: String,
    folder: PathBuf,
    is_over: bool,
}

impl Group {
    /// Starts `line` by a shell in `folder`, with its output in `NAME.out` and `NAME.err`.
    pub(super) fn spawn(
        name: &str,
        line: &str,
        folder: &Path,
        variables: &[(&str, &Path)],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null());
        command.envs(variables.iter().copied());
        Self::start(name, &mut command, folder)
    }

    /// Starts a command without a shell in `folder`; the caller sets its standard input.
    pub(super) fn start(name: &str, command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        let create = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))
        };
        let child = command
            .current_dir(folder)
            .stdout(create("out")?)
            .stderr(create("err")?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{name}`"))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            folder: folder.to_owned(),
            is_over: false,
        })
    }

    /// Returns the id of its first process, which is that of its group.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether its first process has ended. It stays a zombie until [`Group::end`], so that its id is not used again.
    pub(super) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.raw_pid()), flags);
        !matches!(status, Ok(WaitStatus::StillAlive))
    }

    /// Asks only its first process to end.
    pub(super) fn interrupt(&self) {
        // After the wait, its id may be another process'.
        if !self.is_over {
            let _ = nix::sys::signal::kill(self.raw_pid(), Signal::SIGINT);
        }
    }

    /// Ends all processes of the group that still run. Returns the exit status of its first process.
    pub(super) fn end(&mut self) -> anyhow::Result<ExitStatus> {
        if !self.is_over {
            self.signal_all();
        }
        self.is_over = true;
        self.child
            .wait()
            .with_context(|| format!("cannot wait for `{}`", self.name))
    }

    pub(super) fn output(&self) -> String {
        self.read("out")
    }

    pub(super) fn last_words(&self, status: ExitStatus) -> String {
        let said = self.read("err");
        let said = if said.trim().is_empty() {
            self.output()
        } else {
            said
        };
        let said = said.trim();
        let mut from = said.len().saturating_sub(TAIL_BYTES);
        while !said.is_char_boundary(from) {
            from += 1;
        }
        let tail = said[from..].replace('\n', "; ");
        format!("`{}` ended with {status}: {tail}", self.name)
    }

    fn read(&self, end: &str) -> String {
        let path = self.folder.join(format!("{}.{end}", self.name));
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn signal_all(&self) {
        // The first process is not waited for yet, so the group still has this id. It may be empty.
        if !self.has_ended() {
            let _ = killpg(self.raw_pid(), Signal::SIGTERM);
            let limit = Instant::now() + GRACE;
            while !self.has_ended() && Instant::now() < limit {
                std::thread::sleep(POLL);
            }
        }
        let _ = killpg(self.raw_pid(), Signal::SIGKILL);
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The error cannot be reported any more.
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shells() {
        let quoted = |path: &str| quoted(Path::new(path)).expect("UTF-8");
        assert_eq!(quoted("/tmp/a b/$c"), "'/tmp/a b/$c'");
        assert_eq!(quoted("/it's"), r"'/it'\''s'");
    }
}
