//! Opens an input as a record, and converts files of other programs first.
//!
//! The content decides the format. A converted record goes to a temporary file without a name.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::convert::{Conversion, ConvertError, Format, head_of};
use crate::error::RecordError;
use crate::reader::Reader;
use crate::{damo, parquet};

/// A record to read.
pub struct Input {
    /// Its bytes, for a [`Reader`](crate::Reader).
    pub bytes: Box<dyn Read>,
    /// Number of bytes, where it is known.
    pub length: Option<u64>,
    /// Assumptions and omissions of a conversion, a sentence each.
    pub notes: Vec<String>,
}

/// The reason why the input cannot be read.
#[derive(Debug, Error)]
#[error("{attempt}")]
pub struct InputError {
    attempt: String,
    #[source]
    cause: Box<dyn Error + Send + Sync>,
}

trait Attempt<T> {
    fn attempt(self, attempt: impl FnOnce() -> String) -> Result<T, InputError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Attempt<T> for Result<T, E> {
    fn attempt(self, attempt: impl FnOnce() -> String) -> Result<T, InputError> {
        self.map_err(|cause| InputError {
            attempt: attempt(),
            cause: cause.into(),
        })
    }
}

/// Opens `path`, `-` for standard input.
///
/// # Errors
/// Fails if the input cannot be opened, read or converted. The error names the attempt and its cause.
pub fn open(path: &Path) -> Result<Input, InputError> {
    let (name, source) = found(path)?;
    let file = match source {
        Source::File(file) => file,
        Source::Stream { head, rest } if foreign(&head).is_none() => {
            return Ok(Input {
                bytes: Box::new(Cursor::new(head).chain(rest)),
                length: None,
                notes: Vec::new(),
            });
        }
        // Some formats are read from their end, and so need a file.
        stream @ Source::Stream { .. } => stream.kept(&name)?,
    };
    let (record, notes) = record_of(file, &name)?;
    let length = record.metadata().ok().filter(fs::Metadata::is_file);
    Ok(Input {
        bytes: Box::new(record),
        length: length.map(|metadata| metadata.len()),
        notes,
    })
}

/// A record that several readers can read at once and repeatedly, from its beginning each time. It stays the same file
/// if its name is given to another one.
#[derive(Clone, Debug)]
pub struct RecordFile {
    name: String,
    file: Arc<File>,
    notes: Vec<String>,
}

impl RecordFile {
    /// Opens `path`, `-` for standard input, which is copied to a temporary file.
    ///
    /// # Errors
    /// Fails if the input cannot be opened, read or converted. The error names the attempt and its cause.
    pub fn open(path: &Path) -> Result<Self, InputError> {
        let (name, source) = found(path)?;
        let (file, notes) = record_of(source.kept(&name)?, &name)?;
        Ok(Self {
            name,
            file: Arc::new(file),
            notes,
        })
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the assumptions and omissions of a conversion, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads the record from the beginning.
    ///
    /// # Errors
    /// Fails if the file is no record.
    pub fn reader(&self) -> Result<Reader<FromStart>, RecordError> {
        Reader::open(FromStart {
            file: Arc::clone(&self.file),
            at: 0,
        })
    }
}

/// A file's bytes from the beginning, independent of other readers.
#[derive(Debug)]
pub struct FromStart {
    file: Arc<File>,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let nr = read_at(&self.file, bytes, self.at)?;
        self.at += nr as u64;
        Ok(nr)
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

/// Fails, because a browser has no files.
#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The source of a record.
enum Source {
    File(File),
    /// A pipe or a device, which is read once.
    Stream {
        head: Vec<u8>,
        rest: Box<dyn Read>,
    },
}

/// Opens `path`, and returns it with its name for messages.
fn found(path: &Path) -> Result<(String, Source), InputError> {
    let is_standard = path.as_os_str() == "-";
    let name = if is_standard {
        "standard input".to_string()
    } else {
        path.display().to_string()
    };
    let mut rest: Box<dyn Read> = if is_standard {
        Box::new(io::stdin())
    } else {
        let file = File::open(path).attempt(|| format!("cannot open the record {name}"))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok((name, Source::File(file)));
        }
        Box::new(file)
    };
    let head = head_of(&mut rest).attempt(|| format!("cannot read {name}"))?;
    Ok((name, Source::Stream { head, rest }))
}

impl Source {
    /// Returns a file; a stream that can be read only once is copied.
    fn kept(self, name: &str) -> Result<File, InputError> {
        let (head, rest) = match self {
            Self::File(file) => return Ok(file),
            Self::Stream { head, rest } => (head, rest),
        };
        let mut file = tempfile::tempfile().attempt(|| "cannot keep what is read".to_owned())?;
        io::copy(&mut Cursor::new(head).chain(rest), &mut file)
            .attempt(|| format!("cannot keep what {name} holds"))?;
        file.rewind().attempt(|| format!("cannot read {name}"))?;
        Ok(file)
    }
}

/// Returns the file, or the record that it is converted to, at its beginning, with the assumptions of the conversion.
fn record_of(mut file: File, name: &str) -> Result<(File, Vec<String>), InputError> {
    let cannot = || format!("cannot read {name}");
    let head = head_of(&mut file).attempt(cannot)?;
    file.rewind().attempt(cannot)?;
    let Some(from) = foreign(&head) else {
        return Ok((file, Vec::new()));
    };
    let folder = std::env::temp_dir();
    let mut record = tempfile::tempfile_in(&folder)
        .attempt(|| format!("cannot convert {name} in {}", folder.display()))?;
    let conversion = import(file, from, |file| file, &folder, &record).attempt(cannot)?;
    record.rewind().attempt(cannot)?;
    Ok((record, reported(name, &conversion)))
}

/// Returns the format of content that is no record, but can be converted to one.
fn foreign(head: &[u8]) -> Option<Format> {
    let names_event = |event: &[u8]| head.windows(event.len()).any(|bytes| bytes == event);
    match Format::detect(head) {
        Ok(Format::Isotherm) | Err(_) => None,
        // Any text could be a trace, so the text must name an event.
        Ok(Format::PerfScript)
            if !names_event(b"damon_aggregated:") && !names_event(b"damos_before_apply:") =>
        {
            None
        }
        Ok(foreign) => Some(foreign),
    }
}

/// Writes the content of `input` as a record to `output`; reading goes through `watch`. Intermediate data beyond memory
/// goes to `folder`.
///
/// # Errors
/// Fails if the input is damaged, or if the output cannot be written.
pub fn import<R: Read>(
    input: File,
    from: Format,
    watch: impl FnOnce(File) -> R,
    folder: &Path,
    output: impl Write,
) -> Result<Conversion, ConvertError> {
    let source = match from {
        Format::Parquet => return parquet::import(&input, output),
        Format::PerfScript => damo::Source::PerfScript(watch(input)),
        Format::JsonCompressed => damo::Source::JsonCompressed(watch(input)),
        Format::Json | Format::Isotherm => damo::Source::Json(watch(input)),
    };
    damo::import(source, folder, output)
}

fn reported(name: &str, conversion: &Conversion) -> Vec<String> {
    let assumed = conversion.assumed.iter();
    let assumed = assumed.map(|assumed| format!("{name}: assumed: {assumed}"));
    let left_out = conversion.left_out.others.iter();
    let left_out = left_out.map(|(kind, count)| format!("{name}: left out: {count} {kind}"));
    assumed.chain(left_out).collect()
}
