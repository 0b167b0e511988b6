//! Converts a record of damo's to one of ours.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::read::ZlibDecoder;

use super::collected::Collected;
use super::guard::QuoteGuard;
use super::{json, perf_script};
use crate::convert::{Conversion, ConvertError};

/// A file of damo's, by its form.
#[derive(Debug)]
pub enum Source<R> {
    /// `json`.
    Json(R),
    /// `json_compressed`: `json` through zlib.
    JsonCompressed(R),
    /// `perf_script`: the output of `perf script` or `trace-cmd report`.
    PerfScript(R),
}

/// Writes `source` as a record of ours to `output`. Intermediate data goes to `folder`.
pub fn import<R: Read, W: Write>(
    source: Source<R>,
    folder: &Path,
    output: W,
) -> Result<Conversion, ConvertError> {
    let mut collected = Collected::new(folder);
    match source {
        Source::Json(input) => json::read(guarded(input), &mut collected)?,
        Source::JsonCompressed(input) => {
            json::read(guarded(ZlibDecoder::new(input)), &mut collected)?;
        }
        Source::PerfScript(input) => perf_script::read(BufReader::new(input), &mut collected)?,
    }
    collected.write(output)
}

fn guarded(input: impl Read) -> impl BufRead {
    BufReader::with_capacity(1 << 16, QuoteGuard::new(input))
}
