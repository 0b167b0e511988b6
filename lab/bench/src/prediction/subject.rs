//! Programs of the prediction bench: those of the truth bench, and some of the generated family.

use std::path::PathBuf;

use super::super::truth::program::Running;
use super::super::truth::programs::{Busy, PROGRAMS, Progress};
use super::super::{BenchContext, machine};
use super::meter::Meter;

/// The identity of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Which {
    /// A packaged program, by its index.
    Packaged(usize),
    /// A program of the family, by its number.
    Drawn(u64),
}

/// Programs of the family, unless an option gives their number.
const DRAWN: u64 = 6;

impl Which {
    /// Returns all programs that are selected.
    pub(super) fn all(context: &BenchContext) -> Vec<Self> {
        let options = &context.truth;
        let is_wanted = |name: &str| {
            options.programs.is_empty() || options.programs.iter().any(|p| p == name || p == "all")
        };
        let packaged = (0..PROGRAMS.len()).filter(|at| is_wanted(PROGRAMS[*at].name));
        let drawn: Vec<u64> = if options.case.is_empty() {
            (0..options.cases.unwrap_or(DRAWN)).collect()
        } else {
            options.case.clone()
        };
        let packaged: Vec<Self> = packaged.map(Self::Packaged).collect();
        let drawn = drawn.into_iter().map(Self::Drawn);
        packaged.into_iter().chain(drawn).collect()
    }

    pub(super) fn name(&self, context: &BenchContext) -> String {
        match self {
            Self::Packaged(at) => PROGRAMS[*at].name.to_owned(),
            Self::Drawn(number) => format!("drawn {}/{number}", context.truth.seed),
        }
    }

    pub(super) fn lacks(&self) -> Option<String> {
        match self {
            Self::Packaged(at) => PROGRAMS[*at].lacks(),
            Self::Drawn(_) => None,
        }
    }

    pub(super) fn start(&self, context: &BenchContext) -> anyhow::Result<Subject> {
        Ok(match self {
            Self::Packaged(at) => {
                let busy = PROGRAMS[*at].start(context)?;
                let meter = match PROGRAMS[*at].progress {
                    Progress::BytesRead => Meter::BytesRead(busy.pid()),
                    Progress::Waits => Meter::Waits(busy.pid()),
                    Progress::Said => Meter::Said(busy.folder().join("said")),
                };
                Subject::Packaged(busy, meter)
            }
            Self::Drawn(number) => {
                let available = machine::meminfo("MemAvailable:").unwrap_or(0);
                let seed = context.truth.seed;
                let running = Running::start(context, seed, *number, available / 8)?;
                let journal = running.journal().to_owned();
                Subject::Drawn(running, journal)
            }
        })
    }
}

/// A running program.
pub(super) enum Subject {
    Packaged(Busy, Meter),
    Drawn(Running, PathBuf),
}

impl Subject {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Packaged(busy, _) => busy.pid(),
            Self::Drawn(running, _) => running.pid(),
        }
    }

    pub(super) fn meter(&self) -> Meter {
        match self {
            Self::Packaged(_, meter) => meter.clone(),
            Self::Drawn(_, journal) => Meter::Journal(journal.clone()),
        }
    }

    pub(super) fn check_running(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Packaged(busy, _) => busy.check_running(),
            Self::Drawn(running, _) => running.check_running(),
        }
    }
}
