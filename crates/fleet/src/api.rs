//! Requests to the API server and to Prometheus.
//!
//! Both answer plain HTTP: the API server through a proxy on loopback that has the token (`kubectl proxy`, or the one of
//! `contrib/kubernetes`). Redirects and proxies of the environment are not followed.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;
use ureq::{Body, http};

use crate::needs::{Values, values};
use crate::objects::{List, without_nulls};

const TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of the longest answer.
const ANSWER_MAX: u64 = 256 << 20;
/// Characters of a reason in plain text.
const LINE_MAX: usize = 300;
/// Objects of a page of a list, and the greatest number of pages.
const PAGE: usize = 500;
const PAGES_MAX: usize = 2_000;

/// Kind of a patch of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatchKind {
    Merge,
    StrategicMerge,
}

impl PatchKind {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
        }
    }
}

/// Answer of a server that refuses a request as it is: asking again does not help.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

#[derive(Debug)]
pub(crate) struct Http<'a> {
    agent: Agent,
    api: &'a str,
    prometheus: &'a str,
}

impl<'a> Http<'a> {
    pub(crate) fn new(api: &'a str, prometheus: &'a str) -> anyhow::Result<Self> {
        for url in [api, prometheus] {
            ensure!(
                url.starts_with("http://"),
                "{url} is no http:// URL; for TLS and tokens, let a proxy on loopback stand before it (kubectl proxy)"
            );
        }
        let agent = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .build()
            .new_agent();
        Ok(Self {
            agent,
            api: api.trim_end_matches('/'),
            prometheus: prometheus.trim_end_matches('/'),
        })
    }

    /// Returns all objects of the list at `path`, and the number of those that cannot be read; `None` if the API server
    /// does not know the kind.
    pub(crate) fn list<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> anyhow::Result<Option<(Vec<T>, u64)>> {
        let url = format!("{}{path}", self.api);
        let (mut all, mut nr_unreadable, mut token) = (Vec::new(), 0, String::new());
        for _ in 0..PAGES_MAX {
            let mut request = self.agent.get(&url).query("limit", PAGE.to_string());
            if !token.is_empty() {
                request = request.query("continue", &token);
            }
            let response = request
                .call()
                .with_context(|| format!("cannot ask {url}"))?;
            if response.status() == http::StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let body = body_of(response, &url)?;
            let list = serde_json::from_slice(&body).map(without_nulls);
            let list = list.and_then(serde_json::from_value::<List>);
            let list = list.with_context(|| format!("{url} answers with no list"))?;
            let found = list.items.len() as u64;
            let before = all.len() as u64;
            // One object of a form that we do not know must not hide the others.
            all.extend(
                list.items
                    .into_iter()
                    .filter_map(|item| serde_json::from_value(item).ok()),
            );
            nr_unreadable += found - (all.len() as u64 - before);
            token = list.metadata.r#continue;
            if token.is_empty() {
                return Ok(Some((all, nr_unreadable)));
            }
        }
        bail!("{url} has more than {} objects", PAGE * PAGES_MAX)
    }

    /// Patches the object at `path`.
    pub(crate) fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> anyhow::Result<()> {
        let url = format!("{}{path}", self.api);
        let request = self
            .agent
            .patch(&url)
            .header("Content-Type", kind.content_type());
        let response = request.send(patch.to_string());
        body_of(
            response.with_context(|| format!("cannot patch {url}"))?,
            &url,
        )
        .map(drop)
    }

    /// Returns the values of a query of Prometheus by container.
    pub(crate) fn query(&self, query: &str) -> anyhow::Result<Values> {
        let url = format!("{}/api/v1/query", self.prometheus);
        let response = self.agent.get(&url).query("query", query).call();
        let response = response.with_context(|| format!("cannot ask {url}"))?;
        let body = body_of(response, &url).with_context(|| format!("the query {query}"))?;
        values(&body)
    }
}

fn body_of(mut response: Response<Body>, url: &str) -> anyhow::Result<Vec<u8>> {
    let status = response.status();
    let limited = response.body_mut().with_config().limit(ANSWER_MAX);
    let body = limited
        .read_to_vec()
        .with_context(|| format!("cannot read the answer of {url}"))?;
    if !status.is_success() {
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        let message = answer
            .as_ref()
            .and_then(|answer| answer["message"].as_str().or(answer["error"].as_str()));
        let message = message.map_or_else(|| plain(&body), str::to_owned);
        let text = format!("{url} says {status}: {message}");
        let is_final = status.is_client_error() && !matches!(status.as_u16(), 408 | 409 | 429);
        if is_final {
            return Err(Refused(text).into());
        }
        bail!(text);
    }
    Ok(body)
}

/// Returns the first line of an answer that is no JSON: a proxy says in plain text that it cannot reach the API server.
fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() || line.starts_with(['<', '{', '[']) {
        return "no reason given".to_owned();
    }
    line.chars()
        .filter(|c| !c.is_control())
        .take(LINE_MAX)
        .collect()
}
