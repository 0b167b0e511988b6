//! Numbers as damo writes and reads them: with or without thousands' commas, units, or quotes
//! ([`isotherm_engine::units`]).

use std::fmt;

use isotherm_engine::Nanos;
use isotherm_engine::units::{MICROSECOND, parse_bytes, parse_time_in};
use serde::de::{self, Deserialize, Deserializer, Visitor};

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

fn time_ns(text: &str, bare: Nanos) -> Option<u64> {
    parse_time_in(text, bare).ok().map(|time| time.0)
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
    |text| parse_bytes(text).ok()
);
lenient!(
    /// A duration or time that counts nanoseconds where it has no unit.
    Nanoseconds(u64),
    "a time in ns such as 1000, \"1,000\" or \"1 us\"",
    Some,
    whole,
    |text| time_ns(text, Nanos(1))
);
lenient!(
    /// A duration in nanoseconds, that counts microseconds where it has no unit.
    Microseconds(u64),
    "a time in us such as 5000, \"5,000\" or \"5 ms\"",
    |n: u64| n.checked_mul(1000),
    |n: f64| whole(n * 1000.0),
    |text| time_ns(text, MICROSECOND)
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
        return Some(u64::MAX as f64);
    }
    let plain: String = text.chars().filter(|c| *c != ',').collect();
    plain.parse().ok().filter(|n: &f64| n.is_finite())
}
