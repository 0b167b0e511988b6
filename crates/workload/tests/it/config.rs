//! The parser: masim's files are understood, errors name the line and the expectation, and no input makes it panic.

use isotherm_engine::AddressRange;
use isotherm_workload::config::{AccessOrder, Mode, Scatter};
use isotherm_workload::{Config, layout};
use proptest::prelude::*;

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_masim_file_means_what_it_means_to_masim() {
    let config = parse(
        "#regions\n# name, length\na, 104857600\nb, 104857600, none\n\n\
         # phase 1\n# name of phase\nexample phase 1\n# time in ms\n5000\n\
         # access patterns\na, 0, 64, 99\nb, 1, 64, 1, ro\n\n\
         # phase 2\nexample phase 2\n700\na, 0, 4096, 1, rw\n",
    );
    assert_eq!(config.regions.len(), 2);
    assert_eq!(config.regions[1].content, None);
    assert_eq!(config.total_bytes(), 209_715_200);
    let [one, two] = config.phases.as_slice() else {
        panic!("two phases")
    };
    assert_eq!(one.name, "example phase 1");
    assert_eq!(one.duration_ms, 5000);
    let seen = one.patterns.iter();
    let seen = seen.map(|p| (p.region, p.order, p.stride, p.weight, p.mode));
    let wanted = [
        (0, AccessOrder::Sequential, 64, 99, Mode::Write),
        (1, AccessOrder::Random, 64, 1, Mode::Read),
    ];
    assert!(seen.eq(wanted));
    assert_eq!(two.patterns[0].mode, Mode::ReadWrite);
}

#[test]
fn paragraphs_may_be_apart_and_lines_indented_or_end_in_cr() {
    let config = parse("\n\n  a, 4K\r\n\r\n \t\r\n# c\r\n\r\np\r\n10\r\na, 0, 64, 1\r\n\r\n\r\n");
    assert_eq!(config.phases[0].name, "p");
}

#[test]
fn scatter_says_how_many_pieces() {
    let of = |words: &str| {
        let text = format!("a, 4GiB\n\np\n10\na, 1, 64, 1, rw, {words}\n");
        parse(&text).phases[0].patterns[0].scatter
    };
    let scatter = |pieces, piece, seed| {
        Some(Scatter {
            pieces,
            piece,
            seed,
        })
    };
    assert_eq!(of("hot=10%"), scatter(205, 2 << 20, 1));
    assert_eq!(of("hot=10% piece=2MiB seed=7"), scatter(205, 2 << 20, 7));
    assert_eq!(of("seed=3 piece=64M hot=128M"), scatter(2, 64 << 20, 3));
    assert_eq!(of("hot=100%"), scatter(2048, 2 << 20, 1));
}

#[test]
fn errors_say_where_what_and_what_instead() {
    let golden = include_str!("../config_errors.txt");
    let mut cases = Vec::new();
    for case in golden.trim_end().split("\n====\n") {
        let (text, _) = case.split_once("\n----\n").expect("a case has two parts");
        let message = match Config::parse(text) {
            Ok(config) => format!("no error: {config:?}"),
            Err(error) => error.to_string(),
        };
        cases.push(format!("{text}\n----\n{message}"));
    }
    let out = cases.join("\n====\n") + "\n";
    // To renew: UPDATE_GOLDEN=1 cargo test -p isotherm-workload
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config_errors.txt");
        std::fs::write(path, out).expect("the golden file can be written");
        return;
    }
    assert_eq!(out, golden);
}

#[test]
fn shipped_workloads_are_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/workloads");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_some_and(|e| e == "cfg") {
            parse(&std::fs::read_to_string(&path).expect("it can be read"));
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} workloads");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*") {
        let _ = Config::parse(&text);
    }

    #[test]
    fn no_text_that_looks_like_a_configuration_makes_it_panic(
        text in "(([ab#p ]|[0-9]{1,20}|[0-9.]{1,4}[KMGTi%]{1,3}|,|, |-|ro|rw|hot=|piece=|seed=|none)|\n|\n\n){0,80}"
    ) {
        if let Ok(config) = Config::parse(&text) {
            prop_assert!(config.phases.iter().all(|phase| !phase.patterns.is_empty()));
        }
    }

    #[test]
    fn what_is_hot_lies_within_and_sums_to_one(
        size in 1u64..4000, piece in 1u64..50, percent in 1u64..100, seed: u64, background in 0u32..50,
    ) {
        let text = format!(
            "a, {}K\n\np\n10\na, 1, 64, 50, rw, hot={percent}% piece={}K seed={seed}\na, 0, 64, {background}\n",
            size * 4, piece * 4
        );
        let Ok(config) = Config::parse(&text) else { return Ok(()) };
        let place = AddressRange::new(1 << 30, (1 << 30) + config.regions[0].bytes());
        let laid = layout::temperature(&config, &config.phases[0], &[place]);
        let mut ranges: Vec<AddressRange> = laid.hot.iter().chain(&laid.warm).map(|h| h.range).collect();
        ranges.extend(&laid.cold);
        ranges.sort_unstable();
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert_eq!(ranges.iter().map(|r| r.len()).sum::<u64>(), place.len());
        let sum: f64 = laid.hot.iter().chain(&laid.warm).map(|h| h.probability).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9);
    }
}
