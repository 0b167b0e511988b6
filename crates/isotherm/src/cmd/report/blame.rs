//! `isotherm report blame`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use isotherm_engine::Nanos;
use isotherm_engine::units::parse_time;
use isotherm_record::Naming;
use isotherm_report::blame::{
    BlameDiffReport, By, Measure, folded, folded_diff, pprof, speedscope,
};
use isotherm_report::{Accumulate, Blame, BlameOptions, BlameReport};
use isotherm_symbols::{Places, Symbolizer};
use tracing::{debug, warn};

use super::CommonArgs;
use super::output::pipe_may_close;
use super::source::{Source, exit_code, worse_of};
use crate::flags::one_of;

/// Show the functions that made idle memory: bytes by the stack that touched them first.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm record --stacks -o service.isotherm -- ./service
  isotherm report blame service.isotherm --idle 5min
  isotherm report blame service.isotherm -o blame.svg            # a flame graph
  isotherm report blame service.isotherm -o blame.folded         # for flamegraph.pl
  isotherm report blame service.isotherm -o blame.pb.gz          # for go tool pprof
  isotherm report blame service.isotherm --of refaulted          # code that reads it back
  isotherm report blame service.isotherm --of waste              # code that wastes huge pages
  isotherm report blame after.isotherm --against before.isotherm   # what changed

A stack shows the code that touched memory first. An allocator may have handed the memory out again since, without
a page fault.")]
pub(super) struct BlameArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Lay this memory to code.
    #[arg(long, value_parser = one_of(MEASURES), default_value = "idle")]
    of: Measure,
    /// Count memory idle for at least this time [default: the longest of 5 s, 10 s, 30 s, 1 min and 10 min that fits
    /// the record].
    #[arg(long, alias = "at-least", value_name = "TIME", value_parser = parse_time)]
    idle: Option<Nanos>,
    /// Count at this time since the beginning [default: the end].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<Nanos>,
    /// Show what changed since this record.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Sum up by this.
    #[arg(long, value_parser = one_of(GROUPINGS), default_value = "function")]
    by: By,
    /// Write the stacks as another tool reads them [default: what the output file's name ends in].
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with_all = ["format", "json"])]
    export: Option<ExportArg>,
    /// Look for programs and libraries here, too, to name functions: a tree of the recorded machine, files side by
    /// side, or by build id.
    #[arg(long, value_name = "DIRECTORY")]
    binaries: Vec<PathBuf>,
}

const MEASURES: &[(&str, &str, Measure)] = &[
    (
        "idle",
        "Resident memory that was not accessed",
        Measure::Idle,
    ),
    ("resident", "All resident memory", Measure::Resident),
    (
        "accessed",
        "Memory that was accessed in the last interval",
        Measure::Accessed,
    ),
    (
        "refaulted",
        "Memory that was read back from swap, by the code that did so",
        Measure::Refaulted,
    ),
    (
        "waste",
        "Memory of huge pages that was never written, as far as they were read (pages of zeros)",
        Measure::Waste,
    ),
];

const GROUPINGS: &[(&str, &str, By)] = &[
    (
        "function",
        "The function that wanted it: the innermost that is no allocator's, copy's or run time's",
        By::Function,
    ),
    (
        "innermost",
        "The innermost function, be it an allocator's, copy's or run time's",
        By::Innermost,
    ),
    ("stack", "All of the stack", By::Stack),
    ("library", "The file that the function is in", By::Library),
    ("thread", "The thread's name", By::Thread),
    ("mapping", "The mapping", By::Mapping),
    ("target", "The process", By::Target),
];

#[derive(Clone, Copy, ValueEnum)]
enum ExportArg {
    /// A line for each stack: flamegraph.pl, inferno; FILE.folded
    Folded,
    /// JSON of speedscope.app; FILE.speedscope.json
    Speedscope,
    /// A gzipped profile.proto: go tool pprof; FILE.pb.gz, FILE.pprof
    Pprof,
}

const ENDINGS: [(&str, ExportArg); 4] = [
    (".folded", ExportArg::Folded),
    (".speedscope.json", ExportArg::Speedscope),
    (".pb.gz", ExportArg::Pprof),
    (".pprof", ExportArg::Pprof),
];

pub(super) fn blame(args: &BlameArgs) -> anyhow::Result<ExitCode> {
    let output = &args.common.output;
    // The formats of other tools are not formats of reports.
    let source = match args.export() {
        None => args.common.open()?,
        Some(_) => Source::open(args.common.file.as_deref())?,
    };
    let (report, code) = args.report(source, None)?;
    let Some(against) = &args.against else {
        match args.export() {
            None => output.write(&report, &output.style(false))?,
            Some(ExportArg::Folded) => args.write(folded(&report).as_bytes())?,
            Some(ExportArg::Speedscope) => {
                args.write(&serde_json::to_vec(&speedscope(&report))?)?;
            }
            Some(ExportArg::Pprof) => args.write(&pprof(&report)?)?,
        }
        return Ok(code);
    };
    let same = Some(report.at_least_ns);
    let before = Source::open(Some(against)).and_then(|source| args.report(source, same));
    let (before, before_code) =
        before.with_context(|| format!("cannot compare with {}", against.display()))?;
    let diff = BlameDiffReport::new(&before, &report);
    match args.export() {
        None => output.write(&diff, &output.style(false))?,
        Some(ExportArg::Folded) => args.write(folded_diff(&diff).as_bytes())?,
        Some(ExportArg::Speedscope | ExportArg::Pprof) => bail!(
            "a difference is written as folded stacks with two numbers (--export folded), text, json, csv, markdown, svg \
             or html; `go tool pprof -diff_base` compares two profiles itself"
        ),
    }
    Ok(worse_of(code, before_code))
}

impl BlameArgs {
    /// Returns the other tool's format: the one that is asked for, or the one of the output file's name.
    fn export(&self) -> Option<ExportArg> {
        let by_name = || {
            let name = self.common.output.file_without_format()?.file_name()?;
            let ending = ENDINGS
                .iter()
                .find(|(ending, _)| name.as_encoded_bytes().ends_with(ending.as_bytes()));
            ending.map(|(_, export)| *export)
        };
        self.export.or_else(by_name)
    }

    fn options(&self, at_least: Option<Nanos>) -> BlameOptions {
        BlameOptions {
            measure: self.of,
            at_least: at_least.or(self.idle),
            at: self.at,
            by: self.by,
        }
    }

    fn report(
        &self,
        mut source: Source,
        at_least: Option<Nanos>,
    ) -> anyhow::Result<(BlameReport, ExitCode)> {
        let scope = self.common.scope();
        let mut blame = Blame::new(source.header(), scope, self.options(at_least));
        let extent = source.each(scope, |item| {
            blame.push(item);
            Ok(())
        })?;
        extent.require(&scope, self.at)?;
        name_functions(&mut blame, &self.binaries);
        let report = blame.finish_at(extent.record_end().clone());
        let missing = "the record has no stacks; `isotherm record --stacks` makes one that does";
        Ok((report.context(missing)?, exit_code(&extent)))
    }

    fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = self.common.output.open()?;
        pipe_may_close(out.write_all(bytes))?;
        out.finish()
    }
}

/// Names the functions that the recorder could not name, by the files on this machine.
fn name_functions(blame: &mut Blame, binaries: &[PathBuf]) {
    let symbolizer = Symbolizer::by_debug_information(binaries);
    let places = Places {
        binaries: binaries.to_vec(),
        copies: false,
    };
    let frames = blame.frames();
    let named = symbolizer.name_frames(frames, Naming::Unnamed, &places);
    frames.name(&named.symbols);
    for (path, why, nr) in &named.failures {
        debug!("{nr} places in {path} have no names: {why}");
    }
    if let [(path, why, _), rest @ ..] = &named.failures[..] {
        let more = match rest.len() {
            0 => String::new(),
            nr => format!(", and of {nr} files more (-v says which)"),
        };
        warn!(
            "functions of {path} have no names: {why}{more}; --binaries DIRECTORY says where to look"
        );
    }
}
