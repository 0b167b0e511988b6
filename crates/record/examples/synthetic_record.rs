//! Writes a record of any size, to measure reports with: `synthetic_record FILE [SNAPSHOTS] [REGIONS]`.
//!
//! It looks like a recording of a key-value store. A heap of 6 GiB has a moving hot tenth. A table warms up, and there
//! are an idle area, libraries, and a stack of unknown use. Region boundaries wander as sampling makes them. The same
//! arguments give the same bytes.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{
    Header, Item, Mapping, MappingChange, TargetExit, TargetStart, UsageSample, Writer,
};

const STARTED: Nanos = Nanos(1_790_000_000_000_000_000);
const INTERVAL: Nanos = Nanos::from_millis(100);
const TARGET: TargetId = TargetId(0);
const CHECKS: u32 = 20;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// (start, bytes, name, share of the regions)
const AREAS: [(u64, u64, &str, f64); 6] = [
    (0x55d0_4a00_0000, 4 * MIB, "/usr/bin/redis-server", 0.01),
    (0x55d0_4a80_0000, 6 * GIB, "[heap]", 0.70),
    (0x7f31_0000_0000, 2 * GIB, "", 0.20),
    (0x7f31_9000_0000, GIB, "/var/lib/redis/dump.rdb", 0.07),
    (
        0x7f31_d800_0000,
        24 * MIB,
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        0.01,
    ),
    (0x7ffc_8a00_0000, 132 * 1024, "[stack]", 0.01),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: synthetic_record FILE [SNAPSHOTS] [REGIONS]";
    let path = arguments.next().ok_or(usage)?;
    let snapshots: u64 = arguments.next().map_or(Ok(3000), |n| n.parse())?;
    let regions: usize = arguments.next().map_or(Ok(1000), |n| n.parse())?;
    let mut writer = Writer::create(BufWriter::new(File::create(&path)?), &header())?;
    let mut generator = Generator::new(regions);
    for item in first_items() {
        writer.write(&item)?;
    }
    for index in 0..snapshots {
        if index % 10 == 0 {
            writer.write(&generator.usage(index))?;
        }
        writer.write(&Item::Snapshot(generator.snapshot(index, snapshots)))?;
    }
    writer.write(&Item::TargetExit(TargetExit {
        time: at(snapshots),
        target: TARGET,
        exit_code: Some(0),
        signal: None,
    }))?;
    writer.finish()?;
    eprintln!("{path}: {snapshots} snapshots of {regions} regions");
    Ok(())
}

fn at(index: u64) -> Nanos {
    STARTED + Nanos(INTERVAL.0 * index)
}

fn header() -> Header {
    Header {
        writer: "synthetic_record".into(),
        host: "synthetic".into(),
        kernel: "none".into(),
        command: vec!["redis-server".into()],
        started: STARTED,
        operations: "vaddr".into(),
        sample_interval: Nanos::from_millis(5),
        aggregation_interval: INTERVAL,
        update_interval: Nanos::from_millis(1000),
        ..Header::default()
    }
}

fn first_items() -> [Item; 2] {
    let mapping = |&(start, bytes, name, _): &(u64, u64, &str, f64)| Mapping {
        range: AddressRange::new(start, start + bytes),
        permissions: "rw-p".into(),
        name: name.into(),
        unreclaimable: None,
    };
    [
        Item::TargetStart(TargetStart {
            time: STARTED,
            target: TARGET,
            pid: 4242,
            name: "redis-server".into(),
            context: None,
        }),
        Item::Mappings(MappingChange {
            time: STARTED,
            target: TARGET,
            removed: Vec::new(),
            added: AREAS.iter().map(mapping).collect(),
        }),
    ]
}

struct Generator {
    random: u64,
    /// Nominal boundaries of each area's regions.
    areas: Vec<Vec<u64>>,
    ages: Vec<(bool, u32)>,
}

impl Generator {
    fn new(regions: usize) -> Self {
        let areas = AREAS.iter().map(|&(start, bytes, _, share)| {
            let pages = bytes / PAGE_SIZE;
            let count = ((regions as f64 * share) as u64).clamp(1, pages);
            (0..=count)
                .map(|i| start + pages * i / count * PAGE_SIZE)
                .collect()
        });
        Self {
            random: 0x1507_4e12,
            areas: areas.collect(),
            ages: vec![(false, 0); 2 * regions + AREAS.len()],
        }
    }

    /// Returns the next number of splitmix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn usage(&mut self, index: u64) -> Item {
        let rss = 5 * GIB + (index % 600) * MIB;
        Item::Usage(UsageSample {
            time: at(index),
            rss: [(TARGET.0, rss)].into(),
            swap: [(TARGET.0, 300 * MIB)].into(),
            system_total: 32 * GIB,
            system_free: 20 * GIB - self.next() % (200 * MIB),
            system_available: 25 * GIB,
            ..UsageSample::default()
        })
    }

    fn snapshot(&mut self, index: u64, of: u64) -> Snapshot {
        let mut regions = Vec::with_capacity(self.ages.len());
        for area in 0..AREAS.len() {
            let bounds = self.wandering(area);
            for pair in bounds.windows(2) {
                let accesses = self.accesses(area, pair[0], index as f64 / of as f64);
                let number = regions.len();
                let (was, since) = self.ages[number];
                let is = accesses.is_some_and(|n| n > 0.0);
                let age = if was == is { since + 1 } else { 0 };
                self.ages[number] = (is, age);
                regions.push(RegionSnapshot {
                    range: AddressRange::new(pair[0], pair[1]),
                    nr_accesses: accesses,
                    age,
                    age_ns: Nanos(INTERVAL.0 * u64::from(age)),
                    memory: None,
                });
            }
        }
        Snapshot {
            blocks: Vec::new(),
            idle_pages: std::sync::Arc::default(),
            target: TARGET,
            start: at(index),
            end: at(index + 1),
            nr_samples: CHECKS,
            regions,
        }
    }

    /// Returns the area's boundaries, each moved by up to a third of its region.
    fn wandering(&mut self, area: usize) -> Vec<u64> {
        let mut bounds = self.areas[area].clone();
        for i in 1..bounds.len() - 1 {
            let room = (bounds[i + 1] - bounds[i]) / 3 / PAGE_SIZE;
            bounds[i] += self.next() % (room + 1) * PAGE_SIZE;
        }
        bounds
    }

    /// Draws the accesses of a region; `part` is the elapsed share of the record.
    fn accesses(&mut self, area: usize, address: u64, part: f64) -> Option<f32> {
        let (start, bytes, ..) = AREAS[area];
        let place = (address - start) as f64 / bytes as f64;
        let noise = (self.next() % 1000) as f64 / 1000.0;
        let rate = match area {
            0 | 4 => 0.3 * noise,
            1 => {
                let hot = 0.1 + 0.5 * (1.0 - (2.0 * part - 1.0).abs());
                let near = (place - hot).abs() < 0.05;
                if near {
                    0.75 + 0.25 * noise
                } else if noise > 0.97 {
                    0.05
                } else {
                    0.0
                }
            }
            2 if place < part => 0.12 + 0.2 * noise * part,
            5 => return (part > 0.4).then_some(CHECKS as f32 * 0.4),
            _ => 0.0,
        };
        Some((rate * f64::from(CHECKS)) as f32)
    }
}
