//! Notifications to systemd, if it started the daemon and asks for them (`sd_notify(3)`).

use isotherm_engine::Nanos;
use sd_notify::NotifyState;

const STATUS_PERIOD: Nanos = Nanos(10_000_000_000);

/// The service manager, if there is one.
pub(super) struct Manager {
    is_there: bool,
    /// Period of keep-alive messages: half of the watchdog's timeout.
    watchdog: Option<Nanos>,
    next_sign: Nanos,
    next_status: Nanos,
}

impl Manager {
    /// Returns the service manager that started this process.
    pub(super) fn find() -> Self {
        Self {
            is_there: std::env::var_os("NOTIFY_SOCKET").is_some(),
            watchdog: sd_notify::watchdog_enabled().map(|period| Nanos::from(period / 2)),
            next_sign: Nanos(0),
            next_status: Nanos(0),
        }
    }

    pub(super) fn ready(&self) {
        self.say(NotifyState::Ready);
    }

    pub(super) fn stopping(&self) {
        self.say(NotifyState::Stopping);
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        let watchdog = self.watchdog.is_some() && now >= self.next_sign;
        self.is_there && (watchdog || now >= self.next_status)
    }

    /// Sends the messages that are due, once a turn of the loop.
    pub(super) fn turn(&mut self, now: Nanos, headline: &str) {
        if let Some(period) = self.watchdog.filter(|_| now >= self.next_sign) {
            self.next_sign = now + period;
            self.say(NotifyState::Watchdog);
        }
        if now >= self.next_status {
            self.next_status = now + STATUS_PERIOD;
            self.say(NotifyState::Status(headline));
        }
    }

    fn say(&self, state: NotifyState<'_>) {
        if self.is_there {
            // A failure cannot be reported to the service manager either.
            sd_notify::notify(&[state]).ok();
        }
    }
}
