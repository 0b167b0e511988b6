//! Metrics of huge pages and their waste.

use isotherm_record::HugeMemory;
use prometheus_client::metrics::MetricType;

use super::{Metric, Metrics, Page, TARGETS_MAX, Value, add, labels_of};

impl Metrics<'_> {
    pub(super) fn huge_pages(&self, page: &mut Page) {
        let all = self.live.machine.huge();
        if all.is_empty() {
            return;
        }
        let listed = all.into_iter().take(TARGETS_MAX).filter_map(|huge| {
            let target = self.live.targets.get(&huge.target.0)?;
            Some((labels_of(target), huge))
        });
        let metrics: [Metric<HugeMemory>; 2] = [
            (
                "isotherm_target_huge_bytes",
                "With --all: private anonymous memory of a target that is in huge pages.",
                |huge| Some(huge.bytes.into()),
            ),
            (
                "isotherm_target_huge_waste_bytes",
                "With --all: what of it was never written, by what of it was read so far.",
                |huge| huge.estimate().map(Value::from),
            ),
        ];
        let listed: Vec<_> = listed.collect();
        add(page, MetricType::Gauge, &metrics, &listed);
    }
}
