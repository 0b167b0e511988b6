//! Tests of the answers about a trace.

use super::*;

#[path = "../examples/drawn/mod.rs"]
mod drawn;

fn ask(age: &str, max_slowdown: Option<f64>) -> Question {
    Question {
        schemes: vec![format!("4K max 0% 0% {age} max pageout")],
        max_slowdown,
    }
}

fn record() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.isotherm");
    drawn::trace(&path, 30);
    std::fs::read(path).expect("written")
}

#[test]
fn a_trace_tells_what_would_come_of_a_scheme() {
    let (reported, shares) = std::sync::mpsc::channel();
    let tell = move |share| reported.send(share).expect("nobody has gone");
    let trace = WhatIf::open(&record(), 1, tell).expect("a trace");
    let shares: Vec<f64> = shares.try_iter().collect();
    assert!(shares.is_sorted() && shares.len() > 20, "{shares:?}");
    assert!(shares.last().is_some_and(|last| *last > 0.9), "{shares:?}");
    let facts = trace.facts().expect("of a program");
    assert_eq!((facts.one_in, &*facts.program), (1, "drawn"));
    let young = trace.predict(&ask("3s", None)).expect("predicted");
    let old = trace.predict(&ask("15s", None)).expect("predicted");
    assert!(young.saved_share.value > old.saved_share.value);
    assert!(trace.predict(&ask("nonsense", None)).is_err());
}

#[test]
fn a_block_stands_for_others() {
    let record = record();
    let all = WhatIf::open(&record, 1, |_| {}).expect("a trace");
    let some = WhatIf::open(&record, 2, |_| {}).expect("half of it");
    let (all, some) = (all.facts().expect("facts"), some.facts().expect("facts"));
    let ratio = some.base.resident_mean_bytes / all.base.resident_mean_bytes;
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
    assert_eq!(some.one_in, 2);
}

#[test]
fn what_was_asked_can_be_done() {
    let trace = WhatIf::open(&record(), 1, |_| {}).expect("a trace");
    let how = |limit| {
        let done = trace.configuration(&ask("5s", limit));
        done.expect("a configuration")
    };
    let done = how(Some(0.01));
    let problems = isotherm_config::check(&done.yaml, isotherm_config::ConfigFormat::Detect);
    let wrong: Vec<_> = { problems.iter() }
        .filter(|p| p.severity == isotherm_config::Severity::Error)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(done.yaml.contains("min: 5 s"), "{}", done.yaml);
    let command = "isotherm run --scheme '4K max 0% 0% 5s max pageout'";
    let bounded = format!("{command} --max-slowdown 1% --pid PID");
    assert_eq!(done.command, bounded);
    assert_eq!(how(None).command, format!("{command} --pid PID"));
}

#[test]
fn what_is_no_trace_is_refused() {
    for bytes in [&b""[..], b"nonsense"] {
        assert!(WhatIf::open(bytes, 1, |_| {}).is_err());
    }
}
