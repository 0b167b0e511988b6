//! Numbers as damo writes and reads them (`_damo_fmt_str.py`).
//!
//! A value is a bare number or text: digits with or without commas, a float, `min`, `max`, and where
//! it is a size or a time, with a unit; a time may have several (`3 h 25 m 45 s 700 ms`).

use serde_json::Value;

const TIME_UNITS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

/// Longest first, so that a suffix is not taken for a shorter one.
const SIZE_UNITS: [(&str, u64); 19] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
    ("KB", 1 << 10),
    ("MB", 1 << 20),
    ("GB", 1 << 30),
    ("TB", 1 << 40),
    ("PB", 1 << 50),
    ("EB", 1 << 60),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("P", 1 << 50),
    ("E", 1 << 60),
    ("B", 1),
];

/// A number: bare, or as text with commas; times `scale`.
fn plain(text: &str, scale: f64) -> Option<u64> {
    match text {
        "min" => return Some(0),
        "max" => return Some(u64::MAX),
        _ => {}
    }
    let digits: String = text.trim().chars().filter(|c| *c != ',').collect();
    if scale.fract() == 0.0
        && let Ok(number) = digits.parse::<u64>()
    {
        return Some(number.saturating_mul(scale as u64));
    }
    let number = digits.parse::<f64>().ok()? * scale;
    // A float cast saturates: what is beyond 64 bits is damo's `max`.
    (number.is_finite() && number >= 0.0).then_some(number.round() as u64)
}

/// The text of a value that is text or a number.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A count.
pub fn count(value: &Value) -> Option<u64> {
    plain(&text_of(value)?, 1.0)
}

/// A count that need not be whole, e.g. accesses. Negative ones are returned as such.
pub fn number(value: &Value) -> Option<f64> {
    let text = text_of(value)?;
    let digits: String = text.chars().filter(|c| *c != ',').collect();
    let digits = digits.trim_end_matches('%').trim_end();
    digits.parse().ok().filter(|n: &f64| n.is_finite())
}

/// A size or address in bytes.
pub fn bytes(value: &Value) -> Option<u64> {
    let text = text_of(value)?;
    plain(&text, 1.0).or_else(|| {
        let (unit, scale) = SIZE_UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
        plain(&text[..text.len() - unit.len()], *scale as f64)
    })
}

/// A time, in nanoseconds; `bare` nanoseconds is what a number without a unit counts in.
pub fn time(value: &Value, bare: u32) -> Option<u64> {
    let text = text_of(value)?;
    if let Some(number) = plain(&text, f64::from(bare)) {
        return Some(number);
    }
    let mut total = 0u64;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (amount, tail) = rest.split_at(end);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, tail) = tail.split_at(end.unwrap_or(tail.len()));
        let (_, scale) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.saturating_add(plain(amount, *scale)?);
        rest = tail.trim_start();
    }
    Some(total)
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in whole units, largest first: `3 h 25 m 45 s 700 ms`.
pub fn exact_time(nanos: u64) -> String {
    let mut rest = nanos;
    let mut parts = Vec::new();
    for (unit, scale) in TIME_UNITS.iter().rev() {
        let scale = *scale as u64;
        if rest >= scale {
            parts.push(format!("{} {unit}", grouped(rest / scale)));
            rest %= scale;
        }
    }
    if parts.is_empty() {
        "0 ns".to_string()
    } else {
        parts.join(" ")
    }
}
