//! Numbers in damo's form (`_damo_fmt_str.py`), but exact: `4.000 KiB`, `1.500 s`, `0.1 %`, `10,000`. A number that
//! this form would round is written in the largest unit that divides it.

use isotherm_engine::Nanos;
use isotherm_engine::units::{HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND};
use isotherm_policy::scheme::{Age, Frequency};

/// Formats a number with commas.
pub(crate) fn count_text(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const SIZES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats a size for people, in the largest unit that divides it.
pub(crate) fn size_text(bytes: u64) -> String {
    if bytes == u64::MAX {
        return "max".to_owned();
    }
    let power = if bytes == 0 {
        0
    } else {
        bytes.trailing_zeros() / 10
    };
    format!("{} {}", bytes >> (10 * power), SIZES[power as usize])
}

/// Formats a size as damo does.
pub(crate) fn damo_size_text(bytes: u64) -> String {
    if bytes == u64::MAX {
        return "max".to_owned();
    }
    // damo changes to the next unit only above it: 1024 B, 1024.000 KiB.
    let power = bytes.saturating_sub(1).checked_ilog2().unwrap_or(0) / 10;
    if power == 0 {
        return format!("{bytes} B");
    }
    let thousandths = u128::from(bytes) * 1000;
    if thousandths.trailing_zeros() >= 10 * power {
        let thousandths = thousandths >> (10 * power);
        let (whole, rest) = (thousandths / 1000, thousandths % 1000);
        return format!("{whole}.{rest:03} {}", SIZES[power as usize]);
    }
    size_text(bytes)
}

pub(crate) fn time_text(time: Nanos) -> String {
    const UNITS: [(u64, &str); 4] = [
        (SECOND.0, "s"),
        (MILLISECOND.0, "ms"),
        (MICROSECOND.0, "us"),
        (1, "ns"),
    ];
    if time.0 == u64::MAX {
        return "max".to_owned();
    }
    let (hours, rest) = (time.0 / HOUR.0, time.0 % HOUR.0);
    let (minutes, rest) = (rest / MINUTE.0, rest % MINUTE.0);
    let mut parts = Vec::new();
    if hours > 0 {
        parts.push(format!("{hours} h"));
    }
    if minutes > 0 {
        parts.push(format!("{minutes} m"));
    }
    if rest == 0 && !parts.is_empty() {
        return parts.join(" ");
    }
    // After minutes, damo writes no unit smaller than seconds.
    let unit = UNITS
        .iter()
        .find(|(nanos, _)| rest >= *nanos || minutes > 0);
    let (nanos, unit) = unit.copied().unwrap_or((1, "ns"));
    let thousandths = u128::from(rest) * 1000;
    if !thousandths.is_multiple_of(u128::from(nanos)) {
        let divides = |(nanos, _): &&(u64, &str)| time.0.is_multiple_of(*nanos);
        let (nanos, unit) = UNITS.iter().find(divides).copied().unwrap_or((1, "ns"));
        return format!("{} {unit}", time.0 / nanos);
    }
    parts.push(if rest.is_multiple_of(nanos) {
        format!("{} {unit}", rest / nanos)
    } else {
        let thousandths = thousandths / u128::from(nanos);
        format!("{}.{:03} {unit}", thousandths / 1000, thousandths % 1000)
    });
    parts.join(" ")
}

/// Formats `number` parts of `whole` (a power of ten, 100 or more) in per cent.
pub(crate) fn share_text(number: u32, whole: u32) -> String {
    let in_percent = whole / 100;
    let rest = number % in_percent;
    let digits = in_percent.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    let point = if rest == 0 { "" } else { "." };
    let percent = count_text(u64::from(number / in_percent));
    format!("{percent}{point}{} %", fraction.trim_end_matches('0'))
}

pub(crate) fn frequency_text(frequency: Frequency) -> String {
    match frequency {
        Frequency::Samples(samples) => format!("{samples} samples"),
        Frequency::Percent(percent) => format!("{percent} %"),
    }
}

pub(crate) fn age_text(age: Age) -> String {
    match age {
        Age::Intervals(intervals) => format!("{intervals} aggr_intervals"),
        Age::Time(time) => time_text(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_damos_and_exact() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (654_336, "654,336"),
        ] {
            assert_eq!(count_text(number), text);
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1024, "1024 B"),
            (1025, "1025 B"),
            (4096, "4.000 KiB"),
            (1 << 30, "1024.000 MiB"),
            (3 << 29, "1.500 GiB"),
            ((50 << 30) + 4096, "52428804 KiB"),
            (u64::MAX, "max"),
        ] {
            assert_eq!(damo_size_text(bytes), text);
        }
        assert_eq!(size_text(4096), "4 KiB");
        let times = [
            (0, "0 ns"),
            (5_000_000, "5 ms"),
            (1_500_000_000, "1.500 s"),
            (1_000_001_000, "1000001 us"),
            (90_000_000_000, "1 m 30 s"),
            (60_500_000_000, "1 m 0.500 s"),
            (7_200_000_000_000, "2 h"),
            (7_260_000_000_000, "2 h 1 m"),
            (7_200_000_000_001, "2 h 1 ns"),
            (3_600_005_000_000, "1 h 5 ms"),
        ];
        for (nanos, text) in times {
            assert_eq!(time_text(Nanos(nanos)), text);
        }
        let shares = [
            (0, 1000, "0 %"),
            (1, 1000, "0.1 %"),
            (29, 100, "29 %"),
            (30, 1000, "3 %"),
        ];
        for (number, whole, text) in shares {
            assert_eq!(share_text(number, whole), text);
        }
        assert_eq!(share_text(405, 10_000), "4.05 %");
        assert_eq!(share_text(1_234_567, 1000), "123,456.7 %");
    }
}
