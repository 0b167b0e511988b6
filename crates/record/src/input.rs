//! Opens what is to be read as a record: one, or what another program wrote, which is converted first.
//!
//! The format is told by the content. What is converted goes to a temporary file that has no name.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::convert::{Conversion, ConvertError, DETECT_LENGTH, Format};
use crate::error::RecordError;
use crate::reader::Reader;
use crate::{damo, parquet};

/// A record to read.
pub struct Input {
    /// Its bytes, for a [`Reader`](crate::Reader).
    pub bytes: Box<dyn Read>,
    /// How many there are, where that is known.
    pub length: Option<u64>,
    /// What had to be assumed or left out where it was converted, a sentence each.
    pub notes: Vec<String>,
}

/// Why it cannot be read.
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
/// What was tried, and why it failed.
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
        // Some formats are read from their end.
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

/// A record that can be read many times, by several at once, from its beginning each time. It stays the same
/// file where its name goes to another.
#[derive(Clone, Debug)]
pub struct RecordFile {
    name: String,
    file: Arc<File>,
    notes: Vec<String>,
}

impl RecordFile {
    /// Opens `path`, `-` for standard input, which is kept in a temporary file.
    ///
    /// # Errors
    /// What was tried, and why it failed.
    pub fn open(path: &Path) -> Result<Self, InputError> {
        let (name, source) = found(path)?;
        let (file, notes) = record_of(source.kept(&name)?, &name)?;
        Ok(Self {
            name,
            file: Arc::new(file),
            notes,
        })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What had to be assumed or left out where it was converted, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads it from the beginning.
    ///
    /// # Errors
    /// That it is no record.
    pub fn reader(&self) -> Result<Reader<FromStart>, RecordError> {
        Reader::open(FromStart {
            file: Arc::clone(&self.file),
            at: 0,
        })
    }
}

/// A file's bytes from the beginning, wherever others read it.
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

/// A browser has no files.
#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Where a record comes from.
enum Source {
    File(File),
    /// A pipe or a device, which is read once.
    Stream {
        head: Vec<u8>,
        rest: Box<dyn Read>,
    },
}

/// What `path` is, with its name in messages.
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
    let mut head = Vec::new();
    (&mut rest)
        .take(DETECT_LENGTH as u64)
        .read_to_end(&mut head)
        .attempt(|| format!("cannot read {name}"))?;
    Ok((name, Source::Stream { head, rest }))
}

impl Source {
    /// As a file; what can be read only once is copied.
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

/// A file, or the record that it is converted to, at its beginning; and what had to be assumed for that.
fn record_of(mut file: File, name: &str) -> Result<(File, Vec<String>), InputError> {
    let mut head = Vec::new();
    (&mut file)
        .take(DETECT_LENGTH as u64)
        .read_to_end(&mut head)
        .and_then(|_| file.rewind())
        .attempt(|| format!("cannot read {name}"))?;
    let Some(from) = foreign(&head) else {
        return Ok((file, Vec::new()));
    };
    let folder = std::env::temp_dir();
    let cannot = || format!("cannot read {name}");
    let mut record = tempfile::tempfile_in(&folder)
        .attempt(|| format!("cannot convert {name} in {}", folder.display()))?;
    let conversion = import(file, from, |file| file, &folder, &record).attempt(cannot)?;
    record.rewind().attempt(cannot)?;
    Ok((record, told(name, &conversion)))
}

/// The format of what is no record, but can become one.
fn foreign(head: &[u8]) -> Option<Format> {
    let names_event = |event: &[u8]| head.windows(event.len()).any(|bytes| bytes == event);
    match Format::detect(head) {
        Ok(Format::Isotherm) | Err(_) => None,
        // Any text could be a trace.
        Ok(Format::PerfScript)
            if !names_event(b"damon_aggregated:") && !names_event(b"damos_before_apply:") =>
        {
            None
        }
        Ok(foreign) => Some(foreign),
    }
}

/// Writes what `input` holds as a record to `output`; it is read by way of `watch`. What needs more room
/// than memory goes to `folder`.
///
/// # Errors
/// What is wrong with it, or cannot be written.
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

fn told(name: &str, conversion: &Conversion) -> Vec<String> {
    let assumed = conversion.assumed.iter();
    let assumed = assumed.map(|assumed| format!("{name}: assumed: {assumed}"));
    let left_out = conversion.left_out.others.iter();
    let left_out = left_out.map(|(kind, count)| format!("{name}: left out: {count} {kind}"));
    assumed.chain(left_out).collect()
}
