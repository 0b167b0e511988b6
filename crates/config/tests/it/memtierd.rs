//! Reading of memtierd's policies. docs/reference/interop.md has an example of every key, which is tested as well.

use isotherm_config::{ConfigFormat, Configuration, TargetSpec, load, scheme_line, to_yaml};
use isotherm_engine::Nanos;
use isotherm_policy::scheme::Scheme;

const AGE: &str = include_str!("../fixtures/memtierd.yaml");

fn read(text: &str) -> Configuration {
    load(text, ConfigFormat::Detect).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn a_policy_by_age_is_schemes_for_each_group_with_parts_of_the_bandwidth() {
    let read_in = read(AGE);
    let wanted = [
        "4K max 0 0 60s max pageout 50M 5s",
        "4K max 0 0 15s max migrate_cold 2 50M 5s",
        "4K max 5 100 10s max migrate_hot 0 50M 5s",
    ];
    let wanted = wanted.map(|line| Scheme {
        apply_interval: Nanos::from_millis(5_000),
        ..scheme_line(line).expect("a scheme")
    });
    let groups = ["/sys/fs/cgroup/app", "/sys/fs/cgroup/other"];
    assert_eq!(read_in.contexts.len(), groups.len());
    for (context, group) in read_in.contexts.iter().zip(groups) {
        assert_eq!(context.schemes, wanted);
        assert_eq!(context.own_targets, Some(TargetSpec::Cgroup(group.into())));
    }
    assert_eq!(read(&to_yaml(&read_in)).contexts, read_in.contexts);
    let warnings: Vec<_> = read_in.warnings.iter().map(|w| w.place.line).collect();
    let lines = [5, 13, 15, 17, 22, 26, 28].map(Some);
    assert_eq!(warnings, lines, "{:?}", read_in.warnings);
}

#[test]
fn a_class_of_heat_is_the_time_in_which_memory_cools_to_it() {
    let text = "policy:\n  name: heat\n  config: |\n    {intervalms: 1000, pids: [1], tracker: {name: damon}, \
                heatmap: {heatmax: 1, heatretention: 0.8, heatclasses: 4}, \
                heatnumas: {3: [0], 0: [-1], 1: [1]}}\n";
    let schemes = &read(text).contexts[0].schemes;
    let idle_ms = |scheme: &Scheme| scheme.idle_for().map(|Nanos(ns)| ns / 1_000_000);
    let idle_ms: Vec<_> = schemes.iter().map(idle_ms).collect();
    // ln(1/4) / ln(0.8) and ln(1/2) / ln(0.8) seconds.
    assert_eq!(idle_ms, [Some(6_212), Some(3_106), None]);
    let [swapped, moved] = [0, 1].map(|at: usize| schemes[at].pattern.age);
    assert_eq!(moved.max, swapped.min);
}
