//! Sessions of this machine, made from a [`SessionSpec`](isotherm_config::SessionSpec). A session finds and follows
//! targets, monitors them in each context, and applies schemes to the results. It returns record items.
//!
//! ```text
//! let mut session = Session::start(&spec, command_line)?;
//! let mut acting = new_acting(&spec)?;
//! loop {
//!     session.step(until, &mut items)?;       // sleeps, watches
//!     acting.step(&mut session, &mut items)?; // schemes, guard, actuators
//!     // items: to a record, a view, metrics
//! }
//! ```
//!
//! No function prints. Messages for the user are values (`warnings`, `lacking`) or items
//! ([`Item::Note`](isotherm_record::Item)).
//!
//! Without the feature `live` there are only configurations and simulations, for machines with page tables that are not
//! supported.

#[cfg(feature = "live")]
mod acting;
#[cfg(feature = "live")]
mod background;
mod check;
#[cfg(feature = "live")]
mod columns;
#[cfg(feature = "live")]
mod compaction;
#[cfg(feature = "live")]
pub mod compare;
#[cfg(feature = "live")]
mod kernel;
#[cfg(feature = "live")]
mod live;
#[cfg(feature = "live")]
mod lock;
mod messages;
#[cfg(feature = "live")]
mod meters;
#[cfg(feature = "live")]
mod monitor;
#[cfg(feature = "live")]
mod privilege;
#[cfg(feature = "live")]
pub mod protocol;
#[cfg(unix)]
pub mod record_file;
#[cfg(feature = "live")]
pub mod restore;
#[cfg(feature = "live")]
mod session;
#[cfg(feature = "live")]
mod signals;
pub mod simulated;
#[cfg(feature = "live")]
mod stacks;
#[cfg(feature = "live")]
mod start;
#[cfg(feature = "live")]
mod targets;
#[cfg(feature = "live")]
pub mod thp;
mod versioned;

pub use check::{CheckReport, Finding, check};
pub use versioned::Versioned;

#[cfg(feature = "live")]
pub use {
    acting::{
        Acting, ActingStatus, ActingSummary, BoundTime, ContextStatus, PodPermits, SchemeSummary,
        lacking, new_acting, progress::read as read_progress, warnings,
    },
    background::{Background, Next},
    compaction::{
        CompactionEvent, CompactionOutput, CompactionReport, CompactionRound, CompactionSession,
        CompactionSpec, NodeCheck, RoundTotals,
    },
    kernel::{KdamondReport, KernelDamonReport, ModuleReport, kernel_plan},
    live::{begin, finish, step},
    lock::{Lock, lock},
    privilege::lacks_privilege,
    session::{Session, Step},
    signals::Signals,
    start::parts::pids,
};
