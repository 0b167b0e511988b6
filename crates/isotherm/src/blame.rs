//! Whose code made idle memory, told while it is watched: the top functions, every so often.
//!
//! What `isotherm report blame` makes of a record is made of a session's items. It is asked for by `--stacks` alone;
//! names of functions come from the programs' files, of copies, since these are others'.

use isotherm_engine::Nanos;
use isotherm_record::stacks::STACKS_SETTING;
use isotherm_record::{FrameTable, Header, Item, Naming};
use isotherm_report::{Accumulate as _, Blame, BlameOptions, Scope};
use isotherm_session::protocol::{BlameStatus, BlamedFunction};
use isotherm_symbols::{Places, Symbolizer};

/// Functions that are told.
const FUNCTIONS: usize = 5;

/// Names functions as their stacks come, by the files that are here.
pub(crate) struct FunctionNames {
    symbolizer: Symbolizer,
    places: Places,
}

impl FunctionNames {
    /// Of what runs: by symbols alone, and of copies, since the files are others'.
    pub(crate) fn live() -> Self {
        Self {
            symbolizer: Symbolizer::by_symbols(),
            places: Places {
                copies: true,
                ..Places::default()
            },
        }
    }

    /// Of a record, by all that there is.
    pub(crate) fn of_record() -> Self {
        Self {
            symbolizer: Symbolizer::by_debug_information(&[]),
            places: Places::default(),
        }
    }

    /// Names those that have come since. What cannot be named is not looked for again.
    pub(crate) fn name(&self, frames: &mut FrameTable) {
        let named = self
            .symbolizer
            .name_frames(frames, Naming::Unnamed, &self.places);
        frames.name(&named.symbols);
        frames.give_up();
    }
}

/// The join of idle memory and stacks, kept up to date.
pub(crate) struct LiveBlame {
    blame: Blame,
    names: FunctionNames,
    at_least: Nanos,
    every: Nanos,
    next: Nanos,
}

impl LiveBlame {
    /// Of a session with this header, if it takes stacks: of memory idle for `at_least`, told anew after `every`.
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

    /// Takes in what has happened.
    pub(crate) fn push(&mut self, item: &Item) {
        self.blame.push(item);
    }

    /// What there is to tell by now, if it is time.
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
