//! Tests of claims on trees of every version.

use std::path::Path;

use isotherm_engine::damon::{AttributeProbe, KernelFilter};
use isotherm_engine::{AddressRange, Intervals, KernelSettings, Nanos, TargetId};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, Filter, FilterKind, Frequency, Goal,
    GoalMetric, OpsFilter, Quota, Scheme, Tuner, WatermarkMetric, Watermarks,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::fake::{FakeTree, Level};
use crate::writes::{Layout, values};
use crate::{
    Claim, DamonContext, DamonError, DamonTarget, Operations, Tree, TreePath, read_kdamonds,
};

const BOOT: &str = "one";
const PID: u32 = 7;

fn notes() -> TempDir {
    tempfile::tempdir().expect("a directory for notes")
}

fn take(tree: &FakeTree, notes: &Path) -> Result<Claim<FakeTree>, DamonError> {
    Claim::take(tree.clone(), notes, BOOT, Vec::new())
}

/// Returns a context of one process, with DAMON's default intervals.
fn context(schemes: Vec<Scheme>) -> DamonContext {
    DamonContext {
        operations: Operations::Vaddr,
        targets: vec![DamonTarget {
            pid: Some(PID),
            ..DamonTarget::default()
        }],
        intervals: Intervals {
            sample: Nanos::from_millis(5),
            aggregation: Nanos::from_millis(100),
            update: Nanos::from_millis(1000),
        },
        intervals_goal: None,
        nr_regions: Bounds { min: 10, max: 1000 },
        settings: KernelSettings::default(),
        is_paused: false,
        schemes,
    }
}

fn pageout() -> Scheme {
    let mut scheme = Scheme::new(AccessPattern::ANY, Action::Pageout);
    scheme.pattern.nr_accesses.max = Frequency::Samples(0);
    scheme.pattern.age.min = Age::Time(Nanos::from_millis(5_000));
    scheme.quota.bytes = 1 << 30;
    scheme.quota.reset_interval = Nanos::from_millis(1000);
    scheme
}

/// Sets up a configuration of another user that is not turned on.
fn leftover(tree: &FakeTree) {
    let mut tree = tree.clone();
    let mut set = |path: &str, value: &str| {
        let path = TreePath::kdamonds().join(path);
        tree.write(&path, value)
            .expect("a value that the tree takes");
    };
    set("nr_kdamonds", "2");
    set("1/contexts/nr_contexts", "1");
    set("1/contexts/0/operations", "paddr");
    set("1/contexts/0/monitoring_attrs/intervals/sample_us", "7000");
    set("1/contexts/0/targets/nr_targets", "1");
    set("1/contexts/0/targets/0/regions/nr_regions", "2");
    set("1/contexts/0/targets/0/regions/1/end", "4096");
    set("1/contexts/0/schemes/nr_schemes", "1");
    set("1/contexts/0/schemes/0/action", "cold");
}

#[test]
fn on_every_version_it_runs_and_leaves_the_tree_as_it_was() {
    for level in Level::ALL {
        let (tree, notes) = (FakeTree::new(level, &[PID]), notes());
        leftover(&tree);
        let before = tree.texts();
        let mut claim = take(&tree, notes.path()).expect("nobody uses it");
        claim.start(&[context(vec![pageout()])]).expect("it starts");
        assert!(tree.is_on(0), "{level:?}");
        assert_eq!(claim.stats(0).expect("counters").len(), 1);
        assert_eq!(claim.pid(0).expect("a process id"), Some(1000));
        let texts = tree.texts();
        let scheme = "kdamonds/0/contexts/0/schemes/0";
        let check = |file: &str, text: &str| {
            let found = &texts[&format!("{scheme}/{file}")];
            assert_eq!(found, text, "{level:?}: {file}");
        };
        check("action", "pageout");
        check("access_pattern/age/min", "50");
        check("access_pattern/nr_accesses/max", "0");
        check("quotas/bytes", "1073741824");
        assert_eq!(claim.release().expect("it is unchanged"), [""; 0]);
        assert!(!tree.is_on(0));
        assert_eq!(tree.texts(), before, "{level:?}");
        assert!(!notes.path().join("kernel-damon.json").exists());
    }
}

/// Returns a context that uses all features of a new kernel.
fn ambitious() -> DamonContext {
    let mut scheme = pageout();
    scheme.action = Action::MigrateCold;
    let to = |node, weight| Destination { node, weight };
    scheme.destinations = vec![to(0, 2), to(1, 1)];
    scheme.apply_interval = Nanos::from_millis(500);
    scheme.max_nr_snapshots = 10;
    scheme.quota.tuner = Tuner::Temporal;
    scheme.quota.goals = vec![Goal {
        metric: GoalMetric::NodeMemFreeBp { node: 0 },
        target_value: 50,
        current_value: 0,
        complement: false,
    }];
    let ops = |ops| FilterKind::Ops(ops);
    scheme.filters = [
        (ops(OpsFilter::Young), true, false),
        (ops(OpsFilter::Anon), true, true),
        (FilterKind::Target(TargetId(0)), true, true),
    ]
    .map(|(kind, matching, allow)| Filter {
        kind,
        matching,
        allow,
    })
    .to_vec();
    scheme.watermarks = Some(Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: Nanos::from_millis(5_000),
        high_permil: 500,
        mid_permil: 400,
        low_permil: 200,
    });
    let mut context = context(vec![scheme]);
    context.settings.probes = vec![AttributeProbe {
        filters: vec![KernelFilter {
            kind: "memcg".to_owned(),
            matching: true,
            allow: true,
            details: vec![("path".to_owned(), "/a".to_owned())],
        }],
        ..AttributeProbe::default()
    }];
    context
}

#[test]
fn all_that_a_kernel_lacks_is_told_at_once_and_nothing_runs() {
    let check = |level, wanted: &[&str]| {
        let (tree, notes) = (FakeTree::new(level, &[PID]), notes());
        leftover(&tree);
        let before = tree.texts();
        let mut claim = take(&tree, notes.path()).expect("nobody uses it");
        let lacks = match claim.start(&[ambitious()]) {
            Ok(()) => Vec::new(),
            Err(DamonError::Lacks(lacks)) => {
                assert_eq!(tree.texts(), before, "{level:?}");
                lacks
            }
            Err(error) => panic!("{error}"),
        };
        let asked: Vec<&str> = lacks
            .iter()
            .map(|lack| lack.asked_by.trim_start_matches("scheme 0: "))
            .collect();
        assert_eq!(asked, wanted, "{level:?}");
    };
    check(Level(7, 2), &[]);
    check(
        Level(6, 12),
        &[
            "action `migrate_cold`",
            "filters by page",
            "`probes`",
            "several nodes to move to",
            "a largest number of snapshots",
            "quota tuner `temporal`",
            "quota goal `node_mem_free_bp`",
            "filter `anon` that allows",
            "filter `target` that allows",
        ],
    );
}

#[test]
fn what_somebody_runs_is_left_alone() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    leftover(&tree);
    let state = TreePath::kdamond(1).join("state");
    let targets = TreePath::kdamond(1).join("contexts/0/targets/nr_targets");
    let mut theirs = tree.clone();
    theirs.write(&targets, "0").expect("a number");
    theirs.write(&state, "on").expect("it can be turned on");
    let nr_writes = tree.nr_writes();
    let error = take(&tree, notes.path()).expect_err("it runs");
    assert!(
        matches!(&error, DamonError::InUse { by } if by.contains("kdamond 1 (process 1000)")),
        "{error}"
    );
    assert_eq!(tree.nr_writes(), nr_writes);
    assert!(tree.is_on(1));
}

#[test]
fn while_another_program_reads_counters_ours_are_waited_for() {
    let (tree, notes) = (FakeTree::new(Level(7, 2), &[PID]), notes());
    let mut claim = take(&tree, notes.path()).expect("a free tree");
    claim.start(&[context(vec![pageout()])]).expect("it runs");
    // These retries take longer than any holder keeps a file's lock.
    tree.keep_busy(100);
    assert_eq!(claim.stats(0).expect("counters").len(), 1);
    tree.keep_busy(100);
    assert_eq!(claim.release().expect("the tree as it was"), [""; 0]);
    assert!(!tree.is_on(0));
}

#[test]
fn a_module_that_shares_with_nobody_is_named() {
    let (tree, notes) = (FakeTree::new(Level(6, 17), &[PID]), notes());
    tree.start_module();
    let before = tree.texts();
    let stat = crate::Module {
        name: "DAMON_STAT",
        parameters: [("enabled".to_owned(), "Y".to_owned())].into(),
    };
    let mut claim = Claim::take(tree.clone(), notes.path(), BOOT, vec![stat])
        .expect("no kdamond of sysfs runs");
    let started = claim.start(&[context(Vec::new())]);
    let error = started.expect_err("the module has it");
    assert!(error.to_string().contains("DAMON_STAT"), "{error}");
    assert_eq!(tree.texts(), before);
}

#[test]
fn only_one_of_us_has_it() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    let first = take(&tree, notes.path()).expect("nobody uses it");
    let error = take(&tree, notes.path()).expect_err("the first has it");
    let us = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&us), "{error}");
    drop(first);
    take(&tree, notes.path()).expect("nobody uses it any more");
}

#[test]
fn a_kill_at_any_moment_is_put_in_order_by_the_next() {
    for level in [Level(5, 18), Level(6, 12), Level(7, 2)] {
        for nr_writes in 0.. {
            let (tree, notes) = (FakeTree::new(level, &[PID]), notes());
            leftover(&tree);
            let before = tree.texts();
            let mut claim = take(&tree, notes.path()).expect("nobody uses it");
            tree.fail_after(Some(nr_writes));
            let is_whole = claim.start(&[context(vec![pageout()])]).is_ok();
            // The restoration fails, too.
            tree.fail_after(Some(0));
            drop(claim);
            tree.fail_after(None);
            let next = take(&tree, notes.path())
                .unwrap_or_else(|error| panic!("{level:?} {nr_writes}: {error}"));
            assert!(!tree.is_on(0), "{level:?} {nr_writes}");
            assert_eq!(tree.texts(), before, "{level:?} {nr_writes}");
            drop(next);
            assert_eq!(tree.texts(), before, "{level:?} {nr_writes}");
            if is_whole {
                assert!(nr_writes > 20);
                break;
            }
        }
    }
}

/// Runs a session from its claim to its end: checked, turned on, committed with another process, restarted.
fn live(tree: &FakeTree, notes: &Path) {
    let contexts = [context(vec![pageout()]), context(Vec::new())];
    let mut more = contexts[0].clone();
    more.targets.push(more.targets[0].clone());
    let mut claim = take(tree, notes).expect("nobody uses it");
    claim.check(&contexts).expect("nothing special");
    claim.start(&contexts).expect("it starts");
    claim.commit(0, &more).expect("a commit");
    claim.restart(1, &more).expect("another one");
    claim.release().expect("it is unchanged");
}

#[test]
fn a_kill_before_any_write_of_a_whole_life_is_put_in_order_by_the_next() {
    for with_leftover in [false, true] {
        for nr_write in 0.. {
            let (tree, first) = (FakeTree::new(Level(6, 12), &[PID]), notes());
            if with_leftover {
                leftover(&tree);
            }
            let before = tree.texts();
            let note = first.path().join("kernel-damon.json");
            tree.keep_at(tree.nr_writes() + nr_write, &note);
            live(&tree, first.path());
            assert_eq!(tree.texts(), before);
            let Some((tree, note)) = tree.kept() else {
                assert!(nr_write > 100, "{nr_write}");
                break;
            };
            let second = notes();
            if let Some(note) = note {
                std::fs::write(second.path().join("kernel-damon.json"), note).expect("a file");
            }
            let next = take(&tree, second.path())
                .unwrap_or_else(|error| panic!("{with_leftover} {nr_write}: {error}"));
            assert_eq!(tree.texts(), before, "{with_leftover} {nr_write}");
            drop(next);
            assert_eq!(tree.texts(), before, "{with_leftover} {nr_write}");
        }
    }
}

#[test]
fn what_somebody_else_has_changed_is_left_to_them() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    let mut claim = take(&tree, notes.path()).expect("nobody uses it");
    claim.start(&[context(vec![pageout()])]).expect("it starts");
    let action = TreePath::kdamond(0).join("contexts/0/schemes/0/action");
    tree.clone().write(&action, "cold").expect("an action");
    let nr_writes = tree.nr_writes();
    for error in [
        claim.commit(0, &context(Vec::new())),
        claim.restart(0, &context(Vec::new())),
    ] {
        let error = error.expect_err("it was changed");
        assert!(matches!(error, DamonError::Changed { .. }), "{error}");
    }
    let error = claim.release().expect_err("it was changed");
    let said = "schemes/0/action is cold, not pageout";
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(tree.nr_writes(), nr_writes);
    // The next claim does not mistake it for our own leftover.
    let error = take(&tree, notes.path()).expect_err("it runs, and is not ours");
    assert!(matches!(error, DamonError::InUse { .. }), "{error}");
}

#[test]
fn regions_are_read_in_order_and_those_that_were_acted_on_are_young() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    tree.set_regions(&[
        (4096, 8192, 3, 9),
        (8192, 16384, 0, 60),
        (16384, 20480, 0, 70),
    ]);
    let mut claim = take(&tree, notes.path()).expect("nobody uses it");
    let stat = Scheme::new(AccessPattern::ANY, Action::Stat);
    let contexts = [context(vec![stat, pageout()])];
    claim.start(&contexts).expect("it starts");
    let regions = claim.tried_regions(0, 0).expect("regions");
    let reported: Vec<(u64, u32, u32)> = regions
        .iter()
        .map(|region| (region.range.start, region.nr_accesses, region.age))
        .collect();
    assert_eq!(reported, [(4096, 3, 9), (8192, 0, 60), (16384, 0, 70)]);
    assert_eq!(tree.regions()[1], (8192, 16384, 0, 0));
    // The regions are cleared from the tree.
    let mut paths = tree.texts().into_keys();
    assert!(!paths.any(|path| path.contains("tried_regions/0")));
}

#[test]
fn a_commit_replaces_all_and_one_that_fails_nothing() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    let before = tree.texts();
    let mut claim = take(&tree, notes.path()).expect("nobody uses it");
    claim.start(&[context(vec![pageout()])]).expect("it starts");
    let stat = Scheme::new(AccessPattern::ANY, Action::Stat);
    let mut changed = context(vec![pageout(), stat]);
    changed.nr_regions.max = 500;
    claim.commit(0, &changed).expect("a commit");
    assert_eq!(tree.nr_commits(), 1);
    assert_eq!(claim.stats(0).expect("counters").len(), 2);
    claim.commit(0, &ambitious()).expect_err("too much for it");
    assert_eq!(tree.nr_commits(), 1);
    claim.release().expect("it was ours all the time");
    assert_eq!(tree.texts(), before);
}

#[test]
fn a_kdamond_without_targets_ends() {
    let (tree, notes) = (FakeTree::new(Level(6, 12), &[PID]), notes());
    let mut claim = take(&tree, notes.path()).expect("nobody uses it");
    claim.start(&[context(Vec::new())]).expect("it starts");
    tree.end_process(PID);
    assert!(!claim.is_on(0).expect("its state"));
    claim.release().expect("it is unchanged");
    let mut claim = take(&tree, notes.path()).expect("nobody uses it");
    let started = claim.start(&[context(Vec::new())]);
    let error = started.expect_err("the process is gone");
    let said = "is each process still there?";
    assert!(error.to_string().contains(said), "{error}");
}

prop_compose! {
    fn any_scheme()(
        action in prop::sample::select(Action::ALL.to_vec()),
        sizes in (0_u64..1 << 40, 0_u64..=u64::MAX),
        accesses in (0_u32..30, 0.0_f64..=100.0),
        ages in (0_u64..1 << 40, 0_u32..=u32::MAX),
        bytes in any::<u64>(),
        kinds in prop::collection::vec((0_usize..8, any::<bool>(), any::<bool>()), 0..4),
        nodes in prop::collection::vec(0_u32..4, 0..3),
        nr_goals in 0_usize..3,
    ) -> Scheme {
        let mut scheme = Scheme::new(AccessPattern::ANY, action);
        scheme.pattern.size = Bounds { min: sizes.0, max: sizes.1.max(sizes.0) };
        scheme.pattern.nr_accesses = Bounds { min: Frequency::Samples(accesses.0), max: Frequency::Percent(accesses.1) };
        scheme.pattern.age = Bounds { min: Age::Time(Nanos(ages.0)), max: Age::Intervals(ages.1) };
        scheme.quota = Quota { bytes, ..Quota::default() };
        scheme.quota.goals = (0..nr_goals).map(|at| Goal {
            metric: if at == 0 { GoalMetric::SomeMemPsiUs } else { GoalMetric::UserInput },
            target_value: 100,
            current_value: 5,
            complement: false,
        }).collect();
        scheme.destinations = nodes.iter().map(|node| Destination { node: *node, weight: 1 }).collect();
        scheme.filters = kinds.into_iter().map(|(kind, matching, allow)| Filter {
            kind: match kind {
                0 => FilterKind::Addr(AddressRange::new(4096, 8192)),
                1 => FilterKind::Target(TargetId(0)),
                2 => FilterKind::Ops(OpsFilter::Anon),
                3 => FilterKind::Ops(OpsFilter::Active),
                4 => FilterKind::Ops(OpsFilter::Memcg { path: "/a b/c".to_owned() }),
                5 => FilterKind::Ops(OpsFilter::Young),
                6 => FilterKind::Ops(OpsFilter::HugepageSize { min: 4096, max: 2 << 20 }),
                _ => FilterKind::Ops(OpsFilter::Unmapped),
            },
            matching,
            allow,
        }).collect();
        scheme
    }
}

proptest! {
    /// Any request either runs as configured, or reports the missing features; the tree is unchanged in the end.
    #[test]
    fn anything_that_is_accepted_is_there_and_anything_else_leaves_no_trace(
        level in prop::sample::select(Level::ALL.to_vec()),
        schemes in prop::collection::vec(any_scheme(), 0..3),
        is_physical in any::<bool>(),
        is_in_use in any::<bool>(),
    ) {
        let (tree, notes) = (FakeTree::new(level, &[PID]), notes());
        if is_in_use {
            leftover(&tree);
        }
        let before = tree.texts();
        let mut context = context(schemes);
        if is_physical {
            context.operations = Operations::Paddr;
            context.targets = vec![DamonTarget { regions: vec![AddressRange::new(0, 1 << 30)], ..DamonTarget::default() }];
        }
        let mut claim = take(&tree, notes.path()).expect("nobody uses it");
        match claim.start(std::slice::from_ref(&context)) {
            Ok(()) => {
                prop_assert!(tree.is_on(0));
                let kdamonds = read_kdamonds(&tree).expect("a tree of ours");
                let read = kdamonds[0].context.as_ref().expect("a context");
                prop_assert!(kdamonds[0].unknown.is_empty());
                // Shares and times are counts in the kernel: the context that was read must give the same writes.
                let kdamond = TreePath::kdamond(0);
                let layout = Layout::of(&tree, &kdamond);
                prop_assert_eq!(values(&kdamond, read, layout), values(&kdamond, &context, layout));
            }
            Err(DamonError::Lacks(lacks)) => {
                prop_assert!(!lacks.is_empty());
                prop_assert!(!tree.is_on(0));
                prop_assert_eq!(&tree.texts(), &before);
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
        drop(claim);
        prop_assert_eq!(tree.texts(), before);
    }

    /// A tree with any content is read, or gives an error: it never ends the program.
    #[test]
    fn no_tree_is_too_strange_to_be_read(
        at in 0_usize..80,
        text in prop_oneof![".{0,20}", "-?[0-9]{0,22}", Just("18446744073709551615".to_owned())],
    ) {
        let (tree, notes) = (FakeTree::new(Level(7, 2), &[PID]), notes());
        let mut claim = take(&tree, notes.path()).expect("nobody uses it");
        claim.start(&[ambitious()]).expect("it has all");
        tree.tamper(at, &text);
        let _ = read_kdamonds(&tree);
        let _ = claim.stats(0);
        let _ = claim.tried_regions(0, 0);
        let _ = claim.release();
    }

    /// A note that was tampered with causes no write outside of the tree.
    #[test]
    fn paths_from_a_note_stay_in_the_tree(text in ".{0,40}") {
        if let Some(path) = TreePath::parse(&text) {
            prop_assert!(!path.as_str().contains("..") && !path.as_str().starts_with('/'));
        }
    }
}
