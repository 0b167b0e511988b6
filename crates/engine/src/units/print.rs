//! Printing of quantities.

use super::{DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND};
use crate::address::Nanos;

/// Formats a size with three significant digits in the largest binary unit that it fills: `4 KiB`, `1.50 GiB`, `812
/// MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.7 KiB would print as 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Formats a time: `120 ns`, `350 ms`, `3.2 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub fn format_time(time: Nanos) -> String {
    let seconds = time.as_secs_f64();
    let in_units = |unit: Nanos| three_digits(time.0 as f64 / unit.0 as f64);
    let pair = |large: (Nanos, &str), small: (Nanos, &str)| {
        let whole = time.0.saturating_add(SECOND.0 / 2);
        let (count, rest) = (whole / large.0.0, whole % large.0.0 / small.0.0);
        if rest == 0 {
            format!("{count} {}", large.1)
        } else {
            format!("{count} {} {rest} {}", large.1, small.1)
        }
    };
    // Each unit is used up to the value that rounds to one of the next unit.
    match time.0 {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{} ns", time.0),
        1_000..999_500 => format!("{} us", in_units(MICROSECOND)),
        999_500..999_500_000 => format!("{} ms", in_units(MILLISECOND)),
        999_500_000..59_950_000_000 => format!("{} s", one_decimal(seconds)),
        59_950_000_000..3_599_500_000_000 => pair((MINUTE, "min"), (SECOND, "s")),
        3_599_500_000_000..86_399_500_000_000 => pair((HOUR, "h"), (MINUTE, "min")),
        _ => pair((DAY, "d"), (HOUR, "h")),
    }
}

/// Formats a share of 0 to 1 as a percentage: `0.05 %`, `1.3 %`, `37 %`. A non-zero share is never printed as zero.
pub fn format_share(share: f64) -> String {
    let percent = share * 100.0;
    if percent <= 0.0 {
        "0 %".to_owned()
    } else if percent < 0.01 {
        "<0.01 %".to_owned()
    } else if percent < 0.095 {
        format!("{percent:.2} %")
    } else if percent < 9.95 {
        format!("{} %", one_decimal(percent))
    } else {
        format!("{percent:.0} %")
    }
}

/// Formats an access rate; `?` if it is unknown.
pub fn format_rate(rate: Option<f32>) -> String {
    rate.map_or_else(|| "?".to_owned(), |rate| format_share(f64::from(rate)))
}

fn three_digits(value: f64) -> String {
    let text = if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        return format!("{value:.0}");
    };
    // 4 KiB rather than 4.00 KiB, but 4.50 keeps its digits.
    match text.split_once('.') {
        Some((whole, "0" | "00")) => whole.to_owned(),
        _ => text,
    }
}

fn one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::{parse_bytes, parse_time};
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_a_binary_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (4608, "4.50 KiB"),
            (10 << 20, "10 MiB"),
            (812 << 20, "812 MiB"),
            ((1 << 30) - 1, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn times_have_the_unit_that_a_person_would_choose() {
        for (ns, text) in [
            (0, "0 s"),
            (999, "999 ns"),
            (5_000_000, "5 ms"),
            (999_999_999, "1 s"),
            (3_200_000_000, "3.2 s"),
            (59_960_000_000, "1 min"),
            (65_000_000_000, "1 min 5 s"),
            (3_600_000_000_000, "1 h"),
            (3_780_000_000_000, "1 h 3 min"),
            (5_400_000_000_000, "1 h 30 min"),
            (90_000_000_000_000, "1 d 1 h"),
            (u64::MAX, "213503 d 23 h"),
        ] {
            assert_eq!(format_time(Nanos(ns)), text);
        }
    }

    #[test]
    fn little_is_not_nothing() {
        for (share, text) in [
            (0.0, "0 %"),
            (0.00001, "<0.01 %"),
            (0.0005, "0.05 %"),
            (0.004, "0.4 %"),
            (0.013, "1.3 %"),
            (0.0995, "10 %"),
            (0.3741, "37 %"),
            (1.0, "100 %"),
        ] {
            assert_eq!(format_share(share), text);
        }
        assert_eq!(format_rate(None), "?");
    }

    #[test]
    fn what_is_printed_reads_back_to_within_its_last_digit() {
        for exponent in 0..60 {
            for mantissa in [1_u64, 3, 7, 11] {
                let value = mantissa << exponent;
                let near = |back: u64| back.abs_diff(value) as f64 <= value as f64 * 0.05;
                let bytes = parse_bytes(&format_bytes(value)).expect("a size");
                assert!(near(bytes), "{value}");
                let text = format_time(Nanos(value));
                let time = parse_time(&text).expect("a time");
                assert!(near(time.0), "{value}: {text}");
            }
        }
    }
}
