//! Reports the state of the kernel's DAMON on a machine, of all its users. Nothing is set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use isotherm_config::{Configuration, ContextConfig};
use isotherm_damon::{
    DamonContext, DirectoryTree, KdamondState, MODULES_ROOT, Module, SYSFS_ROOT, read_kdamonds,
};
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_time};
use serde::Serialize;

/// All kdamonds of the tree, and the kernel's own users of DAMON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KernelDamonReport {
    /// Whether the kernel has DAMON with sysfs.
    pub is_there: bool,
    /// The kdamonds, in the tree's order.
    pub kdamonds: Vec<KdamondReport>,
    /// DAMON_RECLAIM, DAMON_LRU_SORT and DAMON_STAT, as far as the kernel has them.
    pub modules: Vec<ModuleReport>,
    #[serde(skip)]
    states: Vec<KdamondState>,
}

/// One kdamond, on or off.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KdamondReport {
    /// Its process id, while it runs.
    pub pid: Option<i64>,
    /// `vaddr`, `fvaddr` or `paddr`; `null` where nothing is set up.
    pub operations: Option<&'static str>,
    /// Processes that it watches.
    pub pids: Vec<u32>,
    pub sample_interval: Option<Nanos>,
    pub aggregation_interval: Option<Nanos>,
    /// The schemes' actions, by DAMOS's names.
    pub actions: Vec<&'static str>,
    /// Names of a newer kernel that are not known here, by file.
    pub unknown: Vec<String>,
}

/// A module of the kernel that uses DAMON without user space.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleReport {
    /// The module's name in the kernel's documentation.
    pub name: &'static str,
    pub is_enabled: bool,
    /// Its kdamond's process id, while that runs.
    pub pid: Option<u32>,
    /// DAMON_STAT: for how long the memory at each percentile has been idle, in milliseconds; negative where it is
    /// accessed.
    pub idle_ms_percentiles: Option<Vec<i64>>,
    /// DAMON_STAT: estimated bytes accessed a second.
    pub bandwidth: Option<u64>,
    /// All parameters, by their names.
    pub parameters: BTreeMap<String, String>,
}

impl KernelDamonReport {
    /// Reads the state of this machine.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn read() -> anyhow::Result<Self> {
        Self::read_at(Path::new(SYSFS_ROOT), Path::new(MODULES_ROOT))
    }

    fn read_at(tree: &Path, modules: &Path) -> anyhow::Result<Self> {
        let tree = DirectoryTree::at(tree);
        let states = match &tree {
            Some(tree) => read_kdamonds(tree)?,
            None => Vec::new(),
        };
        let modules = Module::all(modules);
        Ok(Self {
            is_there: tree.is_some(),
            kdamonds: states.iter().map(kdamond).collect(),
            modules: modules.into_iter().map(module).collect(),
            states,
        })
    }

    /// Returns the whole configuration, as a file of damo would hold it.
    pub fn configuration(&self) -> Configuration {
        let states = self.states.iter().enumerate();
        let contexts = states.filter_map(|(at, state)| {
            let context = state.context.as_ref()?;
            Some(configured(at, context))
        });
        Configuration {
            contexts: contexts.collect(),
            warnings: Vec::new(),
        }
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        if !self.is_there {
            return format!(
                "this kernel has no DAMON that can be driven ({SYSFS_ROOT} is not there)\n"
            );
        }
        let mut text = String::new();
        if self.kdamonds.is_empty() {
            text.push_str("no kdamond is set up\n");
        }
        for (at, kdamond) in self.kdamonds.iter().enumerate() {
            let _ = writeln!(text, "kdamond {at}: {}", kdamond.words());
            for unknown in &kdamond.unknown {
                let _ = writeln!(text, "  not known here: {unknown}");
            }
        }
        for module in &self.modules {
            let _ = writeln!(text, "{}", module.words());
        }
        text
    }
}

impl KdamondReport {
    fn words(&self) -> String {
        let state = match self.pid {
            Some(pid) => format!("on, process {pid}"),
            None => "off".to_owned(),
        };
        let Some(operations) = self.operations else {
            return format!("{state}; nothing is set up");
        };
        let time = |time: Option<Nanos>| time.map_or_else(String::new, format_time);
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        let whose = if pids.is_empty() {
            String::new()
        } else {
            format!(" of {}", pids.join(", "))
        };
        let schemes = if self.actions.is_empty() {
            "no scheme".to_owned()
        } else {
            self.actions.join(", ")
        };
        format!(
            "{state}; {operations}{whose}, looks every {}, counts for {}; {schemes}",
            time(self.sample_interval),
            time(self.aggregation_interval),
        )
    }
}

impl ModuleReport {
    fn words(&self) -> String {
        let mut text = format!("{}: ", self.name);
        text.push_str(if self.is_enabled { "on" } else { "off" });
        if let Some(pid) = self.pid.filter(|_| self.is_enabled) {
            let _ = write!(text, ", process {pid}");
        }
        let percentile = |share: usize| {
            let all = self.idle_ms_percentiles.as_ref()?;
            let ms = *all.get(share * all.len().checked_sub(1)? / 100)?;
            u64::try_from(ms)
                .ok()
                .map(|ms| Nanos(ms.saturating_mul(1_000_000)))
        };
        if let (true, Some(half)) = (self.is_enabled, percentile(50)) {
            let _ = write!(
                text,
                "; half of memory has been idle for {} or longer",
                format_time(half)
            );
        }
        if let (true, Some(bandwidth)) = (self.is_enabled, self.bandwidth) {
            let _ = write!(text, "; {} a second are accessed", format_bytes(bandwidth));
        }
        text
    }
}

fn kdamond(state: &KdamondState) -> KdamondReport {
    let context = state.context.as_ref();
    let targets = context.map_or(&[][..], |context| &context.targets);
    KdamondReport {
        pid: state.pid,
        operations: context.map(|context| context.operations.name()),
        pids: targets.iter().filter_map(|target| target.pid).collect(),
        sample_interval: context.map(|context| context.intervals.sample),
        aggregation_interval: context.map(|context| context.intervals.aggregation),
        actions: context
            .map_or(&[][..], |context| &context.schemes)
            .iter()
            .map(|scheme| scheme.action.name())
            .collect(),
        unknown: state.unknown.clone(),
    }
}

fn module(module: Module) -> ModuleReport {
    ModuleReport {
        name: module.name,
        is_enabled: module.is_enabled(),
        pid: module.kdamond_pid(),
        idle_ms_percentiles: module.idle_ms_percentiles(),
        bandwidth: module.bandwidth(),
        parameters: module.parameters,
    }
}

fn configured(kdamond: usize, context: &DamonContext) -> ContextConfig {
    ContextConfig {
        kdamond,
        operations: context.operations,
        targets: context.targets.clone(),
        intervals: Some(context.intervals),
        intervals_goal: context.intervals_goal,
        nr_regions: Some(context.nr_regions),
        schemes: context.schemes.clone(),
        kernel: context.settings.clone(),
        paused: context.is_paused,
        ..ContextConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use isotherm_config::{ConfigFormat, load, to_json};
    use isotherm_damon::fake::{FakeTree, Level};
    use isotherm_policy::scheme::{Age, Scheme};

    use super::*;

    /// Returns a directory with the files of a tree that another user has set up.
    fn tree() -> tempfile::TempDir {
        use isotherm_damon::{Tree as _, TreePath};
        let mut fake = FakeTree::new(Level(6, 12), &[]);
        for (file, text) in [
            ("nr_kdamonds", "1"),
            ("0/contexts/nr_contexts", "1"),
            ("0/contexts/0/targets/nr_targets", "1"),
            ("0/contexts/0/targets/0/pid_target", "4242"),
            ("0/contexts/0/schemes/nr_schemes", "1"),
            ("SCHEME/action", "pageout"),
            ("SCHEME/access_pattern/age/min", "50"),
            ("SCHEME/access_pattern/age/max", "4294967295"),
            ("SCHEME/access_pattern/sz/max", "18446744073709551615"),
        ] {
            let file = file.replace("SCHEME", "0/contexts/0/schemes/0");
            let written = fake.write(&TreePath::kdamonds().join(&file), text);
            written.expect("a file of the tree");
        }
        directory_of(&fake)
    }

    /// Returns the report of a tree, without modules.
    fn reported(root: &Path) -> KernelDamonReport {
        KernelDamonReport::read_at(root, Path::new("/nowhere")).expect("a tree, or none")
    }

    fn directory_of(fake: &FakeTree) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in fake.texts() {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            std::fs::write(path, format!("{text}\n")).expect("a file");
        }
        root
    }

    /// HMSDK's file, set up on the newest kernel, reads back as HMSDK's file.
    #[test]
    fn what_hmsdk_asks_for_comes_back_from_the_tree() {
        use isotherm_config::{Request, World, to_yaml};
        use isotherm_damon::{Tree as _, TreePath};
        let text = include_str!("../../../config/tests/fixtures/hmsdk.yaml");
        let theirs = load(text, ConfigFormat::Yaml).expect("HMSDK's file");
        let request = Request {
            world: World::Kernel,
            ..Request::default()
        };
        let spec = request.act_or_watch(&theirs.contexts, None);
        let spec = spec.expect("it says all");
        let mut fake = FakeTree::new(Level(8, 0), &[]);
        for (path, text) in crate::kernel_plan(&spec).expect("a plan") {
            let path = TreePath::parse(&path).expect("a place in the tree");
            fake.write(&path, &text).expect("it is taken");
        }
        let report = reported(directory_of(&fake).path());
        let yaml = to_yaml(&report.configuration());
        let ours = load(&yaml, ConfigFormat::Yaml).expect("damo's and HMSDK's format");
        assert_eq!(ours.contexts.len(), theirs.contexts.len());
        for (ours, theirs) in ours.contexts.iter().zip(&theirs.contexts) {
            assert_eq!(ours.operations, theirs.operations);
            assert_eq!(ours.intervals, theirs.intervals);
            assert_eq!(ours.nr_regions, theirs.nr_regions);
            assert_eq!(ours.targets[0].regions, theirs.targets[0].regions);
            let aggregation = theirs.intervals.expect("intervals").aggregation;
            for (ours, theirs) in ours.schemes.iter().zip(&theirs.schemes) {
                assert_eq!(ours.action, theirs.action);
                assert_eq!(ours.destinations, theirs.destinations);
                assert_eq!(ours.quota, theirs.quota);
                assert_eq!(ours.filters, theirs.filters);
                // Ages are compared in the kernel's own units.
                let age = |age: Age| match age {
                    Age::Intervals(count) => u64::from(count),
                    Age::Time(time) => (time.0 / aggregation.0).min(u32::MAX.into()),
                };
                let ages =
                    |scheme: &Scheme| (age(scheme.pattern.age.min), age(scheme.pattern.age.max));
                assert_eq!(ages(ours), ages(theirs));
            }
        }
    }

    #[test]
    fn what_somebody_runs_is_told_and_can_be_had_as_damos_file() {
        let report = reported(tree().path());
        assert_eq!(
            report.text(),
            "kdamond 0: off; vaddr of 4242, looks every 5 ms, counts for 100 ms; pageout\n"
        );
        let json = to_json(&report.configuration());
        let read = load(&json, ConfigFormat::Json).expect("damo's own format");
        assert_eq!(read.contexts[0].targets[0].pid, Some(4242));
        let schemes = &report.configuration().contexts[0].schemes;
        assert_eq!(read.contexts[0].schemes, *schemes);
        let none = reported(Path::new("/nowhere"));
        assert!(none.text().contains("no DAMON"));
    }
}
