//! Settings of the machine that an experiment changes. They are undone at the end, on failure and on signals. After a
//! crash the next evaluation undoes them, from a note in `/run/isotherm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::settings::Settings;
use super::{RunEvent, cgroup};
use crate::journal::RunMachine;
use crate::{Experiment, RunConfiguration};
use anyhow::{Context, bail, ensure};
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::swap::{SwapArea, SwapSetup, ZramOptions};
use isotherm_linux::{host, process, state, swap};

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
const NOTE: &str = "/run/isotherm/eval";

/// Changes to the machine, undone when dropped.
#[derive(Default)]
pub(super) struct Machine {
    settings: Settings,
    zram: Option<Zram>,
    /// Bytes of swap that belongs to others and is used as it is.
    foreign_swap: Option<u64>,
}

struct Zram {
    bytes: u64,
    /// `None` while it is not set up.
    device: Option<PathBuf>,
}

impl Machine {
    /// Undoes the changes of a crashed evaluation, and sets up swap.
    pub(super) fn prepare(
        experiment: &Experiment,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<Self> {
        recover(on_event)?;
        let mut machine = Self::default();
        if let Some(size) = &experiment.zram {
            let bytes = isotherm_engine::units::parse_bytes(size)?;
            let there = swap::facts().total;
            if there == 0 {
                machine.set_up_zram(bytes)?;
            } else {
                ensure!(
                    SwapArea::are_in_memory(),
                    "there is swap on disk, which runs would use besides the experiment's zram; take \
                     it away first (`swapoff -a`), or leave `zram` out of the experiment"
                );
                on_event(RunEvent::Warning(
                    "using the zram swap that is there, which is not emptied between \
                     runs; without it (`isotherm swap off`) the experiment makes its own",
                ));
                machine.foreign_swap = Some(there);
            }
        }
        Ok(machine)
    }

    pub(super) fn set_up(
        &mut self,
        experiment: &Experiment,
        configuration: &RunConfiguration,
    ) -> anyhow::Result<()> {
        let facts = swap::facts();
        if let Some(zram) = self.zram.as_mut().filter(|_| facts.free < facts.total) {
            // Pages that an earlier run swapped out (of the whole machine, perhaps) must not slow this one.
            let bytes = zram.bytes;
            take_away(zram.device.as_deref()).context("cannot empty the experiment's swap")?;
            zram.device = None;
            self.set_up_zram(bytes)?;
        }
        let wanted = configuration.all_settings();
        if self.settings.remember(&wanted)? {
            self.note()?;
        }
        self.settings.apply(&wanted)?;
        if experiment.drop_caches {
            fs::write(DROP_CACHES, "3")
                .with_context(|| format!("cannot drop caches by {DROP_CACHES}; are you root?"))?;
        }
        Ok(())
    }

    /// Sets up the experiment's swap. Only this device is removed later: other swap of Isotherm may belong to a user.
    fn set_up_zram(&mut self, bytes: u64) -> anyhow::Result<()> {
        let zram = self.zram.insert(Zram {
            bytes,
            device: None,
        });
        let options = ZramOptions {
            bytes,
            ..ZramOptions::default()
        };
        let device = SwapSetup::zram(&options).context("cannot set up the experiment's swap")?;
        zram.device = Some(device);
        self.note()
    }

    pub(super) fn describe(&self) -> RunMachine {
        let line = |path: &str, key: &str| -> Option<String> {
            let text = fs::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        RunMachine {
            host: host::hostname(),
            kernel: host::kernel_release(),
            cpu: line("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            nr_cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_kib: Meminfo::read().get("MemTotal").unwrap_or(0) >> 10,
            isotherm: env!("CARGO_PKG_VERSION").into(),
            foreign_swap_kib: self.foreign_swap.map(|bytes| bytes >> 10),
            time_s: now_s(),
        }
    }

    pub(super) fn restore(&mut self) -> anyhow::Result<()> {
        if self.settings.is_empty() && self.zram_device().is_none() {
            return Ok(());
        }
        let undone = undo(&self.settings, self.zram_device());
        self.zram = None;
        self.settings = Settings::default();
        undone.with_context(|| {
            format!("{NOTE} says what is to be undone, and the next evaluation tries again")
        })
    }

    fn zram_device(&self) -> Option<&Path> {
        self.zram.as_ref()?.device.as_deref()
    }

    /// Writes the note of changes to undo. (`isotherm swap off` knows swap that is being set up.)
    fn note(&self) -> anyhow::Result<()> {
        let mut text = format!("pid {}\n", std::process::id());
        text += &self.settings.note();
        if let Some(device) = self.zram_device() {
            text += &["zram ", &device.to_string_lossy(), "\n"].concat();
        }
        state::directory()?;
        fs::write(NOTE, text)
            .with_context(|| format!("cannot note in {NOTE} what is to be undone; are you root?"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An orderly end has reported errors already; the note stays for the next evaluation.
        let _ = self.restore();
    }
}

fn take_away(device: Option<&Path>) -> Result<(), swap::SwapError> {
    match device.map(SwapSetup::take_down) {
        // Another process has removed it.
        None | Some(Ok(()) | Err(swap::SwapError::NotOurDevice(_))) => Ok(()),
        Some(Err(error)) => Err(error),
    }
}

fn undo(settings: &Settings, zram: Option<&Path>) -> anyhow::Result<()> {
    let zram = take_away(zram).context("cannot take the experiment's swap away");
    settings.undo().and(zram)?;
    fs::remove_file(NOTE).with_context(|| format!("cannot remove {NOTE}"))
}

/// Undoes the changes of an evaluation that was killed.
fn recover(on_event: &mut dyn FnMut(RunEvent<'_>)) -> anyhow::Result<()> {
    cgroup::recover();
    let Ok(text) = fs::read_to_string(NOTE) else {
        return Ok(());
    };
    let find = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    if let Some(pid) = find("pid ").and_then(|pid| pid.parse::<u32>().ok())
        && process::has_name(pid, "isotherm")
    {
        bail!(
            "another evaluation is running (process {pid}); two at once would disturb each other"
        );
    }
    on_event(RunEvent::Warning(
        "undoing what an evaluation that was killed has left",
    ));
    let settings = Settings::of_note(&text);
    undo(&settings, find("zram ").map(Path::new))
}

pub(super) fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}
