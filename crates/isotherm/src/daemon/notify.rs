//! Word to systemd, where it started us and asks for it (`sd_notify(3)`): a datagram of
//! `NAME=value` lines to the socket that `NOTIFY_SOCKET` names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use isotherm_engine::Nanos;

const STATUS_PERIOD: Nanos = Nanos(10_000_000_000);

/// The service manager, if there is one.
pub(super) struct Manager {
    address: Option<SocketAddr>,
    socket: Option<UnixDatagram>,
    /// How often it wants to hear that we live: half of the time after which it would act.
    watchdog: Option<Nanos>,
    next_sign: Nanos,
    next_status: Nanos,
}

impl Manager {
    /// The one that started us.
    pub(super) fn find() -> Self {
        let name = std::env::var("NOTIFY_SOCKET").unwrap_or_default();
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok(),
            None if name.starts_with('/') => SocketAddr::from_pathname(&name).ok(),
            None => None,
        };
        let is_for_us =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let watchdog = std::env::var("WATCHDOG_USEC")
            .ok()
            .filter(|_| is_for_us)
            .and_then(|us| us.parse::<u64>().ok())
            .map(|us| Nanos(us.saturating_mul(1000) / 2));
        Self {
            address,
            socket: UnixDatagram::unbound().ok(),
            watchdog,
            next_sign: Nanos(0),
            next_status: Nanos(0),
        }
    }

    /// We are at work.
    pub(super) fn ready(&self) {
        self.say("READY=1");
    }

    /// We are about to end.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Whether there is something to say.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        let watchdog = self.watchdog.is_some() && now >= self.next_sign;
        self.address.is_some() && (watchdog || now >= self.next_status)
    }

    /// The loop has turned: says what is due.
    pub(super) fn turn(&mut self, now: Nanos, headline: &str) {
        if let Some(period) = self.watchdog.filter(|_| now >= self.next_sign) {
            self.next_sign = now + period;
            self.say("WATCHDOG=1");
        }
        if now >= self.next_status {
            self.next_status = now + STATUS_PERIOD;
            self.say(&format!("STATUS={headline}"));
        }
    }

    fn say(&self, text: &str) {
        if let (Some(socket), Some(address)) = (&self.socket, &self.address) {
            // Nobody to tell if that fails.
            socket.send_to_addr(text.as_bytes(), address).ok();
        }
    }
}
