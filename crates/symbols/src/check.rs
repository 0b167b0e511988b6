//! Whether a file may be handed to who reads its symbols.
//!
//! Problem: blazesym unpacks sections into as much memory as they say or need, and opens whatever a file names as
//! that with its debug information. A file of a few KiB can so ask for all memory there is, which ends the process,
//! or name a FIFO, which nobody ever writes to.
//!
//! Approach: a look at the section headers first. Sections unpack to [`UNPACKED_MAX`] bytes together, no more, which
//! is tried out; and of all files that a link may mean none is anything but a file. What is read for this is bounded.
//!
//! Limits: who may change a file between this look and the next is not kept from it; so copies are looked at of
//! files that are not ours ([`crate::Places::copies`]).

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use object::read::{ReadCache, ReadRef};
use object::{CompressionFormat, Object as _, ObjectSection as _};

use crate::SymbolError;

/// Bytes that a file's compressed sections unpack to.
const UNPACKED_MAX: u64 = 256 << 20;
/// Bytes of a table of symbols.
const SYMBOLS_MAX: u64 = 256 << 20;
/// Bytes of headers and names that are read.
const READ_MAX: u64 = 64 << 20;
/// What a string is counted as: it is read in parts of that size.
const STRING: u64 = 256;
/// Sections with the name of another file.
const LINKS: [&str; 3] = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];
/// A path is no longer.
const PATH_MAX: u64 = 4096;
/// From a program to its debug information, and from there to what several share.
const LINKS_MAX: usize = 2;

/// Refuses a file that would take too much; with `directories`, where debug information is looked for, also one that
/// names what is no file.
pub(crate) fn check(path: &Path, directories: Option<&[PathBuf]>) -> Result<(), SymbolError> {
    check_links(path, directories, LINKS_MAX)
}

fn check_links(
    path: &Path,
    directories: Option<&[PathBuf]>,
    links_max: usize,
) -> Result<(), SymbolError> {
    let unreadable = |source| SymbolError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
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
        let Some(name) = LINKS.into_iter().find(|name| section.name() == Ok(name)) else {
            continue;
        };
        let range = section.file_range();
        let found = range.and_then(|range| linked(bounded, range, name));
        let Some((target, rest)) = found else {
            return Err(SymbolError::Broken(format!("its {name} names nothing")));
        };
        // Of a program and its debug information it is the same one.
        let id = if name == ".gnu_debuglink" { own_id } else { &rest };
        for candidate in candidates(path, &target, id, directories) {
            let Ok(metadata) = std::fs::metadata(&candidate) else {
                continue;
            };
            if !metadata.is_file() {
                return Err(SymbolError::Link { path: candidate });
            }
            if links_max > 0 {
                check_links(&candidate, Some(directories), links_max - 1)?;
            }
        }
    }
    Ok(())
}

/// Refuses sections that take too much memory.
fn check_sections<'a>(
    elf: &object::File<'a, Bounded<'a>>,
    file: &File,
) -> Result<(), SymbolError> {
    let (mut file, mut unpacked) = (file, 0);
    for section in elf.sections() {
        let is_table = matches!(section.name(), Ok(".symtab" | ".dynsym"));
        if is_table && section.size() > SYMBOLS_MAX {
            return Err(SymbolError::TooMany);
        }
        let Ok(packed) = section.compressed_file_range() else {
            return Err(SymbolError::Broken("a section is none".to_owned()));
        };
        if packed.format == CompressionFormat::None {
            continue;
        }
        unpacked += packed.uncompressed_size.min(UNPACKED_MAX + 1);
        let is_link = matches!(section.name(), Ok(name) if LINKS.contains(&name));
        if is_link || unpacked > UNPACKED_MAX {
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

/// Whether a section becomes as many bytes as it says.
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

/// The file that a section names, and its build id where that stands there.
fn linked(bounded: Bounded<'_>, range: (u64, u64), name: &str) -> Option<(PathBuf, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt as _;
    let (start, bytes) = range;
    let bytes = bounded.read_bytes_at(start, bytes.min(PATH_MAX)).ok()?;
    // A version and a flag come first in `.debug_sup`.
    let bytes = if name == ".debug_sup" {
        bytes.get(3..)?
    } else {
        bytes
    };
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let target = Path::new(std::ffi::OsStr::from_bytes(&bytes[..end]));
    Some((target.to_owned(), bytes[end + 1..].to_vec()))
}

/// Where blazesym looks for a file that another names.
fn candidates(linker: &Path, target: &Path, id: &[u8], directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Some((first, rest)) = id.split_first() {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let by_id = format!(".build-id/{first:02x}/{rest}.debug");
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

/// Reads parts of a file, all of them together no more than is left.
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
