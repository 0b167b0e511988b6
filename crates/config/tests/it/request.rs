//! Sessions of requests and files together.

use isotherm_config::{
    ActingRequest, ConfigFormat, ContextConfig, MemoryGoal, Method, MonitorSpec, Monitoring,
    ProcessSpec, Request, RequestError, SessionSpec, TargetSpec, ThpPolicy, load,
};
use isotherm_engine::{Attributes, Nanos};
use isotherm_policy::guard::{ACT_BUDGET, GuardLimits, MAX_SLOWDOWN};

/// Returns contexts, one a kdamond; each has a process, a pause flag and further keys.
fn file(contexts: &[(u32, bool, &str)]) -> Vec<ContextConfig> {
    let contexts = contexts.iter().map(|(pid, paused, more)| {
        format!(
            r#"{{"contexts": [{{"ops": "vaddr", "targets": [{{"pid": {pid}, "regions": []}}],
                "pause": {paused}, "schemes": [{{"action": "stat", "access_pattern": {{
                "sz_bytes": {{"min": "0", "max": "max"}}, "nr_accesses": {{"min": "0 %", "max":
                "100 %"}}, "age": {{"min": "0", "max": "max"}}}}}}] {more}}}]}}"#
        )
    });
    let contexts: Vec<String> = contexts.collect();
    let text = format!(r#"{{"kdamonds": [{}]}}"#, contexts.join(", "));
    load(&text, ConfigFormat::Detect).expect("fine").contexts
}

fn pid(pid: u32) -> TargetSpec {
    TargetSpec::named(vec![ProcessSpec::Pid(pid)])
}

fn acting(acting: ActingRequest) -> Request {
    Request {
        acting,
        ..Request::default()
    }
}

fn preset(name: &str) -> ActingRequest {
    ActingRequest {
        presets: vec![name.into()],
        ..ActingRequest::default()
    }
}

fn budgets(spec: &SessionSpec) -> Vec<Option<f64>> {
    let budgets = spec.contexts.iter().map(|of| of.monitor.cpu_budget());
    budgets.collect()
}

#[test]
fn each_context_has_its_targets_and_its_own_part_of_the_budget() {
    let own = r#", "isotherm": {"cpu_budget": "3 %"}"#;
    let contexts = file(&[(10, false, ""), (11, true, own), (12, false, "")]);
    let spec = Request::default().act(&contexts, None).expect("fine");
    let said: Vec<_> = spec
        .contexts
        .iter()
        .map(|context| {
            let acting = context.acting.as_ref().expect("it acts");
            (context.name.as_deref(), &context.targets, acting.is_paused)
        })
        .collect();
    let wanted = [
        (Some("kdamond 0"), &pid(10), false),
        (Some("kdamond 1"), &pid(11), true),
        (Some("kdamond 2"), &pid(12), false),
    ];
    assert_eq!(said, wanted);
    assert_eq!(budgets(&spec), [Some(0.005), Some(0.03), Some(0.005)]);
    let act_budget = spec.contexts[0].acting.as_ref().and_then(|a| a.act_budget);
    assert_eq!(act_budget, Some(ACT_BUDGET / 3.0));
    let given = Request {
        monitoring: Monitoring {
            cpu_budget: Some(0.04),
            ..Monitoring::default()
        },
        ..Request::default()
    };
    let both = file(&[(10, false, ""), (11, false, own)]);
    let spec = given.act(&both, None).expect("fine");
    assert_eq!(budgets(&spec), [Some(0.02), Some(0.02)]);
    let one = Request::default().act(&file(&[(10, true, "")]), None);
    let one = one.expect("fine");
    assert!(one.contexts[0].name.is_none());
    assert_eq!(budgets(&one), [Some(0.01)]);
}

#[test]
fn what_could_be_meant_for_any_of_several_contexts_is_refused() {
    let targets = |targets| Request {
        targets: Some(targets),
        ..Request::default()
    };
    let contexts = file(&[(10, false, ""), (11, false, "")]);
    for (request, flag) in [
        (targets(pid(9)), "--pid"),
        (targets(TargetSpec::all_physical()), "--physical"),
        (acting(preset("prcl")), "--preset"),
        (
            acting(ActingRequest {
                progress_command: Some("x".into()),
                ..ActingRequest::default()
            }),
            "--progress-cmd",
        ),
    ] {
        let error = request.act(&contexts, None).expect_err("refused");
        assert!(error.to_string().contains(flag), "{error}");
    }
}

#[test]
fn a_file_of_damos_says_how_to_watch_and_a_request_overrules_it() {
    let intervals = r#", "intervals": {"sample_us": "10 ms", "aggr_us": "200 ms", "ops_update_us": "2 s"},
        "nr_regions": {"min": 20, "max": 500}"#;
    let monitor = |more: &str, monitoring: Monitoring| {
        let request = Request {
            monitoring,
            ..Request::default()
        };
        let spec = request.act(&file(&[(1, false, more)]), None)?;
        Ok::<_, RequestError>(spec.contexts[0].monitor)
    };
    let nothing = Monitoring::default();
    let MonitorSpec::Regions(attributes) = monitor(intervals, nothing).expect("fine") else {
        panic!("damo's way is by regions");
    };
    let wanted = Attributes {
        sample_interval: Nanos::from_millis(10),
        aggregation_interval: Nanos::from_millis(200),
        update_interval: Nanos::from_millis(2000),
        min_nr_regions: 20,
        max_nr_regions: 500,
        seed: 0,
        ..Attributes::default()
    };
    assert_eq!(attributes, wanted);
    let by_budget = Monitoring {
        cpu_budget: Some(0.02),
        ..nothing
    };
    assert!(
        matches!(monitor(intervals, by_budget), Ok(MonitorSpec::Tables(a))
            if (a.cpu_budget - 0.02).abs() < 1e-9 && a.max_nr_regions == 500)
    );
    let tables = format!(r#"{intervals}, "isotherm": {{"method": "tables"}}"#);
    let by_tables = monitor(&tables, nothing);
    assert!(matches!(by_tables, Ok(MonitorSpec::Tables(_))));
    let pages = r#", "isotherm": {"method": "pages"}"#;
    assert!(matches!(monitor(pages, nothing), Ok(MonitorSpec::Pages(_))));
    let both = Monitoring {
        sample_interval: Some(Nanos::from_millis(5)),
        ..by_budget
    };
    let faithful = r#", "isotherm": {"method": "faithful", "cpu_budget": "1 %"}"#;
    for (more, monitoring) in [("", both), (faithful, nothing)] {
        let refused = monitor(more, monitoring);
        assert!(matches!(refused, Err(RequestError::BudgetOrIntervals)));
    }
    let by_page = Monitoring {
        method: Some(Method::Pages),
        ..by_budget
    };
    let refused = monitor("", by_page);
    assert!(matches!(refused, Err(RequestError::PagesHaveNoBudget)));
}

#[test]
fn there_is_a_guard_unless_it_is_refused() {
    let limits = |request: ActingRequest| {
        let spec = acting(request).act(&file(&[(1, false, "")]), None);
        let spec = spec.expect("fine");
        let acting = spec.contexts[0].acting.clone().expect("it acts");
        (acting.limits, acting.act_budget)
    };
    let (by_default, budget) = limits(ActingRequest::default());
    assert_eq!(by_default.max_slowdown, Some(MAX_SLOWDOWN));
    assert_eq!(budget, Some(ACT_BUDGET));
    let (only_refaults, _) = limits(ActingRequest {
        limits: GuardLimits {
            max_refaults_per_s: Some(5.0),
            ..GuardLimits::default()
        },
        ..ActingRequest::default()
    });
    assert_eq!(only_refaults.max_slowdown, None);
    let none = ActingRequest {
        no_guard: true,
        ..ActingRequest::default()
    };
    let (limits_of_none, budget) = limits(none.clone());
    assert!(!limits_of_none.is_limited() && budget.is_none());
    let (_, budget) = limits(ActingRequest {
        act_budget: Some(0.2),
        ..none
    });
    assert_eq!(budget, Some(0.2));
}

#[test]
fn huge_pages_may_waste_a_tenth_unless_more_or_less_is_said() {
    let max_waste = |said: Option<f64>, no_guard, own: &str| {
        let request = acting(ActingRequest {
            max_waste: said,
            no_guard,
            ..ActingRequest::default()
        });
        let spec = request.act(&file(&[(1, false, own)]), None).expect("fine");
        spec.contexts[0].acting.as_ref().and_then(|a| a.max_waste)
    };
    assert_eq!(max_waste(None, false, ""), Some(0.1));
    assert_eq!(max_waste(None, true, ""), None);
    assert_eq!(max_waste(Some(0.02), true, ""), Some(0.02));
}

#[test]
fn presets_of_physical_memory_watch_it_unless_processes_are_named() {
    let request = |targets| Request {
        targets,
        ..acting(preset("pprcl"))
    };
    let spec = request(None).act(&[], None).expect("fine");
    assert!(spec.contexts[0].targets.is_physical());
    assert!(matches!(spec.contexts[0].monitor, MonitorSpec::Tables(_)));
    let sampled = Request {
        monitoring: Monitoring {
            sample_interval: Some(Nanos::from_millis(5)),
            ..Monitoring::default()
        },
        ..request(None)
    };
    let sampled = sampled.act(&[], None).expect("fine");
    assert!(sampled.contexts[0].samples_frames() && !spec.contexts[0].samples_frames());
    let left_out = Request {
        exclude: vec![ProcessSpec::Name("sshd".into())],
        ..request(None)
    };
    let left_out = left_out.act(&[], None).expect("fine");
    assert!(matches!(&left_out.contexts[0].targets,
        TargetSpec::Physical { exclude, .. } if exclude.len() == 1));
    let spec = request(Some(pid(4))).act(&[], None).expect("fine");
    assert_eq!(spec.contexts[0].targets, pid(4));
    let without_target = Request::default().watch();
    assert!(matches!(without_target, Err(RequestError::NoTarget)));
    let idle = Request {
        acting: ActingRequest::default(),
        ..request(Some(pid(4)))
    };
    let idle = idle.act(&[], None);
    assert!(matches!(idle, Err(RequestError::NoScheme)));
}

#[test]
fn a_goal_is_for_paging_out() {
    let request = |name: &str| Request {
        targets: Some(pid(4)),
        ..acting(ActingRequest {
            goal: Some(MemoryGoal::Save(1 << 30)),
            ..preset(name)
        })
    };
    let spec = request("prcl").act(&[], None).expect("fine");
    let acting = spec.contexts[0].acting.as_ref().expect("it acts");
    assert_eq!(acting.goal, Some(MemoryGoal::Save(1 << 30)));
    let refused = request("ethp").act(&[], None);
    assert!(matches!(refused, Err(RequestError::GoalIsForPageout)));
}

#[test]
fn a_session_is_the_same_when_it_is_read_back() {
    let spec = Request {
        targets: Some(TargetSpec::Command {
            command: vec!["sleep".into(), "1".into()],
            children: false,
            is_silent: false,
            thp: ThpPolicy::Advised,
        }),
        children: true,
        acting: ActingRequest {
            presets: vec!["prcl".into(), "ethp".into()],
            ..ActingRequest::default()
        },
        ..Request::default()
    };
    let spec = spec.act(&[], None).expect("fine");
    assert!(spec.contexts[0].targets.follows_children());
    let text = serde_json::to_string(&spec).expect("plain data");
    let back: SessionSpec = serde_json::from_str(&text).expect("as it was written");
    assert_eq!(back, spec);
}
