//! Numbers with units, as damo writes and reads them (`_damo_fmt_str.py`).
//!
//! `4,096`, `4K`, `4.000 KiB`, `5 ms`, `1 m 30 s`, `0.3 %`, `min`, `max`. A number without a unit is
//! in the unit that its key names (`_us`, `_permil`). Decimals are exact: no binary fraction comes
//! in between.
//!
//! One oddity is damo's: `damo args damon --raw` writes ages and quota times in nanoseconds, and
//! reads them back as micro- and milliseconds. They are read here as damo reads them.

use isotherm_engine::Nanos;
use isotherm_engine::scheme::{Age, Frequency};

use crate::problem::{nearest, quoted};

/// Why a text is no such number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misread {
    pub(crate) found: String,
    pub(crate) expected: &'static str,
    pub(crate) suggestion: Option<String>,
}

type Read<T> = Result<T, Misread>;

const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("K", 1 << 10),
    ("KB", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MB", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GB", 1 << 30),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TB", 1 << 40),
    ("TiB", 1 << 40),
    ("P", 1 << 50),
    ("PB", 1 << 50),
    ("PiB", 1 << 50),
    ("E", 1 << 60),
    ("EB", 1 << 60),
    ("EiB", 1 << 60),
];

const TIMES: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", MICROSECOND),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
    ("d", 86_400 * SECOND),
];

/// Nanoseconds in a microsecond.
pub(crate) const MICROSECOND: u64 = 1000;
/// Nanoseconds in a millisecond.
pub(crate) const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

const SIZE: &str = "a size, such as 4096, 4K, 2 MiB or max";
const TIME: &str = "a time, such as 5 ms, 1 m 30 s or max";
const COUNT: &str = "a whole number, such as 10 or 1,000";
const SHARE: &str = "a share, such as 1 %";
const FREQUENCY: &str = "an access rate of 0 % to 100 %, or a number such as 3 samples";
const AGE: &str = "a time, such as 5 s or max, or a number such as 50 aggr_intervals";

/// Whether a word by itself is a unit of the number before it, as in `0 %` or `5 s`.
pub(crate) fn is_unit(word: &str) -> bool {
    word == "%" || SIZES.iter().chain(TIMES).any(|(unit, _)| *unit == word)
}

/// A size in bytes.
pub(crate) fn size(text: &str) -> Read<u64> {
    match text.trim() {
        "min" => return Ok(0),
        "max" => return Ok(u64::MAX),
        _ => {}
    }
    let (number, unit) = split(text);
    let factor = factor(unit, SIZES, 1, text, SIZE)?;
    let number = decimal(number).ok_or_else(|| misread(text, SIZE))?;
    if unit.is_empty() && number.is_endless() {
        return Ok(u64::MAX);
    }
    match number.times(factor) {
        Some((bytes, _)) => u64::try_from(bytes).or_else(|_| {
            // damo rounds sizes just below the end of all addresses up to it.
            if bytes == 1 << 64 {
                Ok(u64::MAX)
            } else {
                Err(too_large(text, SIZE))
            }
        }),
        None => Err(too_large(text, SIZE)),
    }
}

/// A time; without a unit, in units of `bare` nanoseconds.
pub(crate) fn time(text: &str, bare: u64) -> Read<Nanos> {
    match text.trim() {
        "min" => return Ok(Nanos(0)),
        "max" => return Ok(Nanos(u64::MAX)),
        _ => {}
    }
    let mut total: u64 = 0;
    let mut rest = text.trim();
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        let (number, tail) = split(rest);
        let end = tail
            .find(|c: char| c.is_whitespace() || c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let tail = tail.trim_start();
        let factor = if unit.is_empty() && !(is_first && tail.is_empty()) {
            return Err(misread(text, TIME));
        } else {
            factor(unit, TIMES, bare, text, TIME)?
        };
        let number = decimal(number).ok_or_else(|| misread(text, TIME))?;
        if unit.is_empty() && number.is_endless() {
            return Ok(Nanos(u64::MAX));
        }
        let nanos = number
            .times(factor)
            .and_then(|(n, _)| u64::try_from(n).ok());
        total = nanos
            .and_then(|nanos| total.checked_add(nanos))
            .ok_or_else(|| too_large(text, TIME))?;
        rest = tail;
        is_first = false;
    }
    Ok(Nanos(total))
}

/// A whole number up to `max`; `max` by that name too.
pub(crate) fn count(text: &str, max: u64) -> Read<u64> {
    match text.trim() {
        "min" => return Ok(0),
        "max" => return Ok(max),
        _ => {}
    }
    let number = decimal(text.trim()).ok_or_else(|| misread(text, COUNT))?;
    match number.times(1) {
        Some((value, true)) => u64::try_from(value)
            .ok()
            .filter(|value| *value <= max)
            .ok_or_else(|| too_large(text, COUNT)),
        Some((_, false)) => Err(misread(text, COUNT)),
        None => Err(too_large(text, COUNT)),
    }
}

/// A share in parts of `whole` (1000 for thousandths), and whether it is a whole number of them;
/// without `%`, a number of these parts.
pub(crate) fn parts(text: &str, whole: u64) -> Read<(u64, bool)> {
    if text.trim() == "max" {
        return Ok((whole, true));
    }
    let (number, percent) = strip_percent(text);
    let number = decimal(number).ok_or_else(|| misread(text, SHARE))?;
    let number = if percent {
        number.divided_by_ten(2).times(whole)
    } else {
        number.times(1)
    };
    let (value, exact) = number.ok_or_else(|| too_large(text, SHARE))?;
    let value = u64::try_from(value).map_err(|_| too_large(text, SHARE))?;
    Ok((value, exact))
}

/// A share as a fraction of 1, written in per cent.
pub(crate) fn fraction(text: &str) -> Read<f64> {
    match strip_percent(text) {
        (number, true) => decimal(number)
            .map(|number| number.divided_by_ten(2).approximate())
            .ok_or_else(|| misread(text, SHARE)),
        (_, false) => Err(misread(text, SHARE)),
    }
}

/// A number that may have a fraction, such as a rate.
pub(crate) fn number(text: &str) -> Read<f64> {
    decimal(text.trim())
        .map(Decimal::approximate)
        .ok_or_else(|| misread(text, "a number"))
}

/// An access frequency. A bare number is per cent, in damo's files as in the seeds' lines.
pub(crate) fn frequency(text: &str) -> Read<Frequency> {
    match text.trim() {
        "min" => return Ok(Frequency::Percent(0.0)),
        "max" => return Ok(Frequency::Percent(100.0)),
        _ => {}
    }
    if let Some(number) = text.trim().strip_suffix("samples") {
        return u32_or_end(number, text, FREQUENCY).map(Frequency::Samples);
    }
    let (number, _) = strip_percent(text);
    let number = decimal(number).ok_or_else(|| misread(text, FREQUENCY))?;
    // damo writes "max" as 18,446,744,073,709,551,615 %.
    if number.is_endless() {
        return Ok(Frequency::Percent(100.0));
    }
    Some(number.approximate())
        .filter(|percent| *percent <= 100.0)
        .map(Frequency::Percent)
        .ok_or_else(|| misread(text, FREQUENCY))
}

/// An age; a bare number is microseconds.
pub(crate) fn age(text: &str) -> Read<Age> {
    if let Some(number) = text.trim().strip_suffix("aggr_intervals") {
        return u32_or_end(number, text, AGE).map(Age::Intervals);
    }
    time(text, MICROSECOND)
        .map(Age::Time)
        .map_err(|misread| Misread {
            expected: AGE,
            ..misread
        })
}

fn u32_or_end(number: &str, text: &str, expected: &'static str) -> Read<u32> {
    let number = number.trim();
    if number == "max" || decimal(number).is_some_and(Decimal::is_endless) {
        return Ok(u32::MAX);
    }
    count(number, u64::from(u32::MAX))
        .map(|count| count as u32)
        .map_err(|cause| Misread {
            found: if cause.found.ends_with(TOO_LARGE) {
                cause.found
            } else {
                quoted(text)
            },
            expected,
            suggestion: None,
        })
}

fn strip_percent(text: &str) -> (&str, bool) {
    let text = text.trim();
    match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), true),
        None => (text, false),
    }
}

/// The number that `text` begins with, and what follows it.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.');
    let mut end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    // An exponent, but not the E of exbibytes.
    let exponent = text[end..].strip_prefix(['e', 'E']).map(|rest| {
        let digits = rest.trim_start_matches(['+', '-']);
        let nr_digits = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        (nr_digits, rest.len() - digits.len())
    });
    if let Some((nr_digits @ 1.., nr_signs)) = exponent {
        end += 1 + nr_signs + nr_digits;
    }
    let (number, rest) = text.split_at(end);
    (number, rest.trim_start())
}

fn factor(
    unit: &str,
    units: &[(&str, u64)],
    bare: u64,
    text: &str,
    expected: &'static str,
) -> Read<u64> {
    if unit.is_empty() {
        return Ok(bare);
    }
    if let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) {
        return Ok(*factor);
    }
    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    let same = names.iter().find(|name| name.eq_ignore_ascii_case(unit));
    // `sec`, `min`, `msec`, `usec`
    let long = ["ns", "us", "ms", "s", "min", "h", "d"]
        .iter()
        .find(|short| unit.starts_with(*short) && units.len() == TIMES.len())
        .map(|short| short.trim_end_matches("in"));
    let better = same
        .copied()
        .or(long)
        .map(str::to_owned)
        .or(nearest(unit, &names));
    let number = text.trim().trim_end_matches(unit).trim_end();
    Err(Misread {
        found: quoted(text),
        expected,
        suggestion: better
            .filter(|_| decimal(number).is_some())
            .map(|better| format!("{number} {better}")),
    })
}

fn misread(text: &str, expected: &'static str) -> Misread {
    Misread {
        found: quoted(text),
        expected,
        suggestion: None,
    }
}

const TOO_LARGE: &str = ", which is too large";

fn too_large(text: &str, expected: &'static str) -> Misread {
    misread(text, expected).too_large()
}

impl Misread {
    fn too_large(mut self) -> Self {
        self.found.push_str(TOO_LARGE);
        self
    }
}

/// `digits * 10^-scale`, exactly.
#[derive(Clone, Copy)]
struct Decimal {
    digits: u128,
    scale: i32,
}

/// A decimal number without a sign, with commas between its digits if it likes.
fn decimal(text: &str) -> Option<Decimal> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i16>().ok()?),
        None => (text, 0),
    };
    let (mut digits, mut scale, mut nr_digits, mut dot) = (0_u128, 0_i32, 0, false);
    for c in mantissa.chars() {
        match c {
            '0'..='9' => {
                digits = digits
                    .checked_mul(10)?
                    .checked_add(u128::from(c as u8 - b'0'))?;
                scale += i32::from(dot);
                nr_digits += 1;
            }
            '.' if !dot => dot = true,
            ',' if !dot && nr_digits > 0 => {}
            _ => return None,
        }
    }
    let scale = scale - i32::from(exponent);
    (nr_digits > 0).then_some(Decimal { digits, scale })
}

impl Decimal {
    /// The whole part of this times `factor`, and whether nothing is lost; `None` where it is too
    /// large for 128 bits.
    fn times(self, factor: u64) -> Option<(u128, bool)> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        if product == 0 {
            return Some((0, true));
        }
        let power = 10_u128.checked_pow(self.scale.unsigned_abs());
        match (self.scale >= 0, power) {
            (true, Some(power)) => Some((product / power, product % power == 0)),
            (true, None) => Some((0, false)),
            (false, power) => Some((product.checked_mul(power?)?, true)),
        }
    }

    fn divided_by_ten(self, times: i32) -> Self {
        Self {
            scale: self.scale + times,
            ..self
        }
    }

    /// Whether it is 2^64 - 1, which is damo's "max", in whatever unit damo wrote it.
    fn is_endless(self) -> bool {
        let mut digits = self.digits;
        while digits > u128::from(u64::MAX) && digits.is_multiple_of(10) {
            digits /= 10;
        }
        digits == u128::from(u64::MAX)
    }

    fn approximate(self) -> f64 {
        // One correctly rounded conversion of the decimal text.
        format!("{}e{}", self.digits, -self.scale)
            .parse()
            .unwrap_or(f64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read better")]
    fn check<T: std::fmt::Debug + PartialEq>(read: Read<T>, wanted: Option<T>) {
        let shown = format!("{read:?}");
        assert_eq!(read.ok(), wanted, "{shown}");
    }

    #[test]
    fn sizes_are_read_as_damo_reads_them() {
        for (text, wanted) in [
            ("4096", 4096),
            ("4,096", 4096),
            ("4K", 4096),
            ("4.000 KiB", 4096),
            ("2MB", 2 << 20),
            ("1.5 MiB", 3 << 19),
            ("0.3 B", 0),
            ("1E", 1 << 60),
            ("1e3", 1000),
            ("2.5e-1 K", 256),
            ("max", u64::MAX),
            ("18446744073709551615", u64::MAX),
            ("16.000 EiB", u64::MAX),
        ] {
            check(size(text), Some(wanted));
        }
        for text in [
            "", "K", "4 k", "-1", "4 K 4", "1e", "17 EiB", "1..2", "1e99999", ",1",
        ] {
            check(size(text), None);
        }
    }

    #[test]
    fn times_are_sums_of_their_parts() {
        let ms = Nanos::from_millis;
        for (text, wanted) in [
            ("5", Nanos(5000)),
            ("5 ms", ms(5)),
            ("5ms", ms(5)),
            ("1 m 30 s", ms(90_000)),
            ("1m30s", ms(90_000)),
            ("1 h 0.5 s", ms(3_600_500)),
            ("1,000 d", ms(86_400_000_000)),
            ("1.5 ns", Nanos(1)),
            ("18446744073709551615000", Nanos(u64::MAX)),
            ("max", Nanos(u64::MAX)),
        ] {
            check(time(text, MICROSECOND), Some(wanted));
        }
        for text in ["", "s", "5 sec", "5 m 3", "1 s -1 s", "999999999 d", "5 5"] {
            check(time(text, MICROSECOND), None);
        }
    }

    #[test]
    fn shares_are_parts_of_a_whole() {
        check(parts("0.3 %", 1000), Some((3, true)));
        check(parts("4%", 10_000), Some((400, true)));
        check(parts("0.35 %", 1000), Some((3, false)));
        check(parts("50.000000", 1000), Some((50, true)));
        check(parts("five", 1000), None);
        check(fraction("0.5 %"), Some(0.005));
        check(fraction("0.5"), None);
    }

    #[test]
    fn rates_and_ages_keep_their_unit() {
        check(frequency("5"), Some(Frequency::Percent(5.0)));
        check(frequency("0.1 %"), Some(Frequency::Percent(0.1)));
        check(
            frequency("18,446,744,073,709,551,615 %"),
            Some(Frequency::Percent(100.0)),
        );
        check(frequency("1,000 samples"), Some(Frequency::Samples(1000)));
        check(frequency("max samples"), Some(Frequency::Samples(u32::MAX)));
        check(frequency("101 %"), None);
        check(frequency("5000000000 samples"), None);
        check(age("50 aggr_intervals"), Some(Age::Intervals(50)));
        check(age("7 s"), Some(Age::Time(Nanos(7 * SECOND))));
    }

    #[test]
    fn a_unit_that_is_nearly_one_is_suggested() {
        let suggested = |read: Read<u64>| read.err().and_then(|misread| misread.suggestion);
        assert_eq!(suggested(size("4 kib")).as_deref(), Some("4 KiB"));
        let time = |text| time(text, 1).map(|nanos| nanos.0);
        assert_eq!(suggested(time("5 seconds")).as_deref(), Some("5 s"));
        assert_eq!(suggested(time("5min")).as_deref(), Some("5 m"));
        assert_eq!(suggested(time("5 parsecs")), None);
    }
}
