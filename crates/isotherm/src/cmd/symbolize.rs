//! `isotherm symbolize`: names the frames of a record's stacks on a machine that has the binaries.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use isotherm_engine::Nanos;
use isotherm_record::{FrameSymbols, FrameTable, Item, Naming, Reader, Writer};
use isotherm_symbols::{Named, Places, Symbolizer};
use serde::Serialize;
use tracing::info;

use crate::input;
use crate::out::ResultArgs;
use crate::progress::Watched;
use crate::whole_file::WholeFile;

/// Name the functions of a record's stacks, by programs and debug information that are here.
///
/// A recorder names functions at its end, by the symbols of the recorded programs. This command does so later, and
/// elsewhere: after the recorder was killed, and for binaries that are stripped. It adds lines and inlined functions
/// from debug information. The record keeps the names.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm symbolize service.isotherm                           # by the files that were recorded
  isotherm symbolize service.isotherm --binaries ./rootfs       # on another machine
  isotherm symbolize --debug ./debug in.isotherm -o out.isotherm
Then: isotherm report blame service.isotherm

A file that is another build than was recorded (by its build id) is not used.
Exit status: 0 named what could be, 2 the record was left as it is.")]
pub(crate) struct Args {
    /// Name the functions of this record
    record: PathBuf,
    /// Write to this file [default: the record itself]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Look for programs and libraries here, too: a tree of the recorded machine, files side by side, or by build id
    #[arg(long, value_name = "DIRECTORY")]
    binaries: Vec<PathBuf>,
    /// Look for separate debug information here, too [besides /usr/lib/debug]
    #[arg(long, value_name = "DIRECTORY")]
    debug: Vec<PathBuf>,
    /// Name again what has lines or inlined functions already
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    result: ResultArgs,
}

/// The result.
#[derive(Serialize)]
struct Summary {
    record: PathBuf,
    /// Places in files that stacks pass through.
    places: usize,
    /// Places of these that have a name now.
    named: usize,
    /// Places of these that this run has given a name or lines.
    newly_named: usize,
    /// Places with lines or inlined functions now.
    with_lines: usize,
    files_without_names: Vec<Unnamed>,
}

#[derive(Serialize)]
struct Unnamed {
    file: String,
    places: usize,
    why: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (mut frames, time) = frames_of(args)?;
    ensure!(
        !frames.frames.is_empty(),
        "{} has no stacks; `isotherm record --stacks` makes a record that does",
        args.record.display()
    );
    let symbolizer = Symbolizer::by_debug_information(&args.debug);
    let places = Places {
        binaries: args.binaries.clone(),
        copies: false,
    };
    let naming = if args.all {
        Naming::All
    } else {
        Naming::WithoutLines
    };
    let mut named = symbolizer.name_frames(&frames, naming, &places);
    let known = &frames.symbols;
    named
        .symbols
        .symbols
        .retain(|frame, symbol| known.get(frame) != Some(symbol));
    let newly_named = named.symbols.symbols.len();
    if newly_named > 0 {
        let symbols = FrameSymbols {
            time,
            ..named.symbols.clone()
        };
        rewrite(args, symbols)?;
        frames.name(&named.symbols);
    }
    say(args, &frames, named, newly_named)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the record's frames, and the time of its end.
fn frames_of(args: &Args) -> anyhow::Result<(FrameTable, Nanos)> {
    let mut frames = FrameTable::default();
    let mut time = Nanos(0);
    for item in open(args)? {
        let item = item.with_context(|| format!("cannot read {}", args.record.display()))?;
        time = time.max(item.time().unwrap_or_default());
        match &item {
            Item::Stacks(samples) => frames.extend(samples),
            Item::Symbols(symbols) => frames.name(symbols),
            _ => {}
        }
    }
    Ok((frames, time))
}

fn open(args: &Args) -> anyhow::Result<Reader<Watched>> {
    let path = &args.record;
    ensure!(
        path.as_os_str() != "-",
        "the record is read twice: name a file"
    );
    let input = input::open(path)?;
    Reader::open(Watched::new(input.bytes, input.length))
        .with_context(|| format!("cannot read {} as a record", path.display()))
}

/// Writes the record with these names at its end. The file is replaced as a whole, or stays unchanged.
fn rewrite(args: &Args, symbols: FrameSymbols) -> anyhow::Result<()> {
    let path = args.output.as_ref().unwrap_or(&args.record);
    let cannot = || format!("cannot write {}", path.display());
    let reader = open(args)?;
    let file = WholeFile::create(path).with_context(cannot)?;
    let mut writer = Writer::create(file, reader.header()).with_context(cannot)?;
    for item in reader {
        writer.write(&item?).with_context(cannot)?;
    }
    writer.write(&Item::Symbols(symbols)).with_context(cannot)?;
    let file = writer.finish().with_context(cannot)?;
    file.keep().with_context(cannot)
}

fn say(args: &Args, frames: &FrameTable, named: Named, newly_named: usize) -> anyhow::Result<()> {
    let count = |naming| -> usize {
        let files = frames.in_files(naming);
        files.iter().map(|(_, places)| places.len()).sum()
    };
    let places = count(Naming::All);
    let summary = Summary {
        record: args.output.clone().unwrap_or_else(|| args.record.clone()),
        places,
        named: places - count(Naming::Unnamed),
        newly_named,
        with_lines: places - count(Naming::WithoutLines),
        files_without_names: { named.failures.into_iter() }
            .map(|(file, why, places)| Unnamed {
                file,
                places,
                why: why.to_string(),
            })
            .collect(),
    };
    if args.result.is_json() {
        println!("{}", crate::out::json(&summary)?);
        return Ok(());
    }
    println!(
        "{}: {} of {} places have names, {} of them lines or inlined functions; {} are new",
        summary.record.display(),
        summary.named,
        summary.places,
        summary.with_lines,
        summary.newly_named
    );
    for unnamed in &summary.files_without_names {
        info!(
            "{} places in {} have none: {}",
            unnamed.places, unnamed.file, unnamed.why
        );
    }
    Ok(())
}
