//! Numbers with units, as damo writes and reads them (`_damo_fmt_str.py`).
//!
//! `4,096`, `4K`, `4.000 KiB`, `5 ms`, `1 m 30 s`, `0.3 %`, `min`, `max`. A number without a unit has the unit of its
//! key (`_us`, `_permil`). Decimals are exact: they are never converted to binary fractions.
//!
//! One oddity is damo's: `damo args damon --raw` writes ages and quota times in nanoseconds, and reads them back as
//! micro- and milliseconds. They are read here as damo reads them.

use isotherm_engine::Nanos;
use isotherm_engine::units::{Decimal, MICROSECOND, UnitError, parse_bytes, parse_time_in};
use isotherm_policy::scheme::{Age, Frequency};

use crate::problem::{Problem, quoted};

/// A parsed value, or the problem of an invalid text, still without its place in the file.
pub(crate) type Read<T> = Result<T, Problem>;

const SIZE: &str = "a size, such as 4096, 4K, 2 MiB or max";
const TIME: &str = "a time, such as 5 ms, 1 m 30 s or max";
const COUNT: &str = "a whole number, such as 10 or 1,000";
const SHARE: &str = "a share, such as 1 %";
const FREQUENCY: &str = "an access rate of 0 % to 100 %, or a number such as 3 samples";
const AGE: &str = "a time, such as 5 s or max, or a number such as 50 aggr_intervals";

/// Reads a size in bytes.
pub(crate) fn size(text: &str) -> Read<u64> {
    parse_bytes(text).map_err(|error| misread_by(&error, text, SIZE))
}

/// Reads a time; a number without a unit is in units of `bare`.
pub(crate) fn time(text: &str, bare: Nanos) -> Read<Nanos> {
    parse_time_in(text, bare).map_err(|error| misread_by(&error, text, TIME))
}

/// Reads a whole number up to `max`, or the word `max`.
pub(crate) fn count(text: &str, max: u64) -> Read<u64> {
    match text.trim() {
        "min" => return Ok(0),
        "max" => return Ok(max),
        _ => {}
    }
    let number = Decimal::parse(text.trim()).ok_or_else(|| misread(text, COUNT))?;
    match number.times(1) {
        Some((value, true)) => u64::try_from(value)
            .ok()
            .filter(|value| *value <= max)
            .ok_or_else(|| too_large(text, COUNT)),
        Some((_, false)) => Err(misread(text, COUNT)),
        None => Err(too_large(text, COUNT)),
    }
}

/// Reads a share in parts of `whole` (1000 for thousandths), and returns whether the number of parts is whole. Without
/// `%` it is a number of these parts.
pub(crate) fn parts(text: &str, whole: u64) -> Read<(u64, bool)> {
    if text.trim() == "max" {
        return Ok((whole, true));
    }
    let (number, percent) = strip_percent(text);
    let number = Decimal::parse(number).ok_or_else(|| misread(text, SHARE))?;
    let number = if percent {
        number.per_cent().times(whole)
    } else {
        number.times(1)
    };
    let (value, exact) = number.ok_or_else(|| too_large(text, SHARE))?;
    let value = u64::try_from(value).map_err(|_| too_large(text, SHARE))?;
    Ok((value, exact))
}

/// Reads a share in per cent as a fraction of 1.
pub(crate) fn fraction(text: &str) -> Read<f64> {
    match strip_percent(text) {
        (number, true) => Decimal::parse(number)
            .map(|number| number.per_cent().to_f64())
            .ok_or_else(|| misread(text, SHARE)),
        (_, false) => Err(misread(text, SHARE)),
    }
}

/// Reads a number that may have a fraction, such as a rate.
pub(crate) fn number(text: &str) -> Read<f64> {
    Decimal::parse(text.trim())
        .map(Decimal::to_f64)
        .ok_or_else(|| misread(text, "a number"))
}

/// Reads an access frequency. A bare number is in per cent, in damo's files as in the lines of DAMON's first patches.
pub(crate) fn frequency(text: &str) -> Read<Frequency> {
    match text.trim() {
        "min" => return Ok(Frequency::Percent(0.0)),
        "max" => return Ok(Frequency::Percent(100.0)),
        _ => {}
    }
    if let Some(number) = text.trim().strip_suffix("samples") {
        return u32_or_end(number, text, FREQUENCY).map(Frequency::Samples);
    }
    let number = text.trim().strip_suffix("percent").map(str::trim_end);
    let number = number.unwrap_or_else(|| strip_percent(text).0);
    let number = Decimal::parse(number).ok_or_else(|| misread(text, FREQUENCY))?;
    // damo writes "max" as 18,446,744,073,709,551,615 %.
    if number.is_max() {
        return Ok(Frequency::Percent(100.0));
    }
    Some(number.to_f64())
        .filter(|percent| *percent <= 100.0)
        .map(Frequency::Percent)
        .ok_or_else(|| misread(text, FREQUENCY))
}

/// Reads an age; a bare number is in microseconds.
pub(crate) fn age(text: &str) -> Read<Age> {
    if let Some(number) = text.trim().strip_suffix("aggr_intervals") {
        return u32_or_end(number, text, AGE).map(Age::Intervals);
    }
    let number = text.trim().strip_suffix("usec").map(str::trim_end);
    // `usec` follows a bare number only: `5 s usec` is no time.
    let number = number.filter(|number| Decimal::parse(number).is_some());
    time(number.unwrap_or(text), MICROSECOND)
        .map(Age::Time)
        .map_err(|misread| Problem {
            expected: AGE.to_owned(),
            ..misread
        })
}

fn u32_or_end(number: &str, text: &str, expected: &str) -> Read<u32> {
    let number = number.trim();
    if number == "max" || Decimal::parse(number).is_some_and(Decimal::is_max) {
        return Ok(u32::MAX);
    }
    count(number, u64::from(u32::MAX))
        .map(|count| count as u32)
        .map_err(|cause| Problem {
            found: if cause.found.ends_with(TOO_LARGE) {
                cause.found
            } else {
                quoted(text)
            },
            ..misread(text, expected)
        })
}

fn strip_percent(text: &str) -> (&str, bool) {
    let text = text.trim();
    match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), true),
        None => (text, false),
    }
}

fn misread_by(error: &UnitError, text: &str, expected: &str) -> Problem {
    match error {
        UnitError::TooLarge(..) => too_large(text, expected),
        _ => misread(text, expected),
    }
}

/// Returns the error of a text that is not as expected.
pub(crate) fn misread(text: &str, expected: &str) -> Problem {
    Problem::error(quoted(text), expected)
}

const TOO_LARGE: &str = ", which is too large";

fn too_large(text: &str, expected: &str) -> Problem {
    Problem::error(quoted(text) + TOO_LARGE, expected)
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
    fn sizes_and_times_are_read_by_the_engine() {
        check(size("4.000 KiB"), Some(4096));
        check(size("17 EiB"), None);
        check(time("5", MICROSECOND), Some(Nanos(5000)));
        check(time("5 parsecs", MICROSECOND), None);
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
        check(age("7 s"), Some(Age::Time(Nanos(7_000_000_000))));
        check(frequency("3 percent"), Some(Frequency::Percent(3.0)));
        check(age("5,000 usec"), Some(Age::Time(Nanos(5_000_000))));
        check(age("5 s usec"), None);
    }
}
