//! The initramfs: busybox, the programs under test with their shared libraries, an `/init`.
//!
//! The archive is not compressed: QEMU hands memory over in one copy, while the emulated kernel would need seconds to
//! decompress it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use cpio::NewcBuilder;

use crate::error::{Result, VmError};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Files of the guest's root, by path without the leading `/`.
#[derive(Default)]
pub(crate) struct Image {
    files: BTreeMap<String, Vec<u8>>,
}

impl Image {
    /// Returns an image that holds only this busybox and `/init`.
    pub(crate) fn new(busybox: &Path) -> Result<Self> {
        if !busybox.exists() {
            return Err(VmError::Unavailable {
                what: "busybox".to_owned(),
                why: format!("no {}", busybox.display()),
                fix: "install Debian's busybox-static".to_owned(),
            });
        }
        let mut image = Self::default();
        image.file(busybox, "bin/busybox")?;
        image.content("init", include_bytes!("init.sh").to_vec());
        for dir in ["proc", "sys", "dev", "tmp", "run", "out", "etc"] {
            image.files.insert(format!("{dir}/"), Vec::new());
        }
        Ok(image)
    }

    /// Adds `content` as `path`, executable.
    pub(crate) fn content(&mut self, path: &str, content: Vec<u8>) {
        self.files
            .insert(path.trim_start_matches('/').to_owned(), content);
    }

    pub(crate) fn file(&mut self, host: &Path, path: &str) -> Result<()> {
        let content = fs::read(host).map_err(VmError::io("read", host))?;
        self.content(path, content);
        Ok(())
    }

    /// Adds all files below a directory of the host. A link to a file becomes a copy of that file; other links are left
    /// out.
    pub(crate) fn tree(&mut self, host: &Path, path: &str) -> Result<()> {
        let entries = fs::read_dir(host).map_err(VmError::io("list", host))?;
        for entry in entries {
            let entry = entry.map_err(VmError::io("list", host))?;
            let below = format!("{path}/{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(VmError::io("look at", host))?;
            if kind.is_dir() {
                self.tree(&entry.path(), &below)?;
            } else if entry.path().is_file() {
                self.file(&entry.path(), &below)?;
            }
        }
        Ok(())
    }

    /// Adds a program of the host, without debug information, and the shared libraries it needs.
    pub(crate) fn program(&mut self, host: &Path, path: &str) -> Result<()> {
        for library in shared_libraries(host)? {
            let name = library.to_string_lossy().into_owned();
            if !self.files.contains_key(name.trim_start_matches('/')) {
                self.file(&library, &name)?;
            }
        }
        self.content(path, stripped(host)?);
        Ok(())
    }

    /// Returns the archive, in the kernel's "newc" format.
    pub(crate) fn archive(&self) -> io::Result<Vec<u8>> {
        let mut entries: BTreeMap<String, Option<&[u8]>> = BTreeMap::new();
        for (path, content) in &self.files {
            // The kernel does not create parent directories.
            for (end, _) in path.match_indices('/') {
                entries.insert(path[..end].to_owned(), None);
            }
            if !path.ends_with('/') {
                entries.insert(path.clone(), Some(content));
            }
        }
        let mut out = Vec::new();
        for (inode, (path, content)) in (1..).zip(&entries) {
            let mode = if content.is_some() {
                PROGRAM
            } else {
                DIRECTORY
            };
            let content = content.unwrap_or_default();
            let size = u32::try_from(content.len()).map_err(|_| {
                io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is over 4 GiB"))
            })?;
            let header = NewcBuilder::new(path).ino(inode).mode(mode).nlink(1);
            let mut entry = header.write(&mut out, size);
            io::Write::write_all(&mut entry, content)?;
            entry.finish()?;
        }
        cpio::newc::trailer(&mut out)?;
        Ok(out)
    }
}

/// Lists the shared libraries and the loader of a program, as `ldd` prints them.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .map_err(VmError::io("run ldd on", program))?;
    // `ldd` fails on a static program.
    if !output.status.success() {
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("not found") {
        return Err(VmError::Command {
            command: format!("ldd {}", program.display()),
            why: text.trim().to_owned(),
        });
    }
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

/// Returns the program without debug information, which is a tenth of the size to copy and to keep in guest memory.
fn stripped(program: &Path) -> Result<Vec<u8>> {
    /// Programs by path, since each machine of a test run brings the same ones.
    static STRIPPED: Mutex<BTreeMap<PathBuf, Vec<u8>>> = Mutex::new(BTreeMap::new());
    // A panic of another thread leaves the map whole.
    let mut known = STRIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(content) = known.get(program) {
        return Ok(content.clone());
    }
    let content = strip(program)?;
    known.insert(program.to_owned(), content.clone());
    Ok(content)
}

fn strip(program: &Path) -> Result<Vec<u8>> {
    let out = tempfile::NamedTempFile::new().map_err(VmError::io("make a file in", "/tmp"))?;
    let mut command = Command::new("strip");
    command
        .args(["--strip-debug", "-o"])
        .arg(out.path())
        .arg(program);
    match command.status() {
        Ok(status) if status.success() => {
            fs::read(out.path()).map_err(VmError::io("read", out.path()))
        }
        Ok(status) => Err(VmError::Command {
            command: format!("{command:?}"),
            why: status.to_string(),
        }),
        Err(e) => Err(VmError::Unavailable {
            what: "strip".to_owned(),
            why: e.to_string(),
            fix: "install Debian's binutils".to_owned(),
        }),
    }
}
