//! Finding, opening and reading the record that a report is about.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use isotherm_record::convert::{DETECT_LENGTH, Format};
use isotherm_record::{Header, Item, Reader, RecordError};
use isotherm_report::read::{self, Extent};
use isotherm_report::{Accumulate, Scope};
use isotherm_view::{Document, Finished};

use crate::input;
use crate::progress::Watched;
use tracing::{info, warn};

/// A record that is being read.
pub(crate) struct Source {
    name: String,
    reader: Reader<Watched>,
    /// The file, where it can be read again.
    file: Option<PathBuf>,
}

impl Source {
    /// Opens `file`, `-` for standard input, or else the newest record here. Page scans are replayed
    /// as regions.
    pub(crate) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let source = Self::open_pages(file)?;
        Ok(Self {
            reader: source.reader.replay_pages(),
            ..source
        })
    }

    /// The same, but page scans are left as they are.
    pub(super) fn open_pages(file: Option<&Path>) -> anyhow::Result<Self> {
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

    /// The file, if it is a trace of ours: page scans, which can be replayed.
    pub(crate) fn trace_file(&self) -> Option<PathBuf> {
        let file = self
            .file
            .as_ref()
            .filter(|_| self.reader.is_page_record())?;
        let mut head = Vec::new();
        let opened = fs::File::open(file).ok()?;
        opened
            .take(DETECT_LENGTH as u64)
            .read_to_end(&mut head)
            .ok()?;
        (Format::detect(&head) == Ok(Format::Isotherm)).then(|| file.clone())
    }

    /// What a page shows of it.
    pub(crate) fn document(self, scope: Scope) -> anyhow::Result<(Finished, Extent)> {
        let make = |header: &Header| Document::new(header, scope);
        let (document, extent) = self.accumulate(scope, make)?;
        let document = document.finish();
        if document.is_empty() {
            extent.require(&scope, None)?;
        }
        Ok((document, extent))
    }

    /// What the record says of itself.
    pub(super) fn header(&self) -> &Header {
        self.reader.header()
    }

    /// Tells all of it to a report in the making.
    pub(super) fn accumulate<A: Accumulate>(
        self,
        scope: Scope,
        make: impl FnOnce(&Header) -> A,
    ) -> anyhow::Result<(A, Extent)> {
        let mut report = make(self.header());
        let extent = self.each(scope, |item| {
            report.push(item);
            Ok(())
        })?;
        report.end(extent.record_end().clone());
        Ok((report, extent))
    }

    /// Hands every item to `take`, in order. The user is told where the record ends before its time.
    pub(super) fn each(
        mut self,
        scope: Scope,
        take: impl FnMut(&Item) -> anyhow::Result<()>,
    ) -> anyhow::Result<Extent> {
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

/// Success, unless the record is damaged: then there is a report, of what comes before.
pub(super) fn exit_code(extent: &Extent) -> ExitCode {
    ExitCode::from(u8::from(extent.record_end().damaged.is_some()))
}

/// The newest `*.isotherm` file of the working directory.
fn newest_here() -> anyhow::Result<PathBuf> {
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    for entry in fs::read_dir(".")
        .context("cannot list the working directory")?
        .flatten()
    {
        let path = entry.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "isotherm")
        {
            continue;
        }
        let Ok(modified) = entry.metadata().and_then(|m| m.modified()) else {
            continue;
        };
        if newest.as_ref().is_none_or(|(time, _)| *time < modified) {
            newest = Some((modified, path));
        }
    }
    let (_, path) = newest.context(
        "no *.isotherm file in the working directory: name a record, or make one with `isotherm record`",
    )?;
    let path = path.strip_prefix(".").unwrap_or(&path).to_path_buf();
    info!("reading {}", path.display());
    Ok(path)
}
