//! The memory that each control group needs: what to request for it.
//!
//! Problem: `isotherm size` watches one program by page scans. A daemon watches a whole machine all the time, at the
//! cost that the user set.
//!
//! Approach: the monitor counts idle times that ended ([`Returns`](isotherm_policy::guard::Returns)). From these
//! follows, for each control group, the least idle time from which on reading memory back would cost no more than 1 % of
//! a CPU. Memory that is idle for longer is not needed. All else that the group is charged for is, unknown memory
//! included. Without swap, anonymous and shared memory is needed as a whole.
//!
//! A group is reported once it was watched long enough: if all of its idle memory were then read back once, the cost
//! would be what is allowed. Until then everything would count as needed, or nothing.
//!
//! Limits: the idle times of huge pages are not counted. A group is taken to run one thread at a time. Memory is summed
//! up by classes of idle time, so that the bounds are wide where a class holds much.

use std::collections::BTreeMap;

use isotherm_engine::calibration::SWAP_COST;
use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes, MappedClass};
use isotherm_engine::{GroupCharge, Nanos, PAGE_SIZE};
use isotherm_policy::guard::MAX_SLOWDOWN;

use super::LiveState;
use super::machine::Owner;

/// Longest time for which a group must have been watched.
const WATCHED_MAX: Nanos = Nanos(3_600_000_000_000);

/// The memory that a control group needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupNeed {
    /// Lower bound: kernel memory that cannot be freed, and what is known to be used.
    pub(super) low: u64,
    pub(super) bytes: u64,
    /// Upper bound: all but what is known to be idle.
    pub(super) high: u64,
    pub(super) charged: u64,
    /// Idle time from which on memory is not needed.
    pub(super) idle_for: Nanos,
}

/// Facts of a control group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupFacts {
    pub(super) charge: GroupCharge,
    /// Whether its memory can go to swap.
    pub(super) has_swap: bool,
}

impl LiveState {
    /// Returns the memory that each listed control group needs. Those are left out whose processes are not watched by
    /// pages, or not for long enough.
    pub(super) fn needed(&self, facts: impl Fn(&str) -> GroupFacts) -> BTreeMap<String, GroupNeed> {
        let targets = self.machine.targets_by_group();
        let pages_per_s = MAX_SLOWDOWN / SWAP_COST.as_secs_f64();
        let mut memory: BTreeMap<&str, [AgeBytes; 2]> = BTreeMap::new();
        let mapped = self.machine.by_owner().into_iter();
        let mapped = mapped.map(|((owner, class), ages)| (owner, class == MappedClass::File, ages));
        let cached = self.machine.page_cache_by_owner().into_iter();
        let cached = cached.map(|(owner, ages)| (owner, true, ages));
        for (owner, is_file, ages) in mapped.chain(cached) {
            if let Owner::Group(group) = owner {
                memory.entry(group).or_default()[usize::from(is_file)].add(&ages);
            }
        }
        let needs = memory.into_iter().filter_map(|(group, memory)| {
            let targets = targets.get(group)?;
            let idle_for = self
                .returns
                .least_age(targets.iter().copied(), pages_per_s)?;
            let need = need(&memory, facts(group), idle_for);
            let watched = self.returns.watched(targets.iter().copied());
            let idle = need.charged.saturating_sub(need.bytes);
            let pays = watched.as_secs_f64() * pages_per_s * PAGE_SIZE as f64 >= idle as f64;
            let is_long = pays && watched >= WATCHED_MAX.min(Nanos(idle_for.0.saturating_mul(4)));
            is_long.then(|| (group.to_owned(), need))
        });
        needs.collect()
    }
}

/// Returns the need of a group with this memory: that which only swap can hold, and that of files.
fn need(memory: &[AgeBytes; 2], facts: GroupFacts, idle_for: Nanos) -> GroupNeed {
    let charge = facts.charge;
    let seen = memory.iter().map(AgeBytes::total).sum::<u64>();
    let charged = charge.total.unwrap_or(seen);
    let kernel = charge.kernel.unwrap_or(0);
    let freed = charge.kernel_reclaimable.unwrap_or(0);
    let swapped = charge
        .anonymous
        .map(|bytes| bytes + charge.shared.unwrap_or(0));
    let mut idle = [0, freed, freed];
    let mut used = kernel.saturating_sub(freed);
    // A page may be charged to another group that touched it first.
    for (at, (ages, limit)) in memory.iter().zip([swapped, charge.page_cache]).enumerate() {
        let limit = limit.unwrap_or(u64::MAX);
        let stays = at == 0 && !facts.has_swap;
        let of_kind = if stays {
            [0; 3]
        } else {
            idle_bytes(ages, idle_for)
        };
        for (sum, bytes) in idle.iter_mut().zip(of_kind) {
            *sum += bytes.min(limit);
        }
        let [.., most] = of_kind;
        used += (ages.total() - ages.unknown - most).min(limit);
    }
    let [least, likely, _] = idle;
    let used = used.min(charged);
    let bytes = charged.saturating_sub(likely).max(used);
    GroupNeed {
        low: used,
        bytes,
        high: charged.saturating_sub(least).max(bytes),
        charged,
        idle_for,
    }
}

/// Returns the bytes idle for at least `idle_for`: without the class of idle times that it lies in, with a part of it,
/// and with all of it.
fn idle_bytes(ages: &AgeBytes, idle_for: Nanos) -> [u64; 3] {
    let class = AGE_BOUNDS
        .iter()
        .filter(|bound| **bound <= idle_for)
        .count();
    let older = ages.idle[class + 1..].iter().sum::<u64>();
    let from = class.checked_sub(1).map_or(Nanos(0), |at| AGE_BOUNDS[at]);
    // Within a class, idle times count as spread evenly. The last class ends nowhere: none of it counts as older.
    let part = AGE_BOUNDS.get(class).map_or(0.0, |to| {
        to.since(idle_for).0 as f64 / to.since(from).0 as f64
    });
    let within = ages.idle[class];
    [older, older + (part * within as f64) as u64, older + within]
}

#[cfg(test)]
mod tests {
    use isotherm_engine::frames::NR_AGES;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn ages(touched: u64, idle: [u64; NR_AGES], unknown: u64) -> AgeBytes {
        AgeBytes {
            touched: touched * MIB,
            idle: idle.map(|bytes| bytes * MIB),
            unknown: unknown * MIB,
        }
    }

    fn needed(charge: GroupCharge, has_swap: bool, idle_for_s: u64) -> [u64; 3] {
        let memory = [
            ages(10, [1, 2, 4, 90, 100, 0, 50], 7),
            ages(5, [0, 0, 0, 0, 0, 0, 200], 0),
        ];
        let facts = GroupFacts { charge, has_swap };
        let need = need(&memory, facts, Nanos(idle_for_s * 1_000_000_000));
        [need.low, need.bytes, need.high].map(|bytes| bytes / MIB)
    }

    #[test]
    fn what_is_charged_and_not_idle_for_long_is_needed() {
        let charge = GroupCharge {
            total: Some(400 * MIB),
            page_cache: Some(100 * MIB),
            kernel: Some(30 * MIB),
            kernel_reclaimable: Some(10 * MIB),
            ..GroupCharge::default()
        };
        // Idle for 30 s or longer: 240 MiB of anonymous memory, and all charged files.
        assert_eq!(needed(charge, true, 30), [42, 50, 150]);
        assert_eq!(needed(charge, true, 120), [132, 140, 250]);
        // Without swap, only memory of files and of the kernel is freed.
        assert_eq!(needed(charge, false, 30), [282, 290, 300]);
        // Without a charge, what was seen counts.
        assert_eq!(needed(GroupCharge::default(), true, 30), [22, 29, 119]);
        // Of memory idle for an hour or longer, it is not known for how long.
        assert_eq!(needed(charge, true, 40_000), [232, 390, 400]);
        // Memory that others are charged for: the bounds stay in order.
        let small = GroupCharge {
            total: Some(60 * MIB),
            anonymous: Some(50 * MIB),
            page_cache: Some(10 * MIB),
            ..GroupCharge::default()
        };
        assert_eq!(needed(small, true, 30), [22, 22, 22]);
    }
}
