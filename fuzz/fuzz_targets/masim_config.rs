//! Parses any text as a workload. The layout of a parsed workload stays within its regions.
#![no_main]

use isotherm_workload::{Config, layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = Config::parse(text) {
        for phase in &config.phases {
            for pattern in &phase.patterns {
                let bytes = config.regions[pattern.region].bytes();
                let spans = layout::spans(pattern, bytes);
                assert!(spans.iter().all(|span| span.start < span.end && span.end <= bytes));
            }
        }
    }
});
