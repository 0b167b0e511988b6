//! Keeps what is read of a foreign record until all of it is known.
//!
//! Problem: a record of ours begins with its header and is in the order of time; a record of damo's
//! is in the order of its targets, and its intervals, the largest access count and the first start
//! time may only be known at its end.
//!
//! Approach: each list of snapshots goes to a temporary record of its own; when all are there, they
//! are merged by time. Memory stays bounded by one batch for each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, Seek, Write};
use std::path::Path;

use isotherm_engine::{Nanos, Snapshot};

use crate::convert::{ConvertError, DEFAULT_NR_SAMPLES};
use crate::item::{Header, Item};
use crate::reader::Reader;
use crate::writer::Writer;

/// Most lists that are merged: each needs an open file.
const MAX_PARTS: usize = 256;

/// Lists of snapshots on disk.
pub(crate) struct Spool<'a> {
    folder: &'a Path,
    parts: Vec<Writer<File>>,
    most_accesses: f32,
}

impl<'a> Spool<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            parts: Vec::new(),
            most_accesses: 0.0,
        }
    }

    /// Begins another list, numbered from 0; its snapshots come in the order of time.
    pub(crate) fn begin_part(&mut self) -> Result<usize, ConvertError> {
        if self.parts.len() == MAX_PARTS {
            return Err(ConvertError::Impossible(format!(
                "more than {MAX_PARTS} lists of snapshots"
            )));
        }
        let file = tempfile::tempfile_in(self.folder).map_err(|source| ConvertError::Scratch {
            folder: self.folder.display().to_string(),
            source,
        })?;
        self.parts.push(Writer::create(file, &Header::default())?);
        Ok(self.parts.len() - 1)
    }

    /// Adds a snapshot to a list. Where its `nr_samples` is 0, that is not known.
    pub(crate) fn push(&mut self, part: usize, snapshot: Snapshot) -> Result<(), ConvertError> {
        if snapshot.nr_samples == 0 {
            let most = snapshot.regions.iter().filter_map(|r| r.nr_accesses);
            self.most_accesses = most.fold(self.most_accesses, f32::max);
        }
        self.parts[part].write(&Item::Snapshot(snapshot))?;
        Ok(())
    }

    /// What `nr_samples` must be assumed to be where it is not known.
    pub(crate) fn assumed_nr_samples(&self) -> u32 {
        DEFAULT_NR_SAMPLES.max(self.most_accesses.ceil() as u32)
    }

    /// Writes everything in the order of time, each snapshot as `finish` leaves it.
    pub(crate) fn merge_into<W: Write>(
        self,
        output: &mut Writer<W>,
        mut finish: impl FnMut(&mut Snapshot),
    ) -> Result<(), ConvertError> {
        let mut readers = Vec::new();
        for part in self.parts {
            let mut file = part.finish()?;
            file.rewind().map_err(|source| ConvertError::Scratch {
                folder: self.folder.display().to_string(),
                source,
            })?;
            readers.push(Reader::open(BufReader::new(file))?);
        }
        let mut heads: Vec<Option<Snapshot>> = vec![None; readers.len()];
        let mut order: BinaryHeap<Reverse<(Nanos, usize)>> = BinaryHeap::new();
        let mut refill = |part: usize, heads: &mut Vec<Option<Snapshot>>| {
            heads[part] = readers[part].snapshots().next().transpose()?;
            Ok::<_, ConvertError>(heads[part].as_ref().map(|head| Reverse((head.end, part))))
        };
        for part in 0..heads.len() {
            order.extend(refill(part, &mut heads)?);
        }
        while let Some(Reverse((_, part))) = order.pop() {
            if let Some(mut snapshot) = heads[part].take() {
                finish(&mut snapshot);
                output.write(&Item::Snapshot(snapshot))?;
            }
            order.extend(refill(part, &mut heads)?);
        }
        Ok(())
    }
}
