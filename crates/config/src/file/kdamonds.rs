//! Reads the tree of a damo or HMSDK file into the model: kdamonds, contexts, targets, intervals.

use isotherm_engine::units::{MICROSECOND, MILLISECOND, SECOND};
use isotherm_engine::{Attributes, AttributesError, Intervals, IntervalsGoal};
use isotherm_policy::guard::GuardLimits;
use isotherm_policy::scheme::Scheme;

use crate::cursor::Cursor;
use crate::kernel;
use crate::model::{ContextConfig, DamonTarget, Method, Operations, Own};
use crate::problem::Problem;
use crate::scheme;
use crate::spec::TargetSpec;
use crate::unit;
use crate::validate;

/// Limit of the kdamonds: more come from a mistake. HMSDK can divide terabytes into one for each gibibyte.
pub(crate) const KDAMONDS_MAX: usize = 1 << 14;
/// Limit of a context's schemes; each is compared with each.
pub(crate) const SCHEMES_MAX: usize = 256;

pub(crate) fn read(root: &Cursor) -> Option<Vec<ContextConfig>> {
    if root.is_list() {
        return read_schemes_alone(root);
    }
    let fields = root.map()?;
    let general = fields.optional("isotherm", read_own).unwrap_or_default();
    let kdamonds = fields.need("kdamonds");
    fields.finish();
    let kdamonds = kdamonds?;
    let items = bounded(&kdamonds, KDAMONDS_MAX);
    let mut contexts = Vec::new();
    for (index, kdamond) in items.iter().enumerate() {
        let Some(fields) = kdamond.map() else {
            continue;
        };
        fields.skip(&["state", "pid"]);
        if let Some(refresh) = fields.get("refresh_ms") {
            refresh.time(MILLISECOND);
        }
        let list = fields.need("contexts");
        fields.finish();
        let items = list.iter().flat_map(|list| bounded(list, KDAMONDS_MAX));
        contexts.extend(items.filter_map(|item| read_context(&item, index, &general)));
    }
    if contexts.is_empty() {
        kdamonds.wrong("no usable context", "at least one to run");
    }
    Some(contexts)
}

/// Reads the input of damo's `--schemes`: a list of schemes for any targets.
fn read_schemes_alone(root: &Cursor) -> Option<Vec<ContextConfig>> {
    let (indexes, schemes) = read_schemes(root);
    if schemes.is_empty() {
        root.wrong("no usable scheme", "at least one");
        return None;
    }
    let context = ContextConfig {
        schemes,
        ..ContextConfig::default()
    };
    report_conflicts(root, &context, &indexes, "");
    Some(vec![context])
}

/// Returns the readable schemes of a list, with their indexes.
fn read_schemes(list: &Cursor) -> (Vec<usize>, Vec<Scheme>) {
    let items = bounded(list, SCHEMES_MAX);
    let read = |(index, item)| Some((index, scheme::read(item)?));
    items.iter().enumerate().filter_map(read).unzip()
}

/// Reports schemes that undo each other's work. `list` is the key of the schemes below `cursor`.
fn report_conflicts(cursor: &Cursor, context: &ContextConfig, indexes: &[usize], list: &str) {
    for conflict in validate::conflicts(context) {
        // Unreadable schemes leave gaps in the indexes.
        let (first, second) = (indexes[conflict.first], indexes[conflict.second]);
        let problem = conflict.problem(first);
        cursor.report_below(&format!("{list}[{second}]"), problem);
    }
}

/// Returns the items of a list, or none if there are too many.
pub(crate) fn bounded<'a>(list: &Cursor<'a>, max: usize) -> Vec<Cursor<'a>> {
    let items = list.list();
    if items.len() > max {
        list.wrong(format!("{} items", items.len()), format!("at most {max}"));
        return Vec::new();
    }
    items
}

fn read_context(cursor: &Cursor, kdamond: usize, general: &General) -> Option<ContextConfig> {
    let fields = cursor.map()?;
    let operations = fields
        .required("ops", |c| c.word(&Operations::NAMES))
        .map(|index| Operations::ALL[index]);
    let (intervals, intervals_goal) = fields
        .get("intervals")
        .map_or((None, None), |c| read_intervals(&c));
    let nr_regions = fields.optional("nr_regions", |c| c.bounds(Cursor::count_u32));
    let operations = operations.unwrap_or_default();
    let targets = fields.need("targets").map(|list| {
        let items = bounded(&list, KDAMONDS_MAX);
        let targets = items.iter().filter_map(|c| read_target(c, operations));
        targets.collect::<Vec<_>>()
    });
    let (own, own_targets) = fields.optional("isotherm", read_own).unwrap_or_default();
    let own_targets = own_targets.or_else(|| general.1.clone());
    let paused = fields.optional("pause", Cursor::flag).unwrap_or(false);
    let kernel = kernel::read(&fields);
    let schemes = fields.get("schemes").map(|list| read_schemes(&list));
    fields.finish();
    let (indexes, schemes) = schemes.unwrap_or_default();
    let context = ContextConfig {
        kdamond,
        operations,
        targets: targets.unwrap_or_default(),
        intervals,
        intervals_goal,
        nr_regions,
        kernel,
        schemes,
        paused,
        own: own.or(general.0),
        own_targets,
    };
    let has_others =
        operations == Operations::Paddr || context.targets.iter().any(|t| t.pid.is_some());
    if context.own_targets.is_some() && has_others {
        let problem = Problem::error("targets beside those of `isotherm`", "only one of them");
        cursor.report_below("targets", problem);
    }
    validate_attributes(cursor, &context);
    report_conflicts(cursor, &context, &indexes, "schemes");
    Some(context)
}

fn read_target(cursor: &Cursor, operations: Operations) -> Option<DamonTarget> {
    let fields = cursor.map()?;
    // The key is required; null is a value of it.
    fields.need_key("pid");
    let pid = fields.optional("pid", |c| c.count(1 << 22));
    let is_obsolete = fields.optional("obsolete", Cursor::flag).unwrap_or(false);
    let list = fields.need("regions");
    fields.finish();
    let mut regions = Vec::new();
    for item in list.iter().flat_map(Cursor::list) {
        regions.extend(item.range().map(|region| (region, item)));
    }
    regions.sort_by_key(|(region, _)| *region);
    for pair in regions.windows(2) {
        let ((before, _), (after, item)) = (&pair[0], &pair[1]);
        if before.end > after.start {
            item.wrong(
                format!("{after:?}, which overlaps {before:?}"),
                "regions apart from each other",
            );
        }
    }
    if operations == Operations::Fvaddr && regions.is_empty() {
        cursor.wrong("no regions", "the ranges to watch, which `fvaddr` needs");
    }
    Some(DamonTarget {
        // Physical memory has no process; sysfs shows 0 as its id.
        pid: pid
            .filter(|_| operations != Operations::Paddr)
            .map(|pid| pid as u32),
        regions: regions.into_iter().map(|(region, _)| region).collect(),
        is_obsolete,
    })
}

fn read_intervals(cursor: &Cursor) -> (Option<Intervals>, Option<IntervalsGoal>) {
    let Some(fields) = cursor.map() else {
        return (None, None);
    };
    let time = |key| fields.required(key, |c| c.time(MICROSECOND));
    let (sample, aggregation, update) = (time("sample_us"), time("aggr_us"), time("ops_update_us"));
    let goal = fields.optional("intervals_goal", read_goal);
    fields.finish();
    let intervals = sample.zip(aggregation).zip(update);
    let intervals = intervals.map(|((sample, aggregation), update)| Intervals {
        sample,
        aggregation,
        update,
    });
    (intervals, goal)
}

/// Reads an intervals goal; damo writes zero aggregations for no goal.
fn read_goal(cursor: &Cursor) -> Option<IntervalsGoal> {
    let fields = cursor.map()?;
    let access_bp = fields.required("access_bp", |c| c.parts(10_000));
    let aggregations = fields.required("aggrs", Cursor::count_u32);
    let min = fields.required("min_sample_us", |c| c.time(MICROSECOND));
    let max = fields.required("max_sample_us", |c| c.time(MICROSECOND));
    fields.finish();
    let goal = IntervalsGoal {
        access_bp: access_bp?,
        aggregations: aggregations?,
        min_sample_interval: min?,
        max_sample_interval: max?,
    };
    (goal.aggregations > 0).then_some(goal)
}

/// Isotherm's own settings and targets.
type General = (Own, Option<TargetSpec>);

fn read_own(cursor: &Cursor) -> Option<General> {
    let fields = cursor.map()?;
    let own = Own {
        cpu_budget: fields.optional("cpu_budget", share),
        act_budget: fields.optional("act_budget", share),
        max_waste: fields.optional("max_waste", share),
        max_nr_regions: fields.optional("max_nr_regions", Cursor::count_u32),
        method: fields.optional("method", read_method),
        guard: fields.optional("guard", read_guard).unwrap_or_default(),
    };
    let cgroup = fields.optional("cgroup", |c| c.text("a path"));
    let is_all = fields.optional("all", Cursor::flag) == Some(true);
    fields.finish();
    if cgroup.is_some() && is_all {
        cursor.wrong("both `cgroup` and `all`", "only one of them");
    }
    let all = is_all.then(|| TargetSpec::All {
        exclude: Vec::new(),
    });
    Some((
        own,
        cgroup.map(|path| TargetSpec::Cgroup(path.into())).or(all),
    ))
}

fn read_guard(cursor: &Cursor) -> Option<GuardLimits> {
    let fields = cursor.map()?;
    let refaults = fields.get("max_refaults_per_s");
    let guard = GuardLimits {
        max_slowdown: fields.optional("max_slowdown", share),
        slowdown_over: fields
            .optional("slowdown_over", |c| c.time(SECOND))
            .filter(|time| time.0 > 0),
        max_refaults_per_s: refaults
            .and_then(|c| c.read(unit::number))
            .filter(|n| n.is_finite()),
        max_psi: fields.optional("max_psi", share),
        max_refault_wait: fields
            .optional("max_refault_wait", |c| c.time(MILLISECOND))
            .filter(|time| time.0 > 0),
    };
    fields.finish();
    Some(guard)
}

fn share(cursor: &Cursor) -> Option<f64> {
    let share = cursor.read(unit::fraction)?;
    if share > 0.0 && share <= 1.0 {
        return Some(share);
    }
    cursor.wrong(
        format!("{} %", share * 100.0),
        "more than 0 %, at most 100 %",
    );
    None
}

fn read_method(cursor: &Cursor) -> Option<Method> {
    Some(match cursor.word(&["tables", "pages", "faithful"])? {
        0 => Method::Tables,
        1 => Method::Pages,
        _ => Method::Faithful,
    })
}

/// Checks that an engine accepts the attributes of the context, with DAMON's defaults for the missing ones.
fn validate_attributes(cursor: &Cursor, context: &ContextConfig) {
    let mut attributes = Attributes::default();
    if let Some(intervals) = context.intervals {
        attributes.sample_interval = intervals.sample;
        attributes.aggregation_interval = intervals.aggregation;
        attributes.update_interval = intervals.update;
    }
    if let Some(nr_regions) = context.nr_regions {
        attributes.min_nr_regions = nr_regions.min;
        attributes.max_nr_regions = nr_regions.max;
    } else if let Some(max) = context.own.max_nr_regions {
        attributes.max_nr_regions = max;
    }
    attributes.intervals_goal = context.intervals_goal;
    if context.intervals_goal.is_some() && context.own.cpu_budget.is_some() {
        cursor.report_below(
            "intervals.intervals_goal",
            Problem::error(
                "an intervals goal beside a `cpu_budget`",
                "only one of them: both would rule the intervals",
            ),
        );
    }
    let Err(error) = attributes.validate() else {
        return;
    };
    let (path, expected) = match error {
        AttributesError::ZeroInterval { which } => match which {
            "update" => ("intervals.ops_update_us", "some time"),
            "aggregation" => ("intervals.aggr_us", "some time"),
            _ => ("intervals.sample_us", "some time"),
        },
        AttributesError::Backwards { .. } => {
            ("intervals.aggr_us", "at least the sampling interval")
        }
        AttributesError::TooManySamples => ("intervals.sample_us", "a longer interval"),
        AttributesError::Goal => ("intervals.intervals_goal", "more than 0 %, at most 100 %"),
        AttributesError::OutsideGoal { .. } => (
            "intervals.intervals_goal",
            "bounds around the sampling interval",
        ),
        AttributesError::RegionCounts { .. } if context.nr_regions.is_none() => (
            "isotherm.max_nr_regions",
            "at least 10, DAMON's least number of regions",
        ),
        AttributesError::RegionCounts { .. } => ("nr_regions", "3 <= min <= max"),
    };
    let found = format!("what cannot work ({error})");
    cursor.report_below(path, Problem::error(found, expected));
}
