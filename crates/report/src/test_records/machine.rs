//! A sample record of a machine's memory.

use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{Nanos, TargetId};
use isotherm_record::item::{Item, TargetStart};
use isotherm_record::machine::{
    CacheSample, CachedFile, CachedKind, CachedMemory, HugeMemory, MachineSample, MappedMemory,
    NodeMemory, TargetGroup, ZoneMemory,
};

use crate::test_records::at;

const MIB: u64 = 1 << 20;

fn ages(touched: u64, idle: [u64; 7], unknown: u64) -> AgeBytes {
    AgeBytes {
        touched: touched * MIB,
        idle: idle.map(|mib| mib * MIB),
        unknown: unknown * MIB,
    }
}

fn start(target: u32, pid: u32, name: &str) -> Item {
    Item::TargetStart(TargetStart::new(at(0), TargetId(target), pid, name))
}

fn node(node: u32, total: u64, free: u64) -> NodeMemory {
    NodeMemory {
        node,
        total: total * MIB,
        free: free * MIB,
        anonymous: 600 * MIB,
        shared: 64 * MIB,
        files: 500 * MIB,
        active_files: 100 * MIB,
        mapped: 150 * MIB,
        slab: 40 * MIB,
        reclaimable_slab: 30 * MIB,
        page_tables: 4 * MIB,
        kernel_stacks: MIB,
        ..NodeMemory::default()
    }
}

fn zone(node: u32, zone: &str, present: u64, free: u64) -> ZoneMemory {
    ZoneMemory {
        node,
        zone: zone.to_owned(),
        present: present * MIB,
        managed: (present - 8) * MIB,
        free: free * MIB,
        mapped: ages(100, [0, 0, 10, 0, 150, 0, 0], 5),
    }
}

fn sample(ms: u64, groups: &[(u32, &str)], touched: u64) -> Item {
    let mapped = |target: Option<u32>, node, class, bytes| MappedMemory {
        target: target.map(TargetId),
        node,
        class,
        bytes,
    };
    let (anonymous, file) = (MappedClass::Anonymous, MappedClass::File);
    let redis = ages(touched, [0, 0, 50, 0, 300, 0, 0], 0);
    let shared = ages(0, [0, 0, 0, 0, 0, 32, 0], 32);
    let group = |(target, group): &(u32, &str)| TargetGroup {
        target: TargetId(*target),
        group: (*group).to_owned(),
    };
    Item::Machine(MachineSample {
        time: at(ms),
        nodes: vec![node(0, 4096, 2800), node(1, 2048, 700)],
        zones: vec![zone(0, "DMA32", 2048, 1500), zone(0, "Normal", 2064, 1300)],
        mapped: vec![
            mapped(Some(0), 0, anonymous, redis),
            mapped(Some(1), 0, anonymous, ages(20, [1, 2, 3, 4, 5, 6, 7], 8)),
            mapped(Some(2), 1, anonymous, ages(0, [0, 0, 0, 500, 0, 0, 0], 0)),
            mapped(None, 0, file, ages(10, [0, 0, 20, 0, 0, 0, 0], 0)),
            mapped(None, 1, MappedClass::Shared, shared),
        ],
        groups: groups.iter().map(group).collect(),
        huge: vec![HugeMemory {
            target: TargetId(0),
            bytes: 512 << 20,
            read: 128 << 20,
            unused: 32 << 20,
        }],
        page_cache: groups.is_empty().then(page_cache),
        ..MachineSample::default()
    })
}

fn page_cache() -> CacheSample {
    let bytes = |ages: AgeBytes| CachedBytes {
        active: ages.touched,
        dirty: MIB,
        used_once: ages.touched / 4,
        used_again: ages.touched / 2,
        ages,
    };
    let memory = |node, group: Option<&str>, ages| CachedMemory {
        node,
        group: group.map(str::to_owned),
        bytes: bytes(ages),
    };
    let file = |path: Option<&str>, kind, ages| CachedFile {
        path: path.map(str::to_owned),
        kind,
        device: "254:0".into(),
        inode: 12,
        size: 1 << 30,
        bytes: bytes(ages),
    };
    let none = [0; 7];
    let redis = |unknown| ages(40, [0, 0, 60, 100, 0, 0, 0], unknown);
    let idle = ages(0, [0, 0, 0, 0, 30, 0, 0], 0);
    CacheSample {
        time: at(5900),
        took: Nanos::from_millis(400),
        memory: vec![
            memory(0, Some("/a.slice/redis"), redis(20)),
            memory(0, None, idle),
            memory(1, Some("/b.slice"), ages(8, none, 0)),
        ],
        files: vec![
            file(Some("/srv/a\u{7}b"), CachedKind::File, redis(0)),
            file(Some("/srv/old"), CachedKind::Deleted, ages(0, none, 20)),
            file(None, CachedKind::Other, ages(8, none, 0)),
            file(Some("/dev/vda"), CachedKind::BlockDevice, idle),
        ],
        nr_files: 4,
    }
}

/// Builds a record of two nodes, two processes in groups and one in none, at 1 s and at 6 s. Groups are recorded when
/// they change.
pub(crate) fn machine_record() -> Vec<Item> {
    vec![
        start(0, 100, "redis-server"),
        start(1, 101, "sh"),
        start(2, 102, "java"),
        sample(1000, &[(0, "/a.slice/redis"), (2, "/b.slice")], 100),
        sample(6000, &[], 200),
    ]
}

pub(crate) const BETWEEN: Nanos = Nanos::from_millis(3000);
