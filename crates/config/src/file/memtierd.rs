//! Reads memtierd's YAML (intel/memtierd, once a part of cri-resource-manager) into the model.
//!
//! Problem: memtierd counts accesses to regions of pages. Its policies move memory by the age or the heat of regions.
//!
//! Approach: the policies age, heat and demote-idle become schemes; heat becomes the idle time in which memory cools.
//! Pidwatchers become targets, each control group with a context of its own. The mover's bandwidth becomes a quota.
//! Page tables stand in for all trackers. A key that does something else here has a warning. A key that does nothing
//! here is refused, and the message has Isotherm's way.
//!
//! Limits: memory in slow use is in no class of heat but the hottest. Filters of processes are left to the command line.
//!
//! Sources: memtierd's `cmd/memtierd/README.md` and `pkg/memtier`, of April 2026.

use std::path::PathBuf;

use isotherm_engine::units::{MILLISECOND, SECOND};
use isotherm_engine::{Nanos, PAGE_SIZE};
use isotherm_policy::scheme::{Action, Age, Destination, Quota, Scheme};

use crate::cursor::{Cursor, Fields};
use crate::kdamonds::bounded;
use crate::model::{ContextConfig, DamonTarget};
use crate::preset::pattern;
use crate::problem::quoted;
use crate::spec::TargetSpec;
use crate::unit;

const POLICIES: [&str; 6] = ["age", "heat", "demote-idle", "ratio", "avoid-oom", "stub"];
/// Isotherm's ways in place of the last policies.
const INSTEAD: [&str; 3] = [
    "`age` with `swapoutms`, and `isotherm run --save SIZE` for how much is paged out",
    "`isotherm tier plan --goals` for full nodes, or `isotherm run --keep-free SHARE`",
    "a policy that acts; `isotherm record` watches without one",
];
const TRACKERS: [&str; 5] = ["idlepage", "softdirty", "damon", "finder", "multi"];
/// Keys of the first trackers.
const TRACKER_KEYS: [&str; 4] = [
    "pagesinregion maxcountperregion scanintervalms regionsupdatems pagemapreadahead \
     kpageflagsreadahead bitmapreadahead",
    "pagesinregion maxcountperregion scanintervalms regionsupdatems skippageprob pagemapreadahead \
     trackreferenced",
    "connection samplingus aggregationus regionsupdateus mintargetregions maxtargetregions \
     filteraddressrangesizemax interface sysfsregionsmanager kdamondslist nrkdamonds",
    "regionsupdatems reportaccesses pagemapbitexclusive pagemapbitpresent pagemapbitsoftdirty",
];
const WATCHERS: [&str; 4] = ["cgroups", "pidlist", "proc", "filter"];
/// Limit of combined trackers.
const TRACKERS_MAX: usize = 16;
/// Least access rate of active memory in per cent: that of DAMON's usual schemes.
const ACTIVE_RATE: f64 = 5.0;
/// memtierd's documented default of the bandwidth, in MiB/s.
const BANDWIDTH: u64 = 100;

pub(crate) fn is_memtierd(root: &Cursor) -> bool {
    !root.has("kdamonds") && (root.has("policy") || root.has("classes"))
}

pub(crate) fn read(root: &Cursor) -> Option<Vec<ContextConfig>> {
    let fields = root.map()?;
    if fields.get("classes").is_some() {
        let instead = "a file for each `memtierdconfig`, or pods with the annotation \
                       `isotherm.io/policy` (docs/how-to/daemonset.md)";
        refuse(&fields, "classes", instead);
        return None;
    }
    let contexts = fields.required("policy", read_policy);
    let instead = "none; a timer of yours can ask `isotherm status --json`, or Isotherm's metrics";
    refuse(&fields, "routines", instead);
    fields.finish_without("");
    contexts
}

/// Refuses keys that have no equal, and names Isotherm's way.
fn refuse(fields: &Fields, keys: &'static str, instead: &str) {
    for key in keys.split(' ') {
        if let Some(value) = fields.get(key) {
            value.wrong(format!("memtierd's `{key}`"), instead);
        }
    }
}

fn read_policy(cursor: &Cursor) -> Option<Vec<ContextConfig>> {
    let fields = cursor.map()?;
    let name = fields.need("name");
    let policy = name.as_ref().and_then(|name| name.word(&POLICIES));
    let config = fields.need("config");
    fields.finish_without("");
    let (name, policy) = (name?, policy?);
    if let Some(instead) = INSTEAD.get(policy.wrapping_sub(3)) {
        name.wrong(format!("the policy `{}`", POLICIES[policy]), *instead);
        return None;
    }
    config?.embedded(|config| read_config(config, policy))
}

fn read_config(cursor: &Cursor, policy: usize) -> Option<Vec<ContextConfig>> {
    let fields = cursor.map()?;
    let interval = fields.required("intervalms", time).unwrap_or(SECOND);
    if interval.0 == 0 {
        cursor.wrong("an `intervalms` of 0", "a longer one");
    }
    let targets = read_targets(&fields);
    let schemes = match policy {
        0 => read_age(cursor, &fields),
        1 => read_heat(&fields, interval),
        _ => {
            let instead = "`isotherm run --range A-B`; `isotherm report access \
                           --pages-of-interest DIR` writes such files";
            refuse(&fields, "pagesofinterestdir", instead);
            let place = fields.required("idlenumas", read_place);
            place
                .map(|place| demote(interval, place))
                .into_iter()
                .collect()
        }
    };
    if policy < 2 {
        fields.required("tracker", |tracker| read_tracker(tracker, &TRACKERS));
    }
    let mover = fields.optional("mover", read_mover);
    fields.finish_without("");
    let bandwidth = mover.unwrap_or(BANDWIDTH);
    let nr = (schemes.len() * targets.len()).max(1) as u64;
    if schemes.is_empty() {
        let expected = "one; `isotherm record` watches without any";
        cursor.warn("no rule that acts", expected);
    } else if mover.is_none() {
        let expected = format!("one: {BANDWIDTH} MiB/s, the default in memtierd's documents");
        cursor.warn("no mover, without which memtierd moves nothing", expected);
    } else if nr > 1 {
        let part = bandwidth as f64 / nr as f64;
        let found = format!("{bandwidth} MiB/s for {nr} schemes");
        cursor.warn(found, format!("{part:.1} MiB/s for each"));
    }
    let bytes = u128::from(bandwidth << 20) * u128::from(interval.0);
    let bytes = bytes / u128::from(SECOND.0) / u128::from(nr);
    let limited = |scheme: Scheme| Scheme {
        apply_interval: interval,
        quota: Quota {
            bytes: u64::try_from(bytes).map_or(u64::MAX, |bytes| bytes.max(PAGE_SIZE)),
            reset_interval: interval,
            ..Quota::default()
        },
        ..scheme
    };
    let schemes: Vec<Scheme> = schemes.into_iter().map(limited).collect();
    let context = |(kdamond, targets): (usize, ContextConfig)| ContextConfig {
        kdamond,
        schemes: schemes.clone(),
        ..targets
    };
    Some(targets.into_iter().enumerate().map(context).collect())
}

fn time(cursor: &Cursor) -> Option<Nanos> {
    cursor.time(MILLISECOND)
}

/// Returns the bandwidth in MiB/s.
fn read_mover(cursor: &Cursor) -> Option<u64> {
    let fields = cursor.map()?;
    let bandwidth = fields.required("bandwidth", |c| c.count(u64::from(u32::MAX)));
    if bandwidth == Some(0) {
        cursor.wrong("a bandwidth of 0, which moves nothing", "MiB a second");
    }
    if let Some(pause) = fields.get("intervalms") {
        let expected = "what the bandwidth allows in the policy's `intervalms`, at once";
        pause.warn("moves in pieces", expected);
    }
    fields.finish_without("");
    bandwidth
}

/// A node, or swap.
type Place = Option<u32>;

fn read_place(cursor: &Cursor) -> Option<Place> {
    let node = |item: &Cursor| match item.text("a node, or -1 for swap")? {
        "-1" => Some(None),
        _ => item.count_u32().map(Some),
    };
    let nodes = cursor.items(node);
    if nodes.len() > 1 {
        let expected = "the first of them: memory on the others moves there, too";
        cursor.warn("several nodes", expected);
    }
    nodes.first().copied()
}

/// Returns the scheme that moves memory which was idle for `age`.
fn demote(age: Nanos, place: Place) -> Scheme {
    let action = place.map_or(Action::Pageout, |_| Action::MigrateCold);
    to(
        place,
        Scheme::new(pattern(PAGE_SIZE, (0.0, 0.0), age), action),
    )
}

/// Returns the scheme that moves memory which was active for `age`, to a node.
fn promote(age: Nanos, place: Place, nodes: &Cursor) -> Scheme {
    if place.is_none() {
        nodes.wrong("swap for active memory", "a node");
    }
    let expected = format!("memory in which {ACTIVE_RATE} % of checks find an access");
    nodes.warn("active memory", expected);
    let pattern = pattern(PAGE_SIZE, (ACTIVE_RATE, 100.0), age);
    to(place, Scheme::new(pattern, Action::MigrateHot))
}

fn to(place: Place, scheme: Scheme) -> Scheme {
    let destination = |node| Destination { node, weight: 1 };
    Scheme {
        destinations: place.map(destination).into_iter().collect(),
        ..scheme
    }
}

fn read_age(cursor: &Cursor, fields: &Fields) -> Vec<Scheme> {
    // 0 is the same as no time.
    let time = |key| fields.optional(key, time).filter(|time| time.0 > 0);
    let rule = |duration, nodes| {
        let (time, place) = (time(duration), fields.optional(nodes, read_place));
        if time.is_some() != place.is_some() {
            cursor.wrong(format!("only one of `{duration}` and `{nodes}`"), "both");
        }
        time.zip(place)
    };
    let out = time("swapoutms");
    let idle = rule("idledurationms", "idlenumas");
    let active = rule("activedurationms", "activenumas");
    if let Some(swap) = fields.get("swapoutms")
        && idle.is_some_and(|(idle, _)| Some(idle) < out)
    {
        let expected = "that time since the move to another node, which begins a new age";
        swap.warn("a time since the last access", expected);
    }
    let nodes = fields.get("activenumas");
    let schemes = [
        out.map(|out| demote(out, None)),
        idle.map(|(idle, place)| demote(idle, place)),
        (active.zip(nodes)).map(|((active, place), nodes)| promote(active, place, &nodes)),
    ];
    schemes.into_iter().flatten().collect()
}

fn read_heat(fields: &Fields, interval: Nanos) -> Vec<Scheme> {
    let instead = "`isotherm tier plan --goals`, by which a part of a node stays free";
    refuse(fields, "numasize", instead);
    let instead = "no forecast; `isotherm record` keeps what the forecaster `trace` writes";
    refuse(fields, "forecaster", instead);
    let map = fields.required("heatmap", read_heatmap);
    let Some(((retention, nr), cursor)) = map.zip(fields.get("heatnumas")) else {
        return Vec::new();
    };
    // Idle time in which the greatest heat cools to the lower end of a class.
    let cooled = |class: u32| {
        let share = f64::from(class) / f64::from(nr);
        Nanos((SECOND.0 as f64 * share.ln() / retention.ln()) as u64)
    };
    let mut schemes = Vec::new();
    // Neighbouring classes with one place are one range of heat.
    let classes = read_classes(&cursor, nr);
    for run in classes.chunk_by(|(a, one), (b, other)| a + 1 == *b && one == other) {
        let ((low, place), (high, _)) = (run[0], run[run.len() - 1]);
        if high + 1 == nr {
            schemes.push(promote(Nanos(0), place, &cursor));
            continue;
        }
        let mut scheme = demote(cooled(high + 1).max(interval), place);
        if low > 0 {
            let found = format!("class {low}, neither the coldest nor the hottest");
            cursor.warn(found, "memory that cools through it, none in slow use");
            scheme.pattern.age.max = Age::Time(cooled(low).max(interval));
        }
        schemes.push(scheme);
    }
    schemes
}

/// Returns the share of heat that a second without access leaves, and the number of classes.
fn read_heatmap(cursor: &Cursor) -> Option<(f64, u32)> {
    let fields = cursor.map()?;
    let max = fields.required("heatmax", |c| c.read(unit::number));
    let retention = fields.required("heatretention", |c| c.read(unit::number));
    let classes = fields.required("heatclasses", Cursor::count_u32);
    fields.finish_without("");
    let (max, retention, classes) = (max?, retention?, classes?);
    if max <= 0.0 || !(0.0..1.0).contains(&retention) || classes < 2 {
        let expected = "a `heatmax` above 0, a `heatretention` below 1, 2 `heatclasses` or more";
        cursor.wrong("a map in which no memory changes its class", expected);
        return None;
    }
    let expected = "the idle time in which `heatmax` cools; active memory for the hottest class";
    cursor.warn("heat by numbers of accesses", expected);
    Some((retention, classes))
}

/// Returns the place of each class, in the order of the classes.
fn read_classes(cursor: &Cursor, nr: u32) -> Vec<(u32, Place)> {
    let mut classes = Vec::new();
    for (class, nodes) in cursor.map().iter().flat_map(Fields::each) {
        match class.parse() {
            Ok(class) if class < nr => classes.extend(Some(class).zip(read_place(&nodes))),
            _ => nodes.wrong("a class that is never reached", format!("0 to {}", nr - 1)),
        }
    }
    classes.sort_by_key(|(class, _)| *class);
    classes
}

/// Reads a tracker that is one of `known`, the first of [`TRACKERS`].
fn read_tracker(cursor: &Cursor, known: &[&str]) -> Option<()> {
    let fields = cursor.map()?;
    let tracker = fields.required("name", |c| c.word(known));
    let config = fields.get("config");
    fields.finish_without("");
    let tracker = tracker?;
    let found = format!("the tracker `{}` and its settings", TRACKERS[tracker]);
    match tracker {
        0 => cursor.warn(found, "page tables, as often as the CPU budget allows"),
        1 => cursor.warn(found, "page tables, in which reads count as well as writes"),
        2 => cursor.warn(found, "page tables; DAMON itself is `--world kernel`"),
        3 => cursor.wrong("`finder`, which sees no accesses", "another one"),
        _ if config.is_none() => cursor.wrong("no key `config`", "the trackers"),
        _ => {}
    }
    config?.embedded(|config| {
        let fields = config.map()?;
        if let Some(keys) = TRACKER_KEYS.get(tracker) {
            fields.skip(&keys.split(' ').collect::<Vec<_>>());
        } else if let Some(list) = fields.need("trackers") {
            for part in bounded(&list, TRACKERS_MAX) {
                read_tracker(&part, &TRACKERS[..3]);
            }
        }
        fields.finish_without("");
        Some(())
    })
}

/// Reads the targets of each context.
fn read_targets(fields: &Fields) -> Vec<ContextConfig> {
    // Older files have them without a pidwatcher.
    let targets = fields.get("cgroups").map(|list| read_groups(&list));
    let targets = targets.or_else(|| Some(read_pids(&fields.get("pids")?)));
    let targets = targets.or_else(|| fields.required("pidwatcher", read_watcher));
    targets.unwrap_or_default()
}

fn read_watcher(cursor: &Cursor) -> Option<Vec<ContextConfig>> {
    let fields = cursor.map()?;
    let watcher = fields.required("name", |c| c.word(&WATCHERS));
    let config = match watcher {
        Some(0 | 1) => fields.need("config"),
        _ => fields.get("config"),
    };
    fields.finish_without("");
    let exclude = Vec::new();
    let all = Some(vec![of_targets(TargetSpec::All { exclude })]);
    let watcher = match (watcher?, &config) {
        (2, None) => return all,
        (3, _) => {
            let expected = "the processes' names on the command line: `--pid NAME`";
            cursor.warn("the pidwatcher `filter`", expected);
            return Some(vec![ContextConfig::default()]);
        }
        (watcher, _) => watcher,
    };
    config?.embedded(|config| {
        let fields = config.map()?;
        if let Some(interval) = fields.get("intervalms") {
            interval.warn("an interval of searches", "new processes as they come");
        }
        let targets = match watcher {
            0 => fields.need("cgroups").map(|list| read_groups(&list)),
            1 => fields.need("pids").map(|list| read_pids(&list)),
            _ => all,
        };
        fields.finish_without("");
        targets
    })
}

fn of_targets(targets: TargetSpec) -> ContextConfig {
    ContextConfig {
        own_targets: Some(targets),
        ..ContextConfig::default()
    }
}

/// Reads control groups, each for a context. One within another is watched with that.
fn read_groups(cursor: &Cursor) -> Vec<ContextConfig> {
    let mut paths = cursor.items(|item| {
        let path = item.text("a path")?;
        if !path.starts_with('/') {
            item.wrong(quoted(path), "an absolute path, as /sys/fs/cgroup/app");
        }
        Some(PathBuf::from(path))
    });
    paths.sort();
    paths.dedup_by(|later, earlier| later.starts_with(earlier));
    if paths.is_empty() {
        cursor.wrong("no control group", "at least one");
    }
    let context = |path| of_targets(TargetSpec::Cgroup(path));
    paths.into_iter().map(context).collect()
}

fn read_pids(cursor: &Cursor) -> Vec<ContextConfig> {
    let target = |item: &Cursor| {
        let pid = item.count(1 << 22)? as u32;
        Some(DamonTarget {
            pid: Some(pid),
            ..DamonTarget::default()
        })
    };
    let targets = cursor.items(target);
    if targets.is_empty() {
        cursor.wrong("no process", "at least one");
    }
    vec![ContextConfig {
        targets,
        ..ContextConfig::default()
    }]
}
