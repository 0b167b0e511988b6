//! The summary of a record, with the memory that its targets need where it holds page scans.

use isotherm_record::{Header, Item, PageAges};
use isotherm_report::summary::NeededMemory;
use isotherm_report::{Accumulate, Overviews, RecordEnd, Scope, SummaryReport};

use crate::{Size, SizeOptions, SizeReport};

/// The accumulator. It takes page scans as they are: the reader must not replay them.
#[derive(Clone, Debug)]
pub struct SizedSummary {
    overviews: Overviews,
    size: Size,
    ages: PageAges,
    /// Reason why a scan could not be replayed. The summary is of what comes before.
    damaged: Option<String>,
}

impl SizedSummary {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            overviews: Overviews::new(header, scope),
            size: Size::new(header, scope, SizeOptions::default()),
            ages: PageAges::default(),
            damaged: None,
        }
    }
}

impl Accumulate for SizedSummary {
    type Report = SummaryReport;

    fn push(&mut self, item: &Item) {
        if self.damaged.is_some() {
            return;
        }
        self.size.push(item);
        let Item::Pages(pages) = item else {
            return self.overviews.push(item);
        };
        match self.ages.snapshot(pages) {
            Ok(snapshot) => self.overviews.push(&Item::Snapshot(snapshot)),
            Err(error) => self.damaged = Some(error.to_string()),
        }
    }

    fn finish_at(self, mut end: RecordEnd) -> SummaryReport {
        end.damaged = end.damaged.or(self.damaged);
        let mut summary = SummaryReport::new(self.overviews.finish_at(end));
        summary.needed = self.size.finish().map(|size| size.needed());
        summary
    }
}

impl SizeReport {
    /// Returns the memory that the targets need, for a report of something else.
    pub fn needed(&self) -> NeededMemory {
        let request = self.advice().0.request;
        NeededMemory {
            bytes: request.bytes,
            low_bytes: request.low_bytes,
            high_bytes: request.high_bytes,
            peak_bytes: self.memory.peak_bytes,
            max_slowdown: self.max_slowdown,
        }
    }
}
