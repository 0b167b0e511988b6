//! Number of CPUs that were idle while nothing was acted on.

use isotherm_engine::Nanos;
use isotherm_linux::load::CpuTimes;

/// The mean is over at least this much time: the kernel counts in hundredths of a second.
const SPAN: Nanos = Nanos::from_millis(200);

/// Adds up the time between steps of acting.
#[derive(Default)]
pub(super) struct IdleMeter {
    /// Time at which acting last ended, and the idle time of CPUs by then.
    from: Option<(Nanos, Nanos)>,
    wall: Nanos,
    idle: Nanos,
    cpus: Option<f64>,
}

impl IdleMeter {
    /// Ends a span without acting, and returns the mean number of idle CPUs.
    pub(super) fn stop(&mut self, now: Nanos) -> Option<f64> {
        self.stop_at(now, CpuTimes::read().map(|times| times.idle))
    }

    pub(super) fn start(&mut self, now: Nanos) {
        self.from = CpuTimes::read().map(|times| (now, times.idle));
    }

    fn stop_at(&mut self, now: Nanos, idle: Option<Nanos>) -> Option<f64> {
        let Some(idle) = idle else {
            *self = Self::default();
            return None;
        };
        if let Some((began, idle_then)) = self.from.take() {
            self.wall = self.wall + now.since(began);
            self.idle = self.idle + idle.since(idle_then);
        }
        if self.wall >= SPAN {
            self.cpus = Some(self.idle.0 as f64 / self.wall.0 as f64);
            (self.wall, self.idle) = (Nanos(0), Nanos(0));
        }
        self.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_between_steps_counts() {
        let ms = Nanos::from_millis;
        let mut meter = IdleMeter::default();
        assert_eq!(meter.stop_at(ms(0), Some(ms(0))), None);
        let mut now = 0;
        // 50 ms of acting without idleness, then 40 ms in which one of two CPUs is idle.
        let mut idle = 0;
        for _ in 0..5 {
            meter.from = Some((ms(now), ms(idle)));
            (now, idle) = (now + 40, idle + 40);
            meter.stop_at(ms(now), Some(ms(idle)));
            now += 50;
        }
        assert_eq!(meter.cpus, Some(1.0));
        assert_eq!(meter.stop_at(ms(now), None), None, "not known any more");
    }
}
