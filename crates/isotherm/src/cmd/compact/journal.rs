//! The record of a run: scores and free blocks about once a second, and every round.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use isotherm_engine::Nanos;
use isotherm_engine::compaction::{CompactionAttributes, NodeFacts};
use isotherm_linux::host;
use isotherm_record::{CompactionSample, FragmentationSample, Header, Item, Writer};

use super::node::{Node, Round, Standing};
use crate::record_file;

/// Samples need 700 bytes or so: 60 MB in a day.
const SAMPLE_INTERVAL: Nanos = Nanos::from_millis(1000);
/// Looks that come a little early are no reason to leave out every second one.
const EARLY: Nanos = Nanos::from_millis(20);

/// A record being written.
pub(super) struct Journal {
    path: PathBuf,
    writer: Writer<File>,
    /// The last sample of each node.
    sampled: std::collections::BTreeMap<u32, Nanos>,
}

impl Journal {
    /// Starts the record.
    pub(super) fn create(
        path: &Path,
        attributes: CompactionAttributes,
        now: Nanos,
    ) -> anyhow::Result<Self> {
        let header = Header {
            writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
            host: host::hostname(),
            kernel: host::kernel_release(),
            command: crate::out::command_line(),
            started: now,
            operations: "paddr".into(),
            settings: [
                ("method".to_owned(), "compaction".to_owned()),
                ("order".to_owned(), attributes.order.to_string()),
                (
                    "proactiveness".to_owned(),
                    attributes.proactiveness.to_string(),
                ),
            ]
            .into(),
            ..Header::default()
        };
        let file = record_file::create(path)?;
        let writer = Writer::create(file, &header)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_path_buf(),
            writer,
            sampled: std::collections::BTreeMap::new(),
        })
    }

    /// How a node looks, if the last sample of it is old enough.
    pub(super) fn sample(
        &mut self,
        now: Nanos,
        controller: Standing,
        facts: &NodeFacts,
    ) -> anyhow::Result<()> {
        let due = |last: &Nanos| now.since(*last) + EARLY >= SAMPLE_INTERVAL;
        if self.sampled.get(&facts.node).is_none_or(due) {
            self.write_sample(now, controller, facts)?;
        }
        Ok(())
    }

    /// A round, and how the node looks after it.
    pub(super) fn round(&mut self, now: Nanos, node: &Node, round: &Round) -> anyhow::Result<()> {
        self.write(&Item::Compaction(CompactionSample {
            time: now,
            node: node.number(),
            score_before: round.score_before,
            score_after: round.score_after,
            ended: round.ended.name().to_owned(),
            took: round.took_ns,
            cpu: round.cpu_ns,
            migrate_scanned: round.counters.migrate_scanned,
            free_scanned: round.counters.free_scanned,
            isolated: round.counters.isolated,
        }))?;
        self.write_sample(now, node.standing(), &round.after)
    }

    /// Ends the record.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        self.writer.finish().with_context(cannot)?;
        Ok(())
    }

    fn write_sample(
        &mut self,
        now: Nanos,
        controller: Standing,
        facts: &NodeFacts,
    ) -> anyhow::Result<()> {
        self.sampled.insert(facts.node, now);
        self.write(&Item::Fragmentation(FragmentationSample {
            time: now,
            attributes: controller.attributes,
            facts: facts.clone(),
            status: controller.status,
        }))
    }

    fn write(&mut self, item: &Item) -> anyhow::Result<()> {
        let path = &self.path;
        self.writer
            .write(item)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}
