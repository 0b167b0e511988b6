//! The data that a record's page needs.

use isotherm_engine::{Nanos, TargetId};
use isotherm_record::item::{Header, Item};
use isotherm_record::stacks::STACKS_SETTING;
use isotherm_record::{FrameTable, PageAges, PageSnapshot};
use isotherm_report::actions::ActionsReport;
use isotherm_report::blame::Measure;
use isotherm_report::context::RecordEnd;
use isotherm_report::heatmap::{LayerAxis, Layers};
use isotherm_report::summary::NeededMemory;
use isotherm_report::{
    Accumulate, Actions, Blame, BlameOptions, BlameReport, Course, CourseReport, EthpCurve,
    EthpCurveOptions, EthpCurveReport, Fragmentation, FragmentationReport, Heatmap, HeatmapOptions,
    Machine, MachineReport, Overview, Overviews, ReclaimCurve, ReclaimCurveOptions,
    ReclaimCurveReport, Scope, Tiers, TiersReport,
};
use isotherm_size::{Size, SizeOptions};

/// Options with more columns than a terminal shows, because the page can zoom.
const OPTIONS: HeatmapOptions = HeatmapOptions {
    columns_read: 2048,
    columns: 2048,
    rows: 600,
    targets: 16,
};

/// Idle times of memory by stack that the user can choose, in seconds.
const IDLE_S: [u64; 5] = [5, 30, 60, 300, 600];

/// The accumulator of one record. Page scans are read as regions.
#[derive(Clone, Debug)]
pub struct Document {
    heatmap: Heatmap,
    course: Course,
    overviews: Overviews,
    actions: Actions,
    machine: Machine,
    tiers: Tiers,
    fragmentation: Fragmentation,
    ages: PageAges,
    /// Attribution of memory to code, where stacks were sampled.
    blame: Option<Box<Blame>>,
    /// Policy curves and sizes from page scans, where they are requested.
    curves: Option<Box<(ReclaimCurve, EthpCurve, Size)>>,
}

impl Document {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        let has_stacks = header.settings.contains_key(STACKS_SETTING);
        Self {
            heatmap: Heatmap::new(header, scope, OPTIONS),
            course: Course::new(header, scope),
            overviews: Overviews::new(header, scope),
            actions: Actions::new(header, scope),
            machine: Machine::new(header, scope),
            tiers: Tiers::new(header, scope),
            fragmentation: Fragmentation::new(header, scope),
            ages: PageAges::default(),
            blame: has_stacks.then(|| Box::new(Blame::new(header, scope, BlameOptions::default()))),
            curves: None,
        }
    }

    /// Returns the frames of stacks, so that the caller can name them; `None` without stacks.
    pub fn frames(&mut self) -> Option<&mut FrameTable> {
        self.blame.as_mut().map(|blame| blame.frames())
    }

    /// Adds the curves of reclaim and of huge pages, and the memory that is needed, from page scans.
    #[must_use]
    pub fn with_curves(mut self, header: &Header, scope: Scope) -> Self {
        self.curves = Some(Box::new((
            ReclaimCurve::new(header, scope, ReclaimCurveOptions::default()),
            EthpCurve::new(header, scope, EthpCurveOptions::default()),
            Size::new(header, scope, SizeOptions::default()),
        )));
        self
    }

    fn push_pages(&mut self, pages: &PageSnapshot) {
        // A scan with more pages than a replay keeps ages of fails: the rest of the record has no heat map.
        if let Ok(snapshot) = self.ages.snapshot(pages) {
            self.push_regions(&Item::Snapshot(snapshot));
        }
    }

    fn push_regions(&mut self, item: &Item) {
        self.heatmap.push(item);
        self.course.push(item);
        self.overviews.push(item);
    }
}

impl Accumulate for Document {
    type Report = Finished;

    fn push(&mut self, item: &Item) {
        if let Some(curves) = &mut self.curves {
            curves.0.push(item);
            curves.1.push(item);
            curves.2.push(item);
        }
        match item {
            Item::Pages(pages) => return self.push_pages(pages),
            Item::Snapshot(snapshot) if !snapshot.blocks.is_empty() => {
                self.push_regions(&Item::Snapshot(snapshot.clone().by_page()));
            }
            _ => self.push_regions(item),
        }
        self.actions.push(item);
        self.machine.push(item);
        self.tiers.push(item);
        self.fragmentation.push(item);
        if let Some(blame) = &mut self.blame {
            blame.push(item);
        }
    }

    fn finish_at(self, end: RecordEnd) -> Finished {
        let curves = self.curves.and_then(|curves| {
            let (reclaim, huge, size) = *curves;
            Some(Curves {
                reclaim: reclaim.finish()?,
                huge: huge.finish(),
                needed: size.finish().map(|size| size.needed()),
            })
        });
        Finished {
            layers: self.heatmap.finish_layers(end.clone()),
            course: self.course.finish(),
            overview: self.overviews.finish_at(end.clone()),
            actions: self.actions.finish_at(end.clone()),
            machine: self.machine.finish_at(end.clone()),
            tiers: self.tiers.finish(),
            fragmentation: self.fragmentation.finish_at(end.clone()),
            curves,
            blame: self
                .blame
                .map_or_else(Vec::new, |blame| blamed(*blame, end)),
        }
    }
}

/// Attributes memory to code: memory idle for each time that the record covers, resident and accessed memory, memory
/// read back from swap, and the waste of huge pages.
fn blamed(mut blame: Blame, end: RecordEnd) -> Vec<BlameReport> {
    blame.end(end);
    let Some(resident) = blame.report_of(Measure::Resident, Nanos(0)) else {
        return Vec::new();
    };
    let idle = IDLE_S.map(|seconds| Nanos::from_millis(seconds * 1000));
    let idle = idle.into_iter().filter(|age| *age <= resident.watched_ns);
    let idle = idle.filter_map(|age| blame.report_of(Measure::Idle, age));
    let mut all: Vec<BlameReport> = idle.collect();
    all.push(resident);
    for measure in [Measure::Accessed, Measure::Refaulted, Measure::Waste] {
        let report = blame.report_of(measure, Nanos(0));
        all.extend(report.filter(|report| report.total_bytes > 0));
    }
    all
}

/// Policy curves from page scans, for any threshold and any bound, and the memory that is needed.
#[derive(Debug)]
pub(crate) struct Curves {
    pub(crate) needed: Option<NeededMemory>,
    pub(crate) reclaim: ReclaimCurveReport,
    pub(crate) huge: Option<EthpCurveReport>,
}

/// The finished data of one record.
#[derive(Debug)]
pub struct Finished {
    pub(crate) layers: Layers,
    pub(crate) course: CourseReport,
    pub(crate) overview: Overview,
    pub(crate) actions: Option<ActionsReport>,
    pub(crate) machine: Option<MachineReport>,
    pub(crate) tiers: Option<TiersReport>,
    pub(crate) fragmentation: Option<FragmentationReport>,
    pub(crate) curves: Option<Curves>,
    /// Blame reports by measure; none without stacks.
    pub(crate) blame: Vec<BlameReport>,
}

impl Finished {
    /// Returns whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.layers.targets.is_empty() && self.machine.is_none() && self.fragmentation.is_none()
    }

    /// Returns the axes that are needed to show [parts](Detail) of its heat maps.
    pub fn axes(&self) -> Axes {
        let layers = self.layers.targets.iter();
        let of = layers.filter_map(|layer| Some((layer.target.target?, layer.axis.clone())));
        Axes {
            origin: self.layers.record.started_ns,
            of: of.collect(),
        }
    }
}

/// The beginning of a record, and the address axes of its heat maps.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// The beginning, from which all times count.
    pub origin: Nanos,
    /// The target and the axis of each heat map, in their order.
    pub of: Vec<(TargetId, LayerAxis)>,
}

/// The accumulator of a part of a heat map, in the highest detail that fits.
#[derive(Debug)]
pub struct Detail {
    heatmap: Heatmap,
    target: TargetId,
    axis: LayerAxis,
}

impl Detail {
    /// Creates the accumulator for the heat map with index `place`, between two times since the beginning of the
    /// record. Returns `None` if there is no such heat map.
    pub fn new(
        header: &Header,
        axes: &Axes,
        place: usize,
        (from, to): (Nanos, Nanos),
    ) -> Option<Self> {
        let (target, axis) = axes.of.get(place)?;
        let scope = Scope {
            target: Some(*target),
            from: Some(from),
            to: Some(to),
        };
        Some(Self {
            heatmap: Heatmap::new(header, scope, OPTIONS).beginning_at(axes.origin),
            target: *target,
            axis: axis.clone(),
        })
    }

    /// Takes the next item of the record.
    pub fn push(&mut self, item: &Item) {
        self.heatmap.push(item);
    }

    /// Returns the heat map's layer, with its record.
    pub(crate) fn finish(self) -> Layers {
        self.heatmap.finish_layer_on(self.target, &self.axis)
    }
}
