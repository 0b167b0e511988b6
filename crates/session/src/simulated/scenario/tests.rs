//! Valid and refused scenarios.

use super::*;

fn error(text: &str) -> String {
    match parse_scenario(text, Path::new(".")) {
        Ok(_) => panic!("it is accepted: {text}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn a_scenario_says_what_there_is() {
    let scenario = parse_scenario(
        "machine: {cpus: 4, nodes: [{size: 2 GiB}, {size: 1G, latency: 250ns}], swap: {zram: 1G}}\n\
         duration: 60s\n\
         processes:\n\
         - name: server\n\
         \x20 start: 2s\n\
         \x20 mappings:\n\
         \x20 - {name: heap, size: 1 GiB, access: [{pattern: zipfian, rate: '10,000'}]}\n\
         \x20 - {name: data, size: 64 MiB, kind: file}\n\
         faults: [{at: 5s, for: 1s, kind: swap_full}]\n",
        Path::new("."),
    );
    let scenario = scenario.expect("it is fine");
    assert_eq!(scenario.machine.cpus, 4);
    assert_eq!(scenario.machine.nodes[1].latency, Nanos(250));
    assert_eq!(scenario.duration, Some(Nanos::from_millis(60_000)));
    let (at, process) = &scenario.starts[0];
    assert_eq!((*at, process.areas.len()), (Nanos::from_millis(2_000), 2));
    assert_eq!(process.areas[1].purpose, Use::File);
    assert_eq!(scenario.faults[0].until, Nanos::from_millis(6_000));
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let with = |process: &str| format!("processes:\n- {{{process}}}\n");
    let heap = |more: &str| with(&format!("mappings: [{{name: heap, size: 1G{more}}}]"));
    for (text, wanted) in [
        ("processes: []", "processes"),
        (&with("name: x"), "mappings"),
        (
            &with("mappings: [{name: heap, size: lots}]"),
            "processes[0].mappings[0].size",
        ),
        (&heap(", colour: red"), "colour"),
        (&heap(", access: [{rate: fast}]"), "access[0].rate"),
        (&heap(", access: [{rate: 1, hot: 200%}]"), "hot"),
        (&heap(", released: 2s"), "released"),
        (
            "machine: {compaction_proactiveness: 101}\nprocesses: []",
            "compaction_proactiveness",
        ),
        (
            "machine: {nodes: [{size: 1G, bandwidth: 0}]}\nprocesses: []",
            "bandwidth",
        ),
        ("machine: {swap: {}}\nprocesses: []", "zram"),
        ("a: [", "YAML"),
    ] {
        let error = error(text);
        assert!(error.contains(wanted), "{text}\n{error}");
    }
    let fault = format!(
        "{}faults: [{{at: 1s, for: 1s, kind: exit, process: 3}}]",
        heap("")
    );
    assert!(error(&fault).contains("no process 3"));
}

const VALID: &str = "machine: {cpus: 4, nodes: [{size: 64 MiB}], swap: {zram: 1G}, thp: always, defrag: never, \
    compaction_proactiveness: 40}\n\
    duration: 60s\nprocesses:\n- name: a\n  threads: 2\n  mappings:\n  - {name: b, size: 1 MiB, huge: true, released: 50%, \
    access: [{pattern: latest, hot: 10%, rate: 5}]}\nfaults:\n- {at: 5s, for: 1s, kind: node_full, node: 0}\n";

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*") {
        let _ = parse_scenario(&text, Path::new("."));
    }

    #[test]
    fn no_change_makes_it_panic(at in 0..VALID.len(), length in 0..12_usize, put in "[-a-z0-9{}:,% \n]{0,6}") {
        let mut text = VALID.to_owned();
        text.replace_range(at..(at + length).min(VALID.len()), &put);
        let _ = parse_scenario(&text, Path::new("."));
    }
}
