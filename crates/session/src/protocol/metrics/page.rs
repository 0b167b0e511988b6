//! Metric families with their series, and their encoding: the OpenMetrics text format.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

/// Counters have no exemplars.
const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;

#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) families: Vec<Family>,
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    pub(super) samples: Vec<(Vec<(String, String)>, Value)>,
}

impl Family {
    fn encode(&self, series: &mut MetricEncoder<'_>, value: Value) -> fmt::Result {
        let is_counter = matches!(self.kind, MetricType::Counter);
        match value {
            Value::Integer(value) if is_counter => series.encode_counter(&value, NO_EXEMPLAR),
            Value::Number(value) if is_counter => series.encode_counter(&value, NO_EXEMPLAR),
            Value::Integer(value) => series.encode_gauge(&value),
            Value::Number(value) => series.encode_gauge(&value),
        }
    }
}

/// A value of a series; bytes and counts are exact.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Integer(u64),
    Number(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl Page {
    pub(super) fn family(&mut self, name: &'static str, kind: MetricType, help: &'static str) {
        self.families.push(Family {
            name,
            kind,
            help,
            samples: Vec::new(),
        });
    }

    /// Adds a series to the last family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        if let Some(family) = self.families.last_mut() {
            family.samples.push((labels.collect(), value.into()));
        }
    }

    pub(super) fn single(
        &mut self,
        name: &'static str,
        kind: MetricType,
        help: &'static str,
        value: impl Into<Value>,
    ) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    pub(super) fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.families {
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
            for (labels, value) in &family.samples {
                if matches!(family.kind, MetricType::Info) {
                    metric.encode_info(labels)?;
                    continue;
                }
                if labels.is_empty() {
                    family.encode(&mut metric, *value)?;
                } else {
                    family.encode(&mut metric.encode_family(labels)?, *value)?;
                }
            }
        }
        Ok(())
    }
}
