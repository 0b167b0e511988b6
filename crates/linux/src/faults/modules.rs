//! The files whose code processes run, each once, with their build id and stack frame information.
//!
//! The needed parts of a file are read into memory, not mapped: the file is the target's and may be truncated at any
//! time.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::catch_unwind;
use std::sync::Arc;

use framehop::{ExplicitModuleSectionInfo, Module};
use isotherm_engine::AddressRange;

use super::elf::{ElfFacts, Segment};
use crate::areas::{FilePart, MappedArea};

/// Maximum number of known files.
const MODULES_MAX: usize = 16 << 10;
/// Maximum bytes of all files' sections.
const SECTIONS_MAX: u64 = 512 << 20;

/// A file with code, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Path and build id of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleName {
    pub path: String,
    /// The linker's build id, as hexadecimal digits.
    pub build_id: Option<String>,
}

/// An executable range of a process's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CodeArea {
    pub(super) range: AddressRange,
    /// Offset in the file at which the area begins.
    pub(super) offset: u64,
    /// The file; `None` for code generated at run time.
    pub(super) module: Option<ModuleId>,
}

#[derive(Debug, Default)]
struct Known {
    name: ModuleName,
    segments: Vec<Segment>,
    frames: Option<ExplicitModuleSectionInfo<Arc<[u8]>>>,
    /// The open file, from which names are read later.
    file: Option<File>,
}

/// All files seen so far.
#[derive(Debug, Default)]
pub struct Modules {
    known: Vec<Known>,
    /// Files by device, inode and path.
    by_file: HashMap<(u64, u64, Arc<str>), ModuleId>,
    section_bytes: u64,
}

impl Modules {
    /// Returns the number of files: ids are below it.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the name of a module.
    pub fn name(&self, id: ModuleId) -> &ModuleName {
        &self.known[id.0 as usize].name
    }

    /// Returns the file itself, if it could be opened and is the one that was mapped.
    pub fn file(&self, id: ModuleId) -> Option<&File> {
        self.known[id.0 as usize].file.as_ref()
    }

    /// Returns the area of a mapping of process `pid`, and reads its file if that is new.
    pub(super) fn area(&mut self, pid: u32, mapping: &MappedArea) -> CodeArea {
        let file = mapping.file.filter(|_| mapping.name.starts_with('/'));
        CodeArea {
            range: mapping.range,
            offset: file.map_or(0, |file| file.offset),
            module: file.and_then(|file| self.find(pid, &mapping.name, file)),
        }
    }

    fn find(&mut self, pid: u32, path: &Arc<str>, file: FilePart) -> Option<ModuleId> {
        let key = (file.device, file.inode, Arc::clone(path));
        if let Some(id) = self.by_file.get(&key) {
            return Some(*id);
        }
        if self.known.len() >= MODULES_MAX {
            return None;
        }
        let id = ModuleId(self.known.len() as u32);
        let known = self.read(pid, path, file.inode);
        self.known.push(known);
        self.by_file.insert(key, id);
        Some(id)
    }

    fn read(&mut self, pid: u32, path: &str, inode: u64) -> Known {
        let mut known = Known {
            name: ModuleName {
                path: path.to_owned(),
                build_id: None,
            },
            ..Known::default()
        };
        let Ok(file) = open(pid, path, inode) else {
            return known;
        };
        let room = SECTIONS_MAX.saturating_sub(self.section_bytes);
        self.take(&mut known, &file, room);
        known.file = Some(file);
        known
    }

    fn take(&mut self, known: &mut Known, file: &File, room: u64) {
        // As in `unwinding`, the reader must survive a malformed file.
        let elf = catch_unwind(|| ElfFacts::read(file, room));
        if let Ok(Some(elf)) = elf {
            self.section_bytes += elf.section_bytes;
            known.name.build_id = elf.build_id;
            known.segments = elf.segments;
            known.frames = Some(elf.frames);
        }
    }

    /// Adds a file that no process maps, as if one mapped it from `base` on.
    #[cfg(feature = "fuzz")]
    pub(super) fn map(&mut self, file: &File, base: u64) -> Vec<CodeArea> {
        let id = ModuleId(self.known.len() as u32);
        let mut known = Known::default();
        self.take(&mut known, file, SECTIONS_MAX);
        let areas = known.segments.iter().filter_map(|segment| {
            let start = base.checked_add(segment.address)?;
            Some(CodeArea {
                range: AddressRange::checked(start, start.checked_add(segment.bytes)?)?,
                offset: segment.offset,
                module: Some(id),
            })
        });
        let areas = areas.collect();
        self.known.push(known);
        areas
    }

    pub(super) fn unwinding(&self, area: &CodeArea) -> Option<Module<Arc<[u8]>>> {
        let known = &self.known[area.module?.0 as usize];
        // A mapping begins with the page in which a segment begins.
        let segment = known.segments.iter().find(|segment| {
            (segment.offset & !0xfff..segment.offset + segment.bytes).contains(&area.offset)
        })?;
        let address = segment
            .address
            .wrapping_add(area.offset)
            .wrapping_sub(segment.offset);
        let base = area.range.start.checked_sub(address)?;
        let (range, frames) = (area.range, known.frames.clone()?);
        // A malformed file must not crash the reader if framehop does not expect its content.
        catch_unwind(|| Module::new(String::new(), range.start..range.end, base, frames)).ok()
    }
}

/// Opens the file that a process maps, as the process sees it. A file that was replaced since is a different one.
fn open(pid: u32, path: &str, inode: u64) -> io::Result<File> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let is_it = |file: &File| -> io::Result<bool> {
        let metadata = file.metadata()?;
        // On overlays and btrfs the inode number of a mapping is not the file's.
        let is_plain = libc::major(metadata.dev()) != 0;
        Ok(metadata.is_file() && (metadata.ino() == inode || !is_plain))
    };
    let mut options = File::options();
    // A FIFO must not block.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    for path in [
        format!("/proc/{pid}/root{path}"),
        format!("/proc/{pid}/exe"),
    ] {
        if let Ok(file) = options.open(&path)
            && is_it(&file)?
        {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_program_says_what_build_it_is_and_how_its_frames_look() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("ours");
        let mut modules = Modules::default();
        let path = std::env::current_exe().expect("a path");
        let path = path.to_string_lossy();
        let is_own = |area: &MappedArea| area.permissions.is_executable() && *area.name == *path;
        let mut areas = maps.lines().filter_map(MappedArea::parse);
        let own = areas.find(is_own).expect("we run");
        let area = modules.area(std::process::id(), &own);
        assert!(modules.unwinding(&area).is_some());
        assert_eq!(modules.area(std::process::id(), &own), area);
        assert_eq!(modules.len(), 1);
    }
}
