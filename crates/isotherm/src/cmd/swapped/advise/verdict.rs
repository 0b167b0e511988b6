//! The choice between zram and zswap, by what was measured.

use isotherm_engine::calibration::{Measured, SwapMeasured};

/// Least difference of medians that counts.
const APART: f64 = 1.05;

pub(super) const RULE: &str = "One is ahead, in memory or in the time of a page back, where the ranges of both do not \
overlap and the medians differ by 5 % or more. The one that is ahead, and not behind in the other, is chosen. If each is \
ahead in one, the one that takes less memory is, as idle memory is seldom read back. Only zswap can write to a disk.";

/// Returns `zram`, `zswap` or `either`, and the reason; no choice if neither was measured.
pub(super) fn choose(measured: &[SwapMeasured; 2]) -> (Option<&'static str>, String) {
    let [zram, zswap] = measured;
    let facts = |of: &SwapMeasured| {
        let (ratio, back) = (of.ratio?.median, of.fault_in_ns?.median / 1e3);
        Some(format!(
            "{} {ratio:.1}x at {back:.1} us a page back",
            of.kind
        ))
    };
    let (zram_facts, zswap_facts) = match (facts(zram), facts(zswap)) {
        (Some(zram), Some(zswap)) => (zram, zswap),
        (Some(facts), None) => return (Some("zram"), format!("zram: {facts}; zswap is unknown")),
        (None, Some(facts)) => return (Some("zswap"), format!("zswap: {facts}; zram is unknown")),
        (None, None) => return (None, "neither could be measured".to_owned()),
    };
    let memory = ahead(memory(zram), memory(zswap));
    let time = ahead(zram.fault_in_ns, zswap.fault_in_ns);
    let choice = memory
        .or(time)
        .map_or("either", |first| ["zram", "zswap"][first]);
    let why = match (memory, time) {
        (None, None) => "no difference was measured".to_owned(),
        (Some(a), Some(b)) if a != b => format!("{choice} takes less memory, the other is faster"),
        (Some(_), Some(_)) => format!("{choice} takes less memory and is faster"),
        (Some(_), None) => format!("{choice} takes less memory"),
        (None, Some(_)) => format!("{choice} is faster"),
    };
    let disk = match choice {
        "zswap" => ", and it writes what is coldest to the disk",
        _ => "; zswap is better where a disk may take what is coldest",
    };
    (
        Some(choice),
        format!("{choice}: {zram_facts}, {zswap_facts}: {why}{disk}"),
    )
}

/// Returns the memory that a paged-out byte takes.
fn memory(of: &SwapMeasured) -> Option<Measured> {
    let (ratio, kept) = (of.ratio?, of.kept_in_memory?);
    Some(Measured {
        min: kept.min / ratio.max,
        median: kept.median / ratio.median,
        max: kept.max / ratio.min,
    })
}

/// Returns the place of the one that is less, if one is.
fn ahead(first: Option<Measured>, second: Option<Measured>) -> Option<usize> {
    let both = [first?, second?];
    let is_ahead = |one: usize| {
        let (of, other) = (both[one], both[1 - one]);
        of.max < other.min && of.median * APART <= other.median
    };
    (0..2).find(|one| is_ahead(*one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(kind: &str, ratio: f64, back_us: f64) -> SwapMeasured {
        let of = |value: f64| Measured::of(&[value * 0.98, value, value * 1.02]);
        SwapMeasured {
            kind: kind.into(),
            ratio: of(ratio),
            kept_in_memory: Measured::of(&[1.0]),
            fault_in_ns: of(back_us * 1e3),
            ..SwapMeasured::default()
        }
    }

    #[test]
    fn the_choice_follows_from_the_measurements() {
        let check = |zram: (f64, f64), zswap: (f64, f64), choice: &str, part: &str| {
            let of = [
                measured("zram", zram.0, zram.1),
                measured("zswap", zswap.0, zswap.1),
            ];
            let (chosen, reason) = choose(&of);
            assert_eq!(chosen, Some(choice), "{reason}");
            assert!(reason.contains(part), "{reason}");
        };
        check((3.1, 3.2), (2.5, 4.0), "zram", "less memory and is faster");
        check((3.1, 4.0), (3.1, 3.2), "zswap", "is faster");
        check((2.5, 3.2), (3.1, 4.0), "zswap", "the other is faster");
        check((3.1, 3.2), (3.05, 3.3), "either", "no difference");
    }

    #[test]
    fn what_was_not_measured_is_not_chosen() {
        let unknown = SwapMeasured::unknown("zswap", "no disk");
        let (choice, reason) = choose(&[measured("zram", 3.0, 3.0), unknown.clone()]);
        assert!(
            choice == Some("zram") && reason.contains("zswap is unknown"),
            "{reason}"
        );
        assert_eq!(choose(&[unknown.clone(), unknown]).0, None);
    }
}
