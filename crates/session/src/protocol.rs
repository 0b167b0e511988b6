//! The daemon's protocol: what is said over its unix socket, by both ends.
//!
//! A request is a line of JSON, and so is its reply. Requests:
//! `{"protocol":1,"do":"status"}`, `{"protocol":1,"do":"tune","config":TEXT,"name":FILE}`,
//! `{"protocol":1,"do":"schemes","presets":[NAME],"lines":[LINE]}`, and with `do` alone `reload`, `pause`, `resume`, `follow` and `stop`. A reply has `protocol` and `"ok":true`, with
//! `notes` or the fields of a [`Status`]; or `"ok":false` and an `error`, and then nothing was changed.
//!
//! To `follow`, more comes after the reply's line: a record ([`Feed`]).
//!
//! [`VERSION`] grows when a field changes its meaning or goes away; new fields do not change it. A
//! request without `protocol` is taken as one of this version. `stop` is understood from every
//! version, so that a daemon can be ended after an upgrade.

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
mod pods;
mod text;

pub use feed::{Feed, Roster};
pub use live_state::LiveState;
pub use metrics::Metrics;
pub use pods::{PodPolicies, PodPolicyName};
pub use text::status_text;

/// The version of this protocol.
pub const VERSION: u32 = 1;
/// The longest request in bytes, newline included.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Equal steps of access rates above zero.
pub const RATES: usize = 5;

/// Why a message is not understood, or was refused.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// Not JSON, or not one of the requests.
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
    /// Not JSON of a reply's shape.
    #[error("what answers is no isotherm")]
    NoReply(#[source] serde_json::Error),
    /// The daemon's own reason.
    #[error("{0}")]
    Refused(String),
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// The daemon's [`Status`].
    Status,
    /// Schemes and limits of this configuration from now on.
    Tune {
        /// The configuration's text.
        config: String,
        /// What to call it, e.g. its file.
        name: String,
    },
    /// These schemes from now on, and everything else as it is.
    Schemes {
        /// Names of presets.
        #[serde(default)]
        presets: Vec<String>,
        /// Schemes in a line each.
        #[serde(default)]
        lines: Vec<String>,
    },
    /// Read the files again that were named at the start.
    Reload,
    /// Stop acting until [`Request::Resume`]; watching goes on.
    Pause,
    /// Act again.
    Resume,
    /// All that is seen and done from now on: after the reply, a line, comes a record for as long as both are there. It
    /// begins with the targets of now and what they map.
    Follow,
    /// End the daemon.
    Stop,
}

impl Request {
    /// Reads a request, without its newline.
    pub fn parse(message: &[u8]) -> Result<Self, ProtocolError> {
        #[derive(Deserialize)]
        struct Head {
            protocol: Option<u32>,
            #[serde(rename = "do")]
            action: String,
        }
        let value: Value = serde_json::from_slice(message).map_err(ProtocolError::NoRequest)?;
        // First, as another version may have requests that this one does not know.
        let head = Head::deserialize(&value).map_err(ProtocolError::NoRequest)?;
        match head.protocol {
            Some(version) if version != VERSION && head.action != "stop" => {
                Err(ProtocolError::OtherClient(version))
            }
            _ => serde_json::from_value(value).map_err(ProtocolError::NoRequest),
        }
    }

    /// The request as it is sent: a line with its newline.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Sent<'a> {
            protocol: u32,
            #[serde(flatten)]
            request: &'a Request,
        }
        let mut line = serde_json::to_vec(&Sent {
            protocol: VERSION,
            request: self,
        })?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads the reply to this request. Fails where it says that the request was refused, or comes
    /// from a daemon of another version.
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

/// What is answered to a request.
#[derive(Serialize)]
pub struct Reply<T> {
    ok: bool,
    protocol: u32,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> Reply<T> {
    /// The request was done.
    pub const fn done(body: T) -> Self {
        Self {
            ok: true,
            protocol: VERSION,
            body,
        }
    }
}

/// The body of a reply to all requests but [`Request::Status`].
#[derive(Debug, Serialize)]
pub struct Done {
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The body of a reply to what was refused.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// Why, for people.
    pub error: String,
}

impl Reply<Failed> {
    /// The request was refused, and nothing was changed.
    pub const fn failed(error: String) -> Self {
        Self {
            ok: false,
            protocol: VERSION,
            body: Failed { error },
        }
    }
}

/// The daemon's state. Times are nanoseconds since 1970 or long.
#[derive(Serialize)]
pub struct Status<'a> {
    /// The isotherm that runs, e.g. `0.1.0`.
    pub version: &'static str,
    /// The daemon's own process.
    pub pid: u32,
    /// The file of its configuration, if there is one.
    pub config: Option<String>,
    /// `null` until schemes are changed for the first time.
    pub tuned: Option<Tuned>,
    /// The daemon's start.
    pub since: Nanos,
    /// Seconds since then.
    pub uptime_s: f64,
    /// Snapshots taken, of all targets.
    pub snapshots: u64,
    /// The live ones.
    pub targets: Vec<&'a Target>,
    /// Of all live targets together.
    pub total: View,
    /// Schemes and guards.
    #[serde(flatten)]
    pub acting: ActingStatus<'a>,
    /// The guards' last openings and closings.
    pub guard_events: Vec<&'a GuardSample>,
    /// The kernel's own counters of migration, in pages since boot; only where memory is on several nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_migrations: Option<&'a KernelMigrations>,
    /// Where pods say who may be acted on (`start --pod-policy`): what they say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_policy: Option<&'a PodPolicies>,
    /// Where stacks are taken (`--stacks`): whose code touched idle memory first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blame: Option<&'a BlameStatus>,
    /// What watching costs.
    pub monitor: MonitorCost,
}

/// Whose code touched idle memory first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlameStatus {
    /// When this was so; nanoseconds since 1970.
    pub at: Nanos,
    /// Idle for at least so long.
    pub at_least_ns: Nanos,
    /// All such memory.
    pub idle_bytes: u64,
    /// Of it, whose code touched it is not known.
    pub unknown_bytes: u64,
    /// The functions with most of it.
    pub functions: Vec<BlamedFunction>,
}

/// A function, and idle memory that it touched first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlamedFunction {
    /// What it is called.
    pub function: String,
    /// Idle memory that it touched first.
    pub bytes: u64,
}

/// What watching costs.
#[derive(Debug, Serialize)]
pub struct MonitorCost {
    /// CPU seconds of the monitor itself.
    pub cpu_s: f64,
    /// The same as a share of one CPU since the start.
    pub cpu_share: f64,
    /// CPU seconds that watching is estimated to have taken from the targets.
    pub induced_cpu_s_estimated: f64,
    /// Memory of the daemon.
    pub rss_bytes: u64,
}

/// When schemes were changed last, and by what.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// Nanoseconds since 1970.
    pub at: Nanos,
    /// The configuration's name.
    pub by: String,
}

/// A live target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Target {
    /// Its process.
    pub pid: u32,
    /// Its process's name, or what the target is called.
    pub name: String,
    /// The context that it belongs to, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// In memory, by the kernel's count.
    pub rss_bytes: Option<u64>,
    /// In swap, by the kernel's count.
    pub swap_bytes: Option<u64>,
    /// The last snapshot.
    #[serde(flatten)]
    pub view: View,
}

/// A target's last snapshot, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct View {
    /// In the snapshot.
    pub regions: usize,
    /// Addresses, whatever they hold.
    pub watched_bytes: u64,
    /// In memory, by the monitor; all addresses where it cannot tell. Hot, idle and unknown add up to it.
    pub resident_bytes: u64,
    /// Swapped out, by the monitor.
    pub swapped_bytes: u64,
    /// Touched in the last interval.
    pub hot_bytes: u64,
    /// Not touched in the last interval.
    pub idle_bytes: u64,
    /// In memory, and not known whether touched.
    pub unknown_bytes: u64,
    /// Accessed bytes by access rate: up to a fifth, two fifths, ... of the checks made.
    pub bytes_by_rate: [u64; RATES],
}

impl View {
    /// The sums of `snapshot`.
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

    /// What a look at so many regions, or blocks, came to. How often memory was accessed is not known.
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

    /// Both together.
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
        let error = Request::parse(other.as_bytes()).expect_err("version 2");
        assert!(
            error.to_string().contains("client speaks version 2"),
            "{error}"
        );
        let stop = Request::parse(br#"{"protocol":2,"do":"stop"}"#);
        assert_eq!(stop.ok(), Some(Request::Stop));
        for (reply, said) in [
            (r#"{"ok":true,"protocol":2}"#, "daemon speaks version 2"),
            (r#"{"ok":true,"notes":[]}"#, "daemon speaks no version"),
            (r#"{"ok":false,"protocol":2,"error":"too old"}"#, "too old"),
            (r#"{"hello":1}"#, "no isotherm"),
        ] {
            let error = Request::Status
                .parse_reply(reply)
                .expect_err(reply)
                .to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(
            Request::Stop
                .parse_reply(r#"{"ok":true,"notes":[]}"#)
                .is_ok()
        );
        let ours = serde_json::to_string(&Reply::done(Done { notes: Vec::new() })).expect("JSON");
        assert!(Request::Status.parse_reply(&ours).is_ok(), "{ours}");
    }

    #[test]
    fn bytes_are_told_apart_by_access_rate() {
        let region = |start: u64, nr_accesses| RegionSnapshot {
            range: AddressRange::new(start * 4096, (start + 1) * 4096),
            nr_accesses,
            age: 0,
            age_ns: Nanos(0),
            memory: None,
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
            range: AddressRange::new(0, 100 * 4096),
            nr_accesses: Some(5.0),
            age: 0,
            age_ns: Nanos(0),
            memory: Some(RegionMemory {
                resident: 30 * 4096,
                touched: 10 * 4096,
                unknown: 4096,
                swapped: 20 * 4096,
            }),
        };
        let snapshot = Snapshot {
            nr_samples: 20,
            regions: vec![region],
            ..Snapshot::default()
        };
        let view = View::of(&snapshot);
        let pages = |bytes: u64| bytes / 4096;
        assert_eq!((pages(view.hot_bytes), pages(view.idle_bytes)), (10, 19));
        assert_eq!(
            (pages(view.resident_bytes), pages(view.swapped_bytes)),
            (30, 20)
        );
        assert_eq!(pages(view.bytes_by_rate.iter().sum()), 10);
    }

    #[test]
    fn requests_are_read_and_others_explained() {
        let read = |text: &str| Request::parse(text.as_bytes());
        assert_eq!(read(r#"{"do":"status"}"#).ok(), Some(Request::Status));
        assert_eq!(
            read(r#"{"do":"tune","config":"a\nb","name":"f"}"#).ok(),
            Some(Request::Tune {
                config: "a\nb".into(),
                name: "f".into()
            })
        );
        assert_eq!(
            read(r#"{"do":"schemes","presets":["prcl"]}"#).ok(),
            Some(Request::Schemes {
                presets: vec!["prcl".into()],
                lines: Vec::new()
            })
        );
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
            let _ = Request::parse(&bytes);
        }

        #[test]
        fn near_misses_are_read_or_refused(
            word in "(status|tune|stop|pause|x)?",
            key in "(do|Do|config|name|\\\\u0000)",
            rest in r#"[\{\}\[\]",:a-z0-9\\ ]{0,40}"#,
        ) {
            let _ = Request::parse(format!(r#"{{"{key}":"{word}"{rest}}}"#).as_bytes());
        }

        #[test]
        fn what_is_written_is_read(config in ".*", name in ".*") {
            let request = Request::Tune { config, name };
            let line = request.to_line().expect("JSON");
            let (end, text) = line.split_last().expect("a newline");
            prop_assert!(*end == b'\n' && !text.contains(&b'\n'));
            prop_assert_eq!(Request::parse(text).ok(), Some(request));
        }
    }
}
