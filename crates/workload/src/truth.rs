//! The truth file: accesses over time, as JSON lines.
//!
//! The first line is [`Line::Ready`] (all memory is mapped), then each phase has a [`Line::Start`] and a [`Line::End`].
//! Every line is flushed at once, so that a reader may follow the file, and a killed workload leaves a usable one.
//! Times are nanoseconds since the epoch (`CLOCK_REALTIME`), the record's clock.

use std::io::{self, BufRead, Write};

use isotherm_engine::{AddressRange, Nanos};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::layout::Temperature;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// Memory is allocated and populated.
    Ready {
        time_ns: Nanos,
        /// Process ID of the workload.
        pid: u32,
        /// Seed of the order of random accesses.
        seed: u64,
        /// The regions' names and addresses.
        regions: Vec<RegionPlace>,
    },
    /// A phase begins.
    Start {
        time_ns: Nanos,
        /// Its name.
        phase: String,
        /// Number of the round through all phases, from 0.
        round: u64,
        /// Accesses to each range from now on.
        #[serde(flatten)]
        temperature: Temperature,
    },
    /// A phase ends.
    End {
        time_ns: Nanos,
        /// Its name.
        phase: String,
        /// Number of the round through all phases, from 0.
        round: u64,
        /// Accesses made in it.
        operations: u64,
        /// Whether it was cut short by a signal.
        interrupted: bool,
    },
}

/// Name and addresses of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionPlace {
    /// Its name in the configuration.
    pub name: String,
    /// Its addresses.
    #[serde(flatten)]
    pub range: AddressRange,
}

/// A phase of a truth file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Episode {
    /// The phase's name.
    pub phase: String,
    /// Time at which it began.
    pub start: Nanos,
    /// Time at which it ended; `None` if the file ends before.
    pub end: Option<Nanos>,
    /// Accesses to each range in it.
    pub temperature: Temperature,
    /// Accesses made; 0 if the file ends before.
    pub operations: u64,
}

/// Why a truth file cannot be used.
#[derive(Debug, Error)]
pub enum TruthError {
    /// It cannot be read.
    #[error("cannot read the truth file")]
    Read(#[source] io::Error),
    /// It holds something else.
    #[error("line {line} of the truth file is not one that `isotherm workload --truth` writes")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
}

/// Writes `line` and flushes `out`.
pub fn write(out: &mut impl Write, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    out.write_all(&text)?;
    out.flush()
}

/// Reads a file's episodes. A last line without its end (the workload is still writing it, or was
/// killed) is left out.
pub fn read(mut input: impl BufRead) -> Result<Vec<Episode>, TruthError> {
    let mut episodes: Vec<Episode> = Vec::new();
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        input.read_line(&mut text).map_err(TruthError::Read)?;
        if !text.ends_with('\n') {
            break;
        }
        let line = serde_json::from_str(&text).map_err(|source| TruthError::Line {
            line: number,
            source,
        })?;
        match line {
            Line::Ready { .. } => {}
            Line::Start {
                time_ns,
                phase,
                temperature,
                ..
            } => episodes.push(Episode {
                phase,
                start: time_ns,
                temperature,
                ..Episode::default()
            }),
            Line::End {
                time_ns,
                operations,
                ..
            } => {
                if let Some(last) = episodes.last_mut() {
                    last.end = Some(time_ns);
                    last.operations = operations;
                }
            }
        }
    }
    Ok(episodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{"event":"ready","time_ns":1800000000000000001,"pid":7,"seed":1,"regions":[{"name":"a","start":139637976727552,"end":139637976735744}]}
{"event":"start","time_ns":1800000000000000001,"phase":"p","round":0,"hot":[{"start":139637976727552,"end":139637976735744,"probability":1.0}],"warm":[],"cold":[]}
{"event":"end","time_ns":1800000000000000001,"phase":"p","round":0,"operations":5,"interrupted":false}
"#;

    #[test]
    fn what_is_written_is_read_back_whole() {
        let mut written = Vec::new();
        for line in SAMPLE.lines() {
            let line: Line = serde_json::from_str(line).expect("a line");
            write(&mut written, &line).expect("memory can be written");
        }
        let episodes = read(written.as_slice()).expect("a valid file");
        assert_eq!(episodes.len(), 1);
        assert_eq!(episodes[0].start, Nanos(1_800_000_000_000_000_001));
        assert_eq!(episodes[0].operations, 5);
        assert_eq!(episodes[0].temperature.hot[0].range.start, 0x7f00_0000_0000);
    }

    #[test]
    fn a_file_cut_anywhere_is_read_up_to_its_last_whole_line() {
        for cut in 0..SAMPLE.len() {
            let episodes = read(&SAMPLE.as_bytes()[..cut]).expect("a cut file is no error");
            let are_open = episodes.iter().all(|episode| episode.end.is_none());
            assert!(are_open, "cut at {cut}");
        }
    }
}
