//! Sizes as people write them: `4096`, `2MiB`, `1.5G`.
//!
//! All suffixes are binary, as in every memory tool of the kernel's; `KB` and its like are refused,
//! since half of their readers take them for powers of ten.

/// Parses a size in bytes: digits, perhaps with a fraction, then perhaps one of `K M G T` or `KiB
/// MiB GiB TiB`, in any case.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
    // Beyond 2^53 a fraction could not be told from rounding.
    (shift > 0 && bytes.is_finite() && bytes < 9e15).then_some(bytes.round() as u64)
}

/// Writes a size for people: at most one decimal, in the largest binary unit that keeps it above 1.
pub fn format(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            ("100000000", Some(100_000_000)),
            ("4G", Some(4 << 30)),
            ("2MiB", Some(2 << 20)),
            (" 2 mib ", Some(2 << 20)),
            ("1.5K", Some(1536)),
            ("0", Some(0)),
            ("2MB", None),
            ("1.5", None),
            ("", None),
            ("-1", None),
            ("1.2.3K", None),
            ("99999999999T", None),
        ] {
            assert_eq!(parse(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (4096, "4 KiB"),
            (1536, "1.5 KiB"),
            (16 << 30, "16 GiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
