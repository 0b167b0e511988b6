//! Protocol of the daemon's unix socket, for both ends.
//!
//! A request is a line of JSON, and so is its reply. Requests are:
//! - `{"protocol":1,"do":"status"}`
//! - `{"protocol":1,"do":"tune","config":TEXT,"name":FILE}`
//! - `{"protocol":1,"do":"schemes","presets":[NAME],"lines":[LINE]}`
//! - with `do` alone: `reload`, `pause`, `resume`, `follow` and `stop`
//!
//! A reply has `protocol` and `"ok":true`, with `notes` or the fields of a [`Status`]. A failed request has
//! `"ok":false` and an `error`; it changes nothing.
//!
//! The reply to `follow` is continued by a record ([`Feed`]).
//!
//! [`VERSION`] grows when a field changes its meaning or is removed; new fields do not change it. A request without
//! `protocol` is taken as one of this version. A daemon accepts `stop` from every version, so that it can be ended
//! after an upgrade.

use isotherm_engine::{MemoryTotals, Nanos, Snapshot};
use isotherm_record::{GuardSample, KernelMigrations};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::ActingStatus;

mod feed;
mod live_state;
mod machine;
mod metrics;
mod needed;
mod pods;
mod text;

pub use feed::Feed;
pub use live_state::LiveState;
pub use metrics::{Metrics, OtlpTimes, otlp_refusal};
pub use pods::{PodPolicies, PodPolicyName};
pub use text::status_text;

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Limit of a request's length in bytes, newline included.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Number of equal steps of access rates above zero.
const RATES: usize = 5;

/// A message that is not understood, or was refused.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// The request is not JSON, or is unknown.
    #[error(
        "this is no request, which is a line of JSON: {{\"do\":\"status\"}}, tune (with config and name), \
         schemes (with presets or lines), reload, pause, resume, follow or stop"
    )]
    NoRequest(#[source] serde_json::Error),
    /// The client was built for another version.
    #[error(
        "the client speaks version {0} of the protocol, this daemon version {VERSION}; use the isotherm \
         that started the daemon, or `isotherm stop` and start it again"
    )]
    OtherClient(u32),
    /// The daemon was built for another version, or (`None`) before there were versions.
    #[error(
        "the daemon speaks {} of the protocol, this isotherm version {VERSION}; `isotherm stop` ends it, \
         and `isotherm start` starts one of this version",
        .0.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
    )]
    OtherDaemon(Option<u32>),
    /// The reply is not JSON, or has another form.
    #[error("what answers is no isotherm")]
    NoReply(#[source] serde_json::Error),
    /// The daemon refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum DaemonRequest {
    /// Return the daemon's [`Status`].
    Status,
    /// Replace schemes and limits by those of this configuration.
    Tune {
        /// Text of the configuration.
        config: String,
        /// Name of the configuration, e.g. its file.
        name: String,
    },
    /// Replace the schemes and leave everything else as it is.
    Schemes {
        /// Names of presets.
        #[serde(default)]
        presets: Vec<String>,
        /// Schemes, one a line.
        #[serde(default)]
        lines: Vec<String>,
    },
    /// Read the files again that were given at the start.
    Reload,
    /// Stop acting until [`DaemonRequest::Resume`]; watching goes on.
    Pause,
    /// Resume acting.
    Resume,
    /// Follow all observations and actions from now on. A record follows the reply's line while both ends exist. It
    /// begins with the present targets and their mappings.
    Follow,
    /// End the daemon.
    Stop,
}

impl DaemonRequest {
    /// Reads a request without its newline.
    pub fn parse(message: &[u8]) -> Result<Self, ProtocolError> {
        #[derive(Deserialize)]
        struct Head {
            protocol: Option<u32>,
            #[serde(rename = "do")]
            action: String,
        }
        let value: Value = serde_json::from_slice(message).map_err(ProtocolError::NoRequest)?;
        // The head is checked first, as another version may have requests that this one does not know.
        let head = Head::deserialize(&value).map_err(ProtocolError::NoRequest)?;
        match head.protocol {
            Some(version) if version != VERSION && head.action != "stop" => {
                Err(ProtocolError::OtherClient(version))
            }
            _ => serde_json::from_value(value).map_err(ProtocolError::NoRequest),
        }
    }

    /// Encodes the request as a line with its newline.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Sent<'a> {
            protocol: u32,
            #[serde(flatten)]
            request: &'a DaemonRequest,
        }
        let mut line = serde_json::to_vec(&Sent {
            protocol: VERSION,
            request: self,
        })?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads the reply to this request. Fails if the reply refuses the request, or comes from a daemon of another
    /// version.
    pub fn parse_reply(&self, text: &str) -> Result<Value, ProtocolError> {
        #[derive(Deserialize)]
        struct Head {
            ok: bool,
            protocol: Option<u32>,
            error: Option<String>,
        }
        let value: Value = serde_json::from_str(text).map_err(ProtocolError::NoReply)?;
        let head = Head::deserialize(&value).map_err(ProtocolError::NoReply)?;
        if !head.ok {
            let why = head.error.unwrap_or_else(|| "refused".to_owned());
            return Err(ProtocolError::Refused(why));
        }
        if head.protocol != Some(VERSION) && *self != Self::Stop {
            return Err(ProtocolError::OtherDaemon(head.protocol));
        }
        Ok(value)
    }
}

/// Reply to a request.
#[derive(Serialize)]
pub struct Reply<T> {
    ok: bool,
    protocol: u32,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> Reply<T> {
    /// Makes the reply to a successful request.
    pub const fn done(body: T) -> Self {
        Self {
            ok: true,
            protocol: VERSION,
            body,
        }
    }
}

/// Body of a reply to all requests but [`DaemonRequest::Status`].
#[derive(Debug, Serialize)]
pub struct Done {
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Body of a reply to a refused request.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// Reason for people.
    pub error: String,
}

impl Reply<Failed> {
    /// Makes the reply to a refused request, which has changed nothing.
    pub const fn failed(error: String) -> Self {
        Self {
            ok: false,
            protocol: VERSION,
            body: Failed { error },
        }
    }
}

/// State of the daemon. Times are in nanoseconds: since 1970, or durations.
#[derive(Serialize)]
pub struct Status<'a> {
    /// Version of the running isotherm, e.g. `0.1.0`.
    pub version: &'static str,
    /// Process id of the daemon.
    pub pid: u32,
    /// File of the configuration, if there is one.
    pub config: Option<String>,
    /// Last change of schemes; `null` until the first.
    pub tuned: Option<SchemeChange>,
    /// Start of the daemon.
    pub since: Nanos,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Number of snapshots of all targets.
    pub snapshots: u64,
    /// Live targets.
    pub targets: Vec<&'a Target>,
    /// Sum over all live targets.
    pub total: View,
    /// State of schemes and guards.
    #[serde(flatten)]
    pub acting: ActingStatus<'a>,
    /// Last openings and closings of the guards.
    pub guard_events: Vec<&'a GuardSample>,
    /// Kernel's counters of migration, in pages since boot; only where memory is on several nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_migrations: Option<&'a KernelMigrations>,
    /// Policies of pods, where pods permit acting themselves (`start --pod-policy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_policy: Option<&'a PodPolicies>,
    /// Code that touched idle memory first, where stacks are sampled (`--stacks`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blame: Option<&'a BlameStatus>,
    /// Cost of watching.
    pub monitor: MonitorCost,
}

/// Code that touched idle memory first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlameStatus {
    /// Time of this state; nanoseconds since 1970.
    pub at: Nanos,
    /// Minimum idle time.
    pub at_least_ns: Nanos,
    /// All memory that is idle for this long.
    pub idle_bytes: u64,
    /// Part of it that unknown code touched.
    pub unknown_bytes: u64,
    /// Functions with most of it.
    pub functions: Vec<BlamedFunction>,
}

/// A function with the idle memory that it touched first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlamedFunction {
    /// Name of the function.
    pub function: String,
    /// Idle memory that it touched first.
    pub bytes: u64,
}

/// Cost of watching.
#[derive(Debug, Serialize)]
pub struct MonitorCost {
    /// CPU time of the monitor itself, in seconds.
    pub cpu_s: f64,
    /// CPU time of the monitor since the start, as a share of one CPU.
    pub cpu_share: f64,
    /// Estimated CPU seconds that watching has taken from the targets.
    pub induced_cpu_s_estimated: f64,
    /// Resident memory of the daemon.
    pub rss_bytes: u64,
}

/// Last change of schemes, with its source.
#[derive(Clone, Debug, Serialize)]
pub struct SchemeChange {
    /// Time in nanoseconds since 1970.
    pub at: Nanos,
    /// Name of the configuration.
    pub by: String,
}

/// A live target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Target {
    /// Process id.
    pub pid: u32,
    /// Name of the process, or of the target.
    pub name: String,
    /// Context that it belongs to, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Resident memory, by the kernel's count.
    pub rss_bytes: Option<u64>,
    /// Memory in swap, by the kernel's count.
    pub swap_bytes: Option<u64>,
    /// Last snapshot.
    #[serde(flatten)]
    pub view: View,
}

/// A target's last snapshot, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct View {
    /// Number of regions in the snapshot.
    pub regions: usize,
    /// Watched addresses, whatever they hold.
    pub watched_bytes: u64,
    /// Resident bytes by the monitor, or all addresses if it does not know them. Hot, idle and unknown add up to it.
    pub resident_bytes: u64,
    /// Swapped-out bytes, by the monitor.
    pub swapped_bytes: u64,
    /// Bytes touched in the last interval.
    pub hot_bytes: u64,
    /// Bytes not touched in the last interval.
    pub idle_bytes: u64,
    /// Resident bytes for which it is unknown whether they were touched.
    pub unknown_bytes: u64,
    /// Accessed bytes by access rate: up to a fifth, two fifths, ... of the checks.
    pub bytes_by_rate: [u64; RATES],
}

impl View {
    /// Sums up `snapshot`.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut view = Self::of_totals(snapshot.regions.len(), &snapshot.totals());
        for region in &snapshot.regions {
            if let Some(rate) = snapshot.access_rate(region)
                && rate > 0.0
            {
                let step = (rate * RATES as f32).ceil() as usize;
                view.bytes_by_rate[step.clamp(1, RATES) - 1] += region.touched();
            }
        }
        view
    }

    /// Makes a view of this number of regions, or blocks. The access rates are unknown.
    pub fn of_totals(regions: usize, totals: &MemoryTotals) -> Self {
        Self {
            regions,
            watched_bytes: totals.addresses,
            resident_bytes: totals.resident,
            swapped_bytes: totals.swapped,
            hot_bytes: totals.touched,
            idle_bytes: totals.untouched,
            unknown_bytes: totals.unknown,
            ..Self::default()
        }
    }

    /// Adds two views.
    #[must_use]
    pub fn sum(self, other: Self) -> Self {
        Self {
            regions: self.regions + other.regions,
            watched_bytes: self.watched_bytes + other.watched_bytes,
            resident_bytes: self.resident_bytes + other.resident_bytes,
            swapped_bytes: self.swapped_bytes + other.swapped_bytes,
            hot_bytes: self.hot_bytes + other.hot_bytes,
            idle_bytes: self.idle_bytes + other.idle_bytes,
            unknown_bytes: self.unknown_bytes + other.unknown_bytes,
            bytes_by_rate: std::array::from_fn(|i| self.bytes_by_rate[i] + other.bytes_by_rate[i]),
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{AddressRange, RegionMemory, RegionSnapshot};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn another_version_is_named_by_both_ends() {
        let other = r#"{"protocol":2,"do":"migrate","to":"x"}"#;
        let error = DaemonRequest::parse(other.as_bytes()).expect_err("version 2");
        let error = error.to_string();
        assert!(error.contains("client speaks version 2"), "{error}");
        let stop = DaemonRequest::parse(br#"{"protocol":2,"do":"stop"}"#);
        assert_eq!(stop.ok(), Some(DaemonRequest::Stop));
        for (reply, said) in [
            (r#"{"ok":true,"protocol":2}"#, "daemon speaks version 2"),
            (r#"{"ok":true,"notes":[]}"#, "daemon speaks no version"),
            (r#"{"ok":false,"protocol":2,"error":"too old"}"#, "too old"),
            (r#"{"hello":1}"#, "no isotherm"),
        ] {
            let error = DaemonRequest::Status.parse_reply(reply).expect_err(reply);
            assert!(error.to_string().contains(said), "{error}");
        }
        let stopped = DaemonRequest::Stop.parse_reply(r#"{"ok":true,"notes":[]}"#);
        assert!(stopped.is_ok());
        let ours = serde_json::to_string(&Reply::done(Done { notes: Vec::new() })).expect("JSON");
        assert!(DaemonRequest::Status.parse_reply(&ours).is_ok(), "{ours}");
    }

    #[test]
    fn bytes_are_told_apart_by_access_rate() {
        let region = |start: u64, nr_accesses| {
            let range = AddressRange::new(start * 4096, (start + 1) * 4096);
            RegionSnapshot::new(range, nr_accesses)
        };
        let snapshot = Snapshot {
            nr_samples: 20,
            regions: vec![
                region(0, Some(0.0)),
                region(1, Some(0.5)),
                region(2, Some(4.0)),
                region(3, Some(5.0)),
                region(4, Some(20.0)),
                region(5, None),
            ],
            ..Snapshot::default()
        };
        let view = View::of(&snapshot);
        assert_eq!(view.bytes_by_rate, [8192, 4096, 0, 0, 4096]);
        assert_eq!((view.hot_bytes, view.idle_bytes), (4 * 4096, 4096));
        assert_eq!((view.unknown_bytes, view.watched_bytes), (4096, 6 * 4096));
    }

    #[test]
    fn only_memory_is_hot_or_idle() {
        let region = RegionSnapshot {
            memory: Some(RegionMemory {
                resident: 30 * 4096,
                touched: 10 * 4096,
                unknown: 4096,
                swapped: 20 * 4096,
            }),
            ..RegionSnapshot::new(AddressRange::new(0, 100 * 4096), Some(5.0))
        };
        let snapshot = Snapshot {
            nr_samples: 20,
            regions: vec![region],
            ..Snapshot::default()
        };
        let view = View::of(&snapshot);
        let pages = |bytes: u64| bytes / 4096;
        assert_eq!((pages(view.hot_bytes), pages(view.idle_bytes)), (10, 19));
        assert_eq!(pages(view.resident_bytes), 30);
        assert_eq!(pages(view.swapped_bytes), 20);
        assert_eq!(pages(view.bytes_by_rate.iter().sum()), 10);
    }

    #[test]
    fn requests_are_read_and_others_explained() {
        let read = |text: &str| DaemonRequest::parse(text.as_bytes());
        assert_eq!(read(r#"{"do":"status"}"#).ok(), Some(DaemonRequest::Status));
        let tune = DaemonRequest::Tune {
            config: "a\nb".into(),
            name: "f".into(),
        };
        let text = r#"{"do":"tune","config":"a\nb","name":"f"}"#;
        assert_eq!(read(text).ok(), Some(tune));
        let schemes = DaemonRequest::Schemes {
            presets: vec!["prcl".into()],
            lines: Vec::new(),
        };
        let text = r#"{"do":"schemes","presets":["prcl"]}"#;
        assert_eq!(read(text).ok(), Some(schemes));
        for bad in [
            "",
            "status",
            r#"{"do":"format"}"#,
            r#"{"do":"tune"}"#,
            "[]",
            "{\"do\":7}",
            "\u{0}",
        ] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains("no request"), "{error}");
        }
        assert!(read(&"[".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = DaemonRequest::parse(&bytes);
        }

        #[test]
        fn near_misses_are_read_or_refused(
            word in "(status|tune|stop|pause|x)?",
            key in "(do|Do|config|name|\\\\u0000)",
            rest in r#"[\{\}\[\]",:a-z0-9\\ ]{0,40}"#,
        ) {
            let _ = DaemonRequest::parse(format!(r#"{{"{key}":"{word}"{rest}}}"#).as_bytes());
        }

        #[test]
        fn what_is_written_is_read(config in ".*", name in ".*") {
            let request = DaemonRequest::Tune { config, name };
            let line = request.to_line().expect("JSON");
            let (end, text) = line.split_last().expect("a newline");
            prop_assert!(*end == b'\n' && !text.contains(&b'\n'));
            prop_assert_eq!(DaemonRequest::parse(text).ok(), Some(request));
        }
    }
}
