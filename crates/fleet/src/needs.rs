//! The memory that containers need, as Prometheus holds it.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::objects::KubePod;

/// No container lives on less.
const LEAST: u64 = 16 << 20;

/// A container: namespace, pod, name.
pub(crate) type ContainerKey = (String, String, String);

/// The memory that a container needs, by its greatest values over the time that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerNeed {
    /// The estimate.
    pub bytes: u64,
    /// Lower bound.
    pub low_bytes: u64,
    /// Upper bound.
    pub high_bytes: u64,
    /// Memory that it is charged for now.
    pub charged_bytes: u64,
    /// Time since its first value, in seconds.
    pub watched_s: u64,
}

impl ContainerNeed {
    /// Returns what suffices for both.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            low_bytes: self.low_bytes.max(other.low_bytes),
            high_bytes: self.high_bytes.max(other.high_bytes),
            charged_bytes: self.charged_bytes.max(other.charged_bytes),
            watched_s: self.watched_s.max(other.watched_s),
        }
    }
}

/// Returns the key of a container of `pod`.
pub(crate) fn key_of(pod: &KubePod, container: &str) -> ContainerKey {
    let meta = &pod.metadata;
    (
        meta.namespace.clone(),
        meta.name.clone(),
        container.to_owned(),
    )
}

/// Returns the need that suffices for all of `pods`, by container, and the number of pods with one.
pub(crate) fn needs_of<'a>(
    pods: impl Iterator<Item = &'a KubePod>,
    needs: &BTreeMap<ContainerKey, ContainerNeed>,
) -> BTreeMap<String, (ContainerNeed, u64)> {
    let mut all: BTreeMap<String, (ContainerNeed, u64)> = BTreeMap::new();
    for pod in pods {
        for container in &pod.spec.containers {
            if let Some(need) = needs.get(&key_of(pod, &container.name)) {
                let (of_all, nr) = all.entry(container.name.clone()).or_default();
                *of_all = of_all.or(*need);
                *nr += 1;
            }
        }
    }
    all
}

/// Query of the needs over `over_s` seconds, with the label `bound`.
pub(crate) fn query(over_s: u64) -> String {
    joined(&format!("max_over_time(isotherm_needed_bytes[{over_s}s])"))
}

/// Query of the present charges.
pub(crate) fn charged_query() -> String {
    joined("isotherm_charged_bytes")
}

/// Query of the times since the first values. It looks at a hundred points of the time, and two more before.
pub(crate) fn watched_query(over_s: u64) -> String {
    let step_s = (over_s / 100).max(1);
    let range = format!("{}s:{step_s}s", over_s + 2 * step_s);
    let first = format!("min_over_time(timestamp(isotherm_charged_bytes)[{range}])");
    let of_group = format!("(time() - {first})");
    joined(&of_group).replacen("sum by", "max by", 1)
}

/// Joins a metric of control groups with the names of containers. A container may have groups below its own. Two scrapes
/// of a daemon must not fail the query.
fn joined(metric: &str) -> String {
    format!(
        "sum by (namespace, pod, container, bound) (max by (instance, cgroup, bound) ({metric}) \
         * on (instance, cgroup) group_left (namespace, pod, container) \
         max by (instance, cgroup, namespace, pod, container) (isotherm_pod_info{{container!=\"\"}}))"
    )
}

#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    #[serde(default)]
    metric: Labels,
    /// Time and value.
    value: (f64, String),
}

/// The labels that are asked for. An answer may have a million series.
#[derive(Debug, Default, Deserialize)]
struct Labels {
    namespace: Option<String>,
    pod: Option<String>,
    #[serde(default)]
    container: String,
    #[serde(default)]
    bound: String,
}

/// Values of an instant vector by container; values that are no number are left out.
pub(crate) fn values(answer: &[u8]) -> anyhow::Result<Values> {
    let answer: Answer = serde_json::from_slice(answer)
        .context("this is no answer of Prometheus: is the URL right?")?;
    ensure!(
        answer.status == "success",
        "Prometheus says: {}",
        answer.error
    );
    let series = answer.data.map_or_else(Vec::new, |data| data.result);
    let of_container = |series: Series| {
        let value: f64 = series.value.1.parse().ok()?;
        let of = series.metric;
        let key = (of.namespace?, of.pod?, of.container);
        value.is_finite().then_some((key, of.bound, value))
    };
    Ok(series.into_iter().filter_map(of_container).collect())
}

/// Values by container, with the bound that they are.
pub(crate) type Values = Vec<(ContainerKey, String, f64)>;

/// Returns the needs by the answers to the queries. A container without all bounds is left out.
pub(crate) fn needs(
    bytes: Values,
    charged: Values,
    watched: Values,
) -> BTreeMap<ContainerKey, ContainerNeed> {
    let mut bounds: BTreeMap<ContainerKey, [Option<u64>; 3]> = BTreeMap::new();
    for (key, bound, value) in bytes {
        let at = match bound.as_str() {
            "low" => 0,
            "estimate" => 1,
            "high" => 2,
            _ => continue,
        };
        bounds.entry(key).or_default()[at] = Some((value as u64).max(LEAST));
    }
    let by_container = |values: Values| -> BTreeMap<ContainerKey, u64> {
        let values = values.into_iter();
        values.map(|(key, _, value)| (key, value as u64)).collect()
    };
    let (charged, watched) = (by_container(charged), by_container(watched));
    let need = |(key, bounds): (ContainerKey, [Option<u64>; 3])| {
        let [low_bytes, bytes, high_bytes] = bounds;
        let need = ContainerNeed {
            bytes: bytes?,
            low_bytes: low_bytes?,
            high_bytes: high_bytes?,
            charged_bytes: charged.get(&key).copied().unwrap_or(0),
            watched_s: watched.get(&key).copied().unwrap_or(0),
        };
        Some((key, need))
    };
    bounds.into_iter().filter_map(need).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_needs() {
        let answer = |series: &str| {
            format!(
                r#"{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}"#
            )
        };
        let series = |bound: &str, value: &str| {
            format!(
                r#"{{"metric":{{"namespace":"shop","pod":"cart-1","container":"web","bound":"{bound}"}},"value":[1.5,"{value}"]}}"#
            )
        };
        let all = [
            series("low", "1000"),
            series("estimate", "1e8"),
            series("high", "2e8"),
            series("other", "1"),
            series("low", "NaN"),
        ];
        let bytes = values(answer(&all.join(",")).as_bytes()).expect("an answer");
        let watched = values(answer(&series("high", "90000")).as_bytes()).expect("an answer");
        let found = needs(bytes.clone(), Vec::new(), watched);
        let need = ContainerNeed {
            bytes: 100_000_000,
            low_bytes: LEAST,
            high_bytes: 200_000_000,
            charged_bytes: 0,
            watched_s: 90_000,
        };
        let key = ("shop".to_owned(), "cart-1".to_owned(), "web".to_owned());
        assert_eq!(found, [(key, need)].into());
        assert!(
            needs(bytes[..2].to_vec(), Vec::new(), Vec::new()).is_empty(),
            "no upper bound"
        );
        let failed = br#"{"status":"error","error":"no such metric"}"#;
        assert!(format!("{:#}", values(failed).unwrap_err()).contains("no such metric"));
        assert!(values(b"<html>").is_err());
    }
}
