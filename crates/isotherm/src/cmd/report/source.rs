//! Finding, opening and reading the record that a report is about.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use isotherm_engine::{Nanos, Snapshot};
use isotherm_record::{Header, Item, Reader};
use isotherm_report::{Accumulate, RecordContext, RecordEnd, Scope};

use isotherm_engine::units;

use crate::input;
use crate::progress::Watched;
use tracing::{info, warn};

/// A record that is being read.
pub(super) struct Source {
    name: String,
    reader: Reader<Watched>,
}

/// What of a record was read: whom it tells about, and for how long.
#[derive(Debug, Default)]
pub(super) struct Extent {
    targets: BTreeSet<u32>,
    nr_snapshots: u64,
    nr_admitted: u64,
    end: Nanos,
    record_end: RecordEnd,
}

impl Extent {
    /// How the record ends, if it is not whole.
    pub(super) fn record_end(&self) -> RecordEnd {
        self.record_end.clone()
    }

    /// Success, unless the record is damaged: then there is a report, of what comes before.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.record_end.damaged.is_some()))
    }

    fn take(&mut self, context: &mut RecordContext, item: &Item) {
        let whole;
        let snapshot = match item {
            Item::Snapshot(snapshot) => snapshot,
            Item::Pages(pages) => {
                whole = Snapshot {
                    target: pages.target,
                    start: pages.start,
                    end: pages.end,
                    ..Snapshot::default()
                };
                &whole
            }
            _ => return,
        };
        self.targets.insert(snapshot.target.0);
        self.nr_snapshots += 1;
        self.nr_admitted += u64::from(context.admits(snapshot));
        self.end = self.end.max(context.offset(snapshot.end));
    }

    /// Fails where a report about `scope`, or about the moment `at`, would be about nothing.
    pub(super) fn require(&self, scope: &Scope, at: Option<Nanos>) -> anyhow::Result<()> {
        let lasts = units::format_time(self.end);
        anyhow::ensure!(self.nr_snapshots > 0, "the record holds no snapshot");
        if let Some(target) = scope.target.filter(|t| !self.targets.contains(&t.0)) {
            let mut known: Vec<String> = self.targets.iter().take(20).map(u32::to_string).collect();
            if self.targets.len() > known.len() {
                known.push("...".into());
            }
            anyhow::bail!(
                "no snapshot of target {}: the record has {}; `isotherm report summary` says who they are",
                target.0,
                known.join(", ")
            );
        }
        anyhow::ensure!(
            self.nr_admitted > 0,
            "no snapshot in this part of the record, which lasts {lasts}"
        );
        if let Some(at) = at.filter(|at| *at > self.end) {
            anyhow::bail!(
                "no snapshot at {}: the record ends at {lasts}",
                units::format_time(at)
            );
        }
        Ok(())
    }
}

impl Source {
    /// Opens `file`, `-` for standard input, or else the newest record here. Page scans are replayed
    /// as regions.
    pub(super) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
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
        Ok(Self { name, reader })
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
        report.end(extent.record_end());
        Ok((report, extent))
    }

    /// Hands every item to `take`, in order.
    ///
    /// What is damaged ends the record there: the items before it are good, and the reader of the
    /// report is told.
    pub(super) fn each(
        mut self,
        scope: Scope,
        mut take: impl FnMut(&Item) -> anyhow::Result<()>,
    ) -> anyhow::Result<Extent> {
        let mut extent = Extent::default();
        let mut context = RecordContext::new(self.header(), scope);
        for (read, item) in (&mut self.reader).enumerate() {
            match item {
                Ok(item) => {
                    extent.take(&mut context, &item);
                    take(&item)?;
                }
                Err(error) if read > 0 => {
                    warn!("{}: {error}; the report is of what comes before", self.name);
                    extent.record_end.damaged = Some(error.to_string());
                    return Ok(extent);
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot read {}", self.name));
                }
            }
        }
        if let Some(truncation) = self.reader.truncated() {
            warn!("{}: {truncation}", self.name);
            extent.record_end.truncated = Some(truncation.into());
        }
        Ok(extent)
    }
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
