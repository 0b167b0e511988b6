//! Functions that made idle memory, reported while it is watched: the top functions, at a fixed period.
//!
//! The report is that of `isotherm report blame`, made of a session's items instead of a record. Only `--stacks`
//! enables it. The names of functions come from copies of the programs' files, since the files belong to others.

use isotherm_engine::Nanos;
use isotherm_record::stacks::STACKS_SETTING;
use isotherm_record::{FrameTable, Header, Item, Naming};
use isotherm_report::{Accumulate as _, Blame, BlameOptions, Scope};
use isotherm_session::protocol::{BlameStatus, BlamedFunction};
use isotherm_symbols::{Places, Symbolizer};

const FUNCTIONS: usize = 5;

/// Names functions when their stacks arrive, by the files on this machine.
pub(crate) struct FunctionNames {
    symbolizer: Symbolizer,
    places: Places,
}

impl FunctionNames {
    /// Names functions of running programs: by symbols only, and from copies, since the files belong to others.
    pub(crate) fn live() -> Self {
        Self {
            symbolizer: Symbolizer::by_symbols(),
            places: Places {
                copies: true,
                ..Places::default()
            },
        }
    }

    /// Names functions of a record, by all debug information.
    pub(crate) fn of_record() -> Self {
        Self {
            symbolizer: Symbolizer::by_debug_information(&[]),
            places: Places::default(),
        }
    }

    /// Names the frames since the last call. A frame without a name is not looked up again.
    pub(crate) fn name(&self, frames: &mut FrameTable) {
        let named = self
            .symbolizer
            .name_frames(frames, Naming::Unnamed, &self.places);
        frames.name(&named.symbols);
        frames.give_up();
    }
}

/// The join of idle memory and stacks, which each item updates.
pub(crate) struct LiveBlame {
    blame: Blame,
    names: FunctionNames,
    at_least: Nanos,
    every: Nanos,
    next: Nanos,
}

impl LiveBlame {
    /// Returns the report for a session with this header, if it takes stacks: of memory idle for `at_least`, every
    /// `every`.
    pub(crate) fn new(header: &Header, at_least: Nanos, every: Nanos) -> Option<Self> {
        header.settings.get(STACKS_SETTING)?;
        let options = BlameOptions {
            at_least: Some(at_least),
            ..BlameOptions::default()
        };
        Some(Self {
            blame: Blame::new(header, Scope::default(), options),
            names: FunctionNames::live(),
            at_least,
            every,
            next: Nanos(0),
        })
    }

    pub(crate) fn push(&mut self, item: &Item) {
        self.blame.push(item);
    }

    /// Returns the next report, if it is time.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<BlameStatus> {
        if now < self.next {
            return None;
        }
        self.next = now + self.every;
        self.names.name(self.blame.frames());
        let report = self.blame.report()?;
        let functions = report.blamed.iter().take(FUNCTIONS);
        Some(BlameStatus {
            at: now,
            at_least_ns: self.at_least,
            idle_bytes: report.total_bytes,
            unknown_bytes: report.unknown.before_sampling + report.unknown.not_sampled,
            functions: functions
                .map(|blamed| BlamedFunction {
                    function: blamed.name.clone(),
                    bytes: blamed.bytes,
                })
                .collect(),
        })
    }
}
