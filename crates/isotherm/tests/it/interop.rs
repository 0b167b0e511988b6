//! Every example in docs/reference/interop.md is read, written or refused as the document says.

use isotherm_config::{ConfigFormat, Configuration, load, to_json, to_yaml};
use isotherm_workload::config::Config;

const DOCUMENT: &str = include_str!("../../../../docs/reference/interop.md");

/// A row with an example.
struct Row {
    example: String,
    verdict: String,
}

fn rows(heading: &str) -> Vec<Row> {
    let section = DOCUMENT
        .split("\n## ")
        .find(|section| section.starts_with(heading))
        .unwrap_or_else(|| panic!("no section {heading}"));
    let rows = section.lines().filter_map(|line| {
        let (example, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some(Row {
            example: example.to_owned(),
            verdict: rest.split('|').next()?.trim().to_owned(),
        })
    });
    rows.collect()
}

fn read(text: &str) -> Result<Configuration, String> {
    load(text, ConfigFormat::Detect).map_err(|problems| problems.to_string())
}

/// Returns whether `written` means the same as `configuration`.
fn holds(configuration: &Configuration, written: &str) -> bool {
    read(written).is_ok_and(|again| again.contexts == configuration.contexts)
}

/// Checks the document's examples under `heading`.
fn check(heading: &str, read_example: impl Fn(&str) -> Result<Option<Configuration>, String>) {
    let rows = rows(heading);
    assert!(rows.len() >= 5, "{heading}: only {} rows", rows.len());
    let mut wrong = Vec::new();
    for Row { example, verdict } in rows {
        let result = read_example(&example);
        let is_as_said = match (verdict.as_str(), &result) {
            ("read", Ok(_)) => true,
            ("read, written", Ok(Some(configuration))) => {
                let texts = [to_json(configuration), to_yaml(configuration)];
                texts.iter().all(|text| holds(configuration, text))
            }
            ("refused", Err(error)) => !error.is_empty(),
            _ => false,
        };
        if !is_as_said {
            wrong.push(format!("{heading}: {example} is not {verdict}: {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const PATTERN: &str = r#""access_pattern": {"sz_bytes": {"min": "4 KiB", "max": "max"},
    "nr_accesses": {"min": "0 %", "max": "0 %"}, "age": {"min": "5 s", "max": "max"}}"#;

/// Returns the keys of `parts` in one object; the earlier of two equal keys is used.
fn object(parts: &[&str]) -> String {
    let mut text = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let key = format!("{}:", part.split(':').next().expect("a key"));
        if !parts[..at].iter().any(|earlier| earlier.contains(&key)) {
            text.push(*part);
        }
    }
    format!("{{{}}}", text.join(", "))
}

fn with_context(context: &str) -> Result<Option<Configuration>, String> {
    read(&format!(r#"{{"kdamonds": [{{"contexts": [{context}]}}]}}"#)).map(Some)
}

#[test]
fn keys_of_schemes_are_as_the_document_says() {
    check("A scheme's keys", |example| {
        let scheme = object(&[example, r#""action": "pageout""#, PATTERN]);
        let context = format!(r#"{{"ops": "vaddr", "targets": [], "schemes": [{scheme}]}}"#);
        with_context(&context)
    });
}

#[test]
fn keys_of_contexts_are_as_the_document_says() {
    check("A context's keys", |example| {
        let rest = [r#""ops": "vaddr""#, r#""targets": []"#, r#""schemes": []"#];
        with_context(&object(&[&[example], &rest[..]].concat()))
    });
}

#[test]
fn files_and_lines_are_as_the_document_says() {
    check("Whole files", |example| read(example).map(Some));
    check("One-line schemes", |example| {
        let scheme = isotherm_config::scheme_line(example);
        scheme.map(|_| None).map_err(|problem| problem.to_string())
    });
}

/// Returns a file of memtierd's with a policy, `NAME: {KEYS}`, and the keys that every policy needs.
fn memtierd(example: &str, keys: &[&str]) -> Result<Option<Configuration>, String> {
    let (name, config) = example.split_once(": ").expect("a policy");
    let config = config.strip_prefix('{').and_then(|c| c.strip_suffix('}'));
    let names_targets = |key| example.contains(key);
    let targets = ["cgroups:", "pidwatcher:"].iter().any(names_targets);
    let rest = ["mover: {bandwidth: 100}", "IntervalMs: 5000", "pids: [1]"];
    let rest = &rest[..if targets { 2 } else { 3 }];
    let mut parts = [&[config.expect("keys")], keys, rest].concat();
    parts.retain(|part| !part.is_empty());
    let head = format!("policy:\n  name: {name}\n  config: |\n    ");
    read(&(head + &object(&parts))).map(Some)
}

#[test]
fn memtierds_files_are_as_the_document_says() {
    check("memtierd's policies", |example| {
        let has_tracker = !example.starts_with("demote-idle");
        let tracker = ["tracker: {name: idlepage}"];
        memtierd(example, if has_tracker { &tracker } else { &[] })
    });
    check("memtierd's pidwatchers", |example| {
        memtierd(example, &["tracker: {name: idlepage}", "swapoutms: 1000"])
    });
    check("memtierd's files", |example| {
        read(&example.replace(" / ", "\n")).map(Some)
    });
}

#[test]
fn masims_configurations_are_as_the_document_says() {
    check("masim's configurations", |example| {
        let lines: Vec<&str> = example.split('/').map(str::trim).collect();
        let config = Config::parse(&lines.join("\n"));
        config.map(|_| None).map_err(|error| error.to_string())
    });
}
