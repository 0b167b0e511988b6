//! The page cache as a target of the view: a round's sample of files, as regions of artificial addresses.

use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes};
use isotherm_engine::page_cache::PAGE_CACHE;
use isotherm_engine::{AddressRange, Nanos, RegionMemory, RegionSnapshot, Snapshot};
use isotherm_record::CacheSample;
use isotherm_record::item::{Mapping, MappingChange};

/// Gap between the addresses of two files, so that no two are adjacent.
const GAP: u64 = 1 << 21;

/// Returns a snapshot with a region for each file and age, and the names of the files as mappings.
pub(super) fn reported(sample: &CacheSample, before: &Snapshot) -> (Snapshot, MappingChange) {
    let mut files: Vec<(String, AgeBytes)> = { sample.files.iter() }
        .map(|file| (file.name(), file.bytes.ages))
        .collect();
    let rest = rest(sample);
    if rest.total() > 0 {
        files.push(("(other files)".to_owned(), rest));
    }
    let mut regions = Vec::new();
    let mut added = Vec::new();
    let mut at = GAP;
    for (name, ages) in files {
        let start = at;
        for (age, nr_accesses, bytes) in by_age(&ages) {
            regions.push(region(at, bytes, age, nr_accesses));
            at += bytes;
        }
        if let Some(range) = AddressRange::checked(start, at) {
            added.push(Mapping {
                range,
                permissions: String::new(),
                name,
                unreclaimable: None,
            });
        }
        at += GAP;
    }
    let removed = before.regions.first().zip(before.regions.last());
    let removed = removed.map(|(first, last)| AddressRange::new(first.range.start, last.range.end));
    let start = Nanos(sample.time.0.saturating_sub(sample.took.0));
    let snapshot = Snapshot::new(PAGE_CACHE, (start, sample.time), 1, regions);
    let change = MappingChange {
        removed: removed.into_iter().collect(),
        ..MappingChange::adding(sample.time, PAGE_CACHE, added)
    };
    (snapshot, change)
}

/// Returns the bytes of files that are not listed one by one.
fn rest(sample: &CacheSample) -> AgeBytes {
    let mut rest = AgeBytes::default();
    sample.memory.iter().for_each(|of| rest.add(&of.bytes.ages));
    for file in &sample.files {
        let ages = &file.bytes.ages;
        rest.touched = rest.touched.saturating_sub(ages.touched);
        rest.unknown = rest.unknown.saturating_sub(ages.unknown);
        for (rest, idle) in rest.idle.iter_mut().zip(ages.idle) {
            *rest = rest.saturating_sub(idle);
        }
    }
    rest
}

/// Returns the classes that are not empty: the least age, the rate, and bytes.
fn by_age(ages: &AgeBytes) -> Vec<(Nanos, Option<f32>, u64)> {
    let mut classes = vec![(Nanos(0), Some(1.0), ages.touched)];
    let least = std::iter::once(Nanos(0)).chain(AGE_BOUNDS);
    classes.extend(
        least
            .zip(ages.idle)
            .map(|(age, bytes)| (age, Some(0.0), bytes)),
    );
    classes.push((Nanos(0), None, ages.unknown));
    classes.retain(|(.., bytes)| *bytes > 0);
    classes
}

fn region(start: u64, bytes: u64, age_ns: Nanos, nr_accesses: Option<f32>) -> RegionSnapshot {
    RegionSnapshot {
        age_ns,
        memory: Some(RegionMemory {
            touched: if nr_accesses == Some(1.0) { bytes } else { 0 },
            unknown: if nr_accesses.is_none() { bytes } else { 0 },
            ..RegionMemory::resident(bytes)
        }),
        ..RegionSnapshot::new(AddressRange::new(start, start + bytes), nr_accesses)
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::page_cache::CachedBytes;
    use isotherm_record::{CachedFile, CachedMemory};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn files_are_told_by_age_and_the_others_as_one() {
        let bytes = |touched, idle, unknown| {
            let mut bytes = CachedBytes::default();
            bytes.ages.touched = touched;
            bytes.ages.idle[4] = idle;
            bytes.ages.unknown = unknown;
            bytes
        };
        let sample = CacheSample {
            time: Nanos(20),
            took: Nanos(5),
            memory: vec![CachedMemory {
                bytes: bytes(3 * MIB, 5 * MIB, MIB),
                ..CachedMemory::default()
            }],
            files: vec![CachedFile {
                path: Some("/srv/a".to_owned()),
                bytes: bytes(2 * MIB, 5 * MIB, 0),
                ..CachedFile::default()
            }],
            nr_files: 3,
        };
        let (snapshot, change) = reported(&sample, &Snapshot::default());
        let totals = snapshot.totals();
        let sums = (totals.resident, totals.touched, totals.unknown);
        assert_eq!(sums, (9 * MIB, 3 * MIB, MIB));
        let idle = snapshot.regions.iter().find(|region| region.idle() > 0);
        assert_eq!(idle.map(|region| region.age_ns), Some(AGE_BOUNDS[3]));
        let names: Vec<&str> = change.added.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["/srv/a", "(other files)"]);
        assert!(change.removed.is_empty());
        let (_, change) = reported(&sample, &snapshot);
        assert_eq!(change.removed.len(), 1, "the names of before go");
    }
}
