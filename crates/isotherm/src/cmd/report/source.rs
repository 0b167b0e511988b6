//! Finds, opens and reads the record of a report.

use std::cmp::Reverse;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use isotherm_engine::Nanos;
use isotherm_record::convert::Format;
use isotherm_record::index::{Skipping, TimeIndex};
use isotherm_record::{Header, Item, Reader, RecordError};
use isotherm_report::read::{self, ReadExtent};
use isotherm_report::{Accumulate, Scope};
use isotherm_view::{Axes, Detail, Document, Finished};

use crate::blame::FunctionNames;
use crate::input;
use crate::progress::Watched;
use tracing::{info, warn};

pub(crate) struct Source {
    name: String,
    reader: Reader<Watched>,
    /// The file, if it can be read again.
    file: Option<PathBuf>,
}

impl Source {
    /// Opens `file`, `-` for standard input, or else the newest record here. Page scans are replayed as regions.
    pub(crate) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let source = Self::open_pages(file)?;
        Ok(Self {
            reader: source.reader.replay_pages(),
            ..source
        })
    }

    /// Opens a record as [`Self::open`] does, but leaves page scans as they are.
    pub(crate) fn open_pages(file: Option<&Path>) -> anyhow::Result<Self> {
        let path = match file {
            Some(path) => path.to_path_buf(),
            None => newest_here()?,
        };
        let piped = path.as_os_str() == "-";
        let name = if piped {
            "standard input".to_string()
        } else {
            path.display().to_string()
        };
        let input = input::open(&path)?;
        let watched = Watched::new(input.bytes, input.length);
        let reader =
            Reader::open(watched).with_context(|| format!("cannot read {name} as a record"))?;
        let file = (!piped && path.is_file()).then_some(path);
        Ok(Self { name, reader, file })
    }

    /// Returns the file, if it is a trace in Isotherm's format: page scans, which can be replayed.
    fn trace_file(&self) -> Option<PathBuf> {
        let is_trace = self.reader.is_page_record();
        self.file.clone().filter(|file| is_trace && is_ours(file))
    }

    /// Reads the record into the document of a page. The source must be opened [with pages](Source::open_pages).
    pub(crate) fn document(mut self, scope: Scope) -> anyhow::Result<Shown> {
        let trace = self.trace_file();
        // A record in Isotherm's format, whose parts can be found again.
        let file = self.file.take().filter(|file| is_ours(file));
        let mut document = Document::new(self.header(), scope);
        if self.reader.is_page_record() {
            document = document.with_curves(self.header(), scope);
        } else {
            self.reader = self.reader.replay_pages().with_index();
        }
        let extent = self.each(scope, |item| {
            document.push(item);
            Ok(())
        })?;
        if let Some(frames) = document.frames() {
            // The frames are unnamed if the recorder was killed.
            FunctionNames::of_record().name(frames);
        }
        let document = document.finish_at(extent.record_end().clone());
        if document.is_empty() {
            extent.require(&scope, None)?;
        }
        let parts = file.zip(self.reader.take_index());
        let parts = parts.map(|(file, index)| Parts {
            file,
            index,
            axes: document.axes(),
        });
        Ok(Shown {
            document,
            extent,
            trace,
            parts,
        })
    }

    pub(super) fn header(&self) -> &Header {
        self.reader.header()
    }

    pub(super) fn accumulate<A: Accumulate>(
        mut self,
        scope: Scope,
        make: impl FnOnce(&Header) -> A,
    ) -> anyhow::Result<(A::Report, ReadExtent)> {
        let mut report = make(self.header());
        let extent = self.each(scope, |item| {
            report.push(item);
            Ok(())
        })?;
        let report = report.finish_at(extent.record_end().clone());
        Ok((report, extent))
    }

    /// Passes every item to `take`, in order. Warns the user if the record ends early.
    pub(super) fn each(
        &mut self,
        scope: Scope,
        take: impl FnMut(&Item) -> anyhow::Result<()>,
    ) -> anyhow::Result<ReadExtent> {
        let extent = read::each(&mut self.reader, scope, take).map_err(|error| {
            if error.is::<RecordError>() {
                error.context(format!("cannot read {}", self.name))
            } else {
                error
            }
        })?;
        if let Some(damage) = &extent.record_end().damaged {
            warn!(
                "{}: {damage}; the report is of what comes before",
                self.name
            );
        }
        if let Some(truncation) = self.reader.truncated() {
            warn!("{}: {truncation}", self.name);
        }
        Ok(extent)
    }
}

/// The document of a record, and the further parts that can be read of it.
pub(crate) struct Shown {
    pub(crate) document: Finished,
    pub(super) extent: ReadExtent,
    pub(crate) trace: Option<PathBuf>,
    /// The record's parts, if it is a file in Isotherm's format with regions.
    pub(crate) parts: Option<Parts>,
}

/// A record whose parts can be read separately.
pub(crate) struct Parts {
    file: PathBuf,
    index: TimeIndex,
    axes: Axes,
}

impl Parts {
    /// Returns the part of the heat map at a place, between two times after the beginning, as [`Detail::container`];
    /// `None` if there is none.
    pub(crate) fn detail(
        &self,
        place: usize,
        (from, to): (Nanos, Nanos),
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let cannot = || format!("cannot read {} again", self.file.display());
        let origin = self.axes.origin;
        let skipped = self.index.outside(origin + from, origin + to);
        let input = fs::File::open(&self.file).with_context(cannot)?;
        // The writer may have torn the file since.
        let reader = Reader::open(Skipping::new(input, skipped)).with_context(cannot)?;
        let reader = reader.salvage().replay_pages();
        let Some(mut detail) = Detail::new(reader.header(), &self.axes, place, (from, to)) else {
            return Ok(None);
        };
        for item in reader {
            detail.push(&item.with_context(cannot)?);
        }
        Ok(Some(detail.container()?))
    }
}

/// Returns whether a file is a record in Isotherm's own format, and not compressed.
fn is_ours(file: &Path) -> bool {
    let format = fs::File::open(file).and_then(Format::detect_in);
    matches!(format, Ok(Ok(Format::Isotherm)))
}

/// Returns success, unless the record is damaged: then the report covers what comes before the damage.
pub(super) fn exit_code(extent: &ReadExtent) -> ExitCode {
    ExitCode::from(u8::from(extent.record_end().damaged.is_some()))
}

/// Returns the code of a report about two records: success, if both are whole.
pub(super) fn worse_of(one: ExitCode, other: ExitCode) -> ExitCode {
    if one == ExitCode::SUCCESS { other } else { one }
}

/// Returns the newest `*.isotherm` file of the working directory.
fn newest_here() -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(".").context("cannot list the working directory")?;
    let is_record = |entry: &DirEntry| entry.path().extension().is_some_and(|e| e == "isotherm");
    let records = entries.flatten().filter(is_record);
    let dated = records.filter_map(|entry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        Some((modified.ok()?, entry.path()))
    });
    let newest = dated.min_by_key(|(modified, _)| Reverse(*modified));
    let (_, path) = newest.context(
        "no *.isotherm file in the working directory: name a record, or make one with `isotherm record`",
    )?;
    let path = path.strip_prefix(".").unwrap_or(&path).to_path_buf();
    info!("reading {}", path.display());
    Ok(path)
}
