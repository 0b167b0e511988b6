//! `isotherm reproduce`: published experiments, simulated at their published size.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::progress::{Progress, Unit};
use anyhow::Context;
use isotherm_reproduce::{
    PublishedComparison, PublishedExperiment, Reproduction, RunProgress, Summary, reproduce, text,
};
use serde::Serialize;

/// Simulate published experiments at their published size, beside the published numbers.
///
/// Everything that is shown is simulated, and marked by its origin. Input: a constant or a size that was put in.
/// Arithmetic: a sum of inputs. Calibrated: costs or sizes were chosen to match it. Predicted: it follows from
/// mechanisms. Not modelled: there is no number.
#[derive(clap::Args)]
#[command(after_help = "\
compaction: Nitin Gupta, Proactive Compaction for the Linux kernel (2020): 1 TiB, 80 CPUs.
tiering: HMSDK v2.0 Performance Results, and DAMON based tiered memory management for CXL memory (both
2024): redis on 512 GB of DRAM and 96 GB of CXL memory.
reclaim: SeongJae Park, DAMON: data access monitor, v24, and its physical memory patches (2021).

Examples:
  isotherm reproduce all
  isotherm reproduce compaction -o published    # and CSV and a page with the figures in that folder
  isotherm reproduce reclaim --json             # each cell, and each mean error")]
pub(crate) struct Args {
    /// Reproduce this publication.
    #[arg(value_enum)]
    publication: Publication,
    /// Write CSV and an HTML page into this folder [default: none].
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    #[command(flatten)]
    result: crate::out::ResultArgs,
    /// Make this many runs at a time; each takes up to 3 GiB.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Publication {
    /// Time to allocate huge pages on a fragmented machine
    Compaction,
    /// Slowdown of redis on CXL memory, and the part that migration recovers
    Tiering,
    /// Savings and costs of DAMON's schemes, on synthetic programs with the published footprints
    Reclaim,
    /// All of them
    All,
}

impl Publication {
    fn experiments(self) -> Vec<PublishedExperiment> {
        match self {
            Self::Compaction => vec![PublishedExperiment::Compaction],
            Self::Tiering => vec![PublishedExperiment::Tiering],
            Self::Reclaim => vec![PublishedExperiment::Reclaim],
            Self::All => PublishedExperiment::ALL.to_vec(),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut all = Vec::new();
    for experiment in args.publication.experiments() {
        let bar = Progress::new(Some(0), Unit::Count("runs"));
        let of_it = reproduce(experiment, args.jobs, &|progress| match progress {
            RunProgress::Planned(nr) => bar.set_length(nr as u64),
            RunProgress::Begun(title) => bar.set_message(title),
            RunProgress::Ended => bar.inc(1),
        })?;
        drop(bar);
        if let Some(folder) = &args.output {
            for (name, text) in &of_it.files {
                crate::whole_file::write(&folder.join(name), text.as_bytes())?;
            }
        }
        all.push(of_it);
    }
    let text = if args.result.is_json() {
        crate::out::json(&Numbers::of(all))? + "\n"
    } else {
        text(&all)
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Results of experiments, as JSON.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Numbers {
    /// Notes on the numbers, a sentence each.
    notes: Vec<String>,
    /// Mean of several cells, and their mean error.
    summaries: Vec<Summary>,
    /// Each number beside the published one.
    comparisons: Vec<PublishedComparison>,
}

impl Numbers {
    fn of(all: Vec<Reproduction>) -> Self {
        let mut numbers = Self::default();
        for of_it in all {
            numbers.notes.extend(of_it.notes);
            numbers.summaries.extend(of_it.summaries);
            numbers.comparisons.extend(of_it.comparisons);
        }
        numbers
    }
}
