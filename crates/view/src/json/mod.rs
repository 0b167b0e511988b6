//! The page's data as JSON: `page/data.js` has its types. Long lists of numbers are beside it
//! ([`crate::container`]).

mod actions;
mod blame;
mod curves;
mod layers;
mod machine;

use isotherm_render::colour::RAMP;
use isotherm_report::course::TargetCourse;
use isotherm_report::heatmap::RATE_CODES;
use isotherm_report::overview::{MappingOverview, TargetOverview};
use isotherm_report::render::page;
use isotherm_report::series::Point;
use isotherm_report::{Render, Style};
use serde_json::{Value, json};

use crate::container::Arrays;
use crate::document::{Detail, Finished};

const MOST_MAPPINGS: usize = 200;
const MOST_PROCESSES: usize = 2000;

impl Finished {
    /// Builds the container of the records, in their order.
    ///
    /// # Errors
    /// Only serde could fail, and it does not for these types.
    pub fn container(records: &[Self]) -> serde_json::Result<Vec<u8>> {
        let mut arrays = Arrays::default();
        let json = document(records, &mut arrays);
        arrays.finish(&json)
    }
}

impl Detail {
    /// Builds the container: layers like those of a record, but with one layer.
    ///
    /// # Errors
    /// Only serde could fail, and it does not for these types.
    pub fn container(self) -> serde_json::Result<Vec<u8>> {
        let mut arrays = Arrays::default();
        let json = layers::json(&self.finish(), &mut arrays);
        arrays.finish(&json)
    }
}

fn document(records: &[Finished], arrays: &mut Arrays) -> Value {
    json!({
        "version": 2,
        "codes": RATE_CODES,
        "ramp": RAMP,
        "records": list(records, |of| record(of, arrays)),
    })
}

fn record(of: &Finished, arrays: &mut Arrays) -> Value {
    let actions = of.actions.as_ref();
    let schemes = actions.map_or(&[][..], |actions| &actions.schemes);
    let guards = actions.map_or(&[][..], |actions| &actions.guards);
    let processes = actions.map_or(&[][..], |actions| &actions.processes);
    let (courses, overview) = (&of.course, &of.overview);
    let title = "Fragmentation of free memory";
    json!({
        "subject": page::subject(&overview.record),
        "duration_s": courses.duration_ns.max(overview.duration_ns).as_secs_f64(),
        "layers": layers::json(&of.layers, arrays),
        "total": course(&courses.total, arrays),
        "courses": list(&courses.targets, |of| course(of, arrays)),
        "targets": list(overview.targets.iter().take(MOST_PROCESSES), target),
        "ended_targets": overview.ended_targets,
        "mappings": list(overview.mappings.iter().take(MOST_MAPPINGS), mapping),
        "schemes": list(schemes, |of| actions::scheme(of, arrays)),
        "guards": list(guards, |of| actions::guard(of, arrays)),
        "processes": list(processes.iter().take(MOST_PROCESSES), actions::process),
        "machine": of.machine.as_ref().map(machine::json),
        "tiers": of.tiers.as_ref().map(|of| machine::tiers(of, arrays)),
        "curves": of.curves.as_ref().map(|of| curves::json(of, arrays)),
        "blame": blame::json(&of.blame, arrays),
        "pictures": list(&of.fragmentation, |of| picture(title, of)),
    })
}

fn list<T>(of: impl IntoIterator<Item = T>, json: impl FnMut(T) -> Value) -> Vec<Value> {
    of.into_iter().map(json).collect()
}

/// Builds a report in its usual form: a picture, and a text with the same content.
fn picture(title: &str, of: &impl Render) -> Value {
    json!({"title": title, "svg": of.svg(), "text": text(of)})
}

fn text(of: &impl Render) -> String {
    let mut text = Vec::new();
    of.text(&Style::default(), &mut text)
        .expect("memory takes everything");
    String::from_utf8_lossy(&text).into_owned()
}

fn series(points: &[Point], arrays: &mut Arrays) -> Value {
    scaled(points, 1.0, arrays)
}

fn scaled(points: &[Point], by: f64, arrays: &mut Arrays) -> Value {
    json!({
        "times_s": arrays.f64(points.iter().map(|point| point.time_ns.as_secs_f64())),
        "means": arrays.f64(points.iter().map(|point| point.mean as f64 * by)),
    })
}

fn course(course: &TargetCourse, arrays: &mut Arrays) -> Value {
    let quantities = list(&course.quantities, |(name, points)| {
        let mut quantity = series(points, arrays);
        quantity["name"] = json!(name);
        quantity
    });
    json!({"label": course.target.label(), "quantities": quantities})
}

fn target(of: &TargetOverview) -> Value {
    let idle = of.idle.iter();
    let idle = idle.map(|idle| (idle.at_least_ns.as_secs_f64(), idle.bytes));
    json!({
        "label": of.target.label(),
        "resident": of.resident_bytes,
        "swapped": of.swapped_bytes,
        "working_set": of.working_set_bytes,
        "idle": idle.collect::<Vec<_>>(),
        "unknown": of.unknown_bytes,
    })
}

fn mapping(of: &MappingOverview) -> Value {
    json!({
        "target": of.target.label(),
        "name": of.mapping,
        "resident": of.resident_bytes,
        "idle": of.idle_bytes,
    })
}
