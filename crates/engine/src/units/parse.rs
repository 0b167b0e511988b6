//! Parsing of quantities.

use thiserror::Error;

use super::{DAY, Decimal, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND};
use crate::address::Nanos;

const TIMES: [(&[&str], Nanos); 7] = [
    (&["ns", "nsec"], Nanos(1)),
    (&["us", "µs", "usec"], MICROSECOND),
    (&["ms", "msec"], MILLISECOND),
    (&["s", "sec", "second", "seconds"], SECOND),
    (&["m", "min", "minute", "minutes"], MINUTE),
    (&["h", "hour", "hours"], HOUR),
    (&["d", "day", "days"], DAY),
];

/// Letters of binary units; each is 1024 of the one before.
const BINARY: [&str; 6] = ["k", "m", "g", "t", "p", "e"];

/// Kind of quantity that is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A size in bytes.
    Size,
    /// A time.
    Time,
    /// A share of a whole.
    Share,
}

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Time => "time",
            Self::Share => "share",
        }
    }

    /// Returns examples.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Size => "4096, 2M or 1.5 GiB",
            Self::Time => "5ms, 30s or 1m30s",
            Self::Share => "1% or 0.5%",
        }
    }

    const fn units(self) -> &'static str {
        match self {
            Self::Size => "B, K, M, G, T, P, E (also as KB or KiB; all powers of 1024)",
            Self::Time => "ns, us, ms, s, m, h, d",
            Self::Share => "%",
        }
    }

    const fn most(self) -> &'static str {
        match self {
            Self::Size => "16 EiB less one byte (or `max`)",
            Self::Time => "584 years (or `max`)",
            Self::Share => "100%; write 0% to 100%",
        }
    }
}

/// Reason why a text is not the requested quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// A number is missing in the text.
    #[error("`{}` is not a {}: it has no number; write for example `{}`", .0, .1.name(), .1.example())]
    NoNumber(String, Quantity),
    /// A number in the text has no unit, but several units are equally likely.
    #[error("`{}` has no unit; write for example `{}`", .0, .1.example())]
    NoUnit(String, Quantity),
    /// The unit in the text does not belong to this quantity.
    #[error("`{}` in `{}` is not a unit of a {}; known are {}; write for example `{}`", .0, .1, .2.name(), .2.units(), .2.example())]
    UnknownUnit(String, String, Quantity),
    /// The value of the text exceeds the quantity's upper bound.
    #[error("`{}` is too large for a {}; the most is {}", .0, .1.name(), .1.most())]
    TooLarge(String, Quantity),
    /// The time is zero, which is not allowed.
    #[error("nothing happens in no time; try 30s")]
    NoTime,
}

/// Text and quantity that are being parsed, for errors.
#[derive(Clone, Copy)]
struct Reading<'a>(&'a str, Quantity);

impl Reading<'_> {
    fn fault(self, fault: fn(String, Quantity) -> UnitError) -> UnitError {
        fault(self.0.to_owned(), self.1)
    }

    fn unknown(self, unit: &str) -> UnitError {
        UnitError::UnknownUnit(unit.to_owned(), self.0.to_owned(), self.1)
    }
}

/// Parses a size in bytes: `4096`, `4,096`, `4K`, `2MiB`, `1.5 G`, `min` (0), `max`.
///
/// # Errors
/// Fails if `text` is not a size. The error shows an example.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let reading = Reading(text, Quantity::Size);
    if let Some(bound) = bound(text) {
        return Ok(bound);
    }
    let (number, unit) = Decimal::split(text);
    let number = Decimal::parse(number).ok_or_else(|| reading.fault(UnitError::NoNumber))?;
    let factor = size_unit(unit).ok_or_else(|| reading.unknown(unit))?;
    if unit.is_empty() && number.is_max() {
        return Ok(u64::MAX);
    }
    let (bytes, _) = number
        .times(factor)
        .ok_or_else(|| reading.fault(UnitError::TooLarge))?;
    // damo rounds sizes just below the end of all addresses up to it.
    if bytes == 1 << 64 {
        return Ok(u64::MAX);
    }
    u64::try_from(bytes).map_err(|_| reading.fault(UnitError::TooLarge))
}

/// Parses a time: `5ms`, `30s`, `2 min`, `1h 30m`, `1,000 us`, `min` (0), `max`. A number needs its unit (but `0` does
/// not).
///
/// # Errors
/// Fails if `text` is not a time. The error shows an example.
pub fn parse_time(text: &str) -> Result<Nanos, UnitError> {
    time(text, None)
}

/// Parses a time as [`parse_time`] does; a number without a unit counts `bare` each.
///
/// # Errors
/// Fails if `text` is not a time. The error shows an example.
pub fn parse_time_in(text: &str, bare: Nanos) -> Result<Nanos, UnitError> {
    time(text, Some(bare))
}

/// Parses a time that is not zero.
///
/// # Errors
/// Fails if `text` is not a time, or zero. The error shows an example.
pub fn parse_time_span(text: &str) -> Result<Nanos, UnitError> {
    match parse_time(text)? {
        Nanos(0) => Err(UnitError::NoTime),
        time => Ok(time),
    }
}

fn time(text: &str, bare: Option<Nanos>) -> Result<Nanos, UnitError> {
    let reading = Reading(text, Quantity::Time);
    if let Some(bound) = bound(text) {
        return Ok(Nanos(bound));
    }
    let mut total: u64 = 0;
    let mut rest = text.trim();
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        let (number, tail) = Decimal::split(rest);
        let number = Decimal::parse(number).ok_or_else(|| reading.fault(UnitError::NoNumber))?;
        let end = tail
            .find(|c: char| c.is_whitespace() || c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        rest = tail.trim_start();
        let is_alone = is_first && rest.is_empty();
        is_first = false;
        let factor = if !unit.is_empty() {
            time_unit(unit).ok_or_else(|| reading.unknown(unit))?
        } else if is_alone && number.is_zero() {
            Nanos(1)
        } else {
            let bare = bare.filter(|_| is_alone);
            bare.ok_or_else(|| reading.fault(UnitError::NoUnit))?
        };
        if unit.is_empty() && number.is_max() {
            return Ok(Nanos(u64::MAX));
        }
        let part = number.times(factor.0);
        let part = part.and_then(|(n, _)| u64::try_from(n).ok());
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| reading.fault(UnitError::TooLarge))?;
    }
    Ok(Nanos(total))
}

/// Parses a share of a whole, as 0 to 1: `1%`, `0.3 %`, `100 percent`. The `%` is required: a bare `0.5` may mean a
/// half or half a per cent.
///
/// # Errors
/// Fails if `text` is not a share. The error shows an example.
pub fn parse_share(text: &str) -> Result<f64, UnitError> {
    let reading = Reading(text, Quantity::Share);
    let (number, unit) = Decimal::split(text);
    let number = Decimal::parse(number).ok_or_else(|| reading.fault(UnitError::NoNumber))?;
    match unit.trim_end() {
        "%" | "percent" => {}
        "" => return Err(reading.fault(UnitError::NoUnit)),
        other => return Err(reading.unknown(other)),
    }
    let share = number.per_cent().to_f64();
    if share > 1.0 {
        return Err(reading.fault(UnitError::TooLarge));
    }
    Ok(share)
}

/// Returns whether a word alone is a unit of the number before it, as in `0 %` or `5 s`. `min` is not: it is the least
/// value.
pub fn is_unit(word: &str) -> bool {
    let is_named = || size_unit(word).is_some() || time_unit(word).is_some();
    word == "%" || !word.is_empty() && bound(word).is_none() && is_named()
}

/// Parses damo's words for the least and the greatest value.
fn bound(text: &str) -> Option<u64> {
    match text.trim().to_ascii_lowercase().as_str() {
        "max" => Some(u64::MAX),
        "min" => Some(0),
        _ => None,
    }
}

fn size_unit(unit: &str) -> Option<u64> {
    // `1e` is rather a truncated `1e3` than an exbibyte.
    let unit = Some(unit.trim_end()).filter(|unit| *unit != "e")?;
    let unit = unit.to_ascii_lowercase();
    let letter = unit.strip_suffix('b').unwrap_or(&unit);
    if letter.is_empty() {
        return Some(1);
    }
    // `KiB`, but not `Ki`.
    let letter = match letter.strip_suffix('i') {
        Some(letter) if unit.ends_with('b') => letter,
        _ => letter,
    };
    let power = BINARY.iter().position(|name| *name == letter)?;
    Some(1 << (10 * (power + 1)))
}

fn time_unit(unit: &str) -> Option<Nanos> {
    let unit = unit.to_lowercase();
    let mut times = TIMES.iter();
    let found = times.find(|(names, _)| names.contains(&unit.as_str()));
    found.map(|(_, nanos)| *nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_usual_spelling() {
        for (text, ns) in [
            ("5ms", 5_000_000),
            ("5 ms", 5_000_000),
            (" 1.5s ", 1_500_000_000),
            ("2 min", 120_000_000_000),
            ("2m", 120_000_000_000),
            ("5 seconds", 5_000_000_000),
            ("1h 30m", 5_400_000_000_000),
            ("1 h 2 m 3.5 s", 3_723_500_000_000),
            ("1m30s", 90_000_000_000),
            ("1,000 us", 1_000_000),
            ("1,000 d", 86_400_000_000_000_000),
            ("1 h 0.5 s", 3_600_500_000_000),
            ("20 µs", 20_000),
            ("7 d", 7 * DAY.0),
            ("0", 0),
            ("min", 0),
            ("0.0000000004 s", 0),
            ("1.5 ns", 1),
            ("82877.315633 s", 82_877_315_633_000),
            (".5s", 500_000_000),
            ("1e3s", 1_000_000_000_000),
            ("max", u64::MAX),
            ("18446744073709551615 ns", u64::MAX),
        ] {
            assert_eq!(parse_time(text), Ok(Nanos(ns)), "{text}");
        }
    }

    #[test]
    fn a_key_may_say_what_a_bare_number_counts() {
        for (text, ns) in [
            ("5", 5_000),
            ("5 ms", 5_000_000),
            ("1,000", 1_000_000),
            ("1790000000123", 1_790_000_000_123_000),
            ("18446744073709551615000", u64::MAX),
        ] {
            assert_eq!(parse_time_in(text, MICROSECOND), Ok(Nanos(ns)), "{text}");
        }
        for text in ["5 m 3", "5 5", "-1", "1x", "h", "99999999999999999999"] {
            assert!(parse_time_in(text, MICROSECOND).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_in_every_usual_spelling() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4,096", 4096),
            ("140,731,667,070,976", 140_731_667_070_976),
            ("4K", 4096),
            ("4k", 4096),
            ("4.000 KiB", 4096),
            ("2MB", 2 << 20),
            ("2 mib", 2 << 20),
            ("1.5G", 3 << 29),
            ("2.5e-1 K", 256),
            ("1e3", 1000),
            ("0.3 B", 0),
            ("1 T", 1 << 40),
            ("1E", 1 << 60),
            ("16.000 EiB", u64::MAX),
            ("18,446,744,073,709,551,615", u64::MAX),
            ("max", u64::MAX),
            ("min", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "K", "-1", "4 K 4", "17 EiB", "17000 P", "4Q", "4 Ki", "1e", "1e99999", "1..2",
            ",1",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_need_their_sign_and_end_at_the_whole() {
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("0.5 %"), Ok(0.005));
        assert_eq!(parse_share("100%"), Ok(1.0));
        let error = |text: &str| parse_share(text).expect_err("refused").to_string();
        let unit = "`0.5` has no unit; write for example `1% or 0.5%`";
        assert_eq!(error("0.5"), unit);
        let size = "`101%` is too large for a share; the most is 100%; write 0% to 100%";
        assert_eq!(error("101%"), size);
    }

    #[test]
    fn an_error_shows_the_text_and_what_would_do() {
        let error = |text: &str| parse_time(text).expect_err("refused").to_string();
        let hint = "; write for example `5ms, 30s or 1m30s`";
        assert_eq!(error("30"), format!("`30` has no unit{hint}"));
        let unknown =
            "`parsec` in `5 parsec` is not a unit of a time; known are ns, us, ms, s, m, h, d";
        assert_eq!(error("5 parsec"), format!("{unknown}{hint}"));
        let empty = "`soon` is not a time: it has no number";
        assert_eq!(error("soon"), format!("{empty}{hint}"));
        let size = "`9999999 d` is too large for a time; the most is 584 years (or `max`)";
        assert_eq!(error("9999999 d"), size);
        assert!(parse_time_span("0s").is_err());
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        for text in [
            "", " ", ".", ",", "1.2.3s", "1,5s", "1,,000s", ",5s", "-5s", "1s 2", "s", "1..2",
            "1e", "1 s -1 s",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        let endless = "9".repeat(4000);
        assert!(parse_bytes(&endless).is_err());
        assert!(parse_bytes(&format!("0.{endless}")).is_err());
    }

    #[test]
    fn words_are_told_from_units() {
        for word in ["%", "s", "KiB", "ms", "B"] {
            assert!(is_unit(word), "{word}");
        }
        for word in ["", "min", "max", "pageout", "x"] {
            assert!(!is_unit(word), "{word}");
        }
    }
}
