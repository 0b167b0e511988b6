//! `isotherm convert`: Convert records from and to other formats.
//!
//! What the input is, is seen from its first bytes; what the output shall be, from its name. The
//! output is written beside its place and moved there once it is whole, so that a failed conversion
//! leaves nothing behind and overwrites nothing.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use isotherm_record::damo::export::{Exporter, LeftOut};
use isotherm_record::damo::{Imported, json, perf};
use isotherm_record::{Header, Item, Reader, Writer};

/// Convert records from and to other formats: those of damo, the user space tool of kernel DAMON.
///
/// Formats: isotherm (read, written), json and json_compressed (damo's; read, written), perf_script
/// (damo's, what `perf script` prints; read). What damo's formats cannot hold (mappings, memory use,
/// cost, regions whose accesses are unknown) is left out, and counted on standard error. A record of
/// damo is held in memory while it is converted; one of more than 1 GiB decompressed is refused.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  isotherm convert redis.isotherm redis.damon && damo report access --input redis.damon\n  \
    isotherm convert damon.data redis.isotherm\n  \
    perf script -i perf.data | isotherm convert /dev/stdin redis.isotherm --from perf_script"
)]
pub(crate) struct Args {
    /// The record to convert.
    input: PathBuf,
    /// Where to; replaced if it exists.
    output: PathBuf,
    /// The input's format [default: seen from its content].
    #[arg(long, value_enum, value_name = "FORMAT")]
    from: Option<Kind>,
    /// The output's format [default: by its name: .isotherm, .json; .damon or .data is json_compressed].
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Option<Kind>,
    /// Say as JSON on standard output what was converted and what was left out.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum Kind {
    Isotherm,
    Json,
    JsonCompressed,
    PerfScript,
}

/// What was done.
#[derive(serde::Serialize)]
struct Summary {
    from: Kind,
    to: Kind,
    snapshots: u64,
    regions: u64,
    unknown_regions_left_out: u64,
    other_items_left_out: u64,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let to = args
        .to
        .map_or_else(|| kind_of_name(&args.output), anyhow::Ok)?;
    anyhow::ensure!(
        to != Kind::PerfScript,
        "perf_script can only be read, not written; choose isotherm, json or json_compressed with --to"
    );
    let (source, from) = open(args)?;
    let mut summary = Summary {
        from,
        to,
        snapshots: 0,
        regions: 0,
        unknown_regions_left_out: 0,
        other_items_left_out: 0,
        warnings: Vec::new(),
    };
    let temporary = temporary_name(&args.output)?;
    let converted = convert(source, &temporary, args, &mut summary).and_then(|()| {
        fs::rename(&temporary, &args.output)
            .with_context(|| format!("cannot create {}", args.output.display()))
    });
    if converted.is_err() {
        // It may never have been made; what failed is told already.
        let _ = fs::remove_file(&temporary);
    }
    converted?;
    tell(&summary, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn tell(summary: &Summary, json: bool) -> anyhow::Result<()> {
    for warning in &summary.warnings {
        eprintln!("isotherm: {warning}");
    }
    let unknown = summary.unknown_regions_left_out;
    if unknown > 0 {
        eprintln!(
            "isotherm: left out {unknown} regions whose accesses are unknown, which damo's formats \
             cannot say"
        );
    }
    if summary.other_items_left_out > 0 {
        eprintln!(
            "isotherm: left out {} items that are not snapshots (mappings, memory use, cost, notes)",
            summary.other_items_left_out
        );
    }
    if json {
        println!("{}", serde_json::to_string_pretty(summary)?);
    }
    Ok(())
}

/// An input whose first bytes were looked at.
type Input = std::io::Chain<std::io::Cursor<Vec<u8>>, File>;

/// Opens the input and finds out what it is.
fn open(args: &Args) -> anyhow::Result<(Input, Kind)> {
    let name = args.input.display();
    let mut file = File::open(&args.input).with_context(|| format!("cannot open {name}"))?;
    let mut head = Vec::new();
    (&mut file)
        .take(4096)
        .read_to_end(&mut head)
        .with_context(|| format!("cannot read {name}"))?;
    let from = args.from.or_else(|| kind_of_content(&head));
    let from = from.with_context(|| {
        format!(
            "cannot tell what {name} is: it is no isotherm record, no JSON, no zlib data and no \
             text of `perf script`; for a perf.data file, convert what `perf script -i` prints of it"
        )
    })?;
    Ok((std::io::Cursor::new(head).chain(file), from))
}

fn kind_of_content(head: &[u8]) -> Option<Kind> {
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    match head {
        // An Arrow IPC stream's first message.
        [0xff, 0xff, 0xff, 0xff, ..] => Some(Kind::Isotherm),
        // RFC 1950: deflate with a 32 KiB window, and a check on both bytes.
        [0x78, flags, ..] if (0x7800 + u16::from(*flags)) % 31 == 0 => Some(Kind::JsonCompressed),
        _ if matches!(first, Some(b'[' | b'{')) => Some(Kind::Json),
        _ if String::from_utf8_lossy(head).contains("damon") => Some(Kind::PerfScript),
        _ => None,
    }
}

fn kind_of_name(path: &Path) -> anyhow::Result<Kind> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("isotherm") => Ok(Kind::Isotherm),
        Some("json") => Ok(Kind::Json),
        Some("damon" | "data") => Ok(Kind::JsonCompressed),
        _ => anyhow::bail!(
            "cannot tell a format from the name {}; end it in .isotherm, .json or .damon, or say \
             --to isotherm, json or json_compressed",
            path.display()
        ),
    }
}

/// In the same directory, since a file moves in one step only within a file system.
fn temporary_name(output: &Path) -> anyhow::Result<PathBuf> {
    let name = output
        .file_name()
        .with_context(|| format!("{} is not the name of a file", output.display()))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(output.with_file_name(hidden))
}

fn convert(
    input: Input,
    temporary: &Path,
    args: &Args,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    let name = args.input.display().to_string();
    let cannot_read = || format!("cannot convert {name}");
    let Imported {
        header,
        items,
        warnings,
    } = match summary.from {
        Kind::Isotherm => return convert_record(input, &name, temporary, args, summary),
        Kind::Json => json::read(input).with_context(cannot_read)?,
        Kind::JsonCompressed => json::read_compressed(input).with_context(cannot_read)?,
        Kind::PerfScript => perf::read(input).with_context(cannot_read)?,
    };
    summary.warnings = warnings;
    let mut sink = Sink::create(temporary, &args.output, summary.to, &header)?;
    for item in items {
        sink.push(item, summary)?;
    }
    anyhow::ensure!(
        summary.snapshots > 0,
        "{name} holds no snapshot of DAMON, so there is nothing to convert"
    );
    sink.finish(summary)
}

/// Item by item: a record of ours need not fit into memory.
fn convert_record(
    input: Input,
    name: &str,
    temporary: &Path,
    args: &Args,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    let mut reader =
        Reader::open(input).with_context(|| format!("cannot read {name} as a record"))?;
    if summary.to != Kind::Isotherm {
        reader = reader.replay_pages();
    }
    let mut sink = Sink::create(temporary, &args.output, summary.to, reader.header())?;
    for item in &mut reader {
        let item = item.with_context(|| format!("cannot read all of {name}"))?;
        sink.push(item, summary)?;
    }
    if let Some(truncation) = reader.truncated() {
        summary.warnings.push(format!("{name}: {truncation}"));
    }
    sink.finish(summary)
}

/// Where items go.
enum Sink {
    Record(Box<Writer<File>>),
    Damo(Exporter, File),
}

impl Sink {
    fn create(temporary: &Path, output: &Path, to: Kind, header: &Header) -> anyhow::Result<Self> {
        let file = File::create(temporary)
            .with_context(|| format!("cannot create a file beside {}", output.display()))?;
        Ok(match to {
            Kind::Isotherm => Self::Record(Box::new(Writer::create(file, header)?)),
            _ => Self::Damo(Exporter::new(header), file),
        })
    }

    fn push(&mut self, item: Item, summary: &mut Summary) -> anyhow::Result<()> {
        match &item {
            Item::Snapshot(snapshot) => {
                summary.snapshots += 1;
                summary.regions += snapshot.regions.len() as u64;
            }
            Item::Pages(_) => summary.snapshots += 1,
            _ => {}
        }
        match self {
            Self::Record(writer) => writer.write(&item).map_err(Into::into),
            Self::Damo(exporter, _) => {
                exporter.push(item);
                Ok(())
            }
        }
    }

    fn finish(self, summary: &mut Summary) -> anyhow::Result<()> {
        match self {
            Self::Record(writer) => {
                writer.finish()?;
            }
            Self::Damo(exporter, file) => {
                let mut out = BufWriter::new(file);
                match summary.to {
                    Kind::Json => exporter.write(&mut out)?,
                    _ => exporter.write_compressed(&mut out)?,
                }
                out.flush().context("cannot write the output")?;
                let LeftOut {
                    unknown_regions,
                    other_items,
                } = exporter.left_out();
                summary.unknown_regions_left_out = unknown_regions;
                summary.regions -= unknown_regions;
                summary.other_items_left_out = other_items;
            }
        }
        Ok(())
    }
}
