//! The status: what the daemon says of itself, as JSON.

use isotherm_engine::Cost;

use super::Daemon;
use isotherm_session::protocol::{MonitorCost, Status};

impl Daemon {
    pub(super) fn status(&self) -> Status<'_> {
        let uptime = self.session.now().since(self.live.since).as_secs_f64();
        let (cost, _): (Cost, u64) = self.session.cost();
        let cpu_s = cost.monitor_cpu.as_secs_f64();
        let config = self.config.file.as_ref();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            config: config.map(|path| path.display().to_string()),
            tuned: self.live.tuned.clone(),
            since: self.live.since,
            uptime_s: uptime,
            snapshots: self.live.nr_snapshots,
            targets: self.live.targets.values().collect(),
            total: self.live.total(),
            acting: self.acting.status(),
            guard_events: self.live.guard_events.iter().collect(),
            monitor: MonitorCost {
                cpu_s,
                cpu_share: cpu_s / uptime.max(1e-9),
                induced_cpu_s_estimated: cost.induced_cpu.as_secs_f64(),
                rss_bytes: self.live.monitor_rss,
            },
        }
    }
}
