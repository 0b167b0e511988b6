//! Converts a record of damo's to one of ours.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::read::ZlibDecoder;

use super::collected::Collected;
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
    let guard = QuoteGuard {
        input,
        since_quote: 0,
    };
    BufReader::with_capacity(1 << 16, guard)
}

/// Longest stretch without a quote: all names and numbers that damo writes are much shorter.
const LONGEST: u64 = 1 << 20;

/// A reader that passes bytes on while quotes keep coming. A JSON parser must keep a whole string in memory, and a
/// small compressed file can hold one of many gigabytes.
struct QuoteGuard<R> {
    input: R,
    since_quote: u64,
}

impl<R: Read> Read for QuoteGuard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(buffer)?;
        self.since_quote = match buffer[..length].iter().rposition(|byte| *byte == b'"') {
            Some(last) => (length - last) as u64,
            None => self.since_quote + length as u64,
        };
        if self.since_quote > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{LONGEST} bytes without a quote; damo writes no such thing"),
            ));
        }
        Ok(length)
    }
}
