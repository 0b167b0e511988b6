//! Parses any text as /proc/buddyinfo and as /proc/zoneinfo. The scores of parsed text are between 0 and 100, also with
//! fewer pages than are free: a line of dashes ends the text, and the rest is as long as each zone has pages.
#![no_main]

use isotherm_linux::compaction::parse_buddyinfo;
use isotherm_linux::fuzz::zones;
use isotherm_policy::compaction::{NodeFacts, ZoneFacts, node_score};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    zones(text);
    let (buddyinfo, rest) = text.split_once("\n--\n").unwrap_or((text, text));
    let Ok(buddies) = parse_buddyinfo(buddyinfo) else {
        return;
    };
    let zones = buddies.into_iter().map(|(_, zone)| ZoneFacts {
        present_pages: rest.len() as u64,
        ..zone
    });
    let facts = NodeFacts {
        zones: zones.collect(),
        ..NodeFacts::default()
    };
    for order in 0..=11 {
        let score = node_score(&facts, order);
        assert!((0.0..=100.0).contains(&score), "{score}");
    }
});
