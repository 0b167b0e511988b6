//! Truth from exact scans, for programs whose accesses are not planned.
//!
//! Each page counts the scans that knew it and those that found it accessed. It is hot from [`HOT_SCANS`] of them on,
//! warm below that, and cold without any. A page that no scan knew is left out.
//!
//! Limits: a scan says only that a page was accessed since the last one, not how often. The truth of the scans' time
//! must also hold for the scored time, so the program must be steady.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, PAGE_SIZE, Snapshot};

use crate::layout::{Heat, Temperature};
use crate::truth::Episode;

/// Share of the scans at which a page is hot.
pub const HOT_SCANS: f64 = 0.5;

/// Returns the accesses that `scans` found, as an episode without beginning or end.
pub fn observed<'a>(scans: impl IntoIterator<Item = &'a Snapshot>) -> Episode {
    let mut pages: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    for scan in scans {
        for region in &scan.regions {
            let Some(rate) = scan.access_rate(region) else {
                continue;
            };
            for page in (region.range.start..region.range.end).step_by(PAGE_SIZE as usize) {
                let (known, accessed) = pages.entry(page).or_default();
                *known += 1;
                *accessed += u32::from(rate > 0.0);
            }
        }
    }
    let total: f64 = pages.values().map(|page| f64::from(page.1)).sum();
    let mut temperature = Temperature::default();
    for (page, (known, accessed)) in pages {
        let range = AddressRange::new(page, page + PAGE_SIZE);
        let heat = Heat {
            range,
            probability: f64::from(accessed) / total.max(1.0),
        };
        if accessed == 0 {
            match temperature.cold.last_mut() {
                Some(last) if last.end == page => last.end = range.end,
                _ => temperature.cold.push(range),
            }
        } else if f64::from(accessed) >= f64::from(known) * HOT_SCANS {
            extend(&mut temperature.hot, heat);
        } else {
            extend(&mut temperature.warm, heat);
        }
    }
    Episode {
        phase: "observed".into(),
        temperature,
        ..Episode::default()
    }
}

fn extend(heats: &mut Vec<Heat>, heat: Heat) {
    match heats.last_mut() {
        Some(last) if last.range.end == heat.range.start => {
            last.range.end = heat.range.end;
            last.probability += heat.probability;
        }
        _ => heats.push(heat),
    }
}
