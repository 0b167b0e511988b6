//! Command lines of damo's users.

use super::*;
use crate::{ConfigFormat, load};

fn words(line: &str) -> Vec<String> {
    // A part in quotes is one word.
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

fn translated(line: &str) -> DamoTranslation {
    translate(&words(line), false).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[track_caller]
fn check(line: &str, wanted: &str) {
    assert_eq!(translated(line).command.join(" "), wanted, "{line}");
}

/// Returns the contexts that the file of a translation holds.
fn contexts(line: &str) -> Vec<crate::ContextConfig> {
    let configuration = translated(line).configuration.expect("a configuration");
    let text = configuration.to_string();
    let read = load(&text, ConfigFormat::Json);
    read.unwrap_or_else(|problems| panic!("{line}: {text}: {problems}"))
        .contexts
}

#[test]
fn commands_become_ours() {
    check("record 1234", "record -o damon.data --pid 1234");
    check(
        "record --out a.data --timeout 5 'sleep 5'",
        "record -o a.data --duration 5s -- sleep 5",
    );
    check(
        "record --ops vaddr --target_pid 7 -s 5000 -a 100ms -r '0-100 200-300'",
        "record -o damon.data --pid 7 --range 0-100 --range 200-300 --sample-interval 5000us \
         --aggregation-interval 100ms --update-interval 1s",
    );
    check(
        "record --monitoring_nr_regions_range 10 100",
        "record -o damon.data --regions 10-100 --physical",
    );
    check(
        "report wss --range 0 101 25",
        "report wss damon.data --percentiles 0,25,50,75,100",
    );
    check(
        "report access --input a.data --style hot --sz_region 4K max --age 5 10",
        "report access a.data --sort rate --reverse --min-size 4K --min-age 5s --max-age 10s",
    );
    check(
        "report access --style recency-sz-hist",
        "report idle damon.data",
    );
    check(
        "report heatmap --output x.svg --resol 80 40",
        "report heatmap damon.data -o x.svg --columns 80 --rows 40",
    );
    check("monitor paddr", "top --physical");
    check("monitor ongoing", "top");
    check("monitor 7", "top --pid 7");
    check("stop", "stop");
    let kernel = translate(&words("monitor 'sleep 5'"), true).expect("a command");
    assert_eq!(kernel.command.join(" "), "top --world kernel -- sleep 5");
    let kernel = translate(&words("record 7"), true).expect("a command");
    assert_eq!(
        kernel.command[4..],
        ["7", "--world", "kernel"].map(str::to_owned)
    );
}

#[test]
fn parameters_become_kdamonds() {
    let line = "start --target_pid 7 --damos_action migrate_cold 1 --damos_access_rate 0% 0% --damos_age 5s max \
        --damos_quotas 1s 50G 20s 0 0 1% --damos_filter reject none memcg /a --damos_filter allow young \
        --damos_wmarks free_mem_rate 5s 500 400 200";
    let contexts = contexts(line);
    let scheme = &contexts[0].schemes[0];
    assert_eq!(contexts[0].targets[0].pid, Some(7));
    assert_eq!((scheme.destinations[0].node, scheme.filters.len()), (1, 2));
    assert_eq!(scheme.quota.weights.age_permil, 10);
    assert!(scheme.filters[1].allow && !scheme.filters[0].matching);
    assert_eq!(
        scheme.watermarks.as_ref().map(|of| of.low_permil),
        Some(200)
    );
    check(line, "start --detach -c {config}");
}

#[test]
fn options_belong_to_what_their_markers_say() {
    let line = "start --kdamond --damon_ctx --ops paddr --damos_scheme --damos_action pageout \
        --damos_quota_goal node_mem_free_bp 10% complement 0 --damos_scheme --damos_action lru_prio \
        --damos_filter allow anon --kdamond --damon_ctx --ops vaddr --damon_target --target_pid 9 \
        --damos_scheme --damos_action stat --probe --probe_filter allow anon --probe_weight 3";
    let contexts = contexts(line);
    let shape: Vec<_> = contexts
        .iter()
        .map(|of| (of.kdamond, of.schemes.len()))
        .collect();
    assert_eq!(shape, [(0, 2), (1, 1)]);
    assert!(contexts[0].schemes[0].quota.goals[0].complement);
    assert_eq!(contexts[0].schemes[1].filters.len(), 1);
    assert_eq!(contexts[1].targets[0].pid, Some(9));
    assert_eq!(contexts[0].kernel.probes[0].weight, 3);
}

#[test]
fn what_has_no_translation_says_what_to_use() {
    let check = |line: &str, wanted: &str| {
        let error = translate(&words(line), false).expect_err(line).to_string();
        assert!(error.contains(wanted), "{line}: {error}");
    };
    check("fly", "no command 'fly'");
    check("module reclaim --min_age 5", "--preset damon_reclaim");
    check("report access --total_sz", "`isotherm report wss`");
    check("report heatmap --colour", "no option '--colour'");
    check("report heatmap --resol 5", "2 values");
    check("start --damon_addr_unit 4096", "64 bits");
    check(
        "start --damos_action stat --damos_filter anon",
        "allow|reject",
    );
    check("start --nr_ctxs 3", "add up to 1");
    check("start --nr_ctxs 18446744073709551615 1", "add up to 1");
}

#[test]
fn each_command_has_options_that_can_be_told_apart() {
    let all = damo_options();
    let mut names: Vec<_> = all
        .iter()
        .flat_map(|of| of.names.iter().map(|name| (&of.command, name)))
        .collect();
    names.sort();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None);
}
