//! The note of all that was set up: zram devices, swap files and settings of zswap, each a line in the state directory.
//!
//! Problem: another command takes it away, maybe after a crash. A command that is killed half way must leave nothing.
//!
//! Approach: each part is noted before it is made, as unfinished. The marks go once all parts are made. The next
//! command takes away what is unfinished, from the last part to the first; `swap off` takes away everything. The note is
//! locked while it is open, so an unfinished part never belongs to a command that still runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::area::{SwapError, impossible, is_swap, step, swap_on};
use super::zram::{State, ZramDevice, ZramOptions};
use super::zswap::{PARAMETERS, Setting, SwapFile, ZswapOptions, require_compressor};
use crate::privileges;
use crate::state;

/// Name of the note's file, from the time when it listed zram devices only.
const NOTE: &str = "zram-swap";
const UNFINISHED: &str = " unfinished";

/// Result of removing a noted device, file or setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TakenDown {
    /// Device, file, or setting of zswap.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub device: PathBuf,
    /// Size with which it was made; 0 if an older version noted none, or it was not made here.
    pub bytes: u64,
    /// Old value that a setting has again.
    pub set_again: Option<String>,
    /// Whether it no longer matches the note: it is gone, or belongs to another user by now. It was left unchanged.
    pub was_not_ours: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Zram(ZramDevice),
    File(SwapFile),
    Setting(Setting),
}

impl Part {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.split_first()? {
            (&"file", words) => SwapFile::parse(words).map(Self::File),
            (&"zswap", words) => Setting::parse(words).map(Self::Setting),
            _ => ZramDevice::parse(line).map(Self::Zram),
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Zram(device) => device.line(),
            Self::File(file) => file.line(),
            Self::Setting(of) => format!("zswap {} {}", of.name, of.old),
        }
    }

    fn take_down(&self, parameters: &Path) -> Result<TakenDown, SwapError> {
        let (device, bytes, is_ours, set_again) = match self {
            Self::Zram(of) => (of.device(), of.bytes, of.take_down()?, None),
            Self::File(of) => (of.path.clone(), of.bytes, of.take_down()?, None),
            Self::Setting(of) => {
                of.write(parameters, &of.old)?;
                (parameters.join(&of.name), 0, true, Some(of.old.clone()))
            }
        };
        Ok(TakenDown {
            device,
            bytes,
            set_again,
            was_not_ours: !is_ours,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Noted {
    part: Part,
    is_unfinished: bool,
}

impl Noted {
    fn parse(line: &str) -> Option<Self> {
        let part = line.strip_suffix(UNFINISHED);
        Some(Self {
            part: Part::parse(part.unwrap_or(line))?,
            is_unfinished: part.is_some(),
        })
    }

    fn line(&self) -> String {
        let mark = if self.is_unfinished { UNFINISHED } else { "" };
        format!("{}{mark}\n", self.part.line())
    }

    /// Whether it was left unfinished, or is a device that is no longer in use.
    fn is_left_over(&self) -> bool {
        let is_unused = |device: &ZramDevice| device.state() != State::Ours { is_swap: true };
        self.is_unfinished || matches!(&self.part, Part::Zram(device) if is_unused(device))
    }
}

/// Swap that Isotherm sets up and takes away. Only one command at a time does.
#[derive(Debug)]
pub struct SwapSetup {
    note: PathBuf,
    /// Directory of zswap's settings.
    parameters: PathBuf,
    _lock: File,
}

impl SwapSetup {
    /// Makes compressed swap in memory and returns the device.
    pub fn zram(options: &ZramOptions) -> Result<PathBuf, SwapError> {
        check_size(options.bytes)?;
        Self::open()?.whole(|setup| {
            let device = ZramDevice::new(options.bytes)?;
            setup.begin(Part::Zram(device.clone()))?;
            device.set_up(options)?;
            Ok(device.device())
        })
    }

    /// Makes swap with zswap before it, and returns the file or device. One that is in use already only gets zswap.
    pub fn zswap(options: &ZswapOptions) -> Result<PathBuf, SwapError> {
        if options.bytes > 0 {
            check_size(options.bytes)?;
        }
        Self::open()?.whole(|setup| {
            let file = SwapFile::new(&options.path, options.bytes)?;
            let enabled = setup.begin_setting("enabled")?;
            for (name, value) in &options.settings {
                let setting = setup.begin_setting(name)?;
                setup.set(&setting, value)?;
            }
            setup.set(&enabled, "Y")?;
            if !is_swap(&file.path) {
                setup.begin(Part::File(file.clone()))?;
                file.make()?;
                swap_on(&file.path, options.priority)?;
            }
            Ok(file.path)
        })
    }

    /// Removes all that was set up, here or in earlier runs, and sets again what was changed.
    pub fn take_down_all() -> Result<Vec<TakenDown>, SwapError> {
        let mut setup = Self::locked()?;
        if setup.read().is_empty() {
            return Err(SwapError::NotOurs);
        }
        setup.take_down_those(|_| true)
    }

    /// Removes the device that a call of [`Self::zram`] returned, and no other.
    pub fn take_down(device: &Path) -> Result<(), SwapError> {
        let is_it = |noted: &Noted| matches!(&noted.part, Part::Zram(of) if of.device() == device);
        let done = Self::locked()?.take_down_those(is_it)?;
        let is_done = done.first().is_some_and(|done| !done.was_not_ours);
        is_done
            .then_some(())
            .ok_or_else(|| SwapError::NotOurDevice(device.to_owned()))
    }

    /// Locks the note, and takes away what earlier commands left unfinished.
    pub(crate) fn open() -> Result<Self, SwapError> {
        let mut setup = Self::locked()?;
        setup.take_down_those(Noted::is_left_over)?;
        Ok(setup)
    }

    fn locked() -> Result<Self, SwapError> {
        // Without the privilege, some step fails for a misleading reason.
        if !privileges::may_swap() {
            return Err(SwapError::NotPermitted);
        }
        Self::at(&state::directory()?, Path::new(PARAMETERS))
    }

    fn at(directory: &Path, parameters: &Path) -> Result<Self, SwapError> {
        let note = directory.join(NOTE);
        let lock = note.with_extension("lock");
        let locked = private(OpenOptions::new().create(true).truncate(false))
            .open(&lock)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(step(format!("lock {}", lock.display())))?;
        Ok(Self {
            note,
            parameters: parameters.to_owned(),
            _lock: locked,
        })
    }

    /// Makes something as a whole: all of its parts, or none.
    fn whole<T>(
        mut self,
        make: impl FnOnce(&mut Self) -> Result<T, SwapError>,
    ) -> Result<T, SwapError> {
        let made = make(&mut self);
        if made.is_err() {
            // A part that cannot be reverted now stays noted.
            self.abandon().ok();
            return made;
        }
        let mut all = self.read();
        for noted in &mut all {
            noted.is_unfinished = false;
        }
        self.write(&all)?;
        made
    }

    /// Takes away what is unfinished, as far as possible.
    pub(crate) fn abandon(&mut self) -> Result<(), SwapError> {
        self.take_down_those(|noted| noted.is_unfinished).map(drop)
    }

    /// Notes a part that will be made.
    pub(crate) fn begin(&mut self, part: Part) -> Result<(), SwapError> {
        let mut all = self.read();
        all.push(Noted {
            part,
            is_unfinished: true,
        });
        self.write(&all)
    }

    /// Notes the value of a setting of zswap that will change.
    pub(crate) fn begin_setting(&mut self, name: &str) -> Result<Setting, SwapError> {
        if !self.parameters.exists() {
            let why =
                "this kernel has none (CONFIG_ZSWAP is off); `isotherm swap zram` does without";
            return Err(impossible("use zswap", why));
        }
        let setting = Setting::new(&self.parameters, name)?;
        self.begin(Part::Setting(setting.clone()))?;
        Ok(setting)
    }

    pub(crate) fn value(&self, name: &str) -> String {
        let value = fs::read_to_string(self.parameters.join(name));
        value.unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn set(&self, setting: &Setting, value: &str) -> Result<(), SwapError> {
        if setting.name == "compressor" {
            require_compressor(value)?;
        }
        setting.write(&self.parameters, value)
    }

    fn read(&self) -> Vec<Noted> {
        let text = fs::read_to_string(&self.note).unwrap_or_default();
        text.lines().filter_map(Noted::parse).collect()
    }

    /// Takes the noted parts that `choose` selects away, the last first, as far as possible. Returns the first error.
    fn take_down_those(
        &mut self,
        choose: impl Fn(&Noted) -> bool,
    ) -> Result<Vec<TakenDown>, SwapError> {
        let mut left = self.read();
        let (mut done, mut failed) = (Vec::new(), None);
        for at in (0..left.len())
            .rev()
            .filter(|at| choose(&left[*at]))
            .collect::<Vec<_>>()
        {
            match left[at].part.take_down(&self.parameters) {
                Ok(taken) => {
                    done.push(taken);
                    left.remove(at);
                    self.write(&left)?;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Writes the note atomically.
    fn write(&self, all: &[Noted]) -> Result<(), SwapError> {
        let cannot = || step(format!("note it in {}", self.note.display()));
        if all.is_empty() {
            return match fs::remove_file(&self.note) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot()(error)),
                _ => Ok(()),
            };
        }
        let text: String = all.iter().map(Noted::line).collect();
        let new = self.note.with_extension("new");
        private(OpenOptions::new().create(true).truncate(true))
            .open(&new)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &self.note))
            .map_err(cannot())
    }
}

fn check_size(bytes: u64) -> Result<(), SwapError> {
    let is_possible = (1 << 20..=1 << 44).contains(&bytes);
    is_possible.then_some(()).ok_or(SwapError::Size(bytes))
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_noted_before_they_change_and_set_again_by_the_next_command() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        let get = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
        fs::write(path("enabled"), "N").expect("written");
        fs::write(path("max_pool_percent"), "20").expect("written");
        let open = || SwapSetup::at(folder.path(), folder.path()).expect("our directory");
        let change = |setup: &mut SwapSetup, name: &str, value: &str| {
            let setting = setup.begin_setting(name)?;
            setup.set(&setting, value)
        };
        let mut killed = open();
        change(&mut killed, "max_pool_percent", "7").expect("set");
        change(&mut killed, "enabled", "Y").expect("set");
        let noted = "zswap max_pool_percent 20 unfinished\nzswap enabled N unfinished\n";
        assert_eq!((get(NOTE).as_str(), get("enabled").as_str()), (noted, "Y"));
        drop(killed);
        let undone = open().take_down_those(Noted::is_left_over).expect("undone");
        assert_eq!(undone[0].device, path("enabled"), "the last first");
        assert_eq!(
            get("max_pool_percent") + &get("enabled") + &get(NOTE),
            "20N"
        );
        // A set-up that fails leaves nothing, one that works stays.
        let failed = open().whole(|setup| {
            change(setup, "enabled", "Y")?;
            change(setup, "shrinker_enabled", "Y")
        });
        let error = failed.expect_err("the kernel lacks it").to_string();
        assert!(error.contains("shrinker_enabled"), "{error}");
        assert_eq!(get("enabled") + &get(NOTE), "N");
        open()
            .whole(|setup| change(setup, "enabled", "Y"))
            .expect("set");
        assert_eq!(get("enabled") + &get(NOTE), "Yzswap enabled N\n");
        for bad in [
            "",
            "file x 5 /swap",
            "zswap ../../x N",
            "zswap enabled",
            "sda",
        ] {
            assert_eq!(Noted::parse(bad), None, "{bad}");
        }
    }
}
