//! A program of the generated family: `isotherm-bench truth-case SEED INDEX ...`, a process of its own.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use isotherm_workload::family::journal::Ready;
use isotherm_workload::family::program::{self, ProgramOptions};

use super::super::BenchContext;

#[derive(Parser)]
#[command(
    name = "isotherm-bench truth-case",
    about = "Run a program of the generated family"
)]
struct Args {
    #[command(flatten)]
    options: ProgramOptions,
}

pub(crate) fn main(args: impl Iterator<Item = String>) -> Result<ExitCode> {
    program::run(&Args::parse_from(args).options)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) struct Running {
    pub(crate) child: super::Guarded,
    pub(crate) journal: PathBuf,
    pub(super) ready: Ready,
}

impl Running {
    /// Starts case `index` of `seed` and waits until it touches memory.
    pub(crate) fn start(context: &BenchContext, seed: u64, index: u64, limit: u64) -> Result<Self> {
        let (ready, journal) = (
            context.scratch("case.json"),
            context.scratch("case.journal"),
        );
        for old in [&ready, &journal] {
            let _ = std::fs::remove_file(old);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("truth-case")
            .args(["--seed", &seed.to_string()])
            .args(["--index", &index.to_string()])
            .args(["--limit", &limit.to_string()])
            .arg("--ready")
            .arg(&ready)
            .arg("--journal")
            .arg(&journal);
        let mut child = super::Guarded::spawn(context, &mut command)?;
        let end = Instant::now() + super::READY_LIMIT;
        while !ready.exists() {
            child.check_running()?;
            if Instant::now() > end {
                bail!(
                    "the program of case {index} is not ready after {:?}",
                    super::READY_LIMIT
                );
            }
            context.sleep(Duration::from_millis(20))?;
        }
        let said = std::fs::read(&ready)?;
        Ok(Self {
            child,
            journal,
            ready: serde_json::from_slice(&said).context("the program says nothing sensible")?,
        })
    }

    /// Ends it and reads its log.
    pub(crate) fn finish(mut self) -> Result<super::TouchJournal> {
        let status = self.child.stop()?;
        if !status.success() {
            bail!("the program of the case failed, with {status}");
        }
        let journal = File::open(&self.journal).context("the program left no journal")?;
        Ok(super::TouchJournal::read(self.ready, journal)?)
    }
}
