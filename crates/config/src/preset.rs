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

use crate::model::Operations;

/// One or several schemes with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    pub name: &'static str,
    /// Effect in one line.
    pub summary: &'static str,
    /// Kind of memory that it is made for.
    pub operations: Operations,
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
        "ethp" => (Operations::Vaddr, ethp()),
        "prcl" => (Operations::Vaddr, vec![prcl()]),
        "pprcl" => (Operations::Paddr, vec![prcl()]),
        "damon_reclaim" => (Operations::Paddr, vec![damon_reclaim()]),
        _ => (Operations::Paddr, lru_sort()),
    };
    Some(Preset {
        name,
        summary,
        operations,
        schemes,
    })
}

/// `quota_reset_interval_ms` of both modules.
const MODULE_RESET: Nanos = Nanos::from_millis(1_000);

/// Returns the pattern of memory of this size or more, with a rate from one to the other in per cent, of this age or
/// more.
pub(crate) fn pattern(min_size: u64, rate: (f64, f64), min_age: Nanos) -> AccessPattern {
    AccessPattern {
        size: Bounds::new(min_size, u64::MAX),
        nr_accesses: Bounds::new(Frequency::Percent(rate.0), Frequency::Percent(rate.1)),
        age: Bounds::new(Age::Time(min_age), Age::Time(Nanos(u64::MAX))),
    }
}

fn ethp() -> Vec<Scheme> {
    let idle = Nanos::from_millis(7_000);
    vec![
        Scheme::new(pattern(0, (5.0, 100.0), Nanos(0)), Action::Hugepage),
        Scheme::new(pattern(BLOCK_SIZE, (0.0, 0.0), idle), Action::Nohugepage),
    ]
}

fn prcl() -> Scheme {
    let idle = Nanos::from_millis(5_000);
    Scheme::new(pattern(PAGE_SIZE, (0.0, 0.0), idle), Action::Pageout)
}

/// Returns watermarks with `wmarks_interval` of both modules.
fn watermarks(high_permil: u32, mid_permil: u32, low_permil: u32) -> Watermarks {
    Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: Nanos::from_millis(5_000),
        high_permil,
        mid_permil,
        low_permil,
    }
}

/// DAMON_RECLAIM's defaults: `min_age`, `quota_ms` and `quota_sz`.
fn damon_reclaim() -> Scheme {
    let min_age = Nanos::from_millis(120_000);
    Scheme {
        quota: Quota {
            time: Nanos::from_millis(10),
            bytes: 128 << 20,
            reset_interval: MODULE_RESET,
            weights: Weights {
                age_permil: 1,
                ..Weights::default()
            },
            ..Quota::default()
        },
        watermarks: Some(watermarks(500, 400, 200)),
        ..Scheme::new(pattern(PAGE_SIZE, (0.0, 0.0), min_age), Action::Pageout)
    }
}

fn lru_sort() -> Vec<Scheme> {
    let scheme = |rate, age, action| Scheme {
        quota: Quota {
            // Each of the two schemes gets half of `quota_ms`.
            time: Nanos::from_millis(5),
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
    // `hot_thres_access_freq` and `cold_min_age`.
    let (hot_rate, cold_age) = ((50.0, 100.0), Nanos::from_millis(120_000));
    vec![
        scheme(hot_rate, Nanos(0), Action::LruPrio),
        scheme((0.0, 0.0), cold_age, Action::LruDeprio),
    ]
}

/// HMSDK's demotion of memory that idled for 30 s to node `destination`, at most 1 s and 50 GiB in 20 s. With `memcg`
/// (HMSDK's is `/hmsdk`), it applies only to processes in this control group.
pub fn hmsdk_demote(destination: u32, memcg: Option<&str>) -> Scheme {
    let pattern = pattern(PAGE_SIZE, (0.0, 0.0), Nanos::from_millis(30_000));
    let time = Nanos::from_millis(1_000);
    hmsdk(pattern, Action::MigrateCold, destination, memcg, time)
}

/// HMSDK's promotion of memory accessed in 5 % of checks or more to node `destination`, at most 2 s and 50 GiB in 20 s.
/// With `memcg`, it applies only to processes in this control group.
pub fn hmsdk_promote(destination: u32, memcg: Option<&str>) -> Scheme {
    let pattern = pattern(PAGE_SIZE, (5.0, 100.0), Nanos(0));
    let time = Nanos::from_millis(2_000);
    hmsdk(pattern, Action::MigrateHot, destination, memcg, time)
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
            bytes: 50 << 30,
            reset_interval: Nanos::from_millis(20_000),
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
