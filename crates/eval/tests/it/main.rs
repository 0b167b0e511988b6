//! Integration tests of the shipped experiments: their promises are checked without running them.

use isotherm_eval::published::PUBLISHED;
use isotherm_eval::{Experiment, estimate_s, plan};

const SHIPPED: &str = include_str!("../../../../experiments/shipped.toml");
const PARSEC: &str = include_str!("../../../../experiments/parsec.toml");
/// Configurations of the documents' evaluations, of DAMON_RECLAIM, and of prcl with the guard.
const CONFIGURATIONS: [&str; 10] = [
    "orig",
    "rec",
    "prec",
    "thp",
    "ethp",
    "prcl",
    "pprcl",
    "damon_reclaim",
    "ours",
    "tuned",
];

fn configurations(experiment: &Experiment) -> Vec<&str> {
    let all = experiment.configurations.iter();
    all.map(|configuration| configuration.name.as_str())
        .collect()
}

#[test]
fn the_shipped_experiment_takes_little_more_than_an_hour() {
    let experiment = Experiment::parse(SHIPPED).expect("it is right");
    assert_eq!(experiment.repeats, 3);
    assert_eq!(configurations(&experiment), CONFIGURATIONS);
    let seconds = estimate_s(&experiment, &plan(&experiment)).expect("all say how long they take");
    assert!(seconds <= 1.1 * 3600.0, "{seconds} s");
    let tuned = { experiment.configurations.iter() }.filter(|one| one.tune.is_some());
    assert_eq!(tuned.count(), 1, "without it, an hour");
}

#[test]
fn the_shipped_experiment_rotates_configurations_within_a_repeat() {
    let experiment = Experiment::parse(SHIPPED).expect("it is right");
    let nr = experiment.configurations.len();
    let runs = plan(&experiment);
    for turns in runs.chunks(nr) {
        assert!(turns.iter().all(|run| {
            (run.repeat, &run.workload.name) == (turns[0].repeat, &turns[0].workload.name)
        }));
        let names = turns.iter().map(|run| run.configuration.name.as_str());
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), nr);
    }
    let firsts = |workload: &str| -> Vec<&str> {
        let turns = runs.chunks(nr).map(|turns| &turns[0]);
        let turns = turns.filter(|run| run.workload.name == workload);
        turns.map(|run| run.configuration.name.as_str()).collect()
    };
    assert_eq!(firsts("x264"), ["orig", "rec", "prec"]);
    assert_eq!(firsts("vips"), ["rec", "prec", "thp"]);
}

#[test]
fn published_names_are_names_that_were_published() {
    let known = PUBLISHED[0].table().rows.into_iter().map(|r| r.name);
    let known: Vec<String> = known.collect();
    let shipped = Experiment::parse(SHIPPED).expect("it is right");
    let workloads = shipped.workloads.iter();
    let named: Vec<&String> = workloads.filter_map(|w| w.published.as_ref()).collect();
    assert_eq!(named, ["parsec3/x264", "parsec3/vips"]);
    assert!(named.iter().all(|name| known.contains(name)));
    let parsec = Experiment::parse(PARSEC).expect("it is right");
    let workloads = parsec.workloads.iter();
    let names = workloads.map(isotherm_eval::Workload::published_name);
    let names: Vec<&str> = names.collect();
    assert_eq!(names, known);
    assert_eq!(configurations(&parsec), CONFIGURATIONS[..9]);
    assert!(estimate_s(&parsec, &plan(&parsec)).is_some());
}

#[test]
fn what_tuning_is_held_against_can_be_read() {
    let regret = Experiment::parse(include_str!("../../../../experiments/regret.toml"));
    assert_eq!(regret.expect("an experiment").workloads.len(), 1);
    let goal = include_str!("../../../../experiments/quota_goal.yaml");
    let goal = isotherm_config::load(goal, isotherm_config::ConfigFormat::Detect);
    let goal = goal.expect("a configuration");
    assert_eq!(goal.contexts[0].schemes[0].quota.goals.len(), 1);
}
