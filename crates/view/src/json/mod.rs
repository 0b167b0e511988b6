//! The page's data as JSON: `page/data.js` has the same types. Long lists of numbers are beside it
//! ([`crate::container`]).

mod actions;
mod blame;
mod curves;
mod layers;
mod machine;
mod tiers;

use isotherm_render::colour::{RAMP, Rgb};
use isotherm_report::course::{CourseQuantity, QuantityCourse, TargetCourse};
use isotherm_report::heatmap::{RATE_CODES, RateCodes};
use isotherm_report::overview::{MappingOverview, TargetOverview};
use isotherm_report::render::page;
use isotherm_report::series::Point;
use isotherm_report::{Render, Style};
use serde::Serialize;

use crate::container::{Arrays, Ref};
use crate::document::{Detail, Finished};
use actions::{GuardJson, ProcessJson, SchemeJson};
use blame::BlameJson;
use curves::CurvesJson;
use layers::LayersJson;
use machine::MachineJson;
use tiers::TiersJson;

/// The largest number of listed mappings.
const MOST_MAPPINGS: usize = 200;
/// The largest number of listed processes.
const MOST_PROCESSES: usize = 2000;

impl Finished {
    /// Builds the container of the records, in their order.
    ///
    /// # Errors
    /// Only serde could fail, and it does not for these types.
    pub fn container(records: &[Self]) -> serde_json::Result<Vec<u8>> {
        let mut arrays = Arrays::default();
        let json = DocumentJson::of(records, &mut arrays);
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
        let layers = self.finish();
        let json = LayersJson::of(&layers, &mut arrays);
        arrays.finish(&json)
    }
}

#[derive(Serialize)]
struct DocumentJson<'a> {
    version: u32,
    codes: RateCodes,
    ramp: [Rgb; 7],
    records: Vec<RecordJson<'a>>,
}

impl<'a> DocumentJson<'a> {
    fn of(records: &'a [Finished], arrays: &mut Arrays) -> Self {
        Self {
            version: 2,
            codes: RATE_CODES,
            ramp: RAMP,
            records: records
                .iter()
                .map(|of| RecordJson::of(of, arrays))
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct RecordJson<'a> {
    subject: String,
    duration_s: f64,
    layers: LayersJson<'a>,
    total: CourseJson,
    courses: Vec<CourseJson>,
    targets: Vec<TargetJson>,
    ended_targets: usize,
    mappings: Vec<MappingJson<'a>>,
    schemes: Vec<SchemeJson<'a>>,
    guards: Vec<GuardJson>,
    processes: Vec<ProcessJson>,
    machine: Option<MachineJson<'a>>,
    tiers: Option<TiersJson<'a>>,
    curves: Option<CurvesJson>,
    blame: Option<BlameJson>,
    pictures: Vec<PictureJson>,
}

/// A report in its usual form: a picture, and a text with the same content.
#[derive(Serialize)]
struct PictureJson {
    title: &'static str,
    svg: String,
    text: String,
}

/// A quantity over time.
#[derive(Serialize)]
pub(crate) struct SeriesJson {
    times_s: Ref,
    means: Ref,
}

impl SeriesJson {
    fn of(points: &[Point], arrays: &mut Arrays) -> Self {
        Self::scaled(points, 1.0, arrays)
    }

    /// Builds the series of values multiplied by `by`.
    fn scaled(points: &[Point], by: f64, arrays: &mut Arrays) -> Self {
        Self {
            times_s: arrays.f64(points.iter().map(|point| point.time_ns.as_secs_f64())),
            means: arrays.f64(points.iter().map(|point| point.mean as f64 * by)),
        }
    }
}

#[derive(Serialize)]
struct QuantityJson {
    name: &'static str,
    #[serde(flatten)]
    series: SeriesJson,
}

#[derive(Serialize)]
struct CourseJson {
    label: String,
    quantities: Vec<QuantityJson>,
}

#[derive(Serialize)]
struct TargetJson {
    label: String,
    resident: Option<u64>,
    swapped: Option<u64>,
    working_set: Option<u64>,
    /// Minimum idle time in seconds, and bytes.
    idle: Vec<(f64, Option<u64>)>,
    unknown: u64,
}

#[derive(Serialize)]
struct MappingJson<'a> {
    target: String,
    name: &'a str,
    resident: Option<u64>,
    idle: u64,
}

impl<'a> RecordJson<'a> {
    fn of(of: &'a Finished, arrays: &mut Arrays) -> Self {
        let actions = of.actions.as_ref();
        let schemes = actions.map_or(&[][..], |actions| &actions.schemes);
        let guards = actions.map_or(&[][..], |actions| &actions.guards);
        let processes = actions.map_or(&[][..], |actions| &actions.processes);
        let (course, overview) = (&of.course, &of.overview);
        let fragmentation = of.fragmentation.as_ref();
        let fragmentation = fragmentation.map(|of| picture("Fragmentation of free memory", of));
        Self {
            subject: page::subject(&overview.record),
            duration_s: course.duration_ns.max(overview.duration_ns).as_secs_f64(),
            layers: LayersJson::of(&of.layers, arrays),
            total: CourseJson::of(&course.total, arrays),
            courses: { course.targets.iter() }
                .map(|of| CourseJson::of(of, arrays))
                .collect(),
            targets: { overview.targets.iter() }
                .take(MOST_PROCESSES)
                .map(target)
                .collect(),
            ended_targets: overview.ended_targets,
            mappings: { overview.mappings.iter() }
                .take(MOST_MAPPINGS)
                .map(mapping)
                .collect(),
            schemes: { schemes.iter() }
                .map(|of| SchemeJson::of(of, arrays))
                .collect(),
            guards: { guards.iter() }
                .map(|of| GuardJson::of(of, arrays))
                .collect(),
            processes: { processes.iter() }
                .take(MOST_PROCESSES)
                .map(ProcessJson::of)
                .collect(),
            machine: of.machine.as_ref().map(MachineJson::of),
            tiers: { of.tiers.as_ref() }.map(|of| TiersJson::of(of, arrays)),
            curves: { of.curves.as_ref() }.map(|of| CurvesJson::of(of, arrays)),
            blame: BlameJson::of(&of.blame, arrays),
            pictures: fragmentation.into_iter().collect(),
        }
    }
}

fn picture(title: &'static str, of: &impl Render) -> PictureJson {
    PictureJson {
        title,
        svg: of.svg(),
        text: text(of),
    }
}

fn text(of: &impl Render) -> String {
    let mut text = Vec::new();
    of.text(&Style::default(), &mut text)
        .expect("memory takes everything");
    String::from_utf8_lossy(&text).into_owned()
}

impl CourseJson {
    fn of(course: &TargetCourse, arrays: &mut Arrays) -> Self {
        let of = |of: &QuantityCourse| QuantityJson {
            name: name(of.quantity),
            series: SeriesJson::of(&of.points, arrays),
        };
        Self {
            label: course.target.label(),
            quantities: course.quantities.iter().map(of).collect(),
        }
    }
}

fn name(quantity: CourseQuantity) -> &'static str {
    match quantity {
        CourseQuantity::Touched => "touched",
        CourseQuantity::Idle => "idle",
        CourseQuantity::IdleFor(0) => "idle_5s",
        CourseQuantity::IdleFor(1) => "idle_30s",
        CourseQuantity::IdleFor(_) => "idle_2min",
        CourseQuantity::Unknown => "unknown",
        CourseQuantity::Swapped => "swapped",
        CourseQuantity::Rss => "rss",
        CourseQuantity::Swap => "swap",
    }
}

fn target(of: &TargetOverview) -> TargetJson {
    TargetJson {
        label: of.target.label(),
        resident: of.resident_bytes,
        swapped: of.swapped_bytes,
        working_set: of.working_set_bytes,
        idle: of
            .idle
            .iter()
            .map(|idle| (idle.at_least_ns.as_secs_f64(), idle.bytes))
            .collect(),
        unknown: of.unknown_bytes,
    }
}

fn mapping(of: &MappingOverview) -> MappingJson<'_> {
    MappingJson {
        target: of.target.label(),
        name: &of.mapping,
        resident: of.resident_bytes,
        idle: of.idle_bytes,
    }
}
