//! Opens what a command reads: a record, or what another program wrote, which is converted first.
//!
//! The format is told by the content. What is converted goes to a temporary file that has no name; what
//! had to be assumed or left out for it is said on standard error.

use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, Write};
use std::path::Path;

use anyhow::Context;
use isotherm_record::convert::{Conversion, ConvertError, DETECT_LENGTH, Format};
use isotherm_record::{damo, parquet};

/// A record's bytes, and how many there are, where that is known.
pub(crate) struct Input {
    pub(crate) bytes: Box<dyn Read>,
    pub(crate) length: Option<u64>,
}

/// Opens `path`, `-` for standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<Input> {
    let is_standard = path.as_os_str() == "-";
    let name = if is_standard {
        "standard input".to_string()
    } else {
        path.display().to_string()
    };
    let mut input: Box<dyn Read> = if is_standard {
        Box::new(io::stdin())
    } else {
        let file = File::open(path).with_context(|| format!("cannot open the record {name}"))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return of_file(file, &name);
        }
        Box::new(file)
    };
    let mut head = Vec::new();
    (&mut input)
        .take(DETECT_LENGTH as u64)
        .read_to_end(&mut head)
        .with_context(|| format!("cannot read {name}"))?;
    let mut whole = Cursor::new(head.clone()).chain(input);
    if foreign(&head).is_none() {
        return Ok(Input {
            bytes: Box::new(whole),
            length: None,
        });
    }
    // Some formats are read from their end.
    let mut file = tempfile::tempfile().context("cannot keep what is read")?;
    io::copy(&mut whole, &mut file).with_context(|| format!("cannot keep what {name} holds"))?;
    file.rewind()?;
    of_file(file, &name)
}

fn of_file(mut file: File, name: &str) -> anyhow::Result<Input> {
    let mut head = Vec::new();
    (&mut file)
        .take(DETECT_LENGTH as u64)
        .read_to_end(&mut head)
        .and_then(|_| file.rewind())
        .with_context(|| format!("cannot read {name}"))?;
    let record = match foreign(&head) {
        None => file,
        Some(from) => {
            let folder = std::env::temp_dir();
            let cannot = || format!("cannot read {name}");
            let mut record = tempfile::tempfile_in(&folder)
                .with_context(|| format!("cannot convert {name} in {}", folder.display()))?;
            let conversion =
                import(file, from, |file| file, &folder, &record).with_context(cannot)?;
            tell(name, &conversion);
            record.rewind().with_context(cannot)?;
            record
        }
    };
    let length = record.metadata().ok().filter(fs::Metadata::is_file);
    Ok(Input {
        bytes: Box::new(record),
        length: length.map(|metadata| metadata.len()),
    })
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

/// Writes what `input` holds as a record to `output`; it is read by way of `watch`.
pub(crate) fn import<R: Read>(
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

fn tell(name: &str, conversion: &Conversion) {
    for assumed in &conversion.assumed {
        eprintln!("isotherm: {name}: assumed: {assumed}");
    }
    for (kind, count) in &conversion.left_out.others {
        eprintln!("isotherm: {name}: left out: {count} {kind}");
    }
}
