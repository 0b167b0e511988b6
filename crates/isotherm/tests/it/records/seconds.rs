//! Snapshots of a second each, as `record` writes them.

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot};

/// The start of the record, in nanoseconds.
pub(crate) const STARTED: u64 = 1_700_000_000_000_000_000;

/// Returns the snapshot of the second that begins `second` seconds after [`STARTED`]: a hot, an idle and an unknown
/// region.
pub(crate) fn snapshot_of_second(second: u64) -> Snapshot {
    let region = |start: u64, nr_accesses| RegionSnapshot {
        range: AddressRange::new(start << 20, (start + 1) << 20),
        nr_accesses,
        age: second as u32,
        age_ns: Nanos(second * 1_000_000_000),
        memory: None,
    };
    Snapshot {
        start: Nanos(STARTED + second * 1_000_000_000),
        end: Nanos(STARTED + (second + 1) * 1_000_000_000),
        nr_samples: 10,
        regions: vec![
            region(1, Some(10.0)),
            region(2, Some(0.0)),
            region(900, None),
        ],
        ..Snapshot::default()
    }
}
