//! Sends metrics to a receiver of OTLP over HTTP, such as the OpenTelemetry Collector.
//!
//! A thread without capabilities sends one request after the other: a slow receiver does not make the loop wait. What
//! it could not take is lost; the next request has newer values. Redirects and proxies of the environment are not
//! followed.
//!
//! Limits: no TLS and no compression, as the receiver is meant to run beside the daemon.
//!
//! Source: OpenTelemetry Protocol Specification 1.5, "OTLP/HTTP".

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use isotherm_engine::Nanos;
use isotherm_linux::privileges;
use isotherm_record::printable;
use isotherm_session::protocol::{OtlpTimes, otlp_refusal};
use tracing::{info, warn};

/// Time for a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the longest answer that is read.
const ANSWER_MAX: u64 = 64 << 10;

/// A receiver, and the period of requests to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtlpReceiver {
    url: String,
    every: Nanos,
}

impl OtlpReceiver {
    /// Returns the receiver at `endpoint`, without the path of metrics.
    pub(crate) fn new(endpoint: &str, every: Nanos) -> anyhow::Result<Self> {
        ensure!(
            !endpoint.starts_with("https://"),
            "--otlp {endpoint}: this command has no TLS; send to a Collector on this machine, which does: \
             http://127.0.0.1:4318"
        );
        let url = endpoint.trim_end_matches('/');
        let url = url.strip_suffix("/v1/metrics").unwrap_or(url);
        let is_url = ureq::http::Uri::try_from(url).is_ok_and(|uri| uri.host().is_some());
        ensure!(
            is_url && url.starts_with("http://"),
            "--otlp {endpoint} is no http://HOST:PORT, such as http://127.0.0.1:4318"
        );
        ensure!(
            every >= Nanos::from_millis(1_000),
            "--otlp-every may be 1s at least"
        );
        let url = format!("{url}/v1/metrics");
        Ok(Self { url, every })
    }

    fn post(&self, request: &[u8]) -> Result<(), String> {
        let agent = super::agent(TIMEOUT);
        let post = agent
            .post(&self.url)
            .header("Content-Type", "application/x-protobuf");
        let mut response = post.send(request).map_err(|error| error.to_string())?;
        let body = response.body_mut().with_config().limit(ANSWER_MAX);
        let body = body.read_to_vec().map_err(|error| error.to_string())?;
        otlp_refusal(&body).map_or(Ok(()), Err)
    }
}

/// The sending thread, which ends when this is dropped.
pub(super) struct OtlpSender {
    requests: SyncSender<Vec<u8>>,
    every: Nanos,
    next: Nanos,
    start_unix_ns: u64,
    is_late: bool,
}

impl OtlpSender {
    pub(super) fn start(receiver: OtlpReceiver) -> anyhow::Result<Self> {
        let (requests, to_send) = sync_channel(1);
        let every = receiver.every;
        std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || keep_sending(&receiver, &to_send))
            .context("cannot start a thread")?;
        Ok(Self {
            requests,
            every,
            next: Nanos(0),
            start_unix_ns: unix_ns(),
            is_late: false,
        })
    }

    /// Returns the times of a request if one is due.
    pub(super) fn due(&mut self, now: Nanos) -> Option<OtlpTimes> {
        if now < self.next {
            return None;
        }
        self.next = now + self.every;
        Some(OtlpTimes {
            start_unix_ns: self.start_unix_ns,
            now_unix_ns: unix_ns(),
        })
    }

    pub(super) fn send(&mut self, request: Vec<u8>) {
        let is_late = matches!(self.requests.try_send(request), Err(TrySendError::Full(_)));
        if is_late && !self.is_late {
            warn!("the OTLP receiver is slower than --otlp-every; metrics of some times are lost");
        }
        self.is_late = is_late;
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Sends requests until there are no more. The log has a line when the receiver's answer changes.
fn keep_sending(receiver: &OtlpReceiver, requests: &Receiver<Vec<u8>>) {
    if let Err(error) = privileges::keep_none() {
        warn!("no metrics are sent: {error}");
        return;
    }
    let mut before = Ok(());
    for request in requests {
        let answer = receiver.post(&request);
        if answer != before {
            match &answer {
                Ok(()) => info!("{} takes metrics again", receiver.url),
                Err(error) => warn!("{}: {}", receiver.url, printable(error)),
            }
        }
        before = answer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_tls() {
        let new = |endpoint| OtlpReceiver::new(endpoint, Nanos::from_millis(60_000));
        let url = |endpoint| new(endpoint).expect("an endpoint").url;
        assert_eq!(url("http://a:4318"), "http://a:4318/v1/metrics");
        assert_eq!(url("http://a:4318/v1/metrics"), "http://a:4318/v1/metrics");
        for (endpoint, why) in [
            ("https://a:4318", "has no TLS"),
            ("a:4318", "is no http://HOST:PORT"),
            ("http://", "is no http://HOST:PORT"),
        ] {
            let error = new(endpoint).expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
