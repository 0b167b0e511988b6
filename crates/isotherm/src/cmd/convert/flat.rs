//! `isotherm convert --flat`: a record as plain tables.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use isotherm_record::convert::{ConvertError, LeftOut};
use isotherm_record::{Reader, Truncated};
use isotherm_report::flat::{Flat, TABLES, Written};
use serde::Serialize;

use super::{Args, Ended, Output, Stoppable, is_stdout, tell_end, tell_left_out};
use crate::input;
use crate::progress::Watched;

/// Writes the tables of the record, that of regions to `path`, the others beside it, and prints a summary.
pub(super) fn run(args: &Args, path: &Path, stop: &AtomicBool) -> anyhow::Result<()> {
    ensure!(
        !is_stdout(path),
        "--flat writes several files; name the first of them"
    );
    let input = args.input.as_path();
    let name = input.display();
    let opened = input::open(input)?;
    let watched = Stoppable(Watched::new(opened.bytes, opened.length), stop);
    let mut record = Reader::open(watched)
        .with_context(|| format!("cannot read {name} as a record"))?
        .replay_pages();
    if args.salvage {
        record = record.salvage();
    }
    let files: Vec<PathBuf> = files_of(path);
    let outputs = files.iter().map(|file| Output::create(input, file));
    let outputs: Vec<Output> = outputs.collect::<Result<_, _>>()?;
    let open = outputs.iter().map(Output::file);
    let open: Vec<File> = open.collect::<Result<_, _>>()?;
    let open: [File; TABLES.len()] = open.try_into().expect("a file for each table");
    let written = rows(&mut record, open.map(|file| Stoppable(file, stop)))
        .with_context(|| format!("cannot convert {name}"))?;
    for output in outputs {
        output.keep()?;
    }
    tell(args, &files, &written, Ended::of(&record))
}

fn rows(
    record: &mut Reader<Stoppable<'_, Watched>>,
    files: [Stoppable<'_, File>; TABLES.len()],
) -> Result<Written, ConvertError> {
    let mut flat = Flat::create(record.header(), files)?;
    for item in record {
        flat.push(&item?)?;
    }
    flat.finish()
}

/// Returns the tables' files: `out.parquet`, `out.rss.parquet` and so on.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let (first, others) = TABLES.split_first().expect("there are tables");
    debug_assert_eq!(first.0, "regions");
    let others = others
        .iter()
        .map(|(name, _)| path.with_extension(format!("{name}.parquet")));
    [path.to_owned()].into_iter().chain(others).collect()
}

/// JSON of `convert --flat`: the files that it wrote.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FlatSummary<'a> {
    #[cfg_attr(test, schemars(with = "String"))]
    input: &'a Path,
    tables: Vec<FlatTable<'a>>,
    left_out: &'a LeftOut,
    truncated: Option<Truncated>,
    damaged: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FlatTable<'a> {
    name: &'static str,
    #[cfg_attr(test, schemars(with = "String"))]
    path: &'a Path,
    rows: u64,
}

fn tell(args: &Args, files: &[PathBuf], written: &Written, ended: Ended) -> anyhow::Result<()> {
    tell_end(args, &ended);
    let mut out = io::stdout();
    let tables = TABLES.iter().zip(files).zip(written.rows);
    let tables = tables.map(|(((name, _), path), rows)| FlatTable { name, path, rows });
    if args.result.is_json() {
        let summary = FlatSummary {
            input: &args.input,
            tables: tables.collect(),
            left_out: &written.left_out,
            truncated: ended.truncated,
            damaged: ended.damaged,
        };
        writeln!(out, "{}", crate::out::json_line(&summary)?)?;
        return Ok(());
    }
    for table in tables {
        writeln!(out, "{}: {} rows", table.path.display(), table.rows)?;
    }
    Ok(tell_left_out(&mut out, &written.left_out)?)
}
