//! The encoding of OTLP: a request of `POST /v1/metrics`, as protobuf.
//!
//! Names are those of Prometheus without `_total`, which its receivers add to sums that only grow. Units are in UCUM.
//!
//! Source: OpenTelemetry Protocol Specification 1.5; Prometheus and OpenMetrics Compatibility.

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Point;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus_client::metrics::MetricType;
use prost::Message;

use super::page::{Family, Page, Value};

/// Times of a request, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct OtlpTimes {
    /// Start of the daemon, from which counters count.
    pub start_unix_ns: u64,
    /// Time of the values.
    pub now_unix_ns: u64,
}

/// Returns a request with all families. `resource` describes this machine and the daemon.
pub(super) fn request(
    page: Page,
    version: &str,
    resource: &[(&str, &str)],
    times: OtlpTimes,
) -> Vec<u8> {
    let metrics = page
        .families
        .into_iter()
        .map(|family| metric(family, times));
    let scope = InstrumentationScope {
        name: "isotherm".to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let of_scope = ScopeMetrics {
        scope: Some(scope),
        metrics: metrics.collect(),
        ..ScopeMetrics::default()
    };
    let resource = Resource {
        attributes: resource.iter().copied().map(attribute).collect(),
        ..Resource::default()
    };
    let of_resource = ResourceMetrics {
        resource: Some(resource),
        scope_metrics: vec![of_scope],
        ..ResourceMetrics::default()
    };
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![of_resource],
    };
    request.encode_to_vec()
}

/// Returns what a receiver's answer says of values that it did not take.
pub fn otlp_refusal(answer: &[u8]) -> Option<String> {
    let answer = match ExportMetricsServiceResponse::decode(answer) {
        Ok(answer) => answer.partial_success?,
        Err(error) => return Some(format!("the answer is not OTLP's: {error}")),
    };
    let (nr, why) = (answer.rejected_data_points, answer.error_message);
    (nr > 0 || !why.is_empty()).then(|| format!("{nr} values were not taken: {why}"))
}

fn metric(family: Family, times: OtlpTimes) -> Metric {
    let is_counter = matches!(family.kind, MetricType::Counter);
    let start = if is_counter { times.start_unix_ns } else { 0 };
    let point = |(labels, value): (Vec<(String, String)>, Value)| NumberDataPoint {
        attributes: labels
            .iter()
            .map(|(name, value)| attribute((name.as_str(), value.as_str())))
            .collect(),
        start_time_unix_nano: start,
        time_unix_nano: times.now_unix_ns,
        value: Some(match value {
            // No number of bytes here reaches 2^63.
            Value::Integer(value) => Point::AsInt(value as i64),
            Value::Number(value) => Point::AsDouble(value),
        }),
        ..NumberDataPoint::default()
    };
    let data_points = family.samples.into_iter().map(point).collect();
    let data = if is_counter {
        Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        })
    } else {
        Data::Gauge(Gauge { data_points })
    };
    let is_info = matches!(family.kind, MetricType::Info);
    Metric {
        name: format!("{}{}", family.name, if is_info { "_info" } else { "" }),
        description: family.help.to_owned(),
        unit: unit(family.name).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// Returns the unit that ends a name.
fn unit(name: &str) -> &'static str {
    let units = [("_bytes", "By"), ("_seconds", "s"), ("_ratio", "1")];
    let unit = units.iter().find(|(end, _)| name.ends_with(end));
    unit.map_or("", |(_, unit)| unit)
}

fn attribute((key, value): (&str, &str)) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_sums_since_the_start_and_gauges_are_values() {
        let mut page = Page::default();
        page.single("isotherm_read_bytes", MetricType::Counter, "Read.", 7_u64);
        page.family("isotherm_share_ratio", MetricType::Gauge, "A share.");
        page.sample(&[("pid", "12")], 0.5);
        let times = OtlpTimes {
            start_unix_ns: 10,
            now_unix_ns: 20,
        };
        let bytes = request(page, "1.0", &[("host.name", "a")], times);
        let request = ExportMetricsServiceRequest::decode(&bytes[..]).expect("a request");
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let names: Vec<_> = metrics.iter().map(|of| (&*of.name, &*of.unit)).collect();
        let wanted = [("isotherm_read_bytes", "By"), ("isotherm_share_ratio", "1")];
        assert_eq!(names, wanted);
        let Some(Data::Sum(sum)) = &metrics[0].data else {
            panic!("a counter is no sum");
        };
        let point = &sum.data_points[0];
        let [start, end] = [point.start_time_unix_nano, point.time_unix_nano];
        assert_eq!((start, end, sum.is_monotonic), (10, 20, true));
        assert_eq!(point.value, Some(Point::AsInt(7)));
        let Some(Data::Gauge(gauge)) = &metrics[1].data else {
            panic!("a gauge is none");
        };
        assert_eq!(gauge.data_points[0].attributes, [attribute(("pid", "12"))]);
    }
}
