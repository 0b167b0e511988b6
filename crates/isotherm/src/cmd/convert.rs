//! `isotherm convert`: records from and to the formats of other tools.
//!
//! Every conversion passes through a record in Isotherm's format, on disk if neither end is one. The output is written
//! under another name and renamed when it is complete. So neither a failure nor Ctrl-C leaves half a file, or loses the
//! one that was there before.

#[cfg(feature = "parquet")]
pub(crate) mod flat;
/// Replacement of `--flat` in builds without Parquet.
#[cfg(not(feature = "parquet"))]
mod flat {
    use super::{Args, AtomicBool, ConvertError, Path};

    pub(super) fn run(_args: &Args, _path: &Path, _stop: &AtomicBool) -> anyhow::Result<()> {
        Err(ConvertError::WithoutParquet.into())
    }
}

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use isotherm_record::convert::{Conversion, ConvertError, Format, LeftOut};
use isotherm_record::publish::Publisher;
use isotherm_record::{Reader, Truncated, Writer, damo, parquet};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::flags::one_of;
use crate::out::ResultArgs;
use crate::progress::Watched;
use crate::whole_file::{WholeFile, folder_of};
use tracing::{info, warn};

/// Convert records from and to other formats.
#[derive(clap::Args)]
#[command(after_help = "\
Formats:
  isotherm         a record of isotherm's own (an Arrow IPC stream)
  json             damo's records as JSON
  json_compressed  the same through zlib: what `damo record` writes
  perf_script      what DAMON's trace points print, by `perf script` or `trace-cmd report` (only read)
  parquet          a table of all regions, for other tools; converts back without loss

The input's format is reported by its content, the output's by its name: .json, .parquet, .isotherm,
.arrow, and .damo, .damon or .data for json_compressed.

Examples:
  isotherm convert rec.isotherm rec.damo && damo report heatmap --input rec.damo
  isotherm convert damon.data rec.isotherm && isotherm report wss rec.isotherm
  perf script -i perf.data > trace.txt && isotherm convert trace.txt rec.isotherm
  isotherm convert --to parquet rec.isotherm - > rec.parquet
  isotherm convert --flat rec.parquet rec.isotherm
  isotherm convert --salvage damaged.isotherm whole.isotherm
  isotherm convert --publish rec.isotherm public.isotherm

Exit status: 0 converted (what the other format cannot hold is counted and said), 2 not converted,
130 stopped by a signal.")]
pub(crate) struct Args {
    /// Convert this file.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Write this file, replaced if it is there; `-` is standard output.
    #[arg(value_name = "OUT", required_unless_present = "flat")]
    output: Option<PathBuf>,
    /// Write plain tables for analysis instead: regions with process, mapping and times to FILE, memory
    /// use, costs and actions beside it (FILE's name with .rss, .costs and .actions before .parquet).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "from", "to"])]
    flat: Option<PathBuf>,
    /// Read this format [default: recognised by the input's content]
    #[arg(long, value_parser = one_of(FORMATS), value_name = "FORMAT")]
    from: Option<Format>,
    /// Write this format [default: what the output's name ends in].
    #[arg(long, value_parser = one_of(FORMATS), value_name = "FORMAT")]
    to: Option<Format>,
    /// Convert what stands before the damage of a damaged record.
    #[arg(long)]
    salvage: bool,
    /// Replace what identifies machine, programs and files by numbers, and leave stacks and notes out; from a record
    /// to a record. Sizes, access patterns and times stay: a known program may be recognised by them.
    #[arg(long, conflicts_with_all = ["flat", "from", "to"])]
    publish: bool,
    #[command(flatten)]
    result: ResultArgs,
}

/// Names of formats on the command line; damo's own names for damo's.
const FORMATS: &[(&str, &str, Format)] = &[
    ("isotherm", "", Format::Isotherm),
    ("json", "", Format::Json),
    ("json_compressed", "", Format::JsonCompressed),
    ("perf_script", "", Format::PerfScript),
    ("parquet", "", Format::Parquet),
];

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary<'a> {
    #[cfg_attr(test, schemars(with = "String"))]
    input: &'a Path,
    from: Format,
    #[cfg_attr(test, schemars(with = "String"))]
    output: &'a Path,
    to: Format,
    #[serde(flatten)]
    conversion: &'a Conversion,
    truncated: Option<Truncated>,
    damaged: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = crate::stop::by(&[SIGINT, SIGTERM])?;
    match convert(args, &stop) {
        Err(_) if stop.load(Ordering::Relaxed) => {
            info!("stopped; nothing was written");
            Ok(ExitCode::from(130))
        }
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

fn convert(args: &Args, stop: &AtomicBool) -> anyhow::Result<()> {
    if let Some(path) = &args.flat {
        return flat::run(args, path, stop);
    }
    let out = args.output.as_deref().unwrap_or(Path::new("-"));
    let name = args.input.display();
    let mut input = File::open(&args.input).with_context(|| format!("cannot open {name}"))?;
    let from = match args.from {
        Some(from) => from,
        None => detect(&mut input).with_context(|| format!("cannot convert {name}"))?,
    };
    let to = match args.to {
        Some(to) => to,
        None => by_name(out)?,
    };
    ensure!(
        to != Format::PerfScript,
        "perf_script can only be read, not written; `json` is what damo reads as well"
    );
    ensure!(
        !args.publish || (from, to) == (Format::Isotherm, Format::Isotherm),
        "--publish writes a record of a record; convert {name} to .isotherm first, and the result afterwards"
    );
    let output = Output::create(&args.input, out)?;
    let job = Job {
        folder: output.folder.clone(),
        salvages: args.salvage,
        publishes: args.publish,
        stop,
    };
    let (conversion, ended) = job
        .convert(input, from, to, output.file()?)
        .with_context(|| format!("cannot convert {name}"))?;
    output.keep()?;
    report(args, out, (from, to), &conversion, ended)
}

/// Detects the format by the file's beginning; leaves the file's position unchanged.
fn detect(input: &mut File) -> anyhow::Result<Format> {
    let format = Format::detect_in(&mut *input)?;
    // A pipe cannot be rewound.
    input
        .rewind()
        .context("only a file's format can be detected; name it with --from")?;
    format.map_err(|what| anyhow::anyhow!("it is {what}"))
}

fn by_name(path: &Path) -> anyhow::Result<Format> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    Ok(match extension {
        "isotherm" | "arrow" | "arrows" => Format::Isotherm,
        "json" => Format::Json,
        "damo" | "damon" | "data" => Format::JsonCompressed,
        "parquet" => Format::Parquet,
        _ => bail!(
            "the name {} does not say which format to write; add --to json, json_compressed, \
             parquet or isotherm",
            path.display()
        ),
    })
}

struct Job<'a> {
    /// Directory of intermediate data: that of the output, as its disk must hold the data anyway.
    folder: PathBuf,
    /// Damage ends the record, and is no error.
    salvages: bool,
    publishes: bool,
    stop: &'a AtomicBool,
}

/// The early end of a record.
#[derive(Default)]
struct Ended {
    truncated: Option<Truncated>,
    damaged: Option<String>,
}

impl Ended {
    fn of(record: &Reader<impl Read>) -> Self {
        Self {
            truncated: record.truncated(),
            damaged: record.damage().map(ToString::to_string),
        }
    }
}

type Converted = (Conversion, Ended);

impl Job<'_> {
    fn convert(
        &self,
        input: File,
        from: Format,
        to: Format,
        output: File,
    ) -> Result<Converted, ConvertError> {
        let output = Stoppable(output, self.stop);
        if to == Format::Isotherm && from != Format::Isotherm {
            return Ok((self.import(input, from, output)?, Ended::default()));
        }
        if from == Format::Isotherm {
            return self.export(input, to, output);
        }
        let scratch = |source| ConvertError::Scratch {
            folder: self.folder.display().to_string(),
            source,
        };
        let mut between = tempfile::tempfile_in(&self.folder).map_err(scratch)?;
        let mut conversion = self.import(input, from, Stoppable(&between, self.stop))?;
        between.rewind().map_err(scratch)?;
        let (second, _) = self.export(between, to, output)?;
        conversion.then(second);
        Ok((conversion, Ended::default()))
    }

    fn watched(&self, input: File) -> Stoppable<'_, Watched> {
        let length = input.metadata().ok().filter(fs::Metadata::is_file);
        let watched = Watched::new(Box::new(input), length.map(|m| m.len()));
        Stoppable(watched, self.stop)
    }

    fn import(
        &self,
        input: File,
        from: Format,
        output: impl Write,
    ) -> Result<Conversion, ConvertError> {
        isotherm_record::input::import(input, from, |file| self.watched(file), &self.folder, output)
    }

    fn export(
        &self,
        input: File,
        to: Format,
        output: impl Write + Send,
    ) -> Result<Converted, ConvertError> {
        let mut record = Reader::open(self.watched(input))?;
        if self.salvages {
            record = record.salvage();
        }
        let conversion = match to {
            Format::Isotherm if self.publishes => publish(&mut record, output)?,
            Format::Isotherm => rewrite(&mut record, output)?,
            Format::Parquet => parquet::export(&mut record, output)?,
            Format::Json | Format::PerfScript => {
                damo::export_json(&mut record, &self.folder, output)?
            }
            Format::JsonCompressed => {
                let mut zlib = ZlibEncoder::new(output, Compression::fast());
                let conversion = damo::export_json(&mut record, &self.folder, &mut zlib)?;
                zlib.finish().map_err(ConvertError::Write)?;
                conversion
            }
        };
        Ok((conversion, Ended::of(&record)))
    }
}

/// Converts a record to a record, which completes one that was cut off.
fn rewrite(record: &mut Reader<impl Read>, output: impl Write) -> Result<Conversion, ConvertError> {
    let mut conversion = Conversion::default();
    let mut writer = Writer::create(output, record.header())?;
    for item in record {
        let item = item?;
        conversion.count(&item);
        writer.write(&item)?;
    }
    writer.finish()?;
    Ok(conversion)
}

/// Writes a record for publication.
fn publish(record: &mut Reader<impl Read>, output: impl Write) -> Result<Conversion, ConvertError> {
    let mut conversion = Conversion::default();
    let mut publisher = Publisher::default();
    let mut writer = Writer::create(output, &publisher.header(record.header()))?;
    for item in record {
        if let Some(item) = publisher.item(item?) {
            conversion.count(&item);
            writer.write(&item)?;
        }
    }
    writer.finish()?;
    publisher.tell(&mut conversion);
    Ok(conversion)
}

fn report(
    args: &Args,
    output: &Path,
    (from, to): (Format, Format),
    conversion: &Conversion,
    ended: Ended,
) -> anyhow::Result<()> {
    tell_end(args, &ended);
    let mut out: Box<dyn Write> = if is_stdout(output) {
        Box::new(io::stderr())
    } else {
        Box::new(io::stdout())
    };
    let summary = Summary {
        input: &args.input,
        from,
        output,
        to,
        conversion,
        truncated: ended.truncated,
        damaged: ended.damaged,
    };
    if args.result.is_json() {
        writeln!(out, "{}", crate::out::json_line(&summary)?)?;
        return Ok(());
    }
    let (snapshots, regions, items) = (conversion.snapshots, conversion.regions, conversion.items);
    let name = output.display();
    writeln!(
        out,
        "{name}: {snapshots} snapshots, {regions} regions, {items} other items"
    )?;
    let left_out = &conversion.left_out;
    if left_out.unknown_regions > 0 {
        let nr = left_out.unknown_regions;
        writeln!(
            out,
            "left out: {nr} regions of which it is unknown whether they were accessed"
        )?;
    }
    tell_left_out(&mut out, left_out)?;
    for (kind, nr) in &conversion.replaced {
        writeln!(out, "replaced: {nr} names of kind {kind}")?;
    }
    for assumed in &conversion.assumed {
        writeln!(out, "assumed: {assumed}")?;
    }
    Ok(())
}

fn tell_end(args: &Args, ended: &Ended) {
    let name = args.input.display();
    if let Some(truncation) = ended.truncated {
        warn!("{name}: {truncation}");
    }
    if let Some(damage) = &ended.damaged {
        warn!("{name}: {damage}; what comes before is converted");
    }
}

fn tell_left_out(out: &mut impl Write, left_out: &LeftOut) -> io::Result<()> {
    let mut others = left_out.others.iter();
    others.try_for_each(|(kind, count)| writeln!(out, "left out: {count} {kind}"))
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The destination of the output.
struct Output {
    folder: PathBuf,
    to: Destination,
}

enum Destination {
    File(PathBuf, WholeFile),
    /// Standard output, through a file: output that fails midway is not passed on.
    Standard(File),
}

impl Output {
    fn create(input: &Path, path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let cannot = |folder: &Path| format!("cannot write into {}", folder.display());
        if is_stdout(path) {
            let folder = std::env::temp_dir();
            let file = tempfile::tempfile_in(&folder).with_context(|| cannot(&folder))?;
            let to = Destination::Standard(file);
            return Ok(Self { folder, to });
        }
        if let Ok(found) = fs::metadata(path) {
            // Renaming onto a device would replace it.
            ensure!(found.is_file(), "{name} is not a file that can be replaced");
            let same = fs::metadata(input)
                .is_ok_and(|input| (input.dev(), input.ino()) == (found.dev(), found.ino()));
            ensure!(!same, "{name} is the input itself; name another output");
        }
        let folder = folder_of(path).to_owned();
        let file = WholeFile::create(path).with_context(|| cannot(&folder))?;
        let to = Destination::File(path.to_owned(), file);
        Ok(Self { folder, to })
    }

    fn file(&self) -> anyhow::Result<File> {
        let file = match &self.to {
            Destination::File(_, file) => file.file(),
            Destination::Standard(file) => file,
        };
        file.try_clone().context("cannot use the output file")
    }

    fn keep(self) -> anyhow::Result<()> {
        match self.to {
            Destination::File(path, file) => file
                .keep()
                .with_context(|| format!("cannot write {}", path.display())),
            Destination::Standard(mut file) => {
                file.rewind().context("cannot read the output back")?;
                io::copy(&mut BufReader::new(file), &mut io::stdout().lock())
                    .map(drop)
                    .context("cannot write to standard output")
            }
        }
    }
}

/// A file that fails once the user has asked to stop, so that the command ends in the usual way.
struct Stoppable<'a, T>(T, &'a AtomicBool);

impl<T> Stoppable<'_, T> {
    fn check(&self) -> io::Result<()> {
        if self.1.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped by a signal"));
        }
        Ok(())
    }
}

impl<T: Read> Read for Stoppable<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.0.read(buffer)
    }
}

impl<T: Write> Write for Stoppable<'_, T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
