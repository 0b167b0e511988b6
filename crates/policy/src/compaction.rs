//! Proactive compaction: decides when a node's free memory is so fragmented that it should be compacted ahead of
//! demand, and when that should stop.
//!
//! Problem: a thread that needs a large block (a huge page) of fragmented memory waits while the kernel compacts for
//! it. Compacting beforehand avoids that wait. But it costs CPU time, moves pages that are in use, and is wasted where
//! pages cannot be moved.
//!
//! Approach: that of Nitin Gupta, *Proactive Compaction for the Linux kernel* (2020; Linux 5.9),
//! for any order:
//!
//! ```text
//! extfrag(zone, order) = 100 x (free - free in blocks of at least 2^order pages) / free
//! score(zone)          = zone's pages / node's pages x extfrag(zone)      score(node) = their sum
//! low  = 100 - proactiveness (at least 5)           high = min(low + 10, 100)
//! ```
//!
//! A node whose score exceeds `high` is compacted until it is down to `low`; it is checked every 500 ms. Nothing is
//! done while the node's kswapd runs, nor in a zone whose lock was contended. A round without progress defers the next
//! by 64 checks: 32 s, as the kernel's does.
//!
//! A zone is done when its own extfrag, *not* weighted, is down to `low`, as in the kernel since 5.12. The document,
//! and the kernel before, weigh it. They never compact a node of several middling zones whose weighted scores are all
//! below `low`, however high their sum. The document weighs zones because small ones are not worth the time. That holds
//! here too: the zone that adds most to the node's score comes first, and the round is over once the node is at `low`.
//!
//! Limits: the score is independent of demand; a node without huge pages that no process asks for is compacted as well.
//! The kernel takes any drop of its integer score for progress. Here that must be a whole point, as free lists change
//! on their own.

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// Number of orders of a buddy allocator: blocks of 1, 2, 4, ... 1024 pages.
pub const NR_ORDERS: usize = 11;

/// Checks that are left out after a round without progress, as a power of two: the kernel's
/// `COMPACT_MAX_DEFER_SHIFT`.
const DEFER_SHIFT: u32 = 6;
/// Lower bound of the low threshold, the kernel's: less fragmented memory is not compacted further, however high the
/// proactiveness.
const LOW_MIN: f64 = 5.0;
/// Difference between the score at which a round starts and that at which it ends.
const HYSTERESIS: f64 = 10.0;
/// Least progress of a round, in points.
const PROGRESS_MIN: f64 = 1.0;

/// State of one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ZoneFacts {
    /// Name of the zone: `DMA32`, `Normal`, `Movable`...
    pub name: String,
    /// Pages of the zone, free or in use.
    pub present_pages: u64,
    /// Number of free blocks of each order.
    pub free_blocks: [u64; NR_ORDERS],
    /// Whether the last step in it had to wait for a lock. A world that cannot know reports `false`.
    pub contended: bool,
}

impl ZoneFacts {
    /// Returns the number of free pages.
    pub fn free_pages(&self) -> u64 {
        self.pages_from(0)
    }

    /// Returns the share of the free pages that lies in blocks too small for `order`, 0 to 100; 0 if nothing is free.
    pub fn extfrag(&self, order: u8) -> f64 {
        let free = self.free_pages();
        if free == 0 {
            return 0.0;
        }
        let suitable = self.pages_from(usize::from(order));
        100.0 * (free - suitable) as f64 / free as f64
    }

    /// Returns the free pages in blocks of at least `order`.
    fn pages_from(&self, order: usize) -> u64 {
        let blocks = self.free_blocks.iter().enumerate().skip(order);
        // Facts may come from a file with any content.
        blocks.fold(0, |sum: u64, (order, blocks)| {
            sum.saturating_add(blocks.saturating_mul(1 << order))
        })
    }
}

/// State of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeFacts {
    /// Number of the node.
    pub node: u32,
    /// Zones of the node.
    pub zones: Vec<ZoneFacts>,
    /// Whether its kswapd is reclaiming.
    pub kswapd_active: bool,
}

/// Returns the contribution of zone number `zone` of the node to [`node_score`].
///
/// # Panics
/// If the node has no such zone.
pub fn zone_score(facts: &NodeFacts, zone: usize, order: u8) -> f64 {
    let zone = &facts.zones[zone];
    let pages = facts.zones.iter().map(|zone| zone.present_pages);
    let node_pages = pages.fold(0, u64::saturating_add);
    if node_pages == 0 {
        return 0.0;
    }
    zone.present_pages as f64 / node_pages as f64 * zone.extfrag(order)
}

/// Returns the fragmentation of the node with respect to blocks of 2^`order` pages, 0 to 100.
pub fn node_score(facts: &NodeFacts, order: u8) -> f64 {
    let score = (0..facts.zones.len())
        .map(|zone| zone_score(facts, zone, order))
        .sum::<f64>();
    // The sum of shares may round to a hair above 1.
    score.min(100.0)
}

/// Attributes of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactionAttributes {
    /// Order of the blocks that should be available, 2^order pages each; 9 is a huge page of 2 MiB.
    pub order: u8,
    /// Effort of compaction, 0 to 100; 0 is none at all.
    pub proactiveness: u32,
    /// Time between two checks of a node.
    pub check_interval: Nanos,
}

impl Default for CompactionAttributes {
    /// Returns the kernel's defaults: huge pages, 20, every 500 ms.
    fn default() -> Self {
        Self {
            order: 9,
            proactiveness: 20,
            check_interval: Nanos::from_millis(500),
        }
    }
}

impl CompactionAttributes {
    /// Returns the score at which compacting ends: 100 - proactiveness, but at least 5. That floor is the kernel's; the
    /// document has none.
    pub fn low(&self) -> f64 {
        (100.0 - f64::from(self.proactiveness)).max(LOW_MIN)
    }

    /// Returns the score above which it starts: 10 points more, at most 100.
    pub fn high(&self) -> f64 {
        (self.low() + HYSTERESIS).min(100.0)
    }

    /// Returns the time without checks after a round that achieved nothing.
    pub fn deferral(&self) -> Nanos {
        Nanos(self.check_interval.0.saturating_mul(1 << DEFER_SHIFT))
    }
}

/// Decision on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CompactionDecision {
    /// Nothing: the score is not above the high threshold, or proactiveness is 0.
    Nothing,
    /// Compaction is due, but other work has precedence now.
    BackOff(BackOff),
    /// A recent round achieved nothing: no compaction before `until`.
    Deferred {
        /// Time of the node's next check.
        until: Nanos,
    },
    /// Compact these zones, in this order, each while [`CompactionController::keeps_going`] returns `true`; then call
    /// [`CompactionController::done`].
    Compact {
        /// Indices in [`NodeFacts::zones`]; at least one.
        zones: Vec<usize>,
    },
}

/// Reason why compaction is put off or broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BackOff {
    /// kswapd reclaims on this node: compaction should follow, as it fills the holes that kswapd makes.
    Kswapd,
    /// The zone's lock was contended: other threads need it more.
    Contended,
}

isotherm_engine::named! {
    /// Reason why a round of compaction ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum RoundEnd {
        /// The low threshold was reached.
        AtLow = "at_low",
        /// kswapd started to reclaim.
        Kswapd = "kswapd",
        /// Other threads waited for a zone's lock.
        Contended = "contended",
        /// No more pages could be moved: the scanners have met.
        ToTheEnd = "to_the_end",
        /// The user interrupted the compaction.
        Interrupted = "interrupted",
    }

    /// Returns the name in a record.
    fn name;
}

/// Activity of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CompactionState {
    /// Nothing needs to be done.
    #[default]
    Idle,
    /// A round is in progress.
    Compacting,
    /// Compaction is put off to the next check.
    BackedOff(BackOff),
    /// Compaction is put off until `until`, as the last round achieved nothing.
    Deferred {
        /// Time of the node's next check.
        until: Nanos,
    },
}

/// State of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactionStatus {
    /// The node's score at the last check; `None` before the first.
    pub score: Option<f64>,
    /// Current activity.
    pub state: CompactionState,
    /// Rounds of compaction begun.
    pub nr_rounds: u64,
    /// Rounds put off or broken off for kswapd or a contended lock.
    pub nr_back_offs: u64,
    /// Rounds that achieved nothing.
    pub nr_deferrals: u64,
}

/// Controller of compaction on one node.
///
/// ```text
/// let mut controller = CompactionController::new(attributes);
/// if let CompactionDecision::Compact { zones } = controller.check(now, &facts) {
///     for zone in zones {
///         while controller.keeps_going(&facts, zone) {
///             // Compact a little of the zone, and read the facts again.
///         }
///     }
///     controller.done(now, &facts);
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CompactionController {
    attributes: CompactionAttributes,
    status: CompactionStatus,
    score_before: f64,
    next_check: Nanos,
}

impl CompactionController {
    /// Returns a controller of a node that it has not checked yet.
    pub fn new(attributes: CompactionAttributes) -> Self {
        Self {
            attributes,
            ..Self::default()
        }
    }

    /// Returns the attributes.
    pub fn attributes(&self) -> &CompactionAttributes {
        &self.attributes
    }

    /// Returns the controller's state.
    pub fn status(&self) -> CompactionStatus {
        self.status
    }

    /// Returns the time of the node's next check; that of the last check while a round is in progress.
    pub fn next_check(&self) -> Nanos {
        self.next_check
    }

    /// Checks the node. A call before [`CompactionController::next_check`] does no harm.
    pub fn check(&mut self, now: Nanos, facts: &NodeFacts) -> CompactionDecision {
        let score = node_score(facts, self.attributes.order);
        self.status.score = Some(score);
        if let CompactionState::Deferred { until } = self.status.state {
            // A clock that was set back must not prolong the deferral.
            if now < until && until.since(now) <= self.attributes.deferral() {
                return CompactionDecision::Deferred { until };
            }
        }
        self.next_check = now + self.attributes.check_interval;
        self.status.state = CompactionState::Idle;
        if self.attributes.proactiveness == 0 || score <= self.attributes.high() {
            return CompactionDecision::Nothing;
        }
        if facts.kswapd_active {
            return self.back_off(BackOff::Kswapd);
        }
        let zones = self.worth_compacting(facts);
        if zones.is_empty() {
            return self.back_off(BackOff::Contended);
        }
        self.score_before = score;
        self.next_check = now;
        self.status.state = CompactionState::Compacting;
        self.status.nr_rounds += 1;
        CompactionDecision::Compact { zones }
    }

    /// Returns whether to compact zone number `zone` further; asked before each step.
    ///
    /// # Panics
    /// If the node has no such zone.
    pub fn keeps_going(&self, facts: &NodeFacts, zone: usize) -> bool {
        self.stop(facts, zone).is_none()
    }

    /// Returns why zone number `zone` should not be compacted further; `None`: it should.
    ///
    /// # Panics
    /// If the node has no such zone.
    pub fn stop(&self, facts: &NodeFacts, zone: usize) -> Option<RoundEnd> {
        let CompactionAttributes { order, .. } = self.attributes;
        let low = self.attributes.low();
        if facts.kswapd_active {
            Some(RoundEnd::Kswapd)
        } else if facts.zones[zone].contended {
            Some(RoundEnd::Contended)
        } else if facts.zones[zone].extfrag(order) <= low || node_score(facts, order) <= low {
            Some(RoundEnd::AtLow)
        } else {
            None
        }
    }

    /// Ends the round. The node's score then decides whether the next one is deferred.
    pub fn done(&mut self, now: Nanos, facts: &NodeFacts) {
        let score = node_score(facts, self.attributes.order);
        self.status.score = Some(score);
        self.status.state = CompactionState::Idle;
        self.next_check = now + self.attributes.check_interval;
        let is_broken_off = facts.kswapd_active || facts.zones.iter().any(|zone| zone.contended);
        if is_broken_off && score > self.attributes.low() {
            self.status.nr_back_offs += 1;
        }
        if self.score_before - score < PROGRESS_MIN {
            let until = now + self.attributes.deferral();
            self.status.state = CompactionState::Deferred { until };
            self.status.nr_deferrals += 1;
            self.next_check = until;
        }
    }

    fn back_off(&mut self, why: BackOff) -> CompactionDecision {
        self.status.state = CompactionState::BackedOff(why);
        self.status.nr_back_offs += 1;
        CompactionDecision::BackOff(why)
    }

    /// Returns the zones above the low threshold, with the largest contribution to the node's score first.
    fn worth_compacting(&self, facts: &NodeFacts) -> Vec<usize> {
        let order = self.attributes.order;
        let mut zones: Vec<usize> = (0..facts.zones.len())
            .filter(|&zone| self.keeps_going(facts, zone))
            .collect();
        zones.sort_by(|&a, &b| zone_score(facts, b, order).total_cmp(&zone_score(facts, a, order)));
        zones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses zones such as `pages:free pages in blocks of order 0:free blocks of order 9`, with `!` if contended.
    fn node(text: &str) -> NodeFacts {
        let zone = |text: &str| {
            let numbers = text.trim_end_matches('!').split(':');
            let mut numbers = numbers.map(|number| number.parse::<u64>().expect("a number"));
            let mut next = || numbers.next().expect("three numbers");
            let present_pages = next();
            let mut free_blocks = [0; NR_ORDERS];
            free_blocks[0] = next();
            free_blocks[9] = next();
            ZoneFacts {
                name: "Normal".into(),
                present_pages,
                free_blocks,
                contended: text.ends_with('!'),
            }
        };
        NodeFacts {
            zones: text.split_whitespace().map(zone).collect(),
            ..NodeFacts::default()
        }
    }

    fn attributes(proactiveness: u32) -> CompactionAttributes {
        CompactionAttributes {
            proactiveness,
            ..CompactionAttributes::default()
        }
    }

    fn controller(proactiveness: u32) -> CompactionController {
        CompactionController::new(attributes(proactiveness))
    }

    /// Checks that the node is to be compacted in these zones.
    #[track_caller]
    fn check_zones(
        controller: &mut CompactionController,
        now: u64,
        node: &NodeFacts,
        zones: &[usize],
    ) {
        let decision = controller.check(ms(now), node);
        let zones = zones.to_vec();
        assert_eq!(decision, CompactionDecision::Compact { zones });
    }

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn the_score_is_the_share_of_free_memory_in_small_blocks_weighted_by_zone() {
        let check = |text: &str, wanted: f64| {
            let score = node_score(&node(text), 9);
            let is_near = (score - wanted).abs() < 1e-9;
            assert!(is_near, "{text}: {score}, not {wanted}");
        };
        check("4096:0:0", 0.0);
        check("4096:0:4", 0.0);
        check("4096:512:0", 100.0);
        check("4096:512:1", 50.0);
        check("4096:1536:1", 75.0);
        check("3072:512:0 1024:0:1", 75.0);
        check("3072:512:1 1024:512:0", 62.5);
        check("", 0.0);
    }

    #[test]
    fn any_order_can_be_asked_for() {
        let zone = ZoneFacts {
            present_pages: 1 << 20,
            free_blocks: [1; NR_ORDERS],
            ..ZoneFacts::default()
        };
        assert_eq!(zone.free_pages(), 2047);
        assert!(zone.extfrag(0).abs() < 1e-9);
        assert!((zone.extfrag(4) - 100.0 * 15.0 / 2047.0).abs() < 1e-9);
        assert!((zone.extfrag(11) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn thresholds_follow_from_proactiveness() {
        let check = |proactiveness: u32, low: f64, high: f64| {
            let attributes = attributes(proactiveness);
            assert!((attributes.low() - low).abs() < 1e-9);
            assert!((attributes.high() - high).abs() < 1e-9);
        };
        check(0, 100.0, 100.0);
        check(5, 95.0, 100.0);
        check(20, 80.0, 90.0);
        check(60, 40.0, 50.0);
        check(100, 5.0, 15.0);
    }

    #[test]
    fn it_starts_above_high_and_stops_at_low() {
        let mut controller = controller(20);
        // Exactly at the high threshold: 90.
        let decision = controller.check(ms(0), &node("99999:4608:1"));
        assert_eq!(decision, CompactionDecision::Nothing);
        assert_eq!(controller.next_check(), ms(500));
        check_zones(&mut controller, 500, &node("99999:5120:1"), &[0]);
        assert!(controller.keeps_going(&node("99999:2560:1"), 0));
        assert!(controller.keeps_going(&node("99999:2049:1"), 0));
        let stop = controller.stop(&node("99999:2048:1"), 0);
        assert_eq!(stop, Some(RoundEnd::AtLow));
        controller.done(ms(900), &node("99999:2048:1"));
        assert_eq!(controller.status().score, Some(80.0));
        assert_eq!(controller.next_check(), ms(1400));
        assert_eq!(controller.status().state, CompactionState::Idle);
    }

    #[test]
    fn with_proactiveness_0_nothing_is_done() {
        let decision = controller(0).check(ms(0), &node("4096:512:0"));
        assert_eq!(decision, CompactionDecision::Nothing);
    }

    #[test]
    fn the_zone_that_matters_most_comes_first_and_the_small_one_may_be_left_alone() {
        let mut controller = controller(20);
        let fragmented = node("1000:512:0 3000:0:1 90000:512:0");
        check_zones(&mut controller, 0, &fragmented, &[2, 0]);
        // The large zone is at low, and so is the node: the small one is not worth it.
        assert!(!controller.keeps_going(&node("1000:512:0 3000:0:1 90000:512:1"), 0));
    }

    #[test]
    fn it_backs_off_from_kswapd_and_from_contended_zones() {
        let mut controller = controller(20);
        let mut busy = node("4096:512:0");
        busy.kswapd_active = true;
        let decision = controller.check(ms(0), &busy);
        assert_eq!(decision, CompactionDecision::BackOff(BackOff::Kswapd));
        let decision = controller.check(ms(500), &node("4096:512:0!"));
        assert_eq!(decision, CompactionDecision::BackOff(BackOff::Contended));
        check_zones(&mut controller, 1000, &node("4096:512:0! 4096:512:0"), &[1]);
        assert_eq!(controller.stop(&busy, 0), Some(RoundEnd::Kswapd));
        assert_eq!(controller.status().nr_back_offs, 2);
    }

    #[test]
    fn a_round_without_progress_defers_the_next_by_32_s() {
        let mut controller = controller(40);
        let unmovable = node("4096:512:0");
        controller.check(ms(0), &unmovable);
        controller.done(ms(100), &unmovable);
        let until = ms(32_100);
        assert_eq!(controller.next_check(), until);
        let decision = controller.check(ms(32_000), &unmovable);
        assert_eq!(decision, CompactionDecision::Deferred { until });
        assert_eq!(controller.status().nr_deferrals, 1);
        check_zones(&mut controller, 32_100, &unmovable, &[0]);
        // Less than a point is no progress.
        controller.done(ms(32_200), &node("4096:512000:1"));
        assert_eq!(controller.status().nr_deferrals, 2);
    }

    #[test]
    fn a_deferral_ends_when_the_clock_is_set_back() {
        let unmovable = node("4096:512:0");
        let mut deferred = controller(40);
        deferred.check(ms(90_000), &unmovable);
        deferred.done(ms(90_000), &unmovable);
        check_zones(&mut deferred, 1_000, &unmovable, &[0]);
    }
}
