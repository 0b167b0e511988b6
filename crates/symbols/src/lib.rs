//! Names of code in files: functions, and the functions inlined into them.
//!
//! Problem: a record's frames are places in files. Their names are in those files, or in others that belong to them
//! (`/usr/lib/debug`). The files may belong to any user, and may be broken, replaced or truncated meanwhile.
//!
//! Approach: blazesym reads symbols and DWARF, and demangles. It maps files into memory, where a truncated file ends
//! its reader; so a file of a user who may truncate it is copied first ([`Symbolizer::file_names`]). A file that was
//! replaced since the record is recognised by its build id ([`Symbolizer::path_names`]). Files that would take all
//! memory, or never end, are refused before blazesym sees them (`check.rs`), and its panics are caught. A fault in one
//! file leaves its frames without names, and does not affect other files.
//!
//! Limits: names are cut at [`NAME_MAX`] bytes, and files of more than [`COPY_MAX`] bytes are not copied.

#![forbid(unsafe_code)]

mod check;

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized};
use isotherm_record::{CodeModule, FrameSymbol, FrameSymbols, FrameTable, Naming, printable};
use rustix::fs::{MemfdFlags, memfd_create};
use thiserror::Error;

/// Length in bytes at which a name is cut: templates have unreadably long ones.
pub const NAME_MAX: usize = 1024;
/// Upper bound of the functions that are inlined at one place.
const INLINED_MAX: usize = 64;
/// Size in bytes above which files are not copied.
pub const COPY_MAX: u64 = 1 << 30;

/// Reason why a file's frames have no names.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SymbolError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path} is another build than was recorded (build id {found}, recorded {recorded}); name the directory \
         with the recorded one (--binaries)"
    )]
    OtherBuild {
        path: PathBuf,
        found: String,
        recorded: String,
    },
    #[error("it is longer than {COPY_MAX} bytes")]
    TooLong,
    #[error("cannot copy it into memory: {0}")]
    Copy(io::Error),
    #[error("its symbols or packed sections take too much memory")]
    TooMany,
    #[error("it names {path} as a part of it, which is no regular file")]
    Link { path: PathBuf },
    #[error("its symbols cannot be read: {0}")]
    Broken(String),
}

/// Finds names of code in files.
pub struct Symbolizer {
    inner: blazesym::symbolize::Symbolizer,
    /// Directories that are searched for debug information; `None`: it is not read.
    debug_directories: Option<Vec<PathBuf>>,
}

impl Symbolizer {
    /// Returns a symbolizer that finds names in files' own symbols alone: fast, without lines and without inlined
    /// functions.
    pub fn by_symbols() -> Self {
        let builder = blazesym::symbolize::Symbolizer::builder();
        Self {
            inner: builder.enable_code_info(false).build(),
            debug_directories: None,
        }
    }

    /// Returns a symbolizer that also finds names, lines and inlined functions in debug information, where there is
    /// any. It searches the files, `directories` and the usual places.
    pub fn by_debug_information(directories: &[PathBuf]) -> Self {
        let usual = ["/usr/lib/debug", "/lib/debug"].map(PathBuf::from);
        let all: Vec<PathBuf> = directories.iter().cloned().chain(usual).collect();
        let builder = blazesym::symbolize::Symbolizer::builder();
        Self {
            inner: builder.set_debug_dirs(Some(&all)).build(),
            debug_directories: Some(all),
        }
    }

    /// Returns the names of the code at these offsets of the file at `path`. If `build_id` is known, the file must be
    /// that build.
    pub fn path_names(
        &self,
        path: &Path,
        build_id: Option<&str>,
        offsets: &[u64],
    ) -> Result<Vec<Option<FrameSymbol>>, SymbolError> {
        require_file(path)?;
        self.check(path)?;
        if let Some(recorded) = build_id {
            let found = build_id_of(path)?.unwrap_or_default();
            if found != recorded {
                return Err(SymbolError::OtherBuild {
                    path: path.to_owned(),
                    found: if found.is_empty() {
                        "none".to_owned()
                    } else {
                        found
                    },
                    recorded: recorded.to_owned(),
                });
            }
        }
        self.names(path, offsets)
    }

    fn check(&self, path: &Path) -> Result<(), SymbolError> {
        let directories = self.debug_directories.as_deref();
        let checked = catch_unwind(AssertUnwindSafe(|| check::check(path, directories)));
        checked.unwrap_or_else(|_| Err(SymbolError::Broken("its headers make no sense".to_owned())))
    }

    /// Does the same as [`Symbolizer::path_names`] with a copy of the file.
    fn copied_names(
        &self,
        path: &Path,
        build_id: Option<&str>,
        offsets: &[u64],
    ) -> Result<Vec<Option<FrameSymbol>>, SymbolError> {
        require_file(path)?;
        let copy = copy(&File::open(path).map_err(unreadable(path))?)?;
        self.path_names(&path_of(&copy), build_id, offsets)
    }

    /// Returns the names of the code at these offsets of another user's file, which is copied first.
    pub fn file_names(
        &self,
        file: &File,
        offsets: &[u64],
    ) -> Result<Vec<Option<FrameSymbol>>, SymbolError> {
        let copy = copy(file)?;
        self.path_names(&path_of(&copy), None, offsets)
    }

    fn names(&self, path: &Path, offsets: &[u64]) -> Result<Vec<Option<FrameSymbol>>, SymbolError> {
        let mut elf = Elf::new(path);
        elf.debug_syms = self.debug_directories.is_some();
        let source = Source::Elf(elf);
        // A file's content must not end its reader.
        let found = catch_unwind(AssertUnwindSafe(|| {
            let found = self.inner.symbolize(&source, Input::FileOffset(offsets));
            found.map(|found| found.iter().map(symbol).collect())
        }));
        match found {
            Ok(found) => found.map_err(|error| SymbolError::Broken(error.to_string())),
            Err(_) => Err(SymbolError::Broken("they make no sense".to_owned())),
        }
    }
}

/// Additional places where files may be.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Directories with binaries: as a tree of the recorded machine, side by side, or by build id
    /// (`.build-id/ab/cdef...`).
    pub binaries: Vec<PathBuf>,
    /// Whether to read copies instead of the files themselves, which another user may truncate meanwhile.
    pub copies: bool,
}

impl Places {
    /// Returns the possible paths of a module's file, the likeliest first.
    fn candidates(&self, module: &CodeModule) -> Vec<PathBuf> {
        let path = module.path.strip_suffix(" (deleted)");
        let path = Path::new(path.unwrap_or(&module.path));
        let below = path.strip_prefix("/").unwrap_or(path);
        let mut all = Vec::new();
        for directory in &self.binaries {
            if let Some((first, rest)) = module
                .build_id
                .as_deref()
                .and_then(|id| id.split_at_checked(2))
            {
                let by_id = directory.join(".build-id").join(first);
                all.extend([by_id.join(rest), by_id.join(format!("{rest}.debug"))]);
            }
            all.push(directory.join(below));
            all.extend(path.file_name().map(|name| directory.join(name)));
        }
        all.push(path.to_owned());
        all
    }
}

/// Names that were found for frames.
#[derive(Debug, Default)]
pub struct Named {
    /// Names by the frames' numbers.
    pub symbols: FrameSymbols,
    /// Files whose frames have no names, with the reason and the number of these frames.
    pub failures: Vec<(String, SymbolError, usize)>,
}

impl Symbolizer {
    /// Names the frames that `naming` selects, by files on this machine.
    pub fn name_frames(&self, frames: &FrameTable, naming: Naming, places: &Places) -> Named {
        let mut named = Named::default();
        for (module, places_in_it) in frames.in_files(naming) {
            let offsets: Vec<u64> = places_in_it.iter().map(|(_, offset)| *offset).collect();
            let mut failure = None;
            let found = places.candidates(module).iter().find_map(|path| {
                let names = if places.copies {
                    self.copied_names(path, module.build_id.as_deref(), &offsets)
                } else {
                    self.path_names(path, module.build_id.as_deref(), &offsets)
                };
                match names {
                    Ok(names) => return Some(names),
                    // Another build is more informative than a missing file elsewhere.
                    Err(_) if matches!(failure, Some(SymbolError::OtherBuild { .. })) => {}
                    Err(error) => failure = Some(error),
                }
                None
            });
            if let Some(names) = found {
                let names = places_in_it.iter().zip(names);
                let names = names.filter_map(|((frame, _), name)| Some((*frame, name?)));
                named.symbols.symbols.extend(names);
            } else if let Some(failure) = failure {
                let path = printable(&module.path).into_owned();
                named.failures.push((path, failure, offsets.len()));
            }
        }
        named
    }
}

/// Returns the build id of a file, as hexadecimal digits, if it has one.
fn build_id_of(path: &Path) -> Result<Option<String>, SymbolError> {
    let found = catch_unwind(|| read_elf_build_id(path));
    let found = found.map_err(|_| SymbolError::Broken("its notes make no sense".to_owned()))?;
    let found = found.map_err(|error| SymbolError::Broken(error.to_string()))?;
    Ok(found.map(|id| digits(&id)))
}

fn digits(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> SymbolError {
    move |source| SymbolError::Read {
        path: path.to_owned(),
        source,
    }
}

fn require_file(path: &Path) -> Result<(), SymbolError> {
    let is_file = std::fs::metadata(path).map_err(unreadable(path))?.is_file();
    let error = || unreadable(path)(io::Error::other("it is no regular file"));
    is_file.then_some(()).ok_or_else(error)
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns a copy in memory, which no other process can truncate.
fn copy(file: &File) -> Result<File, SymbolError> {
    let mut file = file.try_clone().map_err(SymbolError::Copy)?;
    let length = file.metadata().map_err(SymbolError::Copy)?.len();
    if length > COPY_MAX {
        return Err(SymbolError::TooLong);
    }
    let copy = memfd_create("isotherm-symbols", MemfdFlags::CLOEXEC);
    let mut copy = copy
        .map(File::from)
        .map_err(|error| SymbolError::Copy(error.into()))?;
    let copied = file
        .rewind()
        .and_then(|()| io::copy(&mut file.take(COPY_MAX), &mut copy));
    copied.map_err(SymbolError::Copy)?;
    Ok(copy)
}

fn symbol(found: &Symbolized<'_>) -> Option<FrameSymbol> {
    let Symbolized::Sym(Sym {
        name,
        inlined,
        code_info,
        ..
    }) = found
    else {
        return None;
    };
    // The line of the innermost function is the place's own.
    let innermost = inlined
        .last()
        .map_or(code_info.as_deref(), |last| last.code_info.as_ref());
    let file = innermost.map(|info| cut(&info.to_path().to_string_lossy()));
    let inlined = inlined.iter().take(INLINED_MAX);
    Some(FrameSymbol {
        name: cut(name),
        inlined: inlined.map(|function| cut(&function.name)).collect(),
        line: innermost.and_then(|info| info.line),
        file,
    })
}

fn cut(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the file and the offset in it of a function of this program, from the kernel's list of mappings.
    fn offset_of(address: u64) -> (PathBuf, u64) {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("ours");
        let found = maps.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(words[2])?);
            let path = words.get(5)?;
            let is_in = (start..end).contains(&address);
            is_in.then(|| (PathBuf::from(path), address - start + offset))
        });
        found.expect("it is mapped")
    }

    #[inline(never)]
    fn a_function_of_ours(by: u64) -> u64 {
        std::hint::black_box(by) + 1
    }

    #[test]
    fn our_own_code_has_a_name_by_symbols_and_by_debug_information() {
        let address = a_function_of_ours as fn(u64) -> u64 as usize as u64;
        let (path, offset) = offset_of(address + 1);
        let id = build_id_of(&path).expect("ELF");
        for symbolizer in [
            Symbolizer::by_symbols(),
            Symbolizer::by_debug_information(&[]),
        ] {
            let names = symbolizer.path_names(&path, id.as_deref(), &[offset, u64::MAX]);
            let names = names.expect("readable");
            let name = &names[0].as_ref().expect("a name").name;
            assert!(name.contains("a_function_of_ours"), "{name}");
            assert!(!name.contains("17h"), "{name}");
            assert_eq!(names[1], None);
        }
        let file = File::open(&path).expect("ours");
        let names = Symbolizer::by_symbols().file_names(&file, &[offset]);
        assert!(names.expect("readable")[0].is_some());
        let other = Symbolizer::by_symbols().path_names(&path, Some("00"), &[offset]);
        assert!(matches!(other, Err(SymbolError::OtherBuild { .. })));
    }

    #[test]
    fn what_is_no_program_has_no_names() {
        let symbolizer = Symbolizer::by_debug_information(&[]);
        for path in ["/dev/zero", "/nowhere", "/"] {
            let names = symbolizer.path_names(Path::new(path), None, &[1]);
            assert!(matches!(names, Err(SymbolError::Read { .. })), "{path}");
        }
        let text = symbolizer.path_names(Path::new("/proc/self/status"), None, &[1]);
        assert!(text.is_err());
    }
}
