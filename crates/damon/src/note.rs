//! A note for the time after a SIGKILL: the former tree, and the changes that were made to it.
//!
//! The note is stored with Isotherm's other state and is locked while its writer lives. An unlocked note is that of a
//! killed process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{DamonError, Result};

const NAME: &str = "kernel-damon.json";
const LOCK: &str = "kernel-damon.lock";
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The kernel's `boot_id`: a tree does not survive a boot.
    pub(crate) boot: String,
    /// Files of the former tree and their texts, in the order in which to set them.
    pub(crate) before: Vec<(String, String)>,
    /// Files that were written, with the texts that were read back afterwards.
    pub(crate) written: Vec<(String, String)>,
    /// Process ids of the kdamonds that were turned on, or [`UNKNOWN_PID`].
    pub(crate) pids: Vec<i64>,
    /// Whether the former tree is being restored: written files may be missing then.
    #[serde(default)]
    pub(crate) is_restoring: bool,
}

/// Process id of a kdamond that is being turned on.
pub(crate) const UNKNOWN_PID: i64 = -1;

/// Path of the note, locked by this process.
#[derive(Debug)]
pub(crate) struct NotePlace {
    path: PathBuf,
    /// The lock's file, which the kernel closes and thus unlocks when this process ends in any way.
    _lock: File,
}

impl NotePlace {
    /// Takes the lock; the error names its present owner.
    pub(crate) fn take(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let wrong = |source| DamonError::Note {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(wrong)?;
        let mut locked = file.try_lock();
        for _ in 0..TRIES {
            // A process that was just killed releases the lock a moment later.
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(PAUSE);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text).ok();
                let by = format!("another isotherm, process {}, drives it", text.trim());
                return Err(DamonError::InUse { by });
            }
            Err(TryLockError::Error(source)) => return Err(wrong(source)),
        }
        let write_pid = |file: &mut File| {
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())
        };
        write_pid(&mut file).map_err(wrong)?;
        Ok(Self {
            path: directory.join(NAME),
            _lock: file,
        })
    }

    pub(crate) fn read(&self) -> Option<Note> {
        serde_json::from_slice(&fs::read(&self.path).ok()?).ok()
    }

    pub(crate) fn write(&self, note: &Note) -> Result<()> {
        let new = self.path.with_extension("new");
        let write = || -> io::Result<()> {
            fs::write(&new, serde_json::to_vec(note).map_err(io::Error::other)?)?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|source| DamonError::Note {
            path: self.path.clone(),
            source,
        })
    }

    pub(crate) fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
