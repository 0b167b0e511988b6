//! Memory use and monitoring cost, once a second.

use isotherm_engine::Nanos;
use isotherm_linux::meminfo::Meminfo;
use isotherm_record::{CostSample, Item, UsageSample};

use super::Monitor;

const PERIOD: Nanos = Nanos(1_000_000_000);

/// Reads them when they are due.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    next: Nanos,
    peak_rss: u64,
}

impl Meters {
    /// Appends the two samples if a second has passed, or if `at_the_end`.
    pub(crate) fn read(
        &mut self,
        monitor: &dyn Monitor,
        now: Nanos,
        at_the_end: bool,
        items: &mut Vec<Item>,
    ) {
        if now < self.next && !at_the_end {
            return;
        }
        self.next = now + PERIOD;
        let made_up = monitor.made_up_usage(now);
        let mut usage = made_up.unwrap_or_else(|| UsageSample {
            time: now,
            ..UsageSample::default()
        });
        for (id, process) in monitor.live() {
            if let Ok(used) = process.usage() {
                usage.rss.insert(id.0, used.rss);
                usage.swap.insert(id.0, used.swap);
            }
        }
        let memory = Meminfo::read();
        let bytes = |name| memory.get(name).unwrap_or(0);
        usage.system_total = bytes("MemTotal");
        usage.system_free = bytes("MemFree");
        usage.system_available = bytes("MemAvailable");
        items.push(Item::Usage(usage));
        let monitor_rss = Meminfo::of_ourselves().get("VmRSS").unwrap_or(0);
        self.peak_rss = self.peak_rss.max(monitor_rss);
        let intervals = monitor.intervals();
        items.push(Item::Cost(CostSample {
            time: now,
            cost: monitor.cost(),
            sample_interval: intervals.sample,
            aggregation_interval: intervals.aggregation,
            monitor_rss,
            unknown: monitor.nr_unknown(),
        }));
    }

    /// The most memory that the monitor itself was seen to use.
    pub(crate) fn peak_rss(&self) -> u64 {
        self.peak_rss
    }
}
