//! A guard against JSON with an endless piece of text.
//!
//! A JSON parser must keep a whole string in memory, and a small compressed file can hold one of many gigabytes.
//! Nothing that damo writes is long between two quotes, so this reader refuses input in which the next quote is too far
//! away.

use std::io::{self, Read};

/// Longest stretch without a quote; all names and numbers are much shorter.
const LONGEST: u64 = 1 << 20;

/// A reader that passes bytes on while quotes keep coming.
pub(crate) struct QuoteGuard<R> {
    input: R,
    since_quote: u64,
}

impl<R: Read> QuoteGuard<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            since_quote: 0,
        }
    }
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
