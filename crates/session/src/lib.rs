//! Sessions: what a [`SessionSpec`](isotherm_config::SessionSpec) asks for, on this machine. Targets are
//! found and followed, a monitor watches each context's, schemes act on what it sees, and everything
//! comes out as record items.
//!
//! ```text
//! let mut session = Session::start(&spec, command_line)?;
//! let mut acting = Acting::new(&spec, &session)?;
//! loop {
//!     session.step(until, &mut items)?;       // sleeps, watches
//!     acting.step(&mut session, &mut items)?; // schemes, guard, actuators
//!     // items: to a record, a view, metrics
//! }
//! ```
//!
//! Nothing here prints: what the user should know is a value ([`warnings`], [`lacking`]) or an item
//! ([`Item::Note`](isotherm_record::Item)).

mod acting;
mod background;
mod check;
mod compaction;
pub mod compare;
mod kernel;
mod live;
mod lock;
mod meters;
mod monitor;
mod privilege;
pub mod protocol;
pub mod record_file;
mod session;
mod signals;
pub mod simulated;
mod start;
mod targets;
mod versioned;

pub use acting::{
    Acting, ActingStatus, ActingSummary, ContextStatus, SchemeSummary, lacking, limit_words,
    refusal_words, warnings, warnings_of_schemes,
};
pub use background::{Background, Next};
pub use check::{CheckReport, Finding, check};
pub use compaction::{
    CompactionEvent, CompactionOutput, CompactionReport, CompactionRound, CompactionSession,
    CompactionSpec, NodeCheck, RoundTotals,
};
pub use kernel::{KdamondReport, KernelDamonReport, ModuleReport, kernel_plan};
pub use live::{begin, finish, step};
pub use lock::{Lock, lock};
pub use privilege::lacks_privilege;
pub use session::{Session, Step};
pub use signals::Signals;
pub use versioned::Versioned;
