//! Checks whether a file may be passed to a reader of its symbols.
//!
//! Problem: blazesym unpacks sections into as much memory as they claim or need, and opens any path that a file names
//! as its debug information. A file of a few KiB can thus request all memory, which ends the process. It can also name
//! a FIFO without a writer.
//!
//! Approach: the section headers are checked first. Together, sections may unpack to [`UNPACKED_MAX`] bytes, which is
//! verified by unpacking. Of all paths that a link may mean, each existing one must be a regular file. The reads for
//! these checks are bounded.
//!
//! Limits: a user who may change a file can do so between this check and the use. So other users' files are checked as
//! copies ([`crate::Places::copies`]).

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use object::read::{ReadCache, ReadRef};
use object::{CompressionFormat, Object as _, ObjectSection as _};

use crate::SymbolError;

/// Upper bound of the bytes that a file's compressed sections unpack to.
const UNPACKED_MAX: u64 = 256 << 20;
/// Upper bound of a symbol table in bytes.
const SYMBOLS_MAX: u64 = 256 << 20;
/// Upper bound of the headers and names that are read, in bytes.
const READ_MAX: u64 = 64 << 20;
/// Bytes that a string counts as: it is read in parts of that size.
const STRING: u64 = 256;
/// Sections that contain the name of another file.
const LINKS: [&str; 3] = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];
/// Upper bound of a path in bytes.
const PATH_MAX: u64 = 4096;
/// Upper bound of a chain of links: from a program to its debug information, and from there to the part that several
/// share.
const LINKS_MAX: usize = 2;
/// Upper bound of the files that are checked for one file.
const FILES_MAX: usize = 16;

/// Refuses a file that would take too much memory. `directories` are those that are searched for debug information;
/// with them, files that name something other than a regular file are refused as well.
pub(crate) fn check(path: &Path, directories: Option<&[PathBuf]>) -> Result<(), SymbolError> {
    check_links(path, directories, LINKS_MAX, &Cell::new(FILES_MAX))
}

fn check_links(
    path: &Path,
    directories: Option<&[PathBuf]>,
    links_max: usize,
    files_left: &Cell<usize>,
) -> Result<(), SymbolError> {
    let left = files_left.get().checked_sub(1);
    files_left.set(left.ok_or(SymbolError::TooMany)?);
    let file = File::open(path).map_err(super::unreadable(path))?;
    let (cache, left) = (ReadCache::new(&file), Cell::new(READ_MAX));
    let bounded = Bounded {
        cache: &cache,
        left: &left,
    };
    let Ok(elf) = object::File::parse(bounded) else {
        return Err(SymbolError::Broken("it is no ELF file".to_owned()));
    };
    check_sections(&elf, &file)?;
    let Some(directories) = directories else {
        return Ok(());
    };
    let own_id = elf.build_id().ok().flatten().unwrap_or_default();
    for section in elf.sections() {
        let found = section.name().map_err(|_| nameless())?;
        let Some(name) = LINKS.into_iter().find(|name| *name == found) else {
            continue;
        };
        let range = section.file_range();
        let found = range.and_then(|range| linked(bounded, range, name));
        let Some((target, rest)) = found else {
            return Err(SymbolError::Broken(format!("its {name} names nothing")));
        };
        // A program and its debug information have the same build id.
        let id = if name == ".gnu_debuglink" {
            own_id
        } else {
            &rest
        };
        for candidate in candidates(path, &target, id, directories) {
            let Ok(metadata) = std::fs::metadata(&candidate) else {
                continue;
            };
            if !metadata.is_file() {
                return Err(SymbolError::Link { path: candidate });
            }
            if links_max > 0 {
                check_links(&candidate, Some(directories), links_max - 1, files_left)?;
            }
        }
    }
    Ok(())
}

/// Returns the error of sections without readable names, or of too many.
fn nameless() -> SymbolError {
    SymbolError::Broken("its sections have no names, or there are too many".to_owned())
}

/// Refuses sections that take too much memory.
fn check_sections<'a>(elf: &object::File<'a, Bounded<'a>>, file: &File) -> Result<(), SymbolError> {
    let (mut file, mut unpacked) = (file, 0);
    for section in elf.sections() {
        let name = section.name().map_err(|_| nameless())?;
        if [".symtab", ".dynsym"].contains(&name) && section.size() > SYMBOLS_MAX {
            return Err(SymbolError::TooMany);
        }
        let Ok(packed) = section.compressed_file_range() else {
            return Err(SymbolError::Broken("a section is none".to_owned()));
        };
        if packed.format == CompressionFormat::None {
            continue;
        }
        unpacked += packed.uncompressed_size.min(UNPACKED_MAX + 1);
        if LINKS.contains(&name) || unpacked > UNPACKED_MAX {
            return Err(SymbolError::TooMany);
        }
        let at_it = file.seek(SeekFrom::Start(packed.offset));
        let part = file.take(packed.compressed_size);
        if at_it.is_err() || !unpacks_to(part, packed.format, packed.uncompressed_size) {
            return Err(SymbolError::TooMany);
        }
    }
    Ok(())
}

/// Returns whether a section unpacks to the number of bytes that it claims.
fn unpacks_to(packed: impl Read, format: CompressionFormat, bytes: u64) -> bool {
    let count = |unpacked: &mut dyn Read| {
        let counted = io::copy(&mut unpacked.take(bytes + 1), &mut io::sink());
        counted.is_ok_and(|counted| counted == bytes)
    };
    match format {
        CompressionFormat::Zlib => count(&mut ZlibDecoder::new(packed)),
        CompressionFormat::Zstandard => {
            zstd::Decoder::new(packed).is_ok_and(|mut unpacked| count(&mut unpacked))
        }
        _ => false,
    }
}

/// Returns the path that a section names, and the build id if the section contains one.
fn linked(bounded: Bounded<'_>, range: (u64, u64), name: &str) -> Option<(PathBuf, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt as _;
    let (start, bytes) = range;
    let bytes = bounded.read_bytes_at(start, bytes.min(PATH_MAX)).ok()?;
    // In `.debug_sup` a version and a flag come first.
    let bytes = if name == ".debug_sup" {
        bytes.get(3..)?
    } else {
        bytes
    };
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let target = Path::new(std::ffi::OsStr::from_bytes(&bytes[..end]));
    Some((target.to_owned(), bytes[end + 1..].to_vec()))
}

/// Returns the paths where blazesym searches a file that another names.
fn candidates(linker: &Path, target: &Path, id: &[u8], directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Some((first, rest)) = id.split_first() {
        let by_id = format!(".build-id/{first:02x}/{}.debug", super::digits(rest));
        all.extend(directories.iter().map(|directory| directory.join(&by_id)));
    }
    all.extend(directories.iter().map(|directory| directory.join(target)));
    if let Ok(linker) = linker.canonicalize() {
        let beside = linker.with_file_name(target);
        let below = beside.strip_prefix("/").unwrap_or(&beside);
        for directory in directories {
            let above = below.ancestors().skip(1);
            all.extend(above.map(|above| directory.join(above).join(target)));
        }
        all.push(beside);
    }
    all
}

/// Reader of parts of a file; all of them together are bounded.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    cache: &'a ReadCache<&'a File>,
    left: &'a Cell<u64>,
}

impl Bounded<'_> {
    fn count(self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().checked_sub(bytes).ok_or(())?;
        self.left.set(left);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.count(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.count(STRING)?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::Symbolizer;

    const COMPRESSED: u64 = 1 << 11;

    /// Returns an ELF file with these sections.
    fn elf(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
        let names: Vec<&str> = sections.iter().map(|(name, ..)| *name).collect();
        let names = names.join("\0") + "\0";
        let mut name_at = 1;
        let (mut body, mut headers) = (Vec::new(), vec![0; 64]);
        let mut add = |name: u32, kind: u32, flags: u64, bytes: &[u8]| {
            let (at, length) = (64 + body.len() as u64, bytes.len() as u64);
            let words = [flags, 0, at, length, 0, 1, 0];
            headers.extend([name, kind].map(u32::to_le_bytes).concat());
            headers.extend(words.map(u64::to_le_bytes).concat());
            body.extend_from_slice(bytes);
        };
        for (name, flags, bytes) in sections {
            add(name_at, 1, *flags, bytes);
            name_at += name.len() as u32 + 1;
        }
        add(0, 3, 0, &[&[0], names.as_bytes()].concat());
        let at = (64 + body.len() as u64).to_le_bytes();
        let count = sections.len() as u16;
        let counts = [64, 56, 0, 64, count + 2, count + 1];
        let counts: Vec<u8> = counts.map(u16::to_le_bytes).concat();
        let kind = [3_u8, 0, 62, 0, 1, 0, 0, 0];
        let start = [b"\x7fELF\x02\x01\x01", &[0; 9][..], &kind].concat();
        let start = [start, vec![0; 16], at.to_vec(), vec![0; 4], counts].concat();
        [start, body, headers].concat()
    }

    fn packed(says: u64, bytes: usize) -> Vec<u8> {
        let header = [1, says, 1].map(u64::to_le_bytes).concat();
        let mut encoder = flate2::write::ZlibEncoder::new(header, flate2::Compression::fast());
        encoder.write_all(&vec![0; bytes]).expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn what_takes_all_memory_is_refused() {
        let expect = |name: &str, says: u64, bytes: usize, is_refused: bool| {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("program");
            let content = elf(&[(name, COMPRESSED, &packed(says, bytes))]);
            std::fs::write(&path, content).expect("written");
            let found = check(&path, None);
            let case = format!("{name} {says} {bytes}: {found:?}");
            assert_eq!(found.is_err(), is_refused, "{case}");
            let by_debug_information = Symbolizer::by_debug_information(&[]);
            for names in [Symbolizer::by_symbols(), by_debug_information] {
                let _ = names.path_names(&path, Some("ab"), &[1]);
            }
        };
        expect(".debug_info", 4096, 4096, false);
        expect(".debug_info", 4096, 64 << 20, true);
        expect(".debug_info", 1 << 40, 4096, true);
        expect(".note.gnu.build-id", u64::MAX, 16, true);
        expect(".symtab", UNPACKED_MAX + 1, 4096, true);
    }

    #[test]
    fn what_is_no_file_is_not_taken_for_a_part_of_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("program");
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        let absolute = fifo.to_string_lossy().into_owned();
        for (name, target) in [
            (".gnu_debuglink", "fifo"),
            (".gnu_debuglink", &absolute),
            (".gnu_debugaltlink", "/dev/zero"),
            (".debug_sup", &absolute),
        ] {
            let is_sup = name == ".debug_sup";
            let head: &[u8] = if is_sup { &[5, 0, 0] } else { &[] };
            let content = [head, target.as_bytes(), &[0; 32]].concat();
            std::fs::write(&path, elf(&[(name, 0, &content)])).expect("written");
            let names = Symbolizer::by_debug_information(&[]).path_names(&path, None, &[1]);
            let is_refused = matches!(names, Err(SymbolError::Link { .. }));
            assert!(is_refused, "{name} {target}");
            let names = Symbolizer::by_symbols().path_names(&path, None, &[1]);
            assert!(names.is_ok());
        }
    }
}
