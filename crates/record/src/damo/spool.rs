//! Keeps the data of a foreign record until all of it is known.
//!
//! Problem: a record of ours begins with its header and is in the order of time; a record of damo's is in the order of
//! its targets. Its intervals, the largest access count and the first start time may only be known at its end.
//!
//! Approach: each snapshot goes to one temporary file, and the spool remembers its place there. At the end, all
//! snapshots are read again in the order of time. It needs 24 bytes of memory for each snapshot.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};

use crate::convert::{ConvertError, DEFAULT_NR_SAMPLES};
use crate::item::Item;
use crate::writer::Writer;

pub(crate) struct Spool<'a> {
    folder: &'a Path,
    file: Option<BufWriter<File>>,
    length: u64,
    places: Vec<Place>,
    most_accesses: f32,
}

/// The place of a snapshot, ordered by its sort key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    end: Nanos,
    list: u32,
    offset: u64,
}

impl<'a> Spool<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            file: None,
            length: 0,
            places: Vec::new(),
            most_accesses: 0.0,
        }
    }

    /// Adds a snapshot of the list with this number. An `nr_samples` of 0 means that it is unknown.
    pub(crate) fn push(&mut self, list: u32, snapshot: &Snapshot) -> Result<(), ConvertError> {
        if snapshot.nr_samples == 0 {
            let most = snapshot.regions.iter().filter_map(|r| r.nr_accesses);
            self.most_accesses = most.fold(self.most_accesses, f32::max);
        }
        self.places.push(Place {
            end: snapshot.end,
            list,
            offset: self.length,
        });
        let written = self.write(snapshot);
        self.length += written.map_err(|source| ConvertError::scratch(self.folder, source))?;
        Ok(())
    }

    /// Writes a snapshot and returns its number of bytes.
    fn write(&mut self, snapshot: &Snapshot) -> io::Result<u64> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(BufWriter::new(tempfile::tempfile_in(self.folder)?)),
        };
        let bytes = encode(snapshot);
        file.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Returns the `nr_samples` to assume where it is unknown.
    pub(crate) fn assumed_nr_samples(&self) -> u32 {
        DEFAULT_NR_SAMPLES.max(self.most_accesses.ceil() as u32)
    }

    /// Writes all snapshots in the order of time, after `finish` has changed each.
    pub(crate) fn merge_into<W: Write>(
        mut self,
        output: &mut Writer<W>,
        mut finish: impl FnMut(&mut Snapshot),
    ) -> Result<(), ConvertError> {
        let Some(file) = self.file else {
            return Ok(());
        };
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        let again = |source| ConvertError::scratch(self.folder, source);
        let mut file = BufReader::new(file.map_err(again)?);
        file.rewind().map_err(again)?;
        self.places.sort_unstable();
        let mut at = 0_i64;
        for place in self.places {
            // The seek is relative, so that adjacent snapshots come from the buffer.
            let step = place.offset.cast_signed() - at;
            file.seek_relative(step).map_err(again)?;
            let (mut snapshot, length) = decode(&mut file).map_err(again)?;
            at = (place.offset + length).cast_signed();
            finish(&mut snapshot);
            output.write(&Item::Snapshot(snapshot))?;
        }
        Ok(())
    }
}

/// Bytes of a snapshot without regions, and of a region.
const HEAD_BYTES: usize = 28;
const REGION_BYTES: usize = 33;

fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + snapshot.regions.len() * REGION_BYTES);
    bytes.extend(snapshot.target.0.to_le_bytes());
    bytes.extend(snapshot.start.0.to_le_bytes());
    bytes.extend(snapshot.end.0.to_le_bytes());
    bytes.extend(snapshot.nr_samples.to_le_bytes());
    bytes.extend((snapshot.regions.len() as u32).to_le_bytes());
    for region in &snapshot.regions {
        bytes.extend(region.range.start.to_le_bytes());
        bytes.extend(region.range.end.to_le_bytes());
        bytes.push(u8::from(region.nr_accesses.is_some()));
        bytes.extend(region.nr_accesses.unwrap_or_default().to_le_bytes());
        bytes.extend(region.age.to_le_bytes());
        bytes.extend(region.age_ns.0.to_le_bytes());
    }
    bytes
}

/// Reads the next snapshot, and its length in bytes.
fn decode(file: &mut impl Read) -> io::Result<(Snapshot, u64)> {
    let target = TargetId(number(file)?);
    let (start, end) = (Nanos(wide(file)?), Nanos(wide(file)?));
    let nr_samples = number(file)?;
    let count = number(file)? as usize;
    let mut regions = Vec::with_capacity(count);
    for _ in 0..count {
        let (start, end) = (wide(file)?, wide(file)?);
        let mut is_known = [0];
        file.read_exact(&mut is_known)?;
        let accesses = f32::from_bits(number(file)?);
        let accesses = (is_known == [1]).then_some(accesses);
        let region = RegionSnapshot::new(AddressRange::new(start, end), accesses);
        regions.push(region.aged(number(file)?, Nanos(wide(file)?)));
    }
    let snapshot = Snapshot::new(target, (start, end), nr_samples, regions);
    Ok((snapshot, (HEAD_BYTES + count * REGION_BYTES) as u64))
}

fn number(file: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn wide(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
