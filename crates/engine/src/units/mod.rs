//! Sizes, times, shares and rates: parsing of the notations of users and other tools, and printing.
//!
//! Problem: the same quantities come from flags, configuration files and other tools' records, and are printed in every
//! view. damo writes `"5 ms"`, `"4,096"`, `"0.3 %"`, `"max"`. With separate parsers and rounding, `report --from 5` was
//! accepted and `record --duration 5` was not.
//!
//! Approach: one grammar. A quantity is a [`Decimal`] with a unit behind it; a time may be a sum of those (`1 m 30 s`).
//! Decimals are exact: nothing passes through a binary fraction. Fractions of the smallest unit are dropped, as damo
//! does. Sizes are powers of 1024 with any suffix (`K`, `KB`, `KiB`), as in the kernel and in damo. Units are not
//! case-sensitive, and the usual long forms work (`sec`, `minutes`). Printed quantities can be parsed again.
//!
//! A number without a unit is refused where several units are equally likely. In files of other tools the key names the
//! unit (`_us`, `_permil`): [`parse_time_in`].
//!
//! Source: damo 3.4.3, `_damo_fmt_str.py`.
//!
//! Limits: no negative quantities; values above 64 bits are refused, not clipped.

mod decimal;
mod parse;
mod print;

pub use decimal::Decimal;
pub use parse::{
    Quantity, UnitError, is_unit, parse_bytes, parse_share, parse_time, parse_time_in,
    parse_time_span,
};
pub use print::{format_bytes, format_rate, format_share, format_time};

use crate::address::Nanos;

/// A microsecond.
pub const MICROSECOND: Nanos = Nanos(1_000);
/// A millisecond.
pub const MILLISECOND: Nanos = Nanos(1_000_000);
/// A second.
pub const SECOND: Nanos = Nanos(1_000_000_000);
/// A minute.
pub const MINUTE: Nanos = Nanos(60 * SECOND.0);
/// An hour.
pub const HOUR: Nanos = Nanos(60 * MINUTE.0);
/// A day.
pub const DAY: Nanos = Nanos(24 * HOUR.0);
