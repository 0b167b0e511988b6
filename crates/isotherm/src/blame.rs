//! Whose code made idle memory, told while it is watched: the top functions, every so often.
//!
//! What `isotherm report blame` makes of a record is made of a session's items. It is asked for by `--stacks` alone;
//! names of functions come from the programs' files, of copies, since these are others'.

use isotherm_engine::Nanos;
use isotherm_record::stacks::STACKS_SETTING;
use isotherm_record::{Header, Item};
use isotherm_report::{Accumulate as _, Blame, BlameOptions, Scope};
use isotherm_session::protocol::{BlameStatus, BlamedFunction};
use isotherm_symbols::{Places, Symbolizer};

/// Functions that are told.
const FUNCTIONS: usize = 5;

/// The join of idle memory and stacks, kept up to date.
pub(crate) struct LiveBlame {
    blame: Blame,
    symbolizer: Symbolizer,
    at_least: Nanos,
    every: Nanos,
    next: Nanos,
}

impl LiveBlame {
    /// Of a session with this header, if it takes stacks: of memory idle for `at_least`, told anew after `every`.
    pub(crate) fn new(header: &Header, at_least: Nanos, every: Nanos) -> Option<Self> {
        header.settings.get(STACKS_SETTING)?;
        let options = BlameOptions {
            at_least,
            ..BlameOptions::default()
        };
        Some(Self {
            blame: Blame::new(header, Scope::default(), options),
            symbolizer: Symbolizer::by_symbols(),
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
        let places = Places {
            copies: true,
            ..Places::default()
        };
        let frames = self.blame.frames();
        let named = self.symbolizer.name_frames(frames, false, &places);
        frames.name(&named.symbols);
        // They are not looked for each time.
        frames.give_up();
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
