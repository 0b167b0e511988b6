//! Metrics of huge pages and their waste.

use isotherm_record::HugeMemory;
use prometheus_client::metrics::MetricType;

use super::{Metrics, Page, TARGETS_MAX};

impl Metrics<'_> {
    /// Adds the memory in huge pages of targets, and its waste.
    pub(super) fn huge_pages(&self, page: &mut Page) {
        let all = self.live.machine.huge();
        if all.is_empty() {
            return;
        }
        let names = || {
            let named = all.iter().take(TARGETS_MAX);
            named.filter_map(|huge| Some((huge, self.live.targets.get(&huge.target.0)?)))
        };
        let families = [
            (
                "isotherm_target_huge_bytes",
                "With --all: private anonymous memory of a target that is in huge pages.",
                (|huge| Some(huge.bytes)) as fn(&HugeMemory) -> Option<u64>,
            ),
            (
                "isotherm_target_huge_waste_bytes",
                "With --all: what of it was never written, by what of it was read so far.",
                HugeMemory::estimate,
            ),
        ];
        for (name, help, of) in families {
            page.family(name, MetricType::Gauge, help);
            for (huge, target) in names() {
                if let Some(bytes) = of(huge) {
                    let pid = target.pid.to_string();
                    page.sample(&[("pid", &pid), ("name", &target.name)], bytes);
                }
            }
        }
    }
}
