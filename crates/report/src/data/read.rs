//! Reads a record into a report: every item once, and the extent of the record.

use std::collections::BTreeSet;
use std::io::Read;

use isotherm_engine::{Nanos, Snapshot, units};
use isotherm_record::{Item, Reader, RecordError};
use thiserror::Error;

use crate::context::{RecordContext, RecordEnd, Scope};

/// The extent of the part that was read: its targets and its length.
#[derive(Clone, Debug, Default)]
pub struct ReadExtent {
    targets: BTreeSet<u32>,
    nr_snapshots: u64,
    nr_admitted: u64,
    end: Nanos,
    record_end: RecordEnd,
}

/// A report would be empty.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NothingThere {
    #[error("the record holds no snapshot")]
    NoSnapshot,
    #[error(
        "no snapshot of target {target}: the record has {known}; `isotherm report summary` says who they are"
    )]
    NoTarget { target: u32, known: String },
    #[error("no snapshot in this part of the record, which lasts {lasts}")]
    NotInPart { lasts: String },
    #[error("no snapshot at {at}: the record ends at {lasts}")]
    NotAt { at: String, lasts: String },
}

/// Passes every item of `record` to `take`, in order.
///
/// Damage ends the record there: the items before it are good, and [`ReadExtent::record_end`] describes the damage.
///
/// # Errors
/// Fails if `take` fails, or if the record's first item cannot be read.
pub fn each<R: Read, E: From<RecordError>>(
    record: &mut Reader<R>,
    scope: Scope,
    mut take: impl FnMut(&Item) -> Result<(), E>,
) -> Result<ReadExtent, E> {
    let mut extent = ReadExtent::default();
    let mut context = RecordContext::new(record.header(), scope);
    for (read, item) in (&mut *record).enumerate() {
        match item {
            Ok(item) => {
                extent.take(&mut context, &item);
                take(&item)?;
            }
            Err(error) if read > 0 => {
                extent.record_end.damaged = Some(error.to_string());
                return Ok(extent);
            }
            Err(error) => return Err(error.into()),
        }
    }
    extent.record_end.truncated = record.truncated();
    Ok(extent)
}

impl ReadExtent {
    /// Returns the record's end, if it is not whole.
    pub fn record_end(&self) -> &RecordEnd {
        &self.record_end
    }

    /// Checks that a report about `scope`, or about the moment `at`, would not be empty.
    ///
    /// # Errors
    /// Fails if the report would be empty. The error describes the record's data instead.
    pub fn require(&self, scope: &Scope, at: Option<Nanos>) -> Result<(), NothingThere> {
        let lasts = units::format_time(self.end);
        if self.nr_snapshots == 0 {
            return Err(NothingThere::NoSnapshot);
        }
        if let Some(target) = scope.target.filter(|t| !self.targets.contains(&t.0)) {
            let mut known: Vec<String> = self.targets.iter().take(20).map(u32::to_string).collect();
            if self.targets.len() > known.len() {
                known.push("...".into());
            }
            return Err(NothingThere::NoTarget {
                target: target.0,
                known: known.join(", "),
            });
        }
        if self.nr_admitted == 0 {
            return Err(NothingThere::NotInPart { lasts });
        }
        match at.filter(|at| *at > self.end) {
            Some(at) => {
                let at = units::format_time(at);
                Err(NothingThere::NotAt { at, lasts })
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, context: &mut RecordContext, item: &Item) {
        let whole;
        let snapshot = match item {
            Item::Snapshot(snapshot) => snapshot,
            Item::Pages(pages) => {
                whole = Snapshot::new(pages.target, (pages.start, pages.end), 0, Vec::new());
                &whole
            }
            _ => return,
        };
        self.targets.insert(snapshot.target.0);
        self.nr_snapshots += 1;
        self.nr_admitted += u64::from(context.admits(snapshot));
        self.end = self.end.max(context.offset(snapshot.end));
    }
}
