//! What the page is told of a record: `page/data.js` has the same types.

use std::collections::BTreeMap;

use isotherm_engine::Refusal;
use isotherm_record::item::{Header, Item};
use isotherm_report::actions::{ActionsReport, GuardCourse, ProcessActions, SchemeActions};
use isotherm_report::context::RecordEnd;
use isotherm_report::course::{Quantity, QuantityCourse, TargetCourse};
use isotherm_report::heatmap::{Layer, LayerSegment, Layers, RATE_CODES, RateCodes};
use isotherm_report::overview::{MappingOverview, TargetOverview};
use isotherm_report::render::colour::{RAMP, Rgb};
use isotherm_report::render::{page, reason};
use isotherm_report::series::Point;
use isotherm_report::{
    Accumulate, Actions, Course, CourseReport, Fragmentation, FragmentationReport, Heatmap,
    HeatmapOptions, Machine, MachineReport, Overview, Overviews, Render, Scope, Style,
};
use serde::Serialize;

use crate::container::{Arrays, Ref};

/// More steps of time than a terminal shows: one can look closer.
const OPTIONS: HeatmapOptions = HeatmapOptions {
    columns_read: 2048,
    columns: 2048,
    rows: 600,
    targets: 16,
};
/// Mappings that are listed.
const MOST_MAPPINGS: usize = 200;
/// Processes that are listed.
const MOST_PROCESSES: usize = 2000;

/// The accumulator of one record.
#[derive(Clone, Debug)]
pub struct Document {
    heatmap: Heatmap,
    course: Course,
    overviews: Overviews,
    actions: Actions,
    machine: Machine,
    fragmentation: Fragmentation,
}

impl Document {
    /// For a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            heatmap: Heatmap::new(header, scope, OPTIONS),
            course: Course::new(header, scope),
            overviews: Overviews::new(header, scope),
            actions: Actions::new(header, scope),
            machine: Machine::new(header, scope),
            fragmentation: Fragmentation::new(header, scope),
        }
    }
}

impl Accumulate for Document {
    type Report = Finished;

    fn push(&mut self, item: &Item) {
        self.heatmap.push(item);
        self.course.push(item);
        self.overviews.push(item);
        self.actions.push(item);
        self.machine.push(item);
        self.fragmentation.push(item);
    }

    fn end(&mut self, end: RecordEnd) {
        self.heatmap.end(end.clone());
        self.course.end(end.clone());
        self.overviews.end(end.clone());
        self.actions.end(end.clone());
        self.machine.end(end.clone());
        self.fragmentation.end(end);
    }

    fn finish(self) -> Finished {
        Finished {
            layers: self.heatmap.finish_layers(),
            course: self.course.finish(),
            overview: self.overviews.finish(),
            actions: self.actions.finish(),
            machine: self.machine.finish(),
            fragmentation: Some(self.fragmentation.finish()).filter(|of| !of.nodes.is_empty()),
        }
    }
}

/// What was read of one record.
#[derive(Debug)]
pub struct Finished {
    layers: Layers,
    course: CourseReport,
    overview: Overview,
    actions: Option<ActionsReport>,
    machine: Option<MachineReport>,
    fragmentation: Option<FragmentationReport>,
}

impl Finished {
    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.layers.targets.is_empty() && self.machine.is_none() && self.fragmentation.is_none()
    }

    /// The container of some records, in their order.
    ///
    /// # Errors
    /// None but those of serde, for types that are ours.
    pub fn container(records: &[Self]) -> serde_json::Result<Vec<u8>> {
        let mut arrays = Arrays::default();
        let json = DocumentJson {
            version: 1,
            codes: RATE_CODES,
            ramp: RAMP,
            records: records.iter().map(|of| record(of, &mut arrays)).collect(),
        };
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

#[derive(Serialize)]
struct RecordJson<'a> {
    subject: String,
    start_s: f64,
    column_s: f64,
    columns: usize,
    duration_s: f64,
    layers: Vec<LayerJson<'a>>,
    layers_left_out: usize,
    total: CourseJson,
    courses: Vec<CourseJson>,
    targets: Vec<TargetJson>,
    ended_targets: usize,
    mappings: Vec<MappingJson<'a>>,
    schemes: Vec<SchemeJson<'a>>,
    guards: Vec<GuardJson>,
    processes: Vec<ProcessJson>,
    pictures: Vec<PictureJson>,
}

/// A report as it is elsewhere: a picture, and its text, which says the same.
#[derive(Serialize)]
struct PictureJson {
    title: &'static str,
    svg: String,
    text: String,
}

#[derive(Serialize)]
struct LayerJson<'a> {
    label: String,
    unit_bytes: u64,
    runs: Ref,
    /// Text: 64 bits don't fit in the page's numbers.
    run_addresses: Vec<String>,
    segments: &'a [LayerSegment],
    names: Vec<&'a str>,
    mappings: Ref,
    columns: Ref,
    gaps: Ref,
    units: Ref,
    rates: Ref,
    ages: Ref,
}

#[derive(Serialize)]
struct QuantityJson {
    name: &'static str,
    times_s: Ref,
    means: Ref,
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
    working_set: u64,
    /// Least idle time in seconds, bytes.
    idle: Vec<(f64, Option<u64>)>,
    unknown: u64,
}

#[derive(Serialize)]
struct MappingJson<'a> {
    target: String,
    name: &'a str,
    resident: u64,
    idle: u64,
}

#[derive(Serialize)]
struct SchemeJson<'a> {
    label: String,
    action: &'a str,
    dry_run: bool,
    nr_tried: u64,
    tried: u64,
    applied: u64,
    refused: Vec<(String, u64)>,
    took_s: f64,
    from_s: f64,
    to_s: f64,
}

#[derive(Serialize)]
struct GuardJson {
    label: String,
    stops: u64,
    closed_s: f64,
    strain_max: Option<f64>,
    slowdown_mean: Option<f64>,
    slowdown_max: Option<f64>,
    refaults_mean: Option<f64>,
    refaults_max: Option<f64>,
}

#[derive(Serialize)]
struct ProcessJson {
    label: String,
    tried: u64,
    applied: u64,
    refused: Vec<(String, u64)>,
}

fn record<'a>(of: &'a Finished, arrays: &mut Arrays) -> RecordJson<'a> {
    let Finished {
        layers,
        course,
        overview,
        actions,
        machine,
        fragmentation,
    } = of;
    let pictures = [
        machine
            .as_ref()
            .map(|of| picture("The machine's memory", of)),
        fragmentation
            .as_ref()
            .map(|of| picture("Fragmentation of free memory", of)),
    ];
    let actions = actions.as_ref();
    let schemes = actions.map_or(&[][..], |actions| &actions.schemes);
    let guards = actions.map_or(&[][..], |actions| &actions.guards);
    let processes = actions.map_or(&[][..], |actions| &actions.processes);
    RecordJson {
        subject: page::subject(&overview.record),
        start_s: layers.start_ns.as_secs_f64(),
        column_s: layers.column_ns.as_secs_f64(),
        columns: layers.columns,
        duration_s: course.duration_ns.max(overview.duration_ns).as_secs_f64(),
        layers: layers.targets.iter().map(|l| layer(l, arrays)).collect(),
        layers_left_out: layers.targets_left_out,
        total: course_json(&course.total, arrays),
        courses: course
            .targets
            .iter()
            .map(|c| course_json(c, arrays))
            .collect(),
        targets: overview
            .targets
            .iter()
            .take(MOST_PROCESSES)
            .map(target)
            .collect(),
        ended_targets: overview.ended_targets,
        mappings: overview
            .mappings
            .iter()
            .take(MOST_MAPPINGS)
            .map(mapping)
            .collect(),
        schemes: schemes.iter().map(scheme).collect(),
        guards: guards.iter().map(guard).collect(),
        processes: processes.iter().take(MOST_PROCESSES).map(process).collect(),
        pictures: pictures.into_iter().flatten().collect(),
    }
}

fn picture(title: &'static str, of: &impl Render) -> PictureJson {
    let mut text = Vec::new();
    of.text(&Style::default(), &mut text)
        .expect("memory takes everything");
    PictureJson {
        title,
        svg: of.svg(),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

fn layer<'a>(layer: &'a Layer, arrays: &mut Arrays) -> LayerJson<'a> {
    let mappings = layer.mappings.iter();
    LayerJson {
        label: layer.target.label(),
        unit_bytes: layer.axis.unit_bytes,
        runs: arrays.u32(layer.axis.runs.iter().map(|run| run.place)),
        run_addresses: layer
            .runs
            .iter()
            .map(|run| format!("{:#x}", run.range.start))
            .collect(),
        segments: &layer.axis.segments,
        names: layer.names.iter().map(|name| &**name).collect(),
        mappings: arrays.u32(mappings.flat_map(|m| [m.place, m.units, m.name])),
        columns: arrays.u32(layer.columns.iter().copied()),
        gaps: arrays.u32(gaps(layer)),
        units: arrays.u32(layer.units.iter().copied()),
        rates: arrays.u16(&layer.rates),
        ages: arrays.u16(&layer.ages),
    }
}

/// What lies before each piece and after the one before it in its column: mostly nothing, which packs well.
fn gaps(layer: &Layer) -> impl Iterator<Item = u32> {
    layer.columns.windows(2).flat_map(move |pair| {
        let mut end = 0;
        (pair[0]..pair[1]).map(move |at| {
            let at = at as usize;
            let gap = layer.places[at] - end;
            end = layer.places[at] + layer.units[at];
            gap
        })
    })
}

fn quantity(name: &'static str, points: &[Point], arrays: &mut Arrays) -> QuantityJson {
    QuantityJson {
        name,
        times_s: arrays.f64(points.iter().map(|point| point.time_ns.as_secs_f64())),
        means: arrays.f64(points.iter().map(|point| point.mean as f64)),
    }
}

fn course_json(course: &TargetCourse, arrays: &mut Arrays) -> CourseJson {
    let of = |of: &QuantityCourse| quantity(name(of.quantity), &of.points, arrays);
    CourseJson {
        label: course.target.label(),
        quantities: course.quantities.iter().map(of).collect(),
    }
}

fn name(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Touched => "touched",
        Quantity::Idle => "idle",
        Quantity::IdleFor(0) => "idle_5s",
        Quantity::IdleFor(1) => "idle_30s",
        Quantity::IdleFor(_) => "idle_2min",
        Quantity::Unknown => "unknown",
        Quantity::Swapped => "swapped",
        Quantity::Rss => "rss",
        Quantity::Swap => "swap",
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

fn scheme(of: &SchemeActions) -> SchemeJson<'_> {
    SchemeJson {
        label: labelled(of.context.as_deref(), &format!("scheme {}", of.scheme)),
        action: &of.action,
        dry_run: of.dry_run,
        nr_tried: of.nr_tried,
        tried: of.tried_bytes,
        applied: of.applied_bytes,
        refused: refused(&of.refused_bytes),
        took_s: of.took_ns.as_secs_f64(),
        from_s: of.from_ns.as_secs_f64(),
        to_s: of.to_ns.as_secs_f64(),
    }
}

fn guard(of: &GuardCourse) -> GuardJson {
    GuardJson {
        label: labelled(of.context.as_deref(), "guard"),
        stops: of.stops,
        closed_s: of.closed_ns.as_secs_f64(),
        strain_max: of.strain_max,
        slowdown_mean: of.slowdown_mean,
        slowdown_max: of.slowdown_max,
        refaults_mean: of.refaults_per_s_mean,
        refaults_max: of.refaults_per_s_max,
    }
}

fn process(of: &ProcessActions) -> ProcessJson {
    ProcessJson {
        label: of.target.label(),
        tried: of.tried_bytes,
        applied: of.applied_bytes,
        refused: refused(&of.refused_bytes),
    }
}

fn labelled(context: Option<&str>, what: &str) -> String {
    context.map_or_else(|| what.to_owned(), |context| format!("{context}, {what}"))
}

/// Reasons, those of most bytes first.
fn refused(by_reason: &BTreeMap<Refusal, u64>) -> Vec<(String, u64)> {
    let mut reasons: Vec<(String, u64)> = by_reason
        .iter()
        .map(|(why, bytes)| (reason(*why), *bytes))
        .collect();
    reasons.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    reasons
}
