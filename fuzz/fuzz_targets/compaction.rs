//! Parses any text as /proc/buddyinfo and /proc/zoneinfo, separated by a line of dashes. The scores of parsed text are
//! between 0 and 100.
#![no_main]

use isotherm_engine::compaction::{NodeFacts, ZoneFacts, node_score};
use isotherm_linux::compaction::{parse_buddyinfo, parse_zoneinfo};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (buddyinfo, zoneinfo) = text.split_once("\n--\n").unwrap_or((text, text));
    let sizes = parse_zoneinfo(zoneinfo).unwrap_or_default();
    let Ok(zones) = parse_buddyinfo(buddyinfo) else {
        return;
    };
    let zones = zones.into_iter().enumerate().map(|(index, zone)| ZoneFacts {
        name: zone.name,
        present_pages: sizes.get(index).map_or(1, |size| size.present),
        free_blocks: zone.free_blocks,
        contended: false,
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
