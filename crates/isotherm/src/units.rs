//! Durations, sizes and shares, as people write them and as we print them.
//!
//! Problem: the same quantities come in by flags, by configuration files and by other tools'
//! strings (damo writes `"5 ms"`, `"4,096"`, `"0.3 %"`, `"max"`), and go out in every view. If each
//! place parsed and rounded for itself, two of them would soon disagree about what `1.5G` is.
//!
//! Approach: one parser of decimal numbers with a unit behind them, in integers, so that no value
//! changes on its way through a float; one way to print each quantity, which the parser reads back.
//! Sizes are powers of 1024 whatever the suffix (`K`, `KB`, `KiB`), as in the kernel and in damo.
//!
//! Limits: no negative numbers, no exponents; what exceeds 64 bits is refused, not clipped.

use isotherm_engine::Nanos;

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SEC: u64 = 1_000_000_000;
const NS_PER_MIN: u64 = 60 * NS_PER_SEC;
const NS_PER_HOUR: u64 = 60 * NS_PER_MIN;
const NS_PER_DAY: u64 = 24 * NS_PER_HOUR;

const DURATION_UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("nsec", 1),
    ("us", NS_PER_US),
    ("µs", NS_PER_US),
    ("usec", NS_PER_US),
    ("ms", NS_PER_MS),
    ("msec", NS_PER_MS),
    ("s", NS_PER_SEC),
    ("sec", NS_PER_SEC),
    ("m", NS_PER_MIN),
    ("min", NS_PER_MIN),
    ("h", NS_PER_HOUR),
    ("hour", NS_PER_HOUR),
    ("d", NS_PER_DAY),
    ("day", NS_PER_DAY),
];

const BYTE_UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tb", 1 << 40),
    ("tib", 1 << 40),
    ("p", 1 << 50),
    ("pb", 1 << 50),
    ("pib", 1 << 50),
];

/// More digits than this are not a quantity anybody means, and keep the arithmetic within `u128`.
const DIGITS_MAX: usize = 20;

/// Why a text is not the quantity that was asked for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    /// No number where one must be.
    #[error("`{text}` is not a {what}: it has no number; write for example `{example}`")]
    NoNumber {
        /// What was given.
        text: String,
        /// What was asked for.
        what: &'static str,
        /// What would do.
        example: &'static str,
    },
    /// A number with nothing behind it, where seconds and minutes are equally likely.
    #[error("`{text}` has no unit; write for example `{example}`")]
    NoUnit {
        /// What was given.
        text: String,
        /// What would do.
        example: &'static str,
    },
    /// A unit that this quantity does not have.
    #[error("`{unit}` in `{text}` is not a unit of a {what}; known are {known}")]
    UnknownUnit {
        /// What was given.
        text: String,
        /// The part that is not known.
        unit: String,
        /// What was asked for.
        what: &'static str,
        /// What would do.
        known: &'static str,
    },
    /// More than the quantity can hold.
    #[error("`{text}` is too large for a {what}; the most is {most}")]
    TooLarge {
        /// What was given.
        text: String,
        /// What was asked for.
        what: &'static str,
        /// The largest.
        most: &'static str,
    },
}

/// Reads a duration that is not zero.
pub(crate) fn parse_time_span(text: &str) -> anyhow::Result<Nanos> {
    let time = parse_duration(text)?;
    anyhow::ensure!(time > Nanos(0), "nothing happens in no time; try 30s");
    Ok(time)
}

/// Reads a duration: `5ms`, `30s`, `2 min`, `1h 30m`, `1,000 us`, `max`. A number needs its unit
/// (but `0` does not).
pub(crate) fn parse_duration(text: &str) -> Result<Nanos, UnitError> {
    const WHAT: &str = "duration";
    const EXAMPLE: &str = "5ms, 30s or 2min";
    if is_max(text) {
        return Ok(Nanos(u64::MAX));
    }
    let mut total: u64 = 0;
    let mut rest = text.trim();
    loop {
        let (number, after) = take_number(rest).ok_or_else(|| UnitError::NoNumber {
            text: text.to_owned(),
            what: WHAT,
            example: EXAMPLE,
        })?;
        let (unit, after) = take_unit(after);
        if unit.is_empty() && number.is_zero() && after.is_empty() {
            return Ok(Nanos(total));
        }
        if unit.is_empty() {
            return Err(UnitError::NoUnit {
                text: text.to_owned(),
                example: EXAMPLE,
            });
        }
        let factor = lookup(DURATION_UNITS, unit).ok_or_else(|| UnitError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            what: WHAT,
            known: "ns, us, ms, s, min, h, d",
        })?;
        total = number
            .times(factor)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| UnitError::TooLarge {
                text: text.to_owned(),
                what: WHAT,
                most: "584 years (or `max`)",
            })?;
        if after.is_empty() {
            return Ok(Nanos(total));
        }
        rest = after;
    }
}

/// Reads a size in bytes: `4096`, `4,096`, `4K`, `2MiB`, `1.5 G`, `max`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    const WHAT: &str = "size";
    if is_max(text) {
        return Ok(u64::MAX);
    }
    let (number, unit) = take_number(text.trim()).ok_or_else(|| UnitError::NoNumber {
        text: text.to_owned(),
        what: WHAT,
        example: "4096, 4K or 1.5GiB",
    })?;
    let factor = lookup(BYTE_UNITS, unit).ok_or_else(|| UnitError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.trim().to_owned(),
        what: WHAT,
        known: "B, K, M, G, T, P (also as KB or KiB; all powers of 1024)",
    })?;
    number.times(factor).ok_or_else(|| UnitError::TooLarge {
        text: text.to_owned(),
        what: WHAT,
        most: "16 EiB less one byte (or `max`)",
    })
}

/// Reads a share of a whole, as 0 to 1: `1%`, `0.3 %`, `100%`. The `%` must be there: whether a bare
/// `0.5` means a half or half a per cent cannot be told.
pub(crate) fn parse_share(text: &str) -> Result<f64, UnitError> {
    const WHAT: &str = "percentage";
    const EXAMPLE: &str = "1% or 0.5%";
    let (number, unit) = take_number(text.trim()).ok_or_else(|| UnitError::NoNumber {
        text: text.to_owned(),
        what: WHAT,
        example: EXAMPLE,
    })?;
    match unit.trim() {
        "%" | "percent" => {}
        "" => {
            return Err(UnitError::NoUnit {
                text: text.to_owned(),
                example: EXAMPLE,
            });
        }
        other => {
            return Err(UnitError::UnknownUnit {
                text: text.to_owned(),
                unit: other.to_owned(),
                what: WHAT,
                known: "%",
            });
        }
    }
    let share = number.as_f64() / 100.0;
    if share > 1.0 {
        return Err(UnitError::TooLarge {
            text: text.to_owned(),
            what: WHAT,
            most: "100%",
        });
    }
    Ok(share)
}

/// Prints a size in the largest binary unit that it fills: `4 KiB`, `1.5 GiB`, `812 MiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = (bytes.max(1).ilog2() / 10) as usize;
    let mut value = bytes as f64 / (1u64 << (10 * power)) as f64;
    // 1023.7 KiB would print as `1024 KiB`.
    if value.round() >= 1024.0 && power + 1 < NAMES.len() {
        power += 1;
        value /= 1024.0;
    }
    format!("{} {}", brief(value), NAMES[power])
}

/// Prints a duration: `120 ns`, `5 ms`, `1.5 s`, `2 min 5 s`, `1 h 3 min`.
pub(crate) fn format_duration(duration: Nanos) -> String {
    let ns = duration.0;
    // The first unit whose rounded value is not already one of the next.
    for (name, unit, next) in [
        ("ns", 1, NS_PER_US),
        ("us", NS_PER_US, NS_PER_MS),
        ("ms", NS_PER_MS, NS_PER_SEC),
    ] {
        let value = ns as f64 / unit as f64;
        if value.round() < (next / unit) as f64 {
            return format!("{} {name}", brief(value));
        }
    }
    let seconds = ns.saturating_add(NS_PER_SEC / 2) / NS_PER_SEC;
    match seconds {
        0..60 => format!("{} s", brief(ns as f64 / NS_PER_SEC as f64)),
        60..3600 => two_units(seconds, 60, "min", 1, "s"),
        3600..86_400 => two_units(seconds, 3600, "h", 60, "min"),
        _ => two_units(seconds, 86_400, "d", 3600, "h"),
    }
}

/// Prints a share of a whole as a percentage: `0 %`, `0.05 %`, `1.3 %`, `37 %`.
pub(crate) fn format_share(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.095 {
        let text = format!("{percent:.2}");
        return if text == "0.00" {
            "<0.01 %".to_owned()
        } else {
            format!("{text} %")
        };
    }
    format!("{} %", brief(percent))
}

/// One decimal below 10 and none above, and none where it would be a zero.
fn brief(value: f64) -> String {
    let tenths = (value * 10.0).round();
    if tenths < 100.0 && tenths % 10.0 != 0.0 {
        format!("{:.1}", tenths / 10.0)
    } else {
        format!("{value:.0}")
    }
}

fn two_units(seconds: u64, large: u64, large_name: &str, small: u64, small_name: &str) -> String {
    let rest = seconds % large / small;
    if rest == 0 {
        format!("{} {large_name}", seconds / large)
    } else {
        format!("{} {large_name} {rest} {small_name}", seconds / large)
    }
}

fn is_max(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case("max")
}

fn lookup(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    let unit = unit.trim().to_lowercase();
    units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, factor)| *factor)
}

/// A decimal number, exactly: `digits / 10^scale`.
#[derive(Clone, Copy)]
struct Decimal {
    digits: u128,
    scale: u32,
}

impl Decimal {
    fn is_zero(self) -> bool {
        self.digits == 0
    }

    fn as_f64(self) -> f64 {
        self.digits as f64 / 10f64.powi(self.scale as i32)
    }

    /// `self * factor`, rounded to the nearest integer; `None` beyond 64 bits.
    fn times(self, factor: u64) -> Option<u64> {
        let divisor = 10u128.pow(self.scale);
        let product = self.digits.checked_mul(u128::from(factor))?;
        u64::try_from((product + divisor / 2) / divisor).ok()
    }
}

/// Splits a leading number (`1.5`, `4,096`, `.5`) from what follows it.
fn take_number(text: &str) -> Option<(Decimal, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let mut decimal = Decimal {
        digits: 0,
        scale: 0,
    };
    let mut nr_digits = 0;
    let mut after_point = false;
    for c in number.chars() {
        match c {
            '.' if after_point => return None,
            '.' => after_point = true,
            // Thousands' separators, as damo prints them; a decimal comma is not guessed at.
            ',' if after_point || nr_digits == 0 => return None,
            ',' => {}
            digit => {
                nr_digits += 1;
                if nr_digits > DIGITS_MAX {
                    return None;
                }
                decimal.digits = decimal.digits * 10 + u128::from(digit.to_digit(10)?);
                decimal.scale += u32::from(after_point);
            }
        }
    }
    if nr_digits == 0 || !separators_group_thousands(number) {
        return None;
    }
    Some((decimal, rest))
}

/// `4,096` but not `1,5`, which a European means as one and a half.
fn separators_group_thousands(number: &str) -> bool {
    let whole = number.split('.').next().unwrap_or(number);
    whole.split(',').skip(1).all(|group| group.len() == 3)
}

/// Splits a leading unit, with the blanks around it, from what follows.
fn take_unit(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text
        .find(|c: char| c.is_ascii_digit() || c.is_whitespace() || c == '.')
        .unwrap_or(text.len());
    let (unit, rest) = text.split_at(end);
    (unit, rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_usual_spelling() {
        let check = |text: &str, ns: u64| assert_eq!(parse_duration(text), Ok(Nanos(ns)), "{text}");
        check("5ms", 5_000_000);
        check("5 ms", 5_000_000);
        check(" 1.5s ", 1_500_000_000);
        check("2 min", 120_000_000_000);
        check("2m", 120_000_000_000);
        check("1h 30m", 5_400_000_000_000);
        check("1m30s", 90_000_000_000);
        check("1,000 us", 1_000_000);
        check("20 µs", 20_000);
        check("7 d", 7 * NS_PER_DAY);
        check("0", 0);
        check("0.0000000004 s", 0);
        check(".5s", 500_000_000);
        check("max", u64::MAX);
        check("18446744073709551615 ns", u64::MAX);
    }

    #[test]
    fn sizes_are_read_in_every_usual_spelling() {
        let check = |text: &str, bytes: u64| assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        check("4096", 4096);
        check("4,096", 4096);
        check("4K", 4096);
        check("4k", 4096);
        check("4 KiB", 4096);
        check("2MiB", 2 << 20);
        check("2MB", 2 << 20);
        check("1.5G", 3 << 29);
        check("1 T", 1 << 40);
        check("12 B", 12);
        check("18,446,744,073,709,551,615", u64::MAX);
        check("max", u64::MAX);
    }

    #[test]
    fn shares_need_their_sign_and_end_at_the_whole() {
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("0.5 %"), Ok(0.005));
        assert_eq!(parse_share("100%"), Ok(1.0));
        assert_eq!(
            parse_share("0.5").unwrap_err().to_string(),
            "`0.5` has no unit; write for example `1% or 0.5%`"
        );
        assert_eq!(
            parse_share("101%").unwrap_err().to_string(),
            "`101%` is too large for a percentage; the most is 100%"
        );
    }

    #[test]
    fn an_error_shows_the_text_and_what_would_do() {
        let duration = |text: &str| parse_duration(text).unwrap_err().to_string();
        assert_eq!(
            duration("30"),
            "`30` has no unit; write for example `5ms, 30s or 2min`"
        );
        assert_eq!(
            duration("5 parsec"),
            "`parsec` in `5 parsec` is not a unit of a duration; known are ns, us, ms, s, min, h, d"
        );
        assert_eq!(
            duration("soon"),
            "`soon` is not a duration: it has no number; write for example `5ms, 30s or 2min`"
        );
        assert_eq!(
            duration("9999999 d"),
            "`9999999 d` is too large for a duration; the most is 584 years (or `max`)"
        );
        assert!(parse_bytes("4Q").is_err());
        assert!(parse_bytes("17 E").is_err());
        assert!(parse_bytes("17000 P").is_err());
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        for text in [
            "", " ", ".", ",", "1.2.3s", "1,5s", ",5s", "-5s", "1s 2", "s", "1e3s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let endless = "9".repeat(4000);
        assert!(parse_bytes(&endless).is_err());
        assert!(parse_bytes(&format!("0.{endless}")).is_err());
    }

    #[test]
    fn sizes_print_short() {
        let check = |bytes: u64, text: &str| assert_eq!(format_bytes(bytes), text);
        check(0, "0 B");
        check(1023, "1023 B");
        check(4096, "4 KiB");
        check(3 << 29, "1.5 GiB");
        check((2 << 20) + 1, "2 MiB");
        check(812 << 20, "812 MiB");
        check((1 << 20) - 1, "1 MiB");
        check(u64::MAX, "16 EiB");
    }

    #[test]
    fn durations_print_short() {
        let check = |ns: u64, text: &str| assert_eq!(format_duration(Nanos(ns)), text);
        check(0, "0 ns");
        check(120, "120 ns");
        check(5_000_000, "5 ms");
        check(999_999_999, "1 s");
        check(1_500_000_000, "1.5 s");
        check(59_600_000_000, "1 min");
        check(125_000_000_000, "2 min 5 s");
        check(3_780_000_000_000, "1 h 3 min");
        check(90_000 * NS_PER_SEC, "1 d 1 h");
        check(u64::MAX, "213503 d 23 h");
    }

    #[test]
    fn shares_print_short() {
        let check = |share: f64, text: &str| assert_eq!(format_share(share), text);
        check(0.0, "0 %");
        check(0.00001, "<0.01 %");
        check(0.0005, "0.05 %");
        check(0.013, "1.3 %");
        check(0.3741, "37 %");
        check(1.0, "100 %");
    }

    #[test]
    fn what_is_printed_reads_back_to_within_its_last_digit() {
        for exponent in 0..60 {
            for mantissa in [1u64, 3, 7, 11] {
                let value = mantissa << exponent;
                let near = |back: u64| back.abs_diff(value) as f64 <= value as f64 * 0.06;
                assert!(near(parse_bytes_or_exa(&format_bytes(value))), "{value}");
                let text = format_duration(Nanos(value));
                assert!(near(parse_duration(&text).unwrap().0), "{value}: {text}");
            }
        }
    }

    /// Exbibytes are printed but not read: nobody has any.
    fn parse_bytes_or_exa(text: &str) -> u64 {
        match text.strip_suffix(" EiB") {
            Some(number) => (number.parse::<f64>().unwrap() * (1u64 << 60) as f64) as u64,
            None => parse_bytes(text).unwrap(),
        }
    }
}
