//! Numbers as damo writes and reads them: with or without thousands' commas, units, or quotes.
//!
//! Everything is kept in integers, since an address and a time in nanoseconds have more digits than
//! a float.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// What `max` means in damo's files.
const MAX: u64 = u64::MAX;

/// `text` as a whole number of `scale`ths: `decimal("1.5", 1000)` is 1500.
///
/// Digits beyond what `scale` resolves are dropped.
pub(crate) fn decimal(text: &str, scale: u64) -> Option<u64> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for byte in whole.bytes() {
        match byte {
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            }
            b',' => {}
            _ => return None,
        }
    }
    let mut value = value.checked_mul(scale)?;
    let mut place = scale;
    for byte in fraction.bytes() {
        if !byte.is_ascii_digit() {
            return None;
        }
        place /= 10;
        value = value.checked_add(u64::from(byte - b'0') * place)?;
    }
    Some(value)
}

/// A duration in nanoseconds; a number without a unit counts `unit_ns` each.
///
/// `"1 h 2 m 3.5 s"`, `"5ms"`, `"1,000"`, `"max"`.
pub(crate) fn duration_ns(text: &str, unit_ns: u64) -> Option<u64> {
    match text.trim() {
        "max" => return Some(MAX),
        "min" => return Some(0),
        _ => {}
    }
    if let Some(plain) = decimal(text, unit_ns) {
        return Some(plain);
    }
    let mut total = 0u64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (digits, tail) = rest.split_at(number);
        let end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return None,
        };
        total = total.checked_add(decimal(digits, unit)?)?;
        rest = tail.trim_start();
    }
    Some(total)
}

/// An address or a size in bytes: `"4,096"`, `"4K"`, `"1.5 GiB"`, `"max"`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    match text {
        "max" => return Some(MAX),
        "min" => return Some(0),
        _ => {}
    }
    let end = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let scale = match unit.strip_suffix('B').unwrap_or(unit).as_bytes() {
        b"" => 1,
        [prefix] | [prefix, b'i'] => {
            let power = b"KMGTPE".iter().position(|p| p == prefix)?;
            1u64 << (10 * (power + 1))
        }
        _ => return None,
    };
    decimal_binary(digits, scale)
}

/// Like [`decimal`] for scales that are no powers of ten.
fn decimal_binary(text: &str, scale: u64) -> Option<u64> {
    if scale == 1 || !text.contains('.') {
        return decimal(text, 1)?.checked_mul(scale);
    }
    let millionths = u128::from(decimal(text, 1_000_000)?);
    u64::try_from(millionths * u128::from(scale) / 1_000_000).ok()
}

/// A value that JSON may hold as a number or as text, read with `parse` where it is text.
macro_rules! lenient {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expecting:literal, $int:expr, $float:expr, $text:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name(pub(crate) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Parse;
                impl Visitor<'_> for Parse {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_u64<E: de::Error>(self, n: u64) -> Result<$name, E> {
                        let value: Option<$inner> = $int(n);
                        value.map($name).ok_or_else(|| {
                            E::invalid_value(de::Unexpected::Unsigned(n), &self)
                        })
                    }
                    fn visit_i64<E: de::Error>(self, n: i64) -> Result<$name, E> {
                        self.visit_f64(n as f64)
                    }
                    fn visit_f64<E: de::Error>(self, n: f64) -> Result<$name, E> {
                        let value: Option<$inner> = $float(n);
                        value.map($name).ok_or_else(|| {
                            E::invalid_value(de::Unexpected::Float(n), &self)
                        })
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        let value: Option<$inner> = $text(text);
                        value.map($name).ok_or_else(|| {
                            E::invalid_value(de::Unexpected::Str(text), &self)
                        })
                    }
                }
                deserializer.deserialize_any(Parse)
            }
        }
    };
}

fn whole(n: f64) -> Option<u64> {
    (0.0..1.8e19).contains(&n).then_some(n as u64)
}

lenient!(
    /// An address or a size.
    Bytes(u64),
    "a number of bytes such as 4096, \"4,096\" or \"4K\"",
    Some,
    whole,
    bytes
);
lenient!(
    /// A duration or time that counts nanoseconds where it has no unit.
    Nanoseconds(u64),
    "a time in ns such as 1000, \"1,000\" or \"1 us\"",
    Some,
    whole,
    |text| duration_ns(text, 1)
);
lenient!(
    /// A duration in nanoseconds, that counts microseconds where it has no unit.
    Microseconds(u64),
    "a time in us such as 5000, \"5,000\" or \"5 ms\"",
    |n: u64| n.checked_mul(1000),
    |n: f64| whole(n * 1000.0),
    |text| duration_ns(text, 1000)
);
lenient!(
    /// A plain number; damo's marks for "none" are negative.
    Number(f64),
    "a number such as 12, 1.5 or \"1,200\"",
    |n: u64| Some(n as f64),
    |n: f64| n.is_finite().then_some(n),
    number
);

fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches('%').trim_end();
    if text == "max" {
        return Some(MAX as f64);
    }
    let plain: String = text.chars().filter(|c| *c != ',').collect();
    plain.parse().ok().filter(|n: &f64| n.is_finite())
}

#[cfg(test)]
mod tests {
    use super::{bytes, decimal, duration_ns};

    #[test]
    fn times_are_exact() {
        for (text, unit, ns) in [
            ("82877.315633", 1_000_000_000, 82_877_315_633_000),
            ("1790000000123456789", 1, 1_790_000_000_123_456_789),
            ("1,000", 1, 1000),
            ("1.5", 1000, 1500),
            ("0.001", 1000, 1),
            ("1 h 2 m 3.5 s", 1, 3_723_500_000_000),
            ("5ms", 1, 5_000_000),
            ("1 s 5 ns", 1, 1_000_000_005),
        ] {
            assert_eq!(duration_ns(text, unit), Some(ns), "{text}");
        }
        for text in ["", "-1", "1x", "h", "99999999999999999999", ".", "1 s x"] {
            assert_eq!(duration_ns(text, 1), None, "{text}");
        }
    }

    #[test]
    fn sizes_take_units_and_commas() {
        for (text, n) in [
            ("140,731,667,070,976", 140_731_667_070_976),
            ("4K", 4096),
            ("1.5 GiB", 3 << 29),
            ("2 MB", 2 << 20),
            ("max", u64::MAX),
            ("12 B", 12),
        ] {
            assert_eq!(bytes(text), Some(n), "{text}");
        }
        assert_eq!(bytes("4 Q"), None);
        assert_eq!(decimal("18446744073709551616", 1), None);
    }
}
