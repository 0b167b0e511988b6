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

/// Returns the faults of the document's examples under `heading`.
fn wrong(
    heading: &str,
    read_example: impl Fn(&str) -> Result<Option<Configuration>, String>,
) -> Vec<String> {
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
    wrong
}

const PATTERN: &str = r#""access_pattern": {"sz_bytes": {"min": "4 KiB", "max": "max"},
    "nr_accesses": {"min": "0 %", "max": "0 %"}, "age": {"min": "5 s", "max": "max"}}"#;

/// Returns the keys of `parts` in one object; the earlier of two equal keys is used.
fn object(parts: &[&str]) -> String {
    let mut keys = Vec::new();
    let mut text = Vec::new();
    for part in parts {
        let key = part.split(':').next().expect("a key");
        if !keys
            .iter()
            .any(|earlier: &String| earlier.contains(&format!("{key}:")))
        {
            text.push(*part);
        }
        keys.push((*part).to_owned());
    }
    format!("{{{}}}", text.join(", "))
}

fn with_context(context: &str) -> Result<Option<Configuration>, String> {
    read(&format!(r#"{{"kdamonds": [{{"contexts": [{context}]}}]}}"#)).map(Some)
}

#[test]
fn keys_of_schemes_are_as_the_document_says() {
    let wrong = wrong("A scheme's keys", |example| {
        let scheme = object(&[example, r#""action": "pageout""#, PATTERN]);
        with_context(&format!(
            r#"{{"ops": "vaddr", "targets": [], "schemes": [{scheme}]}}"#
        ))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn keys_of_contexts_are_as_the_document_says() {
    let wrong = wrong("A context's keys", |example| {
        let rest = [r#""ops": "vaddr""#, r#""targets": []"#, r#""schemes": []"#];
        with_context(&object(&[&[example], &rest[..]].concat()))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_and_lines_are_as_the_document_says() {
    let whole = wrong("Whole files", |example| read(example).map(Some));
    let lines = wrong("One-line schemes", |example| {
        let scheme = isotherm_config::scheme_line(example);
        scheme.map(|_| None).map_err(|problem| problem.to_string())
    });
    let wrong = [whole, lines].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn masims_configurations_are_as_the_document_says() {
    let wrong = wrong("masim's configurations", |example| {
        let lines: Vec<&str> = example.split('/').map(str::trim).collect();
        let config = Config::parse(&lines.join("\n"));
        config.map(|_| None).map_err(|error| error.to_string())
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
