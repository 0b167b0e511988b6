//! `isotherm report`: shows the content of a record.
//!
//! A report is an accumulator of `isotherm_report`. This file passes the record's items and the user's options to it,
//! and its result to a renderer.

mod blame;
pub(crate) mod ethp_curve;
mod more;
mod output;
mod pages_of_interest;
mod parse;
pub(crate) mod reclaim_curve;
pub(crate) mod size;
pub(crate) mod source;
mod temperature;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use clap::builder::TypedValueParser;
use isotherm_engine::units::{parse_bytes, parse_time};
use isotherm_engine::{Nanos, TargetId};
use isotherm_record::Header;
use isotherm_report::access::{HotRate, OptionalBounds, SortBy, Which};
use isotherm_report::render::{AccessWriter, Render};
use isotherm_report::{
    Access, AccessOptions, Accumulate, Footprint, Fragmentation, Heatmap, HeatmapOptions, Idle,
    IdleOptions, ReportFormat, Scope, Wss, WssOptions,
};

use isotherm_view::Finished;
use isotherm_view::page::{self, Data};
use output::{OutputArgs, pipe_may_close};
use source::{Source, exit_code};
use tracing::info;

use crate::flags::one_of_these;

/// Show what a record holds: which memory is hot, which is idle, how much is in use.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  isotherm report summary redis.isotherm\n  isotherm report heatmap redis.isotherm -o heatmap.html\n\n\
                  Exit status: 0 reported (of an unfinished record: what it holds), 1 the record is damaged (the report is of\n\
                  what comes before), 2 no report."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    report: Report,
}

/// Declares the reports: each is a line of a name, its options, what runs it, and the type of its JSON.
macro_rules! reports {
    ($($(#[$attribute:meta])* $name:ident($args:ty) => $run:path, $json:ident;)*) => {
        #[derive(Subcommand)]
        enum Report {
            $($(#[$attribute])* $name($args),)*
        }

        pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
            match args.report {
                $(Report::$name(args) => $run(&args),)*
            }
        }

        #[cfg(test)]
        pub(crate) fn schemas() -> Vec<crate::schemas::Printed> {
            let name = |name: &str| format!("report {}", name.to_lowercase());
            vec![$(crate::schemas::report::<isotherm_report::$json>(&name(stringify!($name))),)*]
        }
    };
}

reports! {
    Access(Box<AccessArgs>) => access, AccessReport;
    Heatmap(HeatmapArgs) => heatmap, HeatmapReport;
    Temperature(temperature::TemperatureArgs) => temperature::run, TemperatureReport;
    Wss(WssArgs) => wss, WssReport;
    Idle(IdleArgs) => idle, IdleReport;
    Blame(blame::BlameArgs) => blame::blame, BlameReport;
    Footprint(FootprintArgs) => footprint, FootprintReport;
    Fragmentation(FragmentationArgs) => fragmentation, FragmentationReport;
    /// Show what the machine's memory is used for: by class, process, control group and node, and how much is idle.
    #[command(after_help = "Example:
  isotherm record --all --duration 1min -o machine.isotherm
  isotherm report machine machine.isotherm -o machine.html")]
    Machine(CommonArgs) => more::machine, MachineReport;
    /// Summarize a record on one screen: memory by process, cold memory, savings by paging out, and the next steps.
    #[command(after_help = "Example:\n  isotherm report summary redis.isotherm")]
    Summary(CommonArgs) => more::summary, SummaryReport;
    Diff(more::DiffArgs) => more::diff, DiffReport;
    /// Show what schemes tried and did, what was refused and why, and how the guard stood, over time.
    #[command(after_help = "Example:
  isotherm run --preset prcl -o run.isotherm --duration 5min --pid 1234
  isotherm report actions run.isotherm -o actions.html")]
    Actions(CommonArgs) => more::actions, ActionsReport;
}

/// The record, the part of it to report on, and the output.
#[derive(clap::Args)]
struct CommonArgs {
    /// Report on this record; `-` reads standard input [default: the newest *.isotherm file here].
    file: Option<PathBuf>,
    /// Report only the target with this number [default: all].
    #[arg(long, value_name = "N")]
    target: Option<u32>,
    /// Leave out what ended before this time since the beginning, e.g. 5s.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    from: Option<Nanos>,
    /// Leave out what began at this time since the beginning or later.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    to: Option<Nanos>,
    #[command(flatten)]
    output: OutputArgs,
}

impl CommonArgs {
    /// Opens the record; refuses an output that cannot be written before anything is read.
    fn open(&self) -> anyhow::Result<Source> {
        self.output.format()?;
        Source::open(self.file.as_deref())
    }

    /// Opens the record as [`Self::open`] does, but keeps single pages.
    fn open_pages(&self) -> anyhow::Result<Source> {
        self.output.format()?;
        Source::open_pages(self.file.as_deref())
    }

    /// Reads a page-granular record into a curve, and writes the curve.
    fn write_curve<A, R>(&self, make: impl FnOnce(&Header) -> A) -> anyhow::Result<ExitCode>
    where
        A: Accumulate<Report = Option<R>>,
        R: Render,
    {
        let missing =
            "the record holds no page scans in this part; make one with `isotherm record --pages`";
        self.write_if_there(self.open_pages()?, false, make, missing)
    }

    /// Reads a record into a report that not every record has, and writes it; or fails and names what is `missing`.
    fn write_if_there<A, R>(
        &self,
        source: Source,
        over_time: bool,
        make: impl FnOnce(&Header) -> A,
        missing: &'static str,
    ) -> anyhow::Result<ExitCode>
    where
        A: Accumulate<Report = Option<R>>,
        R: Render,
    {
        let (report, extent) = source.accumulate(self.scope(), make)?;
        let report = report.context(missing)?;
        self.output.write(&report, &self.output.style(over_time))?;
        Ok(exit_code(&extent))
    }

    /// Reads a record into a report, and writes it; or fails if it has no snapshot in this part, or at the time `at`.
    fn write_report<A: Accumulate<Report: Render>>(
        &self,
        source: Source,
        (at, over_time): (Option<Nanos>, bool),
        make: impl FnOnce(&Header) -> A,
    ) -> anyhow::Result<ExitCode> {
        let (report, extent) = source.accumulate(self.scope(), make)?;
        extent.require(&self.scope(), at)?;
        let style = self.output.style(over_time);
        self.output.write(&report, &style)?;
        Ok(exit_code(&extent))
    }

    fn scope(&self) -> Scope {
        Scope {
            target: self.target.map(TargetId),
            from: self.from,
            to: self.to,
        }
    }
}

/// Show the regions of a snapshot: address, size, access rate, age, mapping.
///
/// A region's age is the time since its access rate changed. A region of rate 0 has been idle for its age.
#[derive(clap::Args)]
#[command(
    after_help = "Example: the ten largest areas that were idle for 30 s or more\n  \
    isotherm report access --max-rate 0% --min-age 30s --sort size --limit 10\n\n\
    Example: what was idle for 30 s, as candidates of memtierd's policy demote-idle\n  \
    isotherm report access --max-rate 0% --min-age 30s --pages-of-interest ."
)]
struct AccessArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Show this snapshot: the `last` of each target, `all`, or a number counting from 0.
    #[arg(long, default_value = "last", value_parser = which, conflicts_with = "at", value_name = "N|last|all")]
    snapshot: Which,
    /// Show the snapshot at this time since the beginning, e.g. 12s.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<Nanos>,
    /// Sort by lowest address, largest size, highest rate or age, or mapping name first.
    #[arg(long, value_parser = orders(), default_value = "address")]
    sort: SortBy,
    /// Reverse the order.
    #[arg(long)]
    reverse: bool,
    /// Show only regions of at least this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    min_size: Option<u64>,
    /// Show only regions of at most this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    max_size: Option<u64>,
    /// Show only regions known to be accessed at this rate or more often.
    #[arg(long, value_name = "SHARE", value_parser = parse::rate)]
    min_rate: Option<f32>,
    /// Show only regions known to be accessed at this rate or less often.
    #[arg(long, value_name = "SHARE", value_parser = parse::rate)]
    max_rate: Option<f32>,
    /// Show only regions of at least this age.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    min_age: Option<Nanos>,
    /// Show only regions of at most this age.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    max_age: Option<Nanos>,
    /// Show only regions whose mapping's name contains this.
    #[arg(long, value_name = "TEXT")]
    mapping: Option<String>,
    /// Show at most this many regions [default: all].
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Count bytes as hot from this access rate on, and as cold below it [default: 5%].
    #[arg(long, value_name = "SHARE", value_parser = parse::rate)]
    hot: Option<f32>,
    /// Write the shown regions of each process to DIR/PID.vab, too, as memtierd's pages of interest.
    #[arg(long, value_name = "DIR", conflicts_with = "snapshot")]
    pages_of_interest: Option<PathBuf>,
}

fn orders() -> impl TypedValueParser<Value = SortBy> {
    one_of_these(SortBy::ALL.iter().map(|by| (by.name(), "", by)))
}

/// Draw the access rate over time and address, as text, a picture, or an interactive page.
#[derive(clap::Args)]
#[command(
    after_help = "Example: a page to zoom in and to point at\n  isotherm report heatmap -o heatmap.html"
)]
struct HeatmapArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Draw this many steps of time [default: what fits; 512 at most]. A page has all that is known.
    #[arg(long, value_name = "N")]
    columns: Option<usize>,
    /// Draw about this many steps of address of each target [default: what fits].
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
}

/// Show the working set: how many bytes are in use, as percentiles over time.
#[derive(clap::Args)]
#[command(
    after_help = "Example: with its course over time, counting what is accessed at 5 % of checks or more\n  \
    isotherm report wss --min-rate 5% --over-time"
)]
struct WssArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Count a region as in use from this access rate on [default: any access].
    #[arg(long, value_name = "SHARE", value_parser = parse::rate)]
    min_rate: Option<f32>,
    /// Show these percentiles.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse::percentile, default_value = "0,25,50,75,100")]
    percentiles: Vec<f64>,
    /// Show the working set over time as well.
    #[arg(long)]
    over_time: bool,
}

/// Show how much memory has been idle, and for how long.
#[derive(clap::Args)]
#[command(after_help = "Example: at 20 s into the record\n  isotherm report idle --at 20s")]
struct IdleArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Count at this time since the beginning [default: the end].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<Nanos>,
    /// Count memory idle for at least each of these times.
    #[arg(long, alias = "at-least", value_name = "LIST", value_delimiter = ',', value_parser = parse_time, default_value = "1s,5s,30s,2m,10m")]
    idle: Vec<Nanos>,
    /// Show these percentiles of bytes.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse::percentile, default_value = "0,10,25,50,75,90,99,100")]
    percentiles: Vec<f64>,
}

/// Show resident size, swap, working set and the machine's memory over time.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  isotherm report footprint -o footprint.svg")]
struct FootprintArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Count a region in the working set from this access rate on [default: any access].
    #[arg(long, value_name = "SHARE", value_parser = parse::rate)]
    min_rate: Option<f32>,
    /// Show every step of time as well.
    #[arg(long)]
    over_time: bool,
}

/// Show how fragmented free memory is, its blocks by size over time, and what compacting did about it.
#[derive(clap::Args)]
#[command(after_help = "Example: what `isotherm compact` has seen and done
  isotherm compact --daemon --duration 5min -o compact.isotherm
  isotherm report fragmentation compact.isotherm -o fragmentation.html")]
struct FragmentationArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Show every step of time as well.
    #[arg(long)]
    over_time: bool,
}

fn access(args: &AccessArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let format = common.output.format()?;
    anyhow::ensure!(
        args.snapshot != Which::All || format != ReportFormat::Svg,
        "one picture cannot show all snapshots: choose one with --snapshot or --at, or see `report heatmap`"
    );
    let mut source = common.open()?;
    let mut report = Access::new(source.header(), common.scope(), args.options());
    let mut out = common.output.open()?;
    let mut writer = AccessWriter::new(format, common.output.style(false), &mut out);
    let mut written = Ok(());
    let extent = source.each(common.scope(), |item| {
        if let Some(table) = report.push(item)
            && written.is_ok()
        {
            written = writer.table(&report.record_info(), &table);
        }
        Ok(())
    })?;
    extent.require(&common.scope(), args.at)?;
    report.end(extent.record_end().clone());
    let record = report.record_info();
    let (tables, ended) = report.finish();
    for table in &tables {
        written = written.and_then(|()| writer.table(&record, table));
    }
    anyhow::ensure!(
        written.is_err() || writer.nr_written() > 0,
        "no such snapshot in this part of the record; they are numbered from 0 for each target"
    );
    let finished = written.and_then(|()| writer.finish(&record));
    if ended > 0 {
        info!("{ended} targets had ended before; --target or --at show them");
    }
    pipe_may_close(finished.map(|_| ()))?;
    out.finish()?;
    if let Some(directory) = &args.pages_of_interest {
        pages_of_interest::write(directory, &tables)?;
    }
    Ok(exit_code(&extent))
}

impl AccessArgs {
    fn options(&self) -> AccessOptions {
        AccessOptions {
            which: self.at.map_or(self.snapshot, Which::At),
            sort: self.sort,
            reverse: self.reverse,
            size: OptionalBounds::new(self.min_size, self.max_size),
            rate: OptionalBounds::new(self.min_rate, self.max_rate),
            age: OptionalBounds::new(self.min_age, self.max_age),
            mapping: self.mapping.clone(),
            limit: self.limit,
            hot_rate: self.hot.map_or_else(HotRate::default, HotRate),
        }
    }
}

fn heatmap(args: &HeatmapArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let style = common.output.style(false);
    let format = common.output.format()?;
    if format == ReportFormat::Html {
        return page(common);
    }
    let (columns, rows) = match format {
        // Leave space for addresses on the left, and sizes and names on the right; a coloured line holds two rows of
        // cells.
        ReportFormat::Text => {
            let lines = common.output.height().saturating_sub(14).clamp(8, 48);
            let coloured = style.palette != isotherm_render::colour::Palette::Plain;
            let rows = if coloured { 2 * lines } else { lines };
            (style.width.saturating_sub(16 + 11 + 24).max(20), rows)
        }
        ReportFormat::Svg => (320, 160),
        ReportFormat::Html | ReportFormat::Json | ReportFormat::Table(_) => (512, 600),
    };
    let options = HeatmapOptions {
        columns: args.columns.unwrap_or(columns),
        rows: args.rows.unwrap_or(rows),
        ..HeatmapOptions::default()
    };
    let make = |header: &_| Heatmap::new(header, common.scope(), options);
    common.write_report(common.open()?, (None, false), make)
}

/// Writes the page that `isotherm web` serves, as one file.
fn page(common: &CommonArgs) -> anyhow::Result<ExitCode> {
    let source = common.open_pages()?;
    let shown = source.document(common.scope())?;
    let container = Finished::container(&[shown.document])?;
    // A part of a trace is not a trace.
    let is_whole = common.target.is_none() && common.from.is_none() && common.to.is_none();
    let trace = shown.trace.filter(|_| is_whole);
    let trace = trace.map(|file| page::trace(&file)).transpose()?.flatten();
    let mut out = common.output.open()?;
    let data = Data::Inside {
        container: &container,
        trace: trace.as_deref(),
    };
    pipe_may_close(page::write(data, &mut out))?;
    out.finish()?;
    Ok(exit_code(&shown.extent))
}

fn wss(args: &WssArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let options = WssOptions {
        min_rate: args.min_rate,
        percentiles: args.percentiles.clone(),
    };
    let make = |header: &_| Wss::new(header, common.scope(), options);
    common.write_report(common.open()?, (None, args.over_time), make)
}

fn idle(args: &IdleArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let options = IdleOptions {
        at: args.at,
        at_least: args.idle.clone(),
        percentiles: args.percentiles.clone(),
    };
    let make = |header: &_| Idle::new(header, common.scope(), options);
    common.write_report(common.open()?, (args.at, false), make)
}

fn footprint(args: &FootprintArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let make = |header: &_| Footprint::new(header, common.scope(), args.min_rate);
    let missing = "the record says nothing of memory use in this part";
    common.write_if_there(common.open()?, args.over_time, make, missing)
}

fn fragmentation(args: &FragmentationArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let make = |header: &_| Fragmentation::new(header, common.scope());
    let missing = "the record says nothing of fragmentation in this part; `isotherm compact -o FILE` makes one that does";
    common.write_if_there(common.open()?, args.over_time, make, missing)
}

fn which(text: &str) -> Result<Which, String> {
    match text {
        "last" => Ok(Which::Last),
        "all" => Ok(Which::All),
        number => number
            .parse()
            .map(Which::Number)
            .map_err(|_| format!("{number:?} is not a number, last or all")),
    }
}
