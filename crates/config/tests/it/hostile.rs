//! Hostile and meaningless input.

use std::time::{Duration, Instant};

use isotherm_config::ConfigFormat::{self, Damos, Detect, Json, Yaml};
use isotherm_config::{TEXT_MAX, check, load, scheme_line, text_of, to_json, to_yaml};
use proptest::prelude::*;

/// Time limit. It is far more than any text here needs in a debug build beside other work, and far less than quadratic
/// growth would take.
const PATIENCE: Duration = Duration::from_secs(20);

fn refused(text: &str, format: ConfigFormat, message: &str) {
    let start = Instant::now();
    let problems = check(text, format);
    let first = problems
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(first.contains(message), "{first:?} lacks {message:?}");
    assert!(start.elapsed() < PATIENCE, "took {:?}", start.elapsed());
}

#[test]
fn deep_nesting_is_refused() {
    let n = 100_000;
    // saphyr looks ahead, and stops at its own limit.
    refused(&"[".repeat(n), Yaml, "recursion limit exceeded");
    refused(&"[".repeat(40), Yaml, "deeper nesting");
    refused(&"- ".repeat(n), Yaml, "deeper nesting");
    refused(&"{a: ".repeat(n), Yaml, "recursion limit exceeded");
    let json = format!("{}{}", "[".repeat(n), "]".repeat(n));
    refused(&json, Json, "deeper nesting");
    refused(&"[".repeat(n), Json, "what cannot be read");
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.extend([&format!("a{level}: &a{level} ["), &aliases, "]\n"]);
    }
    refused(&bomb, Yaml, "more values");
    refused("a: &a [*a]\n", Yaml, "an alias inside of itself");
}

#[test]
fn long_texts_are_refused_or_read_in_bounded_time() {
    refused(&" ".repeat(TEXT_MAX + 1), Detect, "4194305 bytes");
    let schemes = format!(
        "{{\"kdamonds\": [{{\"contexts\": [{{\"ops\": \"vaddr\", \"targets\": [], \"schemes\": [{}]}}]}}]}}",
        vec!["{}"; 400_000].join(",")
    );
    refused(&schemes, Json, "400000 items");
    let one_line = format!("{{\"kdamonds\": [{}]}}", vec!["0"; 500_000].join(","));
    refused(&one_line, Json, "items");
    let lines = "4K max 0 0 5s max pagout\n".repeat(100_000);
    refused(&lines, Detect, "pagout");
    let keys: Vec<_> = (0..100_000).map(|n| format!("k{n}: 0")).collect();
    refused(&keys.join("\n"), Yaml, "the unknown key `k0`");
}

#[test]
fn numbers_that_are_none_are_refused() {
    for size in "NaN,-1,1e400,inf,.nan,99999999999999999999999E,0x10,,K".split(',') {
        let line = format!("{size} max 0 0 5s max pageout");
        assert!(scheme_line(&line).is_err(), "{line}");
        let yaml = format!(
            "kdamonds: [{{contexts: [{{ops: vaddr, targets: [], nr_regions: {{min: {size:?}, max: 10}}}}]}}]"
        );
        assert!(load(&yaml, Yaml).is_err(), "{yaml}");
    }
    refused("20E max 0 0 5s max pageout", Damos, "too large");
}

#[test]
fn what_is_no_text_is_refused_with_its_place() {
    let problem = text_of(b"kdamonds:\n- \xff").expect_err("not UTF-8");
    let wanted = "line 2, column 3: found byte 0xff, expected text in UTF-8";
    assert_eq!(problem.to_string(), wanted);
    assert!(text_of(&vec![b' '; TEXT_MAX + 1]).is_err());
}

/// A fixture with some of its bytes changed reaches deeper than random text.
fn mutated() -> impl Strategy<Value = String> {
    let fixtures = [
        include_str!("../fixtures/damo_prcl.json"),
        include_str!("../fixtures/damo_tier.yaml"),
        include_str!("../fixtures/damo_filters.json"),
        include_str!("../fixtures/memtierd.yaml"),
        "- name: '0'\n  access_pattern: {sz_bytes: {min: 4K, max: max}, nr_accesses: {min: 0, max: 3}, \
         nr_accesses_unit: percent, age: {min: 5 aggr_intervals, max: max}, age_unit: aggr_intervals}",
        "4K max 0 5% 5s max pageout 500M 1s 0 3 7",
        "4K max 0 5% 5s max pageout 10ms 128M 1s 0 3 7 free_mem_rate 5s 500 400 200",
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..6);
    (prop::sample::select(fixtures.to_vec()), changes).prop_map(|(text, changes)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (index, c) in changes {
            let index = index.index(chars.len());
            chars[index] = c;
        }
        chars.into_iter().collect()
    })
}

fn any_format(text: &str) {
    for format in [Json, Yaml, Damos, Detect] {
        let _ = check(text, format);
    }
    let _ = scheme_line(text);
    let _ = isotherm_config::Topology::read(text);
    let _ = isotherm_config::node_extent(text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        any_format(&text);
    }

    #[test]
    fn no_yaml_like_text_panics(text in "[-\\[\\]{}:,&*!|>'\"%@#? \n\ta-c0-9.]{0,200}") {
        any_format(&text);
    }

    #[test]
    fn no_changed_file_panics(text in mutated()) {
        any_format(&text);
        // A readable text can be written and read again with the same result.
        if let Ok(read) = load(&text, Detect) {
            for (written, format) in [(to_yaml(&read), Yaml), (to_json(&read), Json)] {
                let again = load(&written, format).map(|c| c.contexts);
                prop_assert_eq!(again.as_ref(), Ok(&read.contexts), "{}", written);
            }
        }
    }
}
