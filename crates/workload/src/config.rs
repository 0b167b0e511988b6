//! The workload's description: masim's configuration format, and scattered hot sets.
//!
//! Problem: published experiments come as masim configurations
//! (<https://github.com/sjp38/masim>), so these must work as they are; but a hot set that lies
//! scattered in a large process, the usual case in production, would take a line for each piece.
//!
//! Approach: paragraphs separated by empty lines; lines that start with `#` are comments.
//! ```text
//! # name, size in bytes[, file with initial data | none]
//! heap, 4G
//!
//! # then each phase: its name, its duration in milliseconds, its patterns:
//! # region, random (1) or sequential (0), stride, relative probability[, MODE[, scatter]]
//! serve
//! 30000
//! heap, 1, 64, 100, rw, hot=10% piece=2MiB seed=1
//! ```
//! MODE is `ro`, `wo`, `rw` or, as an addition to masim, `chain`: random reads, each of which has to end before the
//! next one's address is known. They behave as in a list or tree, so that the time of page walks shows. The sixth field
//! is another addition (masim refuses a line that has one). With it the pattern touches only `hot=` (a share or a size)
//! of the region, in pieces of `piece=` bytes (2 MiB by default). `seed=` (1 by default) places the pieces. Patterns
//! with equal scatter have equal pieces. Sizes and strides may carry a unit. Without a mode a pattern writes, and a
//! random pattern's stride has no effect: both as in masim.
//!
//! Limits: some input that masim takes silently is refused here: a second region of the same name, `2` for random, zero
//! strides and durations. A typing error would otherwise change the truth unnoticed.

use std::path::PathBuf;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::units::{parse_bytes, parse_share};
use serde::Serialize;
use thiserror::Error;

/// Limit on a file's lines: no workload needs more, and a hostile file is refused before it takes memory.
const MAX_LINES: usize = 100_000;
/// Limit on a region: one zettabyte and the like are typing errors, as x86-64 has 47 bits of user addresses.
const MAX_REGION_BYTES: u64 = 1 << 46;
/// Limit on a phase, a day: longer phases are typing errors (milliseconds are meant).
const MAX_DURATION_MS: u64 = 24 * 3_600_000;
/// Limit on pieces: more are not a hot set but noise, and the truth file would be as large.
const MAX_PIECES: u64 = 1 << 20;

/// A whole workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Regions to allocate, in the order of the file.
    pub regions: Vec<Region>,
    /// Phases to run, one after the other.
    pub phases: Vec<Phase>,
}

/// Some memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// Its name in patterns.
    pub name: String,
    /// Size in bytes as written; whole pages are allocated.
    pub size: u64,
    /// File whose content, repeated, fills it at the start; without one it is filled with zeroes.
    pub content: Option<PathBuf>,
}

/// A time during which the same patterns run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Its name in the output.
    pub name: String,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Accesses that are made.
    pub patterns: Vec<WorkloadPattern>,
}

/// Accesses to one region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadPattern {
    /// Index into [`Config::regions`].
    pub region: usize,
    /// Order of the accesses.
    pub order: AccessOrder,
    /// Bytes from one sequential access to the next.
    pub stride: u64,
    /// Share of the phase's accesses, relative to the other patterns'.
    pub weight: u32,
    /// Kind of the accesses.
    pub mode: Mode,
    /// Pieces of the region that are accessed; `None`: the whole region.
    pub scatter: Option<Scatter>,
}

/// The order of a pattern's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessOrder {
    /// Accesses go by stride, from the start again after the end.
    Sequential,
    /// Accesses go anywhere, each place as likely as any other.
    Random,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// `ro`: read.
    Read,
    /// `wo`: write.
    Write,
    /// `rw`: read, then write to the same place.
    ReadWrite,
    /// `chain`: read, and learn from it where to read next.
    Chain,
}

/// A hot set in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Scatter {
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes in each piece; a multiple of the page size.
    pub piece: u64,
    /// Seed of their places.
    pub seed: u64,
}

/// Error in a configuration, with its line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: found {found}, expected {expected}")]
pub struct WorkloadParseError {
    /// Line number, counted from 1.
    pub line: usize,
    /// Text in the file.
    pub found: String,
    /// Text that is expected.
    pub expected: String,
}

impl Config {
    /// Parses the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self, WorkloadParseError> {
        let mut paragraphs = paragraphs(text)?.into_iter();
        let end = text.lines().count().max(1);
        let first = paragraphs.next();
        let first = first.ok_or_else(|| error(end, "the end of the file", REGION))?;
        let regions = regions(&first)?;
        let phases: Vec<Phase> = paragraphs
            .map(|lines| phase(&lines, &regions))
            .collect::<Result<_, _>>()?;
        if phases.is_empty() {
            let expected =
                "an empty line and then a phase: its name, its duration in ms, its patterns";
            return Err(error(end, "the end of the file", expected));
        }
        Ok(Self { regions, phases })
    }

    /// Returns the bytes that all regions take, in whole pages.
    pub fn total_bytes(&self) -> u64 {
        self.regions.iter().map(Region::bytes).sum()
    }
}

impl Region {
    /// Returns the allocated bytes: whole pages.
    pub fn bytes(&self) -> u64 {
        self.size.next_multiple_of(PAGE_SIZE)
    }
}

const REGION: &str = "a region: `name, size[, initial data file | none]`";
const PATTERN: &str = "a pattern: `region, random (1) or sequential (0), stride, \
                       probability[, ro|wo|rw|chain[, hot=SHARE piece=SIZE seed=N]]`";

/// A line that is not a comment, and its number.
type Line<'a> = (usize, &'a str);

fn error(line: usize, found: impl Into<String>, expected: impl Into<String>) -> WorkloadParseError {
    WorkloadParseError {
        line,
        found: found.into(),
        expected: expected.into(),
    }
}

/// Quotes text from the file, shortened: a line of a binary file may be megabytes long.
fn quoted(text: &str) -> String {
    let shown: String = text.trim().chars().take(60).collect();
    let more = if shown.len() < text.trim().len() {
        "..."
    } else {
        ""
    };
    format!("`{}{more}`", shown.escape_debug())
}

fn paragraphs(text: &str) -> Result<Vec<Vec<Line<'_>>>, WorkloadParseError> {
    let mut all = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        if index == MAX_LINES {
            let expected = format!("at most {MAX_LINES} lines");
            return Err(error(index + 1, "more lines", expected));
        }
        let line = line.trim();
        if line.is_empty() {
            all.push(Vec::new());
        } else if !line.starts_with('#') {
            let last = all.len() - 1;
            all[last].push((index + 1, line));
        }
    }
    // An empty line after a comment, or two in a row, begin no paragraph.
    all.retain(|paragraph| !paragraph.is_empty());
    Ok(all)
}

fn regions(lines: &[Line<'_>]) -> Result<Vec<Region>, WorkloadParseError> {
    let mut regions: Vec<Region> = Vec::new();
    for &(number, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if !(2..=3).contains(&fields.len()) || fields[0].is_empty() {
            return Err(error(number, quoted(line), REGION));
        }
        let size = parse_bytes(fields[1])
            .ok()
            .filter(|&bytes| (8..=MAX_REGION_BYTES).contains(&bytes))
            .ok_or_else(|| {
                let expected = "a size from 8 bytes to 64T, such as `100000000`, `4G` or `2MiB`";
                error(number, quoted(fields[1]), expected)
            })?;
        if regions.iter().any(|region| region.name == fields[0]) {
            let found = format!("a second region {}", quoted(fields[0]));
            return Err(error(number, found, "another name"));
        }
        regions.push(Region {
            name: fields[0].to_owned(),
            size,
            content: fields
                .get(2)
                .filter(|file| **file != "none" && !file.is_empty())
                .map(PathBuf::from),
        });
    }
    Ok(regions)
}

fn phase(lines: &[Line<'_>], regions: &[Region]) -> Result<Phase, WorkloadParseError> {
    let (first, name) = lines[0];
    let shown = quoted(name);
    let Some(&(number, duration)) = lines.get(1) else {
        let found = format!("nothing after the phase's name {shown}");
        let expected = "its duration in milliseconds on the next line";
        return Err(error(first, found, expected));
    };
    let duration_ms = duration
        .parse()
        .ok()
        .filter(|ms| (1..=MAX_DURATION_MS).contains(ms))
        .ok_or_else(|| {
            let expected = format!(
                "the duration of phase {shown} in milliseconds, from 1 to {MAX_DURATION_MS} (a day)"
            );
            error(number, quoted(duration), expected)
        })?;
    let patterns: Vec<WorkloadPattern> = lines[2..]
        .iter()
        .map(|&line| pattern(line, regions))
        .collect::<Result<_, _>>()?;
    if patterns.is_empty() {
        let last = lines.last().map_or(number, |line| line.0);
        let expected = format!("{PATTERN}; with probability 0 for a phase that is idle");
        return Err(error(
            last,
            format!("no pattern in phase {shown}"),
            expected,
        ));
    }
    Ok(Phase {
        name: name.to_owned(),
        duration_ms,
        patterns,
    })
}

fn pattern(
    (number, line): Line<'_>,
    regions: &[Region],
) -> Result<WorkloadPattern, WorkloadParseError> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if !(4..=6).contains(&fields.len()) {
        return Err(error(number, quoted(line), PATTERN));
    }
    let wrong = |field: usize, expected: &str| error(number, quoted(fields[field]), expected);
    let region = regions
        .iter()
        .position(|region| region.name == fields[0])
        .ok_or_else(|| {
            let names: Vec<&str> = regions.iter().take(12).map(|r| r.name.as_str()).collect();
            wrong(0, &format!("a region's name ({})", names.join(", ")))
        })?;
    let order = match fields[1] {
        "0" => AccessOrder::Sequential,
        "1" => AccessOrder::Random,
        _ => return Err(wrong(1, "`0` (sequential) or `1` (random)")),
    };
    let stride = parse_bytes(fields[2])
        .ok()
        .filter(|&stride| (1..=MAX_REGION_BYTES).contains(&stride))
        .ok_or_else(|| wrong(2, "a stride in bytes, at least 1"))?;
    let weight = fields[3]
        .parse()
        .map_err(|_| wrong(3, "a relative probability: a whole number, 0 to 4294967295"))?;
    let mode = match fields.get(4).copied() {
        None | Some("wo") => Mode::Write,
        Some("ro") => Mode::Read,
        Some("rw") => Mode::ReadWrite,
        Some("chain") if order == AccessOrder::Random => Mode::Chain,
        Some("chain") => return Err(wrong(4, "`chain` in random patterns only")),
        Some(_) => return Err(wrong(4, "`ro`, `wo`, `rw` or `chain`")),
    };
    let scatter = fields
        .get(5)
        .map(|words| scatter(number, words, &regions[region]))
        .transpose()?;
    Ok(WorkloadPattern {
        region,
        order,
        stride,
        weight,
        mode,
        scatter,
    })
}

fn scatter(number: usize, words: &str, region: &Region) -> Result<Scatter, WorkloadParseError> {
    let (mut hot, mut piece, mut seed) = (None, 2 << 20, 1);
    for word in words.split_whitespace() {
        let wrong = |expected: &str| error(number, quoted(word), expected);
        match word.split_once('=') {
            Some(("hot", value)) => {
                hot = Some(amount(value, region.size).ok_or_else(|| {
                    wrong("`hot=` with a share (`10%`) or a size (`200M`) above 0 and no larger than the region")
                })?);
            }
            Some(("piece", value)) => {
                piece = parse_bytes(value)
                    .ok()
                    .filter(|bytes| *bytes > 0 && bytes % PAGE_SIZE == 0 && *bytes <= region.size)
                    .ok_or_else(|| {
                        wrong("`piece=` with whole pages of 4096 bytes, no larger than the region")
                    })?;
            }
            Some(("seed", value)) => {
                seed = value
                    .parse()
                    .map_err(|_| wrong("`seed=` with a whole number"))?;
            }
            _ => return Err(wrong("`hot=`, `piece=` or `seed=`")),
        }
    }
    let hot = hot.ok_or_else(|| {
        let expected = "`hot=` with a share (`10%`) or a size (`200M`)";
        error(number, quoted(words), expected)
    })?;
    let pieces = hot.div_ceil(piece);
    let slots = region.size / piece;
    if pieces > slots || pieces > MAX_PIECES {
        let expected = format!(
            "at most {} (region `{}` holds {slots}); a larger `piece=` or less `hot=`",
            slots.min(MAX_PIECES),
            region.name
        );
        let found = format!("{pieces} hot pieces of {piece} bytes");
        return Err(error(number, found, expected));
    }
    Ok(Scatter {
        pieces,
        piece,
        seed,
    })
}

/// Parses a share (`10%`) of `whole`, or a size; above 0 and at most `whole`.
fn amount(text: &str, whole: u64) -> Option<u64> {
    let bytes = match text.strip_suffix('%') {
        Some(_) => (whole as f64 * parse_share(text).ok()?) as u64,
        None => parse_bytes(text).ok()?,
    };
    (1..=whole).contains(&bytes).then_some(bytes)
}
