//! Bytes, durations and shares, for people.

use isotherm_engine::Nanos;

/// `12.5 MiB`; three digits that tell.
pub fn bytes(bytes: u64) -> String {
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

/// `350 ms`, `3.2 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub fn duration(time: Nanos) -> String {
    let seconds = time.as_secs_f64();
    let pair = |large: u64, small: u64, units: (&str, &str)| {
        if small == 0 {
            format!("{large} {}", units.0)
        } else {
            format!("{large} {} {small} {}", units.0, units.1)
        }
    };
    let whole = seconds.round() as u64;
    match time.0 {
        0 => "0 s".into(),
        1..1_000 => format!("{} ns", time.0),
        1_000..999_500 => format!("{} us", three_digits(seconds * 1e6)),
        999_500..999_500_000 => format!("{} ms", three_digits(seconds * 1e3)),
        _ if seconds < 59.95 => format!("{} s", one_decimal(seconds)),
        _ if whole < 3_600 => pair(whole / 60, whole % 60, ("min", "s")),
        _ if whole < 86_400 => pair(whole / 3_600, whole % 3_600 / 60, ("h", "min")),
        _ => pair(whole / 86_400, whole % 86_400 / 3_600, ("d", "h")),
    }
}

/// A share of 0 to 1 as `12 %`; what is not zero is never shown as zero.
pub fn percent(share: f32) -> String {
    let percent = f64::from(share) * 100.0;
    if percent <= 0.0 {
        "0 %".into()
    } else if percent < 0.1 {
        "<0.1 %".into()
    } else if percent < 9.95 {
        format!("{} %", one_decimal(percent))
    } else {
        format!("{percent:.0} %")
    }
}

/// Points of a score of 0 to 100: `87.5`, `90`.
pub fn score(points: f64) -> String {
    one_decimal(points)
}

/// An access rate; `?` where it is not known.
pub fn rate(rate: Option<f32>) -> String {
    rate.map_or_else(|| "?".into(), percent)
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
        Some((whole, "0" | "00")) => whole.into(),
        _ => text,
    }
}

fn one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_and_a_binary_unit() {
        let shown = [0, 1023, 4096, 4608, 10 << 20, (1 << 30) - 1, u64::MAX].map(bytes);
        let expected = [
            "0 B", "1023 B", "4 KiB", "4.50 KiB", "10 MiB", "1 GiB", "16 EiB",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn durations_have_the_unit_a_person_would_choose() {
        let ns = [
            0,
            999,
            5_000_000,
            999_999_999,
            3_200_000_000,
            65_000_000_000,
        ];
        let shown = ns.map(|n| duration(Nanos(n)));
        assert_eq!(
            shown,
            ["0 s", "999 ns", "5 ms", "1 s", "3.2 s", "1 min 5 s"]
        );
        let s =
            [59_960, 3_600_000, 5_400_000, 90_000_000].map(|ms| duration(Nanos::from_millis(ms)));
        assert_eq!(s, ["1 min", "1 h", "1 h 30 min", "1 d 1 h"]);
    }

    #[test]
    fn little_is_not_nothing() {
        let shown = [0.0, 0.000_1, 0.004, 0.0995, 0.5, 1.0].map(percent);
        assert_eq!(shown, ["0 %", "<0.1 %", "0.4 %", "10 %", "50 %", "100 %"]);
        assert_eq!(rate(None), "?");
    }
}
