//! Named schemes with their published numbers.
//!
//! - `ethp`, `prcl`, `pprcl`: the DAMON evaluation and the physical memory patches (v10); their pprcl is prcl on
//!   physical memory.
//! - `damon_reclaim`, `lru_sort`: the defaults of the kernel's modules
//!   (`Documentation/admin-guide/mm/damon/{reclaim,lru_sort}.rst`, `mm/damon/{reclaim,lru_sort}.c`).
//! - HMSDK 4.0's migration (`gen_migpol.py`).

use isotherm_engine::{BLOCK_SIZE, Nanos, PAGE_SIZE};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, Filter, FilterKind, Frequency, OpsFilter,
    Quota, Scheme, WatermarkMetric, Watermarks, Weights,
};

use crate::model::ConfiguredOperations;

/// One or several schemes with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    pub name: &'static str,
    /// Effect in one line.
    pub summary: &'static str,
    /// Kind of memory that it is made for.
    pub operations: ConfiguredOperations,
    pub schemes: Vec<Scheme>,
}

/// Names of the presets with their effects.
pub const PRESETS: [(&str, &str); 5] = [
    (
        "ethp",
        "huge pages where >= 5 % of checks see an access, none where >= 2 MiB idled for 7 s",
    ),
    (
        "prcl",
        "pages out what of a process was not accessed for 5 s",
    ),
    (
        "pprcl",
        "pages out what of all processes' memory was not accessed for 5 s",
    ),
    (
        "damon_reclaim",
        "pages out what of all processes' memory was not accessed for 120 s, at most 10 ms and 128 MiB a \
         second, where memory is short",
    ),
    (
        "lru_sort",
        "makes reclaim take last what is accessed in >= 50 % of checks, and first what was not for \
         120 s",
    ),
];

/// Returns the preset of that name, in the spelling of [`PRESETS`].
pub fn preset(name: &str) -> Option<Preset> {
    let (name, summary) = PRESETS.into_iter().find(|(known, _)| *known == name)?;
    let (operations, schemes) = match name {
        "ethp" => (ConfiguredOperations::Vaddr, ethp()),
        "prcl" => (ConfiguredOperations::Vaddr, vec![prcl()]),
        "pprcl" => (ConfiguredOperations::Paddr, vec![prcl()]),
        "damon_reclaim" => (ConfiguredOperations::Paddr, vec![damon_reclaim()]),
        _ => (ConfiguredOperations::Paddr, lru_sort()),
    };
    Some(Preset {
        name,
        summary,
        operations,
        schemes,
    })
}

/// Idle time of prcl.
const PRCL_AGE: Nanos = Nanos::from_millis(5_000);
/// Share of checks with an access of ethp, in per cent.
const ETHP_RATE: f64 = 5.0;
/// Idle time of ethp.
const ETHP_AGE: Nanos = Nanos::from_millis(7_000);
/// DAMON_RECLAIM's `min_age`.
const RECLAIM_AGE: Nanos = Nanos::from_millis(120_000);
/// DAMON_RECLAIM's `quota_ms`.
const RECLAIM_TIME: Nanos = Nanos::from_millis(10);
/// DAMON_RECLAIM's `quota_sz`.
const RECLAIM_BYTES: u64 = 128 << 20;
/// Both modules' `quota_reset_interval_ms`.
const MODULE_RESET: Nanos = Nanos::from_millis(1_000);
/// Both modules' `wmarks_interval`.
const MODULE_WATERMARKS_INTERVAL: Nanos = Nanos::from_millis(5_000);
/// DAMON_LRU_SORT's `hot_thres_access_freq`, in per cent.
const LRU_HOT_RATE: f64 = 50.0;
/// DAMON_LRU_SORT's `cold_min_age`.
const LRU_COLD_AGE: Nanos = Nanos::from_millis(120_000);
/// Half of DAMON_LRU_SORT's `quota_ms` of 10: each of its two schemes gets half.
const LRU_TIME: Nanos = Nanos::from_millis(5);
/// Idle time of HMSDK's demotion.
const HMSDK_COLD_AGE: Nanos = Nanos::from_millis(30_000);
/// Share of checks with an access of HMSDK's promotion, in per cent.
const HMSDK_HOT_RATE: f64 = 5.0;
/// HMSDK's quota in bytes for each reset interval.
const HMSDK_BYTES: u64 = 50 << 30;
/// HMSDK's reset interval.
const HMSDK_RESET: Nanos = Nanos::from_millis(20_000);

const FOREVER: Nanos = Nanos(u64::MAX);

/// Returns the pattern of memory of this size or more, with a rate from one to the other in per cent, of this age or
/// more.
pub(crate) fn pattern(min_size: u64, rate: (f64, f64), min_age: Nanos) -> AccessPattern {
    AccessPattern {
        size: Bounds::new(min_size, u64::MAX),
        nr_accesses: Bounds::new(Frequency::Percent(rate.0), Frequency::Percent(rate.1)),
        age: Bounds::new(Age::Time(min_age), Age::Time(FOREVER)),
    }
}

fn ethp() -> Vec<Scheme> {
    vec![
        Scheme::new(pattern(0, (ETHP_RATE, 100.0), Nanos(0)), Action::Hugepage),
        Scheme::new(
            pattern(BLOCK_SIZE, (0.0, 0.0), ETHP_AGE),
            Action::Nohugepage,
        ),
    ]
}

fn prcl() -> Scheme {
    Scheme::new(pattern(PAGE_SIZE, (0.0, 0.0), PRCL_AGE), Action::Pageout)
}

fn watermarks(high_permil: u32, mid_permil: u32, low_permil: u32) -> Watermarks {
    Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: MODULE_WATERMARKS_INTERVAL,
        high_permil,
        mid_permil,
        low_permil,
    }
}

fn damon_reclaim() -> Scheme {
    Scheme {
        quota: Quota {
            time: RECLAIM_TIME,
            bytes: RECLAIM_BYTES,
            reset_interval: MODULE_RESET,
            weights: Weights {
                age_permil: 1,
                ..Weights::default()
            },
            ..Quota::default()
        },
        watermarks: Some(watermarks(500, 400, 200)),
        ..Scheme::new(pattern(PAGE_SIZE, (0.0, 0.0), RECLAIM_AGE), Action::Pageout)
    }
}

fn lru_sort() -> Vec<Scheme> {
    let scheme = |rate, age, action| Scheme {
        quota: Quota {
            time: LRU_TIME,
            reset_interval: MODULE_RESET,
            weights: Weights {
                size_permil: 0,
                nr_accesses_permil: 1,
                // Kernels before 2026 have 0 here, which does not order idle regions.
                age_permil: 1,
            },
            ..Quota::default()
        },
        watermarks: Some(watermarks(200, 150, 50)),
        ..Scheme::new(pattern(PAGE_SIZE, rate, age), action)
    };
    vec![
        scheme((LRU_HOT_RATE, 100.0), Nanos(0), Action::LruPrio),
        scheme((0.0, 0.0), LRU_COLD_AGE, Action::LruDeprio),
    ]
}

/// HMSDK's demotion of memory that idled for 30 s to node `destination`, at most 1 s and 50 GiB in 20 s. With `memcg`
/// (HMSDK's is `/hmsdk`), it applies only to processes in this control group.
pub fn hmsdk_demote(destination: u32, memcg: Option<&str>) -> Scheme {
    let pattern = pattern(PAGE_SIZE, (0.0, 0.0), HMSDK_COLD_AGE);
    hmsdk(
        pattern,
        Action::MigrateCold,
        destination,
        memcg,
        Nanos::from_millis(1_000),
    )
}

/// HMSDK's promotion of memory accessed in 5 % of checks or more to node `destination`, at most 2 s and 50 GiB in 20 s.
/// With `memcg`, it applies only to processes in this control group.
pub fn hmsdk_promote(destination: u32, memcg: Option<&str>) -> Scheme {
    let pattern = pattern(PAGE_SIZE, (HMSDK_HOT_RATE, 100.0), Nanos(0));
    hmsdk(
        pattern,
        Action::MigrateHot,
        destination,
        memcg,
        Nanos::from_millis(2_000),
    )
}

/// Rejects memory outside of a control group, if there is one.
pub(crate) fn outside(memcg: Option<&str>) -> impl Iterator<Item = Filter> {
    let reject = |path: &str| Filter {
        kind: FilterKind::Ops(OpsFilter::Memcg {
            path: path.to_owned(),
        }),
        matching: false,
        allow: false,
    };
    memcg.map(reject).into_iter()
}

fn hmsdk(
    pattern: AccessPattern,
    action: Action,
    node: u32,
    memcg: Option<&str>,
    time: Nanos,
) -> Scheme {
    // Young memory is not demoted, and other memory is not promoted.
    let young = Filter {
        kind: FilterKind::Ops(OpsFilter::Young),
        matching: action == Action::MigrateCold,
        allow: false,
    };
    Scheme {
        destinations: vec![Destination { node, weight: 1 }],
        quota: Quota {
            time,
            bytes: HMSDK_BYTES,
            reset_interval: HMSDK_RESET,
            weights: Weights {
                age_permil: 10,
                ..Weights::default()
            },
            ..Quota::default()
        },
        filters: outside(memcg).chain([young]).collect(),
        ..Scheme::new(pattern, action)
    }
}
