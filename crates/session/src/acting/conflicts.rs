//! Other users of this machine's memory that may interfere: the kernel's own DAMON and its huge page daemon, which are
//! only read, never changed; and the other contexts of a configuration.

use std::fs;
use std::path::Path;

use isotherm_config::{ContextSpec, MonitorSpec, SessionSpec, TargetSpec, World, contrary_schemes};
use isotherm_engine::{AddressRange, Attributes};
use isotherm_linux::host::split_gives_back;
use isotherm_linux::{cgroup, swap};
use isotherm_policy::scheme::{Action, FilterKind, OpsFilter, Scheme};

use super::is_dry_run;

/// Returns warnings for the user of a session before it starts, one sentence each.
pub fn warnings(spec: &SessionSpec) -> Vec<String> {
    if spec.world != World::Linux {
        return of_kernel_schemes(spec);
    }
    let is_simulated = |context: &ContextSpec| context.targets == TargetSpec::Simulated;
    if spec.contexts.iter().all(is_simulated) {
        return Vec::new();
    }
    if !spec.acts() {
        return of_damon(Path::new("/sys"));
    }
    let schemes = all_schemes(spec);
    let mut warnings = warnings_below(Path::new("/sys"), &schemes);
    warnings.extend(for_want_of_swap(&schemes));
    warnings.extend(between(&spec.contexts));
    warnings.extend(without_group(spec));
    warnings
}

pub(crate) fn all_schemes(spec: &SessionSpec) -> Vec<Scheme> {
    let schemes = spec.contexts.iter().flat_map(|c| c.schemes().to_vec());
    schemes.collect()
}

/// Warns of memcg filters whose control group does not exist.
pub(crate) fn without_group(spec: &SessionSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, scheme) in all_schemes(spec).iter().enumerate() {
        for filter in &scheme.filters {
            let FilterKind::Ops(OpsFilter::Memcg { path }) = &filter.kind else {
                continue;
            };
            if let Err(error) = cgroup::find(Path::new(path)) {
                warnings.push(format!(
                    "scheme {i} ({}): its filter by control group matches nothing: {error}",
                    scheme.action
                ));
            }
        }
    }
    warnings
}

fn of_kernel_schemes(spec: &SessionSpec) -> Vec<String> {
    let schemes = all_schemes(spec);
    let mut warnings = between(&spec.contexts);
    if !schemes.is_empty() && !is_dry_run(spec) {
        warnings.extend(warnings_without_damon(Path::new("/sys"), &schemes));
        warnings.extend(for_want_of_swap(&schemes));
        warnings.extend(without_bound_on_waste(&schemes));
    }
    warnings
}

fn without_bound_on_waste(schemes: &[Scheme]) -> Option<String> {
    let is_huge = |scheme: &Scheme| scheme.action.makes_huge();
    schemes.iter().any(is_huge).then(|| {
        "kernel DAMON makes huge pages whatever memory they waste; `--world linux` keeps to --max-waste".into()
    })
}

pub(crate) fn for_want_of_swap(schemes: &[Scheme]) -> Vec<String> {
    let mut warnings = Vec::new();
    if swap::facts().total > 0 {
        return warnings;
    }
    if schemes.iter().any(|s| s.action == Action::Pageout) {
        warnings.push(
            "there is no swap, so anonymous memory cannot be paged out (files can); `isotherm swap \
             zram --size 4G` sets some up"
                .into(),
        );
    }
    let has_nohugepage = schemes.iter().any(|s| s.action == Action::Nohugepage);
    if has_nohugepage && !split_gives_back() {
        warnings.push(
            "nohugepage can give nothing back: before Linux 6.12 it pages out what huge pages hold and no program has \
             written, and there is no swap; `isotherm swap zram --size 1G` sets some up"
                .into(),
        );
    }
    warnings
}

fn of_damon(sys: &Path) -> Vec<String> {
    let warning = |what: String| {
        format!(
            "{what} is at work, too: it clears the accessed bits that are watched here, and may act on \
             the same memory"
        )
    };
    damon(sys).into_iter().map(warning).collect()
}

fn warnings_below(sys: &Path, schemes: &[Scheme]) -> Vec<String> {
    let mut warnings = of_damon(sys);
    warnings.extend(warnings_without_damon(sys, schemes));
    warnings
}

/// Returns the warnings that do not concern DAMON as another user of the memory.
fn warnings_without_damon(sys: &Path, schemes: &[Scheme]) -> Vec<String> {
    let mut warnings = Vec::new();
    let has = |actions: &[Action]| schemes.iter().any(|s| actions.contains(&s.action));
    let setting = |name: &str| {
        fs::read_to_string(sys.join("kernel/mm/transparent_hugepage").join(name))
            .unwrap_or_default()
    };
    let is_always = setting("enabled").contains("[always]");
    if is_always && has(&[Action::Nohugepage]) {
        warnings.push(
            "the kernel gives huge pages wherever it can (transparent_hugepage/enabled is `always`), \
             also where nohugepage has just split one; `madvise` there leaves it to the schemes, as \
             `run --thp advised -- COMMAND` does (Linux 6.18)"
                .into(),
        );
    }
    let nr_empty = setting("khugepaged/max_ptes_none").trim().parse::<u32>();
    if is_always && has(&[Action::Pageout]) && nr_empty.is_ok_and(|nr| nr > 0) {
        warnings.push(
            "khugepaged may fill again what was paged out of a huge page (khugepaged/max_ptes_none \
             is not 0)"
                .into(),
        );
    }
    warnings
}

/// Warns of contexts that watch the same memory.
fn between(contexts: &[ContextSpec]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (second, b) in contexts.iter().enumerate() {
        for (first, a) in contexts[..second].iter().enumerate() {
            let Some(what) = shared(a, b) else {
                continue;
            };
            let (one, other) = (a.name_or(first), b.name_or(second));
            warnings.push(format!(
                "{one} and {other} both watch {what}: each clears accessed bits that the other has yet \
                 to read, so memory may look more idle than it is"
            ));
            let contrary = contrary_schemes(a.schemes(), b.schemes(), nr_samples(a));
            warnings.extend(contrary.into_iter().map(|(i, j)| {
                format!(
                    "scheme {j} of {other} (`{}`) undoes what scheme {i} of {one} (`{}`) does",
                    b.schemes()[j].action,
                    a.schemes()[i].action
                )
            }));
        }
    }
    warnings
}

fn nr_samples(context: &ContextSpec) -> u32 {
    match &context.monitor {
        MonitorSpec::Regions(attributes) => attributes.nr_samples(),
        MonitorSpec::Tables(_) | MonitorSpec::Pages(_) => Attributes::default().nr_samples(),
    }
}

/// Returns the memory that both contexts watch, if there is any.
fn shared(a: &ContextSpec, b: &ContextSpec) -> Option<String> {
    let meet = |a: &[AddressRange], b: &[AddressRange]| {
        let any = |a: &AddressRange| b.iter().any(|b| a.intersection(*b).is_some());
        a.is_empty() || b.is_empty() || a.iter().any(any)
    };
    let is_shared = meet(&a.ranges, &b.ranges);
    match (a.targets.is_physical(), b.targets.is_physical()) {
        (true, true) => is_shared.then(|| "the same physical memory".to_owned()),
        (false, false) => {
            let mut of_a = a.targets.processes().iter();
            let process = of_a.find(|process| b.targets.processes().contains(process))?;
            is_shared.then(|| format!("process {process}"))
        }
        _ => Some("the same memory, one by process and one by frame".to_owned()),
    }
}

fn damon(sys: &Path) -> Vec<String> {
    let mut running = Vec::new();
    let kdamonds = sys.join("kernel/mm/damon/admin/kdamonds");
    for entry in fs::read_dir(kdamonds).into_iter().flatten().flatten() {
        let state = fs::read_to_string(entry.path().join("state")).unwrap_or_default();
        if state.trim() == "on" {
            let number = entry.file_name();
            running.push(format!("the kernel's kdamond {}", number.to_string_lossy()));
        }
    }
    for module in ["damon_reclaim", "damon_lru_sort", "damon_stat"] {
        let path = sys.join("module").join(module).join("parameters/enabled");
        let enabled = fs::read_to_string(path).unwrap_or_default();
        if enabled.trim() == "Y" {
            running.push(format!("the kernel's {module}"));
        }
    }
    running
}

#[cfg(test)]
mod tests {
    use isotherm_config::ProcessSpec;
    use isotherm_engine::KernelSettings;
    use isotherm_engine::table::TableAttributes;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn what_competes_is_named() {
        let sys = tempfile::tempdir().expect("a directory");
        let ethp = isotherm_config::preset("ethp").expect("a preset").schemes;
        let prcl = isotherm_config::preset("prcl").expect("a preset").schemes;
        let root = sys.path();
        assert_eq!(warnings_below(root, &ethp), Vec::<String>::new());
        write(root, "kernel/mm/damon/admin/kdamonds/0/state", "off\n");
        write(root, "kernel/mm/damon/admin/kdamonds/1/state", "on\n");
        write(root, "module/damon_stat/parameters/enabled", "N\n");
        write(root, "module/damon_reclaim/parameters/enabled", "Y\n");
        let thp = "kernel/mm/transparent_hugepage";
        write(root, &format!("{thp}/enabled"), "[always] madvise never\n");
        write(root, &format!("{thp}/khugepaged/max_ptes_none"), "511\n");
        let found = warnings_below(root, &ethp).join("\n");
        for word in ["kdamond 1", "damon_reclaim", "nohugepage"] {
            assert!(found.contains(word), "{word} is not in {found}");
        }
        assert!(!found.contains("kdamond 0") && !found.contains("damon_stat"));
        assert!(warnings_below(root, &prcl).join("").contains("khugepaged"));
        write(root, &format!("{thp}/enabled"), "always [madvise] never\n");
        assert!(!warnings_below(root, &ethp).join("").contains("nohugepage"));
    }

    #[test]
    fn memory_that_two_contexts_watch_is_found() {
        let range = |(a, b): &(u64, u64)| AddressRange::new(*a, *b);
        let physical = |ranges: &[(u64, u64)]| ContextSpec {
            name: None,
            targets: TargetSpec::all_physical(),
            ranges: ranges.iter().map(range).collect(),
            monitor: MonitorSpec::Tables(TableAttributes::default()),
            kernel: KernelSettings::default(),
            acting: None,
        };
        let processes = |pids: &[u32], ranges: &[(u64, u64)]| ContextSpec {
            targets: TargetSpec::named(pids.iter().copied().map(ProcessSpec::Pid).collect()),
            ..physical(ranges)
        };
        let check = |a: &ContextSpec, b: &ContextSpec, wanted: bool| {
            assert_eq!(shared(a, b).is_some(), wanted, "{a:?} and {b:?}");
            assert_eq!(shared(b, a).is_some(), wanted);
        };
        let low = physical(&[(0, 10)]);
        check(&low, &physical(&[(10, 20)]), false);
        check(&low, &physical(&[(9, 20)]), true);
        check(&low, &physical(&[]), true);
        check(&low, &processes(&[1], &[(10, 20)]), true);
        check(&processes(&[1], &[]), &processes(&[2], &[]), false);
        check(&processes(&[1, 2], &[]), &processes(&[2], &[]), true);
        let left = processes(&[1], &[(0, 5)]);
        check(&left, &processes(&[1], &[(5, 9)]), false);
    }
}
