//! Reading of files that damo and HMSDK write (`fixtures/make.py` runs them), and writing them back.

use isotherm_config::{
    ConfigFormat, Configuration, Method, Operations, Request, load, preset, scheme_line, to_json,
    to_yaml,
};
use isotherm_engine::{AddressRange, IntervalsGoal, Nanos};
use isotherm_policy::scheme::{
    Action, Age, Bounds, Destination, FailCharge, FilterKind, Frequency, GoalMetric, OpsFilter,
    Scheme, Tuner, Weights,
};

const FIXTURES: [(&str, &str); 6] = [
    ("damo_prcl.json", include_str!("../fixtures/damo_prcl.json")),
    ("damo_ethp.yaml", include_str!("../fixtures/damo_ethp.yaml")),
    (
        "damo_ethp_raw.yaml",
        include_str!("../fixtures/damo_ethp_raw.yaml"),
    ),
    ("damo_tier.yaml", include_str!("../fixtures/damo_tier.yaml")),
    (
        "damo_filters.json",
        include_str!("../fixtures/damo_filters.json"),
    ),
    ("hmsdk.yaml", include_str!("../fixtures/hmsdk.yaml")),
];

fn read(text: &str) -> Configuration {
    match load(text, ConfigFormat::Detect) {
        Ok(configuration) => configuration,
        Err(problems) => panic!("{problems}\nin\n{text}"),
    }
}

fn schemes_of(name: &str) -> Vec<Scheme> {
    preset(name).expect("a preset").schemes
}

fn fixture(name: &str) -> Configuration {
    let (_, text) = FIXTURES
        .iter()
        .find(|(known, _)| *known == name)
        .expect("listed above");
    let configuration = read(text);
    assert_eq!(configuration.warnings, [], "{name}");
    configuration
}

#[test]
fn what_was_read_is_read_again_from_what_is_written() {
    for (name, _) in FIXTURES {
        let configuration = fixture(name);
        for written in [to_json(&configuration), to_yaml(&configuration)] {
            assert_eq!(read(&written), configuration, "{name} as\n{written}");
        }
    }
}

#[test]
fn what_damo_wrote_is_written_again_to_the_byte() {
    for (name, text) in FIXTURES {
        let written = match name {
            "damo_prcl.json" => to_json(&fixture(name)),
            "damo_tier.yaml" | "hmsdk.yaml" => to_yaml(&fixture(name)),
            // These have raw numbers, statistics, and "max" as 18,446,744,073,709,551,615 %.
            _ => continue,
        };
        // HMSDK ends its file with an empty line.
        assert_eq!(written.trim_end(), text.trim_end(), "{name}");
    }
}

#[test]
fn isotherms_own_keys_are_read_and_written() {
    let configuration = read(
        "isotherm: {cpu_budget: 1 %, act_budget: 7 %, max_waste: 4 %,\n           guard: {max_slowdown: 0.5 %, max_psi: 5%, max_refault_wait: 50 ms}}\n\
         kdamonds:\n\
         - contexts:\n  \
           - ops: vaddr\n    \
             targets: []\n    \
             isotherm:\n      \
               cpu_budget: 2 %\n      \
               method: pages\n      \
               max_nr_regions: 5,000\n      \
               guard: {max_refaults_per_s: 12.5}\n  \
           - {ops: paddr, targets: [], isotherm: {method: tables}}\n",
    );
    let own = configuration.contexts[0].own;
    assert_eq!(own.cpu_budget, Some(0.02));
    assert_eq!(own.method, Some(Method::Pages));
    assert_eq!(own.max_nr_regions, Some(5000));
    assert_eq!(own.guard.max_slowdown, Some(0.005));
    assert_eq!(own.guard.max_refaults_per_s, Some(12.5));
    assert_eq!(own.guard.max_psi, Some(0.05));
    let wait = Some(Nanos::from_millis(50));
    assert_eq!(
        (own.act_budget, own.max_waste, own.guard.max_refault_wait),
        (Some(0.07), Some(0.04), wait)
    );
    assert_eq!(configuration.contexts[1].own.cpu_budget, Some(0.01));
    assert_eq!(configuration.contexts[1].own.method, Some(Method::Tables));
    assert_eq!(read(&to_yaml(&configuration)), configuration);
    assert_eq!(read(&to_json(&configuration)), configuration);
}

#[test]
fn damos_prcl_is_read() {
    let configuration = fixture("damo_prcl.json");
    let context = &configuration.contexts[0];
    assert_eq!(context.operations, Operations::Vaddr);
    assert_eq!(context.targets[0].pid, Some(4242));
    assert_eq!(context.intervals_goal, None);
    assert_eq!(context.nr_regions, Some(Bounds::new(10, 1000)));
    let scheme = &context.schemes[0];
    assert_eq!(scheme.pattern, schemes_of("prcl")[0].pattern);
    assert_eq!(scheme.quota.time, Nanos::from_millis(10));
    assert_eq!(scheme.quota.bytes, 128 << 20);
    assert_eq!(scheme.quota.weights.age_permil, 70);
    let watermarks = scheme.watermarks.expect("given");
    assert_eq!(watermarks.interval, Nanos::from_millis(5000));
    assert_eq!((watermarks.high_permil, watermarks.low_permil), (500, 200));
}

#[test]
fn damos_ethp_is_as_published() {
    let ethp = schemes_of("ethp");
    let schemes = &fixture("damo_ethp.yaml").contexts[0].schemes;
    assert_eq!(schemes.len(), 2);
    for (scheme, ethp) in schemes.iter().zip(&ethp) {
        assert_eq!((scheme.action, scheme.pattern), (ethp.action, ethp.pattern));
    }
    // damo writes raw ages in nanoseconds and reads them as microseconds, and so does Isotherm.
    let raw = &fixture("damo_ethp_raw.yaml").contexts[0].schemes[1];
    let seconds = |s: u64| Age::Time(Nanos::from_millis(s * 1000));
    assert_eq!(raw.pattern.age.min, seconds(7000));
    assert_eq!(raw.pattern.age.max, Age::Time(Nanos(u64::MAX)));
}

#[test]
fn damos_tiering_is_read() {
    let configuration = fixture("damo_tier.yaml");
    let [demote, promote] = configuration.contexts.as_slice() else {
        panic!("two contexts");
    };
    assert_eq!((demote.kdamond, promote.kdamond), (0, 1));
    assert_eq!(demote.intervals_goal, Some(IntervalsGoal::default()));
    let second = AddressRange::new(8 << 30, 16 << 30);
    assert_eq!(demote.targets[0].regions[1], second);
    let scheme = &demote.schemes[0];
    assert_eq!(scheme.destinations, [Destination { node: 1, weight: 1 }]);
    assert_eq!(scheme.apply_interval, Nanos::from_millis(1000));
    let goals = &scheme.quota.goals;
    assert_eq!(goals[0].metric, GoalMetric::NodeMemFreeBp { node: 0 });
    assert_eq!(goals[0].target_value, 50);
    assert_eq!(goals[1].target_value, 10_000);
    assert_eq!(goals[2].target_value, 3000);
    assert_eq!(scheme.quota.tuner, Tuner::Temporal);
    let charge = FailCharge {
        numerator: 1,
        denominator: 10,
    };
    assert_eq!(scheme.quota.fail_charge, Some(charge));
    let shares = [(0, 70), (1, 30)].map(|(node, weight)| Destination { node, weight });
    assert_eq!(promote.schemes[0].destinations, shares);
}

#[test]
fn every_filter_of_damo_is_read() {
    let scheme = &fixture("damo_filters.json").contexts[0].schemes[0];
    assert_eq!(scheme.pattern.nr_accesses.min, Frequency::Samples(1));
    assert_eq!(scheme.pattern.age.max, Age::Intervals(50));
    let kinds: Vec<_> = scheme.filters.iter().map(|f| f.kind.clone()).collect();
    assert_eq!(kinds.len(), 8);
    let path = "/workloads/latency".to_owned();
    assert_eq!(kinds[2], FilterKind::Ops(OpsFilter::Memcg { path }));
    let (min, max) = (2 << 20, 4 << 20);
    let of_size = FilterKind::Ops(OpsFilter::HugepageSize { min, max });
    assert_eq!(kinds[4], of_size);
    assert_eq!(kinds[6], FilterKind::Addr(AddressRange::new(4096, 8192)));
    assert!(scheme.filters[0].allow && scheme.filters[0].matching);
    assert!(!scheme.filters[1].allow && !scheme.filters[1].matching);
}

#[test]
fn published_lines_are_their_presets() {
    // As printed in the DAMON evaluation, and as its first version had it.
    let ethp = [
        "min     max     5       max     min     max     hugepage",
        "2M      max     min     min     7s      max     nohugepage",
    ];
    let first = [
        "null null 5 null null null hugepage",
        "2M null 0 % 0 % 7s max nohugepage # ethp",
    ];
    for lines in [ethp, first] {
        let schemes: Vec<_> = lines.iter().map(|line| scheme_line(line)).collect();
        let wanted = schemes_of("ethp").into_iter().map(Ok);
        assert_eq!(schemes, wanted.collect::<Vec<_>>());
    }
    let prcl = "4K max     0       0       5s     max     pageout";
    assert_eq!(scheme_line(prcl).as_ref(), Ok(&schemes_of("pprcl")[0]));
    let reclaim = "4K max 0 0 120s max pageout 10ms 128M 1s 0 0 1 free_mem_rate 5s 500 400 200";
    let wanted = &schemes_of("damon_reclaim")[0];
    assert_eq!(scheme_line(reclaim).as_ref(), Ok(wanted));
}

#[test]
fn a_file_of_lines_is_one_context() {
    let text = "# format: <min/max size> <min/max frequency (0-100)> <min/max age> <action>\n\n\
                min max 5 max min max hugepage # hot\n2M max min min 7s max nohugepage\n";
    let configuration = read(text);
    assert_eq!(configuration.warnings, []);
    assert_eq!(configuration.contexts.len(), 1);
    let actions = configuration.contexts[0].schemes.iter().map(|s| s.action);
    assert!(actions.eq([Action::Hugepage, Action::Nohugepage]));
}

#[test]
fn what_damo_takes_by_schemes_is_one_context() {
    let pattern = "{sz_bytes: {min: 0, max: max}, nr_accesses: {min: 0 %, max: 0 %}, age: {min: 5 s, max: max}}";
    let configuration = read(&format!(
        "- action: pageout\n  access_pattern: {pattern}\n  \
           quotas: {{time_ms: 0, sz_bytes: 500 MiB, reset_interval_ms: 1 s}}\n  \
           core_filters: [{{filter_type: target, damon_target_idx: 0, matching: true, allow: true}}]\n  \
           ops_filters: [{{filter_type: anon, matching: true, allow: true}}]\n\
         - {{action: stat}}\n"
    ));
    let [context] = &configuration.contexts[..] else {
        panic!("{configuration:?}");
    };
    assert!(context.targets.is_empty() && context.schemes.len() == 2);
    let scheme = &context.schemes[0];
    assert_eq!(scheme.quota.bytes, 500 << 20);
    assert_eq!(scheme.quota.weights, Weights::default());
    assert_eq!(scheme.filters.len(), 2);
    let wrong = "- {action: pageout}\n- {action: what}\n";
    let problems = load(wrong, ConfigFormat::Detect).expect_err("refused");
    let problem = problems.to_string();
    assert!(problem.contains("[1].action"), "{problem}");
}

#[test]
fn the_services_sample_can_be_run_and_acts_on_nothing() {
    let sample = read(include_str!("../../../../contrib/isotherm.yaml"));
    assert_eq!(sample.warnings, []);
    let spec = Request::default().act(&sample.contexts, None);
    let spec = spec.expect("it names targets and schemes");
    for context in &spec.contexts {
        let actions = context.schemes().iter().map(|scheme| scheme.action);
        assert_eq!(actions.collect::<Vec<_>>(), [Action::Stat]);
    }
}

#[test]
fn damos_older_lines_have_a_quota_without_a_time() {
    let check = |words: &str, time, weights: Weights, is_watched: bool| {
        let line = format!("4K max 0 0 5s max PAGEOUT {words}");
        let scheme = scheme_line(&line).expect(&line);
        let quota = &scheme.quota;
        let ms = Nanos::from_millis;
        let found = (quota.time, quota.bytes, quota.reset_interval);
        assert_eq!(found, (ms(time), 500 << 20, ms(1000)), "{line}");
        assert_eq!(quota.weights, weights, "{line}");
        assert_eq!(scheme.watermarks.is_some(), is_watched, "{line}");
    };
    let watermarks = "FREE_MEM_RATE 5s 500 400 200";
    let default = Weights::default();
    let given = Weights {
        size_permil: 0,
        nr_accesses_permil: 3,
        age_permil: 7,
    };
    check("500M 1s", 0, default, false);
    check("500M 1s 0 3 7", 0, given, false);
    check(&format!("500M 1s 0 3 7 {watermarks}"), 0, given, true);
    check("10ms 500M 1s 0 3 7", 10, given, false);
    let all = format!("10ms 500M 1s 0 3 7 {watermarks}");
    check(&all, 10, given, true);
}

#[test]
fn damos_labels_and_units_beside_numbers_change_nothing() {
    let pattern = |nr_accesses: &str, age: &str| {
        format!(
            "- name: '0'\n  action: pageout\n  access_pattern: {{name: a, sz_bytes: {{min: 4K, max: max}}, \
             nr_accesses: {nr_accesses}, age: {age}}}\n  \
             filters: [{{name: '0', filter_type: anon, matching: true}}]\n"
        )
    };
    let wanted = pattern(
        "{min: 0, max: 3 samples}",
        "{min: 5 aggr_intervals, max: max}",
    );
    let units = pattern(
        "{min: 0, max: 3 samples}, nr_accesses_unit: samples",
        "{min: 5 aggr_intervals, max: max}, age_unit: aggr_intervals",
    );
    assert_eq!(read(&units), read(&wanted));
    let units = pattern(
        "{min: 0, max: 3}, nr_accesses_unit: percent",
        "{min: 5000, max: max}, age_unit: usec",
    );
    let same = pattern("{min: 0 percent, max: 3 %}", "{min: 5000 usec, max: max}");
    assert_eq!(read(&units), read(&same));
}
