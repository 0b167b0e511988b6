//! Notes about parked programs, in `/run/isotherm`: they outlive the command.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use isotherm_engine::{AddressRange, Nanos};
use isotherm_linux::pressure;
use isotherm_linux::process::Process;
use isotherm_linux::state;
use serde::{Deserialize, Serialize};

use crate::order::Order;

/// Beginning of the names of notes.
const PREFIX: &str = "parked-";

/// A parked program, or one that was parked before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The group's directory.
    pub(crate) group: PathBuf,
    /// Its inode: a group that is made again in the same place is another one. 0: not known.
    #[serde(default)]
    pub(crate) inode: u64,
    /// Whether the group is frozen by us.
    pub(crate) is_frozen: bool,
    pub(crate) processes: Vec<NotedProcess>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NotedProcess {
    pub(crate) pid: u32,
    /// Time of its start since boot: another process may get its id.
    pub(crate) started: Nanos,
    /// Pages that were in memory before it was parked, by address.
    pub(crate) resident: Vec<AddressRange>,
    /// Those of them that stayed; none if that is not known, or if it was woken since.
    #[serde(default)]
    pub(crate) remained: Option<Vec<AddressRange>>,
    /// Pages in the order of their return at earlier wakes.
    pub(crate) order: Order,
}

impl Note {
    /// Reads the note about the group at `group`; an empty one if there is none.
    pub(crate) fn read(group: &Path) -> anyhow::Result<Self> {
        let path = path_of(group)?;
        let inode = inode_of(group);
        let none = || Self {
            group: group.to_owned(),
            inode,
            ..Self::default()
        };
        let is_about_it = |note: &Self| note.group == group && [0, inode].contains(&note.inode);
        match fs::read(&path) {
            // A note that was cut, or that is about another group, is worth nothing.
            Ok(bytes) => {
                let note: Option<Self> = serde_json::from_slice(&bytes).ok();
                Ok(note.filter(is_about_it).unwrap_or_else(none))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(none()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the note as a whole, or leaves the old one.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        state::directory()?;
        let path = path_of(&self.group)?;
        // In place of an extension it could be another group's.
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let cannot = || format!("cannot note what is parked in {}", path.display());
        fs::write(&new, serde_json::to_vec(self)?).with_context(cannot)?;
        fs::rename(&new, &path).with_context(cannot)?;
        forget_removed_groups();
        Ok(())
    }

    /// Returns what is noted about a process.
    pub(crate) fn of(&self, process: &Process) -> NotedProcess {
        let started = pressure::progress(process).map_or(Nanos(0), |progress| progress.started);
        let pid = process.pid();
        let noted = self
            .processes
            .iter()
            .find(|of| (of.pid, of.started) == (pid, started));
        noted.cloned().unwrap_or(NotedProcess {
            pid,
            started,
            ..NotedProcess::default()
        })
    }
}

/// Removes the notes about groups that are gone.
fn forget_removed_groups() {
    let entries = state::path().ok().and_then(|path| fs::read_dir(path).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let note = fs::read(entry.path()).unwrap_or_default();
        let is_gone = |note: Note| {
            let now = inode_of(&note.group);
            now == 0 || note.inode != 0 && note.inode != now
        };
        if serde_json::from_slice(&note).is_ok_and(is_gone) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the inode of a group's directory, 0 if it is gone. kernfs numbers are not used again.
fn inode_of(group: &Path) -> u64 {
    fs::metadata(group).map_or(0, |of| of.ino())
}

fn path_of(group: &Path) -> anyhow::Result<PathBuf> {
    let name: String = group
        .display()
        .to_string()
        .replace('%', "%25")
        .replace('/', "%2f");
    // A file name has at most 255 bytes; the note says which group it is about.
    let start = name.len().saturating_sub(200);
    let tail = name.get(start..).unwrap_or(&name);
    Ok(state::path()?.join(format!("{PREFIX}{tail}")))
}
