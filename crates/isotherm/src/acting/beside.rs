//! What else works on this machine's memory and may get in the way: the kernel's own DAMON and its
//! huge page daemon, which are only read, never changed; and the other contexts of a configuration.

use std::fs;
use std::path::Path;

use isotherm_config::{ContextConfig, contrary_schemes};
use isotherm_engine::AddressRange;
use isotherm_engine::scheme::{Action, Scheme};

use super::Setup;
use crate::recorder::TargetArgs;

/// What the user should know, a sentence each.
pub(super) fn warnings(schemes: &[Scheme]) -> Vec<String> {
    warnings_below(Path::new("/sys"), schemes)
}

/// What who only watches should know.
pub(crate) fn warnings_of_watching() -> Vec<String> {
    of_damon(Path::new("/sys"))
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
    let has = |actions: &[Action]| schemes.iter().any(|s| actions.contains(&s.action));
    let setting = |name: &str| {
        fs::read_to_string(sys.join("kernel/mm/transparent_hugepage").join(name))
            .unwrap_or_default()
    };
    let is_always = setting("enabled").contains("[always]");
    if is_always && has(&[Action::Nohugepage]) {
        warnings.push(
            "the kernel gives huge pages wherever it can (transparent_hugepage/enabled is `always`), \
             also where nohugepage has just split one; `madvise` there leaves it to the schemes"
                .into(),
        );
    }
    let fills = setting("khugepaged/max_ptes_none");
    if is_always
        && has(&[Action::Pageout])
        && fills
            .trim()
            .parse::<u32>()
            .is_ok_and(|nr_empty| nr_empty > 0)
    {
        warnings.push(
            "khugepaged may fill again what was paged out of a huge page (khugepaged/max_ptes_none \
             is not 0)"
                .into(),
        );
    }
    warnings
}

/// What the user should know of contexts, with what they come to, that watch the same memory.
pub(super) fn between(contexts: &[ContextConfig], setups: &[Setup]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (second, (b, of_b)) in contexts.iter().zip(setups).enumerate() {
        for (a, of_a) in contexts.iter().zip(setups).take(second) {
            let Some(what) = shared(&of_a.context.targets, &of_b.context.targets) else {
                continue;
            };
            let name = |setup: &Setup| setup.context.name.clone().unwrap_or_default();
            let (one, other) = (name(of_a), name(of_b));
            warnings.push(format!(
                "{one} and {other} both watch {what}: each clears accessed bits that the other has yet \
                 to read, so memory may look more idle than it is"
            ));
            warnings.extend(contrary_schemes(a, b).into_iter().map(|(i, j)| {
                format!(
                    "scheme {j} of {other} (`{}`) undoes what scheme {i} of {one} (`{}`) does",
                    b.schemes[j].action, a.schemes[i].action
                )
            }));
        }
    }
    warnings
}

/// The memory that both watch, if they do.
fn shared(a: &TargetArgs, b: &TargetArgs) -> Option<String> {
    let meet = |a: &[AddressRange], b: &[AddressRange]| {
        let any = |a: &AddressRange| b.iter().any(|b| a.intersection(*b).is_some());
        a.is_empty() || b.is_empty() || a.iter().any(any)
    };
    match (a.physical, b.physical) {
        (true, true) => meet(&a.range, &b.range).then(|| "the same physical memory".to_owned()),
        (false, false) => {
            let pid = a.pid.iter().find(|pid| b.pid.contains(pid))?;
            meet(&a.range, &b.range).then(|| format!("process {pid}"))
        }
        _ => Some("the same memory, one by process and one by frame".to_owned()),
    }
}

/// The kernel's DAMON, where it runs.
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
        let args = |pid: &[u32], range: &[(u64, u64)], physical| TargetArgs {
            pid: pid
                .iter()
                .copied()
                .map(crate::recorder::ProcessArg::Pid)
                .collect(),
            range: range
                .iter()
                .map(|(a, b)| AddressRange::new(*a, *b))
                .collect(),
            physical,
            ..TargetArgs::default()
        };
        let check = |a: &TargetArgs, b: &TargetArgs, wanted: bool| {
            assert_eq!(shared(a, b).is_some(), wanted, "{a:?} and {b:?}");
            assert_eq!(shared(b, a).is_some(), wanted);
        };
        let low = args(&[], &[(0, 10)], true);
        check(&low, &args(&[], &[(10, 20)], true), false);
        check(&low, &args(&[], &[(9, 20)], true), true);
        check(&low, &args(&[], &[], true), true);
        check(&low, &args(&[1], &[(10, 20)], false), true);
        check(&args(&[1], &[], false), &args(&[2], &[], false), false);
        check(&args(&[1, 2], &[], false), &args(&[2], &[], false), true);
        let (left, right) = (args(&[1], &[(0, 5)], false), args(&[1], &[(5, 9)], false));
        check(&left, &right, false);
    }
}
