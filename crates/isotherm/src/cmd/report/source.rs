//! Finding, opening and reading the record that a report is about.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use isotherm_record::{Header, Item, Reader};

use crate::progress::Watched;

/// A record that is being read.
pub(super) struct Source {
    name: String,
    reader: Reader<Watched>,
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
        let watched = if piped {
            Watched::new(Box::new(io::stdin()), None)
        } else {
            let file =
                File::open(&path).with_context(|| format!("cannot open the record {name}"))?;
            let length = file.metadata().ok().filter(fs::Metadata::is_file);
            Watched::new(Box::new(file), length.map(|m| m.len()))
        };
        let reader =
            Reader::open(watched).with_context(|| format!("cannot read {name} as a record"))?;
        Ok(Self { name, reader })
    }

    /// What the record says of itself.
    pub(super) fn header(&self) -> &Header {
        self.reader.header()
    }

    /// Hands every item to `take`, in order.
    ///
    /// What is damaged ends the record there: the items before it are good, and the reader of the
    /// report is told.
    pub(super) fn each(
        mut self,
        mut take: impl FnMut(&Item) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (read, item) in (&mut self.reader).enumerate() {
            match item {
                Ok(item) => take(&item)?,
                Err(error) if read > 0 => {
                    eprintln!(
                        "isotherm: {}: {error}; the report is of what comes before",
                        self.name
                    );
                    return Ok(());
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot read {}", self.name));
                }
            }
        }
        if let Some(truncation) = self.reader.truncated() {
            eprintln!("isotherm: {}: {truncation}", self.name);
        }
        Ok(())
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
    eprintln!("isotherm: reading {}", path.display());
    Ok(path)
}
