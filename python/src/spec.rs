//! Schemes and sessions as values.

use std::path::PathBuf;

use isotherm_config::{
    ActingRequest, ConfigFormat, Configuration, ContextConfig, ContextSpec, MemoryGoal, Method,
    Monitoring, Problems, ProcessSpec, Request, SessionSpec as Spec, TargetSpec, World, preset,
    scheme_line,
};
use isotherm_engine::AddressRange;
use isotherm_policy::guard::GuardLimits;
use isotherm_policy::scheme::{Age, Bounds, Frequency, Scheme as Inner};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors::{Doing, raise};
use crate::quantity::{Bytes, Share, Time};
use crate::report::{Report, parsed};

fn wrong(text: impl std::fmt::Display) -> PyErr {
    raise(anyhow::anyhow!("{text}"), Doing::Specifying)
}

fn problems(problems: &Problems) -> PyErr {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    wrong(lines.join("\n"))
}

/// Formats a value of Python as JSON.
pub(crate) fn json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let dumped = value.py().import("json")?.call_method1("dumps", (value,))?;
    dumped.extract()
}

/// A scheme: an action on memory that has an access pattern.
///
/// `Scheme("4K max 0 0 5s max pageout")`: least and most size, access rate and age, and the action, as on the command
/// line. `Scheme.preset` returns named schemes, `Scheme.from_dict` reads damo's keys.
#[pyclass(frozen, eq, module = "isotherm")]
#[derive(Clone, PartialEq)]
pub(crate) struct Scheme {
    pub(crate) inner: Inner,
}

impl Scheme {
    fn configuration(&self) -> Configuration {
        Configuration {
            contexts: vec![ContextConfig {
                schemes: vec![self.inner.clone()],
                ..ContextConfig::default()
            }],
            ..Configuration::default()
        }
    }
}

#[pymethods]
impl Scheme {
    #[new]
    fn new(line: &str) -> PyResult<Self> {
        let inner = scheme_line(line).map_err(|problem| wrong(format!("'{line}': {problem}")))?;
        Ok(Self { inner })
    }

    /// The schemes of a preset: `ethp`, `prcl`, `pprcl`, `damon_reclaim`, `lru_sort`; `presets()` describes them.
    #[staticmethod]
    #[pyo3(name = "preset")]
    fn of_preset(name: &str) -> PyResult<Vec<Self>> {
        let schemes = preset(name).map(|preset| preset.schemes).ok_or_else(|| {
            let known: Vec<&str> = isotherm_config::PRESETS
                .iter()
                .map(|(name, _)| *name)
                .collect();
            wrong(format!(
                "there is no preset '{name}'; there are {}",
                known.join(", ")
            ))
        })?;
        Ok(schemes.into_iter().map(|inner| Self { inner }).collect())
    }

    /// Creates a scheme from damo's keys (docs/reference/interop.md); a missing key has damo's default.
    #[staticmethod]
    fn from_dict(keys: &Bound<'_, PyDict>) -> PyResult<Self> {
        let text = format!("[{}]", json(keys.as_any())?);
        let loaded = isotherm_config::load(&text, ConfigFormat::Json);
        let mut loaded = loaded.map_err(|found| problems(&found))?;
        let schemes = loaded
            .contexts
            .first_mut()
            .map(|c| std::mem::take(&mut c.schemes));
        match schemes.and_then(|mut schemes| schemes.pop()) {
            Some(inner) => Ok(Self { inner }),
            None => Err(wrong("there is no scheme in it")),
        }
    }

    /// The scheme in damo's keys.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = isotherm_config::to_json(&self.configuration());
        let mut found = py.import("json")?.call_method1("loads", (text,))?;
        for list in ["kdamonds", "contexts", "schemes"] {
            found = found.get_item(list)?.get_item(0)?;
        }
        Ok(found)
    }

    /// A copy of the scheme with other bounds of size, access rate and age.
    #[pyo3(signature = (*, min_size=None, max_size=None, min_rate=None, max_rate=None, min_age=None, max_age=None))]
    fn replace(
        &self,
        min_size: Option<Bytes>,
        max_size: Option<Bytes>,
        min_rate: Option<Share>,
        max_rate: Option<Share>,
        min_age: Option<Time>,
        max_age: Option<Time>,
    ) -> PyResult<Self> {
        let mut inner = self.inner.clone();
        let pattern = &mut inner.pattern;
        let rate = |Share(share): Share| Frequency::Percent(100.0 * share);
        let age = |Time(time): Time| Age::Time(time);
        set(&mut pattern.size.min, min_size.map(|Bytes(bytes)| bytes));
        set(&mut pattern.size.max, max_size.map(|Bytes(bytes)| bytes));
        set(&mut pattern.nr_accesses.min, min_rate.map(rate));
        set(&mut pattern.nr_accesses.max, max_rate.map(rate));
        set(&mut pattern.age.min, min_age.map(age));
        set(&mut pattern.age.max, max_age.map(age));
        // The reader of configurations checks that the bounds agree with each other.
        let replaced = Self { inner };
        let text = isotherm_config::to_json(&replaced.configuration());
        isotherm_config::load(&text, ConfigFormat::Json).map_err(|found| problems(&found))?;
        Ok(replaced)
    }

    /// The action, by its name in DAMOS.
    #[getter]
    fn action(&self) -> &'static str {
        self.inner.action.name()
    }

    /// Least and most size, in bytes.
    #[getter]
    fn size(&self) -> (u64, u64) {
        (self.inner.pattern.size.min, self.inner.pattern.size.max)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let keys = self.to_dict(py)?;
        let pattern = keys.get_item("access_pattern")?;
        Ok(format!("<isotherm.Scheme {} {pattern}>", self.action()))
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyAny>,))> {
        let from_dict = py.get_type::<Self>().getattr("from_dict")?;
        Ok((from_dict, (self.to_dict(py)?,)))
    }
}

fn set<T>(value: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *value = new;
    }
}

/// A scheme, or its line.
pub(crate) enum Given {
    Scheme(Box<Scheme>),
    Line(String),
}

impl FromPyObject<'_, '_> for Given {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(scheme) = found.cast::<Scheme>() {
            return Ok(Self::Scheme(Box::new(scheme.get().clone())));
        }
        let line = found.cast::<PyString>();
        let line = line.map_err(|_| wrong("a scheme is a Scheme, or its line as text"))?;
        Ok(Self::Line(line.to_str()?.to_owned()))
    }
}

/// A scheme, or a line that is one.
struct SchemeOrLine(Inner);

impl FromPyObject<'_, '_> for SchemeOrLine {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let given: Given = found.extract()?;
        let scheme = match given {
            Given::Scheme(scheme) => *scheme,
            Given::Line(line) => Scheme::new(&line)?,
        };
        Ok(Self(scheme.inner))
    }
}

/// A process: its id, or its command name.
struct Named(ProcessSpec);

impl FromPyObject<'_, '_> for Named {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = match found.extract::<u32>() {
            Ok(pid) => pid.to_string(),
            Err(_) => found
                .extract()
                .map_err(|_| wrong("a process is an id or a command name"))?,
        };
        text.parse().map(Self).map_err(wrong)
    }
}

/// A session with every default filled in: its targets, its monitor and its actions.
///
/// One of these gives the targets: `pids` (ids or command names), `cgroup`, `all`, `physical`, `node`, `simulated` (a
/// process of 1 GiB that needs no privilege). Without targets the session is for `simulate` only, which watches all
/// processes.
///
/// These give the actions: `schemes` (Scheme or line), `presets`, or a `config` (text of damo's or HMSDK's kdamonds, or
/// of one-line schemes). Without them the session only watches. `dry_run` reports the actions and executes none.
///
/// Sizes are bytes or text ("2 MiB"), durations datetime.timedelta or text ("5s"), shares 0 to 1 or text ("1%").
#[pyclass(frozen, eq, module = "isotherm")]
#[derive(Clone, PartialEq)]
pub(crate) struct SessionSpec {
    pub(crate) inner: Spec,
}

#[pymethods]
impl SessionSpec {
    #[new]
    #[pyo3(signature = (*, pids=None, cgroup=None, all=false, physical=false, node=None, simulated=false,
        exclude=None, ranges=None, children=false,
        config=None, schemes=None, presets=None, dry_run=false, save=None, keep_free=None, max_waste=None,
        guard=true, max_slowdown=None, slowdown_over=None, max_refaults_per_s=None, max_psi=None, max_refault_wait=None, act_budget=None,
        progress_cmd=None,
        cpu_budget=None, faithful=false, pages=false, sample_interval=None, aggregation_interval=None,
        update_interval=None, regions=None, seed=1, world="linux"))]
    #[expect(clippy::fn_params_excessive_bools, reason = "keywords")]
    fn new(
        pids: Option<Vec<Named>>,
        cgroup: Option<PathBuf>,
        all: bool,
        physical: bool,
        node: Option<u32>,
        simulated: bool,
        exclude: Option<Vec<Named>>,
        ranges: Option<Vec<(u64, u64)>>,
        children: bool,
        config: Option<&str>,
        schemes: Option<Vec<SchemeOrLine>>,
        presets: Option<Vec<String>>,
        dry_run: bool,
        save: Option<Bytes>,
        keep_free: Option<Share>,
        max_waste: Option<Share>,
        guard: bool,
        max_slowdown: Option<Share>,
        slowdown_over: Option<Time>,
        max_refaults_per_s: Option<f64>,
        max_psi: Option<Share>,
        max_refault_wait: Option<Time>,
        act_budget: Option<Share>,
        progress_cmd: Option<String>,
        cpu_budget: Option<Share>,
        faithful: bool,
        pages: bool,
        sample_interval: Option<Time>,
        aggregation_interval: Option<Time>,
        update_interval: Option<Time>,
        regions: Option<(u32, u32)>,
        seed: u64,
        world: &str,
    ) -> PyResult<Self> {
        let share = |share: Option<Share>| share.map(|Share(share)| share);
        let time = |time: Option<Time>| time.map(|Time(time)| time);
        let exclude = names(exclude);
        let acts = config.is_some() || schemes.is_some() || presets.is_some();
        let schemes = inner(schemes.unwrap_or_default());
        let goal = match (save, keep_free) {
            (Some(_), Some(_)) => return Err(wrong("save and keep_free: say one of them")),
            (save, keep_free) => (save.map(|Bytes(bytes)| MemoryGoal::Save(bytes)))
                .or(share(keep_free).map(MemoryGoal::KeepFree)),
        };
        let targets = [
            pids.map(|pids| TargetSpec::Processes {
                processes: names(Some(pids)),
                children,
            }),
            cgroup.map(TargetSpec::Cgroup),
            all.then(|| TargetSpec::All {
                exclude: exclude.clone(),
            }),
            (physical || node.is_some()).then(|| TargetSpec::Physical {
                node,
                exclude: exclude.clone(),
            }),
            simulated.then_some(TargetSpec::Simulated),
        ];
        let request = Request {
            targets: one_of(targets)?,
            exclude,
            ranges: checked(ranges)?,
            children,
            monitoring: Monitoring {
                method: method(faithful, pages)?,
                cpu_budget: share(cpu_budget),
                sample_interval: time(sample_interval),
                aggregation_interval: time(aggregation_interval),
                update_interval: time(update_interval),
                nr_regions: regions.map(|(min, max)| Bounds { min, max }),
                ..Monitoring::default()
            },
            seed,
            acting: ActingRequest {
                presets: presets.unwrap_or_default(),
                is_dry_run: dry_run,
                no_guard: !guard,
                limits: GuardLimits {
                    max_slowdown: share(max_slowdown),
                    slowdown_over: time(slowdown_over),
                    max_refaults_per_s,
                    max_psi: share(max_psi),
                    max_refault_wait: time(max_refault_wait),
                },
                act_budget: share(act_budget),
                max_waste: share(max_waste),
                progress_command: progress_cmd,
                goal,
                ..ActingRequest::default()
            },
            world: named_world(world)?,
            stacks: None,
        };
        lowered(&request, config, schemes, acts)
    }

    /// Creates the session that `to_json` returned.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let inner = serde_json::from_str(text);
        let inner = inner.map_err(|error| wrong(format!("this is no session: {error}")))?;
        Ok(Self { inner })
    }

    /// The whole session as JSON, which can be stored and compared.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The whole session as a dict; durations are in nanoseconds.
    fn to_dict(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        parsed(py, &self.to_json()?)
    }

    /// The schemes of all contexts, in order.
    #[getter]
    fn schemes(&self) -> Vec<Scheme> {
        let of_all = self.inner.contexts.iter().flat_map(ContextSpec::schemes);
        of_all
            .map(|inner| Scheme {
                inner: inner.clone(),
            })
            .collect()
    }

    /// Whether the session acts, or would act if it were no dry run.
    #[getter]
    fn acts(&self) -> bool {
        self.inner.acts()
    }

    /// A copy of the session with other schemes in its one context; its guard and monitor stay.
    fn with_schemes(&self, schemes: Vec<SchemeOrLine>) -> PyResult<Self> {
        let mut inner = self.inner.clone();
        let [context] = &mut inner.contexts[..] else {
            return Err(wrong(
                "the session has several contexts, and this does not say for which the schemes are",
            ));
        };
        let Some(acting) = &mut context.acting else {
            return Err(wrong(
                "the session only watches; say what it does where it is made: schemes, presets or config",
            ));
        };
        acting.schemes = self::inner(schemes);
        Ok(Self { inner })
    }

    fn __repr__(&self) -> String {
        let contexts = self.inner.contexts.iter().map(|context| {
            let actions: Vec<&str> = context.schemes().iter().map(|s| s.action.name()).collect();
            let does = if actions.is_empty() {
                String::new()
            } else {
                format!(", {}", actions.join(", "))
            };
            format!(
                "{} by {}{does}",
                context.targets.operations(),
                context.monitor.name()
            )
        });
        format!(
            "<isotherm.SessionSpec {}>",
            contexts.collect::<Vec<_>>().join("; ")
        )
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let from_json = py.get_type::<Self>().getattr("from_json")?;
        Ok((from_json, (self.to_json()?,)))
    }
}

fn names(named: Option<Vec<Named>>) -> Vec<ProcessSpec> {
    named
        .into_iter()
        .flatten()
        .map(|Named(process)| process)
        .collect()
}

fn inner(schemes: Vec<SchemeOrLine>) -> Vec<Inner> {
    schemes
        .into_iter()
        .map(|SchemeOrLine(scheme)| scheme)
        .collect()
}

fn one_of(targets: [Option<TargetSpec>; 5]) -> PyResult<Option<TargetSpec>> {
    let mut named = targets.into_iter().flatten();
    let first = named.next();
    if named.next().is_some() {
        return Err(wrong(
            "several targets; name one of pids, cgroup, all, physical (or node) and simulated",
        ));
    }
    if matches!(&first, Some(TargetSpec::Processes { processes, .. }) if processes.is_empty()) {
        return Err(wrong(
            "pids is empty; name a process, or leave it out for simulate",
        ));
    }
    Ok(first)
}

fn checked(ranges: Option<Vec<(u64, u64)>>) -> PyResult<Vec<AddressRange>> {
    let ranges = ranges.into_iter().flatten().map(|(start, end)| {
        let page = isotherm_engine::PAGE_SIZE;
        AddressRange::checked(start, end)
            .filter(|_| start.is_multiple_of(page) && end.is_multiple_of(page))
            .ok_or_else(|| {
                wrong(format!(
                    "{start:#x} to {end:#x} is no range of addresses: it goes up, from page to page ({page} bytes)"
                ))
            })
    });
    ranges.collect()
}

fn method(faithful: bool, pages: bool) -> PyResult<Option<Method>> {
    match (faithful, pages) {
        (true, true) => Err(wrong("faithful and pages: say one of them")),
        (true, false) => Ok(Some(Method::Faithful)),
        (false, true) => Ok(Some(Method::Pages)),
        (false, false) => Ok(None),
    }
}

fn named_world(name: &str) -> PyResult<World> {
    let unknown = || format!("there is no world '{name}'; there are linux and kernel");
    serde_json::from_value(name.into()).map_err(|_| wrong(unknown()))
}

/// Reads a configuration; without a text it is empty.
pub(crate) fn load(config: Option<&str>) -> PyResult<Configuration> {
    config.map_or_else(
        || Ok(Configuration::default()),
        |text| isotherm_config::load(text, ConfigFormat::Detect).map_err(|found| problems(&found)),
    )
}

/// Adds schemes to the only context, or to a default one if there is none. Returns `false` if there are several.
pub(crate) fn add_schemes(contexts: &mut Vec<ContextConfig>, schemes: Vec<Inner>) -> bool {
    if schemes.is_empty() {
        return true;
    }
    if contexts.is_empty() {
        contexts.push(ContextConfig::default());
    }
    let [context] = &mut contexts[..] else {
        return false;
    };
    context.schemes.extend(schemes);
    true
}

/// Fills in every default. `schemes` join the one context of `config`, or a default context if it has none.
fn lowered(
    request: &Request,
    config: Option<&str>,
    schemes: Vec<Inner>,
    acts: bool,
) -> PyResult<SessionSpec> {
    let mut contexts = load(config)?.contexts;
    if !add_schemes(&mut contexts, schemes) {
        return Err(wrong(
            "the configuration holds several contexts, and schemes do not say for which they are; say them in the \
             configuration",
        ));
    }
    // All processes of a simulated machine; a live session must name its targets.
    let anybody = TargetSpec::named(Vec::new());
    let spec = if acts {
        request.act(&contexts, Some(anybody))
    } else {
        let targets = request.targets.clone().or(Some(anybody));
        let request = Request {
            targets,
            ..request.clone()
        };
        request.watch()
    };
    let inner = spec.map_err(|error| raise(error, Doing::Specifying))?;
    Ok(SessionSpec { inner })
}

/// Reports the errors in the text of a configuration, each with its key or line, and the parts that this machine cannot
/// do. Errors in the text never raise an exception.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, text: &str) -> Report {
    let report = py.detach(|| isotherm_session::check(text.as_bytes()));
    Report::new("check", report)
}

/// The named schemes, each with a description.
#[pyfunction]
pub(crate) fn presets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let names = PyDict::new(py);
    for (name, what) in isotherm_config::PRESETS {
        names.set_item(name, what)?;
    }
    Ok(names)
}

/// Returns the given spec, or a default that only watches.
pub(crate) fn or_watching(spec: Option<&Bound<'_, SessionSpec>>) -> PyResult<Spec> {
    if let Some(spec) = spec {
        return Ok(spec.get().inner.clone());
    }
    let request = Request {
        seed: 1,
        ..Request::default()
    };
    lowered(&request, None, Vec::new(), false).map(|spec| spec.inner)
}
